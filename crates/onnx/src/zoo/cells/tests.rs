use paternoster_model::DataType;

use super::*;
use crate::{
    Model, Port, PortDim, Signature,
    build::BuildError,
    infer::{RowDependence, infer},
    zoo::Width,
};

type Make = fn(Width) -> Result<Model, BuildError>;

const ALL: [(&str, Make); 20] = [
    ("lstm/step", lstm::step),
    ("lstm/project", lstm::project),
    ("lstm/projected_step", lstm::projected_step),
    ("seq2seq/encoder", seq2seq::encoder),
    ("seq2seq/decoder", seq2seq::decoder),
    ("tree-lstm/leaf", tree_lstm::leaf),
    ("tree-lstm/node", tree_lstm::node),
    ("gnmt/forward", gnmt::forward),
    ("gnmt/backward", gnmt::backward),
    ("gnmt/upper", gnmt::upper),
    ("gnmt/decoder", gnmt::decoder),
    ("deepspeech2/conv", deepspeech2::conv),
    ("deepspeech2/forward", deepspeech2::forward),
    ("deepspeech2/backward", deepspeech2::backward),
    ("deepspeech2/dense", deepspeech2::dense),
    ("las/listener", las::listener),
    ("las/upper", las::upper),
    ("las/speller", las::speller),
    ("transformer/encoder", transformer::encoder),
    ("transformer/decoder", transformer::decoder),
];

fn made(make: Make) -> Model {
    make(Width::QUARTER).expect("sound")
}

fn signature(make: Make) -> Signature {
    Signature::from_bytes("cell", &made(make).to_bytes()).expect("it can be read")
}

/// Formats inputs and outputs: the name, and the dims of a row.
fn shown(ports: &[Port]) -> String {
    let port = |port: &Port| {
        let dims = port.dims.as_deref().unwrap_or_default();
        let dims: Vec<String> = dims.iter().skip(1).map(ToString::to_string).collect();
        format!("{} [{}]", port.name, dims.join(", "))
    };
    ports.iter().map(port).collect::<Vec<_>>().join(", ")
}

#[test]
fn the_rows_of_a_task_are_the_first_axis_of_every_input_and_output() {
    for (name, make) in ALL {
        let Signature { inputs, outputs, .. } = signature(make);
        for port in inputs.iter().chain(&outputs) {
            let first = port.dims.as_ref().and_then(|dims| dims.first());
            assert_eq!(first, Some(&PortDim::from("batch")), "{name}: {port:?}");
        }
    }
}

#[test]
fn rows_are_apart_and_shapes_are_what_is_declared() {
    for (name, make) in ALL {
        let (model, declared) = (made(make), signature(make).outputs);
        let inferred = infer(&model);
        for output in declared {
            let info = inferred.tensor(&output.name).expect("it is there");
            assert_eq!(
                (&info.datatype, &info.rows),
                (&output.datatype, &RowDependence::PerRow),
                "{name}: {}",
                output.name
            );
            // Inference has no name for a computed length.
            let agrees = |(known, declared): (&PortDim, &PortDim)| match known {
                PortDim::Unknown => matches!(declared, PortDim::Symbol(_)),
                _ => known == declared,
            };
            let (known, declared) =
                (info.dims.as_deref().unwrap_or_default(), output.dims.as_deref().unwrap_or_default());
            assert_eq!(known.len(), declared.len(), "{name}: {}", output.name);
            assert!(known.iter().zip(declared).all(agrees), "{name}: {}: {known:?}, {declared:?}", output.name);
        }
        assert!(model.is_straight_line(), "{name}");
    }
}

#[test]
fn what_is_carried_goes_in_as_it_came_out() {
    for (name, make) in ALL {
        let Signature { inputs, outputs, .. } = signature(make);
        for input in &inputs {
            let Some(output) = outputs.iter().find(|output| output.name == format!("{}_next", input.name)) else {
                continue;
            };
            assert_eq!((input.datatype, &input.dims), (output.datatype, &output.dims), "{name}: {}", input.name);
        }
        for output in outputs.iter().filter(|output| output.name.ends_with("_next")) {
            let carried = output.name.trim_end_matches("_next");
            assert!(inputs.iter().any(|input| input.name == carried), "{name}: nothing takes '{}'", output.name);
        }
    }
}

