//! Reads elements from JSON.

use std::fmt;

use base64::{Engine, engine::general_purpose::STANDARD};
use bytes::Bytes;
use paternoster_model::{DataType, element_count};
use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

use super::super::{
    fault::InputFault,
    header::Text,
    text::{first_not_finite, not_finite},
};

/// The key of an object that has an element of BYTES as base64, as TensorFlow Serving and KServe v1 write one.
const BASE64: &str = "b64";
/// Bytes of the length in front of a string.
const LENGTH_BYTES: usize = size_of::<u32>();

/// Returns the maximum number of bytes that [`read`] allocates for these elements. An element of fixed size has at
/// least two bytes of text including its separator, a string at least three. A string with escapes is assembled
/// separately.
pub(crate) fn built_bytes(text: &RawValue, datatype: DataType, shape: &[i64]) -> usize {
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
pub(crate) fn read(text: &RawValue, datatype: DataType, shape: &[i64]) -> Result<Bytes, InputFault> {
    read_within(text, datatype, shape, false)
}

/// Like [`read`], but also accepts a single element without a list.
pub(crate) fn read_one_or_many(text: &RawValue, datatype: DataType, shape: &[i64]) -> Result<Bytes, InputFault> {
    read_within(text, datatype, shape, true)
}

/// Returns the number of elements, in lists or single.
pub(crate) fn count(text: &RawValue, datatype: DataType) -> Result<usize, InputFault> {
    struct Nothing;
    impl Sink for Nothing {}
    elements(text, datatype, 0, true, &mut Nothing).map_err(|error| InputFault::Data { datatype, error })
}

/// Returns what an element of a datatype is in JSON.
fn expected(datatype: DataType) -> &'static str {
    match datatype {
        DataType::Bool => "true or false",
        DataType::Uint8 => "an integer from 0 to 255",
        DataType::Uint16 => "an integer from 0 to 65535",
        DataType::Uint32 => "an integer from 0 to 4294967295",
        DataType::Uint64 => "an integer from 0 to 18446744073709551615",
        DataType::Int8 => "an integer from -128 to 127",
        DataType::Int16 => "an integer from -32768 to 32767",
        DataType::Int32 => "an integer from -2147483648 to 2147483647",
        DataType::Int64 => "an integer from -9223372036854775808 to 9223372036854775807",
        DataType::Fp16 | DataType::Bf16 => "binary data",
        DataType::Fp32 => "a number up to 3.4028235e38",
        DataType::Fp64 => "a number",
        DataType::Bytes => "a string, or {\"b64\": …} with base64",
    }
}

fn read_within(text: &RawValue, datatype: DataType, shape: &[i64], lone: bool) -> Result<Bytes, InputFault> {
    let uncountable = || InputFault::Uncountable { shape: shape.to_vec() };
    let count = element_count(shape).ok_or_else(uncountable)?;
    let read = match datatype {
        DataType::Bool => numbers::<bool>(text, datatype, count, lone),
        DataType::Uint8 => numbers::<u8>(text, datatype, count, lone),
        DataType::Uint16 => numbers::<u16>(text, datatype, count, lone),
        DataType::Uint32 => numbers::<u32>(text, datatype, count, lone),
        DataType::Uint64 => numbers::<u64>(text, datatype, count, lone),
        DataType::Int8 => numbers::<i8>(text, datatype, count, lone),
        DataType::Int16 => numbers::<i16>(text, datatype, count, lone),
        DataType::Int32 => numbers::<i32>(text, datatype, count, lone),
        DataType::Int64 => numbers::<i64>(text, datatype, count, lone),
        DataType::Fp32 => numbers::<f32>(text, datatype, count, lone),
        DataType::Fp64 => numbers::<f64>(text, datatype, count, lone),
        DataType::Bytes => {
            let mut bytes = Vec::with_capacity(strings_bytes(text.get().len()));
            elements(text, datatype, count, lone, &mut Strings(&mut bytes)).map(|got| {
                bytes.shrink_to_fit();
                (bytes, got)
            })
        }
        DataType::Fp16 | DataType::Bf16 => return Err(InputFault::NoJsonForm(datatype)),
    };
    let (bytes, got) = read.map_err(|error| match first_not_finite(text.get()) {
        Some(value) if !matches!(datatype, DataType::Fp32 | DataType::Fp64) => {
            InputFault::NotFinite { datatype, value, expected: expected(datatype) }
        }
        _ => InputFault::Data { datatype, error },
    })?;
    if got != count {
        return Err(InputFault::Count { shape: shape.to_vec(), expected: count, got });
    }
    Ok(bytes.into())
}

