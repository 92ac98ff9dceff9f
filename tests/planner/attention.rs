//! Attention in the forms in which exporters write it, over batches of unlike lengths, compared with ONNX Runtime on
//! each row alone. What lies behind a row's length is NaN, so a single key of it that was read would make the row's
//! results NaN.

use paternoster_engine::Precision;
use paternoster_model::DataType;
use paternoster_onnx::{
    Model, PortDim,
    build::{BuildError, Graph, Value},
};
use paternoster_testing::fake_cuda::with_card;

use crate::lengths::{Masks, Network};

fn dims<const N: usize>(dims: [PortDim; N]) -> Vec<PortDim> {
    [PortDim::from("batch")].into_iter().chain(dims).collect()
}

/// A graph with attention under construction.
struct Draft {
    graph: Graph,
    heads: usize,
    size: usize,
    named: usize,
}

impl Draft {
    fn new(heads: usize, size: usize) -> Self {
        Self { graph: Graph::new("attention"), heads, size, named: 0 }
    }

    fn hidden(&self) -> usize {
        self.heads * self.size
    }

    fn scale(&self) -> f32 {
        1.0 / (self.size as f32).sqrt()
    }

    fn states(&mut self, name: &str, tokens: &str) -> Value {
        let hidden = self.hidden() as i64;
        self.graph.input(name, DataType::Fp32, &dims([tokens.into(), hidden.into()]))
    }

    fn mask(&mut self) -> Value {
        self.graph.input("attention_mask", DataType::Int64, &dims(["tokens".into()]))
    }

    /// Returns weights around 0, different for each call.
    fn weights(&mut self, dims: &[usize]) -> Value {
        self.named += 1;
        let (seed, spread) = (self.named as u32, 2.0 / (dims[0] as f32).sqrt());
        let number = |place: usize| {
            let mixed = (place as u32 ^ seed.wrapping_mul(0x9e37_79b9)).wrapping_mul(0x85eb_ca6b);
            ((mixed ^ mixed >> 15).wrapping_mul(0xc2b2_ae35) >> 16) as f32 / 32_768.0 - 1.0
        };
        let numbers: Vec<f32> = (0..dims.iter().product()).map(|place| number(place) * spread).collect();
        self.graph.constant(&format!("weight{seed}"), dims, &numbers)
    }

    /// Returns the product with weights of `parts` times the width, and a bias if there is to be one.
    fn projected(&mut self, x: &Value, parts: usize, has_bias: bool) -> Value {
        let (hidden, columns) = (self.hidden(), parts * self.hidden());
        let weights = self.weights(&[hidden, columns]);
        let product = self.graph.op("MatMul", &[x, &weights]).value();
        if !has_bias {
            return product;
        }
        let bias = self.weights(&[columns]);
        self.graph.op("Add", &[&product, &bias]).value()
    }

    fn by_heads(&mut self, x: &Value, order: [i64; 4]) -> Value {
        let split = self.graph.literal(&[0, 0, self.heads as i64, self.size as i64]);
        let parts = self.graph.op("Reshape", &[x, &split]).value();
        self.graph.op("Transpose", &[&parts]).attr("perm", order).value()
    }

    /// Returns queries `[heads, tokens, size]`, keys `[heads, size, tokens]` and values.
    fn parts(&mut self, q: &Value, k: &Value, v: &Value) -> [Value; 3] {
        [self.by_heads(q, [0, 2, 1, 3]), self.by_heads(k, [0, 2, 3, 1]), self.by_heads(v, [0, 2, 1, 3])]
    }

    /// Projects states to queries, keys and values.
    fn of_states(&mut self, has_bias: bool) -> [Value; 3] {
        let x = self.states("states", "tokens");
        let [q, k, v] = [0; 3].map(|_| self.projected(&x, 1, has_bias));
        self.parts(&q, &k, &v)
    }

    /// Returns 0 for keys that the mask shows, and `hidden` for the others, `[1, 1, tokens]`.
    fn added(&mut self, hidden: f32) -> Value {
        let mask = self.mask();
        let axes = self.graph.literal(&[1_i64, 2]);
        let mask = self.graph.op("Unsqueeze", &[&mask, &axes]).value();
        let mask = self.graph.op("Cast", &[&mask]).attr("to", 1).value();
        let (one, hidden) = (self.graph.scalar(1.0_f32), self.graph.scalar(hidden));
        let absent = self.graph.op("Sub", &[&one, &mask]).value();
        self.graph.op("Mul", &[&absent, &hidden]).value()
    }

