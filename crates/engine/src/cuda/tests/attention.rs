//! Which graphs have attention, and what is left of its parts.

use paternoster_model::{DataType, SymbolId, TensorSpec};
use paternoster_onnx::{
    Model,
    build::{Graph, Value},
    dims,
    weights::Seeded,
    zoo::{self, Width, cells},
};

use super::{plan, shown};
use crate::{
    Precision,
    cuda::{
        Plan,
        fuse::Step,
        ir::{Attention, Holder, Mask},
    },
};

const TOKENS: i64 = 6;
const HEADS: usize = 2;
const SIZE: usize = 8;

fn attentions(plan: &Plan) -> Vec<&Attention> {
    let mut found = Vec::new();
    for step in &plan.0.steps {
        if let Step::Attention(attention) = step {
            found.push(attention);
        }
    }
    found
}

#[test]
fn layers_of_encoders_attend_by_one_kernel_each_and_share_a_mask() {
    let minilm = zoo::minilm_of(Width::part(6), Seeded::new(1)).expect("sound");
    let bert = zoo::bert_base(Width::part(12)).expect("sound");
    let encoder = cells::transformer::encoder(Width::QUARTER).expect("sound");
    for (model, axis, layers) in [(minilm, "tokens", 6), (bert, "tokens", 12), (encoder, "source", 2)] {
        let plan = plan(&model, &[(axis, 16)]);
        let found = attentions(&plan);
        assert_eq!(found.len(), layers);
        assert!(found.iter().all(|attention| attention.is_own && attention.mask == found[0].mask), "{found:?}");
        assert!(!shown(&plan).contains(&"softmax".to_owned()), "{:?}", shown(&plan));
        // Neither scores nor heads in another order are in memory.
        let largest = plan.0.work.buffers.iter().enumerate().filter(|(id, buffer)| {
            let reads = |step: &Step| step.reads(&plan.0.work.expressions).contains(id) || step.writes().contains(id);
            matches!(buffer.holder, Holder::Scratch) && plan.0.steps.iter().any(reads)
        });
        let most = largest.map(|(_, buffer)| buffer.elements).max().expect("there are tensors");
        let [heads, queries, size] = [found[0].heads, found[0].queries, found[0].head_size];
        assert_eq!(most, 4 * heads * size * queries, "the widest layer's");
    }
}

#[test]
fn steps_of_decoders_attend_with_a_single_query_by_products() {
    let model = cells::transformer::decoder(Width::QUARTER).expect("sound");
    assert!(attentions(&plan(&model, &[("past", 16), ("memory", 16)])).is_empty());
}

/// A graph under construction, and what it computes attention from.
struct Parts<'g> {
    graph: &'g mut Graph,
    /// `[batch, heads, tokens, size]`.
    q: Value,
    /// `[batch, heads, size, tokens]`.
    k: Value,
    v: Value,
    /// FP32 `[batch, tokens]`.
    mask: Value,
    /// The mask as `[batch, 1, 1, tokens]`.
    wide: Value,
}

impl Parts<'_> {
    fn op(&mut self, op: &str, operands: &[&Value]) -> Value {
        self.graph.op(op, operands).value()
    }

    fn scores(&mut self) -> Value {
        let (q, k) = (self.q.clone(), self.k.clone());
        self.op("MatMul", &[&q, &k])
    }

    fn masked(&mut self) -> Value {
        let (scores, wide) = (self.scores(), self.wide.clone());
        self.op("Add", &[&scores, &wide])
    }

    fn shares(&mut self, scores: &Value, axis: i64) -> Value {
        self.graph.op("Softmax", &[scores]).attr("axis", axis).value()
    }

    fn mixed(&mut self, shares: &Value) -> Value {
        let v = self.v.clone();
        self.op("MatMul", &[shares, &v])
    }
}

