//! Layers of cells.

use paternoster_model::DataType;

use super::END;
use crate::{PortDim, build::Value, port::dims, zoo::layers::Net};

/// Variance gain for a layer over embeddings (mean square 1) joined with a state of the same width.
pub(super) const EMBEDDED: f32 = 2.0;
/// Variance gain for a layer over states, whose mean square is about a twelfth.
pub(super) const STATES: f32 = 12.0;
/// Variance gain for queries, relative to the width of the keys: scores then differ by a few units.
const QUERIES: f32 = 400.0;
/// Score of entries that are not valid: their attention weight is exactly 0.
const MASKED: f32 = -10_000.0;

/// How a decoder ends. The first sixteenth of its units are a clock: they rise from step to step, whatever is decoded,
/// and raise the score of the end token. Without the clock, many sequences would repeat until the step limit.
#[derive(Clone, Copy)]
pub(super) struct Ending {
    /// Increase of the score while the clock's units go from 0 to 1.
    pub pull: f32,
    /// Initial score; the scores of other tokens are around 0.
    pub bias: f32,
}

/// Returns the number of clock units in a state of this width.
pub(super) fn clock(hidden: usize) -> usize {
    hidden / 16
}

/// The state that an LSTM carries from step to step.
#[derive(Clone)]
pub(super) struct State {
    pub h: Value,
    pub c: Value,
}

/// Widths of a layer, and the gain of its weights.
#[derive(Clone, Copy)]
pub(super) struct Widths {
    pub input: usize,
    pub hidden: usize,
    pub gain: f32,
}

impl Net {
    /// Adds an input with one integer per row.
    pub(super) fn number(&mut self, name: &str) -> Value {
        self.graph.input(name, DataType::Int64, &dims!["batch"])
    }

    /// Adds an input with one vector per row.
    pub(super) fn vector(&mut self, name: &str, width: usize) -> Value {
        self.graph.input(name, DataType::Fp32, &dims!["batch", width as i64])
    }

    /// Adds an input with one matrix per row.
    pub(super) fn matrix(&mut self, name: &str, rows: impl Into<PortDim>, columns: usize) -> Value {
        self.graph.input(name, DataType::Fp32, &["batch".into(), rows.into(), (columns as i64).into()])
    }

    /// Adds the inputs `h` and `c`, with this suffix.
    pub(super) fn state(&mut self, suffix: &str, width: usize) -> State {
        State { h: self.vector(&format!("h{suffix}"), width), c: self.vector(&format!("c{suffix}"), width) }
    }

    /// Declares a vector as an output.
    pub(super) fn give_vector(&mut self, value: &Value, width: usize) {
        self.graph.output(value, DataType::Fp32, &dims!["batch", width as i64]);
    }

    /// Declares both parts of a state as outputs.
    pub(super) fn give_state(&mut self, state: &State, width: usize) {
        self.give_vector(&state.h, width);
        self.give_vector(&state.c, width);
    }

    /// Looks up the embedding of a token in the table `embedding.weight`.
    pub(super) fn embed(&mut self, token: &Value, vocabulary: usize, width: usize) -> Value {
        let table = self.weight("embedding.weight", &[vocabulary, width], 1, 1.0);
        self.graph.op("Gather", &[&table, token]).value()
    }

    /// x · `name.weight` + `name.bias`, with weights `[input, output]` and the given bias.
    pub(super) fn affine(&mut self, name: &str, x: &Value, input: usize, gain: f32, bias: &[f32]) -> Value {
        let weight = self.weight(&format!("{name}.weight"), &[input, bias.len()], input, gain);
        let bias = self.graph.constant(&format!("{name}.bias"), &[bias.len()], bias);
        self.graph.op("Gemm", &[x, &weight, &bias]).value()
    }

    /// Concatenates vectors.
    pub(super) fn join(&mut self, vectors: &[&Value]) -> Value {
        self.graph.op("Concat", vectors).attr("axis", 1).value()
    }

    pub(super) fn sigmoid(&mut self, x: &Value) -> Value {
        self.graph.op("Sigmoid", &[x]).value()
    }

