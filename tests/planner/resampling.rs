//! Normalisation by known statistics, padding and resizing compute the same as ONNX Runtime.

use paternoster_model::DataType;
use paternoster_onnx::build::{Graph, Value};
use paternoster_testing::fake_cuda::with_card;

use crate::{operators::Draft, rig::Case};

impl Draft {
    /// Adds a batch normalisation of `channels` channels.
    fn normal(&mut self, x: &Value, channels: usize) -> Value {
        let number = self.next();
        let mut vector = |what: &str, shift: f32| {
            let numbers: Vec<f32> = (0..channels).map(|it| (it * 7 % 5) as f32 / 4.0 + shift).collect();
            self.graph.constant(&format!("{what}{number}"), &[channels], &numbers)
        };
        let (scale, shift) = (vector("scale", -0.4), vector("shift", -0.7));
        let (mean, variance) = (vector("mean", -0.3), vector("variance", 0.2));
        let call = self.graph.op("BatchNormalization", &[x, &scale, &shift, &mean, &variance]);
        call.attr("epsilon", 1e-3_f32).value()
    }
}

#[test]
fn batch_normalisation() {
    with_card(|| {
        let mut draft = Draft::new();
        let (x, row) = (draft.floats("x", &[4, 5, 6]), draft.floats("row", &[7]));
        let plain = draft.normal(&x, 4);
        draft.give(&plain, &[4, 5, 6]);
        for (groups, biased) in [(1, true), (2, false), (4, true)] {
            let number = draft.next();
            let w = draft.numbers(&format!("w{number}"), &[4, 4 / groups as usize, 3, 3]);
            let b = draft.numbers(&format!("b{number}"), &[4]);
            let call = draft.graph.op("Conv", &[&x, &w]);
            let call = if biased { call.with(&b) } else { call };
            let y = call.attr("group", groups).attr("pads", [1, 1, 1, 1]).value();
            let normal = draft.normal(&y, 4);
            let relu = draft.graph.op("Relu", &[&normal]).value();
            draft.give(&relu, &[4, 5, 6]);
        }
        let (w, b) = (draft.numbers("spread.w", &[4, 3, 2, 2]), draft.numbers("spread.b", &[6]));
        let call = draft.graph.op("ConvTranspose", &[&x, &w, &b]).attr("group", 2);
        let y = call.attr("strides", [2, 2]).value();
        let normal = draft.normal(&y, 6);
        draft.give(&normal, &[6, 10, 12]);
        // A convolution that a second node reads keeps its own weights.
        let w = draft.numbers("shared.w", &[3, 4, 1, 1]);
        let y = draft.graph.op("Conv", &[&x, &w]).value();
        let normal = draft.normal(&y, 3);
        let sum = draft.graph.op("Add", &[&normal, &y]).value();
        draft.give(&sum, &[3, 5, 6]);
        for (name, turned) in [("dense", 0), ("turned", 1)] {
            let w = draft.numbers(name, if turned == 1 { &[5, 7] } else { &[7, 5] });
            let y = draft.graph.op("Gemm", &[&row, &w]).attr("transB", turned).value();
            let normal = draft.normal(&y, 5);
            draft.give(&normal, &[5]);
        }
        let (w, b) = (draft.numbers("biased", &[7, 5]), draft.numbers("bias", &[5]));
        let y = draft.graph.op("Gemm", &[&row, &w, &b]).value();
        let normal = draft.normal(&y, 5);
        draft.give(&normal, &[5]);
        draft.case().check();
    });
}

/// Returns pads of different widths, positive and negative.
pub(crate) fn pads_of() -> Case {
    let mut draft = Draft::new();
    let (x, whole) = (draft.floats("x", &[3, 4, 5]), draft.input("whole", DataType::Int64, &[4], 9));
    let (value, five) = (draft.graph.scalar(-0.5_f32), draft.graph.scalar(5_i64));
    for (pads, dims) in [
        ([0_i64, 0, 1, 2, 0, 0, 0, 3], [3, 5, 10]),
        ([0, 1, 0, -1, 0, 0, 2, 0], [4, 6, 4]),
        ([0, 0, -1, -2, 0, 0, -1, 0], [3, 2, 3]),
    ] {
        let pads = draft.graph.literal(&pads);
        let y = draft.graph.op("Pad", &[&x, &pads, &value]).value();
        draft.give(&y, &dims);
        let zeros = draft.graph.op("Pad", &[&x, &pads]).value();
        draft.give(&zeros, &dims);
    }
    // Along an axis of length 1.
    let (new, around) = (draft.graph.literal(&[1_i64]), draft.graph.literal(&[0_i64, 1, 0, 0, 0, 0, 2, 0, 0, 0]));
    let wide = draft.graph.op("Unsqueeze", &[&x, &new]).value();
    let y = draft.graph.op("Pad", &[&wide, &around, &value]).value();
    draft.give(&y, &[4, 3, 4, 5]);
    let pads = draft.graph.literal(&[0_i64, 2, 0, 1]);
    let y = draft.graph.op("Pad", &[&whole, &pads, &five]).attr("mode", "constant").value();
    draft.output(&y, DataType::Int64, &[7]);
    draft.case()
}

#[test]
fn pads() {
    with_card(|| pads_of().check());
}

/// Adds a resize by factors.
fn scaled(graph: &mut Graph, x: &Value, mode: &str, transformation: &str, scales: &Value) -> Value {
    let call = graph.op("Resize", &[x]).skip().with(scales).attr("mode", mode);
    call.attr("coordinate_transformation_mode", transformation).value()
}

/// Returns images that grow and shrink, by the nearest entry and by interpolation.
pub(crate) fn sizes_of() -> Case {
    let mut draft = Draft::new();
    let x = draft.floats("x", &[2, 4, 6]);
    for (factors, dims) in
        [([1.0_f32, 1.0, 2.0, 3.0], [2, 8, 18]), ([1.0, 1.0, 0.5, 1.4], [2, 2, 8]), ([1.0, 1.0, 1.0, 0.34], [2, 4, 2])]
    {
        let scales = draft.graph.literal(&factors);
        for transformation in ["half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric"] {
            let y = scaled(&mut draft.graph, &x, "linear", transformation, &scales);
            draft.give(&y, &dims);
            for nearest in ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"] {
                let call = draft.graph.op("Resize", &[&x]).skip().with(&scales).attr("nearest_mode", nearest);
                let y = call.attr("coordinate_transformation_mode", transformation).value();
                draft.give(&y, &dims);
            }
        }
    }
    // Sizes that the graph computes from shapes, as exporters write them.
    let shape = draft.graph.op("Shape", &[&x]).value();
    let (zero, two) = (draft.graph.literal(&[0_i64]), draft.graph.literal(&[2_i64]));
    let first = draft.graph.op("Slice", &[&shape, &zero, &two]).value();
    let wanted = draft.graph.literal(&[7_i64, 9]);
    let sizes = draft.graph.op("Concat", &[&first, &wanted]).attr("axis", 0).value();
    for mode in ["nearest", "linear"] {
        let y = draft.graph.op("Resize", &[&x]).skip().skip().with(&sizes).attr("mode", mode).value();
        draft.give(&y, &[2, 7, 9]);
    }
    draft.case()
}

#[test]
fn other_sizes() {
    with_card(|| sizes_of().check());
}
