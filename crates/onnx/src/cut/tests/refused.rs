use super::*;

#[test]
fn a_reshape_that_merges_batch_and_tokens_is_no_place_to_cut() {
    let (mut graph, x) = begin();
    let before = relu(&mut graph, &x, "before");
    let flat = graph.literal(&[-1_i64, 4]);
    let merged = graph.op("Reshape", &[&before, &flat]).named("merged").value();
    let y = relu(&mut graph, &merged, "y");
    assert_eq!(
        refusal(&finish(graph, &y), &["merged"]),
        "cannot cut at 'merged': tensor 'merged' would cross, but its axis 0 is the batch times another length, \
         expected the batch alone on axis 0; possible cuts nearby are 'before'"
    );
}

#[test]
fn a_transposition_that_moves_the_batch_is_no_place_to_cut() {
    let (mut graph, x) = begin();
    let before = relu(&mut graph, &x, "before");
    let moved = graph.op("Transpose", &[&before]).attr("perm", [1, 0, 2]).named("moved").value();
    let back = graph.op("Transpose", &[&moved]).attr("perm", [1, 0, 2]).named("back").value();
    let y = relu(&mut graph, &back, "y");
    assert_eq!(
        refusal(&finish(graph, &y), &["moved"]),
        "cannot cut at 'moved': tensor 'moved' would cross, but the batch is its axis 1, expected axis 0; possible \
         cuts nearby are 'before', 'back'"
    );
}

#[test]
fn nothing_behind_a_softmax_over_the_batch_is_a_place_to_cut() {
    let (mut graph, x) = begin();
    let before = relu(&mut graph, &x, "before");
    let mixed = graph.op("Softmax", &[&before]).attr("axis", 0).named("mixed").value();
    let after = relu(&mut graph, &mixed, "after");
    let y = relu(&mut graph, &after, "y");
    assert_eq!(
        refusal(&finish(graph, &y), &["after"]),
        "cannot cut at 'after': tensor 'after' would cross, but node 'mixed' (Softmax) normalises over the batch, \
         expected every row to depend on its own request alone; possible cuts nearby are 'before'"
    );
}

#[test]
fn a_skip_connection_that_does_not_come_by_rows_forbids_the_cut() {
    let (mut graph, x) = begin();
    let skip = graph.op("Transpose", &[&x]).attr("perm", [1, 0, 2]).named("skip").value();
    let main = graph.op("ReduceSum", &[&x]).attr("keepdims", 1).named("main").value();
    let joined = graph.op("Add", &[&skip, &main]).named("y").value();
    let model = finish(graph, &joined);
    assert!(refusal(&model, &["main"]).starts_with("cannot cut at 'main': tensor 'main' would cross, but node 'main'"));

    let (mut graph, x) = begin();
    let skip = graph.op("Transpose", &[&x]).attr("perm", [1, 0, 2]).named("skip").value();
    let middle = graph.op("Transpose", &[&skip]).attr("perm", [1, 0, 2]).named("middle").value();
    let again = graph.op("Transpose", &[&middle]).attr("perm", [1, 0, 2]).value();
    let joined = graph.op("Add", &[&skip, &again]).named("y").value();
    assert_eq!(
        refusal(&finish(graph, &joined), &["middle"]),
        "cannot cut at 'middle': tensor 'skip' would cross, but the batch is its axis 1, expected axis 0"
    );
}

#[test]
fn an_output_given_early_must_come_by_rows() {
    let (mut graph, x) = begin();
    let before = relu(&mut graph, &x, "before");
    let [values, places] = graph.op("MaxPool", &[&before]).attr("kernel_shape", [2]).named("pool").values();
    graph.output(&places, DataType::Int64, &dims!["batch", "tokens", 3]);
    let y = relu(&mut graph, &values, "y");
    assert_eq!(
        refusal(&finish(graph, &y), &["pool"]),
        "cannot cut at 'pool': tensor 'pool.1' would cross, but node 'pool' (MaxPool) counts places through the batch, \
         expected every row to depend on its own request alone; possible cuts nearby are 'before'"
    );
}

#[test]
fn names_must_be_tensors_between_nodes_in_order_and_once() {
    let model = chain();
    let cases: [(&[&str], &str); 5] = [
        (&["x"], "cannot cut at 'x': it is an input of the graph, expected a tensor between nodes"),
        (&["d"], "cannot cut at 'd': it is an output of the graph, expected a tensor between nodes"),
        (&["b", "a"], "cannot cut at 'a' after 'b', which needs it: expected 'a' first"),
        (&["b", "b"], "cannot cut at 'b' twice"),
        (&["zzzzzzzz"], "the graph has no tensor 'zzzzzzzz'"),
    ];
    for (at, text) in cases {
        assert_eq!(refusal(&model, at), text);
    }
}

