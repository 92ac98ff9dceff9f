//! Iterates over the fields of an encoded message without decoding their values.

/// Maximum nesting of groups. Groups are obsolete, but must be skipped like any unknown field.
const DEEPEST_GROUP: usize = 100;

/// How a field's value is encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wire {
    Varint,
    Fixed64,
    /// Strings, bytes, messages and packed numbers.
    Bytes,
    Group,
    Fixed32,
}

/// One field.
#[derive(Clone, Copy, Debug)]
pub(super) struct Field<'a> {
    pub number: u64,
    pub wire: Wire,
    /// The whole field, including its tag.
    pub whole: &'a [u8],
    /// Its value; for [`Wire::Bytes`], without the length.
    pub value: &'a [u8],
}

/// Iterates over the fields of a message. Ends at the first byte that belongs to no field, where a decoder would stop
/// too.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fields<'a> {
    rest: &'a [u8],
}

impl<'a> Fields<'a> {
    pub(super) fn of(message: &'a [u8]) -> Self {
        Self { rest: message }
    }

    /// Returns the bytes that are left.
    pub(super) fn rest(&self) -> &'a [u8] {
        self.rest
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Field<'a>;

    fn next(&mut self) -> Option<Field<'a>> {
        let before = self.rest;
        let mut rest = before;
        let tag = varint(&mut rest)?;
        let (wire, value) = value(tag, &mut rest, 0)?;
        self.rest = rest;
        Some(Field { number: tag >> 3, wire, whole: &before[..before.len() - rest.len()], value })
    }
}

/// Takes the value that follows a tag.
fn value<'a>(tag: u64, rest: &mut &'a [u8], depth: usize) -> Option<(Wire, &'a [u8])> {
    let begin = *rest;
    let wire = match tag & 7 {
        0 => {
            varint(rest)?;
            Wire::Varint
        }
        1 => return Some((Wire::Fixed64, split(rest, 8)?)),
        2 => {
            let length = usize::try_from(varint(rest)?).ok()?;
            return Some((Wire::Bytes, split(rest, length)?));
        }
        3 if depth < DEEPEST_GROUP => {
            loop {
                let inner = varint(rest)?;
                if inner & 7 == 4 {
                    break;
                }
                value(inner, rest, depth + 1)?;
            }
            Wire::Group
        }
        5 => return Some((Wire::Fixed32, split(rest, 4)?)),
        _ => return None,
    };
    Some((wire, &begin[..begin.len() - rest.len()]))
}

fn split<'a>(rest: &mut &'a [u8], length: usize) -> Option<&'a [u8]> {
    let (value, behind) = rest.split_at_checked(length)?;
    *rest = behind;
    Some(value)
}

/// Takes a number of at most ten bytes.
fn varint(rest: &mut &[u8]) -> Option<u64> {
    const LONGEST: usize = 10;
    let mut number = 0;
    for (index, &byte) in rest.iter().take(LONGEST).enumerate() {
        // The tenth byte of a number that fits has only one bit.
        number |= u64::from(byte & 0x7f) << (7 * index);
        if byte < 0x80 {
            *rest = &rest[index + 1..];
            return Some(number);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_field_is_found_and_what_is_broken_ends_them() {
        let message = [
            &[0x08, 0x96, 0x01][..],            // 1: varint 150
            &[0x11, 0, 0, 0, 0, 0, 0, 0, 0],    // 2: fixed64
            &[0x1a, 2, b'a', b'b'],             // 3: two bytes
            &[0x23, 0x2b, 0x2c, 0x08, 1, 0x24], // 4: a group with a group and a number
            &[0x2d, 0, 0, 0, 0],                // 5: fixed32
            &[0x32, 9, 1],                      // 6: nine bytes, of which one came
        ]
        .concat();
        let mut fields = Fields::of(&message);
        let found: Vec<_> = fields.by_ref().map(|field| (field.number, field.wire, field.value.len())).collect();
        let expected = [
            (1, Wire::Varint, 2),
            (2, Wire::Fixed64, 8),
            (3, Wire::Bytes, 2),
            (4, Wire::Group, 5),
            (5, Wire::Fixed32, 4),
        ];
        assert_eq!(found, expected);
        assert_eq!(fields.rest(), [0x32, 9, 1]);
    }

    #[test]
    fn groups_are_followed_to_a_bounded_depth() {
        let open = vec![0x0b; 1_000_000];
        assert!(Fields::of(&open).next().is_none());
    }
}