    pub(super) fn tanh(&mut self, x: &Value) -> Value {
        self.graph.op("Tanh", &[x]).value()
    }

    pub(super) fn multiply(&mut self, x: &Value, y: &Value) -> Value {
        self.graph.op("Mul", &[x, y]).value()
    }

    /// Adds one step of an LSTM (Hochreiter, Schmidhuber, 1997; with forget gates: Gers et al., 2000). The gates i, f,
    /// g, o are side by side in `name.weight` `[input + hidden, 4 · hidden]`, whose first rows are those of the input.
    /// The names of the new state end with `next`, as in `h_next`.
    pub(super) fn lstm(&mut self, name: &str, x: &Value, state: &State, widths: Widths, next: &str) -> State {
        self.lstm_with(name, x, state, widths, next, 0)
    }

    /// Like [`Self::lstm`], with the clock of an [`Ending`].
    pub(super) fn ticking_lstm(&mut self, name: &str, x: &Value, state: &State, widths: Widths, next: &str) -> State {
        self.lstm_with(name, x, state, widths, next, clock(widths.hidden))
    }

    fn lstm_with(&mut self, name: &str, x: &Value, state: &State, widths: Widths, next: &str, ticking: usize) -> State {
        let Widths { input, hidden, gain } = widths;
        let joined = self.join(&[x, &state.h]);
        let gates = self.affine(name, &joined, input + hidden, gain, &lstm_bias(hidden, ticking));
        self.lstm_from(&gates, state, next)
    }

    /// Adds the rest of an LSTM step, given the summed gates.
    pub(super) fn lstm_from(&mut self, gates: &Value, state: &State, next: &str) -> State {
        let [i, f, g, o] = self.graph.op("Split", &[gates]).attr("axis", 1).values();
        let (i, f, g, o) = (self.sigmoid(&i), self.sigmoid(&f), self.tanh(&g), self.sigmoid(&o));
        let (kept, added) = (self.multiply(&f, &state.c), self.multiply(&i, &g));
        let c = self.graph.op("Add", &[&kept, &added]).named(&format!("c{next}")).value();
        let squashed = self.tanh(&c);
        let h = self.graph.op("Mul", &[&o, &squashed]).named(&format!("h{next}")).value();
        State { h, c }
    }

    /// Adds one step of a GRU (Cho et al., 2014), whose reset gate is applied to the state before the product.
    /// `name.gates` holds the reset and update gates, `name.candidate` the candidate state.
    pub(super) fn gru(&mut self, name: &str, x: &Value, h: &Value, widths: Widths) -> Value {
        let Widths { input, hidden, gain } = widths;
        let joined = self.join(&[x, h]);
        let gates = self.affine(&format!("{name}.gates"), &joined, input + hidden, gain, &vec![0.0; 2 * hidden]);
        let gates = self.sigmoid(&gates);
        let [reset, update] = self.graph.op("Split", &[&gates]).attr("axis", 1).values();
        let remembered = self.multiply(&reset, h);
        let joined = self.join(&[x, &remembered]);
        let offered = self.affine(&format!("{name}.candidate"), &joined, input + hidden, gain, &vec![0.0; hidden]);
        let offered = self.tanh(&offered);
        // offered + update · (h − offered): the fraction `update` of the state is kept.
        let difference = self.graph.op("Sub", &[h, &offered]).value();
        let kept = self.multiply(&update, &difference);
        self.graph.op("Add", &[&offered, &kept]).named("h_next").value()
    }

    /// Returns which entries along axis 1 of `held` are within each row's length: BOOL `[batch, entries]`.
    pub(super) fn within(&mut self, held: &Value, length: &Value) -> Value {
        self.within_from(0, held, length)
    }

    /// Like [`Self::within`] for `past`, with an additional first entry for the newest, which is always valid: BOOL
    /// `[batch, 1 + entries]`.
    pub(super) fn newest_and_within(&mut self, past: &Value, length: &Value) -> Value {
        self.within_from(-1, past, length)
    }

