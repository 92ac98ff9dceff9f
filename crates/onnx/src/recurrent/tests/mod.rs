mod scans;

use paternoster_model::DataType;

use super::*;
use crate::{
    PortDim,
    build::{Graph, Value},
    port::dims,
    segments::{SegmentEmit, SegmentSource, SegmentTensor},
    zoo::{self, Width},
};

const FEATURES: i64 = 3;
const HIDDEN: i64 = 2;

/// A graph of layers over an input `x` of [batch, time, features].
struct Rig {
    graph: Graph,
    x: Value,
    layers: usize,
}

impl Rig {
    fn new() -> Self {
        Self::over(&dims!["batch", "time", FEATURES])
    }

    fn over(dims: &[PortDim]) -> Self {
        let mut graph = Graph::new("rig");
        let x = graph.input("x", DataType::Fp32, dims);
        Self { graph, x, layers: 0 }
    }

    /// Adds a GRU over a tensor with the steps as axis 0; returns all its results, and the last ones.
    fn layer(&mut self, x: &Value, features: i64, others: &[Option<&Value>]) -> [Value; 2] {
        self.layers += 1;
        let number = self.layers;
        let mut weight = |name: &str, dims: [usize; 3]| {
            let values = vec![0.5_f32; dims.iter().product()];
            self.graph.constant(&format!("{name}{number}"), &dims, &values)
        };
        let w = weight("W", [1, 6, features as usize]);
        let r = weight("R", [1, 6, HIDDEN as usize]);
        let mut node = self.graph.op("GRU", &[x, &w, &r]).skip();
        for other in others {
            node = match other {
                Some(other) => node.with(other),
                None => node.skip(),
            };
        }
        node.attr("hidden_size", HIDDEN).named(&format!("gru{number}")).values()
    }

    fn turned(&mut self, of: &Value) -> Value {
        self.graph.op("Transpose", &[of]).attr("perm", [1, 0, 2]).value()
    }

    /// Ends with the last results as the output.
    fn finish(mut self, last: &Value) -> Result<Opened, NotOpened> {
        let y = self.graph.op("Transpose", &[last]).attr("perm", [1, 0, 2]).named("y").value();
        self.graph.output(&y, DataType::Fp32, &dims!["batch", 1, HIDDEN]);
        open(&self.graph.finish().expect("the graph is sound"))
    }
}

fn reason(result: Result<Opened, NotOpened>) -> String {
    result.expect_err("it is not understood").to_string()
}

#[test]
fn a_layer_is_a_chain_with_its_states() {
    let mut rig = Rig::new();
    let x = rig.turned(&rig.x.clone());
    let [_, last] = rig.layer(&x, FEATURES, &[]);
    let opened = rig.finish(&last).expect("it can be opened");
    assert_eq!((opened.layers, opened.steps_of.as_str()), (1, "x"));
    let [chain] = &opened.segments[..] else { panic!("one segment: {opened:?}") };
    assert_eq!(chain.kind, SegmentKind::Chain { reverse: false });
    assert_eq!((chain.name.as_str(), chain.layers.as_slice()), ("chain1", &["GRU 'gru1'".to_owned()][..]));
    let sources: Vec<&SegmentSource> = chain.inputs.iter().map(|input| &input.source).collect();
    let expected = [
        &SegmentSource::Steps(SegmentTensor::Input("x".to_owned())),
        &SegmentSource::State("cells/state1.0/next".to_owned()),
        &SegmentSource::State("y".to_owned()),
        &SegmentSource::Lengths,
    ];
    assert_eq!(sources, expected);
    let emit = SegmentEmit { name: "y".to_owned(), output: "y".to_owned(), is_by_steps: false };
    assert_eq!(chain.emits, [emit]);
    let program = chain.model.0.graph.as_ref().expect("a graph");
    let layer = program.node.iter().find(|node| node.op_type() == "GRU").expect("the layer");
    assert_eq!(layer.input[4], "cells/lengths");
    let names: Vec<&str> = program.input.iter().map(|input| input.name()).collect();
    let named: Vec<&str> = chain.inputs.iter().map(|input| input.name.as_str()).collect();
    assert_eq!(names, named);
}

#[test]
fn models_without_recurrent_layers_are_not_opened() {
    let model = zoo::mobilenet(Width::QUARTER).expect("sound");
    assert_eq!(open(&model).expect_err("it has none"), NotOpened::NotRecurrent);
    assert!(!is_recurrent_model(&model.to_bytes()));
}

