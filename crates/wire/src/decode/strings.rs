//! BYTES tensors in wire form: elements in row-major order, each preceded by its length as four little-endian bytes.

use bytes::{BufMut, Bytes, BytesMut};

use super::super::fault::InputFault;

const INDICATOR_BYTES: usize = 4;

/// Checks that `data` holds exactly `expected` elements, without copying them.
pub(super) fn check(data: &[u8], expected: usize) -> Result<(), InputFault> {
    let mut rest = data;
    let mut count = 0;
    while !rest.is_empty() {
        let Some((indicator, behind)) = rest.split_first_chunk::<INDICATOR_BYTES>() else {
            return Err(InputFault::StringIndicator { available: rest.len() });
        };
        let length = u32::from_le_bytes(*indicator) as usize;
        let available = behind.len();
        rest = behind.get(length..).ok_or(InputFault::StringCutOff { expected, index: count, length, available })?;
        count += 1;
    }
    if count == expected { Ok(()) } else { Err(InputFault::StringCount { expected, got: count }) }
}

/// Encodes elements in wire form.
pub(super) fn join(elements: &[Bytes]) -> Result<Bytes, InputFault> {
    let total: usize = elements.iter().map(|element| INDICATOR_BYTES + element.len()).sum();
    let mut joined = BytesMut::with_capacity(total);
    for element in elements {
        let length = element.len();
        joined.put_u32_le(u32::try_from(length).map_err(|_| InputFault::StringTooLong { length })?);
        joined.put_slice(element);
    }
    Ok(joined.freeze())
}
