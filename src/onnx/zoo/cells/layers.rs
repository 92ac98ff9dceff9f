//! The layers that cells are made of.

use super::END;
use crate::{
    model::DataType,
    onnx::{PortDim, build::Value, port::dims, zoo::layers::Net},
};

/// Variance gain for a layer over embeddings, whose mean square is 1, joined with a state of the same width.
pub(super) const EMBEDDED: f32 = 2.0;
/// Variance gain for a layer over states, whose mean square is about a twelfth.
pub(super) const STATES: f32 = 12.0;
/// Variance gain for queries, over the width of what they are multiplied by: scores then differ by a few.
const QUERIES: f32 = 400.0;
/// What a score is where there is nothing to attend to: its share is 0 exactly.
const MASKED: f32 = -10_000.0;

/// How a decoder comes to its end. The first sixteenth of its units are a clock: whatever is decoded, they rise from
/// step to step, and with them the score of the end token. Without it many a sequence would go round in circles to its
/// bound.
#[derive(Clone, Copy)]
pub(super) struct Ending {
    /// What the score rises by while the clock's units go from 0 to 1.
    pub pull: f32,
    /// Where it begins: the other tokens' scores are around 0.
    pub bias: f32,
}

/// Units of the clock in a state of so many.
pub(super) fn clock(hidden: usize) -> usize {
    hidden / 16
}

/// What an LSTM carries from step to step.
#[derive(Clone)]
pub(super) struct State {
    pub h: Value,
    pub c: Value,
}

/// A layer's widths, and the gain of its weights.
#[derive(Clone, Copy)]
pub(super) struct Widths {
    pub input: usize,
    pub hidden: usize,
    pub gain: f32,
}

impl Net {
    /// An input of one whole number a row.
    pub(super) fn number(&mut self, name: &str) -> Value {
        self.graph.input(name, DataType::Int64, &dims!["batch"])
    }

    /// An input of one vector a row.
    pub(super) fn vector(&mut self, name: &str, width: usize) -> Value {
        self.graph.input(name, DataType::Fp32, &dims!["batch", width as i64])
    }

    /// An input of one matrix a row.
    pub(super) fn matrix(&mut self, name: &str, rows: impl Into<PortDim>, columns: usize) -> Value {
        self.graph.input(name, DataType::Fp32, &["batch".into(), rows.into(), (columns as i64).into()])
    }

    /// The inputs `h` and `c`, each with this behind its name.
    pub(super) fn state(&mut self, suffix: &str, width: usize) -> State {
        State { h: self.vector(&format!("h{suffix}"), width), c: self.vector(&format!("c{suffix}"), width) }
    }

    /// Makes a vector an output.
    pub(super) fn give_vector(&mut self, value: &Value, width: usize) {
        self.graph.output(value, DataType::Fp32, &dims!["batch", width as i64]);
    }

    /// Makes both parts of a state outputs.
    pub(super) fn give_state(&mut self, state: &State, width: usize) {
        self.give_vector(&state.h, width);
        self.give_vector(&state.c, width);
    }

    /// The vector of a token, from the table `embedding.weight`.
    pub(super) fn embed(&mut self, token: &Value, vocabulary: usize, width: usize) -> Value {
        let table = self.weight("embedding.weight", &[vocabulary, width], 1, 1.0);
        self.graph.op("Gather", &[&table, token]).value()
    }

    /// x · `name.weight` + `name.bias`, of weights `[input, output]` and the bias given.
    pub(super) fn affine(&mut self, name: &str, x: &Value, input: usize, gain: f32, bias: &[f32]) -> Value {
        let weight = self.weight(&format!("{name}.weight"), &[input, bias.len()], input, gain);
        let bias = self.graph.constant(&format!("{name}.bias"), &[bias.len()], bias);
        self.graph.op("Gemm", &[x, &weight, &bias]).value()
    }

    /// Vectors side by side.
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

    /// One step of an LSTM (Hochreiter, Schmidhuber, 1997; with forget gates: Gers et al., 2000): the gates i, f, g, o
    /// stand side by side in `name.weight` `[input + hidden, 4 · hidden]`, whose first rows are the input's. The
    /// state's names end with `next`, as in `h_next`.
    pub(super) fn lstm(&mut self, name: &str, x: &Value, state: &State, widths: Widths, next: &str) -> State {
        self.lstm_with(name, x, state, widths, next, 0)
    }

