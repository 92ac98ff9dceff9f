//! The built-in tables, generated in code by documented rooflines.
//!
//! `npu` is LazyBatching's Table I: a systolic array of 128 × 128 at 0.7 GHz, 360 GB/s, 100 cycles to memory, 16-bit numbers, with
//! cycles as SCALE-Sim counts them, against which the paper checked its simulator. Each model's times are scaled once, by one
//! factor, to its single-batch latency in Table II. Power is that of the TPU that the paper models (Jouppi et al., ISCA'17: 28 W
//! idle, 40 W busy).
//!
//! `titan-rtx` is the card of DVABatch section 8: 72 multiprocessors, 16.3 Tflop/s in FP32 of which a kernel reaches seven
//! tenths, 672 GB/s, 5 µs a launch; 280 W busy, 15 W idle.

use super::{
    roofline::{Layer, Roofline, chain, encoder_layer, resnet},
    table::{DeviceTable, ModelTable, Steps},
};
use crate::batching::{CostPoint, CostTable, Ns};

const ROWS: [u32; 7] = [1, 2, 4, 8, 16, 32, 64];
const TOKENS: [u64; 9] = [8, 16, 32, 64, 96, 128, 192, 256, 512];

/// LazyBatching section V: the words of the sentence that Table II's latencies are scaled to.
const WORDS: u64 = 20;

const NPU: Roofline =
    Roofline::Systolic { side: 128, hertz: 0.7e9, bytes_per_s: 360e9, element_bytes: 2, access_cycles: 100.0 };

const TITAN_RTX: Roofline = Roofline::Gpu {
    multiprocessors: 72,
    flops: 0.7 * 16.3e12,
    bytes_per_s: 672e9,
    element_bytes: 4,
    launch_ns: 5000.0,
};

/// Names of the built-in tables.
pub const BUILT_IN: [&str; 2] = ["npu", "titan-rtx"];

/// A built-in table by its name. `dec_timesteps` is the number of steps to which decoders are unrolled, at least 1.
pub fn built_in(name: &str, dec_timesteps: u16) -> Option<DeviceTable> {
    match name {
        "npu" => Some(npu(dec_timesteps)),
        "titan-rtx" => Some(titan_rtx()),
        _ => None,
    }
}

fn npu(dec_timesteps: u16) -> DeviceTable {
    let resnet = chain(&NPU, "resnet", &ROWS, &resnet([3, 4, 6, 3]));
    let single: f64 = single_ns(&resnet.latencies);
    let models = vec![
        scaled(resnet, 1.1e6 / single),
        unrolled("gnmt", &gnmt_encoder(), &gnmt_step(), 7.2e6, dec_timesteps),
        unrolled("transformer", &transformer_encoder(), &transformer_step(), 2.4e6, dec_timesteps),
    ];
    DeviceTable { name: "npu".to_owned(), idle_watts: 28.0, busy_watts: 40.0, models }
}

fn titan_rtx() -> DeviceTable {
    let models = vec![
        bert("bert-base", 12, 768, 12),
        bert("bert-large", 24, 1024, 16),
        chain(&TITAN_RTX, "resnet152", &ROWS, &resnet([3, 8, 36, 3])),
        chain(&TITAN_RTX, "vgg19", &ROWS, &vgg19()),
        chain(&TITAN_RTX, "unet", &ROWS, &unet()),
        chain(&TITAN_RTX, "linknet", &ROWS, &linknet()),
    ];
    DeviceTable { name: "titan-rtx".to_owned(), idle_watts: 15.0, busy_watts: 280.0, models }
}

fn single_ns(latencies: &CostTable) -> f64 {
    latencies.stages.iter().filter_map(|points| points.first()).map(|point| point.took_ns as f64).sum()
}

fn scaled(mut model: ModelTable, factor: f64) -> ModelTable {
    let points = model.latencies.stages.iter_mut().flatten();
    points.for_each(|point| point.took_ns = ((point.took_ns as f64 * factor).round() as Ns).max(1));
    model
}

