//! Batches whose rows have lengths of their own, at every size that a card is prepared for when it loads a network: all
//! buckets of rows, and all lengths of its padded axes, which share the memory of one stream. Each row is compared with
//! ONNX Runtime on that row alone at exactly its lengths.
//!
//! What lies behind the lengths of a row is poisoned as far as graphs allow: with other tokens that exist, with numbers
//! of 1e30 in state, and with 0 in masks. Rows behind those of the batch hold NaN and ids that no table has.

use std::{collections::BTreeMap, fmt::Debug, rc::Rc, sync::Arc};

use paternoster_config::lengths::CellLengths;
use paternoster_device::{
    BufferId, Device,
    cuda::{Address, Cuda, CudaWork},
};
use paternoster_engine::{
    CardProgram, CardWeights, CardWorkspace, Precision, Program, ProgramPort, RunParameters, RunSize,
    cuda::{OnCard, Plan},
    onnxruntime::OnnxProgram,
};
use paternoster_model::{DataType, Lengths, SymbolId, TensorSpec};
use paternoster_onnx::{Model, Port, PortDim, Signature};
use paternoster_testing::runtime::runtime;

use crate::{
    networks::specs_of,
    rig::{Elements, STREAM, TOLERANCE, answer, card, compare, row_bytes, run_graph},
};

/// The buckets of a model with at most four rows in a batch.
const FEW: [u32; 3] = [1, 2, 4];

/// The buckets of a model with at most 64 rows in a batch.
pub(crate) const ALL: [u32; 7] = [1, 2, 4, 8, 16, 32, 64];

/// What state holds behind its length.
const GARBAGE: f32 = 1e30;

/// What masks of the length of a row show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Masks {
    /// The first token, and most others.
    Holes,
    Nothing,
}

/// A network, and the tokens that it knows.
pub(crate) struct Network {
    model: Model,
    signature: Signature,
    /// The axes that vary, by name.
    axes: Vec<String>,
    tokens: i64,
    buckets: &'static [u32],
    /// The lengths that it is prepared for; `None` for those where the configuration lists none.
    lengths: Option<Vec<Lengths>>,
    masks: Masks,
    /// What FP32 inputs hold behind a row's length.
    garbage: f32,
    precision: Precision,
    tolerance: f32,
}

/// Lengths by the names of axes.
type Named<'a> = Vec<(&'a str, i64)>;

impl Network {
    pub(crate) fn new<E: Debug>(model: Result<Model, E>, tokens: i64) -> Self {
        let model = model.expect("the graph is sound");
        let signature = Signature::from_bytes("network", &model.to_bytes()).expect("it can be read");
        let mut axes: Vec<String> = Vec::new();
        for dim in signature.inputs.iter().flat_map(|input| &input.dims.as_deref().unwrap_or_default()[1..]) {
            match dim {
                PortDim::Symbol(name) if !axes.contains(name) => axes.push(name.clone()),
                _ => {}
            }
        }
        let (precision, tolerance) = (Precision::Ieee, TOLERANCE);
        Self {
            model,
            signature,
            axes,
            tokens,
            buckets: &FEW,
            lengths: None,
            masks: Masks::Holes,
            garbage: GARBAGE,
            precision,
            tolerance,
        }
    }

    /// Prepares it for these numbers of rows, in ascending order.
    pub(crate) fn in_buckets(self, buckets: &'static [u32]) -> Self {
        Self { buckets, ..self }
    }

    /// Prepares it for these lengths, each with one number for each of its axes.
    pub(crate) fn at(self, lengths: &[&[u32]]) -> Self {
        Self { lengths: Some(lengths.iter().map(|lengths| Lengths::from_slice(lengths)).collect()), ..self }
    }

    pub(crate) fn masked(self, masks: Masks) -> Self {
        Self { masks, ..self }
    }

    /// Fills FP32 inputs with NaN behind a row's length, for networks that must not read it.
    pub(crate) fn poisoned(self) -> Self {
        Self { garbage: f32::NAN, ..self }
    }

    /// Plans it in another precision. The tolerance is a fraction of a row's largest number.
    pub(crate) fn planned_in(self, precision: Precision, tolerance: f32) -> Self {
        Self { precision, tolerance, ..self }
    }

