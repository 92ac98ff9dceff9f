use paternoster_model::DataType;

use super::*;
use crate::{Model, PortDim, Signature, build::BuildError, port::dims, weights::Seeded};

type Ports = Vec<(String, Option<DataType>, Vec<PortDim>)>;

fn ports(model: &Model) -> (Ports, Ports) {
    let signature = Signature::from_bytes("zoo", &model.to_bytes()).expect("it can be read");
    let list = |ports: Vec<crate::Port>| {
        ports.into_iter().map(|port| (port.name, port.datatype, port.dims.unwrap_or_default())).collect()
    };
    (list(signature.inputs), list(signature.outputs))
}

fn port(name: &str, datatype: DataType, dims: &[PortDim]) -> (String, Option<DataType>, Vec<PortDim>) {
    (name.to_owned(), Some(datatype), dims.to_vec())
}

#[test]
fn small_models_declare_what_they_promise() {
    let row = dims!["batch", 16];
    let plain = (vec![port("INPUT0", DataType::Fp32, &row)], vec![port("OUTPUT0", DataType::Fp32, &row)]);
    for model in [identity(), scale(2.0), slow(), runaway()] {
        assert_eq!(ports(&model.expect("sound")), plain);
    }
    let cell = dims!["batch", 1];
    let looked_up = (vec![port("INPUT0", DataType::Int64, &cell)], vec![port("OUTPUT0", DataType::Fp32, &cell)]);
    assert_eq!(ports(&lookup().expect("sound")), looked_up);
}

#[test]
fn convolutional_networks_declare_what_they_promise() {
    let seen = dims!["batch", 3, 224, 224];
    let classified =
        (vec![port("image", DataType::Fp32, &seen)], vec![port("logits", DataType::Fp32, &dims!["batch", 1000])]);
    for model in [resnet50(Width::QUARTER), resnet152(Width::QUARTER), mobilenet(Width::QUARTER)] {
        assert_eq!(ports(&model.expect("sound")), classified);
    }
    let segmenting = [
        (unet(Width::QUARTER), 256, 2),
        (unet_of(Width::QUARTER, 128), 128, 2),
        (linknet(Width::QUARTER), 256, 19),
        (linknet_of(Width::QUARTER, 128), 128, 19),
    ];
    for (model, side, classes) in segmenting {
        let (inputs, outputs) = ports(&model.expect("sound"));
        assert_eq!(inputs, [port("image", DataType::Fp32, &dims!["batch", 3, side, side])]);
        assert_eq!(outputs, [port("mask", DataType::Fp32, &dims!["batch", classes, side, side])]);
    }
}

#[test]
fn encoders_declare_what_they_promise() {
    let tokens = dims!["batch", "tokens"];
    let read = [port("input_ids", DataType::Int64, &tokens), port("attention_mask", DataType::Int64, &tokens)];
    let (inputs, outputs) = ports(&bert_base(Width::QUARTER).expect("sound"));
    assert_eq!(inputs, read);
    let states = port("last_hidden_state", DataType::Fp32, &dims!["batch", "tokens", 192]);
    assert_eq!(outputs, [states, port("pooled_output", DataType::Fp32, &dims!["batch", 192])]);
    let (inputs, outputs) = ports(&minilm(Seeded::new(1)).expect("sound"));
    assert_eq!(inputs, read);
    assert_eq!(outputs, [port("sentence_embedding", DataType::Fp32, &dims!["batch", 384])]);
}

fn weights(model: &Model) -> usize {
    let graph = model.0.graph.as_ref().expect("a graph");
    graph.initializer.iter().map(|tensor| tensor.dims.iter().product::<i64>() as usize).sum()
}

#[test]
fn a_deeper_residual_network_has_the_blocks_of_its_paper() {
    let count = |model: Result<Model, BuildError>| {
        let model = model.expect("sound");
        let graph = model.0.graph.as_ref().expect("a graph");
        graph.node.iter().filter(|node| node.op_type() == "Conv").count()
    };
    // Three in each block, four shortcuts and the stem; the dense layer is no convolution.
    assert_eq!((count(resnet50(Width::QUARTER)), count(resnet152(Width::QUARTER))), (3 * 16 + 5, 3 * 50 + 5));
}

#[test]
fn widths_scale_the_channels() {
    let (full, quarter) = (mobilenet(Width::FULL).expect("sound"), mobilenet(Width::QUARTER).expect("sound"));
    assert!((3_450_000..3_550_000).contains(&weights(&full)), "the paper says 3.4 to 3.5 million: {}", weights(&full));
    assert!((400_000..700_000).contains(&weights(&quarter)), "{}", weights(&quarter));
}

fn fnv(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3))
}

/// Hashes a model without the version of the crate, which the file contains.
fn content(mut model: Model) -> u64 {
    model.0.producer_version = None;
    fnv(&model.to_bytes())
}

#[test]
fn every_machine_makes_the_same_files() {
    let hashes = [
        content(identity().expect("sound")),
        content(mobilenet(Width::QUARTER).expect("sound")),
        content(bert_base(Width::QUARTER).expect("sound")),
        content(cells::seq2seq::decoder(Width::QUARTER).expect("sound")),
        content(cells::transformer::decoder(Width::QUARTER).expect("sound")),
    ];
    assert_eq!(
        hashes,
        [1884499066109913960, 13414574947612644756, 2568791814872354371, 17124765212633657970, 12116938718616920984],
        "the zoo changed: raise the content version of the models command too"
    );
}

#[test]
fn a_loop_is_no_straight_line() {
    let straight = |model: Result<Model, BuildError>| model.expect("a sound graph").is_straight_line();
    assert!(straight(identity()) && straight(add_sub()) && straight(lookup()));
    assert!(!straight(slow()) && !straight(runaway()));
}
