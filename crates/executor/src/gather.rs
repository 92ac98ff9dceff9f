//! Gathers the rows of a task into one batch. Payloads of requests are copied once, into aligned memory, and padded if
//! axes vary. For stages and cells, it also gathers the outputs of earlier tasks.

use std::sync::Arc;

use bytes::Bytes;
use paternoster_batching::ShapeClass;
use paternoster_device::{Buffer, BufferPool, NoMemory, RowsRef};
use paternoster_engine::BatchInput;
use paternoster_model::{DataType, Dims, InputTensor, ModelSpec, TensorSpec, element_count};
use smallvec::SmallVec;

use crate::strings::Elements;

/// One input of a batch, with all rows.
pub(crate) enum Gathered<'a> {
    Dense { shape: Dims, data: Data },
    Strings { shape: Dims, elements: Vec<&'a [u8]> },
    Absent,
}

/// Contiguous rows.
pub(crate) enum Data {
    /// Copied together.
    Copied(Buffer),
    /// In place in a request, or in the memory of a task of cells.
    Shared(Bytes),
    /// In place in a boundary's buffer.
    Boundary(RowsRef),
}

/// Consecutive rows of one tensor, to be appended to a batch.
pub(crate) struct Rows<'a> {
    pub(crate) count: usize,
    /// Dimensions of each row, with the rows' own lengths on padded axes.
    pub(crate) dims: &'a [i64],
    pub(crate) data: &'a [u8],
}

impl Data {
    pub(crate) fn as_slice(&self) -> &[u8] {
        match self {
            Self::Copied(buffer) => buffer.as_slice(),
            Self::Shared(bytes) => bytes,
            Self::Boundary(rows) => rows,
        }
    }
}

impl Gathered<'_> {
    pub(crate) fn as_input(&self) -> BatchInput<'_> {
        match self {
            Self::Dense { shape, data } => BatchInput::Dense { shape, data: data.as_slice() },
            Self::Strings { shape, elements } => BatchInput::Strings { shape, elements },
            Self::Absent => BatchInput::Absent,
        }
    }
}

/// A part of a batch: consecutive rows of one request's inputs.
#[derive(Clone, Copy)]
pub(crate) struct Part<'a> {
    pub(crate) inputs: &'a [Option<InputTensor>],
    /// Rows of the whole request.
    pub(crate) rows: u32,
    /// First row of the part.
    pub(crate) start: u32,
    /// Rows of the part.
    pub(crate) count: u32,
}

/// A batch is not formed if padding multiplies its payload by more than this factor …
const PADDING_FACTOR: usize = 16;
/// … and makes it larger than this many bytes. Requests of stages then run alone and unpadded; rows of cells run
/// separately.
const PADDING_BYTES: usize = 64 << 20;

/// Whether padding would make a batch too large for its payload.
pub(crate) fn pads_too_much(batch_bytes: usize, payload_bytes: usize) -> bool {
    batch_bytes > PADDING_BYTES.max(payload_bytes.saturating_mul(PADDING_FACTOR))
}

/// Gathers all inputs of a task that runs the whole model.
///
/// # Errors
/// See [`gather_input`].
pub(crate) fn gather<'a>(
    spec: &ModelSpec,
    class: &ShapeClass,
    parts: &[Part<'a>],
    buffers: &Arc<BufferPool>,
) -> Result<SmallVec<[Gathered<'a>; 4]>, String> {
    let inputs = spec.inputs.iter().enumerate();
    inputs.map(|(index, input)| gather_input(spec, (index, input), class, parts, buffers)).collect()
}

/// Gathers one of the model's inputs, given with its index. The core guarantees that the parts agree in every dimension
/// that is not padded.
///
/// # Errors
/// If a payload's size does not match its shape, or if padding would make the batch far larger than its payloads.
pub(crate) fn gather_input<'a>(
    spec: &ModelSpec,
    (index, input): (usize, &TensorSpec),
    class: &ShapeClass,
    parts: &[Part<'a>],
    buffers: &Arc<BufferPool>,
) -> Result<Gathered<'a>, String> {
    let rows: u32 = parts.iter().map(|part| part.count).sum();
    let tensors: SmallVec<[(&Part<'a>, &'a InputTensor); 8]> =
        parts.iter().filter_map(|part| Some((part, part.inputs.get(index)?.as_ref()?))).collect();
    let Some((_, first)) = tensors.first() else { return Ok(Gathered::Absent) };
    let row_dims = &first.shape[usize::from(spec.has_batch_axis())..];
    let padded = pad_dims(input, row_dims, class);
    let shape = graph_shape(spec, input, &padded, rows);
    let gathered = match input.datatype.size_bytes() {
        Some(size) => dense(spec, input, &padded, size, &tensors, buffers)
            .transpose()
            .map_err(|error| format!("input '{}' of model '{}': {error}", input.name, spec.name))?
            .map(|buffer| Gathered::Dense { shape, data: Data::Copied(buffer) }),
        None => strings(&tensors).map(|elements| Gathered::Strings { shape, elements }),
    };
    gathered.ok_or_else(|| {
        format!("input '{}' of model '{}' does not fit the batch's shape {padded:?}", input.name, spec.name)
    })
}