    fn named(&self, lengths: &[u32]) -> Named<'_> {
        self.axes.iter().map(String::as_str).zip(lengths.iter().map(|&length| i64::from(length))).collect()
    }

    /// The lengths that cards are prepared for where the configuration lists none.
    fn prepared(&self) -> Vec<Lengths> {
        if let Some(lengths) = &self.lengths {
            return lengths.clone();
        }
        let lengths = CellLengths::of(&BTreeMap::new(), &[&self.axes]).expect("nothing is listed");
        lengths.cells[0].combinations().expect("there are few")
    }

    fn inputs(&self, lengths: &[u32]) -> Vec<TensorSpec> {
        let mut inputs = specs_of(&self.signature.inputs, &self.named(lengths));
        for (input, port) in inputs.iter_mut().zip(&self.signature.inputs) {
            let symbol = |dim: &PortDim| match dim {
                PortDim::Symbol(name) => self.axes.iter().position(|axis| axis == name).map(|at| SymbolId(at as u16)),
                _ => None,
            };
            input.symbols = port.dims.as_deref().unwrap_or_default()[1..].iter().map(symbol).collect();
        }
        inputs
    }

    fn outputs(&self, lengths: &[u32]) -> Vec<TensorSpec> {
        specs_of(&self.signature.outputs, &self.named(lengths))
    }

    fn host(&self) -> Option<OnnxProgram> {
        let varying = |ports: &[Port]| {
            let open: Named<'_> = self.axes.iter().map(|axis| (axis.as_str(), -1)).collect();
            specs_of(ports, &open)
        };
        let (inputs, outputs) = (varying(&self.signature.inputs), varying(&self.signature.outputs));
        let (inputs, outputs): (Vec<ProgramPort<'_>>, Vec<ProgramPort<'_>>) =
            (inputs.iter().map(Into::into).collect(), outputs.iter().map(Into::into).collect());
        let program = OnnxProgram::compile_ports(runtime()?, "network", &self.model.to_bytes(), &inputs, &outputs);
        Some(program.unwrap_or_else(|error| panic!("{error}")))
    }

    /// The inputs of a row with these lengths. Inputs that say how long others are say so.
    fn row(&self, lengths: &[u32], seed: usize) -> Vec<Elements> {
        let specs = self.inputs(lengths).into_iter().enumerate();
        let elements = specs.map(|(number, spec)| {
            let axis = self.axes.iter().position(|axis| spec.name == format!("{axis}_length"));
            let count = spec.dims.iter().product::<i64>() as usize;
            let drawn = |place: usize| place * 7919 + seed * 104_729 + number * 1299;
            let of_place = |place: usize| match (axis, spec.datatype) {
                (Some(axis), _) => i64::from(lengths[axis]).to_le_bytes().to_vec(),
                _ if spec.name.contains("mask") => {
                    let is_shown = self.masks == Masks::Holes && (place == 0 || drawn(place) % 4 != 1);
                    i64::from(is_shown).to_le_bytes().to_vec()
                }
                (_, DataType::Int64) => (drawn(place) as i64 % self.tokens).to_le_bytes().to_vec(),
                (_, DataType::Fp32) => ((drawn(place) % 10_007) as f32 / 5003.5 - 1.0).to_le_bytes().to_vec(),
                (_, other) => panic!("no elements of {other}"),
            };
            (0..count).flat_map(of_place).collect()
        });
        elements.collect()
    }

    /// A tensor of a row of these lengths among those of a batch, with poison behind it.
    fn lengthened(&self, number: usize, row: &[u8], own: &[u32], prepared: &[u32]) -> Elements {
        let (spec, longer) = (&self.inputs(own)[number], &self.inputs(prepared)[number]);
        let poison = match spec.datatype {
            DataType::Fp32 => self.garbage.to_le_bytes().to_vec(),
            _ if spec.name.contains("mask") => 0_i64.to_le_bytes().to_vec(),
            _ => (self.tokens - 1).to_le_bytes().to_vec(),
        };
        let behind = row_bytes(longer) - row.len();
        assert!(spec.dims.get(1..) == longer.dims.get(1..), "only the first axis of {} varies", spec.name);
        row.iter().copied().chain(poison.iter().copied().cycle().take(behind)).collect()
    }

    /// What ONNX Runtime answers to a row.
    fn expected(&self, program: &OnnxProgram, lengths: &[u32], row: &[Elements]) -> Vec<Elements> {
        let shape = |spec: &TensorSpec| [1].into_iter().chain(spec.dims.iter().copied()).collect();
        let shapes: Vec<Vec<i64>> = self.inputs(lengths).iter().map(shape).collect();
        answer(program, 1, &shapes, row, self.signature.outputs.len())
    }

    /// Loads the network as the server does, and runs it at all sizes.
    pub(crate) fn check(&self) {
        let Some(host) = self.host().map(Arc::new) else { return };
        let prepared = self.prepared();
        let plan = |lengths: &Lengths| {
            let (inputs, outputs) = (self.inputs(lengths), self.outputs(lengths));
            let plan = Plan::new(&self.model, &inputs, &outputs, true, self.precision);
            (lengths.clone(), plan.unwrap_or_else(|error| panic!("{:?}: {error}", lengths.as_slice())))
        };
        let program = OnCard::new(Arc::clone(&host) as Arc<dyn Program>, prepared.iter().map(plan).collect());
        let mut on = AllSizes::new(self, &program);
        // The longest first: shorter ones find in their memory what longer ones left.
        for lengths in (0..prepared.len()).rev() {
            for (step, &bucket) in self.buckets.iter().enumerate() {
                let least = step.checked_sub(1).map_or(1, |before| self.buckets[before] + 1);
                let counts = if prepared.len() == 1 { vec![least, bucket] } else { vec![[least, bucket][lengths % 2]] };
                for rows in counts {
                    self.check_batch(&host, &mut on, &prepared, RunSize { rows: bucket, lengths }, rows as usize);
                }
            }
        }
    }

    fn check_batch(&self, host: &OnnxProgram, on: &mut AllSizes<'_>, prepared: &[Lengths], size: RunSize, rows: usize) {
        let longest = &prepared[size.lengths];
        let seed = size.lengths * 31 + size.rows as usize * 7 + rows;
        // One row is longer than the next shorter plan allows, another as long as may be, and some are short.
        let own_lengths: Vec<Lengths> = (0..rows)
            .map(|row| {
                let own = longest.iter().enumerate().map(|(axis, &most)| {
                    let before = prepared.iter().map(|lengths| lengths[axis]).filter(|&length| length < most).max();
                    match (row + size.lengths) % 3 {
                        0 => before.unwrap_or(0) + 1,
                        1 => most,
                        // The first step of a request has no past yet.
                        _ if self.axes[axis] == "past" => 0,
                        _ => 1 + ((seed + row) as u32).wrapping_mul(2_654_435_761) % most,
                    }
                });
                own.collect()
            })
            .collect();
        let inputs: Vec<Vec<Elements>> =
            own_lengths.iter().enumerate().map(|(row, own)| self.row(own, seed * 10 + row)).collect();
        let answers = on.run(size, longest, &own_lengths, &inputs);
        assert_eq!(on.faults(rows), vec![0; rows], "no row has an index that its table lacks");
        for (row, (own, inputs)) in own_lengths.iter().zip(&inputs).enumerate() {
            let expected = self.expected(host, own, inputs);
            for ((spec, answer), expected) in self.outputs(own).iter().zip(&answers[row]).zip(&expected) {
                let (name, bucket, precision) = (&spec.name, size.rows, self.precision);
                let what =
                    format!("{name} of row {row} with {own:?} of {rows} at {longest:?} in {bucket}, {precision}");
                compare(&what, spec.datatype, &answer[..expected.len()], expected, self.tolerance);
            }
        }
    }
}

