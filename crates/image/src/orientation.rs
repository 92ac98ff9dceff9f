//! Which way up an image is, by the metadata of cameras.

use image::metadata::Orientation;

/// The tag of the orientation.
const ORIENTATION: u64 = 0x112;

/// Returns the orientation that metadata says; the usual one if it says none. Of several, the first one counts.
pub(crate) fn orientation(exif: &[u8]) -> Orientation {
    let number = value(exif).and_then(|value| u8::try_from(value).ok());
    number.and_then(Orientation::from_exif).unwrap_or(Orientation::NoTransforms)
}

/// Returns the first number of the tag, an integer of any kind.
fn value(exif: &[u8]) -> Option<u64> {
    // Some writers have this name in front, and some twice.
    let without_name = |data| <[u8]>::strip_prefix(data, b"Exif\0\0").unwrap_or(data);
    let data = without_name(without_name(exif));
    let is_big_endian = match data.get(..4)? {
        b"MM\0*" => true,
        b"II*\0" => false,
        _ => return None,
    };
    let number = |place: usize, bytes: usize| {
        let bytes = data.get(place..place.checked_add(bytes)?)?.iter();
        let append = |number, byte: &u8| number << 8 | u64::from(*byte);
        Some(if is_big_endian { bytes.fold(0, append) } else { bytes.rev().fold(0, append) })
    };
    let directory = usize::try_from(number(4, 4)?).ok()?;
    for entry in 0..number(directory, 2)? as usize {
        let place = directory + 2 + 12 * entry;
        let (tag, kind, count) = (number(place, 2)?, number(place + 2, 2)?, number(place + 4, 4)?);
        // An entry that is cut off ends the list.
        let behind = number(place + 8, 4)?;
        let bytes = match kind {
            6 => 1,
            3 | 8 => 2,
            4 | 9 | 13 => 4,
            16 => 8,
            _ => continue,
        };
        if tag == ORIENTATION && count > 0 {
            // Numbers that do not fit into an entry are elsewhere.
            let is_here = count <= 4 / bytes;
            let place = if is_here { place + 8 } else { usize::try_from(behind).ok()? };
            return number(place, bytes as usize);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Metadata with entries of these kinds, counts and values, and what lies behind them at 14 + 12 for each entry.
    fn exif(entries: &[(u16, u32, [u8; 4])], behind: &[u8]) -> Vec<u8> {
        let mut data = [&b"II*\0\x08\0\0\0"[..], &(entries.len() as u16).to_le_bytes()].concat();
        for (kind, count, value) in entries {
            data.extend([&0x112_u16.to_le_bytes()[..], &kind.to_le_bytes(), &count.to_le_bytes(), value].concat());
        }
        [&data[..], &[0; 4], behind].concat()
    }

    #[test]
    fn integers_of_any_kind_say_it() {
        for kind in [3, 4, 6, 8, 9, 13] {
            assert_eq!(orientation(&exif(&[(kind, 1, [6, 0, 0, 0])], &[])), Orientation::Rotate90, "{kind}");
        }
        let elsewhere = [26, 0, 0, 0];
        assert_eq!(orientation(&exif(&[(16, 1, elsewhere)], &[8, 0, 0, 0, 0, 0, 0, 0])), Orientation::Rotate270);
        assert_eq!(orientation(&exif(&[(3, 3, elsewhere)], &[3, 0, 6, 0, 6, 0])), Orientation::Rotate180);
        assert_eq!(orientation(&exif(&[(4, 2, elsewhere)], &[3, 0])), Orientation::NoTransforms, "cut off");
        let big_endian = b"MM\0*\0\0\0\x08\0\x01\x01\x12\0\x04\0\0\0\x01\0\0\0\x05";
        assert_eq!(orientation(big_endian), Orientation::Rotate90FlipH);
    }

    #[test]
    fn the_first_entry_that_says_it_counts() {
        let of = |entries: &[(u16, u32, [u8; 4])]| orientation(&exif(entries, &[]));
        let (sixth, third) = ([6, 0, 0, 0], [3, 0, 0, 0]);
        assert_eq!(of(&[(3, 1, sixth), (3, 1, third)]), Orientation::Rotate90);
        assert_eq!(of(&[(99, 1, third), (3, 0, third), (3, 1, sixth)]), Orientation::Rotate90);
        assert_eq!(of(&[(4, 1, [6, 0, 1, 0])]), Orientation::NoTransforms, "65542");
        assert_eq!(of(&[]), Orientation::NoTransforms);
    }

    #[test]
    fn a_name_in_front_is_left_out() {
        let data = exif(&[(3, 1, [6, 0, 0, 0])], &[]);
        for names in 0..4 {
            let named = [b"Exif\0\0".repeat(names), data.clone()].concat();
            assert_eq!(orientation(&named) == Orientation::Rotate90, names <= 2);
        }
        for length in 0..data.len() - 6 {
            assert_eq!(orientation(&data[..length]), Orientation::NoTransforms, "{length}");
        }
    }

    #[test]
    fn places_beyond_the_end_say_nothing() {
        assert_eq!(orientation(b"II*\0\xff\xff\xff\xff"), Orientation::NoTransforms);
        let far = exif(&[(3, u32::MAX, [0xff; 4])], &[]);
        assert_eq!(orientation(&far), Orientation::NoTransforms);
    }
}