/// An encoder, one stage a layer, and a decoder, one stage a step, scaled so that a sentence of [`WORDS`] words takes
/// `single_ns`.
fn unrolled(name: &str, encoder: &[Vec<Layer>], step: &[Layer], single_ns: f64, dec_timesteps: u16) -> ModelTable {
    let points = |layers: &[Layer]| NPU.points(&ROWS, &[1], |_| layers.to_vec());
    let mut stages: Vec<Vec<CostPoint>> = encoder.iter().map(|layers| points(layers)).collect();
    let first = stages.len() as u16;
    let step = points(step);
    let encoder_ns: u64 = stages.iter().map(|points| points[0].took_ns).sum();
    let whole_ns = (encoder_ns + WORDS * step[0].took_ns) as f64;
    stages.extend(std::iter::repeat_n(step, usize::from(dec_timesteps.max(1))));
    let model = ModelTable {
        name: name.to_owned(),
        max_batch_rows: 64,
        latencies: CostTable { stages },
        steps: Some(Steps { first }),
    };
    scaled(model, single_ns / whole_ns)
}

/// Eight LSTM layers of 1,024, each over the whole sentence: their weights do not stay on the chip from one word to the next.
fn gnmt_encoder() -> Vec<Vec<Layer>> {
    vec![vec![Layer::dense(1, 2048, 4096); WORDS as usize]; 8]
}

/// Eight LSTM layers, attention over the sentence, and the choice among 32,000 words.
fn gnmt_step() -> Vec<Layer> {
    let mut step = vec![Layer::dense(1, 2048, 4096); 8];
    step.extend([
        Layer::attention(1, 1, 1024, WORDS),
        Layer::attention(1, 1, WORDS, 1024),
        Layer::dense(1, 1024, 32_000),
    ]);
    step
}

/// Six layers of 512 with 8 heads.
fn transformer_encoder() -> Vec<Vec<Layer>> {
    vec![encoder_layer(WORDS, 512, 8); 6]
}

/// Six layers with attention to the words so far and to the sentence, and the choice among 32,000 words.
fn transformer_step() -> Vec<Layer> {
    let layer = [
        Layer::dense(1, 512, 3 * 512),
        Layer::attention(8, 1, 64, WORDS),
        Layer::attention(8, 1, WORDS, 64),
        Layer::dense(1, 512, 512),
        Layer::dense(1, 512, 512),
        Layer::attention(8, 1, 64, WORDS),
        Layer::attention(8, 1, WORDS, 64),
        Layer::dense(1, 512, 512),
        Layer::dense(1, 512, 2048),
        Layer::dense(1, 2048, 512),
    ];
    let mut step: Vec<Layer> = layer.into_iter().cycle().take(6 * layer.len()).collect();
    step.push(Layer::dense(1, 512, 32_000));
    step
}

fn bert(name: &str, layers: usize, width: u64, heads: u64) -> ModelTable {
    let points = TITAN_RTX.points(&ROWS, &TOKENS, |tokens| encoder_layer(tokens, width, heads));
    let latencies = CostTable { stages: vec![points; layers] };
    ModelTable { name: name.to_owned(), max_batch_rows: 64, latencies, steps: None }
}

/// Sixteen convolutions on images of 224 × 224, one part each, and the three dense layers.
fn vgg19() -> Vec<Vec<Layer>> {
    let mut parts = Vec::new();
    let mut inputs = 3;
    for (side, outputs, count) in [(224, 64, 2), (112, 128, 2), (56, 256, 4), (28, 512, 4), (14, 512, 4)] {
        for _ in 0..count {
            parts.push(vec![Layer::convolution(side, 3, inputs, outputs)]);
            inputs = outputs;
        }
    }
    parts.push([(25_088, 4096), (4096, 4096), (4096, 1000)].map(|(k, n)| Layer::dense(1, k, n)).to_vec());
    parts
}

