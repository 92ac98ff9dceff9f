//! Converts the elements of a tensor between JSON text and wire form.

use std::fmt;

use bytes::Bytes;
use serde::de::{DeserializeSeed, Deserializer, Error, SeqAccess, Visitor};
use serde_json::value::RawValue;

use super::fault::InputFault;
use crate::model::{DataType, element_count};

/// Returns the maximum number of bytes that [`read`] allocates for these elements. An element of fixed size has at
/// least two bytes of text including its separator, a string at least three. A string with escapes is assembled
/// separately.
pub(super) fn built_bytes(text: &RawValue, datatype: DataType, shape: &[i64]) -> usize {
    let text_bytes = text.get().len();
    let elements = element_count(shape).unwrap_or(0);
    match datatype.size_bytes() {
        Some(size) => elements.min(text_bytes / 2 + 1).saturating_mul(size),
        None => text_bytes.saturating_mul(2).saturating_add(strings_bytes(text_bytes)),
    }
}

/// Returns the maximum bytes in wire form for strings of `text_bytes` bytes of text.
fn strings_bytes(text_bytes: usize) -> usize {
    text_bytes.saturating_add(text_bytes / 3)
}

/// Reads elements, in nested lists or a flat one, and returns them in wire form.
pub(super) fn read(text: &RawValue, datatype: DataType, shape: &[i64]) -> Result<Bytes, InputFault> {
    read_within(text, datatype, shape, false)
}

/// Like [`read`], but also accepts a single element without a list.
pub(super) fn read_one_or_many(text: &RawValue, datatype: DataType, shape: &[i64]) -> Result<Bytes, InputFault> {
    read_within(text, datatype, shape, true)
}

/// Returns the number of elements, in lists or single.
pub(super) fn count(text: &RawValue, datatype: DataType) -> Result<usize, InputFault> {
    struct Nothing;
    impl Sink for Nothing {}
    elements(text, 0, true, &mut Nothing).map_err(|error| InputFault::Data { datatype, error })
}

fn read_within(text: &RawValue, datatype: DataType, shape: &[i64], lone: bool) -> Result<Bytes, InputFault> {
    let uncountable = || InputFault::Uncountable { shape: shape.to_vec() };
    let expected = element_count(shape).ok_or_else(uncountable)?;
    let read = match datatype {
        DataType::Bool => numbers::<bool>(text, expected, lone),
        DataType::Uint8 => numbers::<u8>(text, expected, lone),
        DataType::Uint16 => numbers::<u16>(text, expected, lone),
        DataType::Uint32 => numbers::<u32>(text, expected, lone),
        DataType::Uint64 => numbers::<u64>(text, expected, lone),
        DataType::Int8 => numbers::<i8>(text, expected, lone),
        DataType::Int16 => numbers::<i16>(text, expected, lone),
        DataType::Int32 => numbers::<i32>(text, expected, lone),
        DataType::Int64 => numbers::<i64>(text, expected, lone),
        DataType::Fp32 => numbers::<f32>(text, expected, lone),
        DataType::Fp64 => numbers::<f64>(text, expected, lone),
        DataType::Bytes => {
            let mut bytes = Vec::with_capacity(strings_bytes(text.get().len()));
            elements(text, expected, lone, &mut Strings(&mut bytes)).map(|count| {
                bytes.shrink_to_fit();
                (bytes, count)
            })
        }
        DataType::Fp16 | DataType::Bf16 => return Err(InputFault::NoJsonForm(datatype)),
    };
    let (bytes, got) = read.map_err(|error| InputFault::Data { datatype, error })?;
    if got != expected {
        return Err(InputFault::Count { shape: shape.to_vec(), expected, got });
    }
    Ok(bytes.into())
}

fn numbers<T: Number>(text: &RawValue, expected: usize, lone: bool) -> Result<(Vec<u8>, usize), serde_json::Error> {
    let mut bytes = Vec::with_capacity(expected.min(text.get().len() / 2 + 1) * size_of::<T>());
    let count = elements(text, expected, lone, &mut Numbers::<T> { bytes: &mut bytes, of: std::marker::PhantomData })?;
    Ok((bytes, count))
}

/// Passes all elements to a sink and returns their number. Elements beyond `expected` are counted but not stored.
/// `lone` allows a single element without a list.
fn elements(text: &RawValue, expected: usize, lone: bool, sink: &mut dyn Sink) -> Result<usize, serde_json::Error> {
    let mut count = 0;
    let list = Elements { sink, expected, count: &mut count, within: lone };
    list.deserialize(&mut serde_json::Deserializer::from_str(text.get()))?;
    Ok(count)
}

/// Receives elements of one datatype; `None` if a value does not fit it.
trait Sink {
    fn unsigned(&mut self, _: u64) -> Option<()> {
        None
    }
    fn signed(&mut self, _: i64) -> Option<()> {
        None
    }
    fn float(&mut self, _: f64) -> Option<()> {
        None
    }
    fn boolean(&mut self, _: bool) -> Option<()> {
        None
    }
    fn string(&mut self, _: &str) -> Option<()> {
        None
    }
}

/// A list of elements or of such lists.
struct Elements<'s> {
    sink: &'s mut dyn Sink,
    expected: usize,
    count: &'s mut usize,
    /// Whether an element is allowed here: inside a list, or anywhere if `lone`.
    within: bool,
}

