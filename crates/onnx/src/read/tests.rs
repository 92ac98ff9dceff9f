use std::{fs, path::PathBuf};

use paternoster_model::DataType;
use proptest::prelude::*;

use super::*;
use crate::{Model, PortDim, build::Graph, fuzz::onnx, port::dims, zoo};

fn of(model: &Model) -> Signature {
    Signature::from_bytes("tested", &model.to_bytes()).expect("what the builder writes can be read")
}

fn refusal(bytes: &[u8]) -> String {
    Signature::from_bytes("m/1/model.onnx", bytes).expect_err("this is no model").to_string()
}

#[test]
fn inputs_and_outputs_come_with_types_and_dimensions() {
    let found = of(&zoo::add_sub().expect("sound"));
    let names = |ports: &[Port]| ports.iter().map(|port| port.name.clone()).collect::<Vec<_>>();
    assert_eq!(names(&found.inputs), ["INPUT0", "INPUT1"]);
    assert_eq!(names(&found.outputs), ["OUTPUT0", "OUTPUT1"]);
    let first = &found.inputs[0];
    assert_eq!((first.datatype, first.type_name), (Some(DataType::Fp32), "FLOAT"));
    assert_eq!(first.dims.as_deref(), Some(dims!["batch", 16].as_slice()));
    assert_eq!((found.opset, found.ir_version, found.producer.as_str()), (Some(17), 8, "paternoster"));
}

#[test]
fn every_datatype_is_read_back() {
    for datatype in DataType::ALL {
        let found = of(&zoo::identity_of(datatype, &[PortDim::Unknown]).expect("sound"));
        assert_eq!(found.inputs[0].datatype, Some(datatype));
        assert_eq!(found.outputs[0].dims, Some(vec![PortDim::Unknown]));
    }
}

#[test]
fn weights_are_no_inputs_even_where_they_are_declared_as_such() {
    let mut model = zoo::scale(2.0).expect("sound");
    let graph = model.0.graph.as_mut().expect("a graph");
    graph.input.push(crate::port::declare("factor", DataType::Fp32, &dims![1]));
    let names = |ports: &[Port]| ports.iter().map(|port| port.name.clone()).collect::<Vec<_>>();
    let found = of(&model);
    assert_eq!(names(&found.inputs), ["INPUT0"]);
    assert_eq!(names(&found.optional_inputs), ["factor"], "a request may replace it");
    model.0.ir_version = Some(3);
    let found = of(&model);
    assert_eq!(names(&found.inputs), ["INPUT0"]);
    assert_eq!(names(&found.optional_inputs), [""; 0], "format version 3 declares all weights among the inputs");
}

#[test]
fn types_without_counterpart_are_named() {
    let mut model = zoo::identity().expect("sound");
    let graph = model.0.graph.as_mut().expect("a graph");
    let tensor = |elem_type, shape| pb::type_proto::Value::TensorType(pb::type_proto::Tensor { elem_type, shape });
    let declared = [
        (tensor(Some(17), None), "FLOAT8E4M3FN"),
        (tensor(Some(4711), None), "unknown"),
        (pb::type_proto::Value::SequenceType(Box::default()), "sequence"),
        (sequence_of_maps(), "sequence of maps"),
    ];
    graph.input = (0..declared.len())
        .map(|index| pb::ValueInfoProto {
            name: Some(format!("x{index}")),
            r#type: Some(pb::TypeProto { value: Some(declared[index].0.clone()), denotation: None }),
            ..Default::default()
        })
        .collect();
    let found = of(&model);
    for (port, (_, name)) in found.inputs.iter().zip(declared) {
        assert_eq!((port.datatype, port.type_name, &port.dims), (None, name, &None));
    }
}

/// The type that converters write for a classifier's probabilities.
fn sequence_of_maps() -> pb::type_proto::Value {
    let map = pb::type_proto::Value::MapType(Box::default());
    let elem_type = Some(Box::new(pb::TypeProto { value: Some(map), denotation: None }));
    pb::type_proto::Value::SequenceType(Box::new(pb::type_proto::Sequence { elem_type }))
}

#[test]
fn probabilities_as_maps_are_refused_with_a_way_out() {
    let mut model = zoo::identity().expect("sound");
    let graph = model.0.graph.as_mut().expect("a graph");
    graph.output[0].r#type = Some(pb::TypeProto { value: Some(sequence_of_maps()), denotation: None });
    let refusal = of(&model).outputs[0].refusal();
    assert!(refusal.starts_with("the graph gives 'OUTPUT0' as a sequence of maps, expected a tensor"), "{refusal}");
    assert!(refusal.contains("zipmap=False"), "{refusal}");
}

