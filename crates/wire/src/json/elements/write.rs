//! Writes elements as JSON.

use paternoster_model::DataType;

/// Why elements cannot be written as JSON.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WriteFault {
    #[error("its {bytes} bytes are not elements of {datatype}")]
    Inconsistent { datatype: DataType, bytes: usize },
    #[error("a string of it is not UTF-8, ask for it as binary data")]
    NotText,
    #[error("as JSON it has more than {limit} bytes, ask for it as binary data")]
    TooLong { limit: usize },
}

/// Appends elements in wire form to `json`, separated by commas, up to `limit` bytes in total.
pub(crate) fn write(data: &[u8], datatype: DataType, json: &mut Vec<u8>, limit: usize) -> Result<(), WriteFault> {
    let inconsistent = || WriteFault::Inconsistent { datatype, bytes: data.len() };
    let whole = match datatype {
        DataType::Bool => write_each(data, json, limit, |[byte]: [u8; 1], json| {
            json.extend_from_slice(if byte == 0 { b"false" } else { b"true" });
        }),
        DataType::Uint8 => write_each(data, json, limit, |bytes, json| integer(u8::from_le_bytes(bytes), json)),
        DataType::Uint16 => write_each(data, json, limit, |bytes, json| integer(u16::from_le_bytes(bytes), json)),
        DataType::Uint32 => write_each(data, json, limit, |bytes, json| integer(u32::from_le_bytes(bytes), json)),
        DataType::Uint64 => write_each(data, json, limit, |bytes, json| integer(u64::from_le_bytes(bytes), json)),
        DataType::Int8 => write_each(data, json, limit, |bytes, json| integer(i8::from_le_bytes(bytes), json)),
        DataType::Int16 => write_each(data, json, limit, |bytes, json| integer(i16::from_le_bytes(bytes), json)),
        DataType::Int32 => write_each(data, json, limit, |bytes, json| integer(i32::from_le_bytes(bytes), json)),
        DataType::Int64 => write_each(data, json, limit, |bytes, json| integer(i64::from_le_bytes(bytes), json)),
        DataType::Fp32 => write_each(data, json, limit, |bytes, json| {
            let value = f32::from_le_bytes(bytes);
            float(value, f64::from(value), json);
        }),
        DataType::Fp64 => write_each(data, json, limit, |bytes, json| {
            let value = f64::from_le_bytes(bytes);
            float(value, value, json);
        }),
        DataType::Bytes => return write_strings(data, json, limit),
        DataType::Fp16 | DataType::Bf16 => return Err(inconsistent()),
    };
    if !whole? { Err(inconsistent()) } else { Ok(()) }
}

/// Formats elements in wire form, separated by commas: booleans as 0 and 1, strings in quotes. `None` if the text
/// exceeds `limit` bytes, or if the elements cannot be formatted.
pub fn listed(data: &[u8], datatype: DataType, limit: usize) -> Option<String> {
    let mut text = Vec::new();
    let datatype = if datatype == DataType::Bool { DataType::Uint8 } else { datatype };
    write(data, datatype, &mut text, limit).ok()?;
    String::from_utf8(text).ok()
}

/// Returns false if the data ends within an element.
fn write_each<const SIZE: usize>(
    data: &[u8],
    json: &mut Vec<u8>,
    limit: usize,
    write: impl Fn([u8; SIZE], &mut Vec<u8>),
) -> Result<bool, WriteFault> {
    let (elements, rest) = data.as_chunks::<SIZE>();
    for (index, element) in elements.iter().enumerate() {
        if index > 0 {
            json.push(b',');
        }
        write(*element, json);
        within(json, limit)?;
    }
    Ok(rest.is_empty())
}

fn within(json: &[u8], limit: usize) -> Result<(), WriteFault> {
    if json.len() <= limit { Ok(()) } else { Err(WriteFault::TooLong { limit }) }
}

fn integer(value: impl serde::Serialize, json: &mut Vec<u8>) {
    let written = serde_json::to_writer(json, &value);
    debug_assert!(written.is_ok(), "a number can be written to memory");
}

/// Writes a float. JSON has no non-finite numbers; Triton writes these literals.
fn float(value: impl serde::Serialize, wide: f64, json: &mut Vec<u8>) {
    if wide.is_finite() {
        return integer(value, json);
    }
    let literal: &[u8] = if wide.is_nan() {
        b"NaN"
    } else if wide > 0.0 {
        b"Infinity"
    } else {
        b"-Infinity"
    };
    json.extend_from_slice(literal);
}

fn write_strings(mut data: &[u8], json: &mut Vec<u8>, limit: usize) -> Result<(), WriteFault> {
    let bytes = data.len();
    let inconsistent = || WriteFault::Inconsistent { datatype: DataType::Bytes, bytes };
    let mut first = true;
    while !data.is_empty() {
        let (length, behind) = data.split_first_chunk::<4>().ok_or_else(inconsistent)?;
        let length = u32::from_le_bytes(*length) as usize;
        let (element, rest) = behind.split_at_checked(length).ok_or_else(inconsistent)?;
        data = rest;
        if !std::mem::take(&mut first) {
            json.push(b',');
        }
        string(str::from_utf8(element).map_err(|_| WriteFault::NotText)?, json);
        within(json, limit)?;
    }
    Ok(())
}

/// Appends a string in quotes.
pub(crate) fn string(text: &str, json: &mut Vec<u8>) {
    let written = serde_json::to_writer(json, text);
    debug_assert!(written.is_ok(), "a string can be written to memory");
}
