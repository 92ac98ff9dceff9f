//! Programs of graphs whose tensors do not all have the batch as axis 0, presented as if they had.

use std::sync::Arc;

use bytes::Bytes;
use paternoster_device::{Buffer, BufferPool};
use paternoster_model::{DataType, Dims, IndexRange, TensorSpec, element_count};
use sha2::{Digest, Sha256};
use smallvec::SmallVec;

use super::{Batch, BatchInput, BatchOutput, EngineError, Execution, Program, TensorBatch};

/// Runs a graph with its batch where the graph has it: rows are moved there before a run, and back after it. It has no
/// form on a card, whose plans have the batch as axis 0.
pub struct BatchAxes {
    program: Arc<dyn Program>,
    inputs: Vec<Port>,
    outputs: Vec<Port>,
}

/// A tensor of the graph.
struct Port {
    name: String,
    datatype: DataType,
    batch: TensorBatch,
    /// Whether it has no dimensions in the graph.
    is_scalar: bool,
}

impl Port {
    fn new((tensor, batch): (&TensorSpec, &TensorBatch)) -> Self {
        let is_scalar = tensor.reshape.as_ref().is_some_and(|reshape| reshape.is_empty());
        Self { name: tensor.name.clone(), datatype: tensor.datatype, batch: *batch, is_scalar }
    }

    /// Returns the shape in the graph of a tensor whose batch is axis 0 in `shape`.
    fn in_graph(&self, shape: &[i64]) -> Dims {
        let mut dims = Dims::from_slice(shape);
        match self.batch {
            TensorBatch::Axis(0) => {}
            _ if self.is_scalar => dims.clear(),
            TensorBatch::Axis(axis) => dims[..=axis].rotate_left(1),
            TensorBatch::None => drop(dims.remove(0)),
        }
        dims
    }
}

impl BatchAxes {
    /// Wraps a program whose inputs and outputs have the batch where `inputs` and `outputs` say; the tensors have the
    /// dims of one row. An input without a batch must be the same in all rows of a run; an output without one needs
    /// runs of one row.
    pub fn new(
        program: Arc<dyn Program>,
        (inputs, input_batches): (&[TensorSpec], &[TensorBatch]),
        (outputs, output_batches): (&[TensorSpec], &[TensorBatch]),
    ) -> Self {
        Self {
            program,
            inputs: inputs.iter().zip(input_batches).map(Port::new).collect(),
            outputs: outputs.iter().zip(output_batches).map(Port::new).collect(),
        }
    }
}

/// An input as the graph takes it.
enum Moved<'a> {
    Dense { shape: Dims, data: MovedData<'a> },
    Strings { shape: Dims, elements: &'a [&'a [u8]] },
    Absent,
}

enum MovedData<'a> {
    InPlace(&'a [u8]),
    Copied(Buffer),
}

impl<'a> Moved<'a> {
    fn new(
        port: &Port,
        input: &'a BatchInput<'a>,
        rows: usize,
        buffers: &Arc<BufferPool>,
    ) -> Result<Self, EngineError> {
        Ok(match (input, port.batch) {
            (BatchInput::Absent, _) => Self::Absent,
            (BatchInput::Dense { shape, data }, TensorBatch::Axis(axis)) if axis > 0 => {
                let mut moved = BufferPool::take(buffers, data.len())?;
                move_axis(data, shape, (0, axis), moved.as_mut_slice());
                Self::Dense { shape: port.in_graph(shape), data: MovedData::Copied(moved) }
            }
            (BatchInput::Dense { shape, data }, batch) => {
                // Without a batch axis, all rows are the same.
                let len = if batch == TensorBatch::None { data.len() / rows.max(1) } else { data.len() };
                Self::Dense { shape: port.in_graph(shape), data: MovedData::InPlace(&data[..len]) }
            }
            (BatchInput::Strings { shape, elements }, TensorBatch::Axis(0)) => {
                Self::Strings { shape: port.in_graph(shape), elements }
            }
            (BatchInput::Strings { shape, elements }, TensorBatch::None) => {
                let len = elements.len() / rows.max(1);
                Self::Strings { shape: port.in_graph(shape), elements: &elements[..len] }
            }
            (BatchInput::Strings { .. }, TensorBatch::Axis(axis)) => {
                let name = &port.name;
                return Err(EngineError::new(format!(
                    "input '{name}' is BYTES and has its batch on axis {axis}, expected axis 0"
                )));
            }
        })
    }

    fn as_input(&self) -> BatchInput<'_> {
        match self {
            Self::Dense { shape, data: MovedData::InPlace(data) } => BatchInput::Dense { shape, data },
            Self::Dense { shape, data: MovedData::Copied(data) } => BatchInput::Dense { shape, data: data.as_slice() },
            Self::Strings { shape, elements } => BatchInput::Strings { shape, elements },
            Self::Absent => BatchInput::Absent,
        }
    }
}

