use paternoster_batching::{CellularKnobs, LazyKnobs, WindowKnobs};
use paternoster_model::DataType;

use super::*;
use crate::{model_config::datatype_to_pb, pbtxt, stages::StageCuts, values::DataTypeName, yaml};

fn from_pbtxt(text: &str) -> (ModelSpec, Knobs) {
    let (config, origin) = pbtxt::parse("config.pbtxt", text.as_bytes()).unwrap();
    let (spec, knobs, _) = model(&config, 3, &BTreeMap::new(), &origin).unwrap_or_else(|fault| panic!("{fault}"));
    (spec, knobs)
}

const TENSORS: &str =
    "input { name: \"x\" data_type: TYPE_FP32 dims: [ 4 ] } output { name: \"y\" data_type: TYPE_STRING dims: [ -1 ] }";

#[test]
fn datatypes_correspond_both_ways() {
    let named = |name: &str| name.parse::<DataTypeName>().map(|named| named.0);
    for datatype in DataType::ALL {
        let number: i32 = datatype_to_pb(datatype).into();
        assert_eq!(super::datatype(number), Some(datatype));
        assert_eq!(named(datatype.as_str()), Ok(datatype));
        assert_eq!(named(datatype_to_pb(datatype).as_str_name()), Ok(datatype));
    }
    assert_eq!(super::datatype(0), None);
    assert_eq!(super::datatype(15), None);
    assert_eq!(super::datatype(-1), None);
}

#[test]
fn without_a_scheduler_a_model_is_serial() {
    let (spec, knobs) = from_pbtxt(&format!(
        "name: \"m\" max_batch_size: 8 {TENSORS} instance_group {{ count: 2 }} instance_group {{ count: 3 }}"
    ));
    assert_eq!((spec.name.as_str(), spec.version, spec.max_batch_size), ("m", 3, 8));
    assert_eq!(spec.outputs[0].datatype, DataType::Bytes);
    assert_eq!(spec.outputs[0].dims.as_slice(), [-1]);
    assert_eq!(knobs, Knobs { max_batch_rows: 8, max_in_flight: 5, ..Knobs::default() });
}

#[test]
fn a_model_without_a_batch_axis_is_never_merged() {
    let (spec, knobs) = from_pbtxt(TENSORS);
    assert!(!spec.has_batch_axis());
    assert_eq!((knobs.max_batch_rows, knobs.mergeable), (1, false));
}

#[test]
fn a_model_without_a_batch_axis_keeps_its_queue() {
    let queue = "dynamic_batching { priority_levels: 2 default_priority_level: 1
                 default_queue_policy { max_queue_size: 3 } }";
    let serial = "parameters { key: \"batching.policy\" value { string_value: \"serial\" } }";
    for text in [format!("{TENSORS} {queue}"), format!("max_batch_size: 8 {TENSORS} {queue} {serial}")] {
        let (_, knobs) = from_pbtxt(&text);
        assert_eq!(knobs.policy, Policy::Serial);
        assert_eq!((knobs.queueing.priority_levels, knobs.queueing.default_queue.max_queue_size), (2, 3));
    }
}

#[test]
fn scalars_lose_their_dimension_in_the_graph() {
    let (mut spec, _) = from_pbtxt(&TENSORS.replace("[ 4 ]", "[ 1 ]"));
    let scalar = Port::tensor("x", DataType::Fp32, &[]);
    let signature = Signature { inputs: vec![scalar], ..Signature::default() };
    scalars(&mut spec, &pb::ModelConfig::default(), &signature);
    assert_eq!(spec.inputs[0].reshape.as_deref(), Some([].as_slice()));
    assert_eq!(spec.outputs[0].reshape, None);
}

#[test]
fn dynamic_batching_becomes_the_window() {
    let (_, knobs) = from_pbtxt(&format!(
        "max_batch_size: 8 {TENSORS} dynamic_batching {{ preferred_batch_size: [ 8, 2, 2 ]
         max_queue_delay_microseconds: 100
         preserve_ordering: true priority_levels: 18446744073709551615 default_priority_level: 4294967296
         default_queue_policy {{ timeout_action: DELAY default_timeout_microseconds: 7
         allow_timeout_override: true max_queue_size: 9 }}
         priority_queue_policy {{ key: 1 value {{ max_queue_size: 1 }} }} }}
         parameters {{ key: \"batching.bucket_width\" value {{ string_value: \"16\" }} }}"
    ));
    let queue = QueueKnobs {
        timeout_action: TimeoutAction::Delay,
        default_timeout_ns: 7_000,
        allow_timeout_override: true,
        max_queue_size: 9,
    };
    let window = WindowKnobs { preferred_batch_sizes: vec![2, 8], max_queue_delay_ns: 100_000 };
    let queueing = QueueingKnobs {
        preserve_ordering: true,
        priority_levels: u64::MAX,
        default_priority_level: 1 << 32,
        default_queue: queue,
        level_queues: vec![(1, QueueKnobs { max_queue_size: 1, ..QueueKnobs::default() })],
        bucket_width: Some(16),
        hold_until_waiting: 0,
        hold_until_backlog: 0,
    };
    assert_eq!(knobs.policy, Policy::Window(window));
    assert_eq!(knobs.queueing, queueing);
}

