//! A Transformer (Vaswani et al., 2017) with two layers each in encoder and decoder. The encoder is a stage over the
//! whole source, the decoder a cell.
//!
//! The state of the decoder grows: it attends to all positions of its own sequence, whose keys and values are inputs,
//! and outputs only those of the newest position. The keys and values of the source are the same at every step, so the
//! encoder computes them once for each decoder layer.

use paternoster_model::DataType;

use super::layers::{Ending, Widths, clock};
use crate::{
    Model,
    build::{BuildError, Value},
    port::dims,
    zoo::{Width, layers::Net},
};

const VOCABULARY: usize = 4_000;
/// Positions with their own embedding, which limits the tokens of a source. Later positions of a target share the last
/// one.
const POSITIONS: usize = 512;
const LAYERS: usize = 2;
/// Width of a head.
const HEAD: usize = 64;
/// Variance gain for terms added to a token's embedding. A larger gain would drown the embedding and make all tokens
/// alike.
const ASIDE: f32 = 0.25;
const ENDING: Ending = Ending { pull: 4.0, bias: -1.0 };
/// Increase of the clock's part of a position embedding per position, and the number of positions over which it rises.
const TICK: (f32, usize) = (0.1, 40);

/// What attends.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Queries {
    /// The newest entry: `[batch, hidden]`.
    One,
    /// Each entry: `[batch, entries, hidden]`.
    Each,
}

fn hidden(width: Width) -> usize {
    width.of(512)
}

/// `source` INT64 `[source]`, of which the first `source_length` INT64 `[]` are valid → `memory_keys_0`,
/// `memory_values_0`, `memory_keys_1`, `memory_values_1` FP32 `[source, hidden]`, one pair for each layer of the
/// decoder. `hidden` is 512 at full width; the source has at most 512 tokens.
///
/// # Errors
/// Only if the graph built here is invalid, which would be a bug.
pub fn encoder(width: Width) -> Result<Model, BuildError> {
    let hidden = hidden(width);
    let mut net = Net::new("transformer/encoder");
    let source = net.graph.input("source", DataType::Int64, &dims!["batch", "source"]);
    let length = net.number("source_length");
    let is_there = net.within(&source, &length);
    let places = net.weight("positions.weight", &[POSITIONS, hidden], 1, 1.0);
    let x = net.embed(&source, VOCABULARY, hidden);
    let shape = net.graph.op("Shape", &[&source]).value();
    let (zero, one) = (net.graph.literal(&[0_i64]), net.graph.literal(&[1_i64]));
    let tokens = net.graph.op("Gather", &[&shape, &one]).value();
    let places = net.graph.op("Slice", &[&places, &zero, &tokens, &zero]).value();
    let mut x = net.add(&x, &places);
    for layer in 0..LAYERS {
        x = net.scope(format!("layer{layer}"), |net| {
            let [query, keys, values] = ["query", "key", "value"].map(|name| net.project(name, &x, hidden, hidden));
            let attended = net.attend_by_heads((&query, Queries::Each), &keys, &values, &is_there, hidden);
            let attended = net.project_by("attention", &attended, [hidden, hidden], ASIDE);
            let x = net.add_and_normalise("attended", &x, &attended, hidden);
            net.feed_forward(&x, hidden)
        });
    }
    for layer in 0..LAYERS {
        for part in ["keys", "values"] {
            let name = format!("memory_{part}_{layer}");
            let projected = net.project(&name, &x, hidden, hidden);
            net.output(&name, &projected, &dims!["batch", "source", hidden as i64]);
        }
    }
    net.graph.finish()
}

/// `token`, `past_length`, `memory_length` INT64 `[]`, and for each layer n `keys_n`, `values_n` FP32 `[past, hidden]`,
/// of which the first `past_length` are valid, and `memory_keys_n`, `memory_values_n` FP32 `[length, hidden]`, of which
/// the first `memory_length` are valid → `next_token` INT64 `[]`, `key_n`, `value_n` FP32 `[hidden]`. The position is
/// `past_length`.
///
/// # Errors
/// Only if the graph built here is invalid, which would be a bug.
pub fn decoder(width: Width) -> Result<Model, BuildError> {
    let hidden = hidden(width);
    let mut net = Net::new("transformer/decoder");
    let (token, past, length) = (net.number("token"), net.number("past_length"), net.number("memory_length"));
    let mut by_layer = |before: &str, rows: &str| -> [[Value; 2]; LAYERS] {
        std::array::from_fn(|layer| {
            ["keys", "values"].map(|part| net.matrix(&format!("{before}{part}_{layer}"), rows, hidden))
        })
    };
    let (own, memory) = (by_layer("", "past"), by_layer("memory_", "memory"));
    let is_source = net.within(&memory[0][0], &length);
    let places = ticking_positions(&mut net, hidden);
    let is_past = net.newest_and_within(&own[0][0], &past);
    let last = net.graph.scalar(POSITIONS as i64 - 1);
    let place = net.graph.op("Min", &[&past, &last]).value();
    let place = net.graph.op("Gather", &[&places, &place]).value();
    let x = net.embed(&token, VOCABULARY, hidden);
    let mut x = net.add(&x, &place);
    for layer in 0..LAYERS {
        x = net.scope(format!("layer{layer}"), |net| {
            let query = net.project("query", &x, hidden, hidden);
            let [past_keys, past_values] = &own[layer];
            let [keys, values] =
                [("keys", "key", past_keys), ("values", "value", past_values)].map(|(name, one, past)| {
                    let newest = net.project(name, &x, hidden, hidden);
                    net.output(&format!("{one}_{layer}"), &newest, &dims!["batch", hidden as i64]);
                    net.newest_and(past, &newest)
                });
            let attended = net.attend_by_heads((&query, Queries::One), &keys, &values, &is_past, hidden);
            let attended = net.project_by("attention", &attended, [hidden, hidden], ASIDE);
            let x = net.add_and_normalise("attended", &x, &attended, hidden);
            let query = net.project("memory_query", &x, hidden, hidden);
            let [keys, values] = &memory[layer];
            let attended = net.attend_by_heads((&query, Queries::One), keys, values, &is_source, hidden);
            let attended = net.project("memory_attention", &attended, hidden, hidden);
            let x = net.add_and_normalise("memory_attended", &x, &attended, hidden);
            net.feed_forward(&x, hidden)
        });
    }
    net.next_token(&x, Widths { input: hidden, hidden, gain: 1.0 }, VOCABULARY, ENDING);
    net.graph.finish()
}

