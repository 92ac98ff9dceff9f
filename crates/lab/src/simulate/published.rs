//! Published measurements, as a complement to the rooflines.
//!
//! `resnet` is ResNet-50 as TensorRT 4.0 runs it in FP32 on a V100 ("TensorRT Performance on NVIDIA Volta V100 GPU",
//! gist.github.com/1duo/efd3be1dc8eb2c45863b75f20a76f8b2). `bert-base` is the twelve layers of its encoder, as
//! FasterTransformer 3.1 runs them in FP32 on a V100 (NVIDIA/DeepLearningExamples,
//! FasterTransformer/v3.1/docs/encoder_guide.md, C++); each layer takes a twelfth.
//!
//! `unet` and `linknet` have no published times, but DVABatch describes how they behave: an encoder that prefers
//! batches above 32 and a decoder that gains nothing from batching (section 3.2 and figure 6), and at high load half of
//! the batches above 30 and 50 rows, respectively (section 8.5). A window's batches at 90 % of the peak have those
//! sizes if the encoder takes as long as the decoder takes for `UNET` and `LINKNET` images. Only ratios matter, so the
//! decoder takes a millisecond per image. Encoder and decoder are two parts each.

use paternoster_batching::{CostPoint, CostTable, Ns};

use super::table::{DeviceTable, ModelTable};

const RESNET_US: [(u32, Ns); 7] =
    [(1, 2_677), (2, 4_083), (4, 6_082), (8, 8_276), (16, 13_054), (32, 23_133), (64, 42_533)];

/// For each number of rows, the milliseconds of twelve layers at 32, 64 and 128 tokens.
const BERT_MS: [(u32, [f64; 3]); 4] =
    [(1, [1.76, 2.16, 2.94]), (8, [4.66, 8.48, 15.50]), (32, [15.34, 30.01, 59.46]), (64, [29.91, 58.84, 119.08])];
const BERT_TOKENS: [u64; 3] = [32, 64, 128];
const BERT_LAYERS: usize = 12;

/// Number of images for which the decoder takes as long as the encoder does for any batch.
const UNET: Ns = 7;
const LINKNET: Ns = 42;

const NS_PER_MS: Ns = 1_000_000;
const LARGEST: u32 = 64;

/// Returns the table; its power is that of `v100`.
pub(super) fn published() -> DeviceTable {
    let resnet = RESNET_US.map(|(rows, us)| CostPoint { rows, length: 1, took_ns: us * 1000 });
    let layer = BERT_MS.iter().flat_map(|&(rows, times)| {
        let layer_ns = |ms: f64| (ms * NS_PER_MS as f64 / BERT_LAYERS as f64).round() as Ns;
        BERT_TOKENS.into_iter().zip(times).map(move |(length, ms)| CostPoint { rows, length, took_ns: layer_ns(ms) })
    });
    let models = vec![
        model("resnet", vec![resnet.to_vec()]),
        model("bert-base", vec![layer.collect(); BERT_LAYERS]),
        model("unet", fixed_then_linear(UNET)),
        model("linknet", fixed_then_linear(LINKNET)),
    ];
    DeviceTable { name: "published".to_owned(), idle_watts: 40.0, busy_watts: 300.0, models }
}

/// Returns two parts whose time is the same for any batch, and two whose time is proportional to rows.
fn fixed_then_linear(images: Ns) -> Vec<Vec<CostPoint>> {
    let half = |took_ns: [Ns; 2]| {
        [(1, took_ns[0]), (LARGEST, took_ns[1])]
            .map(|(rows, ns)| CostPoint { rows, length: 1, took_ns: ns / 2 })
            .to_vec()
    };
    let encoder = half([images * NS_PER_MS; 2]);
    let decoder = half([NS_PER_MS, Ns::from(LARGEST) * NS_PER_MS]);
    vec![encoder.clone(), encoder, decoder.clone(), decoder]
}

fn model(name: &str, stages: Vec<Vec<CostPoint>>) -> ModelTable {
    let latencies = CostTable { stages };
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
    use super::{
        super::{
            networks::{encoder_layer, resnet},
            roofline::chain,
            v100::V100,
        },
        *,
    };

    /// Returns a roofline's times divided by the measured ones.
    fn ratios(roofline: &[CostPoint], measured: &[CostPoint]) -> Vec<f64> {
        let pairs = roofline.iter().zip(measured);
        let ratio = |(says, took): (&CostPoint, &CostPoint)| {
            assert_eq!((says.rows, says.length), (took.rows, took.length));
            says.took_ns as f64 / took.took_ns as f64
        };
        pairs.map(ratio).collect()
    }

    #[test]
    fn the_roofline_of_resnet_50_is_near_what_was_measured() {
        let table = published();
        let measured = &table.model("resnet").expect("it is there").latencies.stages[0];
        let parts = chain(&V100, "resnet", &RESNET_US.map(|(rows, _)| rows), &resnet([3, 4, 6, 3]));
        let whole = parts.sliced(1).expect("it has parts").latencies.stages;
        let ratios = ratios(&whole[0], measured);
        assert!(ratios.iter().all(|ratio| (0.9..1.15).contains(ratio)), "{ratios:?}");
    }

    #[test]
    fn the_roofline_of_bert_is_near_what_was_measured() {
        let table = published();
        let mut measured = table.model("bert-base").expect("it is there").latencies.stages[0].clone();
        measured.sort_by_key(|point| (point.length, point.rows));
        let layer = V100.points(&BERT_MS.map(|(rows, _)| rows), &BERT_TOKENS, |tokens| encoder_layer(tokens, 768, 12));
        let ratios = ratios(&layer, &measured);
        assert!(ratios.iter().all(|ratio| (0.9..1.45).contains(ratio)), "{ratios:?}");
    }

    #[test]
    fn at_nine_tenths_of_the_peak_a_window_has_batches_of_the_papers_sizes() {
        for (images, paper) in [(UNET, 30.0), (LINKNET, 50.0)] {
            // A batch of b rows takes F + b. The peak rate is 64 / (F + 64); at 0.9 of it, b rows arrive while b run.
            let fixed = images as f64;
            let rate = 0.9 * f64::from(LARGEST) / (fixed + f64::from(LARGEST));
            let batch = fixed * rate / (1.0 - rate);
            assert!((batch - paper).abs() < 1.0, "{batch} against {paper}");
        }
    }
}
