use paternoster_batching::{Policy, QueueKnobs, WindowKnobs};

use super::*;
use crate::{
    ConfigErrorKind::Value,
    check, complete, convert, pbtxt,
    tests::refusals::{Refusals, part},
    unfold, yaml,
};

const TENSORS: &str = "max_batch_size: 8
input { name: \"x\" data_type: TYPE_INT64 dims: [ 1 ] }
output { name: \"y\" data_type: TYPE_INT64 dims: [ 1 ] }
";
const STATE: &str = "state { input_name: \"total\" output_name: \"total_next\" data_type: TYPE_INT64 dims: [ 1 ] }";

fn completed(text: &str) -> (Settings, Origin) {
    let (mut config, origin) = pbtxt::parse("config.pbtxt", text.as_bytes()).unwrap_or_else(|fault| panic!("{fault}"));
    complete::defaults(&mut config, "m");
    (config, origin)
}

fn policy(config: &Settings, origin: &Origin) -> (SequenceKnobs, QueueKnobs) {
    check::consistent(config, None, origin).unwrap_or_else(|fault| panic!("{fault}"));
    let (_, knobs, _) = convert::model(config, 1, &BTreeMap::new(), origin).unwrap_or_else(|fault| panic!("{fault}"));
    let Policy::Cellular(cellular) = knobs.policy else { panic!("sequences run by cells") };
    (cellular.sequences.expect("it has sequences"), knobs.queueing.default_queue)
}

#[test]
fn a_row_of_each_instance_is_a_slot_unless_candidates_are_counted() {
    let limits = |text: &str| {
        let (config, origin) = completed(&format!("{TENSORS}{text}"));
        policy(&config, &origin).0
    };
    let second = 1_000_000_000;
    let direct = SequenceKnobs { max_sequences: 16, max_idle_ns: second };
    assert_eq!(limits("sequence_batching { }"), direct);
    assert_eq!(limits("sequence_batching { direct { } }"), direct);
    let one = "instance_group { count: 1 } sequence_batching { max_sequence_idle_microseconds: 5 }";
    assert_eq!(limits(one), SequenceKnobs { max_sequences: 8, max_idle_ns: 5_000 });
    let oldest = "sequence_batching { oldest { max_candidate_sequences: 3 } }";
    assert_eq!(limits(oldest), SequenceKnobs { max_sequences: 3, ..direct });
}

#[test]
fn strategies_wait_for_fuller_batches_as_they_say() {
    let window = |text: &str| {
        let (config, origin) = completed(&format!("{TENSORS}sequence_batching {{ {text} }}"));
        check::consistent(&config, None, &origin).unwrap_or_else(|fault| panic!("{fault}"));
        let knobs = convert::model(&config, 1, &BTreeMap::new(), &origin).unwrap_or_else(|fault| panic!("{fault}")).1;
        let Policy::Cellular(cellular) = knobs.policy else { panic!("sequences run by cells") };
        cellular.window
    };
    let waits = |preferred_batch_sizes: &[u32], us: u64| {
        Some(WindowKnobs { preferred_batch_sizes: preferred_batch_sizes.to_vec(), max_queue_delay_ns: us * 1_000 })
    };
    let oldest =
        "oldest { max_candidate_sequences: 4 preferred_batch_size: [ 2, 4 ] max_queue_delay_microseconds: 50 }";
    assert_eq!(window(oldest), waits(&[2, 4], 50));
    assert_eq!(window("oldest { max_candidate_sequences: 4 max_queue_delay_microseconds: 50 }"), waits(&[], 50));
    assert_eq!(window("oldest { max_candidate_sequences: 4 }"), None);
    let direct = "direct { minimum_slot_utilization: 0.7 max_queue_delay_microseconds: 50 }";
    assert_eq!(window(direct), waits(&[6, 7, 8], 50), "0.7 of 8 slots are more than 5");
    assert_eq!(window("direct { max_queue_delay_microseconds: 50 }"), None, "as Triton: no share, no wait");
}

#[test]
fn a_program_is_the_one_cell_of_its_requests_with_state_and_controls_beside_their_inputs() {
    let text = format!(
        "{TENSORS}sequence_batching {{ {STATE}
           control_input {{ name: \"START\" control {{ kind: CONTROL_SEQUENCE_START int32_false_true: [ 3, 4 ] }} }}
           control_input {{ name: \"ID\" control {{ kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64 }} }} }}"
    );
    let (config, origin) = completed(&text);
    policy(&config, &origin);
    let request = as_cells(&config, &BTreeMap::new(), &origin).expect("it is sound").expect("it has sequences");
    assert_eq!((request.cells.len(), request.cells[0].program.as_str(), request.max_rows()), (1, "model.onnx", 8));
    let sources = &request.segments[0].sources;
    assert_eq!(sources["x"], CellInputSource::Whole(Tensor::Input(0)));
    let start = Start::Row(Constant::Value(0.0));
    let total = CellInputSource::Carried { output: "total_next".to_owned(), start, is_kept: true };
    assert_eq!(sources["total"], total);
    let [no, yes] = [3.0, 4.0].map(Constant::Value);
    assert_eq!(sources["START"], CellInputSource::Control { control: Control::Start, no, yes });
    assert_eq!(sources["ID"], CellInputSource::CorrelationId);
    assert_eq!(inputs(&config.config).collect::<Vec<_>>(), ["total", "START", "ID"]);
    assert_eq!(outputs(&config.config).collect::<Vec<_>>(), ["total_next"]);
}

/// Reads a model whose initial state is in a file of these bytes.
fn with_initial_state(bytes: &'static [u8]) -> Result<Option<UnfoldRequest>, ConfigError> {
    let initial = "initial_state { data_type: TYPE_INT64 dims: [ 1 ] data_file: \"seven\" }";
    let state = STATE.replace("dims: [ 1 ] }", &format!("dims: [ 1 ] {initial} }}"));
    let (config, origin) = completed(&format!("{TENSORS}sequence_batching {{ {state} }}"));
    policy(&config, &origin);
    assert_eq!(files(&config.config).collect::<Vec<_>>(), [("total", "seven")]);
    as_cells(&config, &BTreeMap::from([("total".to_owned(), Bytes::from_static(bytes))]), &origin)
}

#[test]
fn an_initial_state_is_as_long_as_its_dims() {
    let request = with_initial_state(&[7; 8]).expect("it is long enough").expect("it has sequences");
    let start = Start::Row(Constant::Elements(Bytes::from_static(&[7; 8])));
    let expected = CellInputSource::Carried { output: "total_next".to_owned(), start, is_kept: true };
    assert_eq!(request.segments[0].sources["total"], expected);
}

const KEEPING: &str = "
cells: { step: { program: step.onnx, batch_sizes: [1, 32] } }
inputs: [{ name: tokens, dtype: INT64, dims: [-1] }]
outputs: [{ name: hidden, dtype: FP32, dims: [4] }]
unfold: [{ chain: { cell: step, over: tokens, as: x, keep: { h: h_next }, emit: { hidden: last(h_next) } } }]
sequence_batching:
  max_sequence_idle_us: 250
  queue: { timeout_action: delay, default_timeout_us: 9, max_queue_size: 5 }
";

#[test]
fn model_yaml_says_the_same_and_has_a_queue_beside_it() {
    let (mut config, origin) = yaml::parse("model.yaml", KEEPING.as_bytes()).unwrap_or_else(|fault| panic!("{fault}"));
    complete::defaults(&mut config, "m");
    let (limits, queue) = policy(&config, &origin);
    assert_eq!(limits, SequenceKnobs { max_sequences: 32, max_idle_ns: 250_000 }, "rows of the one instance");
    let expected = QueueKnobs {
        timeout_action: paternoster_batching::TimeoutAction::Delay,
        default_timeout_ns: 9_000,
        allow_timeout_override: true,
        max_queue_size: 5,
    };
    assert_eq!(queue, expected);
    let counted = KEEPING.replace("max_sequence_idle_us: 250", "max_candidate_sequences: 7");
    let (mut config, origin) = yaml::parse("model.yaml", counted.as_bytes()).unwrap_or_else(|fault| panic!("{fault}"));
    complete::defaults(&mut config, "m");
    assert_eq!(policy(&config, &origin).0.max_sequences, 7);
}

#[test]
fn a_program_without_a_batch_axis_runs_one_request_at_a_time() {
    let text = format!("{}sequence_batching {{ {STATE} }}", TENSORS.replace("size: 8", "size: 0"));
    let (config, origin) = completed(&text);
    let (limits, _) = policy(&config, &origin);
    assert_eq!(limits.max_sequences, 2, "one for each instance");
    let request = as_cells(&config, &BTreeMap::new(), &origin).expect("it is sound").expect("it has sequences");
    assert_eq!(request.max_rows(), 1);
}

#[test]
fn tensors_have_the_batch_where_graph_and_configuration_agree() {
    use paternoster_engine::TensorBatch;
    use paternoster_model::Dims;
    use paternoster_onnx::{Port, PortDim, Signature};
    let port = |name: &str, dims: &[i64]| {
        let dims = dims.iter().map(|&dim| if dim < 0 { PortDim::Unknown } else { PortDim::Fixed(dim) });
        Port::tensor(name, DataType::Int64, &dims.collect::<Vec<_>>())
    };
    let signature = Signature {
        inputs: vec![port("x", &[-1, 1]), port("total", &[2, -1, 3]), port("rate", &[])],
        outputs: vec![port("y", &[-1, 1]), port("total_next", &[-1, -1, -1])],
        ..Signature::default()
    };
    let of = |largest: u32, dims: &str| {
        let text = format!("{TENSORS}sequence_batching {{ {STATE} }}").replace("size: 8", &format!("size: {largest}"));
        let (config, _) =
            completed(&text.replace("TYPE_INT64 dims: [ 1 ] }", &format!("TYPE_INT64 dims: [ {dims} ] }}")));
        let found = tensors(&config.config, &signature);
        found.into_iter().map(|(name, tensor)| (name, (tensor.batch, tensor.dims))).collect::<BTreeMap<_, _>>()
    };
    let dims = Some(Dims::from_slice(&[2, 3]));
    let expected = [
        ("rate".to_owned(), (TensorBatch::None, None)),
        ("total".to_owned(), (TensorBatch::Axis(1), dims.clone())),
        ("total_next".to_owned(), (TensorBatch::Axis(1), dims)),
    ];
    assert_eq!(of(8, "2, 3"), BTreeMap::from(expected), "others have it on axis 0");
    let single = of(0, "2, 1, 3");
    assert_eq!(single.len(), 5);
    assert!(single.values().all(|(batch, _)| *batch == TensorBatch::None), "{single:?}");
}

fn port(name: &str, dims: &[i64]) -> Port {
    let dims = dims.iter().map(|&dim| if dim < 0 { PortDim::Unknown } else { PortDim::Fixed(dim) });
    Port::tensor(name, DataType::Fp32, &dims.collect::<Vec<_>>())
}

#[test]
fn the_batch_is_the_axis_beside_which_the_dims_agree() {
    let axis = |graph: &[i64], dims: &[i64]| state_axis(&port("s", graph), dims);
    assert_eq!(axis(&[-1, 2, 128], &[2, 128]), Some(0));
    assert_eq!(axis(&[2, -1, 128], &[2, 128]), Some(1));
    assert_eq!(axis(&[2, 128, -1], &[2, 128]), Some(2));
    assert_eq!(axis(&[-1, -1, -1], &[2, 128]), Some(0), "axis 0 where several could be");
    assert_eq!(axis(&[2, -1, 128], &[3, 128]), None);
    assert_eq!(axis(&[2, 1, 128], &[2, 128]), None, "no axis varies");
    assert_eq!(axis(&[2, -1], &[2, 128]), None);
    assert_eq!(with_first(&port("s", &[2, -1, 128]), 1), port("s", &[-1, 2, 128]));
    assert_eq!(state_axis(&Port { dims: None, ..port("s", &[]) }, &[2]), None);
}

pub(crate) fn refusals(all: &mut Refusals) {
    let read = |text: &str| {
        let (config, origin) = completed(&format!("{TENSORS}{text}"));
        check::consistent(&config, None, &origin)
    };
    part(all, "sequences", read).refuses(&[
        (
            Value,
            "4:30 sequence_batching.direct.max_queue_delay_microseconds",
            "sequence_batching { direct { max_queue_delay_microseconds: 86400000001 } }",
        ),
        (Value, "4:21 sequence_batching.oldest.max_candidate_sequences", "sequence_batching { oldest { } }"),
        (
            Value,
            "4:29 sequence_batching.state[0].input_name",
            "sequence_batching { state { input_name: \"x\" output_name: \"n\" data_type: TYPE_INT64 } }",
        ),
        (
            Value,
            "4:84 sequence_batching.state[0].dims",
            "sequence_batching { state { input_name: \"s\" output_name: \"n\" data_type: TYPE_INT64 dims: [ -1 ] } }",
        ),
        (
            Value,
            "4:62 sequence_batching.state[0].data_type",
            "sequence_batching { state { input_name: \"s\" output_name: \"n\" data_type: TYPE_STRING dims: [ 1 ] } }",
        ),
        (
            Value,
            "4:21 sequence_batching.state[0].output_name",
            "sequence_batching { state { input_name: \"s\" data_type: TYPE_INT64 dims: [ 1 ] } }",
        ),
        (
            Value,
            "4:47 sequence_batching.control_input[0].control",
            "sequence_batching { control_input { name: \"c\" control { kind: CONTROL_SEQUENCE_START } } }",
        ),
        (
            Value,
            "4:47 sequence_batching.control_input[0].control",
            "sequence_batching { control_input { name: \"c\" control { kind: CONTROL_SEQUENCE_END int32_false_true: \
             [ 0 ] } } }",
        ),
        (
            Value,
            "4:47 sequence_batching.control_input[0].control",
            "sequence_batching { control_input { name: \"c\" control { kind: CONTROL_SEQUENCE_CORRID data_type: \
             TYPE_FP32 } } }",
        ),
        (
            Value,
            "4:21 sequence_batching.control_input[0].control",
            "sequence_batching { control_input { name: \"c\" } }",
        ),
        (
            Value,
            "4:34 parameters[batching.policy]",
            "sequence_batching { } parameters { key: \"batching.policy\" value { string_value: \"window\" } }",
        ),
        (
            Value,
            "4:34 parameters[stages]",
            "sequence_batching { } parameters { key: \"stages\" value { string_value: \"2\" } }",
        ),
        (
            Value,
            "4:12 parameters[batching.sequences.max_queue_size]",
            "parameters { key: \"batching.sequences.max_queue_size\" value { string_value: \"2\" } }",
        ),
        (
            Value,
            "4:21 sequence_batching.state",
            "sequence_batching { state { input_name: \"s\" output_name: \"n\" data_type: TYPE_INT64 dims: [ 1 ]
               initial_state { data_type: TYPE_INT64 dims: [ 1 ] data_file: \"../x\" } } }",
        ),
    ]);
    part(all, "sequences: model.yaml", |given| {
        let (from, to) = given.split_once(" => ").expect("a replacement");
        assert!(KEEPING.contains(from), "{from}");
        let text = KEEPING.replace(from, to);
        let (config, origin) = yaml::parse("model.yaml", text.as_bytes())?;
        unfold::read(&config, &origin)
    })
    .refuses(&[
        (
            Value,
            "5:62 unfold[0].chain.keep.h",
            "sequence_batching:\n  max_sequence_idle_us: 250\n  queue: => parameters:\n  queue: x\n#",
        ),
        (Value, "5:13 batching.queueing", "unfold: => batching: { queueing: { preserve_ordering: true } }\nunfold:"),
    ]);
    all.title("sequences: an initial state");
    all.add(Value, "4:109 sequence_batching.state[0].initial_state", "nine bytes", with_initial_state(&[7; 9]));
}
