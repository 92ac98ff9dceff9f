//! Networks cut into stages compute the same as the whole networks, stage after stage on ONNX Runtime.
//!
//! Needs the library, from `ORT_DYLIB_PATH` or where `make` puts it. Without it each test prints a note and passes.

use std::collections::HashMap;

use paternoster_device::BufferPool;
use paternoster_engine::{
    Batch, BatchInput, BatchOutput, Program, StopSignal,
    onnxruntime::{OnnxProgram, Runtime},
};
use paternoster_model::{DataType, ModelSpec, TensorSpec};
use paternoster_onnx::{
    Model, PortDim, Signature,
    cut::{Cuts, StageGraph, StagePort, cut, legal_cuts},
    weights::Checkpoint,
    zoo::{self, Width},
};
use paternoster_testing::runtime::runtime;

/// Allowed difference, as a fraction of a tensor's root mean square.
const TOLERANCE: f64 = 1e-4;

/// A compiled graph and the names of its tensors.
struct Compiled {
    program: OnnxProgram,
    inputs: Vec<String>,
    outputs: Vec<String>,
}

type Tensors = HashMap<String, BatchOutput>;

impl Compiled {
    fn new(runtime: &Runtime, model: &Model, inputs: &[(String, DataType)], outputs: &[(String, DataType)]) -> Self {
        let specs = |ports: &[(String, DataType)]| {
            ports.iter().map(|(name, datatype)| TensorSpec::new(name, *datatype, &[-1])).collect::<Vec<_>>()
        };
        let names = |ports: &[(String, DataType)]| ports.iter().map(|(name, _)| name.clone()).collect();
        let spec = ModelSpec {
            name: "stage".to_owned(),
            version: 1,
            max_batch_size: 8,
            inputs: specs(inputs),
            outputs: specs(outputs),
            symbols: vec![],
            decoupled: false,
        };
        let program = OnnxProgram::compile(runtime, &model.to_bytes(), &spec).expect("the graph compiles");
        Self { program, inputs: names(inputs), outputs: names(outputs) }
    }

    fn whole(runtime: &Runtime, model: &Model) -> Self {
        let signature = Signature::from_bytes("whole", &model.to_bytes()).expect("a model");
        let ports = |ports: Vec<paternoster_onnx::Port>| {
            ports.into_iter().map(|port| (port.name, port.datatype.expect("a datatype"))).collect::<Vec<_>>()
        };
        Self::new(runtime, model, &ports(signature.inputs), &ports(signature.outputs))
    }

    fn stage(runtime: &Runtime, stage: &StageGraph) -> Self {
        let ports =
            |ports: &[StagePort]| ports.iter().map(|port| (port.name.clone(), port.datatype)).collect::<Vec<_>>();
        Self::new(runtime, &stage.model, &ports(&stage.inputs), &ports(&stage.outputs))
    }

    /// Runs on the tensors that it reads, and adds its outputs.
    fn run(&self, rows: u32, tensors: &mut Tensors) {
        // Engines expect inputs aligned as in batches.
        let buffers = BufferPool::new(1 << 20);
        let aligned: Vec<_> = self
            .inputs
            .iter()
            .map(|name| {
                let tensor = &tensors[name];
                let mut buffer = BufferPool::take(&buffers, tensor.data.len()).expect("there is memory");
                buffer.as_mut_slice().copy_from_slice(&tensor.data);
                (tensor.shape.clone(), buffer.freeze())
            })
            .collect();
        let inputs: Vec<_> = aligned.iter().map(|(shape, data)| BatchInput::Dense { shape, data }).collect();
        let output_shapes = vec![None; self.outputs.len()];
        let stop = StopSignal::default();
        let batch =
            Batch { rows, inputs: &inputs, steps: &[], output_shapes: &output_shapes, buffers: &buffers, stop: &stop };
        let made = self.program.run(&batch).expect("the program runs").outputs;
        tensors.extend(self.outputs.iter().cloned().zip(made));
    }
}

/// A repeatable sequence of pseudo-random numbers.
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> u32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as u32
    }
}