/// Plans a graph over states and a mask whose tokens are padded. Its result is `[batch, heads, tokens, size]`, and a
/// second output, if there is one, `[batch, heads, tokens, tokens]`.
fn planned(build: impl FnOnce(&mut Parts<'_>) -> (Value, Option<Value>)) -> Plan {
    let (heads, size) = (HEADS as i64, SIZE as i64);
    let mut graph = Graph::new("attention");
    let x = graph.input("x", DataType::Fp32, &dims!["batch", TOKENS, heads * size]);
    let mask = graph.input("mask", DataType::Fp32, &dims!["batch", TOKENS]);
    let split = graph.literal(&[0, 0, heads, size]);
    let axes = graph.literal(&[1_i64, 2]);
    let wide = graph.op("Unsqueeze", &[&mask, &axes]).value();
    let [q, k, v] = [[0_i64, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3]].map(|order| {
        let weights = graph.literal(&vec![0.5_f32; (heads * size * heads * size) as usize]);
        let square = graph.literal(&[heads * size, heads * size]);
        let weights = graph.op("Reshape", &[&weights, &square]).value();
        let projected = graph.op("MatMul", &[&x, &weights]).value();
        let parts = graph.op("Reshape", &[&projected, &split]).value();
        graph.op("Transpose", &[&parts]).attr("perm", order).value()
    });
    let (y, more) = build(&mut Parts { graph: &mut graph, q, k, v, mask, wide });
    let mut outputs = vec![TensorSpec::new("y", DataType::Fp32, &[heads, TOKENS, size])];
    let y = graph.op("Identity", &[&y]).named("y").value();
    graph.output(&y, DataType::Fp32, &dims!["batch", heads, TOKENS, size]);
    if let Some(more) = more {
        let more = graph.op("Identity", &[&more]).named("more").value();
        graph.output(&more, DataType::Fp32, &dims!["batch", heads, TOKENS, TOKENS]);
        outputs.push(TensorSpec::new("more", DataType::Fp32, &[heads, TOKENS, TOKENS]));
    }
    let symbols = [Some(SymbolId(3)), None];
    let padded = |name: &str, dims: &[i64]| TensorSpec {
        symbols: symbols[..dims.len()].into(),
        ..TensorSpec::new(name, DataType::Fp32, dims)
    };
    let inputs = [padded("x", &[TOKENS, heads * size]), padded("mask", &[TOKENS])];
    let model: Model = graph.finish().expect("sound");
    Plan::new(&model, &inputs, &outputs, true, Precision::Ieee).expect("it has a plan")
}

#[test]
fn attention_reads_projections_and_masks_where_they_lie() {
    let plan = planned(|parts| {
        let masked = parts.masked();
        let shares = parts.shares(&masked, -1);
        (parts.mixed(&shares), None)
    });
    // Heads are not moved, and the mask is the input itself. The kernel behind copies the result to the output.
    assert_eq!(shown(&plan), ["product", "product", "product", "attention", "kernel [1]"]);
    let [attention] = attentions(&plan)[..] else { panic!("there is one") };
    assert!(attention.is_own && attention.axis == Some(3) && attention.scale.to_bits() == 1.0_f32.to_bits());
    let Some(Mask { buffer, replaces: false }) = attention.mask else { panic!("{:?}", attention.mask) };
    assert!(matches!(plan.0.work.buffers[buffer].holder, Holder::Input(1)));
    for vectors in [attention.q, attention.k, attention.v] {
        let width = HEADS * SIZE;
        assert_eq!((vectors.row, vectors.head, vectors.token), (TOKENS as usize * width, SIZE, width));
    }
}

#[test]
fn without_a_mask_all_keys_count() {
    let plan = planned(|parts| {
        let scores = parts.scores();
        let shares = parts.shares(&scores, -1);
        (parts.mixed(&shares), None)
    });
    let [attention] = attentions(&plan)[..] else { panic!("there is one") };
    assert_eq!((attention.mask, attention.axis), (None, None));
}

#[test]
fn what_is_almost_attention_stays_as_it_is() {
    type Build = fn(&mut Parts<'_>) -> (Value, Option<Value>);
    let builds: [(&str, Build); 9] = [
        ("softmax over the queries", |parts| {
            let masked = parts.masked();
            let shares = parts.shares(&masked, 2);
            (parts.mixed(&shares), None)
        }),
        ("a mask that depends on the scores", |parts| {
            let (scores, wide) = (parts.scores(), parts.wide.clone());
            let bent = parts.op("Sigmoid", &[&scores]);
            let mask = parts.op("Mul", &[&bent, &wide]);
            let masked = parts.op("Add", &[&scores, &mask]);
            let shares = parts.shares(&masked, -1);
            (parts.mixed(&shares), None)
        }),
        ("a condition that depends on the scores", |parts| {
            let scores = parts.scores();
            let (zero, lowest) = (parts.graph.scalar(0.0_f32), parts.graph.scalar(-1e4_f32));
            let condition = parts.op("Less", &[&scores, &zero]);
            let masked = parts.op("Where", &[&condition, &scores, &lowest]);
            let shares = parts.shares(&masked, -1);
            (parts.mixed(&shares), None)
        }),
        ("a mask of the queries", |parts| {
            let (scores, mask) = (parts.scores(), parts.mask.clone());
            let axes = parts.graph.literal(&[1_i64, 3]);
            let mask = parts.op("Unsqueeze", &[&mask, &axes]);
            let masked = parts.op("Add", &[&scores, &mask]);
            let shares = parts.shares(&masked, -1);
            (parts.mixed(&shares), None)
        }),
        ("scores that a mask both replaces and is added to", |parts| {
            let (scores, wide) = (parts.scores(), parts.wide.clone());
            let (zero, lowest) = (parts.graph.scalar(0.0_f32), parts.graph.scalar(-1e4_f32));
            let condition = parts.op("Less", &[&wide, &zero]);
            let replaced = parts.op("Where", &[&condition, &lowest, &scores]);
            let masked = parts.op("Add", &[&replaced, &wide]);
            let shares = parts.shares(&masked, -1);
            (parts.mixed(&shares), None)
        }),
        ("scores that pass through a function", |parts| {
            let masked = parts.masked();
            let bent = parts.op("Tanh", &[&masked]);
            let shares = parts.shares(&bent, -1);
            (parts.mixed(&shares), None)
        }),
        ("shares that are scaled", |parts| {
            let masked = parts.masked();
            let (shares, half) = (parts.shares(&masked, -1), parts.graph.scalar(0.5_f32));
            let shares = parts.op("Mul", &[&shares, &half]);
            (parts.mixed(&shares), None)
        }),
        ("shares that are an output", |parts| {
            let masked = parts.masked();
            let shares = parts.shares(&masked, -1);
            (parts.mixed(&shares), Some(shares))
        }),
        ("scores that are an output", |parts| {
            let (scores, wide) = (parts.scores(), parts.wide.clone());
            let masked = parts.op("Add", &[&scores, &wide]);
            let shares = parts.shares(&masked, -1);
            (parts.mixed(&shares), Some(scores))
        }),
    ];
    for (what, build) in builds {
        let plan = planned(build);
        assert!(attentions(&plan).is_empty(), "{what}");
        assert!(shown(&plan).contains(&"softmax".to_owned()), "{what}: {:?}", shown(&plan));
    }
}
