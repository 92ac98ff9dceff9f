use super::*;
use crate::pb;

#[test]
fn stages_take_and_give_what_crosses() {
    let (mut graph, x) = begin();
    let a = relu(&mut graph, &x, "a");
    let b = relu(&mut graph, &a, "b");
    let c = graph.op("Add", &[&b, &x]).named("c").value();
    let y = graph.op("Add", &[&c, &a]).named("y").value();
    let stages = cut_at(&finish(graph, &y), &["b", "c"]).expect("all by rows");
    let [first, second, last] = stages.as_slice() else { panic!("three stages") };
    assert_eq!((port_names(&first.inputs), port_names(&first.outputs)), (vec!["x"], vec!["a", "b"]));
    assert_eq!((port_names(&second.inputs), port_names(&second.outputs)), (vec!["x", "b"], vec!["c"]));
    assert_eq!((port_names(&last.inputs), port_names(&last.outputs)), (vec!["a", "c"], vec!["y"]));
    let a = StagePort {
        name: "a".to_owned(),
        datatype: FP32,
        dims: Some(dims!["batch", "tokens", 4].into()),
        made_in: Some(0),
        last_read_in: Some(2),
        is_graph_output: false,
    };
    assert_eq!((&first.outputs[0], &last.inputs[0]), (&a, &a), "the skip connection lives to the last stage");
    assert_eq!(second.inputs[0].made_in, None, "x comes from outside");
    assert_eq!(second.inputs[0].last_read_in, Some(1));
    assert!(last.outputs[0].is_graph_output);
    assert!(
        stages.iter().all(|stage| stage
            .model
            .0
            .graph
            .as_ref()
            .is_some_and(|graph| graph.name().starts_with("tested/")))
    );
}

#[test]
fn a_stage_holds_what_its_tensor_needs_and_the_last_one_all_else() {
    let (mut graph, x) = begin();
    let side = relu(&mut graph, &x, "side");
    let main = relu(&mut graph, &x, "main");
    let y = graph.op("Add", &[&main, &side]).named("y").value();
    let stages = cut_at(&finish(graph, &y), &["main"]).expect("by rows");
    assert_eq!(node_names(&stages[0]), ["main"]);
    assert_eq!(node_names(&stages[1]), ["side", "y"]);
}

#[test]
fn weights_go_where_they_are_used_and_share_their_bytes() {
    let (mut graph, x) = begin();
    let shared = graph.constant("shared", &[4], &[1.0_f32; 4]);
    let own = graph.constant("own", &[4], &[2.0_f32; 4]);
    graph.constant("idle", &[1], &[3.0_f32]);
    let a = graph.op("Mul", &[&x, &shared]).named("a").value();
    let y = graph.op("Mul", &[&a, &own]).value();
    let y = graph.op("Add", &[&y, &shared]).named("y").value();
    let model = finish(graph, &y);
    let stages = cut_at(&model, &["a"]).expect("by rows");
    assert_eq!((weight_names(&stages[0]), weight_names(&stages[1])), (vec!["shared"], vec!["shared", "own"]));
    let bytes = |model: &Model| model.0.graph.as_ref().and_then(|graph| graph.initializer[0].raw_data.clone());
    let address = |model: &Model| bytes(model).map(|bytes| bytes.as_ptr());
    assert_eq!(address(&stages[0].model), address(&model));
    assert_eq!(address(&stages[1].model), address(&model));
}

#[test]
fn old_files_declare_the_weights_of_a_stage_as_inputs() {
    let (mut graph, x) = begin();
    let weight = graph.constant("weight", &[4], &[1.0_f32; 4]);
    let a = relu(&mut graph, &x, "a");
    let y = graph.op("Mul", &[&a, &weight]).named("y").value();
    let mut model = finish(graph, &y);
    model.0.ir_version = Some(3);
    if let Some(graph) = &mut model.0.graph {
        graph.input.push(crate::port::declare("weight", FP32, &dims![4]));
    }
    let stages = cut_at(&model, &["a"]).expect("by rows");
    assert_eq!(port_names(&stages[1].inputs), ["a"]);
    let declared: Vec<&str> = stages[1].model.0.graph.iter().flat_map(|it| &it.input).map(|it| it.name()).collect();
    assert_eq!(declared, ["a", "weight"]);
}

