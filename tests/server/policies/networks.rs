//! The networks at a quarter of their width, on small images and short texts, with requests and their answers from the
//! whole network.

use std::{path::PathBuf, sync::Arc};

use paternoster_device::BufferPool;
use paternoster_engine::{
    Batch, BatchInput, BatchOutput, Program, StopSignal,
    onnxruntime::{OnnxProgram, Runtime},
};
use paternoster_model::{DataType, InputTensor, ModelSpec, TensorSpec};
use paternoster_onnx::{
    Model, Port, Signature, pb,
    weights::Checkpoint,
    zoo::{self, Width},
};

use crate::policies::rig::{Exchange, Expected, Noise, tensor, values};

/// Maximum difference, as a fraction of an output's root mean square.
const TOLERANCE: f32 = 1e-4;
/// Any two rows differ somewhere by at least this many times the tolerance.
const DISTINCT: f32 = 100.0;
/// Number of tokens of a text.
const TOKENS: std::ops::Range<u32> = 4..21;
/// Maximum rows of a batch.
const MAX_BATCH: u32 = 8;

/// A network under test.
pub(crate) struct Network {
    pub name: &'static str,
    pub model: Model,
    kind: Kind,
}

#[derive(Clone, Copy)]
enum Kind {
    /// Square images with this side.
    Images(usize),
    /// Texts, which are padded to share a batch.
    Texts,
}

pub(crate) fn resnet50() -> Network {
    images("resnet50", zoo::resnet50(Width::QUARTER).expect("sound"), 64)
}

pub(crate) fn unet() -> Network {
    images("unet", zoo::unet(Width::QUARTER).expect("sound"), 32)
}

pub(crate) fn linknet() -> Network {
    images("linknet", zoo::linknet(Width::QUARTER).expect("sound"), 32)
}

/// Returns VGG-19. Its first dense layer expects an image of 7 × 7 from the convolutions; here it keeps only the
/// weights for the smaller image.
pub(crate) fn vgg19() -> Network {
    let (side, channels) = (64, 128);
    let mut model = zoo::vgg19(Width::QUARTER).expect("sound");
    let graph = model.0.graph.as_mut().expect("a graph");
    let weight = graph.initializer.iter_mut().find(|weight| weight.name() == "fc6.weight").expect("a dense layer");
    let (features, kept) = (weight.dims[1] as usize, channels * (side / 32) * (side / 32));
    let columns = weight.raw_data().chunks(features * 4).flat_map(|row| &row[..kept * 4]).copied();
    weight.raw_data = Some(columns.collect::<Vec<u8>>().into());
    weight.dims[1] = kept as i64;
    images("vgg19", model, side)
}

pub(crate) fn bert() -> Network {
    Network { name: "bert-base", model: zoo::bert_base(Width::part(12)).expect("sound"), kind: Kind::Texts }
}

/// Returns MiniLM; `None` if its weights are not available.
pub(crate) fn minilm() -> Option<Network> {
    let checkpoint = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(".cache/minilm/model.safetensors");
    if !checkpoint.exists() {
        eprintln!("skipped: no checkpoint of MiniLM; run `make demo`");
        return None;
    }
    let checkpoint = Checkpoint::read(&checkpoint).expect("a checkpoint");
    Some(Network { name: "minilm", model: zoo::minilm(checkpoint).expect("sound"), kind: Kind::Texts })
}

/// Declares images and masks with another side, which convolutions accept.
fn images(name: &'static str, mut model: Model, side: usize) -> Network {
    use pb::{tensor_shape_proto::dimension::Value::DimValue, type_proto::Value::TensorType};
    let graph = model.0.graph.as_mut().expect("a graph");
    for port in graph.input.iter_mut().chain(&mut graph.output) {
        let Some(TensorType(tensor)) = port.r#type.as_mut().and_then(|port| port.value.as_mut()) else { continue };
        let dims = tensor.shape.iter_mut().flat_map(|shape| &mut shape.dim);
        dims.skip(2).for_each(|dim| dim.value = Some(DimValue(side as i64)));
    }
    Network { name, model, kind: Kind::Images(side) }
}

impl Network {
    /// Returns whether texts of different lengths share a batch.
    pub(crate) fn is_padded(&self) -> bool {
        matches!(self.kind, Kind::Texts)
    }

    /// Returns a whole configuration with this section on batching and stages.
    pub(crate) fn yaml(&self, batching: &str) -> String {
        let inputs = match self.kind {
            Kind::Images(_) => "",
            Kind::Texts => {
                "inputs:\n\
                 - { name: input_ids, dtype: INT64, dims: [tokens], pad: { axis: tokens, value: 0 } }\n\
                 - { name: attention_mask, dtype: INT64, dims: [tokens], pad: { axis: tokens, value: 0 } }\n"
            }
        };
        format!("max_batch_size: {MAX_BATCH}\n{inputs}{batching}")
    }

