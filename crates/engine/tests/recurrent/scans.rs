//! Graphs with `Scan`, whose bodies are steps of recurrent layers.

use paternoster_model::DataType;
use paternoster_onnx::{
    PortDim,
    build::{Graph, Value},
};

use crate::exports::{
    Exported, FEATURES, HIDDEN, Layer, Noise, X, batch_input, linear, named_output, transposed, weight,
};

/// A `Scan` over `[batch, time, features]` or `[time, batch, features]` with a state `[batch, hidden]`.
pub(crate) struct Scan {
    /// The axis of the steps in what is scanned and stacked.
    pub(crate) axis: i64,
    pub(crate) reversed: bool,
    /// Whether it gives its outputs in the opposite order.
    pub(crate) turned: bool,
    /// Whether its first states are weights.
    pub(crate) learned: bool,
}

impl Scan {
    pub(crate) const PLAIN: Self = Self { axis: 0, reversed: false, turned: false, learned: false };
}

/// The first state of every row, `[batch, …]`: zeros, or a weight.
fn start(graph: &mut Graph, x: &Value, dims: &[i64], learned: bool) -> Value {
    let shape = graph.op("Shape", &[x]).value();
    let zero = graph.literal(&[0_i64]);
    let rows = graph.op("Gather", &[&shape, &zero]).attr("axis", 0_i64).value();
    let rest = graph.literal(dims);
    let shape = graph.op("Concat", &[&rows, &rest]).attr("axis", 0_i64).value();
    if learned {
        let mut whole = vec![1];
        whole.extend(dims.iter().map(|&dim| dim as usize));
        let value = weight(graph, &mut Noise::new(9), &format!("start{}", dims.len()), &whole);
        graph.op("Expand", &[&value, &shape]).value()
    } else {
        graph.op("ConstantOfShape", &[&shape]).value()
    }
}

/// The next state of a plain layer: tanh(x · W + h · U).
fn next(graph: &mut Graph, body: &mut Graph, name: &str, x: &Value, h: &Value, features: usize) -> Value {
    let mut noise = Noise::new(3);
    let w = weight(graph, &mut noise, &format!("{name}.W"), &[features, HIDDEN]);
    let u = weight(body, &mut noise, &format!("{name}.U"), &[HIDDEN, HIDDEN]);
    let (from_x, from_h) = (body.op("MatMul", &[x, &w]).value(), body.op("MatMul", &[h, &u]).value());
    let sum = body.op("Add", &[&from_x, &from_h]).value();
    body.op("Tanh", &[&sum]).value()
}

fn copy(body: &mut Graph, value: &Value, dims: &[i64]) {
    let copied = body.op("Identity", &[value]).value();
    state_output(body, &copied, DataType::Fp32, dims);
}

fn state_output(body: &mut Graph, value: &Value, datatype: DataType, dims: &[i64]) {
    let mut all: Vec<PortDim> = vec!["rows".into()];
    all.extend(dims.iter().map(|&dim| PortDim::Fixed(dim)));
    body.output(value, datatype, &all);
}

fn step_input(body: &mut Graph, name: &str, datatype: DataType, dims: &[i64]) -> Value {
    let mut all: Vec<PortDim> = vec!["rows".into()];
    all.extend(dims.iter().map(|&dim| PortDim::Fixed(dim)));
    body.input(name, datatype, &all)
}

const F: i64 = FEATURES as i64;
const H: i64 = HIDDEN as i64;

/// Adds a plain layer; returns its last state and all its states, with the steps on the axis of the options.
fn plain(graph: &mut Graph, name: &str, x: &Value, features: usize, start: &Value, scan: &Scan) -> [Value; 2] {
    let mut body = graph.subgraph(name);
    let (h, entry) = (
        step_input(&mut body, "h", DataType::Fp32, &[H]),
        step_input(&mut body, "x", DataType::Fp32, &[features as i64]),
    );
    let h = next(graph, &mut body, name, &entry, &h, features);
    state_output(&mut body, &h, DataType::Fp32, &[H]);
    copy(&mut body, &h, &[H]);
    let direction = i64::from(scan.reversed);
    let mut node = graph.op("Scan", &[start, x]).attr("body", body).attr("num_scan_inputs", 1_i64);
    node = node.attr("scan_input_axes", [scan.axis]).attr("scan_output_axes", [scan.axis]);
    node = node.attr("scan_input_directions", [direction]);
    node.attr("scan_output_directions", [direction ^ i64::from(scan.turned)]).named(name).values()
}

