use super::*;
use crate::{
    build::{Graph, Value},
    port::dims,
    segments::{SegmentKind, SegmentSource},
};

/// A decoder without layers: its scores are counts of keys, so that the graph is sound but computes nothing of use.
struct Rig {
    graph: Graph,
    tokens: Value,
    mask: Value,
}

impl Rig {
    fn new() -> Self {
        let mut graph = Graph::new("decoder");
        let tokens = graph.input(TOKENS, DataType::Int64, &dims!["batch", "tokens"]);
        let mask = graph.input(MASK, DataType::Int64, &dims!["batch", "all"]);
        Self { graph, tokens, mask }
    }

    fn with_positions(mut self) -> Self {
        self.graph.input(POSITIONS, DataType::Int64, &dims!["batch", "tokens"]);
        self
    }

    fn finish(mut self, heads: &str) -> Model {
        let heads = heads.parse().map_or_else(|_| PortDim::Symbol(heads.to_owned()), PortDim::Fixed);
        let dims = |axis: &str| ["batch".into(), heads.clone(), axis.into(), PortDim::Fixed(4)];
        for part in ["key", "value"] {
            let past = self.graph.input(&format!("{PAST}0.{part}"), DataType::Fp32, &dims("past"));
            let call = self.graph.op("Concat", &[&past, &past]).attr("axis", 2);
            let present = call.named(&format!("{PRESENT}0.{part}")).value();
            self.graph.output(&present, DataType::Fp32, &dims("all"));
        }
        let axes = self.graph.literal(&[2_i64]);
        let scores = self.graph.op("Unsqueeze", &[&self.tokens, &axes]).value();
        let scores = self.graph.op("Cast", &[&scores]).attr("to", 1).named(SCORES).value();
        self.graph.output(&scores, DataType::Fp32, &dims!["batch", "tokens", 1]);
        self.graph.finish().expect("the graph is sound")
    }
}

fn reason(result: Result<Decoder, NotOpened>) -> String {
    result.expect_err("it should be refused").to_string()
}

#[test]
fn a_decoder_is_a_prompt_and_a_loop() {
    let decoder = open(&Rig::new().with_positions().finish("2"), &[7, 9]).expect("it generates");
    let [prompt, decode] = &decoder.segments;
    assert_eq!((prompt.kind, decode.kind), (SegmentKind::Stage, SegmentKind::Decode));
    let kinds = decode.inputs.iter().map(|input| match &input.source {
        SegmentSource::Fed { .. } => "fed",
        SegmentSource::Length(_) => "length",
        SegmentSource::GrownLength => "grown length",
        SegmentSource::Whole(_) => "held",
        SegmentSource::Grown(_) => "grown",
        _ => "other",
    });
    assert_eq!(
        kinds.collect::<Vec<_>>(),
        ["fed", "length", "grown length", "held", "grown", "held", "grown"],
        "keys and values of the prompt and of the steps"
    );
    let names = |model: &Model| -> Vec<String> {
        let graph = model.0.graph.iter();
        graph.flat_map(|graph| &graph.output).map(|output| output.name().to_owned()).collect()
    };
    let outputs = names(&decode.model);
    assert!(outputs.contains(&decoder.next) && decoder.ended.is_some_and(|ended| outputs.contains(&ended)));
    let reads_scores = |model: &Model| {
        let mut nodes = model.0.graph.iter().flat_map(|graph| &graph.node);
        nodes.any(|node| node.output.iter().any(|name| name == SCORES))
    };
    assert!(!reads_scores(&prompt.model) && reads_scores(&decode.model), "the prompt needs no scores");
    assert_eq!(open(&Rig::new().with_positions().finish("2"), &[]).expect("it generates").ended, None);
}

#[test]
fn what_would_count_padding_is_refused() {
    let counting = "it counts positions by the length of the past; export it with position_ids";
    assert_eq!(reason(open(&Rig::new().finish("2"), &[])), counting);
    let mut rig = Rig::new();
    let axis = rig.graph.scalar(1_i64);
    rig.graph.op("CumSum", &[&rig.tokens, &axis]).value();
    assert_eq!(reason(open(&rig.finish("2"), &[])), counting, "the sum is not of the mask");
    let mut rig = Rig::new();
    let axis = rig.graph.scalar(1_i64);
    let wide = rig.graph.op("Cast", &[&rig.mask]).attr("to", 7).value();
    rig.graph.op("CumSum", &[&wide, &axis]).value();
    open(&rig.finish("2"), &[]).expect("positions are summed up from the mask");
    let mut rig = Rig::new().with_positions();
    rig.graph.op("GroupQueryAttention", &[&rig.tokens]).value();
    assert_eq!(
        reason(open(&rig.finish("2"), &[])),
        "the operator GroupQueryAttention counts padding; export without fused operators"
    );
}

#[test]
fn inputs_that_a_loop_cannot_give_are_refused_by_name() {
    let mut rig = Rig::new().with_positions();
    rig.graph.input("encoder_hidden_states", DataType::Fp32, &dims!["batch", "source", 4]);
    let refused = reason(open(&rig.finish("2"), &[]));
    assert!(refused.starts_with("the input 'encoder_hidden_states' is none of a decoder alone"), "{refused}");
    let refused = reason(open(&Rig::new().with_positions().finish("heads"), &[]));
    let expected = "'past_key_values.0.key': expected the axes [batch, heads, tokens, width], but found [batch, heads, \
                    past, 4]";
    assert_eq!(refused, expected);
}

#[test]
fn graphs_of_other_kinds_are_no_decoders() {
    let of = |model: &Model| {
        let inputs: Vec<Port> = model.0.graph.iter().flat_map(|graph| &graph.input).map(Port::of).collect();
        tokens_of(&inputs)
    };
    assert_eq!(of(&Rig::new().finish("2")), Some(DataType::Int64));
    let mobilenet = crate::zoo::mobilenet(crate::zoo::Width::QUARTER).expect("sound");
    assert_eq!(of(&mobilenet), None);
    assert_eq!(reason(open(&mobilenet, &[])).split('\'').next(), Some("the input "));
}
