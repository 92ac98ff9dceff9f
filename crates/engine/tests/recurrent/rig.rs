//! Runs the segments of an opened model by hand.

use std::collections::HashMap;

use paternoster_device::BufferPool;
use paternoster_engine::{
    Batch, BatchInput, BatchOutput, Program, StopSignal,
    onnxruntime::{OnnxProgram, Runtime},
};
use paternoster_model::{DataType, Dims, ModelSpec, TensorSpec};
use paternoster_onnx::{
    Model, Port, Signature,
    recurrent::{Opened, open},
    segments::{OpenedSegment, SegmentKind, SegmentSource, SegmentTensor},
};
use paternoster_testing::runtime::runtime;

use crate::exports::{Exported, Noise};

/// Allowed difference of any element.
const TOLERANCE: f64 = 1e-5;
const LENGTHS: [i64; 5] = [7, 1, 12, 4, 9];

type Tensors = HashMap<String, BatchOutput>;

/// A compiled graph with its tensors.
struct Compiled {
    program: OnnxProgram,
    inputs: Vec<Port>,
    outputs: Vec<Port>,
}

impl Compiled {
    fn new(runtime: &Runtime, model: &Model) -> Self {
        let bytes = model.to_bytes();
        let signature = Signature::from_bytes("graph", &bytes).expect("a model");
        let specs = |ports: &[Port]| {
            let spec = |port: &Port| TensorSpec::new(&port.name, port.datatype.expect("a datatype"), &[-1]);
            ports.iter().map(spec).collect::<Vec<_>>()
        };
        let spec = ModelSpec {
            name: "graph".to_owned(),
            version: 1,
            max_batch_size: 8,
            inputs: specs(&signature.inputs),
            outputs: specs(&signature.outputs),
            symbols: vec![],
            decoupled: false,
        };
        let program = OnnxProgram::compile(runtime, &bytes, &spec).expect("the graph compiles");
        Self { program, inputs: signature.inputs, outputs: signature.outputs }
    }

    fn run(&self, rows: usize, tensors: &Tensors) -> Tensors {
        let buffers = BufferPool::new(1 << 20);
        let aligned: Vec<_> = self
            .inputs
            .iter()
            .map(|port| {
                let tensor = &tensors[&port.name];
                let mut buffer = BufferPool::take(&buffers, tensor.data.len()).expect("there is memory");
                buffer.as_mut_slice().copy_from_slice(&tensor.data);
                (tensor.shape.clone(), buffer.freeze())
            })
            .collect();
        let inputs: Vec<_> = aligned.iter().map(|(shape, data)| BatchInput::Dense { shape, data }).collect();
        let output_shapes = vec![None; self.outputs.len()];
        let stop = StopSignal::default();
        let rows = u32::try_from(rows).expect("few rows");
        let batch =
            Batch { rows, inputs: &inputs, steps: &[], output_shapes: &output_shapes, buffers: &buffers, stop: &stop };
        let made = self.program.run(&batch).expect("the program runs").outputs;
        self.outputs.iter().map(|port| port.name.clone()).zip(made).collect()
    }
}

fn tensor(shape: &[i64], data: Vec<u8>) -> BatchOutput {
    BatchOutput { shape: shape.into(), data: data.into() }
}

/// Returns the first axis of a tensor cut into its entries, in order.
fn entries(tensor: &BatchOutput) -> Vec<BatchOutput> {
    let count = tensor.shape[0] as usize;
    let each = tensor.data.len() / count.max(1);
    let shape: Dims = tensor.shape[1..].into();
    (0..count)
        .map(|at| BatchOutput { shape: shape.clone(), data: tensor.data[at * each..][..each].to_vec().into() })
        .collect()
}

/// Joins tensors of one shape along a new first axis.
fn joined(parts: &[BatchOutput]) -> BatchOutput {
    let mut shape = vec![parts.len() as i64];
    shape.extend_from_slice(&parts[0].shape);
    assert!(parts.iter().all(|part| part.shape == parts[0].shape));
    tensor(&shape, parts.iter().flat_map(|part| part.data.to_vec()).collect())
}

/// The tensors of one request, without the batch.
struct Request {
    inputs: Tensors,
    emitted: Vec<Tensors>,
    length: usize,
}

impl Request {
    fn tensor(&self, of: &SegmentTensor) -> &BatchOutput {
        match of {
            SegmentTensor::Input(name) => &self.inputs[name],
            SegmentTensor::Emitted { segment, name } => &self.emitted[*segment][name],
        }
    }
}