    /// As [`Self::lstm`], with the clock of an [`Ending`].
    pub(super) fn ticking_lstm(&mut self, name: &str, x: &Value, state: &State, widths: Widths, next: &str) -> State {
        self.lstm_with(name, x, state, widths, next, clock(widths.hidden))
    }

    fn lstm_with(&mut self, name: &str, x: &Value, state: &State, widths: Widths, next: &str, ticking: usize) -> State {
        let Widths { input, hidden, gain } = widths;
        let joined = self.join(&[x, &state.h]);
        let gates = self.affine(name, &joined, input + hidden, gain, &lstm_bias(hidden, ticking));
        self.lstm_from(&gates, state, next)
    }

    /// The rest of such a step, once the gates have been summed up.
    pub(super) fn lstm_from(&mut self, gates: &Value, state: &State, next: &str) -> State {
        let [i, f, g, o] = self.graph.op("Split", &[gates]).attr("axis", 1).values();
        let (i, f, g, o) = (self.sigmoid(&i), self.sigmoid(&f), self.tanh(&g), self.sigmoid(&o));
        let (kept, added) = (self.multiply(&f, &state.c), self.multiply(&i, &g));
        let c = self.graph.op("Add", &[&kept, &added]).named(&format!("c{next}")).value();
        let squashed = self.tanh(&c);
        let h = self.graph.op("Mul", &[&o, &squashed]).named(&format!("h{next}")).value();
        State { h, c }
    }

    /// One step of a GRU (Cho et al., 2014), whose reset gate applies to the state before the product. `name.gates`
    /// holds the reset and the update gate, `name.candidate` what is offered to the state.
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
        // offered + update · (h − offered): the share `update` of the state stays.
        let difference = self.graph.op("Sub", &[h, &offered]).value();
        let kept = self.multiply(&update, &difference);
        self.graph.op("Add", &[&offered, &kept]).named("h_next").value()
    }

    /// Which entries of an axis of `held` (axis 1) are within each row's length: BOOL `[batch, entries]`.
    pub(super) fn within(&mut self, held: &Value, length: &Value) -> Value {
        self.within_from(0, held, length)
    }

    /// The same of `past`, and one entry more before the others, the newest, which always counts: BOOL `[batch, 1 +
    /// entries]`.
    pub(super) fn newest_and_within(&mut self, past: &Value, length: &Value) -> Value {
        self.within_from(-1, past, length)
    }

    /// Which places from `first` to the end of `held` are below each row's length.
    fn within_from(&mut self, first: i64, held: &Value, length: &Value) -> Value {
        let (first, one, axis) = (self.graph.scalar(first), self.graph.scalar(1_i64), self.graph.literal(&[1_i64]));
        let shape = self.graph.op("Shape", &[held]).value();
        let entries = self.graph.op("Gather", &[&shape, &one]).value();
        let places = self.graph.op("Range", &[&first, &entries, &one]).value();
        let length = self.graph.op("Unsqueeze", &[length, &axis]).value();
        self.graph.op("Less", &[&places, &length]).value()
    }

    /// Scores, lowered where there is nothing, made into shares along the last axis.
    pub(super) fn shares(&mut self, scores: &Value, is_there: &Value) -> Value {
        let masked = self.graph.scalar(MASKED);
        let scores = self.graph.op("Where", &[is_there, scores, &masked]).value();
        self.graph.op("Softmax", &[&scores]).attr("axis", -1).value()
    }

    /// What a state attends to in `memory` `[entries, hidden]`, of which the first `length` are there (Luong et al.:
    /// Effective approaches to attention, 2015, the form "general").
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

    /// The likeliest token after `x` of this width and of `vocabulary`: the output `next_token`. The first of `x` is a
    /// state of width `hidden`, whose clock leads to the ending.
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

/// The bias of the gates i, f, g, o of an LSTM whose first units tick.
pub(super) fn lstm_bias(hidden: usize, ticking: usize) -> Vec<f32> {
    let gates = (0..4 * hidden).map(|gate| match (gate / hidden, gate % hidden < ticking) {
        // A forget gate that begins open keeps what was read first for long (Jozefowicz et al., 2015).
        (1, false) => 1.0,
        // A unit that ticks keeps nearly all and adds a little at each step.
        (0, true) => -2.0,
        (1, true) => 4.0,
        (2, true) => 0.5,
        _ => 0.0,
    });
    gates.collect()
}