/// A layer with its last state and all its states as outputs.
pub(crate) fn layer(scan: &Scan) -> Exported {
    let mut graph = Graph::new("layer");
    let x = batch_input(&mut graph);
    let first = start(&mut graph, &x, &[H], scan.learned);
    let scanned = if scan.axis == 0 { transposed(&mut graph, &x, &[1, 0, 2]) } else { x };
    let [last, every] = plain(&mut graph, "scan", &scanned, FEATURES, &first, scan);
    let every = if scan.axis == 0 { transposed(&mut graph, &every, &[1, 0, 2]) } else { every };
    let y = linear(&mut graph, &every, "head", HIDDEN, 3);
    named_output(&mut graph, &y, "y", &["batch".into(), "time".into(), 3.into()]);
    named_output(&mut graph, &last, "last", &["batch".into(), H.into()]);
    let Scan { axis, reversed, turned, learned } = scan;
    Exported::new(format!("scan over axis {axis} {reversed} {turned} {learned}"), graph, &[X])
}

/// A classifier of the last of all states, of an operator set in which axes are attributes.
pub(crate) fn older(opset: i64) -> Exported {
    let mut graph = Graph::new("older");
    let x = batch_input(&mut graph);
    let first = start(&mut graph, &x, &[H], false);
    let x = transposed(&mut graph, &x, &[1, 0, 2]);
    let [last, every] = plain(&mut graph, "scan", &x, FEATURES, &first, &Scan::PLAIN);
    let every = transposed(&mut graph, &every, &[1, 0, 2]);
    let y = graph.op("Relu", &[&every]).value();
    named_output(&mut graph, &y, "y", &["batch".into(), "time".into(), H.into()]);
    named_output(&mut graph, &last, "last", &["batch".into(), H.into()]);
    let mut exported = Exported::new(format!("scan of opset {opset}"), graph, &[X]);
    exported.model.0.opset_import[0].version = Some(opset);
    exported
}

/// Two states of different shapes, two scanned tensors with the steps on different axes, and two outputs, one with the
/// steps behind its features.
pub(crate) fn several(learned: bool) -> Exported {
    let mut graph = Graph::new("several");
    let x = batch_input(&mut graph);
    let (h, c) = (start(&mut graph, &x, &[H], learned), start(&mut graph, &x, &[2, H], learned));
    let turned = transposed(&mut graph, &x, &[1, 0, 2]);
    let mut body = graph.subgraph("body");
    let (old_h, old_c) =
        (step_input(&mut body, "h", DataType::Fp32, &[H]), step_input(&mut body, "c", DataType::Fp32, &[2, H]));
    let (one, other) =
        (step_input(&mut body, "one", DataType::Fp32, &[F]), step_input(&mut body, "other", DataType::Fp32, &[F]));
    let gated = body.op("Sigmoid", &[&other]).value();
    let entry = body.op("Mul", &[&one, &gated]).value();
    let new_h = next(&mut graph, &mut body, "cell", &entry, &old_h, FEATURES);
    let axes = body.literal(&[1_i64]);
    let column = body.op("Unsqueeze", &[&new_h, &axes]).value();
    let (half, scale) = (body.scalar(0.5_f32), weight(&mut body, &mut Noise::new(4), "scale", &[2, HIDDEN]));
    let (decayed, scaled) = (body.op("Mul", &[&old_c, &half]).value(), body.op("Mul", &[&column, &scale]).value());
    let new_c = body.op("Add", &[&decayed, &scaled]).value();
    let mean = body.op("ReduceMean", &[&new_c]).attr("axes", [1]).attr("keepdims", 0_i64).value();
    state_output(&mut body, &new_h, DataType::Fp32, &[H]);
    state_output(&mut body, &new_c, DataType::Fp32, &[2, H]);
    copy(&mut body, &new_h, &[H]);
    copy(&mut body, &mean, &[H]);
    let node = graph.op("Scan", &[&h, &c, &turned, &x]).attr("body", body).attr("num_scan_inputs", 2_i64);
    let node = node.attr("scan_input_axes", [0, -2]).attr("scan_output_axes", [1, -1]).named("scan");
    let [last_h, last_c, states, means] = node.values();
    let means = transposed(&mut graph, &means, &[0, 2, 1]);
    named_output(&mut graph, &states, "states", &["batch".into(), "time".into(), H.into()]);
    named_output(&mut graph, &means, "means", &["batch".into(), "time".into(), H.into()]);
    named_output(&mut graph, &last_h, "h", &["batch".into(), H.into()]);
    named_output(&mut graph, &last_c, "c", &["batch".into(), 2.into(), H.into()]);
    Exported::new(format!("several {learned}"), graph, &[X])
}

