//! The classification extension: returns an output as its most likely classes, `value:index` or `value:index:label`.

use std::{
    cmp::Ordering,
    fmt::{Display, Write},
};

use bytes::{BufMut, Bytes, BytesMut};
use paternoster_executor::OutputTensor;
use paternoster_model::{DataType, Dims, element_count};

/// Maximum number of elements that are ranked in a row, as in Triton.
pub(super) const MOST_CLASSES: usize = 1_000_000;

/// Returns the number of elements of each row of a tensor; `None` if it cannot be counted.
pub(super) fn elements_per_row(tensor: &OutputTensor, batched: bool) -> Option<usize> {
    let rows = if batched { usize::try_from(*tensor.shape.first()?).ok()? } else { 1 };
    Some(element_count(&tensor.shape)?.checked_div(rows).unwrap_or(0))
}

/// Returns the `count` highest elements of every row as BYTES of shape `[batch, k]` (`[k]` without a batch axis), where
/// k is the smaller of `count` and the number of elements per row. Values are formatted like C's `%f` and `%d`.
///
/// Higher values come first, equal ones by index, and NaN after all numbers. `labels` are those of the classes, by
/// index. `None` if the tensor's size differs from its shape, or its datatype has no order.
pub(super) fn classify(
    tensor: &OutputTensor,
    datatype: DataType,
    batched: bool,
    (count, labels): (u32, &[String]),
) -> Option<OutputTensor> {
    let elements = element_count(&tensor.shape)?;
    let batch = if batched { *tensor.shape.first()? } else { 1 };
    let per_row = elements_per_row(tensor, batched)?;
    if elements.checked_mul(datatype.size_bytes()?)? != tensor.data.len() {
        return None;
    }
    let k = per_row.min(count as usize);
    let table = Table { data: &tensor.data, per_row, k, labels };
    let data = match datatype {
        DataType::Uint8 => table.integers(u8::from_le_bytes),
        DataType::Uint16 => table.integers(u16::from_le_bytes),
        DataType::Uint32 => table.integers(u32::from_le_bytes),
        DataType::Uint64 => table.integers(u64::from_le_bytes),
        DataType::Int8 => table.integers(i8::from_le_bytes),
        DataType::Int16 => table.integers(i16::from_le_bytes),
        DataType::Int32 => table.integers(i32::from_le_bytes),
        DataType::Int64 => table.integers(i64::from_le_bytes),
        DataType::Fp32 => table.floats(|bytes| f64::from(f32::from_le_bytes(bytes))),
        DataType::Fp64 => table.floats(f64::from_le_bytes),
        DataType::Bool | DataType::Fp16 | DataType::Bf16 | DataType::Bytes => return None,
    };
    let k = i64::try_from(k).ok()?;
    let shape = if batched { Dims::from_slice(&[batch, k]) } else { Dims::from_slice(&[k]) };
    Some(OutputTensor { shape, data })
}

/// Rows of elements to be ranked.
struct Table<'a> {
    data: &'a [u8],
    per_row: usize,
    k: usize,
    labels: &'a [String],
}

impl Table<'_> {
    fn integers<T: Copy + Ord + Display, const SIZE: usize>(&self, read: fn([u8; SIZE]) -> T) -> Bytes {
        self.rank(read, T::cmp, |text, value| write!(text, "{value}"))
    }

    fn floats<const SIZE: usize>(&self, read: fn([u8; SIZE]) -> f64) -> Bytes {
        self.rank(
            read,
            nan_lowest,
            |text, value| {
                if value.is_nan() { text.write_str("nan") } else { write!(text, "{value:.6}") }
            },
        )
    }

    fn rank<T: Copy, const SIZE: usize>(
        &self,
        read: impl Fn([u8; SIZE]) -> T,
        order: impl Fn(&T, &T) -> Ordering,
        print: impl Fn(&mut String, T) -> std::fmt::Result,
    ) -> Bytes {
        let mut joined = BytesMut::new();
        if self.k == 0 {
            return joined.freeze();
        }
        let mut text = String::new();
        let mut ranked: Vec<(usize, T)> = Vec::with_capacity(self.per_row);
        let (elements, _) = self.data.as_chunks::<SIZE>();
        for row in elements.chunks_exact(self.per_row) {
            ranked.clear();
            ranked.extend(row.iter().map(|bytes| read(*bytes)).enumerate());
            let best_first =
                |left: &(usize, T), right: &(usize, T)| order(&right.1, &left.1).then(left.0.cmp(&right.0));
            if self.k < ranked.len() {
                ranked.select_nth_unstable_by(self.k, best_first);
            }
            ranked[..self.k].sort_unstable_by(best_first);
            for &(index, value) in &ranked[..self.k] {
                text.clear();
                let printed = print(&mut text, value).and_then(|()| write!(text, ":{index}"));
                debug_assert!(printed.is_ok(), "writing to a string does not fail");
                if let Some(label) = self.labels.get(index).filter(|label| !label.is_empty()) {
                    text.push(':');
                    text.push_str(label);
                }
                // A longer label would not fit into a message either, so saturating is safe.
                joined.put_u32_le(u32::try_from(text.len()).unwrap_or(u32::MAX));
                joined.put_slice(text.as_bytes());
            }
        }
        joined.freeze()
    }
}