fn images(rows: usize, side: usize) -> Tensors {
    let mut noise = Noise(rows as u64);
    let count = rows * 3 * side * side;
    let pixels = (0..count).flat_map(|_| ((noise.next() % 2000) as f32 / 1000.0 - 1.0).to_le_bytes());
    let shape = [rows as i64, 3, side as i64, side as i64].as_slice().into();
    Tensors::from([("image".to_owned(), BatchOutput { shape, data: pixels.collect::<Vec<u8>>().into() })])
}

/// Creates texts of different tokens. Every second text is two tokens shorter.
fn texts(rows: usize, tokens: usize) -> Tensors {
    let mut noise = Noise((rows * tokens) as u64);
    let shape: paternoster_model::Dims = [rows as i64, tokens as i64].as_slice().into();
    let ids = (0..rows * tokens).flat_map(|_| i64::from(noise.next() % 30_000).to_le_bytes());
    let kept = |at: usize| i64::from((at / tokens).is_multiple_of(2) || at % tokens + 2 < tokens);
    let mask = (0..rows * tokens).flat_map(|at| kept(at).to_le_bytes());
    let tensor = |data: Vec<u8>| BatchOutput { shape: shape.clone(), data: data.into() };
    Tensors::from([
        ("input_ids".to_owned(), tensor(ids.collect())),
        ("attention_mask".to_owned(), tensor(mask.collect())),
    ])
}

fn numbers(tensor: &BatchOutput) -> Vec<f64> {
    tensor.data.as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes).into()).collect()
}

fn distance(left: &[f64], right: &[f64]) -> f64 {
    left.iter().zip(right).map(|(left, right)| (left - right).abs()).fold(0.0, f64::max)
}

fn compare(name: &str, rows: usize, expected: &BatchOutput, got: &BatchOutput) {
    assert_eq!(got.shape, expected.shape, "{name}");
    let (expected, got) = (numbers(expected), numbers(got));
    let square = expected.iter().map(|x| x * x).sum::<f64>() / expected.len() as f64;
    let scale = square.sqrt();
    assert!(scale > 0.0 && scale.is_finite(), "{name}: the network gives something");
    let worst = distance(&expected, &got) / scale;
    assert!(worst <= TOLERANCE, "{name}: stages differ from the whole by {worst}");
    let each = expected.len() / rows;
    for row in 1..rows {
        let apart = distance(&expected[..each], &expected[row * each..][..each]) / scale;
        assert!(apart >= 100.0 * TOLERANCE, "{name}: rows 0 and {row} are only {apart} apart");
    }
}

/// Checks that every boundary can be passed row by row, and that the chain computes the same as the whole model.
fn chained_stages_equal_the_whole(model: &Model, batches: &[(usize, Tensors)]) {
    chains_equal_the_whole(model, batches, &[2, 3, 4, 6]);
}

fn chains_equal_the_whole(model: &Model, batches: &[(usize, Tensors)], numbers_of_parts: &[usize]) {
    let Some(runtime) = runtime() else { return };
    let whole = Compiled::whole(runtime, model);
    let expected: Vec<Tensors> = batches
        .iter()
        .map(|(rows, inputs)| {
            let mut tensors = inputs.clone();
            whole.run(*rows as u32, &mut tensors);
            tensors
        })
        .collect();
    for &parts in numbers_of_parts {
        let stages = cut(model, Cuts::Parts(parts), &[]).expect("the network can be cut");
        assert_eq!(stages.len(), parts);
        let shares: f64 = stages.iter().map(|stage| stage.cost).sum();
        assert!((shares - 1.0).abs() < 1e-9, "{shares}");
        let longest = stages.iter().map(|stage| stage.cost).fold(0.0, f64::max);
        assert!(longest < 2.0 / parts as f64, "{parts} stages, the longest takes {longest} of the time");
        for port in stages.iter().flat_map(|stage| stage.outputs.iter().chain(&stage.inputs)) {
            let first = port.dims.as_ref().and_then(|dims| dims.first());
            assert_eq!(first, Some(&PortDim::Symbol("batch".to_owned())), "{}", port.name);
        }
        let compiled: Vec<Compiled> = stages.iter().map(|stage| Compiled::stage(runtime, stage)).collect();
        for ((rows, inputs), expected) in batches.iter().zip(&expected) {
            let mut tensors = inputs.clone();
            for (stage, made) in stages.iter().zip(&compiled) {
                made.run(*rows as u32, &mut tensors);
                for port in &stage.outputs {
                    assert_eq!(tensors[&port.name].shape[0], *rows as i64, "{} of {parts}", port.name);
                }
            }
            whole.outputs.iter().for_each(|name| compare(name, *rows, &expected[name], &tensors[name]));
        }
    }
}

