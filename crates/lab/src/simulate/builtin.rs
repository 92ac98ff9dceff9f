//! The built-in device tables, generated in code by documented rooflines.
//!
//! `npu` is LazyBatching's Table I: a systolic array of 128 × 128 at 0.7 GHz, 360 GB/s, 100 cycles to memory, 16-bit
//! numbers. Cycles are counted as in SCALE-Sim, against which the paper checked its simulator. Each model's times are
//! scaled by one factor to its single-batch latency in Table II; models that are not in Table II (those of figure 16)
//! by ResNet's factor. Power is that of the TPU that the paper models (Jouppi et al., ISCA'17: 28 W idle, 40 W busy).
//!
//! `titan-rtx` is the card of DVABatch section 8: 72 multiprocessors, 16.3 Tflop/s in FP32 of which a kernel reaches 70
//! %, 672 GB/s, 5 µs per launch; 280 W busy, 15 W idle. Its times are not scaled.
//!
//! `gnmt-cells`, `transformer-cells` and `las-cells` are the models without that suffix as cells, so that requests at
//! different steps share a task.
//!
//! `v100` is BatchMaker's card, in `v100.rs`. `published` has measured times from publications, in `published.rs`.

use paternoster_batching::{CostPoint, CostTable, Ns};
use paternoster_model::CellId;

use super::{
    cells::SimulatedSegment,
    networks::{self, WORDS, encoder_layer},
    published::published,
    roofline::{Layer, Roofline, chain},
    surface::Surface,
    table::{DeviceTable, ModelTable, UnrolledLoop},
    v100::v100,
};

/// Rows of the largest batch (LazyBatching section V).
const LARGEST: u32 = 64;
const ROWS: [u32; 7] = [1, 2, 4, 8, 16, 32, LARGEST];
const TOKENS: [u64; 9] = [8, 16, 32, 64, 96, 128, 192, 256, 512];

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
pub const BUILT_IN: [&str; 4] = ["npu", "titan-rtx", "v100", "published"];

/// Returns a built-in table by name. `dec_timesteps` is the number of steps to which decoders are unrolled, at least 1.
pub fn built_in(name: &str, dec_timesteps: u16) -> Option<DeviceTable> {
    match name {
        "npu" => Some(npu(dec_timesteps)),
        "titan-rtx" => Some(titan_rtx(dec_timesteps)),
        "v100" => Some(v100()),
        "published" => Some(published()),
        _ => None,
    }
}

fn npu(dec_timesteps: u16) -> DeviceTable {
    let resnet = chain(&NPU, "resnet", &ROWS, &networks::resnet([3, 4, 6, 3]));
    let published = |model: ModelTable, single_ns: f64| {
        let factor = single_ns / sentence_ns(&model);
        scaled(model, factor)
    };
    let unpublished = 1.1e6 / sentence_ns(&resnet);
    let gnmt = unrolled(&NPU, "gnmt", &networks::gnmt_encoder(), &networks::gnmt_step(), dec_timesteps);
    let transformer =
        unrolled(&NPU, "transformer", &networks::transformer_encoder(), &networks::transformer_step(), dec_timesteps);
    let las = unrolled(&NPU, "las", &networks::las_encoder(), &networks::las_step(), dec_timesteps);
    let models = vec![
        published(resnet, 1.1e6),
        published(gnmt, 7.2e6),
        published(transformer, 2.4e6),
        scaled(chain(&NPU, "vggnet", &ROWS, &networks::vgg([2, 2, 3, 3, 3])), unpublished),
        scaled(chain(&NPU, "mobilenet", &ROWS, &networks::mobilenet()), unpublished),
        scaled(las, unpublished),
        scaled(bert(&NPU, "bert-base", 12, 768, 12), unpublished),
        published(gnmt_cells(&NPU), 7.2e6),
        published(transformer_cells(&NPU), 2.4e6),
        scaled(layers_and_steps(&NPU, "las-cells", &networks::las_encoder(), &networks::las_step()), unpublished),
    ];
    DeviceTable { name: "npu".to_owned(), idle_watts: 28.0, busy_watts: 40.0, models }
}

fn titan_rtx(dec_timesteps: u16) -> DeviceTable {
    let (gnmt, transformer) = (networks::gnmt_encoder(), networks::transformer_encoder());
    let models = vec![
        bert(&TITAN_RTX, "bert-base", 12, 768, 12),
        bert(&TITAN_RTX, "bert-large", 24, 1024, 16),
        chain(&TITAN_RTX, "resnet152", &ROWS, &networks::resnet([3, 8, 36, 3])),
        chain(&TITAN_RTX, "vgg19", &ROWS, &networks::vgg([2, 2, 4, 4, 4])),
        chain(&TITAN_RTX, "unet", &ROWS, &networks::unet()),
        chain(&TITAN_RTX, "linknet", &ROWS, &networks::linknet()),
        chain(&TITAN_RTX, "resnet", &ROWS, &networks::resnet([3, 4, 6, 3])),
        chain(&TITAN_RTX, "resnet101", &ROWS, &networks::resnet([3, 4, 23, 3])),
        unrolled(&TITAN_RTX, "gnmt", &gnmt, &networks::gnmt_step(), dec_timesteps),
        unrolled(&TITAN_RTX, "transformer", &transformer, &networks::transformer_step(), dec_timesteps),
        gnmt_cells(&TITAN_RTX),
        transformer_cells(&TITAN_RTX),
    ];
    DeviceTable { name: "titan-rtx".to_owned(), idle_watts: 15.0, busy_watts: 280.0, models }
}

