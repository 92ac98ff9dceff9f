use super::*;
use crate::infer::{RowDependence, infer};

/// What a body reads and gives, for one `Scan` over `x`: [time, batch, features].
struct Body {
    graph: Graph,
    h: Value,
    x: Value,
}

/// A graph with a `Scan` that sums up its entries; `body` makes the next state from the sum.
fn summing(start: &[PortDim], body: impl FnOnce(&mut Graph, &mut Body, &Value) -> Value) -> Rig {
    let mut rig = Rig::new();
    let graph = &mut rig.graph;
    let shape = graph.op("Shape", &[&rig.x]).value();
    let zero = graph.literal(&[0_i64]);
    let rows = graph.op("Gather", &[&shape, &zero]).attr("axis", 0_i64).value();
    let lengths = start.iter().map(|dim| match dim {
        PortDim::Fixed(length) => graph.literal(&[*length]),
        _ => rows.clone(),
    });
    let lengths: Vec<Value> = lengths.collect();
    let shape = graph.op("Concat", &lengths.iter().collect::<Vec<_>>()).attr("axis", 0_i64).value();
    let start = graph.op("ConstantOfShape", &[&shape]).named("start").value();
    scanned(rig, &start, body)
}

/// Adds that `Scan` with a first state.
fn scanned(mut rig: Rig, start: &Value, body: impl FnOnce(&mut Graph, &mut Body, &Value) -> Value) -> Rig {
    let graph = &mut rig.graph;
    let steps = graph.op("Transpose", &[&rig.x]).attr("perm", [1, 0, 2]).named("steps").value();
    let mut inner = graph.subgraph("body");
    let h = inner.input("h", DataType::Fp32, &[PortDim::Unknown, FEATURES.into()]);
    let x = inner.input("x", DataType::Fp32, &[PortDim::Unknown, FEATURES.into()]);
    let sum = inner.op("Add", &[&h, &x]).value();
    let mut inner = Body { graph: inner, h, x };
    let next = body(graph, &mut inner, &sum);
    let Body { graph: mut inner, .. } = inner;
    let every = inner.op("Identity", &[&next]).value();
    inner.output(&next, DataType::Fp32, &[PortDim::Unknown, FEATURES.into()]);
    inner.output(&every, DataType::Fp32, &[PortDim::Unknown, FEATURES.into()]);
    let node = graph.op("Scan", &[start, &steps]).attr("body", inner).attr("num_scan_inputs", 1_i64);
    let [_, _] = node.named("scan").values();
    rig
}

/// Ends with the last state as the output.
fn opened(mut rig: Rig) -> Result<Opened, NotOpened> {
    rig.graph.output(&Value::by_name("scan"), DataType::Fp32, &dims!["batch", FEATURES]);
    open(&rig.graph.finish().expect("the graph is sound"))
}

fn whole(rig: Rig) -> String {
    reason(opened(rig))
}

#[test]
fn a_scan_is_a_chain_with_its_states() {
    let opened = opened(summing(&dims!["batch", FEATURES], |_, _, sum| sum.clone())).expect("it can be opened");
    assert_eq!((opened.layers, opened.steps_of.as_str()), (1, "x"));
    let [chain] = &opened.segments[..] else { panic!("one segment: {opened:?}") };
    assert_eq!(chain.kind, SegmentKind::Chain { reverse: false });
    assert_eq!(chain.layers, ["Scan 'scan'"]);
    let sources: Vec<&SegmentSource> = chain.inputs.iter().map(|input| &input.source).collect();
    let next = sources.iter().find_map(|source| match source {
        SegmentSource::State(output) if output.ends_with("/next") => Some(output.as_str()),
        _ => None,
    });
    let next = next.expect("a state");
    let expected = [
        &SegmentSource::Steps(SegmentTensor::Input("x".to_owned())),
        &SegmentSource::State(next.to_owned()),
        &SegmentSource::State("scan".to_owned()),
        &SegmentSource::Lengths,
    ];
    assert_eq!(sources, expected);
    let program = chain.model.0.graph.as_ref().expect("a graph");
    let scan = program.node.iter().find(|node| node.op_type() == "Scan").expect("the layer");
    assert_eq!(scan.input.last().map(String::as_str), Some("cells/running"));
    assert!(program.node.iter().all(|node| node.op_type() != "ConstantOfShape" || node.output != ["start"]));
    let body = scan.attribute.iter().find_map(|attribute| attribute.g.as_deref()).expect("a body");
    assert_eq!(body.node.iter().filter(|node| node.op_type() == "Where").count(), 1);
}