    /// Returns which keys the mask shows, or hides.
    fn shown(&mut self, is_shown: bool) -> Value {
        let mask = self.mask();
        let axes = self.graph.literal(&[1_i64, 2]);
        let mask = self.graph.op("Unsqueeze", &[&mask, &axes]).value();
        let wanted = self.graph.scalar(i64::from(is_shown));
        self.graph.op("Equal", &[&mask, &wanted]).value()
    }

    /// Completes the graph with the softmax of scores, the product with values, and another projection.
    fn finish(mut self, scores: &Value, v: &Value, tokens: &str) -> Result<Model, BuildError> {
        let hidden = self.hidden() as i64;
        let shares = self.graph.op("Softmax", &[scores]).attr("axis", -1).value();
        let mixed = self.graph.op("MatMul", &[&shares, v]).value();
        let mixed = self.graph.op("Transpose", &[&mixed]).attr("perm", [0, 2, 1, 3]).value();
        let joined = self.graph.literal(&[0, 0, hidden]);
        let joined = self.graph.op("Reshape", &[&mixed, &joined]).value();
        let out = self.projected(&joined, 1, true);
        let out = self.graph.op("Identity", &[&out]).named("out").value();
        self.graph.output(&out, DataType::Fp32, &dims([tokens.into(), hidden.into()]));
        self.graph.finish()
    }
}

/// As BERT has it: scores are divided, and the mask is added.
fn as_bert(heads: usize, size: usize, hidden: f32) -> Result<Model, BuildError> {
    let mut draft = Draft::new(heads, size);
    let [q, k, v] = draft.of_states(true);
    let scores = draft.graph.op("MatMul", &[&q, &k]).value();
    let root = draft.graph.scalar(1.0 / draft.scale());
    let scores = draft.graph.op("Div", &[&scores, &root]).value();
    let mask = draft.added(hidden);
    let scores = draft.graph.op("Add", &[&scores, &mask]).value();
    draft.finish(&scores, &v, "tokens")
}

/// Scores are replaced where the mask hides a key. Only queries are scaled; projections have no bias.
fn replaced(number: f32, is_hidden_first: bool) -> Result<Model, BuildError> {
    let mut draft = Draft::new(2, 32);
    let [q, k, v] = draft.of_states(false);
    let scale = draft.graph.scalar(draft.scale());
    let q = draft.graph.op("Mul", &[&scale, &q]).value();
    let scores = draft.graph.op("MatMul", &[&q, &k]).value();
    let number = draft.graph.scalar(number);
    let condition = draft.shown(!is_hidden_first);
    let [first, second] = if is_hidden_first { [&number, &scores] } else { [&scores, &number] };
    let scores = draft.graph.op("Where", &[&condition, first, second]).value();
    draft.finish(&scores, &v, "tokens")
}

/// One product computes queries, keys and values. Queries and keys are scaled by a root each, and the mask is
/// subtracted before scores are scaled once more.
fn merged() -> Result<Model, BuildError> {
    let mut draft = Draft::new(2, 32);
    let x = draft.states("states", "tokens");
    let all = draft.projected(&x, 3, false);
    let [q, k, v] = draft.graph.op("Split", &[&all]).attr("axis", 2).values();
    let [q, k, v] = draft.parts(&q, &k, &v);
    let root = draft.graph.scalar(draft.scale().sqrt());
    let (q, k) = (draft.graph.op("Mul", &[&q, &root]).value(), draft.graph.op("Mul", &[&k, &root]).value());
    let scores = draft.graph.op("MatMul", &[&q, &k]).value();
    let mask = draft.added(30_000.0);
    let scores = draft.graph.op("Sub", &[&scores, &mask]).value();
    let half = draft.graph.scalar(0.5_f32);
    let scores = draft.graph.op("Mul", &[&scores, &half]).value();
    draft.finish(&scores, &v, "tokens")
}