/// Returns the time of a request that runs alone; for a recurrent model, of a sentence of [`WORDS`] words.
fn sentence_ns(model: &ModelTable) -> f64 {
    let single_ns = |points: &Vec<CostPoint>| points[0].took_ns as f64;
    let stages = &model.latencies.stages;
    if let Some(cells) = &model.cells {
        let surfaces: Vec<Surface> = stages.iter().map(|points| Surface::new(points)).collect();
        return cells.padded_ns(&surfaces, 1, WORDS, WORDS);
    }
    match model.steps {
        None => stages.iter().map(single_ns).sum(),
        Some(steps) => {
            let (encoder, decoder) = stages.split_at(usize::from(steps.first));
            encoder.iter().map(single_ns).sum::<f64>() + WORDS as f64 * single_ns(&decoder[0])
        }
    }
}

fn scaled(mut model: ModelTable, factor: f64) -> ModelTable {
    let points = model.latencies.stages.iter_mut().flatten();
    points.for_each(|point| point.took_ns = ((point.took_ns as f64 * factor).round() as Ns).max(1));
    model
}

/// Builds a model from an encoder, with one stage per layer, and a decoder, with one stage per step.
fn unrolled(roofline: &Roofline, name: &str, encoder: &[Vec<Layer>], step: &[Layer], dec_timesteps: u16) -> ModelTable {
    let mut model = chain(roofline, name, &ROWS, encoder);
    let first = model.latencies.stages.len() as u16;
    let step = roofline.points(&ROWS, &[1], |_| step.to_vec());
    model.latencies.stages.extend(std::iter::repeat_n(step, usize::from(dec_timesteps.max(1))));
    ModelTable { steps: Some(UnrolledLoop { first }), ..model }
}

/// GNMT of two cells, one per word of the input and one per word of the output.
fn gnmt_cells(roofline: &Roofline) -> ModelTable {
    let cells = [networks::gnmt_encoder_step(), networks::gnmt_step()];
    of_cells(
        roofline,
        "gnmt-cells",
        &cells,
        vec![SimulatedSegment::Chain(CellId(0)), SimulatedSegment::Decode(CellId(1))],
    )
}

fn transformer_cells(roofline: &Roofline) -> ModelTable {
    layers_and_steps(roofline, "transformer-cells", &networks::transformer_encoder(), &networks::transformer_step())
}

/// Builds a model from an encoder of one cell per layer, each over the whole sentence, and a decoder's step.
fn layers_and_steps(roofline: &Roofline, name: &str, encoder: &[Vec<Layer>], step: &[Layer]) -> ModelTable {
    let cells = [encoder, &[step.to_vec()]].concat();
    let decoder = encoder.len() as u16;
    let mut segments: Vec<SimulatedSegment> =
        (0..decoder).map(|layer| SimulatedSegment::Stage(CellId(layer))).collect();
    segments.push(SimulatedSegment::Decode(CellId(decoder)));
    of_cells(roofline, name, &cells, segments)
}

fn of_cells(roofline: &Roofline, name: &str, cells: &[Vec<Layer>], segments: Vec<SimulatedSegment>) -> ModelTable {
    let times = cells.iter().map(|layers| roofline.points(&ROWS, &[1], |_| layers.clone())).collect();
    ModelTable::of_cells(name, times, &vec![LARGEST; cells.len()], segments)
}

fn bert(roofline: &Roofline, name: &str, layers: usize, width: u64, heads: u64) -> ModelTable {
    let points = roofline.points(&ROWS, &TOKENS, |tokens| encoder_layer(tokens, width, heads));
    let latencies = CostTable { stages: vec![points; layers] };
    ModelTable {
        name: name.to_owned(),
        max_batch_rows: LARGEST,
        latencies,
        steps: None,
        cells: None,
        scatter: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_without_a_published_latency_are_scaled_as_resnet_is() {
        let table = npu(1);
        let resnet = chain(&NPU, "resnet", &ROWS, &networks::resnet([3, 4, 6, 3]));
        let vgg = chain(&NPU, "vggnet", &ROWS, &networks::vgg([2, 2, 3, 3, 3]));
        let factor = |plain: &ModelTable| sentence_ns(table.model(&plain.name).expect("built in")) / sentence_ns(plain);
        assert!((factor(&vgg) / factor(&resnet) - 1.0).abs() < 1e-4, "{} {}", factor(&vgg), factor(&resnet));
        for name in ["mobilenet", "las", "bert-base"] {
            assert!(table.model(name).is_ok(), "{name} is built in");
        }
    }

    #[test]
    fn cells_take_as_long_for_a_lone_sentence_as_unrolled_stages() {
        for (table, models) in
            [(npu(32), &["gnmt", "transformer", "las"][..]), (titan_rtx(32), &["gnmt", "transformer"])]
        {
            for name in models {
                let ns = |name: &str| sentence_ns(table.model(name).expect("it is built in"));
                let (stages, cells) = (ns(name), ns(&format!("{name}-cells")));
                assert!((cells / stages - 1.0).abs() < 1e-4, "{name} of {}: {cells} against {stages}", table.name);
            }
        }
    }

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
        let table = titan_rtx(1);
        let unet = table.model("unet").expect("it is built in");
        let gain = |part: usize| {
            let points = &unet.latencies.stages[part];
            points[0].took_ns as f64 * 8.0 / points[3].took_ns as f64
        };
        assert!(gain(0) < 1.2 && gain(4) > 1.3, "wide images gain nothing, small ones do: {} {}", gain(0), gain(4));
    }
}
