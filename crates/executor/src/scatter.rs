//! Splits a batch's outputs. Each request gets its rows as a share of the batch's memory, cut back to its own lengths
//! if axes were padded.

use bytes::Bytes;
use paternoster_batching::ShapeClass;
use paternoster_engine::BatchOutput;
use paternoster_model::{Dims, Lengths, ModelSpec, TensorSpec, element_count};

use super::{
    OutputTensor, Response,
    gather::{Part, cut_block},
    strings::Elements,
};

/// Returns the full shapes of a batch's outputs, as the graph gives them, where they follow from the batch.
pub(super) fn expected_shapes(spec: &ModelSpec, class: &ShapeClass, rows: u32) -> Vec<Option<Dims>> {
    spec.outputs.iter().map(|output| expected_shape(spec, output, class, rows)).collect()
}

/// Returns the full shape of one output; `None` if it does not follow from the batch.
pub(super) fn expected_shape(spec: &ModelSpec, output: &TensorSpec, class: &ShapeClass, rows: u32) -> Option<Dims> {
    output.datatype.size_bytes()?;
    let mut shape = Dims::new();
    if spec.has_batch_axis() {
        shape.push(i64::from(rows));
    }
    if let Some(reshape) = &output.reshape {
        shape.extend_from_slice(reshape);
    } else {
        shape.extend(output.dims_at(&class.0));
    }
    shape.iter().all(|&dim| dim >= 0).then_some(shape)
}

/// The lengths of padded axes in a batch.
#[derive(Clone, Copy)]
pub(super) struct BatchLengths<'a> {
    /// The lengths to which all parts were padded.
    pub(super) padded: &'a Lengths,
    /// Each part's own lengths.
    pub(super) own: &'a [&'a Lengths],
}

