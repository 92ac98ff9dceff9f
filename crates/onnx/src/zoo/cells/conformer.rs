//! A streaming Conformer (Gulati et al., 2020): it reads speech in chunks of 320 ms, as encoders of recognizers do
//! that answer while someone speaks. Four frames of 10 ms form one of 40 ms. Attention sees the chunk and the 32
//! frames before it; convolutions see only what came before. All of that is state, as in WeNet and Zipformer.

use paternoster_model::DataType;

use crate::{
    Model, PortDim,
    build::{BuildError, Value},
    port::dims,
    zoo::{Width, layers::Net},
};

/// Filters of a frame of 10 ms.
const FILTERS: usize = 80;
/// Frames of 10 ms in a chunk.
const FRAMES: usize = 32;
/// Frames of 10 ms in one of 40 ms.
const JOINED: usize = 4;
/// Frames of 40 ms in a chunk.
const STEPS: usize = FRAMES / JOINED;
/// Frames of 40 ms before the chunk that attention sees.
const LEFT: usize = 32;
const KERNEL: usize = 15;
const LAYERS: usize = 6;
const HEADS: usize = 4;
/// Characters, and the CTC blank.
const TOKENS: usize = 500;
/// Score of frames before the first of a stream.
const MASKED: f32 = -1e4;

/// `x` FP32 `[32, 80]`, a chunk of frames; `past` INT64 `[1]`, the number of frames of 40 ms before it, at most 32; for
/// each layer n `keys_n`, `values_n` FP32 `[32, hidden]`, whose batch is axis 1, and `convolved_n` FP32 `[hidden, 14]`
/// → `log_probs` FP32 `[8, 500]`, and the states under their names with `_next`. `hidden` is 144 at full width. Streams
/// begin with states of zeros.
///
/// # Errors
/// Only if the graph built here is invalid, which would be a bug.
pub fn chunk(width: Width) -> Result<Model, BuildError> {
    let hidden = width.of(144);
    let mut net = Net::new("conformer");
    let frames = net.graph.input("x", DataType::Fp32, &dims!["batch", FRAMES as i64, FILTERS as i64]);
    let past = net.graph.input("past", DataType::Int64, &dims!["batch", 1]);
    let joined = net.graph.literal(&[0_i64, STEPS as i64, (JOINED * FILTERS) as i64]);
    let x = net.graph.op("Reshape", &[&frames, &joined]).value();
    let mut x = net.linear("embed", &x, [JOINED * FILTERS, hidden], 1.0);
    let masked = net.before_the_stream(&past);
    for layer in 0..LAYERS {
        let mut state = |part: &str, dims: &[PortDim]| {
            let name = format!("{part}_{layer}");
            State { held: net.graph.input(&name, DataType::Fp32, dims), name, dims: dims.to_vec() }
        };
        let by_frames = dims![LEFT as i64, "batch", hidden as i64];
        let (keys, values) = (state("keys", &by_frames), state("values", &by_frames));
        let convolved = state("convolved", &dims!["batch", hidden as i64, (KERNEL - 1) as i64]);
        x = net.scope(format!("layer{layer}"), |net| {
            let x = net.half_step("first", &x, hidden);
            let attended = net.attention(&x, [&keys, &values], &masked, hidden);
            let x = net.add(&x, &attended);
            let mixed = net.convolution(&x, &convolved, hidden);
            let x = net.add(&x, &mixed);
            let x = net.half_step("second", &x, hidden);
            net.layer_norm("norm", &x, hidden)
        });
    }
    let scores = net.linear("tokens", &x, [hidden, TOKENS], 4.0);
    let log_probs = net.graph.op("LogSoftmax", &[&scores]).attr("axis", -1).named("log_probs").value();
    net.graph.output(&log_probs, DataType::Fp32, &dims!["batch", STEPS as i64, TOKENS as i64]);
    let (steps, most) = (net.graph.scalar(STEPS as i64), net.graph.scalar(LEFT as i64));
    let next = net.add(&past, &steps);
    let next = net.graph.op("Min", &[&next, &most]).named("past_next").value();
    net.graph.output(&next, DataType::Int64, &dims!["batch", 1]);
    net.graph.finish()
}

/// What a layer knows of the frames before the chunk.
struct State {
    held: Value,
    name: String,
    dims: Vec<PortDim>,
}

impl Net {
    /// Appends the frames of the chunk to a state along an axis, and returns all. Those of the end are the next state.
    fn after(&mut self, state: &State, new: &Value, axis: usize, kept: usize) -> Value {
        let all = self.graph.op("Concat", &[&state.held, new]).attr("axis", axis as i64).value();
        let (first, end) = (self.graph.literal(&[STEPS as i64]), self.graph.literal(&[(kept + STEPS) as i64]));
        let axis = self.graph.literal(&[axis as i64]);
        let next = self.graph.op("Slice", &[&all, &first, &end, &axis]).value();
        self.output(&format!("{}_next", state.name), &next, &state.dims);
        all
    }

    /// x · `name.weight` + `name.bias`, along the last axis of `x`.
    fn linear(&mut self, name: &str, x: &Value, [input, output]: [usize; 2], gain: f32) -> Value {
        let weight = self.weight(&format!("{name}.weight"), &[input, output], input, gain);
        let bias = self.weight(&format!("{name}.bias"), &[output], 1, 1e-2);
        let product = self.graph.op("MatMul", &[x, &weight]).value();
        self.add(&product, &bias)
    }

