//! Plans in half precision and TF32 compute the same as ONNX Runtime in fp32, within the precision of their fractions.

use paternoster_device::DeviceError;
use paternoster_engine::Precision;
use paternoster_model::DataType;
use paternoster_onnx::{
    weights::Seeded,
    zoo::{self, Width, cells},
};
use paternoster_testing::fake_cuda::{with_card, with_fake_cuda};

use crate::{
    images::of_side,
    networks::network,
    operators::Draft,
    rig::{Case, card},
};

/// Maximum difference from fp32 answers for each precision, as a fraction of the largest.
const TOLERANCES: [(Precision, f32); 3] = [(Precision::Tf32, 4e-3), (Precision::Fp16, 4e-3), (Precision::Bf16, 3e-2)];

fn check(case: &Case) {
    check_within(case, 1.0);
}

fn check_within(case: &Case, tolerances: f32) {
    for (precision, tolerance) in TOLERANCES {
        case.check_in(precision, tolerances * tolerance);
    }
}

#[test]
fn cells_of_sequences() {
    with_card(|| {
        check(&network(cells::lstm::step(Width::QUARTER), &[], 2_000));
        check(&network(cells::seq2seq::encoder(Width::QUARTER), &[], 2_000));
        check(&network(cells::tree_lstm::leaf(Width::QUARTER), &[], 2_000));
        check(&network(cells::tree_lstm::node(Width::QUARTER), &[], 1));
        check(&network(cells::deepspeech2::forward(Width::QUARTER), &[], 1));
        check(&network(cells::gnmt::decoder(Width::QUARTER), &[("memory", 7)], 4_000));
    });
}

#[test]
fn an_encoder() {
    with_card(|| check(&network(cells::transformer::encoder(Width::QUARTER), &[("source", 6)], 4_000)));
}

#[test]
#[ignore = "networks of many: make nightly"]
fn other_encoders() {
    with_card(|| {
        // Twelve layers of random weights amplify differences more than trained ones.
        check_within(&network(zoo::bert_base(Width::QUARTER), &[("tokens", 5)], 30_522), 2.5);
        check(&network(zoo::minilm(Seeded::new(1)), &[("tokens", 4)], 30_522));
    });
}

#[test]
#[ignore = "networks of many: make nightly"]
fn networks_of_convolutions() {
    with_card(|| {
        for (model, side) in [
            (zoo::resnet50(Width::QUARTER), 64),
            (zoo::mobilenet(Width::QUARTER), 64),
            (zoo::unet(Width::QUARTER), 48),
            (zoo::linknet(Width::QUARTER), 64),
        ] {
            check(&network::<()>(Ok(of_side(model.expect("the graph is sound"), side)), &[], 1));
        }
    });
}

/// Returns a graph with `output0` and `output1` = products of attention weights whose scores are masked in part and in
/// full, with the lowest number of fp32; `output2` = a product of weights from whole numbers; `output3` = those whole
/// numbers, which a kernel also reads.
fn exact() -> Case {
    let mut draft = Draft::new();
    let (x, mask) = (draft.floats("x", &[40]), draft.input("mask", DataType::Int64, &[24], 2));
    let (weight, back) = (draft.numbers("weight", &[40, 24]), draft.numbers("back", &[24, 5]));
    let [one, lowest, many] = [("one", 1.0), ("lowest", f32::MIN), ("many", 1031.0)]
        .map(|(name, number)| draft.graph.constant(name, &[], &[number]));
    let scores = draft.graph.op("MatMul", &[&x, &weight]).value();
    let shown = draft.graph.op("Cast", &[&mask]).attr("to", 1).value();
    let hidden = draft.graph.op("Sub", &[&one, &shown]).value();
    let hidden = draft.graph.op("Mul", &[&hidden, &lowest]).value();
    for shut_out in [&hidden, &lowest] {
        let masked = draft.graph.op("Add", &[&scores, shut_out]).value();
        let shares = draft.graph.op("Softmax", &[&masked]).value();
        let product = draft.graph.op("MatMul", &[&shares, &back]).value();
        draft.give(&product, &[5]);
    }
    // BF16 has neither 1031 nor 2062, and FP16 has only the second.
    let places = draft.graph.op("Add", &[&shown, &one]).value();
    let places = draft.graph.op("Mul", &[&places, &many]).value();
    let turned = draft.graph.op("Softmax", &[&places]).value();
    let product = draft.graph.op("MatMul", &[&turned, &back]).value();
    draft.give(&product, &[5]);
    let whole = draft.graph.op("Cast", &[&places]).attr("to", 7).value();
    draft.output(&whole, DataType::Int64, &[24]);
    draft.case()
}

#[test]
fn masks_stay_finite_and_whole_numbers_exact() {
    with_card(|| check(&exact()));
}

/// Half precision would save nothing if tensors were fp32 in memory.
#[test]
fn what_lies_between_is_kept_in_half_types() {
    let case = network(zoo::minilm(Seeded::new(1)), &[("tokens", 4)], 30_522);
    for (precision, name) in [(Precision::Bf16, "bf16*"), (Precision::Fp16, "f16*")] {
        let plan = case.plan_in(precision);
        // Kernels read weights of fp32, but write few tensors in it: masks, sums and outputs.
        let written = |name: &str| plan.source().matches(&format!(", {name} b")).count();
        let (halves, floats) = (written(name), written("float*"));
        assert!(halves > floats, "{halves} tensors in half precision, {floats} in fp32: {}", plan.source());
        assert_eq!(plan.launches(), case.plan().launches(), "rounding goes into kernels that are there");
    }
    assert_eq!(case.plan_in(Precision::Tf32).source(), case.plan().source());
}

#[test]
fn cards_that_do_not_multiply_bf16_refuse_it() {
    with_fake_cuda(&[("FAKE_CUDA_CAPABILITY", "7.5")], || {
        let case = network(cells::lstm::step(Width::QUARTER), &[], 2_000);
        let mut cuda = card();
        let refused = case.plan_in(Precision::Bf16).load(&mut cuda).expect_err("the card is too old");
        let reason = "precision bf16 needs compute capability 8.0, but the card has 7.5";
        assert_eq!(refused, DeviceError::Driver(reason.to_owned()));
        case.check_in(Precision::Fp16, 4e-3);
    });
}