/// Slices positions from a table by the length of `x`; they are used before and after `a`.
fn positions(graph: &mut Graph, source: &Value) -> Value {
    let table = graph.constant("table", &[64, 4], &[0.5_f32; 256]);
    let shape = graph.op("Shape", &[source]).named("shape").value();
    let (zero, one) = (graph.literal(&[0_i64]), graph.literal(&[1_i64]));
    let tokens = graph.op("Gather", &[&shape, &one]).named("tokens").value();
    graph.op("Slice", &[&table, &zero, &tokens, &zero]).named("positions").value()
}

#[test]
fn what_follows_from_shapes_is_computed_again_where_it_is_needed() {
    let (mut graph, x) = begin();
    let places = positions(&mut graph, &x);
    let a = graph.op("Add", &[&x, &places]).named("a").value();
    let y = graph.op("Add", &[&a, &places]).named("y").value();
    let stages = cut_at(&finish(graph, &y), &["a"]).expect("by rows");
    assert_eq!(node_names(&stages[0]), ["shape", "tokens", "positions", "a"]);
    assert_eq!(node_names(&stages[1]), ["shape", "tokens", "positions", "y"]);
    assert_eq!(port_names(&stages[1].inputs), ["x", "a"], "the shape is that of x");
    assert_eq!(port_names(&stages[0].outputs), ["a"]);
    assert!((stages[0].cost - 0.5).abs() < 1e-9, "computing again is no work: {}", stages[0].cost);
}

#[test]
fn the_shape_of_a_tensor_within_comes_with_the_tensor() {
    let (mut graph, x) = begin();
    let inner = relu(&mut graph, &x, "inner");
    let places = positions(&mut graph, &inner);
    let a = relu(&mut graph, &inner, "a");
    let y = graph.op("Add", &[&a, &places]).named("y").value();
    let stages = cut_at(&finish(graph, &y), &["a"]).expect("by rows");
    assert_eq!(port_names(&stages[0].outputs), ["inner", "a"]);
    assert_eq!(port_names(&stages[1].inputs), ["inner", "a"]);
}

#[test]
fn a_constant_output_comes_from_the_last_stage() {
    let (mut graph, x) = begin();
    let places = positions(&mut graph, &x);
    graph.output(&places, FP32, &dims!["tokens", 4]);
    let a = graph.op("Add", &[&x, &places]).named("a").value();
    let y = relu(&mut graph, &a, "y");
    let stages = cut_at(&finish(graph, &y), &["a"]).expect("by rows");
    assert_eq!(port_names(&stages[0].outputs), ["a"]);
    assert_eq!(port_names(&stages[1].outputs), ["positions", "y"]);
}

#[test]
fn inputs_and_weights_that_are_outputs_leave_the_last_stage() {
    let (mut graph, x) = begin();
    let a = relu(&mut graph, &x, "a");
    let y = relu(&mut graph, &a, "y");
    graph.output(&x, FP32, &dims!["batch", "tokens", 4]);
    let stages = cut_at(&finish(graph, &y), &["a"]).expect("by rows");
    assert_eq!(port_names(&stages[1].inputs), ["x", "a"]);
    assert_eq!(port_names(&stages[1].outputs), ["y", "x"]);
}

#[test]
fn nodes_that_no_output_needs_are_left_out() {
    let (mut graph, x) = begin();
    let a = relu(&mut graph, &x, "a");
    relu(&mut graph, &a, "idle");
    let y = relu(&mut graph, &a, "y");
    let stages = cut(&finish(graph, &y), Cuts::Parts(1), &[]).expect("the whole");
    assert_eq!(node_names(&stages[0]), ["a", "y"]);
}

/// A trunk a → b → c → y with an exit at `a`, which has a confidence and a result.
fn with_exit() -> Model {
    let (mut graph, x) = begin();
    let a = relu(&mut graph, &x, "a");
    let b = relu(&mut graph, &a, "b");
    let head = relu(&mut graph, &a, "head");
    graph.op("ReduceMax", &[&head]).attr("axes", [1, 2]).attr("keepdims", 0).named("sure").value();
    let c = relu(&mut graph, &b, "c");
    let y = relu(&mut graph, &c, "y");
    graph.output(&head, FP32, &dims!["batch", "tokens", 4]);
    finish(graph, &y)
}