/// Returns a row's dimensions in the batch: padded axes have the length of the batch's class.
fn pad_dims(input: &TensorSpec, row_dims: &[i64], class: &ShapeClass) -> Dims {
    let mut padded = Dims::from_slice(row_dims);
    for (dim, symbol) in padded.iter_mut().zip(&input.symbols) {
        if let Some(length) = symbol.and_then(|symbol| class.0.get(usize::from(symbol.0))) {
            *dim = i64::from(*length);
        }
    }
    padded
}

/// Returns the shape that the graph sees: the rows first if there is a batch axis, then the row's dimensions or their
/// reshape.
fn graph_shape(spec: &ModelSpec, input: &TensorSpec, row_dims: &[i64], rows: u32) -> Dims {
    let mut shape = Dims::new();
    if spec.has_batch_axis() {
        shape.push(i64::from(rows));
    }
    shape.extend(input.to_graph(row_dims));
    shape
}

fn dense(
    spec: &ModelSpec,
    input: &TensorSpec,
    padded: &[i64],
    size: usize,
    tensors: &[(&Part<'_>, &InputTensor)],
    buffers: &Arc<BufferPool>,
) -> Option<Result<Buffer, NoMemory>> {
    let row_bytes = element_count(padded)?.checked_mul(size)?;
    let count: usize = tensors.iter().map(|(part, _)| part.count as usize).sum();
    let batch_bytes = count.checked_mul(row_bytes)?;
    let payload_bytes: usize = tensors.iter().map(|(_, tensor)| tensor.data.len()).sum();
    if pads_too_much(batch_bytes, payload_bytes) {
        return None;
    }
    let rows = tensors.iter().map(|(part, tensor)| {
        let dims = &tensor.shape[usize::from(spec.has_batch_axis())..];
        let bytes = element_count(dims)?.checked_mul(size)?;
        let (start, count) = (part.start as usize * bytes, part.count as usize);
        Some(Rows { count, dims, data: tensor.data.get(start..start + count * bytes)? })
    });
    let rows = rows.collect::<Option<SmallVec<[Rows<'_>; 8]>>>()?;
    Some(BufferPool::take(buffers, batch_bytes).map(|mut buffer| {
        copy_rows(rows, input, (padded, size), buffer.as_mut_slice());
        buffer
    }))
}

/// Copies rows into a batch of exactly that many rows, each padded to `dims`, the longest. `size` is the size of an
/// element.
pub(crate) fn copy_rows<'a>(
    rows: impl IntoIterator<Item = Rows<'a>>,
    input: &TensorSpec,
    (dims, size): (&[i64], usize),
    mut into: &mut [u8],
) {
    let row_bytes = block_bytes(dims, size);
    for Rows { count, dims: own, data } in rows {
        let (own_into, rest) = into.split_at_mut(count * row_bytes);
        into = rest;
        if own == dims {
            own_into.copy_from_slice(data);
            continue;
        }
        let own_bytes = block_bytes(own, size);
        for (number, row_into) in own_into.chunks_exact_mut(row_bytes.max(1)).enumerate() {
            let row = &data[number * own_bytes..][..own_bytes];
            // If only the first axis varies, the row is a prefix of the padded row, so only the rest needs padding.
            let begins = own.get(1..) == dims.get(1..);
            let padding = if begins { &mut row_into[own_bytes..] } else { &mut *row_into };
            fill(padding, input.datatype, input.pad_value);
            if own_bytes > 0 {
                copy_block(row, own, row_into, dims, size);
            }
        }
    }
}

/// Returns the dimensions of several rows together.
pub(crate) fn with_rows(rows: usize, row_dims: &[i64]) -> Dims {
    let mut shape = Dims::from_slice(&[rows as i64]);
    shape.extend_from_slice(row_dims);
    shape
}

/// Copies a block into the corner of a larger block of the same rank.
fn copy_block(from: &[u8], from_dims: &[i64], into: &mut [u8], into_dims: &[i64], size: usize) {
    let (Some((&outer, from_inner)), Some((_, into_inner))) = (from_dims.split_first(), into_dims.split_first()) else {
        into[..size].copy_from_slice(&from[..size]);
        return;
    };
    if from_inner == into_inner {
        into[..from.len()].copy_from_slice(from);
        return;
    }
    let from_stride = block_bytes(from_inner, size);
    let into_stride = block_bytes(into_inner, size);
    for index in 0..outer as usize {
        let source = &from[index * from_stride..][..from_stride];
        copy_block(source, from_inner, &mut into[index * into_stride..][..into_stride], into_inner, size);
    }
}

/// Copies the corner of a block into a smaller block of the same rank.
pub(crate) fn cut_block(from: &[u8], from_dims: &[i64], into: &mut Vec<u8>, into_dims: &[i64], size: usize) {
    let (Some((_, from_inner)), Some((&outer, into_inner))) = (from_dims.split_first(), into_dims.split_first()) else {
        into.extend_from_slice(&from[..size]);
        return;
    };
    let from_stride = block_bytes(from_inner, size);
    if from_inner == into_inner {
        into.extend_from_slice(&from[..outer as usize * from_stride]);
        return;
    }
    for index in 0..outer as usize {
        cut_block(&from[index * from_stride..][..from_stride], from_inner, into, into_inner, size);
    }
}

/// Returns the bytes of a block. Its dimensions have been checked before.
fn block_bytes(dims: &[i64], size: usize) -> usize {
    dims.iter().map(|&dim| dim as usize).product::<usize>() * size
}

/// Fills memory with a value of the datatype.
fn fill(into: &mut [u8], datatype: DataType, value: f64) {
    let pattern = datatype.element(value);
    if pattern.iter().all(|&byte| byte == 0) {
        into.fill(0);
        return;
    }
    for element in into.chunks_exact_mut(pattern.len()) {
        element.copy_from_slice(&pattern);
    }
}

/// Returns the elements of all parts without their length prefixes. BYTES cannot be padded.
fn strings<'a>(tensors: &[(&Part<'a>, &'a InputTensor)]) -> Option<Vec<&'a [u8]>> {
    let mut elements = Vec::new();
    for (part, tensor) in tensors {
        let per_row = element_count(&tensor.shape)?.checked_div(part.rows as usize)?;
        let skip = part.start as usize * per_row;
        let take = part.count as usize * per_row;
        let all = Elements { rest: &tensor.data };
        let before = elements.len();
        elements.extend(all.skip(skip).take(take));
        if elements.len() - before != take {
            return None;
        }
    }
    Some(elements)
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use paternoster_model::SymbolId;

    fn tokens_model() -> ModelSpec {
        let mut ids = TensorSpec::new("ids", DataType::Int32, &[-1, 2]);
        ids.symbols = SmallVec::from_slice(&[Some(SymbolId(0)), None]);
        ids.pad_value = 7.0;
        ModelSpec {
            name: "tokens".to_owned(),
            version: 1,
            max_batch_size: 8,
            inputs: vec![ids],
            outputs: vec![],
            symbols: vec!["tokens".to_owned()],
            decoupled: false,
        }
    }

    fn int32_tensor(shape: &[i64], values: &[i32]) -> Vec<Option<InputTensor>> {
        let data: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        vec![Some(InputTensor { shape: Dims::from_slice(shape), data: Bytes::from(data) })]
    }

    fn dense_values(gathered: &Gathered<'_>) -> (Dims, Vec<i32>) {
        let Gathered::Dense { shape, data } = gathered else { panic!("expected a dense input") };
        (shape.clone(), bytemuck::cast_slice(data.as_slice()).to_vec())
    }

    #[test]
    fn rows_of_different_lengths_are_padded_to_the_class() {
        let spec = tokens_model();
        let short = int32_tensor(&[1, 1, 2], &[1, 2]);
        let long = int32_tensor(&[2, 2, 2], &[3, 4, 5, 6, 13, 14, 15, 16]);
        let parts =
            [Part { inputs: &short, rows: 1, start: 0, count: 1 }, Part { inputs: &long, rows: 2, start: 0, count: 2 }];
        let class = ShapeClass(SmallVec::from_slice(&[2]));
        let gathered = gather(&spec, &class, &parts, &BufferPool::new(0)).expect("the parts fit");
        let (shape, values) = dense_values(&gathered[0]);
        assert_eq!(shape.as_slice(), [3, 2, 2]);
        assert_eq!(values, [1, 2, 7, 7, 3, 4, 5, 6, 13, 14, 15, 16]);
    }

    #[test]
    fn rows_are_padded_along_every_axis_on_which_they_are_shorter() {
        let mut input = TensorSpec::new("x", DataType::Uint8, &[-1, -1]);
        input.pad_value = 9.0;
        let rows = [
            Rows { count: 2, dims: &[1, 2], data: &[1, 2, 3, 4] },
            Rows { count: 1, dims: &[2, 1], data: &[5, 6] },
            Rows { count: 1, dims: &[0, 2], data: &[] },
            Rows { count: 1, dims: &[2, 2], data: &[7, 8, 7, 8] },
        ];
        let mut batch = [0; 20];
        copy_rows(rows, &input, (&[2, 2], 1), &mut batch);
        assert_eq!(batch, [1, 2, 9, 9, 3, 4, 9, 9, 5, 9, 6, 9, 9, 9, 9, 9, 7, 8, 7, 8]);
    }

    #[test]
    fn a_part_takes_only_its_own_rows() {
        let spec = tokens_model();
        let request = int32_tensor(&[3, 1, 2], &[1, 2, 3, 4, 5, 6]);
        let parts = [Part { inputs: &request, rows: 3, start: 1, count: 2 }];
        let class = ShapeClass(SmallVec::from_slice(&[1]));
        let gathered = gather(&spec, &class, &parts, &BufferPool::new(0)).expect("the part fits");
        assert_eq!(dense_values(&gathered[0]).1, [3, 4, 5, 6]);
    }

    #[test]
    fn a_payload_shorter_than_its_shape_is_refused_by_name() {
        let spec = tokens_model();
        let request = int32_tensor(&[2, 1, 2], &[1, 2, 3]);
        let parts = [Part { inputs: &request, rows: 2, start: 0, count: 2 }];
        let class = ShapeClass(SmallVec::from_slice(&[1]));
        let error = gather(&spec, &class, &parts, &BufferPool::new(0)).err().expect("one value is missing");
        assert!(error.contains("'ids'") && error.contains("'tokens'"), "{error}");
    }

    #[test]
    fn padding_does_not_multiply_small_requests_into_a_huge_batch() {
        let mut spec = tokens_model();
        spec.inputs[0].symbols = SmallVec::from_slice(&[Some(SymbolId(0)), Some(SymbolId(1))]);
        let long = int32_tensor(&[1, 100_000, 1], &vec![1; 100_000]);
        let wide = int32_tensor(&[1, 1, 100_000], &vec![1; 100_000]);
        let parts = [&long, &wide].map(|inputs| Part { inputs, rows: 1, start: 0, count: 1 });
        let class = ShapeClass(SmallVec::from_slice(&[100_000, 100_000]));
        let pool = BufferPool::new(0);
        assert!(gather(&spec, &class, &parts, &pool).is_err(), "together they would make 80 GB");
        let alone = ShapeClass(SmallVec::from_slice(&[100_000, 1]));
        assert!(gather(&spec, &alone, &parts[..1], &pool).is_ok());
    }

    #[test]
    fn a_block_cut_out_is_the_block_put_in() {
        let mut padded = vec![9_u8; 12];
        copy_block(&[1, 2, 3, 4], &[2, 2], &mut padded, &[3, 4], 1);
        assert_eq!(padded, [1, 2, 9, 9, 3, 4, 9, 9, 9, 9, 9, 9]);
        let mut cut = Vec::new();
        cut_block(&padded, &[3, 4], &mut cut, &[2, 2], 1);
        assert_eq!(cut, [1, 2, 3, 4]);
    }

    #[test]
    fn strings_are_walked_without_their_prefixes() {
        let data = [1, 0, 0, 0, b'a', 0, 0, 0, 0, 2, 0, 0, 0, b'b', b'c'];
        let elements: Vec<&[u8]> = Elements { rest: &data }.collect();
        assert_eq!(elements, [b"a".as_slice(), b"", b"bc"]);
        assert_eq!(Elements { rest: &[5, 0, 0, 0, 1] }.count(), 0);
    }
}