impl Elements<'_> {
    fn element<E: Error>(
        self,
        put: impl FnOnce(&mut dyn Sink) -> Option<()>,
        value: &dyn fmt::Display,
    ) -> Result<(), E> {
        if !self.within {
            return Err(E::custom(format!("expected a list, got {value}")));
        }
        let index = *self.count;
        *self.count += 1;
        if index >= self.expected {
            return Ok(());
        }
        put(self.sink).ok_or_else(|| E::custom(format!("value {value} at index {index} does not fit the datatype")))
    }
}

impl<'de> DeserializeSeed<'de> for Elements<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Elements<'_> {
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a list of elements")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        let Self { sink, expected, count, .. } = self;
        while list.next_element_seed(Elements { sink, expected, count, within: true })?.is_some() {}
        Ok(())
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<(), E> {
        self.element(|sink| sink.unsigned(value), &value)
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<(), E> {
        self.element(|sink| sink.signed(value), &value)
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<(), E> {
        self.element(|sink| sink.float(value), &value)
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<(), E> {
        self.element(|sink| sink.boolean(value), &value)
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<(), E> {
        self.element(|sink| sink.string(value), &format_args!("'{:.64}'", value))
    }
}

/// Elements of a fixed size.
struct Numbers<'b, T> {
    bytes: &'b mut Vec<u8>,
    of: std::marker::PhantomData<T>,
}

/// Conversion of a JSON value to a datatype of fixed size.
trait Number: Sized {
    fn unsigned(_: u64) -> Option<Self> {
        None
    }
    fn signed(_: i64) -> Option<Self> {
        None
    }
    fn float(_: f64) -> Option<Self> {
        None
    }
    fn boolean(_: bool) -> Option<Self> {
        None
    }
    fn put(self, bytes: &mut Vec<u8>);
}

impl<T: Number> Sink for Numbers<'_, T> {
    fn unsigned(&mut self, value: u64) -> Option<()> {
        T::unsigned(value).map(|value| value.put(self.bytes))
    }
    fn signed(&mut self, value: i64) -> Option<()> {
        T::signed(value).map(|value| value.put(self.bytes))
    }
    fn float(&mut self, value: f64) -> Option<()> {
        T::float(value).map(|value| value.put(self.bytes))
    }
    fn boolean(&mut self, value: bool) -> Option<()> {
        T::boolean(value).map(|value| value.put(self.bytes))
    }
}

impl Number for bool {
    fn boolean(value: bool) -> Option<Self> {
        Some(value)
    }
    fn put(self, bytes: &mut Vec<u8>) {
        bytes.push(u8::from(self));
    }
}

macro_rules! integers {
    ($($integer:ty),*) => {$(
        impl Number for $integer {
            fn unsigned(value: u64) -> Option<Self> {
                value.try_into().ok()
            }
            fn signed(value: i64) -> Option<Self> {
                value.try_into().ok()
            }
            fn put(self, bytes: &mut Vec<u8>) {
                bytes.extend_from_slice(&self.to_le_bytes());
            }
        }
    )*};
}

integers!(u8, u16, u32, u64, i8, i16, i32, i64);

impl Number for f32 {
    fn unsigned(value: u64) -> Option<Self> {
        Some(value as Self)
    }
    fn signed(value: i64) -> Option<Self> {
        Some(value as Self)
    }
    fn float(value: f64) -> Option<Self> {
        let narrow = value as Self;
        narrow.is_finite().then_some(narrow)
    }
    fn put(self, bytes: &mut Vec<u8>) {
        bytes.extend_from_slice(&self.to_le_bytes());
    }
}

impl Number for f64 {
    fn unsigned(value: u64) -> Option<Self> {
        Some(value as Self)
    }
    fn signed(value: i64) -> Option<Self> {
        Some(value as Self)
    }
    fn float(value: f64) -> Option<Self> {
        Some(value)
    }
    fn put(self, bytes: &mut Vec<u8>) {
        bytes.extend_from_slice(&self.to_le_bytes());
    }
}

/// Strings, each preceded by its length.
struct Strings<'b>(&'b mut Vec<u8>);

impl Sink for Strings<'_> {
    fn string(&mut self, value: &str) -> Option<()> {
        let length = u32::try_from(value.len()).ok()?;
        self.0.extend_from_slice(&length.to_le_bytes());
        self.0.extend_from_slice(value.as_bytes());
        Some(())
    }
}

/// Why elements cannot be written as JSON.
#[derive(Debug, thiserror::Error)]
pub(super) enum WriteFault {
    #[error("its {bytes} bytes are not elements of {datatype}")]
    Inconsistent { datatype: DataType, bytes: usize },
    #[error("a string of it is not UTF-8, ask for it as binary data")]
    NotText,
    #[error("as JSON it has more than {limit} bytes, ask for it as binary data")]
    TooLong { limit: usize },
}

/// Appends elements in wire form to `json`, separated by commas, up to `limit` bytes in total.
pub(super) fn write(data: &[u8], datatype: DataType, json: &mut Vec<u8>, limit: usize) -> Result<(), WriteFault> {
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
pub(super) fn string(text: &str, json: &mut Vec<u8>) {
    let written = serde_json::to_writer(json, text);
    debug_assert!(written.is_ok(), "a string can be written to memory");
}