/// A count and a flag of each row, and a state with the batch as its last axis.
pub(crate) fn counts() -> Exported {
    let mut graph = Graph::new("counts");
    let x = batch_input(&mut graph);
    let turned = transposed(&mut graph, &x, &[1, 0, 2]);
    let floats = start(&mut graph, &x, &[F], false);
    let sums = transposed(&mut graph, &floats, &[1, 0]);
    let one = start(&mut graph, &x, &[1], false);
    let count = graph.op("Cast", &[&one]).attr("to", 7_i64).value();
    let flag = graph.op("Cast", &[&one]).attr("to", 9_i64).value();
    let mut body = graph.subgraph("body");
    let old_sums = body.input("sums", DataType::Fp32, &[F.into(), "rows".into()]);
    let old_count = step_input(&mut body, "count", DataType::Int64, &[1]);
    let old_flag = step_input(&mut body, "flag", DataType::Bool, &[1]);
    let entry = step_input(&mut body, "x", DataType::Fp32, &[F]);
    let column = body.op("Transpose", &[&entry]).attr("perm", [1, 0]).value();
    let new_sums = body.op("Add", &[&old_sums, &column]).value();
    let (limit, zero) = (body.scalar(0.55_f32), body.scalar(0.0_f32));
    let mean = body.op("ReduceMean", &[&entry]).attr("axes", [1]).value();
    let greatest = body.op("ReduceMax", &[&entry]).attr("axes", [1]).value();
    let is_positive = body.op("Greater", &[&mean, &zero]).value();
    let number = body.op("Cast", &[&is_positive]).attr("to", 7_i64).value();
    let new_count = body.op("Add", &[&old_count, &number]).value();
    let is_large = body.op("Greater", &[&greatest, &limit]).value();
    let new_flag = body.op("Or", &[&old_flag, &is_large]).value();
    let seen = body.op("Cast", &[&new_flag]).attr("to", 1_i64).value();
    body.output(&new_sums, DataType::Fp32, &[F.into(), "rows".into()]);
    state_output(&mut body, &new_count, DataType::Int64, &[1]);
    state_output(&mut body, &new_flag, DataType::Bool, &[1]);
    copy(&mut body, &seen, &[1]);
    let node = graph.op("Scan", &[&sums, &count, &flag, &turned]).attr("body", body);
    let [sums, count, flag, seen] = node.attr("num_scan_inputs", 1_i64).named("scan").values();
    let sums = transposed(&mut graph, &sums, &[1, 0]);
    let numbers = [&count, &flag].map(|value| graph.op("Cast", &[value]).attr("to", 1_i64).value());
    let y = graph.op("Concat", &[&sums, &numbers[0], &numbers[1]]).attr("axis", 1_i64).value();
    let seen = transposed(&mut graph, &seen, &[1, 0, 2]);
    let shift = graph.scalar(1.0_f32);
    let seen = graph.op("Add", &[&seen, &shift]).value();
    named_output(&mut graph, &y, "y", &["batch".into(), (F + 2).into()]);
    named_output(&mut graph, &seen, "seen", &["batch".into(), "time".into(), 1.into()]);
    Exported::new("counts", graph, &[X])
}

