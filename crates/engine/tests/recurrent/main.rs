//! Opened recurrent models compute the same as the whole models on ONNX Runtime, however their steps are divided into
//! runs.
//!
//! Needs the library, from `ORT_DYLIB_PATH` or where `make` puts it. Without it each test prints a note and passes.

mod exports;
mod rig;
mod scans;

use paternoster_model::DataType;
use paternoster_onnx::{Model, recurrent::open};

use self::{
    exports::{Exported, Layer},
    rig::check,
    scans::Scan,
};

#[test]
fn a_forward_layer_with_its_last_step_equals_the_whole() {
    for op in ["LSTM", "GRU", "RNN"] {
        check(&exports::last_step(&Layer::new(op)), &["chain"]);
    }
}

#[test]
fn a_reverse_layer_equals_the_whole() {
    for op in ["LSTM", "GRU", "RNN"] {
        check(&exports::every_step(&Layer::new(op).direction("reverse")), &["reverse"]);
    }
}

#[test]
fn a_tagger_of_two_directions_equals_the_whole() {
    for op in ["LSTM", "GRU", "RNN"] {
        check(&exports::every_step(&Layer::new(op).direction("bidirectional")), &["chain", "reverse"]);
    }
}

#[test]
fn a_stack_of_two_directions_takes_one_chain_more_than_layers() {
    let model = exports::stack(3, "bidirectional");
    check(&model, &["chain", "reverse", "chain", "reverse"]);
}

#[test]
fn a_stack_of_one_direction_is_one_chain() {
    check(&exports::stack(3, "forward"), &["chain"]);
}

#[test]
fn peepholes_clip_and_other_activations_are_kept() {
    for direction in ["forward", "reverse", "bidirectional"] {
        let layer = Layer::new("LSTM").direction(direction).with_peepholes().with_clip();
        let chains: &[&str] = match direction {
            "forward" => &["chain"],
            "reverse" => &["reverse"],
            _ => &["chain", "reverse"],
        };
        check(&exports::every_step(&layer), chains);
    }
}

#[test]
fn initial_states_that_are_weights_are_read_by_the_first_run_alone() {
    check(&exports::learned_start(), &["chain"]);
}

#[test]
fn the_last_states_of_both_directions_meet_in_the_second_chain() {
    check(&exports::last_states("bidirectional"), &["chain", "reverse"]);
    check(&exports::last_states("forward"), &["chain"]);
}

#[test]
fn what_needs_all_steps_is_a_stage() {
    check(&exports::pooled(), &["chain", "stage"]);
    check(&exports::attention(), &["chain", "stage"]);
    check(&exports::positions(), &["stage", "chain"]);
    check(&exports::last_step(&Layer::new("LSTM").direction("bidirectional")), &["chain", "reverse", "stage"]);
}

#[test]
fn a_front_of_convolutions_is_a_stage() {
    check(&exports::convolved(), &["stage", "chain"]);
}

#[test]
fn an_encoder_whose_last_state_goes_to_every_step_of_another_layer() {
    check(&exports::context(), &["chain", "stage", "chain"]);
}

#[test]
fn keras_exports_equal_the_whole() {
    check(&exports::keras(false), &["chain"]);
    check(&exports::keras(true), &["chain"]);
}

#[test]
fn embeddings_of_integers_and_inputs_without_steps_are_read() {
    check(&exports::conditioned(), &["chain"]);
}

#[test]
fn older_operator_sets_equal_the_whole() {
    check(&exports::older(12), &["chain"]);
    check(&exports::older(11), &["chain", "stage"]);
    check(&exports::older(9), &["chain", "stage"]);
}

/// ONNX Runtime has no layers with the batch first; the opened programs have none either.
#[test]
fn layers_with_the_batch_first_equal_those_with_the_steps_first() {
    for direction in ["forward", "reverse", "bidirectional"] {
        let steps_first = exports::batch_first(direction, false);
        let batch_first = exports::batch_first(direction, true);
        rig::check_against(&batch_first, &steps_first.model);
    }
}