#[test]
fn bodies_that_mix_rows_stay_whole() {
    let rig = summing(&dims!["batch", FEATURES], |_, body, sum| {
        let mean = body.graph.op("ReduceMean", &[sum]).attr("axes", [0]).value();
        body.graph.op("Sub", &[sum, &mean]).value()
    });
    assert_eq!(whole(rig), "Scan 'scan' does not keep the rows of a batch apart: it reduces over the batch");
}

#[test]
fn bodies_that_decide_by_data_stay_whole() {
    let rig = summing(&dims!["batch", FEATURES], |_, body, sum| {
        let total = body.graph.op("ReduceMax", &[sum]).attr("keepdims", 0_i64).value();
        let limit = body.graph.scalar(0.0_f32);
        let is_large = body.graph.op("Greater", &[&total, &limit]).value();
        let branch = |name: &str, operator: &str| {
            let mut branch = body.graph.subgraph(name);
            let made = branch.op(operator, &[sum]).value();
            branch.output(&made, DataType::Fp32, &dims!["rows", FEATURES]);
            branch
        };
        let (then, other) = (branch("then", "Neg"), branch("else", "Relu"));
        body.graph.op("If", &[&is_large]).attr("then_branch", then).attr("else_branch", other).value()
    });
    let cause = "it is an operation through which rows cannot be followed";
    assert_eq!(whole(rig), format!("Scan 'scan' does not keep the rows of a batch apart: {cause}"));
}

#[test]
fn states_without_a_batch_axis_stay_whole() {
    let rig =
        summing(&dims![1, FEATURES], |_, body, sum| body.graph.op("ReduceMean", &[sum]).attr("axes", [0]).value());
    assert_eq!(whole(rig), "Scan 'scan' has a state, tensor 'start', without a batch axis");
}

#[test]
fn first_states_from_the_request_stay_whole() {
    let mut rig = Rig::new();
    let start = rig.graph.input("start", DataType::Fp32, &dims!["batch", FEATURES]);
    let rig = scanned(rig, &start, |_, _, sum| sum.clone());
    assert_eq!(whole(rig), "Scan 'scan' takes an initial state from the request, by tensor 'start'");
}

#[test]
fn bodies_that_read_all_steps_stay_whole() {
    let reading = |tensor: &str, axis: i64| {
        let memory = Value::by_name(tensor);
        let rig = summing(&dims!["batch", FEATURES], |_, body, sum| {
            let mean = body.graph.op("ReduceMean", &[&memory]).attr("axes", [axis]).attr("keepdims", 0_i64).value();
            body.graph.op("Add", &[sum, &mean]).value()
        });
        whole(rig)
    };
    let expected = |tensor: &str| format!("Scan 'scan' takes tensor '{tensor}', which depends on the number of steps");
    assert_eq!(reading("x", 1), expected("x"));
    assert_eq!(reading("steps", 0), expected("steps"), "what it runs over, as a whole");
}

/// Changes the `Scan` of a sound graph.
fn changed(change: impl FnOnce(&mut pb::NodeProto)) -> Result<Opened, NotOpened> {
    let mut rig = summing(&dims!["batch", FEATURES], |_, _, sum| sum.clone());
    rig.graph.output(&Value::by_name("scan"), DataType::Fp32, &dims!["batch", FEATURES]);
    let mut model = rig.graph.finish().expect("the graph is sound");
    let nodes = &mut model.0.graph.as_mut().expect("a graph").node;
    change(nodes.iter_mut().find(|node| node.op_type() == "Scan").expect("a scan"));
    open(&model)
}

fn set(scan: &mut pb::NodeProto, name: &str, values: &[i64]) {
    scan.attribute.retain(|attribute| attribute.name() != name);
    scan.attribute.push(crate::nodes::ints(name, values));
}