/// A `Scan` between two layers with gates, whose body reads an input that is the same for all steps.
pub(crate) fn between_layers() -> Exported {
    let mut graph = Graph::new("between");
    let x = batch_input(&mut graph);
    let speaker = graph.input("speaker", DataType::Fp32, &["batch".into(), F.into()]);
    let context = linear(&mut graph, &speaker, "bridge", FEATURES, HIDDEN);
    let first = start(&mut graph, &x, &[H], false);
    let turned = transposed(&mut graph, &x, &[1, 0, 2]);
    let axes = graph.literal(&[1_i64]);
    let below = Layer::new("GRU").named("below.").add(&mut graph, &turned, None, &[]);
    let below = graph.op("Squeeze", &[&below.every, &axes]).value();
    let mut body = graph.subgraph("body");
    let (h, entry) =
        (step_input(&mut body, "h", DataType::Fp32, &[H]), step_input(&mut body, "x", DataType::Fp32, &[H]));
    let entry = body.op("Add", &[&entry, &context]).value();
    let h = next(&mut graph, &mut body, "cell", &entry, &h, HIDDEN);
    state_output(&mut body, &h, DataType::Fp32, &[H]);
    copy(&mut body, &h, &[H]);
    let node = graph.op("Scan", &[&first, &below]).attr("body", body).attr("num_scan_inputs", 1_i64);
    let [_, every] = node.named("scan").values();
    let above = Layer::new("LSTM").named("above.").features(HIDDEN).add(&mut graph, &every, None, &[]);
    let above = graph.op("Squeeze", &[&above.every, &axes]).value();
    let y = transposed(&mut graph, &above, &[1, 0, 2]);
    let last = graph.scalar(-1_i64);
    let last = graph.op("Gather", &[&y, &last]).attr("axis", 1_i64).value();
    let last = linear(&mut graph, &last, "head", HIDDEN, 3);
    named_output(&mut graph, &y, "y", &["batch".into(), "time".into(), H.into()]);
    named_output(&mut graph, &last, "last", &["batch".into(), 3.into()]);
    Exported::new("between", graph, &[X, ("speaker", DataType::Fp32, &[F])])
}

/// Two directions: one scan forwards, and one over the steps turned around, as an exporter without directions does it.
pub(crate) fn turned_around(reversed: bool) -> Exported {
    let mut graph = Graph::new("around");
    let x = batch_input(&mut graph);
    let first = start(&mut graph, &x, &[H], false);
    let x = transposed(&mut graph, &x, &[1, 0, 2]);
    let [_, forward] = plain(&mut graph, "forward", &x, FEATURES, &first, &Scan::PLAIN);
    let backward = if reversed {
        let [_, every] = plain(&mut graph, "back", &x, FEATURES, &first, &Scan { reversed: true, ..Scan::PLAIN });
        every
    } else {
        let (last, end, axis) = (graph.literal(&[-1_i64]), graph.literal(&[i64::MIN]), graph.literal(&[0_i64]));
        let around = graph.op("Slice", &[&x, &last, &end, &axis, &last]).value();
        let [_, every] = plain(&mut graph, "back", &around, FEATURES, &first, &Scan::PLAIN);
        graph.op("Slice", &[&every, &last, &end, &axis, &last]).value()
    };
    let joined = graph.op("Concat", &[&forward, &backward]).attr("axis", -1_i64).value();
    let y = transposed(&mut graph, &joined, &[1, 0, 2]);
    named_output(&mut graph, &y, "y", &["batch".into(), "time".into(), (2 * H).into()]);
    Exported::new(format!("around {reversed}"), graph, &[X])
}

/// The steps are turned into other ones by a `Scan` without states before a layer with them.
pub(crate) fn stateless() -> Exported {
    let mut graph = Graph::new("stateless");
    let x = batch_input(&mut graph);
    let first = start(&mut graph, &x, &[H], false);
    let x = transposed(&mut graph, &x, &[1, 0, 2]);
    let mut body = graph.subgraph("map");
    let entry = step_input(&mut body, "x", DataType::Fp32, &[F]);
    let scale = weight(&mut graph, &mut Noise::new(6), "scale", &[FEATURES]);
    let entry = body.op("Mul", &[&entry, &scale]).value();
    state_output(&mut body, &entry, DataType::Fp32, &[F]);
    let x = graph.op("Scan", &[&x]).attr("body", body).attr("num_scan_inputs", 1_i64).value();
    let [_, every] = plain(&mut graph, "scan", &x, FEATURES, &first, &Scan::PLAIN);
    let y = transposed(&mut graph, &every, &[1, 0, 2]);
    named_output(&mut graph, &y, "y", &["batch".into(), "time".into(), H.into()]);
    Exported::new("stateless", graph, &[X])
}
