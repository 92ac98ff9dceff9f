//! The structure of an inference request in JSON. Strings borrow from the text if possible; elements remain text.

use std::{borrow::Cow, cell::Cell, collections::HashMap, fmt, marker::PhantomData};

use serde::{
    Deserialize,
    de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor},
};
use serde_json::value::RawValue;
use serde_path_to_error::Track;

use super::{fault::JsonFault, text::not_finite};
use crate::{
    decode::size::{MOST_DIMENSIONS, MOST_ENTRIES},
    pb::{InferParameter, infer_parameter::ParameterChoice},
};

/// Memory for an input or output, as read and as the message built from it, without its strings.
const ENTRY_BYTES: usize = 512;

/// The same for a parameter.
const PARAMETER_BYTES: usize = 512;

/// The same for a dimension, in growing lists.
const DIMENSION_BYTES: usize = 64;

/// Parameters by key.
pub(super) type Parameters = HashMap<String, InferParameter>;

/// A request.
#[derive(Debug, Default)]
pub(super) struct Header<'a> {
    pub(super) id: Text<'a>,
    pub(super) parameters: Parameters,
    pub(super) inputs: Vec<Input<'a>>,
    pub(super) outputs: Vec<Output<'a>>,
}

#[derive(Debug)]
pub(super) struct Input<'a> {
    pub(super) name: Text<'a>,
    pub(super) datatype: Text<'a>,
    pub(super) shape: Vec<i64>,
    pub(super) parameters: Parameters,
    pub(super) data: Option<&'a RawValue>,
}

#[derive(Debug)]
pub(super) struct Output<'a> {
    pub(super) name: Text<'a>,
    pub(super) parameters: Parameters,
}

/// A string.
#[derive(Debug, Default, Deserialize)]
#[serde(transparent)]
pub(super) struct Text<'a>(#[serde(borrow)] pub(super) Cow<'a, str>);

/// Reads a request. Also returns the memory that its entries take, without strings and elements.
pub(super) fn read(text: &[u8]) -> Result<(Header<'_>, usize), JsonFault> {
    let limits = Limits::default();
    let header = whole(text, Object::<Header<'_>>::within(&limits))?;
    Ok((header, limits.taken_bytes()))
}

/// Reads a text to its end. An error names the member of the text where it occurred.
pub(super) fn whole<'de, S: DeserializeSeed<'de>>(text: &'de [u8], seed: S) -> Result<S::Value, JsonFault> {
    let mut deserializer = serde_json::Deserializer::from_slice(text);
    let mut track = Track::new();
    let value = seed.deserialize(serde_path_to_error::Deserializer::new(&mut deserializer, &mut track));
    let value = value.map_err(|error| match track.path() {
        root if root.iter().next().is_none() => JsonFault::Syntax(error),
        path => JsonFault::Member { member: path.to_string(), error },
    })?;
    deserializer.end().map_err(JsonFault::Syntax)?;
    Ok(value)
}

/// Reads an object that has only parameters; an empty text has none.
pub(super) fn read_parameters(text: &[u8]) -> Result<Parameters, JsonFault> {
    if text.is_empty() {
        return Ok(Parameters::new());
    }
    let OnlyParameters(parameters) = whole(text, Object::within(&Limits::default()))?;
    match parameters.iter().find(|(_, parameter)| parameter.parameter_choice.is_none()) {
        Some((key, _)) => Err(JsonFault::Nested { key: key.clone() }),
        None => Ok(parameters),
    }
}

struct OnlyParameters(Parameters);

impl<'de> FromObject<'de> for OnlyParameters {
    const NAME: &'static str = "an object with parameters";

    fn read<A: MapAccess<'de>>(mut fields: A, limits: &Limits) -> Result<Self, A::Error> {
        let mut read = Parameters::new();
        while let Some(key) = fields.next_key::<Text<'de>>()? {
            match &*key.0 {
                "parameters" => read = fields.next_value_seed(Object::within(limits))?,
                _ => _ = fields.next_value::<IgnoredAny>()?,
            }
        }
        Ok(Self(read))
    }
}

