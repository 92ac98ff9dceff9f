//! Valid ranges of inputs that are indices, or that an engine computes in fewer bits.

use super::DataType;

/// Range of indices or other integers that a run accepts, inclusive. A run with one outside the range fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndexRange {
    /// Minimum.
    pub least: i64,
    /// Maximum.
    pub most: i64,
    /// Whether the graph casts elements to INT32, so that only the lower half of INT64 elements counts.
    pub as_int32: bool,
}

/// Number of elements that are checked together, without a branch per element.
const BLOCK: usize = 64;

impl IndexRange {
    /// The numbers of 32 bits, for an engine that computes with no others.
    pub const INT32: Self = Self { least: i32::MIN as i64, most: i32::MAX as i64, as_int32: false };

    /// Returns the indices of a table with this many rows, counted from the start or, if negative, from the end.
    pub fn of_table(rows: i64) -> Self {
        Self { least: -rows, most: rows - 1, as_int32: false }
    }

    /// Returns the intersection of both ranges.
    #[must_use]
    pub fn meet(self, other: Self) -> Self {
        Self {
            least: self.least.max(other.least),
            most: self.most.min(other.most),
            as_int32: self.as_int32 && other.as_int32,
        }
    }

    /// Returns whether an index is in the range.
    pub fn contains(&self, index: i64) -> bool {
        let read = if self.as_int32 { i64::from(index as i32) } else { index };
        (self.least <= read) & (read <= self.most)
    }

    /// Returns whether elements of this datatype can be checked.
    pub fn judges(datatype: DataType) -> bool {
        use DataType::{Int8, Int16, Int32, Int64, Uint8, Uint16, Uint32};
        matches!(datatype, Int8 | Int16 | Int32 | Int64 | Uint8 | Uint16 | Uint32)
    }

    /// Returns the position and value of the first element outside the range. `data` holds little-endian elements of a
    /// datatype that [can be checked](Self::judges).
    pub fn first_outside(&self, datatype: DataType, data: &[u8]) -> Option<(usize, i64)> {
        match datatype {
            DataType::Int8 => self.find(data, |bytes| i8::from_le_bytes(bytes).into()),
            DataType::Uint8 => self.find(data, |bytes| u8::from_le_bytes(bytes).into()),
            DataType::Int16 => self.find(data, |bytes| i16::from_le_bytes(bytes).into()),
            DataType::Uint16 => self.find(data, |bytes| u16::from_le_bytes(bytes).into()),
            DataType::Int32 => self.find(data, |bytes| i32::from_le_bytes(bytes).into()),
            DataType::Uint32 => self.find(data, |bytes| u32::from_le_bytes(bytes).into()),
            DataType::Int64 => self.find(data, i64::from_le_bytes),
            _ => None,
        }
    }

    fn find<const SIZE: usize>(&self, data: &[u8], read: impl Fn([u8; SIZE]) -> i64) -> Option<(usize, i64)> {
        let (elements, _) = data.as_chunks::<SIZE>();
        let is_sound =
            |block: &&[[u8; SIZE]]| block.iter().fold(true, |sound, &bytes| sound & self.contains(read(bytes)));
        let sound = elements.chunks(BLOCK).take_while(is_sound).count() * BLOCK;
        let rest = elements.get(sound..)?;
        let at = rest.iter().position(|&bytes| !self.contains(read(bytes)))?;
        Some((sound + at, read(rest[at])))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(values: &[i64]) -> Vec<u8> {
        values.iter().flat_map(|value| value.to_le_bytes()).collect()
    }

    #[test]
    fn a_table_is_counted_from_either_end() {
        let range = IndexRange::of_table(5);
        assert_eq!([-6, -5, 0, 4, 5].map(|index| range.contains(index)), [false, true, true, true, false]);
    }

    #[test]
    fn the_first_of_many_is_found_wherever_it_lies() {
        let range = IndexRange::of_table(10);
        for length in [1, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK] {
            let sound = vec![-10; length];
            assert_eq!(range.first_outside(DataType::Int64, &bytes(&sound)), None);
            for at in [0, length / 2, length - 1] {
                let mut bad = sound.clone();
                bad[at] = 10;
                *bad.last_mut().expect("there is one") = 1 << 40;
                let value = bad[at];
                assert_eq!(range.first_outside(DataType::Int64, &bytes(&bad)), Some((at, value)), "of {length}");
            }
        }
        assert_eq!(range.first_outside(DataType::Int64, &[]), None);
    }

    #[test]
    fn elements_are_read_as_their_type() {
        let range = IndexRange::of_table(200);
        assert_eq!(range.first_outside(DataType::Uint8, &[199, 200]), Some((1, 200)));
        assert_eq!(range.first_outside(DataType::Int8, &[199, 200]), None, "-57 and -56");
        assert_eq!(range.first_outside(DataType::Int32, &(-201_i32).to_le_bytes()), Some((0, -201)));
        assert_eq!(range.first_outside(DataType::Uint32, &(-1_i32).to_le_bytes()), Some((0, 0xffff_ffff)));
    }

    #[test]
    fn what_the_graph_cuts_to_int32_counts_as_what_is_left() {
        let range = IndexRange { as_int32: true, ..IndexRange::of_table(10) };
        assert!(range.contains((1 << 32) + 3) && !range.contains(1_000_000_000));
        assert!(!range.meet(IndexRange::of_table(20)).contains((1 << 32) + 3), "another table reads all of it");
    }
}
