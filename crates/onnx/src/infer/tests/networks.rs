use super::*;
use crate::{
    weights::Seeded,
    zoo::{self, Width},
};

/// Checks that every tensor of the model is known, and is by rows or constant.
fn fully_known(model: &Model) -> Inference {
    let inferred = infer(model);
    for (name, info) in &inferred.tensors {
        assert!(info.datatype.is_some(), "{name}: {info:?}");
        assert!(info.dims.as_ref().is_some_and(|dims| !dims.contains(&PortDim::Unknown)), "{name}: {info:?}");
        let followed = !matches!(info.rows, RowDependence::Mixed { .. } | RowDependence::Grouped { .. });
        assert!(followed, "{name}: {info:?}");
    }
    inferred
}

fn check(model: &Model, expected: &[(&str, &[PortDim])]) {
    let inferred = fully_known(model);
    for (name, dims) in expected {
        let info = inferred.tensor(name).unwrap_or_else(|| panic!("there is no '{name}'"));
        assert_eq!(info, &by_rows(DataType::Fp32, dims), "{name}");
    }
}

#[test]
fn resnet50_is_known_throughout() {
    check(
        &zoo::resnet50(Width::QUARTER).expect("sound"),
        &[
            ("MaxPool", &dims!["batch", 16, 56, 56]),
            ("stage2/block1/Relu_3", &dims!["batch", 128, 28, 28]),
            ("Flatten", &dims!["batch", 512]),
            ("logits", &dims!["batch", 1000]),
        ],
    );
}

#[test]
fn vgg19_is_known_throughout() {
    check(
        &zoo::vgg19(Width::QUARTER).expect("sound"),
        &[("block5/MaxPool", &dims!["batch", 128, 7, 7]), ("Flatten", &dims!["batch", 6272])],
    );
}

#[test]
fn mobilenet_is_known_throughout() {
    check(
        &zoo::mobilenet(Width::QUARTER).expect("sound"),
        &[("Flatten", &dims!["batch", 320]), ("stage3/block2/Add", &dims!["batch", 8, 28, 28])],
    );
}

#[test]
fn unet_and_linknet_are_known_throughout() {
    check(
        &zoo::unet(Width::QUARTER).expect("sound"),
        &[("up0/Concat", &dims!["batch", 32, 256, 256]), ("mask", &dims!["batch", 2, 256, 256])],
    );
    check(
        &zoo::linknet(Width::QUARTER).expect("sound"),
        &[("ConvTranspose", &dims!["batch", 8, 128, 128]), ("mask", &dims!["batch", 19, 256, 256])],
    );
}

#[test]
fn encoders_are_known_throughout() {
    let layer = "encoder.layer.3";
    let bert = zoo::bert_base(Width::QUARTER).expect("sound");
    assert!(bert.0.graph.as_ref().is_some_and(|graph| graph.node.len() > 100));
    check(&bert, &[("last_hidden_state", &dims!["batch", "tokens", 192]), ("pooled_output", &dims!["batch", 192])]);
    let minilm = zoo::minilm(Seeded::new(1)).expect("sound");
    check(&minilm, &[("sentence_embedding", &dims!["batch", 384])]);
    let graph = minilm.0.graph.as_ref().expect("a graph");
    assert!(graph.initializer.iter().any(|weight| weight.name().starts_with(layer)));
    let scores = graph.node.iter().find(|node| node.op_type() == "Softmax").expect("attention").output[0].clone();
    let inferred = infer(&minilm);
    assert_eq!(inferred.tensor(&scores), Some(&by_rows(DataType::Fp32, &dims!["batch", 12, "tokens", "tokens"])));
}

#[test]
fn positions_of_an_encoder_are_constant() {
    let inferred = infer(&zoo::minilm(Seeded::new(1)).expect("sound"));
    let positions = inferred.tensor("Slice").expect("cut from the table");
    assert_eq!(
        (positions.dims.clone(), &positions.rows),
        (Some(dims!["tokens", 384].into()), &RowDependence::Constant)
    );
}

#[test]
fn small_models_are_known() {
    for model in [zoo::identity(), zoo::add_sub(), zoo::scale(2.0), zoo::lookup()] {
        fully_known(&model.expect("sound"));
    }
    let looped = infer(&zoo::slow().expect("sound"));
    let output = looped.tensor("OUTPUT0").expect("it is there");
    assert_eq!(cause(output), "is an operation through which rows cannot be followed");
}