/// Counts entries of which no honest request has many, over the whole request.
#[derive(Debug, Default)]
pub(super) struct Limits {
    inputs: Cell<usize>,
    outputs: Cell<usize>,
    parameters: Cell<usize>,
    dimensions: Cell<usize>,
}

impl Limits {
    fn count<E: Error>(counter: &Cell<usize>, name: &str, most: usize) -> Result<(), E> {
        counter.set(counter.get() + 1);
        if counter.get() <= most {
            return Ok(());
        }
        Err(E::custom(format!("the request has too many '{name}' entries, expected at most {most} altogether")))
    }

    /// Counts a parameter.
    pub(super) fn count_parameter<E: Error>(&self) -> Result<(), E> {
        Self::count(&self.parameters, "parameters", MOST_ENTRIES)
    }

    fn taken_bytes(&self) -> usize {
        (self.inputs.get() + self.outputs.get()) * ENTRY_BYTES
            + self.parameters.get() * PARAMETER_BYTES
            + self.dimensions.get() * DIMENSION_BYTES
    }
}

/// The value that an object is read to.
trait FromObject<'de>: Sized {
    const NAME: &'static str;

    fn read<A: MapAccess<'de>>(fields: A, limits: &Limits) -> Result<Self, A::Error>;
}

struct Object<'l, T> {
    limits: &'l Limits,
    becomes: PhantomData<T>,
}

impl<'l, T> Object<'l, T> {
    fn within(limits: &'l Limits) -> Self {
        Self { limits, becomes: PhantomData }
    }
}

impl<'de, T: FromObject<'de>> DeserializeSeed<'de> for Object<'_, T> {
    type Value = T;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<T, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de, T: FromObject<'de>> Visitor<'de> for Object<'_, T> {
    type Value = T;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(T::NAME)
    }

    fn visit_map<A: MapAccess<'de>>(self, fields: A) -> Result<T, A::Error> {
        T::read(fields, self.limits)
    }
}

/// A list of objects, each of which is counted.
struct Objects<'l, T> {
    limits: &'l Limits,
    counter: &'l Cell<usize>,
    name: &'static str,
    becomes: PhantomData<T>,
}

impl<'l, T> Objects<'l, T> {
    fn new(limits: &'l Limits, counter: &'l Cell<usize>, name: &'static str) -> Self {
        Self { limits, counter, name, becomes: PhantomData }
    }
}

impl<'de, T: FromObject<'de>> DeserializeSeed<'de> for Objects<'_, T> {
    type Value = Vec<T>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Vec<T>, D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de, T: FromObject<'de>> Visitor<'de> for Objects<'_, T> {
    type Value = Vec<T>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "a list of {}", self.name)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Vec<T>, A::Error> {
        let mut read = Vec::new();
        while let Some(entry) = list.next_element_seed(Object::within(self.limits))? {
            Limits::count(self.counter, self.name, MOST_ENTRIES)?;
            read.push(entry);
        }
        Ok(read)
    }
}

struct Shape<'l>(&'l Limits);

impl<'de> DeserializeSeed<'de> for Shape<'_> {
    type Value = Vec<i64>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Vec<i64>, D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for Shape<'_> {
    type Value = Vec<i64>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a shape: a list of numbers")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Vec<i64>, A::Error> {
        let mut shape = Vec::new();
        while let Some(dimension) = list.next_element()? {
            Limits::count(&self.0.dimensions, "shape", MOST_DIMENSIONS)?;
            shape.push(dimension);
        }
        Ok(shape)
    }
}

impl<'de> FromObject<'de> for Parameters {
    const NAME: &'static str = "parameters: an object";

    fn read<A: MapAccess<'de>>(mut fields: A, limits: &Limits) -> Result<Self, A::Error> {
        let mut parameters = Self::new();
        while let Some(key) = fields.next_key::<String>()? {
            limits.count_parameter()?;
            let parameter_choice = fields.next_value_seed(Parameter(&key))?;
            parameters.insert(key, InferParameter { parameter_choice });
        }
        Ok(parameters)
    }
}

/// The value of a parameter with this key; `None` for an object, a list or null. Other servers take these, so clients
/// send them. Those who know the key refuse them.
pub(super) struct Parameter<'k>(pub(super) &'k str);