#[test]
fn shapes_of_outputs_that_the_file_does_not_declare_follow_from_its_nodes() {
    let mut graph = Graph::new("undeclared");
    let input = graph.input("x", DataType::Fp32, &dims!["batch", 4]);
    let sum = graph.op("ReduceSum", &[&input]).attr("keepdims", 0).value();
    let doubled = graph.op("Add", &[&input, &input]).value();
    for value in [&sum, &doubled] {
        graph.output(value, DataType::Fp32, &[]);
    }
    let mut model = graph.finish().expect("sound");
    let outputs = &mut model.0.graph.as_mut().expect("a graph").output;
    for output in outputs {
        let declared = output.r#type.as_mut().and_then(|declared| declared.value.as_mut());
        if let Some(pb::type_proto::Value::TensorType(tensor)) = declared {
            tensor.shape = None;
        }
    }
    let found = of(&model).outputs;
    assert_eq!(found[0].dims, Some(Vec::new()), "a scalar");
    assert_eq!(found[1].dims.as_deref(), Some(dims!["batch", 4].as_slice()));
}

#[test]
fn what_git_lfs_left_in_place_of_a_model_is_no_model() {
    let pointer = b"version https://git-lfs.github.com/spec/v1\n\
        oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\n\
        size 90387606\n";
    let refusal = refusal(pointer);
    assert!(refusal.starts_with("'m/1/model.onnx' is not an ONNX model: it is a pointer of Git LFS"), "{refusal}");
    assert!(refusal.contains("run 'git lfs pull'"), "{refusal}");
}

#[test]
fn refusals_name_the_file_and_the_fault() {
    assert_eq!(refusal(b""), "'m/1/model.onnx' is not an ONNX model: it holds no graph");
    assert!(refusal(b"garbage").contains("byte 0 begins a field of unknown wire type 7"), "{}", refusal(b"garbage"));
    let whole = zoo::identity().expect("sound").to_bytes();
    let cut = refusal(&whole[..whole.len() - 9]);
    assert!(cut.contains("bytes, but ") && cut.ends_with(" are left"), "{cut}");
    let missing = Signature::read(Path::new("nowhere/model.onnx")).expect_err("there is no such file").to_string();
    assert!(missing.starts_with("cannot read 'nowhere/model.onnx': "), "{missing}");
}

#[test]
fn a_name_that_is_declared_twice_is_refused() {
    let mut model = zoo::identity().expect("sound");
    let graph = model.0.graph.as_mut().expect("a graph");
    graph.input.push(graph.input[0].clone());
    assert!(refusal(&model.to_bytes()).ends_with("input 'INPUT0' is declared twice"));
    model.0.graph.as_mut().expect("a graph").input[1].name = None;
    assert!(refusal(&model.to_bytes()).ends_with("input 1 has no name"));
}

#[test]
fn declarations_without_end_are_refused() {
    // A million inputs without name and type, of zero bytes each.
    let inputs = [0x5a, 0x00].repeat(1 << 20);
    let mut file = vec![0x3a];
    prost::encode_length_delimiter(inputs.len(), &mut file).expect("it fits");
    file.extend_from_slice(&inputs);
    assert!(refusal(&file).contains("take more than 4194304 bytes"), "{}", refusal(&file));
}

#[test]
fn the_corpus_reads_as_its_names_say() {
    let corpus = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/corpus/onnx");
    let mut count = 0;
    for entry in fs::read_dir(corpus).expect("the corpus is committed") {
        let path = entry.expect("it can be listed").path();
        let readable = path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("good-"));
        assert_eq!(Signature::read(&path).is_ok(), readable, "{}", path.display());
        count += 1;
    }
    assert!(count >= 10, "only {count} files");
}

#[derive(Clone, Debug)]
enum Mutation {
    Flip { at: usize, bits: u8 },
    Cut { at: usize },
    Remove { at: usize, count: usize },
    Insert { at: usize, bytes: Vec<u8> },
    Repeat { at: usize, count: usize },
}

impl Mutation {
    fn any() -> impl Strategy<Value = Self> {
        let at = || any::<prop::sample::Index>().prop_map(|index| index.index(1 << 20));
        prop_oneof![
            4 => (at(), 1_u8..).prop_map(|(at, bits)| Self::Flip { at, bits }),
            1 => at().prop_map(|at| Self::Cut { at }),
            1 => (at(), 1_usize..20).prop_map(|(at, count)| Self::Remove { at, count }),
            2 => (at(), prop::collection::vec(any::<u8>(), 1..12)).prop_map(|(at, bytes)| Self::Insert { at, bytes }),
            1 => (at(), 1_usize..200).prop_map(|(at, count)| Self::Repeat { at, count }),
        ]
    }

