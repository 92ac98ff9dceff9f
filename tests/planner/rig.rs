//! Runs a graph on the card and on the CPU, and compares the answers.

use std::{
    rc::Rc,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use paternoster_device::{
    BufferId, BufferPool, Device, DeviceError, Operation, StreamId,
    cuda::{CapturedGraph, Compiler, CompletionListener, Cuda, CudaOptions, CudaWork},
};
use paternoster_engine::{
    Batch, BatchInput, Precision, Program, ProgramPort, RunParameters, StopSignal,
    cuda::{LoadedPlan, Plan, Prepared, Workspace},
    onnxruntime::OnnxProgram,
};
use paternoster_model::{DataType, TensorSpec};
use paternoster_onnx::Model;
use paternoster_testing::{fake_cuda::is_on_card, runtime::runtime};

/// Allowed difference from the CPU's answer, relative to the largest number of a row.
pub(crate) const TOLERANCE: f32 = 1e-4;
const TOLERANCE_ON_CARD: f32 = 1e-2;
pub(crate) const STREAM: StreamId = StreamId(0);
/// Time limit of one launch: longer than any takes on a card, and on the stand-in, even in the long run.
const PATIENCE_ON_CARD: Duration = Duration::from_secs(10);
const PATIENCE_ON_STAND_IN: Duration = Duration::from_secs(600);

/// Prints the loss of the card; everything else is known by tickets.
struct Watcher;

impl CompletionListener for Watcher {
    fn ended(&self, _operation: Operation) {}

    fn lost(&self, reason: &str) {
        eprintln!("the card is lost: {reason}");
    }
}

pub(crate) fn card() -> Cuda {
    card_with(&Compiler::default())
}

pub(crate) fn card_with(compiler: &Compiler) -> Cuda {
    let options = CudaOptions { ordinal: 0, streams: 1, depth: 4, parameter_bytes: 1 << 10, memory_bytes: None };
    Cuda::open(&options, compiler, Arc::new(Watcher)).expect("there is a card")
}

/// Launches a graph with these words of parameters, the first of which is the number of live rows, and waits until it
/// has run.
pub(crate) fn run_graph(cuda: &mut Cuda, graph: &Rc<CapturedGraph>, words: &[i32]) {
    let parameters = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
    cuda.launch(STREAM, &[], CudaWork { graph: Rc::clone(graph), parameters }).expect("the launch is right");
    let ticket = cuda.record(STREAM).expect("there is such a stream");
    let patience = if is_on_card() { PATIENCE_ON_CARD } else { PATIENCE_ON_STAND_IN };
    let deadline = Instant::now() + patience;
    while !cuda.is_complete(ticket) {
        cuda.check_health().unwrap_or_else(|error| panic!("the launch failed: {error}"));
        assert!(Instant::now() < deadline, "the launch has not ended after {patience:?}");
        thread::yield_now();
    }
}

/// A graph and its ports, with the dims of one row.
pub(crate) struct Case {
    pub model: Model,
    pub inputs: Vec<TensorSpec>,
    pub outputs: Vec<TensorSpec>,
    /// For each input, the exclusive limit of its whole numbers, which begin at 0.
    pub most: Vec<i64>,
    /// Whether axis 0 of the graph's tensors is the batch.
    pub has_batch_axis: bool,
}

/// The elements of a tensor for some rows.
pub(crate) type Elements = Vec<u8>;

impl Case {
    pub(crate) fn plan(&self) -> Plan {
        self.plan_in(Precision::Ieee)
    }

    pub(crate) fn plan_in(&self, precision: Precision) -> Plan {
        Plan::new(&self.model, &self.inputs, &self.outputs, self.has_batch_axis, precision)
            .unwrap_or_else(|error| panic!("{error}"))
    }

    fn shape_of(&self, spec: &TensorSpec, rows: usize) -> Vec<i64> {
        self.has_batch_axis.then_some(rows as i64).into_iter().chain(spec.dims.iter().copied()).collect()
    }

    /// Returns numbers that differ from each other and from those of other seeds.
    pub(crate) fn elements(&self, input: usize, rows: usize, seed: usize) -> Elements {
        let spec = &self.inputs[input];
        let count = rows * count_of(spec);
        let number = |place: usize| ((place * 7919 + seed * 104_729 + input * 1299) % 10_007) as f32 / 5003.5 - 1.0;
        let whole = |place: usize| (place * 7919 + seed * 104_729 + input * 31) as i64 % self.most[input];
        (0..count)
            .flat_map(|place| match spec.datatype {
                DataType::Fp32 => number(place).to_le_bytes().to_vec(),
                DataType::Int64 => whole(place).to_le_bytes().to_vec(),
                DataType::Int32 => (whole(place) as i32).to_le_bytes().to_vec(),
                DataType::Bool => vec![(whole(place) % 2) as u8],
                other => panic!("no elements of {other}"),
            })
            .collect()
    }

    /// Returns ONNX Runtime's answer, by output.
    fn expected(&self, program: &OnnxProgram, rows: usize, inputs: &[Elements]) -> Vec<Elements> {
        let shapes: Vec<Vec<i64>> = self.inputs.iter().map(|spec| self.shape_of(spec, rows)).collect();
        answer(program, rows, &shapes, inputs, self.outputs.len())
    }

    /// Runs 1, 3 and 8 rows in graphs for 1, 4 and 8, each graph twice with different values, and compares with ONNX
    /// Runtime. The padding rows hold NaN and ids beyond every table.
    pub(crate) fn check(&self) {
        self.check_batches(&[(1, 1), (3, 4), (1, 4), (8, 8), (3, 8)], &[1, 2], Precision::Ieee, TOLERANCE);
    }

    /// Same as [`Self::check`], but each graph runs once and as full as possible: for networks that are slow on the
    /// stand-in.
    pub(crate) fn check_once(&self) {
        self.check_batches(&[(1, 1), (3, 4), (8, 8)], &[1], Precision::Ieee, TOLERANCE);
    }

    /// Runs 3 rows in a graph for 4 in another precision. The tolerance is a fraction of a row's largest number.
    pub(crate) fn check_in(&self, precision: Precision, tolerance: f32) {
        self.check_batches(&[(3, 4)], &[1], precision, tolerance);
    }

    /// Runs batches, each given as its rows and its graph's rows, with values of these seeds.
    fn check_batches(&self, batches: &[(usize, u32)], seeds: &[usize], precision: Precision, tolerance: f32) {
        let Some(runtime) = runtime() else { return };
        let (inputs, outputs): (Vec<ProgramPort<'_>>, Vec<ProgramPort<'_>>) =
            (self.inputs.iter().map(Into::into).collect(), self.outputs.iter().map(Into::into).collect());
        let program = OnnxProgram::compile_ports(runtime, "model", &self.model.to_bytes(), &inputs, &outputs);
        let program = program.unwrap_or_else(|error| panic!("{error}"));
        let mut on = OnCard::with(self, 8, precision);
        for &(rows, bucket) in if self.has_batch_axis { batches } else { &batches[..1] } {
            let graph = on.graph(bucket);
            for &seed in seeds {
                let inputs: Vec<Elements> =
                    (0..self.inputs.len()).map(|input| self.elements(input, rows, seed + 10 * rows)).collect();
                let expected = self.expected(&program, rows, &inputs);
                let answers = on.run(&graph, rows, bucket, &inputs);
                assert_eq!(on.faults(rows), vec![0; rows], "no row has an index that its table lacks");
                for (spec, (answer, expected)) in self.outputs.iter().zip(answers.iter().zip(&expected)) {
                    let what = format!("{} of {rows} rows in {bucket}, values {seed}, {precision}", spec.name);
                    compare(&what, spec.datatype, answer, expected, tolerance);
                }
            }
        }
    }
}

pub(crate) fn count_of(spec: &TensorSpec) -> usize {
    spec.dims.iter().product::<i64>() as usize
}

pub(crate) fn row_bytes(spec: &TensorSpec) -> usize {
    count_of(spec) * spec.datatype.size_bytes().expect("it has a size")
}

pub(crate) fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks(4).map(|four| f32::from_le_bytes(four.try_into().expect("four bytes"))).collect()
}

