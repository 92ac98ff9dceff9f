//! Elements of tensors, as steps read and write them.

use bytes::{BufMut, Bytes, BytesMut};
use half::{bf16, f16};
use paternoster_model::{DataType, Dims, InputTensor};
use paternoster_pipeline::TensorRows;

/// Returns the elements of a tensor of floats; none of a tensor of other elements.
pub fn floats(data: &[u8], datatype: DataType) -> Vec<f32> {
    match datatype {
        DataType::Fp32 => data.as_chunks().0.iter().map(|chunk| f32::from_le_bytes(*chunk)).collect(),
        DataType::Fp16 => data.as_chunks().0.iter().map(|chunk| f16::from_le_bytes(*chunk).to_f32()).collect(),
        DataType::Bf16 => data.as_chunks().0.iter().map(|chunk| bf16::from_le_bytes(*chunk).to_f32()).collect(),
        DataType::Fp64 => data.as_chunks().0.iter().map(|chunk| f64::from_le_bytes(*chunk) as f32).collect(),
        _ => Vec::new(),
    }
}

/// Returns the elements of a tensor of INT64 or INT32.
pub(crate) fn integers(data: &[u8], datatype: DataType) -> Vec<i64> {
    match datatype {
        DataType::Int64 => data.as_chunks().0.iter().map(|chunk| i64::from_le_bytes(*chunk)).collect(),
        DataType::Int32 => data.as_chunks().0.iter().map(|chunk| i64::from(i32::from_le_bytes(*chunk))).collect(),
        _ => Vec::new(),
    }
}

/// Returns a row of INT64 or INT32 of one axis.
pub(crate) fn row_of_integers(values: impl ExactSizeIterator<Item = i64>, datatype: DataType) -> InputTensor {
    let shape = Dims::from_slice(&[1, values.len() as i64]);
    let mut data = BytesMut::with_capacity(values.len() * datatype.size_bytes().unwrap_or(8));
    for value in values {
        match datatype {
            // Ids and lengths of tokens fit: both are below 2^31.
            DataType::Int32 => data.put_i32_le(value as i32),
            _ => data.put_i64_le(value),
        }
    }
    InputTensor { shape, data: data.freeze() }
}

/// Rows of one number again and again, which share their memory.
#[derive(Debug, Default)]
pub(crate) struct Repeated(Bytes);

impl Repeated {
    /// Returns a row with `length` times `value`, which is the same each time.
    pub(crate) fn row(&mut self, value: i64, length: usize, datatype: DataType) -> InputTensor {
        let bytes = length * datatype.size_bytes().unwrap_or(8);
        if self.0.len() < bytes {
            let longest = length.next_power_of_two();
            self.0 = row_of_integers(std::iter::repeat_n(value, longest), datatype).data;
        }
        InputTensor { shape: Dims::from_slice(&[1, length as i64]), data: self.0.slice(..bytes) }
    }
}

/// Returns a row of FP32 of one axis.
pub(crate) fn row_of_floats(values: &[f32]) -> InputTensor {
    let data: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    InputTensor { shape: Dims::from_slice(&[1, values.len() as i64]), data: Bytes::from(data) }
}

/// Returns the number of rows of inputs.
pub(crate) fn rows_of(inputs: &[Option<TensorRows>]) -> usize {
    let of_value = |value: &TensorRows| match value {
        TensorRows::Joint(tensor) => tensor.shape.first().map_or(0, |&rows| rows.max(0) as usize),
        TensorRows::Rows(rows) => rows.len(),
    };
    inputs.iter().flatten().map(of_value).min().unwrap_or(0)
}
