//! BYTES elements in their wire form: each is preceded by its length in four little-endian bytes.

/// Iterates over length-prefixed elements; ends early on malformed data.
pub(crate) struct Elements<'a> {
    pub(crate) rest: &'a [u8],
}

impl<'a> Iterator for Elements<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let (prefix, after) = self.rest.split_first_chunk::<4>()?;
        let (element, rest) = after.split_at_checked(u32::from_le_bytes(*prefix) as usize)?;
        self.rest = rest;
        Some(element)
    }
}

/// Returns the number of elements; `None` if the last one is not whole.
pub(super) fn count_strings(bytes: &[u8]) -> Option<usize> {
    let mut elements = Elements { rest: bytes };
    let count = elements.by_ref().count();
    elements.rest.is_empty().then_some(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_elements_count() {
        let two = [1, 0, 0, 0, b'a', 0, 0, 0, 0];
        assert_eq!(count_strings(&two), Some(2));
        assert_eq!(count_strings(&[]), Some(0));
        for length in [1, 4, 6, 8] {
            assert_eq!(count_strings(&two[..length]), None, "{length} bytes");
        }
    }
}