fn run_stage(segment: &OpenedSegment, compiled: &Compiled, request: &mut Request) {
    let inputs = segment.inputs.iter().map(|input| match &input.source {
        SegmentSource::Whole(of) => (input.name.clone(), joined(&[request.tensor(of).clone()])),
        other => panic!("a stage reads {other:?}"),
    });
    let made = compiled.run(1, &inputs.collect());
    let emitted = segment.emits.iter().map(|emit| (emit.name.clone(), entries(&made[&emit.output]).remove(0)));
    request.emitted.push(emitted.collect());
}

/// Runs a chain in runs of `most` steps of all requests that have some left.
fn run_chain(segment: &OpenedSegment, reverse: bool, compiled: &Compiled, requests: &mut [Request], most: usize) {
    let port = |name: &str| compiled.inputs.iter().find(|port| port.name == name).expect("an input");
    let zeros = |name: &str| {
        let port = port(name);
        let shape: Vec<i64> =
            port.dims.as_ref().expect("dims")[1..].iter().map(paternoster_onnx::PortDim::size).collect();
        let count = shape.iter().product::<i64>() as usize * port.datatype.and_then(DataType::size_bytes).unwrap_or(4);
        tensor(&shape, vec![0; count])
    };
    let states = segment.inputs.iter().filter_map(|input| match &input.source {
        SegmentSource::State(output) => Some((output.clone(), zeros(&input.name))),
        _ => None,
    });
    let states: Tensors = states.collect();
    let mut states: Vec<Tensors> = requests.iter().map(|_| states.clone()).collect();
    let mut by_steps: Vec<HashMap<String, Vec<BatchOutput>>> = requests.iter().map(|_| HashMap::new()).collect();
    let mut done = vec![0; requests.len()];
    loop {
        let aboard: Vec<usize> = (0..requests.len()).filter(|&at| done[at] < requests[at].length).collect();
        if aboard.is_empty() {
            break;
        }
        let lengths: Vec<usize> = aboard.iter().map(|&at| most.min(requests[at].length - done[at])).collect();
        let longest = lengths.iter().copied().max().expect("some are aboard");
        let mut given = Tensors::new();
        for input in &segment.inputs {
            let value = match &input.source {
                SegmentSource::Lengths => {
                    let lengths = lengths.iter().flat_map(|&length| (length as i32).to_le_bytes());
                    tensor(&[aboard.len() as i64], lengths.collect())
                }
                SegmentSource::State(output) => {
                    joined(&aboard.iter().map(|&at| states[at][output].clone()).collect::<Vec<_>>())
                }
                SegmentSource::Whole(of) => {
                    joined(&aboard.iter().map(|&at| requests[at].tensor(of).clone()).collect::<Vec<_>>())
                }
                SegmentSource::Steps(of) => {
                    let rows = aboard.iter().zip(&lengths).map(|(&at, &length)| {
                        let mut steps = entries(requests[at].tensor(of));
                        assert_eq!(steps.len(), requests[at].length, "{}", input.name);
                        if reverse {
                            steps.reverse();
                        }
                        let mut steps = steps[done[at]..][..length].to_vec();
                        let zero = BatchOutput { data: vec![0; steps[0].data.len()].into(), ..steps[0].clone() };
                        steps.resize(longest, zero);
                        joined(&steps)
                    });
                    joined(&rows.collect::<Vec<_>>())
                }
                SegmentSource::Length(_)
                | SegmentSource::Fed { .. }
                | SegmentSource::Grown(_)
                | SegmentSource::GrownLength => panic!("'{}' is an input of a loop", input.name),
            };
            given.insert(input.name.clone(), value);
        }
        let made = compiled.run(aboard.len(), &given);
        let made: HashMap<String, Vec<BatchOutput>> =
            made.into_iter().map(|(name, tensor)| (name, entries(&tensor))).collect();
        for (row, (&at, &length)) in aboard.iter().zip(&lengths).enumerate() {
            for (output, state) in &mut states[at] {
                *state = made[output][row].clone();
            }
            for emit in segment.emits.iter().filter(|emit| emit.is_by_steps) {
                let steps = entries(&made[&emit.output][row]);
                assert_eq!(steps.len(), longest, "{}", emit.name);
                by_steps[at].entry(emit.name.clone()).or_default().extend_from_slice(&steps[..length]);
            }
            done[at] += length;
        }
    }
    for (at, request) in requests.iter_mut().enumerate() {
        let emitted = segment.emits.iter().map(|emit| {
            let value = match by_steps[at].remove(&emit.name) {
                Some(mut steps) => {
                    if reverse {
                        steps.reverse();
                    }
                    joined(&steps)
                }
                None => states[at][&emit.output].clone(),
            };
            (emit.name.clone(), value)
        });
        request.emitted.push(emitted.collect());
    }
}