    fn apply(self, bytes: &mut Vec<u8>) {
        let length = bytes.len().max(1);
        match self {
            Self::Flip { at, bits } if !bytes.is_empty() => bytes[at % length] ^= bits,
            Self::Flip { .. } => {}
            Self::Cut { at } => bytes.truncate(at % length),
            Self::Remove { at, count } => {
                let start = (at % length).min(bytes.len());
                bytes.drain(start..(start + count).min(bytes.len()));
            }
            Self::Insert { at, bytes: new } => {
                let start = (at % length).min(bytes.len());
                bytes.splice(start..start, new);
            }
            Self::Repeat { at, count } => {
                let start = (at % length).min(bytes.len());
                let part = bytes[start..(start + count).min(bytes.len())].to_vec();
                bytes.splice(start..start, part);
            }
        }
    }
}

fn seeds() -> Vec<Vec<u8>> {
    let mut nested = Graph::new("nested");
    let x = nested.input("x", DataType::Int64, &dims!["n"]);
    nested.output(&x, DataType::Int64, &dims!["n"]);
    let models = [zoo::slow(), zoo::add_sub(), zoo::lookup(), zoo::scale(3.0), nested.finish()];
    models.into_iter().map(|model| model.expect("sound").to_bytes().to_vec()).collect()
}

proptest! {
    #[test]
    fn mutated_models_are_survived(seed in 0_usize..5, mutations in prop::collection::vec(Mutation::any(), 1..8)) {
        let mut bytes = seeds().swap_remove(seed);
        mutations.into_iter().for_each(|mutation| mutation.apply(&mut bytes));
        onnx(&bytes);
    }

    #[test]
    fn arbitrary_bytes_are_survived(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        onnx(&bytes);
    }
}

#[test]
fn lengths_that_no_input_has_are_inferred() {
    let mut graph = Graph::new("speech");
    let speech = graph.input("speech", DataType::Fp32, &dims!["batch", "T", 2]);
    let (start, end) = (graph.literal(&[1_i64]), graph.literal(&[i64::MAX]));
    let (axis, step) = (graph.literal(&[1_i64]), graph.literal(&[3_i64]));
    let third = graph.op("Slice", &[&speech, &start, &end, &axis, &step]).value();
    let kernel = graph.constant("kernel", &[4, 2, 3], &[0.0_f32; 24]);
    let across = graph.op("Transpose", &[&speech]).attr("perm", [0_i64, 2, 1]).value();
    let moved = graph.op("Conv", &[&across, &kernel]).attr("strides", [2_i64]).attr("pads", [1_i64, 1]).value();
    let same = graph.op("Neg", &[&speech]).value();
    graph.output(&third, DataType::Fp32, &dims!["batch", "frames", 2]);
    graph.output(&moved, DataType::Fp32, &dims!["batch", 4, "steps"]);
    graph.output(&same, DataType::Fp32, &dims!["batch", "T", 2]);
    let found = of(&graph.finish().expect("sound"));
    let lengths = |name: &str| {
        let lengths = found.inferred_lengths.get(name)?.iter();
        Some(lengths.map(|length| length.clone().unwrap_or_default()).collect::<Vec<_>>())
    };
    let expected = |lengths: [&str; 3]| Some(lengths.map(str::to_owned).to_vec());
    assert_eq!(lengths(third.name()), expected(["", "((1 + T)//3)", "2"]));
    assert_eq!(lengths(moved.name()), expected(["", "4", "((1 + T)//2)"]));
    assert_eq!(lengths(same.name()), None, "the file says it");
    assert_eq!(found.outputs[0].dims.as_deref(), Some(dims!["batch", "frames", 2].as_slice()), "names are kept");
}

#[test]
fn a_name_that_says_nothing_is_none() {
    let found = of(&zoo::identity_of(DataType::Fp32, &dims!["?", "n"]).expect("sound"));
    assert_eq!(found.inputs[0].dims, Some(vec![PortDim::Unknown, PortDim::from("n")]));
}

#[test]
fn a_graph_that_needs_as_many_rows_as_columns_is_recognised() {
    let mut graph = Graph::new("square");
    let x = graph.input("x", DataType::Fp32, &dims!["batch", "batch"]);
    let y = graph.op("MatMul", &[&x, &x]).value();
    graph.output(&y, DataType::Fp32, &dims!["batch", "batch"]);
    assert!(of(&graph.finish().expect("sound")).needs_square);
    assert!(!of(&zoo::identity_of(DataType::Fp32, &dims!["batch", "batch"]).expect("sound")).needs_square);
}
