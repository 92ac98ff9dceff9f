//! Converts typed contents to wire form.

use bytemuck::NoUninit;
use bytes::Bytes;
use paternoster_model::DataType;

use super::{
    super::{fault::InputFault, pb::InferTensorContents},
    strings,
};

/// Returns the elements of a tensor in wire form. Only the field of the tensor's datatype may be filled.
pub(super) fn into_raw(
    contents: InferTensorContents,
    datatype: DataType,
    elements: usize,
) -> Result<Bytes, InputFault> {
    let own = carrier(datatype);
    let filled = fields(&contents);
    if let Some((field, _)) = filled.iter().find(|(field, count)| *count > 0 && Some(*field) != own) {
        return Err(InputFault::WrongContents { expected: datatype, got: *field });
    }
    let count = filled.iter().find(|(field, _)| Some(*field) == own).map_or(0, |(_, count)| *count);
    if count != elements {
        return Err(match datatype.size_bytes() {
            None => InputFault::StringCount { expected: elements, got: count },
            Some(size) => InputFault::ByteSize { expected: elements.saturating_mul(size), got: (count * size) as u64 },
        });
    }
    match datatype {
        DataType::Bool => Ok(moved(contents.bool_contents)),
        DataType::Int8 => narrow(&contents.int_contents, datatype, i8::to_le_bytes),
        DataType::Int16 => narrow(&contents.int_contents, datatype, i16::to_le_bytes),
        DataType::Int32 => Ok(moved(contents.int_contents)),
        DataType::Int64 => Ok(moved(contents.int64_contents)),
        DataType::Uint8 => narrow(&contents.uint_contents, datatype, u8::to_le_bytes),
        DataType::Uint16 => narrow(&contents.uint_contents, datatype, u16::to_le_bytes),
        DataType::Uint32 => Ok(moved(contents.uint_contents)),
        DataType::Uint64 => Ok(moved(contents.uint64_contents)),
        DataType::Fp32 => Ok(moved(contents.fp32_contents)),
        DataType::Fp64 => Ok(moved(contents.fp64_contents)),
        DataType::Bytes => strings::join(&contents.bytes_contents),
        // No field can hold these types, so only a tensor without elements reaches this point.
        DataType::Fp16 | DataType::Bf16 => Ok(Bytes::new()),
    }
}

/// Returns the field that holds a datatype, identified by the datatype that it is named after.
fn carrier(datatype: DataType) -> Option<DataType> {
    match datatype {
        DataType::Int8 | DataType::Int16 => Some(DataType::Int32),
        DataType::Uint8 | DataType::Uint16 => Some(DataType::Uint32),
        DataType::Fp16 | DataType::Bf16 => None,
        other => Some(other),
    }
}

/// Returns all fields with their numbers of elements.
fn fields(contents: &InferTensorContents) -> [(DataType, usize); 8] {
    [
        (DataType::Bool, contents.bool_contents.len()),
        (DataType::Int32, contents.int_contents.len()),
        (DataType::Int64, contents.int64_contents.len()),
        (DataType::Uint32, contents.uint_contents.len()),
        (DataType::Uint64, contents.uint64_contents.len()),
        (DataType::Fp32, contents.fp32_contents.len()),
        (DataType::Fp64, contents.fp64_contents.len()),
        (DataType::Bytes, contents.bytes_contents.len()),
    ]
}

/// Returns the list's own memory. Numbers are little-endian in memory as on the wire, on every supported machine.
fn moved<T: NoUninit + Send>(values: Vec<T>) -> Bytes {
    struct Numbers<T>(Vec<T>);
    impl<T: NoUninit> AsRef<[u8]> for Numbers<T> {
        fn as_ref(&self) -> &[u8] {
            bytemuck::cast_slice(&self.0)
        }
    }
    Bytes::from_owner(Numbers(values))
}

fn narrow<Wide, Narrow, const SIZE: usize>(
    values: &[Wide],
    datatype: DataType,
    to_bytes: fn(Narrow) -> [u8; SIZE],
) -> Result<Bytes, InputFault>
where
    Wide: Copy + Into<i64>,
    Narrow: TryFrom<Wide>,
{
    let mut packed = vec![0; values.len() * SIZE];
    for (index, (bytes, &wide)) in packed.chunks_exact_mut(SIZE).zip(values).enumerate() {
        let value =
            Narrow::try_from(wide).map_err(|_| InputFault::OutOfRange { datatype, index, value: wide.into() })?;
        bytes.copy_from_slice(&to_bytes(value));
    }
    Ok(Bytes::from(packed))
}