    /// Returns requests with the whole network's answer to each alone. All rows are distinct.
    pub(crate) fn exchanges(&self, runtime: &Runtime, count: usize) -> Arc<Vec<Exchange>> {
        let whole = Whole::compile(runtime, &self.model);
        let mut noise = Noise::new(count as u64);
        let mut exchanges: Vec<Exchange> = (0..count)
            .map(|_| {
                let rows = noise.below(3) + 1;
                let inputs = match self.kind {
                    Kind::Images(side) => vec![image_rows(&mut noise, rows, side)],
                    Kind::Texts => text_rows(&mut noise, rows),
                };
                let expected = whole.run(rows, &inputs).into_iter().map(|output| {
                    let values = values(&output.data);
                    Expected { shape: output.shape, values, tolerance: 0.0 }
                });
                let expected = Some(expected.collect());
                Exchange { rows, inputs, expected }
            })
            .collect();
        for output in 0..whole.outputs {
            set_tolerance(&mut exchanges, output);
            assert_distinct(self.name, &exchanges, output);
        }
        Arc::new(exchanges)
    }
}

fn image_rows(noise: &mut Noise, rows: u32, side: usize) -> InputTensor {
    let mut pixels = Vec::with_capacity(rows as usize * 3 * side * side);
    for _ in 0..rows * 3 {
        let brightness = noise.unit();
        pixels.extend((0..side * side).map(|_| (brightness + noise.unit()).to_le_bytes()));
    }
    tensor(&[i64::from(rows), 3, side as i64, side as i64], &pixels)
}

/// Returns texts of one length. The last tokens of some are masked.
fn text_rows(noise: &mut Noise, rows: u32) -> Vec<InputTensor> {
    let tokens = TOKENS.start + noise.below(TOKENS.end - TOKENS.start);
    let shape = [i64::from(rows), i64::from(tokens)];
    let ids: Vec<[u8; 8]> = (0..rows * tokens).map(|_| i64::from(noise.below(30_000)).to_le_bytes()).collect();
    let kept: Vec<u32> = (0..rows).map(|_| tokens - noise.below(3)).collect();
    let mask = kept.iter().flat_map(|&kept| (0..tokens).map(move |at| i64::from(at < kept).to_le_bytes()));
    let mask: Vec<[u8; 8]> = mask.collect();
    vec![tensor(&shape, &ids), tensor(&shape, &mask)]
}

/// A whole network, compiled.
struct Whole {
    program: OnnxProgram,
    outputs: usize,
}

impl Whole {
    fn compile(runtime: &Runtime, model: &Model) -> Self {
        let bytes = model.to_bytes();
        let signature = Signature::from_bytes("whole", &bytes).expect("a model");
        let specs = |ports: Vec<Port>| -> Vec<TensorSpec> {
            let datatype = |port: &Port| port.datatype.unwrap_or(DataType::Fp32);
            ports.iter().map(|port| TensorSpec::new(&port.name, datatype(port), &[-1])).collect()
        };
        let spec = ModelSpec {
            name: "whole".to_owned(),
            version: 1,
            max_batch_size: MAX_BATCH,
            inputs: specs(signature.inputs),
            outputs: specs(signature.outputs),
            symbols: Vec::new(),
            decoupled: false,
        };
        let program = OnnxProgram::compile(runtime, &bytes, &spec).expect("the network compiles");
        Self { program, outputs: spec.outputs.len() }
    }

    fn run(&self, rows: u32, inputs: &[InputTensor]) -> Vec<BatchOutput> {
        let buffers = BufferPool::new(1 << 20);
        // Engines expect inputs at aligned addresses.
        let aligned: Vec<_> = inputs
            .iter()
            .map(|input| {
                let mut buffer = BufferPool::take(&buffers, input.data.len()).expect("there is memory");
                buffer.as_mut_slice().copy_from_slice(&input.data);
                (&input.shape, buffer.freeze())
            })
            .collect();
        let inputs: Vec<_> = aligned.iter().map(|(shape, data)| BatchInput::Dense { shape, data }).collect();
        let output_shapes = vec![None; self.outputs];
        let stop = StopSignal::default();
        let batch =
            Batch { rows, inputs: &inputs, steps: &[], output_shapes: &output_shapes, buffers: &buffers, stop: &stop };
        self.program.run(&batch).expect("the network runs").outputs
    }
}

fn expected(exchange: &Exchange, output: usize) -> &Expected {
    &exchange.expected.as_ref().expect("nothing fails")[output]
}

/// Sets the tolerance by the root mean square over all requests.
fn set_tolerance(exchanges: &mut [Exchange], output: usize) {
    let all = || exchanges.iter().flat_map(|exchange| &expected(exchange, output).values);
    let square = all().map(|value| f64::from(*value).powi(2)).sum::<f64>() / all().count() as f64;
    let scale = square.sqrt() as f32;
    assert!(scale > 0.0 && scale.is_finite(), "the network gives something");
    for exchange in exchanges {
        exchange.expected.as_mut().expect("nothing fails")[output].tolerance = scale * TOLERANCE;
    }
}

/// Checks that rows are distinct, so that a row in another's place would show.
fn assert_distinct(network: &str, exchanges: &[Exchange], output: usize) {
    let rows: Vec<&[f32]> = exchanges
        .iter()
        .flat_map(|exchange| {
            let values = &expected(exchange, output).values;
            values.chunks(values.len() / exchange.rows as usize)
        })
        .collect();
    let apart = expected(&exchanges[0], output).tolerance * DISTINCT;
    for (number, row) in rows.iter().enumerate() {
        for (before, other) in rows[..number].iter().enumerate().filter(|(_, other)| other.len() == row.len()) {
            let differ = row.iter().zip(*other).any(|(one, two)| (one - two).abs() >= apart);
            assert!(differ, "{network}: rows {before} and {number} of output {output} are nearly the same");
        }
    }
}
