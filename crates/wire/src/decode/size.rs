//! Determines from a message's bytes how much memory decoding it takes, before anything is allocated.
//!
//! An empty entry of a repeated field takes two bytes on the wire and up to hundreds in memory. Entries of which no
//! honest request has many are limited in number. Everything else is added up, so that its memory can be reserved
//! first.

use std::mem::size_of;

use bytes::Bytes;

use super::{
    super::{
        Kind, RequestError,
        pb::model_infer_request::{InferInputTensor, InferRequestedOutputTensor},
    },
    fields::{Field, Fields, Wire},
};

/// Maximum number of inputs, requested outputs, raw entries and parameters of one request, each counted separately.
pub const MOST_ENTRIES: usize = 4096;

/// Maximum number of dimensions in all shapes of one request.
pub const MOST_DIMENSIONS: usize = 64 << 10;

/// Capacity of a growing list relative to its contents, at worst: the minimum is four entries, and old and new memory
/// coexist while it doubles.
const GROWTH: usize = 4;

/// Memory for an entry of a map: key, value, the table's free places, and the old table while it grows.
const MAP_ENTRY_BYTES: usize = 256;

/// Memory for a string of a list, before its length is written in front of its bytes.
const STRING_BYTES: usize = size_of::<Bytes>() + size_of::<u32>();

/// Why a message is not decoded.
#[derive(Debug, thiserror::Error)]
pub enum SizeError {
    /// A field has more entries than a request may have.
    #[error("{}", .0.message())]
    TooMany(RequestError),
    /// The bytes are not such a message. A decoder would detect this late or not at all: prost first builds values that
    /// reach beyond the part that contains them, and accepts an entry of a map in any encoding.
    #[error("a field is cut short, of another type, or reaches beyond the message that holds it")]
    Broken,
}