/// Copies a tensor of this shape, whose rows are along axis `from`, to memory where they are along axis `to`. One of
/// both is 0.
fn move_axis(data: &[u8], shape: &[i64], (from, to): (usize, usize), moved: &mut [u8]) {
    let elements = |dims: &[i64]| dims.iter().map(|&dim| dim as usize).product::<usize>();
    let axis = from.max(to);
    let rows = shape[from] as usize;
    // Groups of contiguous elements along the axes before and after the rows.
    let (outer, all) = if from == 0 {
        (elements(&shape[1..=axis]), elements(shape))
    } else {
        (elements(&shape[..axis]), elements(shape))
    };
    if all == 0 {
        return;
    }
    let len = data.len() / (rows * outer);
    for row in 0..rows {
        for group in 0..outer {
            let (at, there) = (row * outer + group, group * rows + row);
            let (source, target) = if from == 0 { (at, there) } else { (there, at) };
            moved[target * len..][..len].copy_from_slice(&data[source * len..][..len]);
        }
    }
}

impl Port {
    /// Returns an output with its batch as axis 0.
    fn restore(&self, output: BatchOutput, rows: u32, buffers: &Arc<BufferPool>) -> Result<BatchOutput, EngineError> {
        let BatchOutput { shape, data } = output;
        let refused = |expected: &str| {
            let name = &self.name;
            Err(EngineError::new(format!("output '{name}' has the shape {:?}, expected {expected}", shape.as_slice())))
        };
        match self.batch {
            TensorBatch::Axis(0) => Ok(BatchOutput { shape, data }),
            TensorBatch::Axis(axis) => {
                if shape.get(axis) != Some(&i64::from(rows)) {
                    return refused(&format!("{rows} rows on axis {axis}"));
                }
                let bytes = self.datatype.size_bytes().zip(element_count(&shape)).map(|(size, count)| size * count);
                if bytes != Some(data.len()) {
                    return refused("elements of fixed size");
                }
                let mut restored = Dims::from_slice(&shape);
                restored[..=axis].rotate_right(1);
                let mut moved = BufferPool::take(buffers, data.len())?;
                move_axis(&data, &shape, (axis, 0), moved.as_mut_slice());
                let data = if data.is_empty() { Bytes::new() } else { moved.freeze() };
                Ok(BatchOutput { shape: restored, data })
            }
            TensorBatch::None if rows != 1 => refused("a batch, since the run has several rows"),
            TensorBatch::None => {
                let mut restored = Dims::from_slice(&[1]);
                // On the wire, a scalar has one dimension.
                if shape.is_empty() {
                    restored.push(1);
                }
                restored.extend_from_slice(&shape);
                Ok(BatchOutput { shape: restored, data })
            }
        }
    }
}