#[test]
fn axes_that_do_not_vary_stay_whole() {
    let mut rig = Rig::over(&dims!["batch", 5, FEATURES]);
    let x = rig.turned(&rig.x.clone());
    let [_, last] = rig.layer(&x, FEATURES, &[]);
    assert_eq!(reason(rig.finish(&last)), "GRU 'gru1' runs over an axis of fixed length");

    let mut rig = Rig::over(&dims!["time", "batch", FEATURES]);
    let [_, last] = rig.layer(&rig.x.clone(), FEATURES, &[]);
    let refused = rig.finish(&last);
    assert!(matches!(refused, Err(NotOpened::OverBatch(_))), "requests would be joined along the steps");
    assert_eq!(reason(refused), "GRU 'gru1' runs over axis 0 of the inputs, expected the batch there");

    let mut rig = Rig::over(&dims![1, "time", FEATURES]);
    let x = rig.turned(&rig.x.clone());
    let [_, last] = rig.layer(&x, FEATURES, &[]);
    assert_eq!(reason(rig.finish(&last)), "input 'x' has no batch that varies as axis 0");

    let mut rig = Rig::over(&dims!["batch", FEATURES, "time"]);
    let x = rig.graph.op("Transpose", &[&rig.x.clone()]).attr("perm", [2, 0, 1]).value();
    let [_, last] = rig.layer(&x, FEATURES, &[]);
    assert_eq!(reason(rig.finish(&last)), "GRU 'gru1' runs over an axis that is not axis 1 of an input");
}

#[test]
fn steps_that_are_not_those_of_an_input_stay_whole() {
    let mut rig = Rig::over(&dims!["batch", "time", FEATURES]);
    let filter = rig.graph.constant("filter", &[3, 3, 2], &[0.5_f32; 18]);
    let x = rig.graph.op("Transpose", &[&rig.x.clone()]).attr("perm", [0, 2, 1]).value();
    let x = rig.graph.op("Conv", &[&x, &filter]).attr("strides", [2]).value();
    let x = rig.graph.op("Transpose", &[&x]).attr("perm", [2, 0, 1]).value();
    let [_, last] = rig.layer(&x, FEATURES, &[]);
    assert_eq!(reason(rig.finish(&last)), "GRU 'gru1' runs over an axis that is not axis 1 of an input");
}

#[test]
fn states_in_the_signature_stay_whole() {
    let mut rig = Rig::new();
    let start = rig.graph.input("start", DataType::Fp32, &dims!["batch", 1, HIDDEN]);
    let start = rig.turned(&start);
    let x = rig.turned(&rig.x.clone());
    let [_, last] = rig.layer(&x, FEATURES, &[None, Some(&start)]);
    let expected = "GRU 'gru1' takes an initial state from the request, by tensor 'Transpose'";
    assert_eq!(reason(rig.finish(&last)), expected);
}

#[test]
fn lengths_in_the_signature_stay_whole() {
    let mut rig = Rig::new();
    let lengths = rig.graph.input("lengths", DataType::Int32, &dims!["batch"]);
    let x = rig.turned(&rig.x.clone());
    let [_, last] = rig.layer(&x, FEATURES, &[Some(&lengths)]);
    assert_eq!(reason(rig.finish(&last)), "GRU 'gru1' takes the lengths of its rows from the request");
}

#[test]
fn a_start_that_depends_on_the_sequence_stays_whole() {
    let mut rig = Rig::new();
    let x = rig.turned(&rig.x.clone());
    let [_, encoded] = rig.layer(&x, FEATURES, &[]);
    let [_, last] = rig.layer(&x, FEATURES, &[None, Some(&encoded)]);
    let expected = "GRU 'gru2' takes an initial state from the request, by tensor 'gru1.1'";
    assert_eq!(reason(rig.finish(&last)), expected);
}

#[test]
fn rows_that_mix_stay_whole() {
    let mut rig = Rig::new();
    let mean = rig.graph.op("ReduceMean", &[&rig.x.clone()]).attr("axes", [0]).value();
    let x = rig.graph.op("Sub", &[&rig.x.clone(), &mean]).value();
    let x = rig.turned(&x);
    let [_, last] = rig.layer(&x, FEATURES, &[]);
    let expected = "the input of GRU 'gru1' does not have the steps as axis 0 and the batch as axis 1";
    assert_eq!(reason(rig.finish(&last)), expected);
}

#[test]
fn a_declared_length_of_an_unknown_operator_is_not_taken_for_the_steps() {
    let mut rig = Rig::new();
    let x = rig.graph.op("Einsum", &[&rig.x.clone()]).attr("equation", "btf->tbf").named("turned").value();
    let [_, last] = rig.layer(&x, FEATURES, &[]);
    let y = rig.graph.op("Transpose", &[&last]).attr("perm", [1, 0, 2]).named("y").value();
    rig.graph.output(&y, DataType::Fp32, &dims!["batch", 1, HIDDEN]);
    let mut model = rig.graph.finish().expect("sound");
    let declared = crate::port::declare("turned", DataType::Fp32, &dims!["time", "batch", FEATURES]);
    model.0.graph.as_mut().expect("a graph").value_info.push(declared);
    reason(open(&model));
}

