use proptest::prelude::*;

use super::*;

const OPERATORS: [&str; 71] = [
    "Add",
    "ArgMax",
    "AveragePool",
    "BatchNormalization",
    "Cast",
    "CastLike",
    "Clip",
    "Concat",
    "Constant",
    "ConstantOfShape",
    "Conv",
    "ConvTranspose",
    "CumSum",
    "DepthToSpace",
    "DequantizeLinear",
    "Div",
    "Dropout",
    "Equal",
    "Erf",
    "Expand",
    "EyeLike",
    "Flatten",
    "GRU",
    "Gather",
    "GatherElements",
    "Gelu",
    "Gemm",
    "GlobalAveragePool",
    "Identity",
    "If",
    "InstanceNormalization",
    "LSTM",
    "LayerNormalization",
    "LogSoftmax",
    "Loop",
    "LpNormalization",
    "MatMul",
    "MaxPool",
    "Max",
    "Min",
    "Mod",
    "Mul",
    "NonZero",
    "OneHot",
    "Pad",
    "QuantizeLinear",
    "RNN",
    "Range",
    "ReduceSum",
    "Relu",
    "Reshape",
    "Resize",
    "Scan",
    "ScatterElements",
    "Shape",
    "Size",
    "Slice",
    "Softmax",
    "SpaceToDepth",
    "Split",
    "Squeeze",
    "Sub",
    "Tile",
    "TopK",
    "Transpose",
    "Trilu",
    "Unsqueeze",
    "Upsample",
    "Where",
    "QLinearConv",
    "QLinearMatMul",
];

const ATTRIBUTES: [&str; 27] = [
    "axis",
    "axes",
    "perm",
    "to",
    "kernel_shape",
    "strides",
    "pads",
    "dilations",
    "group",
    "split",
    "shape",
    "value_ints",
    "value_int",
    "k",
    "blocksize",
    "keepdims",
    "start",
    "end",
    "starts",
    "ends",
    "output_padding",
    "output_shape",
    "hidden_size",
    "layout",
    "num_scan_inputs",
    "scan_input_axes",
    "scan_output_axes",
];

fn numbers() -> impl Strategy<Value = Vec<i64>> {
    let number = prop_oneof![8 => -3_i64..6, 1 => Just(i64::MAX), 1 => Just(i64::MIN), 1 => Just(1 << 40)];
    prop::collection::vec(number, 0..5)
}

fn attribute() -> impl Strategy<Value = pb::AttributeProto> {
    (prop::sample::select(&ATTRIBUTES[..]), numbers()).prop_map(|(name, ints)| pb::AttributeProto {
        name: Some(name.to_owned()),
        i: ints.first().copied(),
        ints,
        ..Default::default()
    })
}

/// Nodes of known operators with incompatible operands, outputs and attributes.
pub(crate) fn graphs() -> impl Strategy<Value = pb::GraphProto> {
    let attributes = prop::collection::vec(attribute(), 0..4);
    let operands = prop::collection::vec(0_usize..12, 0..6);
    let node = (prop::sample::select(&OPERATORS[..]), operands, 0_usize..3, attributes);
    let weights = prop::collection::vec((numbers(), numbers()), 4);
    (prop::collection::vec(node, 1..24), weights, prop::collection::vec(numbers(), 2)).prop_map(
        |(nodes, weights, shapes)| {
            let mut graph = pb::GraphProto::default();
            for (at, dims) in shapes.iter().enumerate() {
                let dims: Vec<PortDim> = dims
                    .iter()
                    .map(
                        |&length| {
                            if length < 1 { PortDim::Symbol(format!("s{length}")) } else { PortDim::Fixed(length) }
                        },
                    )
                    .collect();
                graph.input.push(crate::port::declare(&format!("t{at}"), DataType::Fp32, &dims));
            }
            for (at, (dims, values)) in weights.into_iter().enumerate() {
                let plain = at % 2 == 0;
                graph.initializer.push(pb::TensorProto {
                    name: Some(format!("t{}", at + 2)),
                    data_type: Some(7),
                    dims: if plain { vec![values.len() as i64] } else { dims },
                    int64_data: values,
                    ..Default::default()
                });
            }
            for (at, (op, operands, outputs, attribute)) in nodes.into_iter().enumerate() {
                let name = |tensor: usize| if tensor == 11 { String::new() } else { format!("t{tensor}") };
                graph.node.push(pb::NodeProto {
                    op_type: Some(op.to_owned()),
                    // Recent results, or the inputs and weights.
                    input: operands
                        .into_iter()
                        .map(|back| name(if back < 6 { back } else { (at + back).min(10 + at) }))
                        .collect(),
                    output: (0..=outputs).map(|more| format!("t{}", at + 6 + 100 * more)).collect(),
                    attribute,
                    ..Default::default()
                });
            }
            graph
        },
    )
}

pub(crate) fn model(graph: pb::GraphProto, opset: i64) -> Model {
    let set = pb::OperatorSetIdProto { domain: None, version: Some(opset) };
    Model(pb::ModelProto { graph: Some(graph), opset_import: vec![set], ..Default::default() })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn no_graph_makes_inference_panic_or_claim_negative_lengths(graph in graphs(), opset in 5_i64..22) {
        let inferred = infer(&model(graph, opset));
        for info in inferred.tensors.values() {
            let negative = |dim: &PortDim| matches!(dim, PortDim::Fixed(..0));
            prop_assert!(!info.dims.iter().flatten().any(negative), "{info:?}");
        }
    }
}

#[test]
fn a_long_chain_is_followed_in_one_pass() {
    let Texts { mut graph, ids, .. } = texts();
    let mut x = ids;
    for _ in 0..100_000 {
        x = graph.op("Relu", &[&x]).value();
    }
    graph.output(&x, DataType::Int64, &dims!["batch", "tokens"]);
    let inferred = infer(&graph.finish().expect("sound"));
    assert_eq!(inferred.tensor(x.name()), Some(&by_rows(DataType::Int64, &dims!["batch", "tokens"])));
}

#[test]
fn squaring_a_length_over_and_over_ends_in_an_unknown_one() {
    let info = known(|graph, ids, _| {
        let mut value = graph.op("Size", &[ids]).value();
        for _ in 0..1000 {
            value = graph.op("Mul", &[&value, &value]).value();
        }
        value
    });
    assert_eq!(cause(&info), "computes with the number of rows");
}

#[test]
fn weights_of_many_axes_have_an_unknown_rank() {
    let tensor = pb::TensorProto { name: Some("w".to_owned()), dims: vec![1; 1000], ..Default::default() };
    let graph = pb::GraphProto { initializer: vec![tensor], ..Default::default() };
    assert_eq!(infer(&model(graph, 17)).tensor("w").expect("it is there").dims, None);
}