pub(crate) fn compare(what: &str, datatype: DataType, answer: &[u8], expected: &[u8], tolerance: f32) {
    assert_eq!(answer.len(), expected.len(), "{what}");
    if datatype != DataType::Fp32 {
        return assert_eq!(answer, expected, "{what}");
    }
    let (answer, expected) = (floats(answer), floats(expected));
    let largest = expected.iter().fold(1e-3_f32, |largest, number| largest.max(number.abs()));
    // A card sums in other orders, and by other algorithms. How far that takes it is reported, and bounded.
    let tolerance = if is_on_card() { tolerance.max(TOLERANCE_ON_CARD) } else { tolerance };
    let mut deviation = 0_f32;
    for (place, (answer, expected)) in answer.iter().zip(&expected).enumerate() {
        let difference = (answer - expected).abs() / largest;
        assert!(
            difference <= tolerance || answer.to_bits() == expected.to_bits(),
            "{what}: element {place} is {answer}, expected {expected}"
        );
        deviation = deviation.max(difference);
    }
    if is_on_card() {
        println!("deviation {deviation:.1e} {what}");
    }
}

/// A plan on a card, with the buffers that its graphs copy from and to.
pub(crate) struct OnCard<'c> {
    case: &'c Case,
    loaded: LoadedPlan,
    workspace: Workspace,
    prepared: Vec<Prepared>,
    inputs: Vec<BufferId>,
    outputs: Vec<BufferId>,
    faults: BufferId,
    rows: u32,
    cuda: Cuda,
}

impl<'c> OnCard<'c> {
    pub(crate) fn new(case: &'c Case, rows: u32) -> Self {
        Self::with(case, rows, Precision::Ieee)
    }