fn nan_lowest(left: &f64, right: &f64) -> Ordering {
    left.partial_cmp(right).unwrap_or_else(|| right.is_nan().cmp(&left.is_nan()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::strings;

    fn fp32(shape: &[i64], values: &[f32]) -> OutputTensor {
        let data = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        OutputTensor { shape: Dims::from_slice(shape), data }
    }

    fn classes(tensor: &OutputTensor, datatype: DataType, batched: bool, count: u32) -> (Vec<i64>, Vec<String>) {
        let classified = classify(tensor, datatype, batched, (count, &[])).expect("a tensor with an order");
        (classified.shape.to_vec(), strings::split(&classified.data))
    }

    #[test]
    fn each_row_gives_its_highest_classes_first() {
        let tensor = fp32(&[2, 4], &[0.1, 0.7, 0.2, 0.0, -1.0, -3.0, -2.0, -4.0]);
        let (shape, classes) = classes(&tensor, DataType::Fp32, true, 2);
        assert_eq!(shape, [2, 2]);
        assert_eq!(classes, ["0.700000:1", "0.200000:2", "-1.000000:0", "-2.000000:2"]);
    }

    #[test]
    fn labels_follow_where_there_are_any() {
        let tensor = fp32(&[1, 3], &[1.0, 2.0, 3.0]);
        let labels = ["cat".to_owned(), String::new()];
        let classified = classify(&tensor, DataType::Fp32, true, (3, &labels)).expect("a tensor with an order");
        assert_eq!(strings::split(&classified.data), ["3.000000:2", "2.000000:1", "1.000000:0:cat"]);
    }

    #[test]
    fn equal_values_keep_the_order_of_their_index() {
        let tensor = fp32(&[1, 6], &[1.0, 2.0, 1.0, 2.0, 1.0, 2.0]);
        let (_, classes) = classes(&tensor, DataType::Fp32, true, 4);
        assert_eq!(classes, ["2.000000:1", "2.000000:3", "2.000000:5", "1.000000:0"]);
    }

    #[test]
    fn nan_ranks_behind_every_number() {
        let tensor = fp32(&[1, 5], &[f32::NAN, f32::NEG_INFINITY, -f32::NAN, f32::INFINITY, 0.0]);
        let (_, classes) = classes(&tensor, DataType::Fp32, true, 5);
        assert_eq!(classes, ["inf:3", "0.000000:4", "-inf:1", "nan:0", "nan:2"]);
    }

    #[test]
    fn more_classes_than_elements_are_all_elements() {
        let tensor = fp32(&[2, 2], &[1.0, 2.0, 4.0, 3.0]);
        let (shape, classes) = classes(&tensor, DataType::Fp32, true, u32::MAX);
        assert_eq!(shape, [2, 2]);
        assert_eq!(classes, ["2.000000:1", "1.000000:0", "4.000000:0", "3.000000:1"]);
    }

    #[test]
    fn without_a_batch_axis_the_whole_tensor_is_one_row() {
        let tensor = fp32(&[2, 2], &[1.0, 2.0, 4.0, 3.0]);
        let (shape, classes) = classes(&tensor, DataType::Fp32, false, 2);
        assert_eq!(shape, [2]);
        assert_eq!(classes, ["4.000000:2", "3.000000:3"]);
    }

    #[test]
    fn integers_are_printed_plain() {
        let bytes = |data: &'static [u8]| OutputTensor { shape: Dims::from_slice(&[1, 2]), data: data.into() };
        let top = |datatype, data| classes(&bytes(data), datatype, true, 2).1;
        assert_eq!(top(DataType::Uint8, &[1, 255]), ["255:1", "1:0"]);
        assert_eq!(top(DataType::Int8, &[1, 255]), ["1:0", "-1:1"]);
        assert_eq!(top(DataType::Int16, &[0, 0x80, 1, 0]), ["1:1", "-32768:0"]);
        assert_eq!(top(DataType::Uint32, &[0, 0, 0, 0, 255, 255, 255, 255]), ["4294967295:1", "0:0"]);
    }

    #[test]
    fn a_double_is_printed_with_six_decimals() {
        let data = [1e-9_f64, 123_456.789_012_34].iter().flat_map(|value| value.to_le_bytes()).collect();
        let tensor = OutputTensor { shape: Dims::from_slice(&[1, 2]), data };
        let (_, classes) = classes(&tensor, DataType::Fp64, true, 2);
        assert_eq!(classes, ["123456.789012:1", "0.000000:0"]);
    }

    #[test]
    fn a_row_without_elements_has_no_classes() {
        let (shape, classes) = classes(&fp32(&[3, 0], &[]), DataType::Fp32, true, 5);
        assert_eq!((shape, classes), (vec![3, 0], Vec::new()));
    }

    #[test]
    fn a_tensor_that_contradicts_its_shape_or_has_no_order_is_no_input_to_rank() {
        assert!(classify(&fp32(&[1, 3], &[1.0]), DataType::Fp32, true, (1, &[])).is_none());
        assert!(classify(&fp32(&[], &[1.0]), DataType::Fp32, true, (1, &[])).is_none());
        let half = OutputTensor { shape: Dims::from_slice(&[1, 1]), data: Bytes::from_static(&[0, 0]) };
        assert!(classify(&half, DataType::Fp16, true, (1, &[])).is_none());
    }
}