impl Program for BatchAxes {
    fn run(&self, batch: &Batch<'_>) -> Result<Execution, EngineError> {
        let (rows, buffers) = (batch.rows, batch.buffers);
        let inputs = self.inputs.iter().zip(batch.inputs);
        let inputs = inputs.map(|(port, input)| Moved::new(port, input, rows as usize, buffers));
        let inputs = inputs.collect::<Result<SmallVec<[Moved<'_>; 4]>, EngineError>>()?;
        let inputs: SmallVec<[BatchInput<'_>; 4]> = inputs.iter().map(Moved::as_input).collect();
        let shapes = self.outputs.iter().zip(batch.output_shapes);
        let shapes = shapes.map(|(port, shape)| shape.as_ref().map(|shape| port.in_graph(shape)));
        let output_shapes: SmallVec<[Option<Dims>; 4]> = shapes.collect();
        let mut execution = self.program.run(&Batch { inputs: &inputs, output_shapes: &output_shapes, ..*batch })?;
        let outputs = self.outputs.iter().zip(execution.outputs);
        execution.outputs =
            outputs.map(|(port, output)| port.restore(output, rows, buffers)).collect::<Result<_, _>>()?;
        Ok(execution)
    }

    fn is_steady(&self) -> bool {
        self.program.is_steady()
    }

    fn preferred_length(&self, length: u32) -> u32 {
        self.program.preferred_length(length)
    }

    fn refuse_length(&self, length: u32) {
        self.program.refuse_length(length);
    }

    fn index_ranges(&self) -> &[Option<IndexRange>] {
        self.program.index_ranges()
    }

    fn needs_elements(&self) -> bool {
        self.program.needs_elements()
    }

    fn uses_card(&self) -> bool {
        self.program.uses_card()
    }

    fn origin(&self) -> Option<[u8; 32]> {
        let mut hash = Sha256::new_with_prefix(self.program.origin()?);
        for port in self.inputs.iter().chain(&self.outputs) {
            hash.update(format!("{:?} {}", port.batch, port.is_scalar));
        }
        Some(hash.finalize().into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::StopSignal;

    /// Returns its inputs, and checks their shapes.
    struct Echo(Vec<Vec<i64>>);

    impl Program for Echo {
        fn run(&self, batch: &Batch<'_>) -> Result<Execution, EngineError> {
            let outputs = batch.inputs.iter().zip(&self.0).map(|(input, expected)| {
                let BatchInput::Dense { shape, data } = input else { panic!("expected numbers") };
                assert_eq!(shape, &expected.as_slice());
                BatchOutput { shape: Dims::from_slice(shape), data: Bytes::copy_from_slice(data) }
            });
            let outputs = outputs.collect();
            let shapes: Vec<_> = self.0.iter().map(|shape| Some(Dims::from_slice(shape))).collect();
            assert_eq!(batch.output_shapes, shapes, "outputs are expected as the graph has them");
            Ok(Execution { outputs, ..Execution::default() })
        }
    }

    fn spec(dims: &[i64], batch: TensorBatch) -> (TensorSpec, TensorBatch) {
        let tensor = TensorSpec::new("t", DataType::Uint8, dims);
        let reshape = (batch == TensorBatch::None && dims == [1]).then(Dims::new);
        (TensorSpec { reshape, ..tensor }, batch)
    }

    fn run(
        graph: &[&[i64]],
        tensors: Vec<(TensorSpec, TensorBatch)>,
        rows: u32,
        inputs: &[BatchInput<'_>],
    ) -> Result<Vec<BatchOutput>, EngineError> {
        let (specs, batches): (Vec<_>, Vec<_>) = tensors.into_iter().unzip();
        let program = Arc::new(Echo(graph.iter().map(|shape| shape.to_vec()).collect()));
        let axes = BatchAxes::new(program, (&specs, &batches), (&specs, &batches));
        let shapes = inputs.iter().map(|input| match input {
            BatchInput::Dense { shape, .. } => Some(Dims::from_slice(shape)),
            _ => None,
        });
        let shapes: Vec<_> = shapes.collect();
        let (buffers, stop) = (BufferPool::new(1 << 20), StopSignal::default());
        let steps = vec![0; rows as usize];
        let batch = Batch { rows, inputs, steps: &steps, output_shapes: &shapes, buffers: &buffers, stop: &stop };
        axes.run(&batch).map(|execution| execution.outputs)
    }

    #[test]
    fn rows_are_moved_to_the_axis_of_the_graph_and_back() {
        // Three rows of [2, 2] with the batch between both axes: row 0 is 0, 1, 2, 3.
        let data: Vec<u8> = (0..12).collect();
        let input = BatchInput::Dense { shape: &[3, 2, 2], data: &data };
        let outputs = run(&[&[2, 3, 2]], vec![spec(&[2, 2], TensorBatch::Axis(1))], 3, &[input]).expect("it runs");
        assert_eq!((outputs[0].shape.as_slice(), &outputs[0].data[..]), ([3, 2, 2].as_slice(), &data[..]));
        let mut moved = vec![0; 12];
        move_axis(&data, &[3, 2, 2], (0, 1), &mut moved);
        assert_eq!(moved, [0, 1, 4, 5, 8, 9, 2, 3, 6, 7, 10, 11]);
        move_axis(&data, &[3, 2, 2], (0, 2), &mut moved);
        assert_eq!(moved, [0, 4, 8, 1, 5, 9, 2, 6, 10, 3, 7, 11]);
        let empty = BatchInput::Dense { shape: &[3, 0, 2], data: &[] };
        let outputs = run(&[&[0, 3, 2]], vec![spec(&[0, 2], TensorBatch::Axis(1))], 3, &[empty]).expect("it runs");
        assert_eq!((outputs[0].shape.as_slice(), outputs[0].data.len()), ([3, 0, 2].as_slice(), 0));
    }

    #[test]
    fn a_graph_without_a_batch_gets_and_gives_one_row() {
        let inputs =
            [BatchInput::Dense { shape: &[1, 3], data: &[1, 2, 3] }, BatchInput::Dense { shape: &[1, 1], data: &[7] }];
        let tensors = vec![spec(&[3], TensorBatch::None), spec(&[1], TensorBatch::None)];
        let outputs = run(&[&[3], &[]], tensors, 1, &inputs).expect("it runs");
        assert_eq!(outputs[0].shape.as_slice(), [1, 3]);
        assert_eq!((outputs[1].shape.as_slice(), &outputs[1].data[..]), ([1, 1].as_slice(), &[7][..]));
    }

    #[test]
    fn several_rows_share_an_input_without_a_batch_but_no_output() {
        let inputs = [BatchInput::Dense { shape: &[2, 1], data: &[7, 7] }];
        let refusal = run(&[&[]], vec![spec(&[1], TensorBatch::None)], 2, &inputs).expect_err("whose row is it?");
        let expected = "output 't' has the shape [], expected a batch, since the run has several rows";
        assert_eq!(refusal, EngineError::new(expected.to_owned()));
    }
}
