//! Inputs whose elements are indices: which ones a run takes.

use super::DataType;

/// The indices that a run takes, both ends included: any other makes it fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndexRange {
    /// The least.
    pub least: i64,
    /// The greatest.
    pub most: i64,
    /// Whether the graph reads elements as INT32, so that of longer ones only the lower half counts.
    pub as_int32: bool,
}

/// Elements that are judged together, without a branch for each.
const BLOCK: usize = 64;

impl IndexRange {
    /// Those of a table of this many rows, counted from its begin or, below 0, from its end.
    pub fn of_table(rows: i64) -> Self {
        Self { least: -rows, most: rows - 1, as_int32: false }
    }

    /// Those that are in both ranges.
    #[must_use]
    pub fn meet(self, other: Self) -> Self {
        Self {
            least: self.least.max(other.least),
            most: self.most.min(other.most),
            as_int32: self.as_int32 && other.as_int32,
        }
    }

    /// Whether an index is among them.
    pub fn contains(&self, index: i64) -> bool {
        let read = if self.as_int32 { i64::from(index as i32) } else { index };
        (self.least <= read) & (read <= self.most)
    }

    /// Whether elements of a type can be judged.
    pub fn judges(datatype: DataType) -> bool {
        use DataType::{Int8, Int16, Int32, Int64, Uint8, Uint16, Uint32};
        matches!(datatype, Int8 | Int16 | Int32 | Int64 | Uint8 | Uint16 | Uint32)
    }

    /// The first element that is not among them: its place and its value. `data` holds whole little-endian elements of
    /// a type that [can be judged](Self::judges).
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
