use super::*;
use crate::{
    weights::Seeded,
    zoo::{self, Width},
};

#[test]
fn legal_cuts_tell_what_crosses_in_order() {
    let (mut graph, x) = begin();
    let a = relu(&mut graph, &x, "a");
    let b = relu(&mut graph, &a, "b");
    let c = graph.op("Add", &[&a, &b]).named("c").value();
    let y = relu(&mut graph, &c, "y");
    let cuts = legal_cuts(&finish(graph, &y));
    let found: Vec<_> = cuts.iter().map(|cut| (cut.tensor.as_str(), cut.crossing.join(" "))).collect();
    let expected = [("a", "a"), ("b", "a b"), ("c", "c")].map(|(tensor, crossing)| (tensor, crossing.to_owned()));
    assert_eq!(found, expected);
    let row_bytes = 64.0 * 4.0 * 4.0;
    assert_eq!(cuts.iter().map(|cut| cut.crossing_bytes / row_bytes).collect::<Vec<_>>(), [1.0, 2.0, 1.0]);
    // A rectifier moves two tensors, a sum three.
    let before: Vec<f64> = cuts.iter().map(|cut| (cut.cost_before * 9.0).round()).collect();
    assert_eq!(before, [2.0, 4.0, 7.0]);
}

#[test]
fn ranges_end_near_equal_times_where_the_fewest_bytes_cross() {
    let place = |tensor: &str, cost_before, crossing_bytes| LegalCut {
        tensor: tensor.to_owned(),
        crossing: vec![tensor.to_owned()],
        crossing_bytes,
        cost_before,
    };
    let places = [place("a", 0.2, 9.0), place("b", 0.3, 4.0), place("c", 0.5, 7.0), place("d", 0.52, 7.0)];
    let names = |count| between_ranges(&places, count).iter().map(|cut| cut.tensor.as_str()).collect::<Vec<_>>();
    assert_eq!(names(4), ["b", "c"], "no place is near three quarters");
    assert_eq!(names(2), ["b"], "of all within a quarter");
    assert_eq!(names(1), [""; 0]);
}

#[test]
fn each_legal_cut_crosses_as_told() {
    let models = [
        zoo::resnet50(Width::QUARTER).expect("sound"),
        zoo::unet(Width::QUARTER).expect("sound"),
        zoo::bert_base(Width::QUARTER).expect("sound"),
        zoo::minilm(Seeded::new(1)).expect("sound"),
    ];
    for model in models {
        let cuts = legal_cuts(&model);
        assert!(cuts.len() > 30, "{} cuts", cuts.len());
        for legal in cuts.iter().step_by(5) {
            let stages = cut_at(&model, &[&legal.tensor]).expect("it is legal");
            assert_eq!(port_names(&stages[0].outputs), legal.crossing, "{}", legal.tensor);
            assert!((stages[0].cost - legal.cost_before).abs() < 1e-9, "{}", legal.tensor);
        }
    }
}

#[test]
fn a_residual_network_can_be_cut_between_its_blocks_with_one_tensor_crossing() {
    let cuts = legal_cuts(&zoo::resnet50(Width::QUARTER).expect("sound"));
    let alone = cuts.iter().filter(|cut| cut.crossing.len() == 1);
    assert!(alone.count() >= 16, "the ends of sixteen blocks");
}

#[test]
fn skips_of_a_unet_cross_its_middle() {
    let cuts = legal_cuts(&zoo::unet(Width::QUARTER).expect("sound"));
    assert_eq!(cuts.iter().map(|cut| cut.crossing.len()).max(), Some(5), "four skips and the bottom");
}

#[test]
fn an_encoder_has_the_mask_cross_and_nothing_that_shapes_tell() {
    let model = zoo::minilm(Seeded::new(1)).expect("sound");
    let stages = cut(&model, Cuts::Parts(3), &[]).expect("six layers");
    for stage in &stages[..2] {
        let found = stage.outputs.iter().map(|port| port.dims.clone().unwrap_or_default()).collect::<Vec<_>>();
        assert!(found.contains(&dims!["batch", "tokens", 384].into()), "{found:?}");
        assert!(found.len() <= 2, "the states and the mask: {found:?}");
    }
    assert_eq!(port_names(&stages[1].inputs)[0], "mask/Mul", "the bias of the mask, not the mask");
    for stage in &stages {
        assert!((0.3..0.37).contains(&stage.cost), "six equal layers: {}", stage.cost);
    }
}

#[test]
fn one_part_is_the_whole_network() {
    let model = zoo::bert_base(Width::QUARTER).expect("sound");
    let stages = cut(&model, Cuts::Parts(1), &[]).expect("the whole");
    let (whole, made) = (model.0.graph.expect("a graph"), stages[0].model.0.graph.as_ref().expect("a graph"));
    assert_eq!((&made.node, &made.initializer), (&whole.node, &whole.initializer));
    assert_eq!((&made.input, &made.output), (&whole.input, &whole.output));
    assert_eq!(stages[0].cost, 1.0);
}

#[test]
fn a_long_chain_is_cut_without_growing_slow() {
    let (mut graph, x) = begin();
    let y = (0..100_000).fold(x, |x, _| graph.op("Relu", &[&x]).value());
    let model = finish(graph, &y);
    assert_eq!(legal_cuts(&model).len(), 99_999);
    let stages = cut(&model, Cuts::Parts(256), &[]).expect("many places");
    let longest = stages.iter().map(|stage| node_names(stage).len()).max();
    assert!(longest.is_some_and(|longest| longest < 420), "{longest:?} of 391 on average");
}

#[test]
fn tensors_that_all_cross_to_the_end_are_counted_without_growing_slow() {
    let (mut graph, x) = begin();
    let mut made = vec![x];
    for _ in 0..20_000 {
        let next = graph.op("Relu", &[&made[made.len() - 1]]).value();
        made.push(next);
    }
    let all: Vec<&Value> = made.iter().collect();
    let y = graph.op("Sum", &all).value();
    let cuts = legal_cuts(&finish(graph, &y));
    assert_eq!(cuts.len(), CROSSING_MAX, "further on, too much would cross");
}

#[test]
fn nodes_that_every_stage_would_repeat_are_bounded() {
    let (mut graph, x) = begin();
    let weight = graph.constant("weight", &[4], &[1.0_f32; 4]);
    let long = (0..20_000).fold(weight, |w, _| graph.op("Neg", &[&w]).value());
    let y = (0..20).fold(x, |x, _| graph.op("Mul", &[&x, &long]).value());
    let model = finish(graph, &y);
    assert!(cut(&model, Cuts::Parts(4), &[]).is_ok());
    let found = cut(&model, Cuts::Parts(20), &[]).expect_err("twenty times").to_string();
    assert!(found.starts_with("the stages would hold 90081 nodes, of which the graph has 20020"), "{found}");
}