/// A network on a card, with graphs of all sizes, and buffers that they copy from and to.
struct AllSizes<'n> {
    network: &'n Network,
    cuda: Cuda,
    graphs: Vec<(RunSize, CudaWork)>,
    inputs: Vec<BufferId>,
    outputs: Vec<BufferId>,
    faults: BufferId,
    _workspace: Box<dyn CardWorkspace>,
    _weights: Box<dyn CardWeights>,
}

impl<'n> AllSizes<'n> {
    fn new(network: &'n Network, program: &OnCard) -> Self {
        let mut cuda = card();
        let most = network.buckets[network.buckets.len() - 1];
        let weights = program.load(&mut cuda).unwrap_or_else(|error| panic!("{error}"));
        let mut workspace = weights.reserve(&mut cuda, STREAM, most).expect("there is room");
        let all = program.lengths();
        let longest: Lengths = (0..network.axes.len())
            .map(|axis| all.iter().map(|lengths| lengths[axis]).max().unwrap_or_default())
            .collect();
        let mut buffers = |specs: &[TensorSpec]| -> Vec<BufferId> {
            specs.iter().map(|spec| cuda.allocate(most, row_bytes(spec)).expect("there is room")).collect()
        };
        let (inputs, outputs) = (buffers(&network.inputs(&longest)), buffers(&network.outputs(&longest)));
        let faults = cuda.allocate(most, 4).expect("there is room");
        let at = |cuda: &mut Cuda, buffers: &[BufferId]| -> Vec<_> {
            buffers.iter().map(|&buffer| cuda.address(buffer).expect("it is there")).collect()
        };
        let (from, to) = (at(&mut cuda, &inputs), at(&mut cuda, &outputs));
        let seen = cuda.address(faults).expect("it is there");
        let mut graphs = Vec::new();
        for (number, lengths) in all.iter().enumerate() {
            let (takes, gives) = (network.inputs(lengths), network.outputs(lengths));
            for &rows in network.buckets {
                let size = RunSize { rows, lengths: number };
                workspace.prepare(&mut cuda, size).unwrap_or_else(|error| panic!("{error}"));
                let bytes = |spec: &TensorSpec| rows as usize * row_bytes(spec);
                // The number of live rows, and then the rows' own lengths along each axis.
                let words = 1 + network.axes.len() * rows as usize;
                let graph = cuda.capture(STREAM, words * size_of::<i32>(), |capture| {
                    for (index, spec) in takes.iter().enumerate() {
                        capture.copy(from[index], workspace.input(number, index), bytes(spec))?;
                    }
                    let live = capture.parameters();
                    let first = |axis: usize| live.offset((1 + axis * rows as usize) * size_of::<i32>());
                    let own_lengths: Vec<Address> = (0..network.axes.len()).map(first).collect();
                    workspace.issue(capture, size, RunParameters { live, lengths: &own_lengths })?;
                    for (index, spec) in gives.iter().enumerate() {
                        capture.copy(workspace.output(number, index), to[index], bytes(spec))?;
                    }
                    workspace.faults(number).map_or(Ok(()), |faults| capture.copy(faults, seen, rows as usize * 4))
                });
                let graph = Rc::new(graph.unwrap_or_else(|error| panic!("{error}")));
                graphs.push((size, CudaWork { graph, parameters: Box::default() }));
            }
        }
        Self { network, cuda, graphs, inputs, outputs, faults, _workspace: workspace, _weights: weights }
    }