fn image_batches(side: usize) -> Vec<(usize, Tensors)> {
    [1, 3].map(|rows| (rows, images(rows, side))).into()
}

fn text_batches() -> Vec<(usize, Tensors)> {
    [(1, 7), (3, 7), (1, 12), (3, 12)].map(|(rows, tokens)| (rows, texts(rows, tokens))).into()
}

#[test]
fn stages_of_resnet50_equal_the_whole() {
    chained_stages_equal_the_whole(&zoo::resnet50(Width::QUARTER).expect("sound"), &image_batches(224));
}

#[test]
#[ignore = "one network of many: make nightly"]
fn stages_of_vgg19_equal_the_whole() {
    chained_stages_equal_the_whole(&zoo::vgg19(Width::QUARTER).expect("sound"), &image_batches(224));
}

#[test]
#[ignore = "one network of many: make nightly"]
fn stages_of_mobilenet_equal_the_whole() {
    chained_stages_equal_the_whole(&zoo::mobilenet(Width::QUARTER).expect("sound"), &image_batches(224));
}

#[test]
fn stages_of_unet_equal_the_whole() {
    chains_equal_the_whole(&zoo::unet(Width::QUARTER).expect("sound"), &image_batches(256), &[4]);
}

#[test]
#[ignore = "every number of stages: make nightly"]
fn any_number_of_stages_of_unet_equals_the_whole() {
    chained_stages_equal_the_whole(&zoo::unet(Width::QUARTER).expect("sound"), &image_batches(256));
}

#[test]
#[ignore = "one network of many: make nightly"]
fn stages_of_linknet_equal_the_whole() {
    chained_stages_equal_the_whole(&zoo::linknet(Width::QUARTER).expect("sound"), &image_batches(256));
}

#[test]
#[ignore = "one network of many: make nightly"]
fn stages_of_bert_base_equal_the_whole() {
    chained_stages_equal_the_whole(&zoo::bert_base(Width::QUARTER).expect("sound"), &text_batches());
}

#[test]
fn stages_of_minilm_equal_the_whole() {
    stages_of_minilm(&[3]);
}

#[test]
#[ignore = "every number of stages: make nightly"]
fn any_number_of_stages_of_minilm_equals_the_whole() {
    stages_of_minilm(&[2, 3, 4, 6]);
}

fn stages_of_minilm(numbers_of_parts: &[usize]) {
    let checkpoint = paternoster_testing::cache().join("minilm/model.safetensors");
    if !checkpoint.exists() {
        eprintln!("skipped: no checkpoint of MiniLM; run `make demo`");
        return;
    }
    let checkpoint = Checkpoint::read(&checkpoint).expect("a checkpoint");
    chains_equal_the_whole(&zoo::minilm(checkpoint).expect("sound"), &text_batches(), numbers_of_parts);
}

#[test]
fn stages_cut_at_every_third_legal_tensor_equal_the_whole() {
    let Some(runtime) = runtime() else { return };
    let model = zoo::bert_base(Width::QUARTER).expect("sound");
    let names: Vec<String> = legal_cuts(&model).into_iter().map(|cut| cut.tensor).step_by(3).collect();
    assert!(names.len() > 20, "{names:?}");
    let stages = cut(&model, Cuts::At(&names), &[]).expect("each is legal");
    assert_eq!(stages.len(), names.len() + 1);
    let inputs = texts(3, 9);
    let (mut expected, mut got) = (inputs.clone(), inputs);
    let whole = Compiled::whole(runtime, &model);
    whole.run(3, &mut expected);
    stages.iter().for_each(|stage| Compiled::stage(runtime, stage).run(3, &mut got));
    whole.outputs.iter().for_each(|name| compare(name, 3, &expected[name], &got[name]));
}
