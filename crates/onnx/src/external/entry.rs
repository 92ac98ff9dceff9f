//! A tensor's reference to its external data.

use super::{DataLocation, pb};
use crate::pb::tensor_proto::DataType as Elem;

/// The location of a tensor's elements in another file.
#[derive(Debug)]
pub(super) struct Entry {
    pub location: String,
    /// Offset of the first byte.
    pub offset: u64,
    /// Length determined by type and shape. If the entry has a length, it is the same.
    pub len_bytes: u64,
}

/// Returns whether a tensor's elements are in another file. Entries count even if the location is not marked as
/// external, because readers differ in which of the two they check.
pub(crate) fn is_external(tensor: &pb::TensorProto) -> bool {
    tensor.data_location() == DataLocation::External || !tensor.external_data.is_empty()
}

impl Entry {
    /// Parses the entry of a tensor.
    ///
    /// # Errors
    /// If the entry is incomplete, or does not fit the tensor's type and shape. The message names the tensor.
    pub(super) fn of(tensor: &pb::TensorProto) -> Result<Self, String> {
        let refuse = |reason: String| format!("external tensor '{}': {reason}", tensor.name());
        let value = |key: &str| {
            let mut found = tensor.external_data.iter().filter(|entry| entry.key() == key).map(|entry| entry.value());
            match (found.next(), found.next()) {
                (first, None) => Ok(first),
                (_, Some(_)) => Err(refuse(format!("'{key}' is given twice"))),
            }
        };
        let number = |key: &str| match value(key)? {
            None => Ok(None),
            Some(text) => match text.parse::<u64>() {
                Ok(number) => Ok(Some(number)),
                Err(_) => Err(refuse(format!("'{key}' is '{text}', expected a number of bytes"))),
            },
        };
        if tensor.data_location() != DataLocation::External {
            return Err(refuse("it names a file, but its data location is not EXTERNAL".to_owned()));
        }
        let location = value("location")?.ok_or_else(|| refuse("it names no location".to_owned()))?.to_owned();
        let offset = number("offset")?.unwrap_or(0);
        let len_bytes = len_bytes(tensor).map_err(refuse)?;
        match number("length")? {
            Some(length) if length != len_bytes => {
                let (dims, has) = (&tensor.dims, type_name(tensor));
                Err(refuse(format!(
                    "its length in '{location}' is {length} bytes, but {has} of the shape {dims:?} takes {len_bytes}"
                )))
            }
            _ => Ok(Self { location, offset, len_bytes }),
        }
    }
}

fn type_name(tensor: &pb::TensorProto) -> &'static str {
    Elem::try_from(tensor.data_type()).map_or("an unknown type", |elem| elem.as_str_name())
}

/// Returns the length determined by type and shape.
fn len_bytes(tensor: &pb::TensorProto) -> Result<u64, String> {
    let bits: u64 = match Elem::try_from(tensor.data_type()) {
        Ok(Elem::Complex128) => 128,
        Ok(Elem::Double | Elem::Int64 | Elem::Uint64 | Elem::Complex64) => 64,
        Ok(Elem::Float | Elem::Int32 | Elem::Uint32) => 32,
        Ok(Elem::Float16 | Elem::Bfloat16 | Elem::Int16 | Elem::Uint16) => 16,
        Ok(
            Elem::Int8
            | Elem::Uint8
            | Elem::Bool
            | Elem::Float8e4m3fn
            | Elem::Float8e4m3fnuz
            | Elem::Float8e5m2
            | Elem::Float8e5m2fnuz
            | Elem::Float8e8m0,
        ) => 8,
        Ok(Elem::Int4 | Elem::Uint4 | Elem::Float4e2m1) => 4,
        Ok(Elem::Int2 | Elem::Uint2) => 2,
        _ => return Err(format!("elements of {} cannot lie in another file", type_name(tensor))),
    };
    let mut count: u64 = 1;
    for &dim in &tensor.dims {
        let product = u64::try_from(dim).ok().and_then(|dim| count.checked_mul(dim));
        count = product.ok_or_else(|| format!("it has the shape {:?}", tensor.dims))?;
    }
    let total = count.checked_mul(bits).ok_or_else(|| format!("it has the shape {:?}", tensor.dims))?;
    Ok(total.div_ceil(8))
}