/// Returns the position embeddings, with the clock of an [`Ending`].
fn ticking_positions(net: &mut Net, hidden: usize) -> Value {
    let mut places = net.drawn("positions.weight", POSITIONS * hidden, 1, 1.0);
    for (position, place) in places.chunks_exact_mut(hidden).enumerate() {
        place[..clock(hidden)].fill(position.min(TICK.1) as f32 * TICK.0);
    }
    net.graph.constant("positions.weight", &[POSITIONS, hidden], &places)
}

impl Net {
    /// x · `name.weight` + `name.bias`, along the last axis of `x`.
    fn project(&mut self, name: &str, x: &Value, input: usize, output: usize) -> Value {
        self.project_by(name, x, [input, output], 1.0)
    }

    /// Like [`Self::project`], with another gain of the weights.
    fn project_by(&mut self, name: &str, x: &Value, [input, output]: [usize; 2], gain: f32) -> Value {
        let weight = self.weight(&format!("{name}.weight"), &[input, output], input, gain);
        let bias = self.weight(&format!("{name}.bias"), &[output], 1, 1e-2);
        let product = self.graph.op("MatMul", &[x, &weight]).value();
        self.add(&product, &bias)
    }

    /// Concatenates the newest vector and those of the past: `[batch, 1 + past, hidden]`.
    fn newest_and(&mut self, past: &Value, newest: &Value) -> Value {
        let axis = self.graph.literal(&[1_i64]);
        let newest = self.graph.op("Unsqueeze", &[newest, &axis]).value();
        self.graph.op("Concat", &[&newest, past]).attr("axis", 1).value()
    }

    /// Multi-head attention of queries `[batch, hidden]` or `[batch, n, hidden]` over keys and values `[batch, entries,
    /// hidden]`, of which `is_there` `[batch, entries]` marks the valid ones.
    fn attend_by_heads(
        &mut self,
        (query, queries): (&Value, Queries),
        keys: &Value,
        values: &Value,
        is_there: &Value,
        hidden: usize,
    ) -> Value {
        let (heads, head) = ((hidden / HEAD) as i64, HEAD as i64);
        let split = self.graph.literal(&[0, 0, heads, head]);
        let mut by_head = |x: &Value, order: [i64; 4]| {
            let parts = self.graph.op("Reshape", &[x, &split]).value();
            self.graph.op("Transpose", &[&parts]).attr("perm", order).value()
        };
        let (keys, values) = (by_head(keys, [0, 2, 3, 1]), by_head(values, [0, 2, 1, 3]));
        let query = match queries {
            Queries::Each => by_head(query, [0, 2, 1, 3]),
            // A single query per row needs no transposition.
            Queries::One => {
                let single = self.graph.literal(&[0, heads, 1, head]);
                self.graph.op("Reshape", &[query, &single]).value()
            }
        };
        let root = self.graph.scalar((HEAD as f32).sqrt());
        let scores = self.graph.op("MatMul", &[&query, &keys]).value();
        let scores = self.graph.op("Div", &[&scores, &root]).value();
        let axes = self.graph.literal(&[1_i64, 2]);
        let is_there = self.graph.op("Unsqueeze", &[is_there, &axes]).value();
        let shares = self.shares(&scores, &is_there);
        let mixed = self.graph.op("MatMul", &[&shares, &values]).value();
        match queries {
            Queries::Each => {
                let mixed = self.graph.op("Transpose", &[&mixed]).attr("perm", [0, 2, 1, 3]).value();
                let joined = self.graph.literal(&[0, 0, hidden as i64]);
                self.graph.op("Reshape", &[&mixed, &joined]).value()
            }
            Queries::One => {
                let joined = self.graph.literal(&[0, hidden as i64]);
                self.graph.op("Reshape", &[&mixed, &joined]).value()
            }
        }
    }

    /// Returns the normalized sum, with the scale and shift of `name`.
    fn add_and_normalise(&mut self, name: &str, x: &Value, y: &Value, hidden: usize) -> Value {
        let sum = self.add(x, y);
        let scale = self.graph.constant(&format!("{name}.scale"), &[hidden], &vec![1.0_f32; hidden]);
        let shift = self.graph.constant(&format!("{name}.shift"), &[hidden], &vec![0.0_f32; hidden]);
        let call = self.graph.op("LayerNormalization", &[&sum, &scale, &shift]);
        call.attr("axis", -1).attr("epsilon", 1e-5_f32).value()
    }

    fn feed_forward(&mut self, x: &Value, hidden: usize) -> Value {
        let wide = self.project("wide", x, hidden, 4 * hidden);
        let wide = self.relu(&wide);
        let narrow = self.project_by("narrow", &wide, [4 * hidden, hidden], ASIDE);
        self.add_and_normalise("fed_forward", x, &narrow, hidden)
    }
}