#[test]
fn forms_that_are_not_understood_stay_whole() {
    let form = "Scan 'scan' has a form that is not understood";
    // As in operator set 8, whose first operand are the lengths.
    assert_eq!(reason(changed(|scan| scan.input.insert(0, String::new()))), form);
    assert_eq!(reason(changed(|scan| set(scan, "scan_input_axes", &[0, 0]))), form);
    assert_eq!(reason(changed(|scan| set(scan, "scan_output_directions", &[1, 1, 1]))), form);
    let unreachable = reason(changed(|scan| set(scan, "scan_input_axes", &[7])));
    assert_eq!(unreachable, "Scan 'scan' runs over an axis of unknown length");
    let along_features = reason(changed(|scan| set(scan, "scan_input_axes", &[-1])));
    assert_eq!(along_features, "Scan 'scan' runs over an axis of fixed length");
    let along_rows = reason(changed(|scan| set(scan, "scan_input_axes", &[1])));
    assert_eq!(along_rows, "Scan 'scan' runs over axis 0 of the inputs, expected the batch there");
}

#[test]
fn damaged_scans_are_refused_and_never_panic() {
    let lists: [&[i64]; 7] = [&[], &[0], &[1, 0], &[-9], &[i64::MIN], &[i64::MAX], &[2]];
    for name in ["scan_input_axes", "scan_output_axes", "scan_input_directions", "scan_output_directions"] {
        for list in lists {
            let _ = changed(|scan| set(scan, name, list));
        }
    }
    for count in [i64::MIN, -1, 0, 2, 3, i64::MAX] {
        let result = changed(|scan| {
            scan.attribute.retain(|attribute| attribute.name() != "num_scan_inputs");
            scan.attribute.push(crate::nodes::int("num_scan_inputs", count));
        });
        assert!(result.is_err(), "{count}");
    }
    let body = |scan: &mut pb::NodeProto, change: &dyn Fn(&mut pb::GraphProto)| {
        scan.attribute.iter_mut().filter_map(|attribute| attribute.g.as_mut()).for_each(|body| change(body));
    };
    let changes: [&dyn Fn(&mut pb::GraphProto); 6] = [
        &|body| body.output.clear(),
        &|body| body.input.clear(),
        &|body| body.node.clear(),
        &|body| body.output.reverse(),
        &|body| body.output[0].name = Some("body/x".to_owned()),
        &|body| body.node[0].input[0] = body.node[0].output[0].clone(),
    ];
    for change in changes {
        let _ = changed(|scan| body(scan, change));
    }
    let _ = changed(|scan| scan.output.clear());
    let _ = changed(|scan| scan.input.iter_mut().for_each(String::clear));
    let _ = changed(|scan| scan.output.iter_mut().for_each(|name| *name = "x".to_owned()));
}

#[test]
fn rows_are_followed_through_a_scan_over_another_axis() {
    let rows = |scan: fn(&mut Graph, &mut Body, &Value) -> Value| {
        let mut rig = summing(&dims!["batch", FEATURES], scan);
        rig.graph.output(&Value::by_name("scan"), DataType::Fp32, &[]);
        let inferred = infer(&rig.graph.finish().expect("sound"));
        ["scan", "scan.1"].map(|name| {
            let info = inferred.tensor(name).expect("the graph makes it");
            (info.dims.clone(), info.datatype, info.rows.clone())
        })
    };
    let [last, every] = rows(|_, body, sum| body.graph.op("Mul", &[sum, &body.h.clone()]).value());
    let fp32 = Some(DataType::Fp32);
    assert_eq!(last, (Some(dims!["batch", FEATURES].into()), fp32, RowDependence::PerRow));
    assert_eq!(every, (Some(dims!["time", "batch", FEATURES].into()), fp32, RowDependence::Moved { axis: 1 }));
    let [last, _] = rows(|_, body, _| {
        let order = body.graph.literal(&[0_i64]);
        body.graph.op("CumSum", &[&body.x.clone(), &order]).value()
    });
    assert!(matches!(last.2, RowDependence::Mixed { .. }), "{last:?}");
}