#[test]
fn what_all_policies_have_in_common_reaches_the_knobs() {
    let parameter =
        |key: &str, value: &str| format!("parameters {{ key: \"{key}\" value {{ string_value: \"{value}\" }} }}");
    let text = format!(
        "max_batch_size: 8 {TENSORS} dynamic_batching {{ priority_levels: 2 default_priority_level: 1 }} {} {} {} {} \
         {}",
        parameter("batching.policy", "lazy"),
        parameter("batching.latency_objective_ms", "12.5"),
        parameter("batching.weight", "3"),
        parameter("batching.buffer_pairs", "1"),
        parameter("stages", "4"),
    );
    let (config, origin) = pbtxt::parse("config.pbtxt", text.as_bytes()).unwrap();
    let (_, knobs, stages) = model(&config, 1, &BTreeMap::new(), &origin).unwrap();
    let queueing = QueueingKnobs { priority_levels: 2, default_priority_level: 1, ..QueueingKnobs::default() };
    let expected = Knobs {
        max_batch_rows: 8,
        objective_ns: Some(12_500_000),
        weight: 3,
        buffer_pairs: 1,
        queueing,
        policy: Policy::Lazy(LazyKnobs::default()),
        ..Knobs::default()
    };
    assert_eq!(knobs, expected, "with one stage until the graph is cut");
    assert_eq!(stages.cuts, StageCuts::Parts(4));
}

#[test]
fn the_knobs_of_a_model_of_cells_wait_for_its_programs() {
    let text = "inputs: [ { name: x, dtype: FP32, dims: [n] } ]\noutputs: [ { name: y, dtype: FP32, dims: [1] } ]\n\
                cells: { a: { program: a.onnx, batch_sizes: [4, 512] }, b: { program: b.onnx } }\n\
                unfold: [ stage: a, chain: { cell: b, over: x, as: x, emit: { y: last(y) } } ]\nmax_batch_size: 0\n";
    let (config, origin) = yaml::parse("model.yaml", text.as_bytes()).unwrap();
    let (spec, knobs, stages) = model(&config, 1, &BTreeMap::new(), &origin).unwrap();
    let expected = Knobs {
        max_batch_rows: 512,
        stages: StageKnobs::chain(2),
        policy: Policy::Cellular(CellularKnobs::default()),
        ..Knobs::default()
    };
    assert_eq!(knobs, expected, "which run together, though the model has no batch axis");
    assert_eq!((spec.max_batch_size, stages), (0, StageRequest::default()));
}

#[test]
fn padded_axes_are_symbols_of_inputs_and_outputs() {
    let text = "max_batch_size: 4\ninputs:\n- { name: ids, dtype: INT64, dims: [tokens], pad: { axis: tokens, \
                value: 7 } }\n\
                outputs:\n- { name: hidden, dtype: FP32, dims: [tokens, 384] }\n- { name: pooled, dtype: FP32, dims: \
                [384] }\n\
                - { name: other, dtype: FP32, dims: [elsewhere] }\n";
    let (config, origin) = yaml::parse("model.yaml", text.as_bytes()).unwrap();
    let (spec, ..) = model(&config, 1, &BTreeMap::new(), &origin).unwrap();
    assert_eq!(spec.symbols, ["tokens"]);
    assert_eq!(spec.inputs[0].symbols.as_slice(), [Some(SymbolId(0))]);
    assert!((spec.inputs[0].pad_value - 7.0).abs() < f64::EPSILON);
    assert_eq!(spec.outputs[0].symbols.as_slice(), [Some(SymbolId(0)), None]);
    assert!(spec.outputs[1].symbols.is_empty());
    assert!(spec.outputs[2].symbols.is_empty(), "a name that nothing pads");
}

#[test]
fn labels_reshape_and_decoupling_reach_the_specification() {
    let text = "input { name: \"x\" data_type: TYPE_FP32 dims: [ 1 ] reshape { shape: [ ] } optional: true }
                output { name: \"y\" data_type: TYPE_FP32 dims: [ 2 ] } model_transaction_policy { decoupled: true }";
    let (config, origin) = pbtxt::parse("config.pbtxt", text.as_bytes()).unwrap();
    let labels = BTreeMap::from([("y".to_owned(), vec!["cat".to_owned(), "dog".to_owned()])]);
    let (spec, ..) = model(&config, 1, &labels, &origin).unwrap();
    assert_eq!(spec.inputs[0].reshape.as_deref(), Some([].as_slice()));
    assert!(spec.inputs[0].optional && spec.decoupled);
    assert_eq!(*spec.outputs[0].labels, ["cat", "dog"]);
}