/// Images of 256 × 256: five levels down and four up, two convolutions each.
fn unet() -> Vec<Vec<Layer>> {
    let mut parts = Vec::new();
    let mut inputs = 3;
    for level in 0..5 {
        let (side, width) = (256 >> level, 64 << level);
        parts.push(vec![Layer::convolution(side, 3, inputs, width), Layer::convolution(side, 3, width, width)]);
        inputs = width;
    }
    for level in (0..4).rev() {
        let (side, width) = (256 >> level, 64 << level);
        parts.push(vec![
            Layer::convolution(side / 2, 2, 2 * width, 2 * width),
            Layer::convolution(side, 3, 2 * width, width),
            Layer::convolution(side, 3, width, width),
        ]);
    }
    parts.push(vec![Layer::convolution(256, 1, 64, 2)]);
    parts
}

/// Images of 256 × 256: the encoder is ResNet-18's, each decoder block narrows to a quarter, enlarges and widens.
fn linknet() -> Vec<Vec<Layer>> {
    let mut parts = vec![vec![Layer::convolution(128, 7, 3, 64)]];
    let mut inputs = 64;
    for level in 0..4 {
        let (side, width) = (64 >> level, 64 << level);
        for _ in 0..2 {
            parts.push(vec![Layer::convolution(side, 3, inputs, width), Layer::convolution(side, 3, width, width)]);
            inputs = width;
        }
    }
    for level in (0..4).rev() {
        let (side, width) = (64_u64 >> level, 64 << level);
        let narrow = width / 4;
        let outputs = if level == 0 { 64 } else { width / 2 };
        parts.push(vec![
            Layer::convolution(side, 1, width, narrow),
            Layer::convolution(2 * side, 3, narrow, narrow),
            Layer::convolution(2 * side, 1, narrow, outputs),
        ]);
    }
    parts.push(vec![
        Layer::convolution(256, 3, 64, 32),
        Layer::convolution(256, 3, 32, 32),
        Layer::convolution(256, 2, 32, 2),
    ]);
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(model: &ModelTable, stages: usize) -> f64 {
        model.latencies.stages[..stages].iter().map(|points| points[0].took_ns as f64 / 1e6).sum()
    }

    #[test]
    fn the_npu_takes_the_papers_single_batch_latencies() {
        let table = npu(32);
        for (name, expected_ms) in [("resnet", 1.1), ("gnmt", 7.2), ("transformer", 2.4)] {
            let model = table.model(name).expect("it is built in");
            let stages = model.steps.map_or(model.latencies.stages.len(), |steps| usize::from(steps.first) + 20);
            assert!((ms(model, stages) - expected_ms).abs() < 0.001, "{name}: {} ms", ms(model, stages));
        }
    }

    #[test]
    fn more_steps_change_no_other_stage() {
        let (short, long) = (npu(10), npu(32));
        let stages = |table: &DeviceTable| table.model("gnmt").expect("it is built in").latencies.stages.clone();
        assert_eq!(stages(&short)[..], stages(&long)[..18]);
        assert_eq!(stages(&long).len(), 40);
    }

    #[test]
    fn batching_pays_for_every_model_and_time_never_falls() {
        for table in BUILT_IN.map(|name| built_in(name, 20).expect("it is built in")) {
            for model in &table.models {
                for points in &model.latencies.stages {
                    let rising =
                        |pair: &[CostPoint]| pair[0].length != pair[1].length || pair[0].took_ns <= pair[1].took_ns;
                    assert!(points.windows(2).all(rising), "{} falls: {points:?}", model.name);
                }
                let of = |rows| -> u64 {
                    let points = model.latencies.stages.iter().flatten();
                    points.filter(|point| point.rows == rows).map(|point| point.took_ns).sum()
                };
                assert!(of(64) < 64 * of(1), "{}: {} against {}", model.name, of(64), of(1));
            }
        }
    }

    #[test]
    fn segmentation_prefers_other_batches_at_other_stages() {
        let table = titan_rtx();
        let unet = table.model("unet").expect("it is built in");
        let gain = |part: usize| {
            let points = &unet.latencies.stages[part];
            points[0].took_ns as f64 * 8.0 / points[3].took_ns as f64
        };
        assert!(gain(0) < 1.2 && gain(4) > 1.3, "wide images gain nothing, small ones do: {} {}", gain(0), gain(4));
    }
}