fn requests(exported: &Exported) -> Vec<Request> {
    let mut noise = Noise::new(5);
    let request = |&length: &i64| {
        let inputs = exported.inputs.iter().map(|(name, datatype, dims)| {
            let shape: Vec<i64> = dims.iter().map(|&dim| if dim < 0 { length } else { dim }).collect();
            let count = shape.iter().product::<i64>();
            let data = (0..count).flat_map(|_| match datatype {
                DataType::Int64 => i64::from(noise.below(11)).to_le_bytes().to_vec(),
                _ => noise.real().to_le_bytes().to_vec(),
            });
            (name.clone(), tensor(&shape, data.collect()))
        });
        Request { inputs: inputs.collect(), emitted: Vec::new(), length: length as usize }
    };
    LENGTHS.iter().map(request).collect()
}

fn kinds(opened: &Opened) -> Vec<&'static str> {
    let kind = |segment: &OpenedSegment| match segment.kind {
        SegmentKind::Stage => "stage",
        SegmentKind::Chain { reverse: false } => "chain",
        SegmentKind::Chain { reverse: true } => "reverse",
        SegmentKind::Decode => "decode",
    };
    opened.segments.iter().map(kind).collect()
}

/// Checks that a model opens into these segments, which compute what the model does.
pub(crate) fn check(exported: &Exported, expected: &[&str]) {
    let opened = open(&exported.model).unwrap_or_else(|reason| panic!("{}: {reason}", exported.name));
    assert_eq!(kinds(&opened), expected, "{}: {opened:#?}", exported.name);
    check_against(exported, &exported.model);
}

/// Checks that an opened model computes what another one does as a whole.
pub(crate) fn check_against(exported: &Exported, whole: &Model) {
    if let Some(worst) = difference(exported, whole) {
        assert!(worst <= TOLERANCE, "{}: differs by {worst}", exported.name);
    }
}

/// Returns the largest difference between an opened model and another one as a whole.
pub(crate) fn difference(exported: &Exported, whole: &Model) -> Option<f64> {
    let runtime = runtime()?;
    let opened = open(&exported.model).expect("it can be opened");
    let compiled: Vec<Compiled> =
        opened.segments.iter().map(|segment| Compiled::new(runtime, &segment.model)).collect();
    let whole = Compiled::new(runtime, whole);
    let mut worst = 0.0_f64;
    for most in [1, 3, usize::MAX] {
        let mut requests = requests(exported);
        for (segment, compiled) in opened.segments.iter().zip(&compiled) {
            match segment.kind {
                SegmentKind::Chain { reverse } => run_chain(segment, reverse, compiled, &mut requests, most),
                SegmentKind::Stage => requests.iter_mut().for_each(|request| run_stage(segment, compiled, request)),
                SegmentKind::Decode => panic!("a recurrent layer has no loop"),
            }
        }
        for request in &requests {
            let inputs = request.inputs.iter().map(|(name, value)| (name.clone(), joined(std::slice::from_ref(value))));
            let expected = whole.run(1, &inputs.collect());
            for (name, expected) in expected {
                let got: Vec<&BatchOutput> = request.emitted.iter().filter_map(|emitted| emitted.get(&name)).collect();
                assert_eq!(got.len(), 1, "{}: '{name}' is emitted once", exported.name);
                let got = joined(&[got[0].clone()]);
                assert_eq!(got.shape, expected.shape, "{}: '{name}'", exported.name);
                let (expected, got) = (numbers(&expected), numbers(&got));
                assert!(expected.iter().any(|number| *number != 0.0), "{}: '{name}' has content", exported.name);
                let distance = expected.iter().zip(&got).map(|(left, right)| (left - right).abs());
                worst = worst.max(distance.fold(0.0, f64::max));
            }
        }
    }
    Some(worst)
}

fn numbers(tensor: &BatchOutput) -> Vec<f64> {
    tensor.data.as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes).into()).collect()
}