#[test]
fn extra_outputs_leave_the_stage_that_has_their_operands() {
    let extra = names(&["sure", "head"]);
    for cuts in [Cuts::At(&names(&["a", "b"])), Cuts::Parts(3)] {
        let stages = cut(&with_exit(), cuts, &extra).expect("by rows");
        let first = &stages[0];
        assert!(node_names(first).starts_with(&["a", "head", "sure"]), "{:?}", node_names(first));
        let outputs = port_names(&first.outputs);
        assert!(outputs.contains(&"sure") && outputs.contains(&"head"), "{outputs:?}");
        let sure = first.outputs.iter().find(|port| port.name == "sure").expect("it is there");
        assert_eq!((sure.last_read_in, sure.is_graph_output), (None, false));
        assert_eq!(sure.dims, Some(dims!["batch"].into()));
    }
    let without = cut(&with_exit(), Cuts::At(&names(&["a"])), &[]).expect("by rows");
    assert_eq!(port_names(&without[0].outputs), ["a"]);
    assert_eq!(port_names(&without[1].outputs), ["head", "y"], "a head that is not extra comes last");
}

#[test]
fn an_extra_output_must_come_by_rows() {
    let refused = |name: &str| cut(&with_exit(), Cuts::Parts(1), &names(&[name])).expect_err("refused").to_string();
    assert_eq!(refused("x"), "tensor 'x' cannot be an output of its stage: it is no result of a node");
    assert_eq!(refused("shure"), "the graph has no tensor 'shure'; similar names are 'sure'");
    let (mut graph, x) = begin();
    let all = graph.op("ReduceMax", &[&x]).named("all").value();
    let y = graph.op("Add", &[&x, &all]).named("y").value();
    let refusal = cut(&finish(graph, &y), Cuts::Parts(1), &names(&["all"])).expect_err("refused").to_string();
    assert_eq!(
        refusal,
        "tensor 'all' cannot be an output of its stage: node 'all' (ReduceMax) reduces over the batch, expected every \
         row to depend on its own request alone"
    );
}

#[test]
fn what_a_body_takes_from_outside_crosses() {
    let (mut graph, x) = begin();
    let a = relu(&mut graph, &x, "a");
    let b = relu(&mut graph, &a, "b");
    let mut yes = graph.subgraph("yes");
    let sum = yes.op("Add", &[&a, &b]).value();
    yes.output(&sum, FP32, &[]);
    let mut no = graph.subgraph("no");
    let same = no.op("Identity", &[&b]).value();
    no.output(&same, FP32, &[]);
    let condition = graph.scalar(true);
    let call = graph.op("If", &[&condition]).attr("then_branch", yes).attr("else_branch", no);
    let y = call.named("y").value();
    let stages = cut_at(&finish(graph, &y), &["b"]).expect("by rows");
    assert_eq!(port_names(&stages[0].outputs), ["a", "b"]);
    assert_eq!(port_names(&stages[1].inputs), ["a", "b"]);
}

#[test]
fn a_stage_keeps_versions_functions_and_what_the_file_says_of_its_tensors() {
    let mut model = chain();
    model.0.functions.push(pb::FunctionProto { name: Some("f".to_owned()), ..Default::default() });
    if let Some(graph) = &mut model.0.graph {
        let shape = dims!["batch", "tokens", 4];
        graph.value_info = ["a", "b", "c"].map(|name| crate::port::declare(name, FP32, &shape)).into();
        graph.quantization_annotation = ["b", "d"]
            .map(|name| pb::TensorAnnotation { tensor_name: Some(name.to_owned()), ..Default::default() })
            .into();
    }
    let stages = cut_at(&model, &["b"]).expect("by rows");
    for (stage, inner, annotated) in [(&stages[0], "a", "b"), (&stages[1], "c", "d")] {
        let made = &stage.model.0;
        assert_eq!(made.opset_import, model.0.opset_import);
        assert_eq!((made.ir_version, &made.functions), (model.0.ir_version, &model.0.functions));
        let graph = made.graph.as_ref().expect("a graph");
        assert_eq!(graph.value_info.iter().map(|info| info.name()).collect::<Vec<_>>(), [inner]);
        let annotations: Vec<&str> = graph.quantization_annotation.iter().map(|it| it.tensor_name()).collect();
        assert_eq!(annotations, [annotated]);
    }
}

#[test]
fn a_shuffled_file_is_cut_as_a_sorted_one() {
    let mut model = chain();
    if let Some(graph) = &mut model.0.graph {
        graph.node.reverse();
    }
    let stages = cut_at(&model, &["b"]).expect("by rows");
    assert_eq!((node_names(&stages[0]), node_names(&stages[1])), (vec!["a", "b"], vec!["c", "d"]));
}