    fn layer_norm(&mut self, name: &str, x: &Value, hidden: usize) -> Value {
        let scale = self.graph.constant(&format!("{name}.weight"), &[hidden], &vec![1.0_f32; hidden]);
        let bias = self.graph.constant(&format!("{name}.bias"), &[hidden], &vec![0.0_f32; hidden]);
        self.graph.op("LayerNormalization", &[x, &scale, &bias]).attr("axis", -1).attr("epsilon", 1e-5_f32).value()
    }

    fn swish(&mut self, x: &Value) -> Value {
        let gate = self.graph.op("Sigmoid", &[x]).value();
        self.graph.op("Mul", &[x, &gate]).value()
    }

    /// What is added to the scores `[batch, heads, steps, LEFT + STEPS]`: for frames before the first of the stream, so
    /// much that attention does not see them.
    fn before_the_stream(&mut self, past: &Value) -> Value {
        // Place p of those on the left is of the stream if p >= LEFT - past.
        let places: Vec<i64> = (0..LEFT as i64).map(|place| LEFT as i64 - place).chain([0; STEPS]).collect();
        let places = self.graph.constant("places", &[1, LEFT + STEPS], &places);
        let is_before = self.graph.op("Greater", &[&places, past]).value();
        let (masked, zero) = (self.graph.scalar(MASKED), self.graph.scalar(0.0_f32));
        let added = self.graph.op("Where", &[&is_before, &masked, &zero]).value();
        let axes = self.graph.literal(&[1_i64, 2]);
        self.graph.op("Unsqueeze", &[&added, &axes]).value()
    }

    /// Half a feed-forward layer, added to its operand.
    fn half_step(&mut self, name: &str, x: &Value, hidden: usize) -> Value {
        let normal = self.layer_norm(&format!("{name}.norm"), x, hidden);
        let wide = self.linear(&format!("{name}.wide"), &normal, [hidden, 4 * hidden], 1.0);
        let wide = self.swish(&wide);
        let narrow = self.linear(&format!("{name}.narrow"), &wide, [4 * hidden, hidden], 1.0);
        let half = self.graph.scalar(0.5_f32);
        let narrow = self.graph.op("Mul", &[&narrow, &half]).value();
        self.add(x, &narrow)
    }

    /// Attention of the chunk over itself and the frames before it.
    fn attention(&mut self, x: &Value, states: [&State; 2], masked: &Value, hidden: usize) -> Value {
        let x = self.layer_norm("attention.norm", x, hidden);
        let (heads, head) = (HEADS as i64, (hidden / HEADS) as i64);
        let query = self.linear("query", &x, [hidden, hidden], 1.0);
        let split = self.graph.literal(&[0_i64, 0, heads, head]);
        let query = self.graph.op("Reshape", &[&query, &split]).value();
        let query = self.graph.op("Transpose", &[&query]).attr("perm", [0, 2, 1, 3]).value();
        let mut seen = |part: &str, state: &State, order: [i64; 4]| {
            let new = self.linear(part, &x, [hidden, hidden], 1.0);
            let new = self.graph.op("Transpose", &[&new]).attr("perm", [1, 0, 2]).value();
            let all = self.after(state, &new, 0, LEFT);
            let by_head = self.graph.op("Reshape", &[&all, &split]).value();
            self.graph.op("Transpose", &[&by_head]).attr("perm", order).value()
        };
        let (keys, values) = (seen("keys", states[0], [1, 2, 3, 0]), seen("values", states[1], [1, 2, 0, 3]));
        let scores = self.graph.op("MatMul", &[&query, &keys]).value();
        let root = self.graph.scalar((head as f32).sqrt());
        let scores = self.graph.op("Div", &[&scores, &root]).value();
        let scores = self.add(&scores, masked);
        let shares = self.graph.op("Softmax", &[&scores]).attr("axis", -1).value();
        let mixed = self.graph.op("MatMul", &[&shares, &values]).value();
        let mixed = self.graph.op("Transpose", &[&mixed]).attr("perm", [0, 2, 1, 3]).value();
        let flat = self.graph.literal(&[0_i64, 0, hidden as i64]);
        let mixed = self.graph.op("Reshape", &[&mixed, &flat]).value();
        self.linear("attended", &mixed, [hidden, hidden], 1.0)
    }

    /// A gated convolution over each channel, of the frames up to each one.
    fn convolution(&mut self, x: &Value, state: &State, hidden: usize) -> Value {
        let x = self.layer_norm("convolution.norm", x, hidden);
        let both = self.linear("gated", &x, [hidden, 2 * hidden], 1.0);
        let halves = self.graph.literal(&[hidden as i64; 2]);
        let [x, gate] = self.graph.op("Split", &[&both, &halves]).attr("axis", -1).values();
        let gate = self.graph.op("Sigmoid", &[&gate]).value();
        let x = self.graph.op("Mul", &[&x, &gate]).value();
        let x = self.graph.op("Transpose", &[&x]).attr("perm", [0, 2, 1]).value();
        let all = self.after(state, &x, 2, KERNEL - 1);
        let weight = self.weight("depthwise.weight", &[hidden, 1, KERNEL], KERNEL, 1.0);
        let bias = self.weight("depthwise.bias", &[hidden], 1, 1e-2);
        let x = self.graph.op("Conv", &[&all, &weight, &bias]).attr("group", hidden as i64).value();
        let x = self.graph.op("Transpose", &[&x]).attr("perm", [0, 2, 1]).value();
        let x = self.layer_norm("convolved.norm", &x, hidden);
        let x = self.swish(&x);
        self.linear("out", &x, [hidden, hidden], 1.0)
    }
}