#[test]
fn weights_constants_and_tensors_for_nothing_are_no_places_to_cut() {
    let (mut graph, x) = begin();
    let weight = graph.constant("weight", &[4], &[1.0_f32; 4]);
    let doubled = graph.op("Add", &[&weight, &weight]).named("doubled").value();
    relu(&mut graph, &x, "idle");
    let [left, right] = graph.op("Split", &[&x]).attr("axis", 2).named("left").values();
    let joined = graph.op("Concat", &[&left, &right]).attr("axis", 2).value();
    let y = graph.op("Add", &[&joined, &doubled]).named("y").value();
    let model = finish(graph, &y);
    assert_eq!(
        refusal(&model, &["weight"]),
        "cannot cut at 'weight': it is a weight of the graph, expected a tensor between nodes"
    );
    assert_eq!(
        refusal(&model, &["doubled"]),
        "cannot cut at 'doubled': tensor 'doubled' would cross, but it follows from weights and shapes alone, so that \
         every stage computes it itself; possible cuts nearby are 'left'"
    );
    assert_eq!(refusal(&model, &["idle"]), "cannot cut at 'idle': no output of the graph needs it");
    assert_eq!(
        refusal(&model, &["left", "left.1"]),
        "cannot cut at 'left.1' after 'left': the same node produces both, so the stage would be empty"
    );
}

#[test]
fn more_parts_than_places_are_refused_with_their_number() {
    let parts = |parts: usize| cut(&chain(), Cuts::Parts(parts), &[]);
    assert_eq!(parts(4).expect("a, b, c").len(), 4);
    let refusal = parts(5).expect_err("d ends the graph").to_string();
    assert_eq!(refusal, "5 stages were requested, but the graph can be cut into at most 4");
    assert_eq!(parts(0).expect_err("none").to_string(), "0 stages were requested, expected 1 to 256");
    assert_eq!(parts(257).expect_err("too many"), CutError::Count { asked: 257 });
    let named: Vec<String> = (0..256).map(|at| at.to_string()).collect();
    assert_eq!(cut(&chain(), Cuts::At(&named), &[]).expect_err("too many"), CutError::Count { asked: 257 });
}

#[test]
fn a_model_without_a_batch_has_no_cuts() {
    let mut graph = Graph::new("fixed");
    let x = graph.input("x", FP32, &dims![1, 4]);
    let a = relu(&mut graph, &x, "a");
    let y = relu(&mut graph, &a, "y");
    let model = finish(graph, &y);
    assert_eq!(legal_cuts(&model), []);
    assert_eq!(
        refusal(&model, &["a"]),
        "cannot cut at 'a': tensor 'a' would cross, but tensor 'x' has no batch axis, expected every row to depend on \
         its own request alone"
    );
}

#[test]
fn graphs_that_cannot_run_are_refused() {
    assert_eq!(cut_at(&Model(crate::pb::ModelProto::default()), &[]).expect_err("empty"), CutError::NoGraph);
    let mut model = chain();
    if let Some(graph) = &mut model.0.graph {
        graph.node[1].input = names(&["c"]);
    }
    assert_eq!(refusal(&model, &["a"]), "node 'b' waits for its own output, expected a graph without cycles");
    assert_eq!(legal_cuts(&model), []);
    let mut model = chain();
    if let Some(graph) = &mut model.0.graph {
        graph.output[0].name = Some("ghost".to_owned());
    }
    assert_eq!(refusal(&model, &["a"]), "the graph has no tensor 'ghost'");
}

#[test]
fn a_type_that_the_protocol_lacks_is_refused_at_the_border() {
    let mut model = chain();
    if let Some(graph) = &mut model.0.graph {
        graph.input[0].r#type = Some(crate::pb::TypeProto {
            value: Some(crate::pb::type_proto::Value::TensorType(crate::pb::type_proto::Tensor {
                elem_type: Some(17),
                shape: None,
            })),
            denotation: None,
        });
    }
    let refusal = cut(&model, Cuts::Parts(1), &[]).expect_err("an eight-bit float").to_string();
    assert_eq!(refusal, "tensor 'x' is FLOAT8E4M3FN, expected an element type of the protocol");
}

#[test]
fn where_there_is_no_place_the_first_obstacle_is_named() {
    let mut graph = Graph::new("fixed");
    let x = graph.input("x", FP32, &dims![1, 4]);
    let y = ["a", "b"].iter().fold(x, |x, name| relu(&mut graph, &x, name));
    let fixed = finish(graph, &y);
    assert_eq!(legal_cuts(&fixed), []);
    assert_eq!(
        obstacle(&fixed),
        "tensor 'a' cannot cross: tensor 'x' has no batch axis, expected every row to depend on its own request alone"
    );
    let (mut graph, x) = begin();
    let y = relu(&mut graph, &x, "y");
    assert_eq!(obstacle(&finish(graph, &y)), "no tensor is between two nodes");
}

#[test]
fn an_axis_named_as_the_batch_does_not_keep_a_graph_from_being_cut() {
    let mut graph = Graph::new("twice");
    let x = graph.input("x", FP32, &dims!["batch", "batch", 4]);
    let y = ["a", "b", "c"].iter().fold(x, |x, name| relu(&mut graph, &x, name));
    let places = legal_cuts(&finish(graph, &y));
    assert_eq!(places.iter().map(|place| place.tensor.as_str()).collect::<Vec<_>>(), ["a", "b"]);
}