    pub(crate) fn with(case: &'c Case, rows: u32, precision: Precision) -> Self {
        let mut cuda = card();
        let loaded = case.plan_in(precision).load(&mut cuda).unwrap_or_else(|error| panic!("{error}"));
        let workspace = loaded.reserve(&mut cuda, STREAM, rows).expect("there is room");
        let mut buffers = |specs: &[TensorSpec]| -> Vec<BufferId> {
            specs.iter().map(|spec| cuda.allocate(rows, row_bytes(spec)).expect("there is room")).collect()
        };
        let (inputs, outputs) = (buffers(&case.inputs), buffers(&case.outputs));
        let faults = cuda.allocate(rows, 4).expect("there is room");
        Self { case, loaded, workspace, prepared: Vec::new(), inputs, outputs, faults, rows, cuda }
    }

    /// Prepares launches of up to `rows` rows.
    pub(crate) fn prepare(&mut self, rows: u32) -> Result<Prepared, DeviceError> {
        self.loaded.prepare(&mut self.cuda, &self.workspace, rows)
    }

    /// Captures a graph for `bucket` rows, which copies its inputs from buffers and its outputs to others.
    pub(crate) fn graph(&mut self, bucket: u32) -> CudaWork {
        let prepared = self.prepare(bucket).unwrap_or_else(|error| panic!("{error}"));
        let Self { case, workspace, inputs, outputs, faults, cuda, .. } = self;
        let at = |buffers: &[BufferId]| -> Vec<_> {
            buffers.iter().map(|&buffer| cuda.address(buffer).expect("it is there")).collect()
        };
        let (from, to, seen) = (at(inputs), at(outputs), cuda.address(*faults).expect("it is there"));
        let rows = bucket as usize;
        let graph = cuda.capture(STREAM, size_of::<i32>(), |capture| {
            for (index, spec) in case.inputs.iter().enumerate() {
                assert_eq!(workspace.input(index).to_bits() % 256, 0, "inputs are aligned");
                capture.copy(from[index], workspace.input(index), rows * row_bytes(spec))?;
            }
            prepared.issue(capture, RunParameters { live: capture.parameters(), lengths: &[] })?;
            for (index, spec) in case.outputs.iter().enumerate() {
                capture.copy(workspace.output(index), to[index], rows * row_bytes(spec))?;
            }
            workspace.faults().map_or(Ok(()), |faults| capture.copy(faults, seen, rows * 4))
        });
        let graph = Rc::new(graph.unwrap_or_else(|error| panic!("{error}")));
        self.prepared.push(prepared);
        CudaWork { graph, parameters: Box::default() }
    }

    /// Launches a graph with these rows, followed by rows of poison. Returns the outputs of the live rows.
    pub(crate) fn run(&mut self, graph: &CudaWork, rows: usize, bucket: u32, inputs: &[Elements]) -> Vec<Elements> {
        for ((spec, &buffer), data) in self.case.inputs.iter().zip(&self.inputs).zip(inputs) {
            let poison: Vec<u8> = match spec.datatype {
                DataType::Fp32 => f32::NAN.to_le_bytes().to_vec(),
                DataType::Bool => vec![1],
                _ => i64::MAX.to_le_bytes().to_vec(),
            };
            let behind = poison.iter().cycle().copied().take((self.rows as usize - rows) * row_bytes(spec));
            let all: Vec<u8> = data.iter().copied().chain(behind).collect();
            self.cuda.upload(buffer, 0, &all).expect("the buffer is there");
        }
        assert!(rows <= bucket as usize);
        run_graph(&mut self.cuda, &graph.graph, &[rows as i32]);
        let outputs = self.case.outputs.iter().zip(&self.outputs).map(|(spec, &buffer)| {
            let mut data = vec![0; rows * row_bytes(spec)];
            self.cuda.download(buffer, 0, &mut data).expect("the buffer is there");
            data
        });
        outputs.collect()
    }

    /// Returns the faults of the last launch's rows.
    pub(crate) fn faults(&mut self, rows: usize) -> Vec<u32> {
        let mut data = vec![0; rows * 4];
        self.cuda.download(self.faults, 0, &mut data).expect("the buffer is there");
        data.chunks(4).map(|four| u32::from_ne_bytes(four.try_into().expect("four bytes"))).collect()
    }
}

/// Returns ONNX Runtime's answer to a batch, by output.
pub(crate) fn answer(
    program: &OnnxProgram,
    rows: usize,
    shapes: &[Vec<i64>],
    inputs: &[Elements],
    outputs: usize,
) -> Vec<Elements> {
    let inputs = shapes.iter().zip(inputs).map(|(shape, data)| BatchInput::Dense { shape, data });
    let inputs: Vec<BatchInput<'_>> = inputs.collect();
    let (steps, output_shapes) = (vec![0; rows], vec![None; outputs]);
    let (buffers, stop) = (BufferPool::new(0), StopSignal::default());
    let batch = Batch {
        rows: rows as u32,
        inputs: &inputs,
        steps: &steps,
        output_shapes: &output_shapes,
        buffers: &buffers,
        stop: &stop,
    };
    let execution = program.run(&batch).unwrap_or_else(|error| panic!("ONNX Runtime: {error}"));
    execution.outputs.iter().map(|output| output.data.to_vec()).collect()
}