#[test]
fn cells_declare_what_they_promise() {
    let promised: [(Make, &str, &str); 14] = [
        (lstm::step, "x [], h [256], c [256]", "h_next [256], c_next [256]"),
        (lstm::project, "x []", "gates [1024]"),
        (lstm::projected_step, "gates [1024], h [256], c [256]", "h_next [256], c_next [256]"),
        (seq2seq::encoder, "token [], h [256], c [256]", "h_next [256], c_next [256]"),
        (seq2seq::decoder, "token [], h [256], c [256]", "next_token [], h_next [256], c_next [256]"),
        (tree_lstm::leaf, "token []", "h [256], c [256]"),
        (tree_lstm::node, "h_left [256], c_left [256], h_right [256], c_right [256]", "h [256], c [256]"),
        (gnmt::upper, "forward [128], backward [128], h [128], c [128]", "h_next [128], c_next [128]"),
        (
            gnmt::decoder,
            "token [], memory [memory, 128], memory_length [], h1 [128], c1 [128], h2 [128], c2 [128]",
            "next_token [], h1_next [128], c1_next [128], h2_next [128], c2_next [128]",
        ),
        (deepspeech2::conv, "frames [frames, 80], frames_length []", "features [steps, 160]"),
        (deepspeech2::forward, "x [160], h [128]", "h_next [128]"),
        (deepspeech2::dense, "forward [128], backward [128]", "logits [29]"),
        (
            las::speller,
            "token [], memory [memory, 128], memory_length [], context [128], h [128], c [128]",
            "next_token [], context_next [128], h_next [128], c_next [128]",
        ),
        (
            transformer::encoder,
            "source [source], source_length []",
            "memory_keys_0 [source, 128], memory_values_0 [source, 128], memory_keys_1 [source, 128], \
             memory_values_1 [source, 128]",
        ),
    ];
    for (make, inputs, outputs) in promised {
        let signature = signature(make);
        assert_eq!((&*shown(&signature.inputs), &*shown(&signature.outputs)), (inputs, outputs));
    }
    let Signature { inputs, outputs, .. } = signature(transformer::decoder);
    let past = "keys_0 [past, 128], values_0 [past, 128], keys_1 [past, 128], values_1 [past, 128]";
    assert!(shown(&inputs).starts_with(&format!("token [], past_length [], memory_length [], {past}, memory_")));
    let newest = "key_0 [128], value_0 [128], key_1 [128], value_1 [128]";
    assert_eq!(shown(&outputs), format!("{newest}, next_token []"));
}

#[test]
fn tokens_are_whole_numbers_of_64_bits() {
    let tokens =
        ["token", "x", "next_token", "past_length", "memory_length", "source", "source_length", "frames_length"];
    for (name, make) in ALL {
        let Signature { inputs, outputs, .. } = signature(make);
        for port in inputs.iter().chain(&outputs) {
            let is_number = tokens.contains(&port.name.as_str())
                && port.dims.as_ref().is_none_or(|dims| dims.len() == 1)
                || port.name == "source";
            let expected = if is_number { DataType::Int64 } else { DataType::Fp32 };
            assert_eq!(port.datatype, Some(expected), "{name}: {}", port.name);
        }
    }
}

#[test]
fn widths_scale_states_and_vocabularies() {
    let weights = |model: Model| {
        let graph = model.0.graph.expect("a graph");
        graph.initializer.iter().map(|tensor| tensor.dims.iter().product::<i64>()).sum::<i64>()
    };
    let full = weights(lstm::step(Width::FULL).expect("sound"));
    assert_eq!(full, 2_000 * 1_024 + 2_048 * 4_096 + 4_096);
    assert_eq!(weights(made(lstm::step)), 2_000 * 256 + 512 * 1_024 + 1_024);
    let halves = [lstm::project, lstm::projected_step].map(|make| weights(made(make)));
    assert_eq!(halves, [2_000 * 256 + 256 * 1_024 + 1_024, 256 * 1_024], "together those of the step");
    let projected = 256 * 2_000 + 2_000;
    assert_eq!(weights(made(seq2seq::decoder)) - weights(made(seq2seq::encoder)), projected);
}

#[test]
fn the_states_of_a_stream_have_their_batch_where_encoders_have_it() {
    let Signature { inputs, outputs, .. } = signature(conformer::chunk);
    assert_eq!((inputs.len(), outputs.len()), (2 + 3 * 6, 2 + 3 * 6));
    let batch = |ports: &[Port], name: &str| {
        let port = ports.iter().find(|port| port.name == name).unwrap_or_else(|| panic!("there is a {name}"));
        port.dims.as_ref().and_then(|dims| dims.iter().position(|dim| *dim == PortDim::from("batch")))
    };
    for (name, axis) in [("past", 0), ("keys_0", 1), ("values_5", 1), ("convolved_3", 0)] {
        assert_eq!(batch(&inputs, name), Some(axis), "{name}");
        assert_eq!(batch(&outputs, &format!("{name}_next")), Some(axis), "{name}");
    }
}