/// Makes each part's response from a batch's outputs.
///
/// # Errors
/// See [`scatter_output`].
pub(super) fn scatter(
    spec: &ModelSpec,
    parts: &[Part<'_>],
    lengths: BatchLengths<'_>,
    outputs: &[BatchOutput],
) -> Result<Vec<Response>, String> {
    let mut responses: Vec<Response> =
        parts.iter().map(|_| Response { outputs: Vec::with_capacity(outputs.len()) }).collect();
    for (output, batch) in spec.outputs.iter().zip(outputs) {
        scatter_output(spec, output, parts, lengths, batch, |part, tensor| responses[part].outputs.push(tensor))?;
    }
    Ok(responses)
}

/// Splits one output of a batch. Calls `give` with each part's number and rows.
///
/// # Errors
/// If the output does not have the batch's rows on axis 0, does not have the dimensions of the specification, or has to
/// be cut back and does not have the lengths that follow from the batch's.
pub(super) fn scatter_output(
    spec: &ModelSpec,
    output: &TensorSpec,
    parts: &[Part<'_>],
    lengths: BatchLengths<'_>,
    batch: &BatchOutput,
    mut give: impl FnMut(usize, OutputTensor),
) -> Result<(), String> {
    let rows: u32 = parts.iter().map(|part| part.count).sum();
    let row_dims = row_dims(spec, output, &batch.shape, rows)?;
    if lengths.own.iter().any(|own| *own != lengths.padded) {
        check_padded(spec, output, &row_dims, lengths.padded)?;
    }
    let mut cursor = Cursor::new(output, &row_dims, batch);
    for (number, (part, own)) in parts.iter().zip(lengths.own).enumerate() {
        let tensor = cursor.take(spec, output, part.count, own);
        give(number, tensor.ok_or_else(|| too_short(spec, output, batch))?);
    }
    Ok(())
}

fn too_short(spec: &ModelSpec, output: &TensorSpec, batch: &BatchOutput) -> String {
    format!(
        "output '{}' of model '{}' holds fewer elements than its shape {:?} says",
        output.name, spec.name, batch.shape
    )
}

/// Checks that the axes of a batch to be cut back have the lengths that follow from the padded ones. Otherwise, it is
/// unknown which part of the output is a request's own. Its requests then run alone, without padding.
fn check_padded(spec: &ModelSpec, output: &TensorSpec, row_dims: &[i64], padded: &Lengths) -> Result<(), String> {
    let differs = |(axis, expected): &(usize, Option<u32>)| row_dims.get(*axis).copied() != expected.map(i64::from);
    let Some((axis, expected)) = output.padded_lengths(padded).find(differs) else { return Ok(()) };
    let expected = expected.map_or_else(|| "no length".to_owned(), |length| length.to_string());
    Err(format!(
        "output '{}' of model '{}' has the dims {row_dims:?}, expected {expected} on dimension {axis} of requests that \
         are padded to {padded:?}",
        output.name, spec.name
    ))
}

/// Returns a row's dimensions on the wire, from the shape that the graph gave. Dimensions may differ from the declared
/// ones unless they are reshaped or cut back, because some converters declare a single label for any number of labels,
/// and the shape of some outputs is known only after a run.
fn row_dims(spec: &ModelSpec, output: &TensorSpec, shape: &[i64], rows: u32) -> Result<Dims, String> {
    let graph_dims = if spec.has_batch_axis() {
        match shape.split_first() {
            Some((&first, rest)) if first == i64::from(rows) => rest,
            _ => {
                return Err(format!(
                    "output '{}' of model '{}' has the shape {shape:?}, expected {rows} rows on axis 0",
                    output.name, spec.name
                ));
            }
        }
    } else {
        shape
    };
    let declared = output.graph_dims();
    let fits = declared.len() == graph_dims.len()
        && declared.iter().zip(graph_dims).all(|(&declared, &given)| declared < 0 || declared == given);
    let is_reshaped = output.reshape.as_ref().is_some_and(|reshape| spec.has_batch_axis() || !reshape.is_empty());
    if !fits && (is_reshaped || output.has_padded_axes()) {
        return Err(format!(
            "output '{}' of model '{}' has the shape {shape:?}, expected dims {declared:?}",
            output.name, spec.name
        ));
    }
    Ok(match graph_dims {
        // On the wire, a scalar has one dimension.
        [] if !spec.has_batch_axis() => Dims::from_slice(&[1]),
        dims if fits => output.to_wire(dims),
        dims => Dims::from_slice(dims),
    })
}

/// Iterates over an output from part to part.
struct Cursor<'a> {
    row_dims: &'a [i64],
    batch: &'a BatchOutput,
    /// Bytes of one element; `None` for BYTES.
    size: Option<usize>,
    offset: usize,
}

impl<'a> Cursor<'a> {
    fn new(output: &TensorSpec, row_dims: &'a [i64], batch: &'a BatchOutput) -> Self {
        Self { row_dims, batch, size: output.datatype.size_bytes(), offset: 0 }
    }

    fn take(&mut self, spec: &ModelSpec, output: &TensorSpec, count: u32, lengths: &Lengths) -> Option<OutputTensor> {
        let mut own = Dims::from_slice(self.row_dims);
        for (axis, length) in output.padded_lengths(lengths) {
            if let (Some(dim), Some(length)) = (own.get_mut(axis), length) {
                *dim = i64::from(length).min(*dim);
            }
        }
        let elements = element_count(self.row_dims)?;
        let data = match self.size {
            Some(size) => {
                let rows = self.advance(count as usize * elements * size)?;
                if own.as_slice() == self.row_dims { rows } else { self.cut(&rows, &own, size) }
            }
            None => self.take_strings(count as usize * elements)?,
        };
        let mut shape = own;
        if spec.has_batch_axis() {
            shape.insert(0, i64::from(count));
        }
        Some(OutputTensor { shape, data })
    }

    fn advance(&mut self, len_bytes: usize) -> Option<Bytes> {
        let end = self.offset.checked_add(len_bytes).filter(|&end| end <= self.batch.data.len())?;
        let rows = self.batch.data.slice(self.offset..end);
        self.offset = end;
        Some(rows)
    }

    fn cut(&self, rows: &Bytes, own: &[i64], size: usize) -> Bytes {
        let row_bytes = self.row_dims.iter().map(|&dim| dim as usize).product::<usize>() * size;
        let mut cut = Vec::new();
        if row_bytes > 0 {
            for row in rows.chunks_exact(row_bytes) {
                cut_block(row, self.row_dims, &mut cut, own, size);
            }
        }
        Bytes::from(cut)
    }

    fn take_strings(&mut self, elements: usize) -> Option<Bytes> {
        let mut elements_left = Elements { rest: &self.batch.data[self.offset..] };
        let before = elements_left.rest.len();
        if elements > 0 {
            elements_left.nth(elements - 1)?;
        }
        let len_bytes = before - elements_left.rest.len();
        self.advance(len_bytes)
    }
}

#[cfg(test)]
mod tests {
    use smallvec::SmallVec;

    use super::*;
    use paternoster_model::{AxisLength, DataType, SymbolId};

    fn model(output: TensorSpec) -> ModelSpec {
        ModelSpec {
            name: "m".to_owned(),
            version: 1,
            max_batch_size: 8,
            inputs: vec![],
            outputs: vec![output],
            symbols: vec!["tokens".to_owned()],
            decoupled: false,
        }
    }

    fn part(count: u32) -> Part<'static> {
        Part { inputs: &[], rows: count, start: 0, count }
    }

    /// Scatters a batch to requests of one row with these lengths, padded to the longest.
    fn scattered(
        spec: &ModelSpec,
        counts: &[u32],
        own: &[Lengths],
        batch: &[BatchOutput],
    ) -> Result<Vec<Response>, String> {
        let parts: Vec<Part<'_>> = counts.iter().map(|count| part(*count)).collect();
        let axes = own.first().map_or(0, |lengths| lengths.len());
        let padded: Lengths = (0..axes).filter_map(|axis| own.iter().map(|lengths| lengths[axis]).max()).collect();
        let own: Vec<&Lengths> = own.iter().collect();
        scatter(spec, &parts, BatchLengths { padded: &padded, own: &own }, batch)
    }

    fn output(shape: &[i64], data: &[u8]) -> Vec<BatchOutput> {
        vec![BatchOutput { shape: Dims::from_slice(shape), data: Bytes::copy_from_slice(data) }]
    }

    #[test]
    fn each_part_gets_its_rows_in_order() {
        let spec = model(TensorSpec::new("y", DataType::Uint8, &[2]));
        let lengths = [Lengths::new(), Lengths::new()];
        let batch = output(&[3, 2], &[1, 2, 3, 4, 5, 6]);
        let responses = scattered(&spec, &[1, 2], &lengths, &batch).expect("three rows are there");
        assert_eq!(&responses[0].outputs[0].data[..], [1, 2]);
        assert_eq!(&responses[1].outputs[0].data[..], [3, 4, 5, 6]);
        assert_eq!(responses[1].outputs[0].shape.as_slice(), [2, 2]);
    }

    #[test]
    fn padded_outputs_are_cut_back_to_own_lengths() {
        let mut tensor = TensorSpec::new("y", DataType::Uint8, &[-1]);
        tensor.symbols = SmallVec::from_slice(&[Some(SymbolId(0))]);
        let lengths = [Lengths::from_slice(&[1]), Lengths::from_slice(&[3])];
        let batch = output(&[2, 3], &[1, 0, 0, 4, 5, 6]);
        let responses = scattered(&model(tensor), &[1, 1], &lengths, &batch).expect("two rows are there");
        assert_eq!(&responses[0].outputs[0].data[..], [1]);
        assert_eq!(responses[0].outputs[0].shape.as_slice(), [1, 1]);
        assert_eq!(&responses[1].outputs[0].data[..], [4, 5, 6]);
    }

    #[test]
    fn outputs_are_cut_back_to_lengths_that_follow_from_padded_ones() {
        let half = AxisLength::parse("(tokens + 1)//2", &|_| Some(SymbolId(0))).expect("an expression");
        let mut tensor = TensorSpec::new("y", DataType::Uint8, &[-1, 2]);
        tensor.computed = vec![(0, half)];
        let spec = model(tensor);
        let lengths = [Lengths::from_slice(&[2]), Lengths::from_slice(&[5]), Lengths::from_slice(&[4])];
        let batch = output(&[3, 3, 2], &[1, 2, 0, 0, 0, 0, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 0, 0]);
        let responses = scattered(&spec, &[1, 1, 1], &lengths, &batch).expect("three rows are there");
        let answers: Vec<_> = responses.iter().map(|response| &response.outputs[0]).collect();
        assert_eq!(answers.iter().map(|answer| answer.shape[1]).collect::<Vec<_>>(), [1, 3, 2]);
        assert_eq!((&answers[0].data[..], &answers[2].data[..]), (&[1, 2][..], &[9, 10, 11, 12][..]));
    }

    #[test]
    fn an_output_of_another_length_than_its_padded_axis_is_not_cut() {
        let mut tensor = TensorSpec::new("y", DataType::Uint8, &[-1]);
        tensor.symbols = SmallVec::from_slice(&[Some(SymbolId(0))]);
        let (spec, batch) = (model(tensor), output(&[2, 2], &[1, 2, 3, 4]));
        let lengths = [1, 3].map(|length| Lengths::from_slice(&[length]));
        let refused = scattered(&spec, &[1, 1], &lengths, &batch).expect_err("two is not three");
        assert_eq!(
            refused,
            "output 'y' of model 'm' has the dims [2], expected 3 on dimension 0 of requests that are padded to [3]"
        );
        let alike = [3, 3].map(|length| Lengths::from_slice(&[length]));
        let responses = scattered(&spec, &[1, 1], &alike, &batch).expect("nothing was padded");
        assert_eq!(&responses[1].outputs[0].data[..], [3, 4]);
    }

    #[test]
    fn an_output_without_the_batch_on_axis_0_is_refused_by_name() {
        let spec = model(TensorSpec::new("y", DataType::Uint8, &[2]));
        let batch = output(&[1, 2], &[1, 2]);
        let error = scattered(&spec, &[2], &[Lengths::new()], &batch).expect_err("one row is missing");
        assert!(error.contains("'y'") && error.contains("2 rows"), "{error}");
    }

    #[test]
    fn dims_that_are_not_those_declared_are_taken_as_they_are_unless_they_are_changed_on_the_way() {
        let lengths = [Lengths::new(), Lengths::new()];
        let plain = TensorSpec::new("y", DataType::Uint8, &[1]);
        let wide = output(&[2, 3], &[1, 2, 3, 4, 5, 6]);
        let responses = scattered(&model(plain.clone()), &[1, 1], &lengths, &wide).expect("two rows are there");
        assert_eq!(responses[1].outputs[0].shape.as_slice(), [1, 3]);
        assert_eq!(&responses[1].outputs[0].data[..], [4, 5, 6]);
        let reshaped = TensorSpec { reshape: Some(Dims::from_slice(&[1, 1])), ..plain.clone() };
        let padded = TensorSpec { symbols: SmallVec::from_slice(&[Some(SymbolId(0))]), ..plain };
        for tensor in [reshaped, padded] {
            let error = scattered(&model(tensor), &[1, 1], &lengths, &wide).expect_err("dims [1] were declared");
            assert!(error.contains("'y'") && error.contains("[2, 3]"), "{error}");
        }
    }

    #[test]
    fn strings_are_taken_row_by_row() {
        let spec = model(TensorSpec::new("y", DataType::Bytes, &[1]));
        let data = [1, 0, 0, 0, b'a', 2, 0, 0, 0, b'b', b'c'];
        let lengths = [Lengths::new(), Lengths::new()];
        let responses = scattered(&spec, &[1, 1], &lengths, &output(&[2, 1], &data)).expect("two rows");
        assert_eq!(&responses[1].outputs[0].data[..], [2, 0, 0, 0, b'b', b'c']);
    }
}