/// The mask is expanded to all queries first. No projection has a bias, so heads are only moved.
fn expanded() -> Result<Model, BuildError> {
    let mut draft = Draft::new(3, 24);
    let x = draft.states("states", "tokens");
    let [q, k, v] = [0; 3].map(|_| draft.projected(&x, 1, false));
    let [q, k, v] = draft.parts(&q, &k, &v);
    let scores = draft.graph.op("MatMul", &[&q, &k]).value();
    let mask = draft.added(f32::MIN);
    let shape = draft.graph.op("Shape", &[&scores]).value();
    let (zero, one) = (draft.graph.literal(&[0_i64]), draft.graph.literal(&[1_i64]));
    let rows = draft.graph.op("Gather", &[&shape, &zero]).value();
    let (two, four) = (draft.graph.literal(&[2_i64]), draft.graph.literal(&[4_i64]));
    let lengths = draft.graph.op("Slice", &[&shape, &two, &four]).value();
    let wanted = draft.graph.op("Concat", &[&rows, &one, &lengths]).attr("axis", 0).value();
    let mask = draft.graph.op("Expand", &[&mask, &wanted]).value();
    let scores = draft.graph.op("Add", &[&mask, &scores]).value();
    draft.finish(&scores, &v, "tokens")
}

/// Queries of another input than the keys, whose axis has a name of its own.
fn crossed() -> Result<Model, BuildError> {
    let mut draft = Draft::new(2, 32);
    let (target, source) = (draft.states("target", "targets"), draft.states("states", "tokens"));
    let q = draft.projected(&target, 1, true);
    let [k, v] = [0; 2].map(|_| draft.projected(&source, 1, true));
    let [q, k, v] = draft.parts(&q, &k, &v);
    let scores = draft.graph.op("MatMul", &[&q, &k]).value();
    let mask = draft.added(-1e9);
    let scores = draft.graph.op("Add", &[&scores, &mask]).value();
    draft.finish(&scores, &v, "targets")
}

fn network(model: Result<Model, BuildError>) -> Network {
    Network::new(model, 1).poisoned().at(&[&[2], &[33], &[70]])
}

#[test]
fn heads_of_each_size_with_a_mask_that_is_added() {
    with_card(|| {
        for (heads, size) in [(2, 32), (1, 64), (2, 128)] {
            network(as_bert(heads, size, -10_000.0)).check();
        }
    });
}

#[test]
fn masks_that_replace_scores() {
    with_card(|| {
        for number in [-10_000.0, f32::MIN, f32::NEG_INFINITY] {
            network(replaced(number, true)).check();
        }
        network(replaced(-65_504.0, false)).check();
    });
}

#[test]
fn one_product_for_queries_keys_and_values() {
    with_card(|| network(merged()).check());
}

#[test]
fn a_mask_that_is_expanded_and_heads_that_are_only_moved() {
    with_card(|| network(expanded()).check());
}

/// At equal lengths of both axes, queries must not be taken for the keys.
#[test]
fn queries_of_an_axis_of_their_own() {
    // At the last lengths, some rows have more queries than keys.
    let lengths: [&[u32]; 4] = [&[16, 16], &[33, 40], &[40, 16], &[40, 40]];
    with_card(|| Network::new(crossed(), 1).poisoned().at(&lengths).check());
}

/// A row attends to its own tokens then, all of them masked alike.
#[test]
fn masks_that_show_nothing() {
    with_card(|| {
        // Beside such masks, no score is left of fp32.
        for model in [as_bert(2, 32, -1e12), as_bert(2, 32, f32::MIN), replaced(-10_000.0, true)] {
            network(model).masked(Masks::Nothing).check();
        }
        // Scores are rounded to 0.001 beside this one.
        let rounded = network(as_bert(2, 32, -10_000.0)).masked(Masks::Nothing);
        rounded.planned_in(Precision::Ieee, 2e-3).check();
    });
}

#[test]
fn half_types_and_tf32() {
    with_card(|| {
        for (precision, tolerance) in [(Precision::Tf32, 4e-3), (Precision::Fp16, 4e-3), (Precision::Bf16, 3e-2)] {
            network(as_bert(2, 32, f32::MIN)).planned_in(precision, tolerance).check();
        }
        network(expanded()).planned_in(Precision::Fp16, 4e-3).check();
    });
}
