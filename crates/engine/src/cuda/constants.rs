//! Constants of a graph as bytes: little-endian and row-major.

use bytes::Bytes;
use paternoster_onnx::{
    ExternalWeight,
    pb::{self, tensor_proto::DataType as Elem},
};

use super::ir::{Dims, Kind};

/// Returns a tensor's type, shape and elements. `outside` holds the elements if they are in another file.
///
/// # Errors
/// Fails if no kernel supports the type, if the data do not fill the shape, or if they are in another file that is not
/// given or cannot be read.
pub(super) fn of(tensor: &pb::TensorProto, outside: Option<&ExternalWeight>) -> Result<(Kind, Dims, Bytes), String> {
    let elem = Elem::try_from(tensor.data_type()).unwrap_or(Elem::Undefined);
    let kind = match elem {
        Elem::Float => Kind::F32,
        Elem::Int64 => Kind::I64,
        Elem::Int32 => Kind::I32,
        Elem::Bool => Kind::Bool,
        other => return Err(format!("it holds {}", other.as_str_name())),
    };
    if !tensor.external_data.is_empty() && outside.is_none() {
        return Err("its data lie outside of the file".to_owned());
    }
    let dims: Option<Dims> = tensor.dims.iter().map(|&length| usize::try_from(length).ok()).collect();
    let dims = dims.ok_or("it has a negative axis")?;
    let bytes = match (outside, &tensor.raw_data) {
        (Some(outside), _) => outside.elements().map_err(|error| error.to_string())?,
        (None, Some(raw)) => raw.clone(),
        (None, None) => match kind {
            Kind::F32 => tensor.float_data.iter().flat_map(|number| number.to_le_bytes()).collect(),
            Kind::I64 => tensor.int64_data.iter().flat_map(|number| number.to_le_bytes()).collect(),
            Kind::I32 => tensor.int32_data.iter().flat_map(|number| number.to_le_bytes()).collect(),
            Kind::Bool => tensor.int32_data.iter().map(|&number| u8::from(number != 0)).collect(),
        },
    };
    let wanted = dims.iter().try_fold(kind.bytes(), |bytes, &length| bytes.checked_mul(length));
    if wanted != Some(bytes.len()) {
        return Err(format!("{} bytes do not fill the shape {dims:?}", bytes.len()));
    }
    Ok((kind, dims, bytes))
}

/// Returns an element in the form of [`Node::Number`](super::ir::Node::Number).
pub(super) fn bits(kind: Kind, bytes: &[u8], index: usize) -> Option<u64> {
    let element = bytes.get(index * kind.bytes()..(index + 1) * kind.bytes())?;
    Some(match kind {
        Kind::F32 => u32::from_le_bytes(element.try_into().ok()?).into(),
        Kind::I64 => u64::from_le_bytes(element.try_into().ok()?),
        Kind::I32 => i64::from(i32::from_le_bytes(element.try_into().ok()?)).cast_unsigned(),
        Kind::Bool => u64::from(element[0] != 0),
    })
}