fn numbers<T: Number>(
    text: &RawValue,
    datatype: DataType,
    expected: usize,
    lone: bool,
) -> Result<(Vec<u8>, usize), serde_json::Error> {
    let mut bytes = Vec::with_capacity(expected.min(text.get().len() / 2 + 1) * size_of::<T>());
    if T::IS_FLOAT && first_not_finite(text.get()).is_some() {
        if let Some(count) = floats::<T>(text.get(), expected, lone, &mut bytes) {
            return Ok((bytes, count));
        }
        // What is not a number is reported below.
        bytes.clear();
    }
    let mut sink = Numbers::<T> { bytes: &mut bytes, of: std::marker::PhantomData };
    let count = elements(text, datatype, expected, lone, &mut sink)?;
    Ok((bytes, count))
}

/// Reads numbers that need not be finite, as [`prepare`](super::super::text::prepare) leaves them, and returns how many
/// there are. `None` if there is anything but numbers, or one that does not fit.
fn floats<T: Number>(text: &str, expected: usize, lone: bool, bytes: &mut Vec<u8>) -> Option<usize> {
    if !lone && !text.starts_with('[') {
        return None;
    }
    let is_between = |of: char| matches!(of, '[' | ']' | ',' | ' ' | '\n' | '\r' | '\t');
    let mut count = 0;
    for number in text.split(is_between).filter(|number| !number.is_empty()) {
        let value = match not_finite(number) {
            Some(value) => T::not_finite(value),
            None => number
                .parse()
                .ok()
                .and_then(T::unsigned)
                // -0 is a float.
                .or_else(|| number.parse().ok().filter(|value| *value != 0).and_then(T::signed))
                .or_else(|| number.parse().ok().filter(|value: &f64| value.is_finite()).and_then(T::float)),
        };
        let value = value?;
        if count < expected {
            value.put(bytes);
        }
        count += 1;
    }
    Some(count)
}

/// Passes all elements to a sink and returns their number. Elements beyond `expected` are counted but not stored.
/// `lone` allows a single element without a list.
fn elements(
    text: &RawValue,
    datatype: DataType,
    expected: usize,
    lone: bool,
    sink: &mut dyn Sink,
) -> Result<usize, serde_json::Error> {
    let mut count = 0;
    let list = Elements { sink, datatype, expected, count: &mut count, within: lone };
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
    fn base64(&mut self, _: &str) -> Option<()> {
        None
    }
}

/// A list of elements or of such lists.
struct Elements<'s> {
    sink: &'s mut dyn Sink,
    datatype: DataType,
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
        put(self.sink).ok_or_else(|| {
            let wanted = expected(self.datatype);
            E::custom(format!("value {value} at index {index} does not fit the datatype, expected {wanted}"))
        })
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
        let Self { sink, datatype, expected, count, .. } = self;
        while list.next_element_seed(Elements { sink, datatype, expected, count, within: true })?.is_some() {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let mut encoded = match map.next_key::<Text<'de>>()? {
            Some(key) if &*key.0 == BASE64 => map.next_value::<&'de RawValue>().map(Some)?,
            Some(_) => map.next_value::<IgnoredAny>().map(|_| None)?,
            None => None,
        };
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {
            encoded = None;
        }
        // Without escapes, which base64 has none of.
        let text = encoded.and_then(|value| value.get().strip_prefix('"')?.strip_suffix('"'));
        self.element(|sink| sink.base64(text?), &"{…}")
    }

    fn visit_unit<E: Error>(self) -> Result<(), E> {
        self.element(|_| None, &"null")
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<(), E> {
        self.element(|sink| sink.unsigned(value), &value)
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<(), E> {
        self.element(|sink| sink.signed(value), &value)
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<(), E> {
        // Shown with its point: 1.0 is no integer.
        self.element(|sink| sink.float(value), &format_args!("{value:?}"))
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
    /// Whether values may have a fraction, and need not be finite.
    const IS_FLOAT: bool = false;

    fn not_finite(_: f64) -> Option<Self> {
        None
    }
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
    const IS_FLOAT: bool = true;

    fn not_finite(value: f64) -> Option<Self> {
        Some(value as Self)
    }
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
    const IS_FLOAT: bool = true;

    fn not_finite(value: f64) -> Option<Self> {
        Some(value)
    }
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
    fn base64(&mut self, value: &str) -> Option<()> {
        let at = self.0.len();
        self.0.extend_from_slice(&[0; LENGTH_BYTES]);
        STANDARD.decode_vec(value, self.0).ok()?;
        let length = u32::try_from(self.0.len() - at - LENGTH_BYTES).ok()?;
        self.0[at..at + LENGTH_BYTES].copy_from_slice(&length.to_le_bytes());
        Some(())
    }
}