/// What a field's value is decoded to.
#[derive(Clone, Copy, Debug)]
enum Built {
    /// A share of the message.
    Nothing,
    /// A copy.
    Copy,
    /// Numbers, packed or not, of `bytes` bytes each.
    Numbers { bytes: usize },
    /// A message with these fields.
    Message(&'static [Part]),
}

/// A field of a message, as far as memory is concerned. Fields that are not listed take none.
#[derive(Clone, Copy, Debug)]
struct Part {
    number: u64,
    name: &'static str,
    /// Memory per occurrence, in addition to its value.
    each: usize,
    built: Built,
    /// Maximum number of elements in the whole message, and the counter in [`Count`].
    most: Option<(usize, usize)>,
}

const fn part(number: u64, name: &'static str, each: usize, built: Built) -> Part {
    Part { number, name, each, built, most: None }
}

const fn entries(number: u64, name: &'static str, each: usize, built: Built, counter: usize) -> Part {
    Part { number, name, each, built, most: Some((MOST_ENTRIES, counter)) }
}

const COUNTERS: usize = 5;

/// A message type whose size can be determined.
#[derive(Clone, Copy, Debug)]
pub struct Measurable(&'static [Part]);

/// `ModelInferRequest`.
pub const INFER_REQUEST: Measurable = Measurable(&[
    part(1, "model_name", 0, Built::Copy),
    part(2, "model_version", 0, Built::Copy),
    part(3, "id", 0, Built::Copy),
    PARAMETERS,
    entries(5, "inputs", GROWTH * size_of::<InferInputTensor>(), Built::Message(INPUT), 1),
    entries(6, "outputs", GROWTH * size_of::<InferRequestedOutputTensor>(), Built::Message(OUTPUT), 2),
    entries(7, "raw_input_contents", GROWTH * size_of::<Bytes>(), Built::Nothing, 3),
]);

/// `RepositoryModelLoadRequest`.
pub const LOAD_REQUEST: Measurable = Measurable(&[
    part(1, "repository_name", 0, Built::Copy),
    part(2, "model_name", 0, Built::Copy),
    entries(3, "parameters", MAP_ENTRY_BYTES, Built::Message(PARAMETER), 0),
]);

/// Parameters anywhere in a request, counted together.
const PARAMETERS: Part = entries(4, "parameters", MAP_ENTRY_BYTES, Built::Message(PARAMETER), 0);

/// An entry of a map from names to parameters of any kind. Strings have number 3, bytes number 4.
const PARAMETER: &[Part] = &[
    part(1, "key", 0, Built::Copy),
    part(2, "value", 0, Built::Message(&[part(3, "text", 0, Built::Copy), part(4, "content", 0, Built::Copy)])),
];

const INPUT: &[Part] = &[
    part(1, "name", 0, Built::Copy),
    part(2, "datatype", 0, Built::Copy),
    Part {
        number: 3,
        name: "shape",
        each: 0,
        built: Built::Numbers { bytes: GROWTH * size_of::<i64>() },
        most: Some((MOST_DIMENSIONS, 4)),
    },
    PARAMETERS,
    part(CONTENTS, "contents", 0, Built::Message(TYPED)),
];

const OUTPUT: &[Part] =
    &[part(1, "name", 0, Built::Copy), entries(2, "parameters", MAP_ENTRY_BYTES, Built::Message(PARAMETER), 0)];

/// Field number of the inputs of a request.
pub(super) const INPUTS: u64 = 5;
/// Field number of the typed contents of an input.
pub(super) const CONTENTS: u64 = 5;

/// Typed contents are decoded into lists of exactly their length, see [`parse`](super::parse).
const TYPED: &[Part] = &[
    part(1, "bool_contents", 0, Built::Numbers { bytes: 1 }),
    part(2, "int_contents", 0, Built::Numbers { bytes: 4 }),
    part(3, "int64_contents", 0, Built::Numbers { bytes: 8 }),
    part(4, "uint_contents", 0, Built::Numbers { bytes: 4 }),
    part(5, "uint64_contents", 0, Built::Numbers { bytes: 8 }),
    part(6, "fp32_contents", 0, Built::Numbers { bytes: 4 }),
    part(7, "fp64_contents", 0, Built::Numbers { bytes: 8 }),
    part(8, "bytes_contents", STRING_BYTES, Built::Copy),
];

/// Returns how many bytes decoding `message` allocates in addition to the message itself. Takes at most `steps` steps
/// (one per field or per 64 bytes of numbers), and returns `None` if more would be needed.
///
/// # Errors
/// If a field has more entries than allowed, or if the bytes are not such a message.
pub fn measure(kind: Measurable, message: &[u8], steps: usize) -> Result<Option<usize>, SizeError> {
    let mut count = Count { built_bytes: 0, counts: [0; COUNTERS], steps };
    match count.fields(kind.0, message) {
        Ok(()) => Ok(Some(count.built_bytes)),
        Err(Stop::Broken) => Err(SizeError::Broken),
        Err(Stop::Steps) => Ok(None),
        Err(Stop::TooMany { name, most }) => {
            let message = format!("the request has too many '{name}' entries, expected at most {most} altogether");
            Err(SizeError::TooMany(RequestError::new(Kind::InvalidArgument, message)))
        }
    }
}

struct Count {
    built_bytes: usize,
    counts: [usize; COUNTERS],
    steps: usize,
}

enum Stop {
    /// The bytes are not such a message from here on.
    Broken,
    Steps,
    TooMany {
        name: &'static str,
        most: usize,
    },
}

impl Count {
    fn fields(&mut self, parts: &'static [Part], message: &[u8]) -> Result<(), Stop> {
        let mut fields = Fields::of(message);
        for field in fields.by_ref() {
            self.step(1)?;
            if let Some(part) = parts.iter().find(|part| part.number == field.number) {
                self.field(part, &field)?;
            }
        }
        if fields.rest().is_empty() { Ok(()) } else { Err(Stop::Broken) }
    }

    fn field(&mut self, part: &'static Part, field: &Field<'_>) -> Result<(), Stop> {
        let elements = match part.built {
            Built::Numbers { .. } => elements(part.number, field),
            _ => 1,
        };
        if let Some((most, counter)) = part.most {
            self.counts[counter] = self.counts[counter].saturating_add(elements);
            if self.counts[counter] > most {
                return Err(Stop::TooMany { name: part.name, most });
            }
        }
        self.add(part.each);
        match part.built {
            Built::Nothing => Ok(()),
            Built::Copy => {
                self.add(field.value.len());
                Ok(())
            }
            Built::Numbers { bytes } => {
                self.add(elements.saturating_mul(bytes));
                self.step(field.value.len() / 64)
            }
            // A message must be encoded as bytes; decoding would reject it.
            Built::Message(parts) if field.wire == Wire::Bytes => self.fields(parts, field.value),
            Built::Message(_) => Err(Stop::Broken),
        }
    }

    fn add(&mut self, bytes: usize) {
        self.built_bytes = self.built_bytes.saturating_add(bytes);
    }

    fn step(&mut self, steps: usize) -> Result<(), Stop> {
        self.steps = self.steps.checked_sub(steps).ok_or(Stop::Steps)?;
        Ok(())
    }
}

/// Returns the number of values in a field of typed contents or of a shape.
pub(super) fn elements(number: u64, field: &Field<'_>) -> usize {
    match (field.wire, number) {
        (Wire::Bytes, 6) => field.value.len() / 4,
        (Wire::Bytes, 7) => field.value.len() / 8,
        // Every number ends with a byte below 0x80.
        (Wire::Bytes, _) => field.value.iter().map(|byte| usize::from(*byte < 0x80)).sum(),
        _ => 1,
    }
}