#[test]
fn layers_in_bodies_stay_whole() {
    let mut graph = Graph::new("outer");
    let x = graph.input("x", DataType::Fp32, &dims!["batch", "time", FEATURES]);
    let condition = graph.scalar(true);
    let mut body = graph.subgraph("body");
    let [y, _] = body.op("LSTM", &[&x, &x, &x]).attr("hidden_size", HIDDEN).values();
    body.output(&y, DataType::Fp32, &dims!["a", "b", "c", "d"]);
    let mut other = graph.subgraph("other");
    let same = other.op("Identity", &[&x]).value();
    other.output(&same, DataType::Fp32, &dims!["a", "b", "c"]);
    let y = graph.op("If", &[&condition]).attr("then_branch", body).attr("else_branch", other).named("y").value();
    graph.output(&y, DataType::Fp32, &dims!["batch"]);
    let model = graph.finish().expect("sound");
    assert!(is_recurrent_model(&model.to_bytes()));
    assert_eq!(reason(open(&model)), "its recurrent layers are in the body of a If");
}

#[test]
fn a_small_head_runs_in_the_chain_and_a_large_one_after_it() {
    let opened = |width: i64| {
        let mut rig = Rig::new();
        let x = rig.turned(&rig.x.clone());
        let [_, last] = rig.layer(&x, FEATURES, &[]);
        let axes = rig.graph.literal(&[0_i64]);
        let last = rig.graph.op("Squeeze", &[&last, &axes]).value();
        let values = vec![0.5_f32; (HIDDEN * width) as usize];
        let head = rig.graph.constant("head", &[HIDDEN as usize, width as usize], &values);
        let y = rig.graph.op("MatMul", &[&last, &head]).named("y").value();
        rig.graph.output(&y, DataType::Fp32, &dims!["batch", width]);
        let opened = open(&rig.graph.finish().expect("sound")).expect("it can be opened");
        opened.segments.iter().map(|segment| segment.kind).collect::<Vec<_>>()
    };
    let chain = SegmentKind::Chain { reverse: false };
    assert_eq!(opened(2), [chain]);
    assert_eq!(opened(20_000), [chain, SegmentKind::Stage]);
}

#[test]
fn graphs_of_many_layers_and_names_are_opened_or_refused_in_time() {
    // Alternating directions would take a segment each.
    let mut rig = Rig::new();
    let mut x = rig.turned(&rig.x.clone());
    let mut features = FEATURES;
    for _ in 0..2000 {
        let [every, _] = rig.layer(&x, features, &[]);
        let axes = rig.graph.literal(&[1_i64]);
        x = rig.graph.op("Squeeze", &[&every, &axes]).value();
        features = HIDDEN;
    }
    let [_, last] = rig.layer(&x, features, &[]);
    let y = rig.graph.op("Transpose", &[&last]).attr("perm", [1, 0, 2]).named("y").value();
    rig.graph.output(&y, DataType::Fp32, &dims!["batch", 1, HIDDEN]);
    let mut model = rig.graph.finish().expect("sound");
    assert_eq!(open(&model).expect("one chain").segments.len(), 1);
    let graph = model.0.graph.as_mut().expect("a graph");
    for (number, node) in graph.node.iter_mut().filter(|node| node.op_type() == "GRU").enumerate() {
        if number % 2 == 1 {
            node.attribute.push(pb::AttributeProto {
                name: Some("direction".to_owned()),
                s: Some(b"reverse".to_vec()),
                ..Default::default()
            });
        }
    }
    assert_eq!(reason(open(&model)), format!("it would take more than {SEGMENTS_MAX} segments"));
}

#[test]
fn damaged_graphs_are_refused_and_never_panic() {
    let mut rig = Rig::new();
    let x = rig.turned(&rig.x.clone());
    let [_, last] = rig.layer(&x, FEATURES, &[]);
    let y = rig.graph.op("Transpose", &[&last]).attr("perm", [1, 0, 2]).named("y").value();
    rig.graph.output(&y, DataType::Fp32, &dims!["batch", 1, HIDDEN]);
    let model = rig.graph.finish().expect("sound");
    let graph = model.0.graph.as_ref().expect("a graph");
    for node in 0..graph.node.len() {
        for input in 0..graph.node[node].input.len() {
            for name in ["", "x", "y", "W1", "nothing", graph.node[node].output[0].as_str()] {
                let mut damaged = model.clone();
                damaged.0.graph.as_mut().expect("a graph").node[node].input[input] = name.to_owned();
                let _ = open(&damaged);
            }
        }
        for attribute in ["layout", "direction", "hidden_size", "perm"] {
            let mut damaged = model.clone();
            let own = &mut damaged.0.graph.as_mut().expect("a graph").node[node];
            own.attribute.retain(|own| own.name() != attribute);
            own.attribute.push(pb::AttributeProto {
                name: Some(attribute.to_owned()),
                i: Some(i64::MIN),
                s: Some(b"bidirectional".to_vec()),
                ints: vec![7, -9],
                ..Default::default()
            });
            let _ = open(&damaged);
        }
    }
}
