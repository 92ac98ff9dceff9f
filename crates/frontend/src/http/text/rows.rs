//! The results of items, as a model gives them.

use bytes::Bytes;
use http::StatusCode;
use paternoster_executor::{OutputTensor, Response};
use paternoster_model::{ModelSpec, text};
use serde::{Serialize, Serializer};

use super::{fault::Fault, item::Wanted};

/// The result of one item: a part of the model's output.
pub(super) struct Row {
    values: Bytes,
    pub(super) tokens: u64,
}

impl Row {
    pub(super) fn values(&self) -> impl ExactSizeIterator<Item = f32> + Clone {
        floats(&self.values)
    }

    /// The same, little-endian, as clients read them from base64.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.values
    }
}

fn floats(data: &[u8]) -> impl ExactSizeIterator<Item = f32> + Clone {
    data.as_chunks().0.iter().map(|chunk| f32::from_le_bytes(*chunk))
}

/// The vectors of texts, which are written without building them.
pub(super) struct Vectors(pub(super) Vec<Row>);

impl Serialize for Vectors {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.iter().map(Numbers))
    }
}

/// The numbers of an item.
pub(super) struct Numbers<'a>(pub(super) &'a Row);

impl Serialize for Numbers<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.values())
    }
}

/// Takes the rows of a response apart.
pub(super) fn rows_of(spec: &ModelSpec, wanted: Wanted, response: Response) -> Result<Vec<Row>, Fault> {
    let output = |name: &str| spec.output_index(name).and_then(|number| response.outputs.get(number));
    let values = output(wanted.output());
    let Some(OutputTensor { shape, data }) =
        values.filter(|values| values.shape.len() == 1 + usize::from(spec.has_batch_axis()))
    else {
        let text = format!("expected one axis behind the batch in '{}' of model '{}'", wanted.output(), spec.name);
        return Err(Fault::Server(StatusCode::INTERNAL_SERVER_ERROR, text));
    };
    let width = shape.last().map_or(0, |&width| width.max(0) as usize);
    check_finite(spec, floats(data))?;
    let counts: Vec<u64> = output(text::TOKEN_COUNT).map_or_else(Vec::new, |counts| {
        counts.data.as_chunks().0.iter().map(|chunk| u64::from(u32::from_le_bytes(*chunk))).collect()
    });
    let row_bytes = width.max(1) * size_of::<f32>();
    let row = |row: usize| {
        let values = data.slice(row * row_bytes..(row + 1) * row_bytes);
        Row { values, tokens: counts.get(row).copied().unwrap_or(0) }
    };
    Ok((0..data.len() / row_bytes).map(row).collect())
}

/// Checks that JSON can express all numbers of a model's answer.
pub(super) fn check_finite(spec: &ModelSpec, mut values: impl Iterator<Item = f32>) -> Result<(), Fault> {
    if values.all(f32::is_finite) {
        return Ok(());
    }
    let text = format!("the model '{}' gave numbers that are not finite", spec.name);
    Err(Fault::Server(StatusCode::INTERNAL_SERVER_ERROR, text))
}
