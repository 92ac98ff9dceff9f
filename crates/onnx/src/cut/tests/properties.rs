use proptest::prelude::*;

use super::*;
use crate::{
    fuzz::check_stages,
    infer::tests::hostile::{graphs, model},
};

/// Networks of operators that keep, move or mix rows, or compute shapes, over the most recent tensors.
fn networks() -> impl Strategy<Value = Model> {
    let node = (0_u8..8, 0_usize..4, 0_usize..4);
    (prop::collection::vec(node, 2..30), 0_usize..4).prop_map(|(nodes, early)| {
        let (mut graph, x) = begin();
        let mut made = vec![x];
        for (kind, left, right) in nodes {
            let back = |by: usize| made[made.len().saturating_sub(1 + by)].clone();
            let (left, right) = (back(left), back(right));
            made.push(match kind {
                0 => graph.op("Transpose", &[&left]).attr("perm", [1, 0, 2]).value(),
                1 => {
                    let shape = graph.op("Shape", &[&right]).value();
                    let zeros = graph.op("ConstantOfShape", &[&shape]).value();
                    graph.op("Add", &[&left, &zeros]).value()
                }
                2 => graph.op("Softmax", &[&left]).attr("axis", (made.len() % 3) as i64).value(),
                3 | 4 => graph.op("Add", &[&left, &right]).value(),
                _ => graph.op("Relu", &[&left]).value(),
            });
        }
        let early = made[made.len() / 2 + early.min(made.len() / 2 - 1)].clone();
        let last = made[made.len() - 1].clone();
        if early != last && early.name() != "x" {
            graph.output(&early, FP32, &[]);
        }
        finish(graph, &last)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn stages_of_any_network_fit_together(model in networks(), parts in 1_usize..5) {
        let graph = model.0.graph.as_ref().expect("a graph");
        if let Ok(stages) = cut(&model, Cuts::Parts(parts), &[]) {
            prop_assert_eq!(stages.len(), parts);
            check_stages(graph, &stages);
        }
        let legal = legal_cuts(&model);
        for one in &legal {
            let stages = cut_at(&model, &[&one.tensor]).expect("it is legal");
            check_stages(graph, &stages);
            let crossing: Vec<&str> = stages[0].outputs.iter()
                .filter(|port| port.last_read_in == Some(1)).map(|port| port.name.as_str()).collect();
            prop_assert_eq!(crossing, one.crossing.iter().map(String::as_str).collect::<Vec<_>>());
        }
        let all: Vec<String> = legal.into_iter().map(|cut| cut.tensor).collect();
        let stages = cut(&model, Cuts::At(&all), &[]).expect("together too");
        check_stages(graph, &stages);
    }

    #[test]
    fn no_graph_makes_cutting_panic(graph in graphs(), opset in 5_i64..22, parts in 1_usize..4) {
        let mut graph = graph;
        let outputs = graph.node.iter().rev().take(2).filter_map(|node| node.output.first());
        graph.output = outputs.map(|name| crate::port::declare(name, FP32, &[])).collect();
        let names: Vec<String> = graph.node.iter().take(3).filter_map(|node| node.output.first().cloned()).collect();
        let model = model(graph, opset);
        let _ = cut(&model, Cuts::Parts(parts), &names[..1]);
        let _ = cut(&model, Cuts::At(&names), &[]);
        legal_cuts(&model);
    }
}
