use super::*;
use crate::port::dims;

const ROW: DataType = DataType::Fp32;

fn one_input() -> (Graph, Value) {
    let mut graph = Graph::new("tested");
    let x = graph.input("x", ROW, &dims!["batch", 2]);
    (graph, x)
}

#[test]
fn an_undefined_tensor_is_named_with_its_node() {
    let (mut graph, x) = one_input();
    let y = graph.op("Add", &[&x, &Value::by_name("ghost")]).named("y").value();
    graph.output(&y, ROW, &dims!["batch", 2]);
    let refusal = graph.finish().expect_err("ghost is nowhere");
    assert_eq!(refusal, BuildError::Undefined { node: "y".to_owned(), tensor: "ghost".to_owned() });
    assert_eq!(refusal.to_string(), "node 'y' uses tensor 'ghost', which is not defined before it");
}

#[test]
fn a_tensor_must_be_defined_before_it_is_used() {
    let (mut graph, x) = one_input();
    let y = graph.op("Add", &[&x, &Value::by_name("late")]).named("y").value();
    graph.op("Relu", &[&x]).named("late").value();
    graph.output(&y, ROW, &dims!["batch", 2]);
    assert!(matches!(graph.finish(), Err(BuildError::Undefined { tensor, .. }) if tensor == "late"));
}

#[test]
fn names_are_unique_among_inputs_constants_and_nodes() {
    let duplicate = |second: fn(&mut Graph, &Value)| {
        let (mut graph, x) = one_input();
        let y = graph.op("Relu", &[&x]).named("y").value();
        second(&mut graph, &x);
        graph.output(&y, ROW, &dims!["batch", 2]);
        graph.finish().expect_err("a name is there twice")
    };
    let twice = |tensor: &str| BuildError::Duplicate { graph: "tested".to_owned(), tensor: tensor.to_owned() };
    assert_eq!(duplicate(|graph, _| drop(graph.input("x", ROW, &[]))), twice("x"));
    assert_eq!(duplicate(|graph, _| drop(graph.constant("x", &[1], &[1.0_f32]))), twice("x"));
    assert_eq!(duplicate(|graph, x| drop(graph.op("Tanh", &[x]).named("y").value())), twice("y"));
}

#[test]
fn a_constant_must_fill_its_shape() {
    let (mut graph, x) = one_input();
    graph.constant("weights", &[2, 3], &[1.0_f32; 5]);
    graph.output(&x, ROW, &dims!["batch", 2]);
    let refusal = graph.finish().expect_err("one number is missing").to_string();
    assert_eq!(refusal, "constant 'weights' of shape [2, 3] takes 24 bytes, but 20 were given");
}

#[test]
fn outputs_must_exist() {
    let (mut graph, _) = one_input();
    graph.output(&Value::by_name("ghost"), ROW, &[]);
    assert!(matches!(graph.finish(), Err(BuildError::UndefinedOutput { tensor, .. }) if tensor == "ghost"));
    let (graph, _) = one_input();
    assert_eq!(graph.finish(), Err(BuildError::NoOutput { graph: "tested".to_owned() }));
}

#[test]
fn generated_names_tell_scope_and_operator_and_differ() {
    let (mut graph, x) = one_input();
    let names = graph.scope("layer1", |graph| {
        let first = graph.op("Relu", &[&x]).value();
        let second = graph.op("Relu", &[&first]).value();
        let weight = graph.constant("weight", &[1], &[1_i64]);
        [first, second, weight].map(|value| value.to_string())
    });
    assert_eq!(names, ["layer1/Relu", "layer1/Relu_2", "layer1/weight"]);
    assert_eq!(graph.op("Relu", &[&x]).value().name(), "Relu");
}

#[test]
fn a_body_uses_the_outer_tensors_but_hides_none() {
    let with_body = |inner: &str| {
        let (mut graph, x) = one_input();
        let mut body = graph.subgraph("body");
        let y = body.op("Relu", &[&x]).named(inner).value();
        body.output(&y, ROW, &dims!["batch", 2]);
        let condition = graph.scalar(true);
        let chosen = graph.op("If", &[&condition]).attr("then_branch", body).named("chosen").value();
        graph.output(&chosen, ROW, &dims!["batch", 2]);
        graph.finish()
    };
    assert!(with_body("y").is_ok());
    assert_eq!(with_body("x"), Err(BuildError::Duplicate { graph: "body".to_owned(), tensor: "x".to_owned() }));
}

#[test]
fn a_constant_of_a_body_must_fill_its_shape_too() {
    let (mut graph, x) = one_input();
    let mut body = graph.subgraph("body");
    let weights = body.constant("weights", &[2], &[1_i64]);
    body.output(&weights, DataType::Int64, &dims![2]);
    let chosen = graph.op("If", &[&x]).attr("then_branch", body).value();
    graph.output(&chosen, DataType::Int64, &dims![2]);
    assert!(matches!(graph.finish(), Err(BuildError::DataLength { tensor, .. }) if tensor == "body/weights"));
}

#[test]
fn optional_inputs_can_be_left_out() {
    let (mut graph, x) = one_input();
    let high = graph.scalar(6.0_f32);
    let y = graph.op("Clip", &[&x]).skip().with(&high).value();
    graph.output(&y, ROW, &dims!["batch", 2]);
    let model = graph.finish().expect("an empty name is no tensor");
    let node = &model.0.graph.expect("a graph").node[0];
    assert_eq!(node.input, ["x", "", "scalar"]);
}