    /// Runs rows of these lengths in the graph of a size; by row and output.
    fn run(&mut self, size: RunSize, at: &[u32], own: &[Lengths], rows: &[Vec<Elements>]) -> Vec<Vec<Elements>> {
        for (number, spec) in self.network.inputs(at).iter().enumerate() {
            let live = rows.iter().zip(own);
            let live = live.flat_map(|(row, own)| self.network.lengthened(number, &row[number], own, at));
            let nothing = match spec.datatype {
                DataType::Fp32 => f32::NAN.to_le_bytes().to_vec(),
                _ => i64::MAX.to_le_bytes().to_vec(),
            };
            let behind = (size.rows as usize - rows.len()) * row_bytes(spec);
            let all: Vec<u8> = live.chain(nothing.iter().copied().cycle().take(behind)).collect();
            self.cuda.upload(self.inputs[number], 0, &all).expect("the buffer is there");
        }
        let graph = self.graphs.iter().find(|(own, _)| *own == size).map(|(_, work)| Rc::clone(&work.graph));
        let mut words = vec![rows.len() as i32];
        for axis in 0..self.network.axes.len() {
            let lengths = own.iter().map(|own| own[axis] as i32);
            // Those of padding rows mean nothing.
            words.extend(lengths.chain(vec![i32::MAX; size.rows as usize - rows.len()]));
        }
        run_graph(&mut self.cuda, &graph.expect("all sizes have graphs"), &words);
        let specs = self.network.outputs(at);
        let cuda = &mut self.cuda;
        let outputs: Vec<Vec<u8>> = specs
            .iter()
            .zip(&self.outputs)
            .map(|(spec, &buffer)| {
                let mut data = vec![0; rows.len() * row_bytes(spec)];
                cuda.download(buffer, 0, &mut data).expect("the buffer is there");
                data
            })
            .collect();
        let of_row = |row: usize| {
            let own = specs.iter().zip(&outputs);
            own.map(|(spec, data)| data[row * row_bytes(spec)..][..row_bytes(spec)].to_vec()).collect()
        };
        (0..rows.len()).map(of_row).collect()
    }

    /// The faults of the rows of the last run.
    fn faults(&mut self, rows: usize) -> Vec<u32> {
        let mut data = vec![0; rows * 4];
        self.cuda.download(self.faults, 0, &mut data).expect("the buffer is there");
        data.chunks(4).map(|four| u32::from_ne_bytes(four.try_into().expect("four bytes"))).collect()
    }
}