#[test]
fn a_scan_over_either_axis_equals_the_whole() {
    for axis in [0, 1] {
        check(&scans::layer(&Scan { axis, ..Scan::PLAIN }), &["chain"]);
        check(&scans::layer(&Scan { axis, reversed: true, ..Scan::PLAIN }), &["reverse"]);
        check(&scans::layer(&Scan { axis, learned: true, ..Scan::PLAIN }), &["chain"]);
    }
}

#[test]
fn a_scan_that_gives_its_outputs_in_the_opposite_order_is_followed_by_a_stage() {
    for axis in [0, 1] {
        check(&scans::layer(&Scan { axis, turned: true, ..Scan::PLAIN }), &["chain", "stage"]);
        check(&scans::layer(&Scan { axis, turned: true, reversed: true, learned: true }), &["reverse", "stage"]);
    }
}

#[test]
fn several_states_inputs_and_outputs_of_a_scan_equal_the_whole() {
    check(&scans::several(false), &["chain"]);
    check(&scans::several(true), &["chain"]);
}

#[test]
fn states_of_other_types_and_with_the_batch_on_another_axis_equal_the_whole() {
    check(&scans::counts(), &["chain"]);
}

#[test]
fn a_scan_between_layers_with_gates_is_a_part_of_their_chain() {
    check(&scans::between_layers(), &["chain"]);
}

#[test]
fn two_directions_of_scans_equal_the_whole() {
    check(&scans::turned_around(true), &["chain", "reverse"]);
    check(&scans::turned_around(false), &["chain", "stage", "chain", "stage"]);
}

#[test]
fn a_scan_without_states_is_a_part_of_the_chain() {
    check(&scans::stateless(), &["chain"]);
}

#[test]
fn scans_of_older_operator_sets_equal_the_whole() {
    for opset in [9, 11, 16] {
        check(&scans::older(opset), &["chain"]);
    }
}

#[test]
fn the_whole_model_is_what_is_compared() {
    // A change of one weight is seen.
    let exported = exports::last_step(&Layer::new("LSTM"));
    let other = exports::last_step(&Layer::new("LSTM").seed(7));
    let Some(worst) = rig::difference(&exported, &other.model) else { return };
    assert!(worst > 1e-2, "{worst}");
}

#[test]
fn names_of_new_tensors_are_none_of_the_graph() {
    let mut exported = exports::every_step(&Layer::new("LSTM").direction("bidirectional"));
    let graph = exported.model.0.graph.as_mut().expect("a graph");
    let rename = |name: &mut String| {
        if name.as_str() == "W" {
            *name = "cells/lengths".to_owned();
        }
    };
    graph.node.iter_mut().for_each(|node| node.input.iter_mut().for_each(rename));
    graph.initializer.iter_mut().filter_map(|weight| weight.name.as_mut()).for_each(rename);
    check(&exported, &["chain", "reverse"]);
}

fn weights_of(model: &Model) -> usize {
    let graph = model.0.graph.as_ref().expect("a graph");
    graph.initializer.iter().filter_map(|weight| weight.raw_data.as_ref()).map(|data| data.len()).sum()
}

#[test]
fn weights_are_shared_with_the_model() {
    let Exported { model, .. } = exports::last_step(&Layer::new("LSTM"));
    let opened = open(&model).expect("it can be opened");
    let own = model.0.graph.as_ref().expect("a graph").initializer.iter().find(|it| it.name() == "W").expect("weights");
    let program = opened.segments[0].model.0.graph.as_ref().expect("a graph");
    let shared = program.initializer.iter().find(|it| it.name() == "W").expect("weights");
    let address = |tensor: &paternoster_onnx::pb::TensorProto| tensor.raw_data.as_ref().map(|data| data.as_ptr());
    assert_eq!(address(own), address(shared));
    assert!(weights_of(&opened.segments[0].model) <= weights_of(&model));
    assert_eq!(exported_datatype(&model), Some(DataType::Fp32));
}

fn exported_datatype(model: &Model) -> Option<DataType> {
    paternoster_onnx::Port::of(&model.0.graph.as_ref()?.output[0]).datatype
}