impl<'de> DeserializeSeed<'de> for Parameter<'_> {
    type Value = Option<ParameterChoice>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        let text = <&RawValue>::deserialize(deserializer)?.get();
        if let Some(number) = not_finite(text) {
            return Ok(Some(ParameterChoice::DoubleParam(number)));
        }
        if text.starts_with(['{', '[', 'n']) {
            return Ok(None);
        }
        let value = serde_json::Deserializer::from_str(text).deserialize_any(Scalar(self.0));
        value.map(Some).map_err(D::Error::custom)
    }
}

/// A value that a parameter of the protocol can have.
struct Scalar<'k>(&'k str);

impl Visitor<'_> for Scalar<'_> {
    type Value = ParameterChoice;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a number, a boolean or a string")
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<ParameterChoice, E> {
        Ok(ParameterChoice::BoolParam(value))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<ParameterChoice, E> {
        Ok(ParameterChoice::Int64Param(value))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<ParameterChoice, E> {
        Ok(match i64::try_from(value) {
            Ok(value) => ParameterChoice::Int64Param(value),
            // JSON has a single number type; over gRPC a correlation id has the bits of an unsigned number.
            Err(_) if self.0 == "sequence_id" => ParameterChoice::Int64Param(value.cast_signed()),
            Err(_) => ParameterChoice::Uint64Param(value),
        })
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<ParameterChoice, E> {
        Ok(ParameterChoice::DoubleParam(value))
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<ParameterChoice, E> {
        Ok(ParameterChoice::StringParam(value.to_owned()))
    }
}

impl<'de> FromObject<'de> for Header<'de> {
    const NAME: &'static str = "an inference request: an object";

    fn read<A: MapAccess<'de>>(mut fields: A, limits: &Limits) -> Result<Self, A::Error> {
        let mut read = Self::default();
        while let Some(key) = fields.next_key::<Text<'de>>()? {
            match &*key.0 {
                "id" => read.id = fields.next_value()?,
                "parameters" => read.parameters = fields.next_value_seed(Object::within(limits))?,
                "inputs" => read.inputs = fields.next_value_seed(Objects::new(limits, &limits.inputs, "inputs"))?,
                "outputs" => read.outputs = fields.next_value_seed(Objects::new(limits, &limits.outputs, "outputs"))?,
                _ => _ = fields.next_value::<IgnoredAny>()?,
            }
        }
        Ok(read)
    }
}

impl<'de> FromObject<'de> for Input<'de> {
    const NAME: &'static str = "an input: an object";

    fn read<A: MapAccess<'de>>(mut fields: A, limits: &Limits) -> Result<Self, A::Error> {
        let (mut name, mut datatype, mut shape, mut data) = (None, None, None, None);
        let mut parameters = Parameters::new();
        while let Some(key) = fields.next_key::<Text<'de>>()? {
            match &*key.0 {
                "name" => name = Some(fields.next_value()?),
                "datatype" => datatype = Some(fields.next_value()?),
                "shape" => shape = Some(fields.next_value_seed(Shape(limits))?),
                "parameters" => parameters = fields.next_value_seed(Object::within(limits))?,
                "data" => data = Some(fields.next_value()?),
                _ => _ = fields.next_value::<IgnoredAny>()?,
            }
        }
        let missing = |field| A::Error::missing_field(field);
        Ok(Self {
            name: name.ok_or_else(|| missing("name"))?,
            datatype: datatype.ok_or_else(|| missing("datatype"))?,
            shape: shape.ok_or_else(|| missing("shape"))?,
            parameters,
            data,
        })
    }
}

impl<'de> FromObject<'de> for Output<'de> {
    const NAME: &'static str = "an output: an object";

    fn read<A: MapAccess<'de>>(mut fields: A, limits: &Limits) -> Result<Self, A::Error> {
        let (mut name, mut parameters) = (None, Parameters::new());
        while let Some(key) = fields.next_key::<Text<'de>>()? {
            match &*key.0 {
                "name" => name = Some(fields.next_value()?),
                "parameters" => parameters = fields.next_value_seed(Object::within(limits))?,
                _ => _ = fields.next_value::<IgnoredAny>()?,
            }
        }
        Ok(Self { name: name.ok_or_else(|| A::Error::missing_field("name"))?, parameters })
    }
}