    /// Returns which indices from `first` to the end of `held` are below each row's length.
    fn within_from(&mut self, first: i64, held: &Value, length: &Value) -> Value {
        let (first, one, axis) = (self.graph.scalar(first), self.graph.scalar(1_i64), self.graph.literal(&[1_i64]));
        let shape = self.graph.op("Shape", &[held]).value();
        let entries = self.graph.op("Gather", &[&shape, &one]).value();
        let places = self.graph.op("Range", &[&first, &entries, &one]).value();
        let length = self.graph.op("Unsqueeze", &[length, &axis]).value();
        self.graph.op("Less", &[&places, &length]).value()
    }

    /// Returns the softmax of scores along the last axis, with invalid entries masked.
    pub(super) fn shares(&mut self, scores: &Value, is_there: &Value) -> Value {
        let masked = self.graph.scalar(MASKED);
        let scores = self.graph.op("Where", &[is_there, scores, &masked]).value();
        self.graph.op("Softmax", &[&scores]).attr("axis", -1).value()
    }

    /// Returns the attention of a state over `memory` `[entries, hidden]`, of which the first `length` are valid (Luong
    /// et al.: Effective approaches to attention, 2015, the form "general").
    pub(super) fn attend(&mut self, name: &str, h: &Value, memory: &Value, length: &Value, hidden: usize) -> Value {
        let (first, last) = (self.graph.literal(&[1_i64]), self.graph.literal(&[2_i64]));
        let is_there = self.within(memory, length);
        let query = self.affine(name, h, hidden, QUERIES / hidden as f32, &vec![0.0; hidden]);
        let query = self.graph.op("Unsqueeze", &[&query, &last]).value();
        let scores = self.graph.op("MatMul", &[memory, &query]).value();
        let scores = self.graph.op("Squeeze", &[&scores, &last]).value();
        let shares = self.shares(&scores, &is_there);
        let shares = self.graph.op("Unsqueeze", &[&shares, &first]).value();
        let context = self.graph.op("MatMul", &[&shares, memory]).value();
        self.graph.op("Squeeze", &[&context, &first]).value()
    }

    /// Adds the output `next_token`: the most likely token of `vocabulary`, given `x` of width `input`. `x` starts with
    /// a state of width `hidden`, whose clock leads to the ending.
    pub(super) fn next_token(&mut self, x: &Value, widths: Widths, vocabulary: usize, ending: Ending) {
        let Widths { input, hidden, gain } = widths;
        let mut weight = self.drawn("projection.weight", input * vocabulary, input, gain);
        let ticking = clock(hidden);
        for of_unit in weight.chunks_exact_mut(vocabulary).take(ticking) {
            of_unit[END as usize] = ending.pull / ticking as f32;
        }
        let bias: Vec<f32> = (0..vocabulary as i64).map(|token| if token == END { ending.bias } else { 0.0 }).collect();
        let weight = self.graph.constant("projection.weight", &[input, vocabulary], &weight);
        let bias = self.graph.constant("projection.bias", &[vocabulary], &bias);
        let logits = self.graph.op("Gemm", &[x, &weight, &bias]).value();
        let call = self.graph.op("ArgMax", &[&logits]).attr("axis", 1).attr("keepdims", 0);
        let token = call.named("next_token").value();
        self.graph.output(&token, DataType::Int64, &dims!["batch"]);
    }
}

/// Returns the biases of the gates i, f, g, o of an LSTM whose first units are the clock.
pub(super) fn lstm_bias(hidden: usize, ticking: usize) -> Vec<f32> {
    let gates = (0..4 * hidden).map(|gate| match (gate / hidden, gate % hidden < ticking) {
        // A forget gate that starts open keeps early inputs for long (Jozefowicz et al., 2015).
        (1, false) => 1.0,
        // A clock unit keeps almost all of its value and adds a little at each step.
        (0, true) => -2.0,
        (1, true) => 4.0,
        (2, true) => 0.5,
        _ => 0.0,
    });
    gates.collect()
}
