//! BERT encoders (Devlin et al.: Pre-training of deep bidirectional transformers, 2019): BERT-base with random weights,
//! and the sentence encoder MiniLM-L6 with the weights of its checkpoint.
//!
//! Padding does not change results: the score of a masked token is 10,000 below the others, whose exponential is 0 in
//! FP32, so its attention weight is exactly 0. The mean excludes it as well.

use paternoster_model::DataType;

use crate::{
    Error, Model,
    build::{Graph, Value},
    port::dims,
    weights::{Seeded, WeightSource},
};

use super::Width;

/// Offset of the scores of masked tokens.
const MASKED: f32 = -10_000.0;

/// Sizes of an encoder.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    vocabulary: usize,
    /// Maximum tokens of a text.
    positions: usize,
    hidden: usize,
    heads: usize,
    intermediate: usize,
    layers: usize,
}

impl Sizes {
    /// MiniLM-L6-H384: 22.7 million weights at full width.
    fn minilm(width: Width) -> Self {
        let (hidden, heads, intermediate) = (width.of(384), width.of(12), width.of(1536));
        Self { vocabulary: 30522, positions: 512, hidden, heads, intermediate, layers: 6 }
    }

    /// Two small layers, for pairs of texts.
    fn reranker() -> Self {
        Self { vocabulary: 30522, positions: 512, hidden: 64, heads: 4, intermediate: 256, layers: 2 }
    }

    /// BERT-base: 109 million weights at full width. A quarter width has a quarter of the heads, each of the same
    /// width.
    fn bert_base(width: Width) -> Self {
        let (hidden, heads, intermediate) = (width.of(768), width.of(12), width.of(3072));
        Self { vocabulary: 30522, positions: 512, hidden, heads, intermediate, layers: 12 }
    }
}

/// `input_ids`, `attention_mask` INT64 `[batch, tokens]` → `last_hidden_state` FP32 `[batch, tokens, hidden]`,
/// `pooled_output` FP32 `[batch, hidden]`. `hidden` is 768 at full width; at most 512 tokens.
///
/// # Errors
/// Only if the graph built here is invalid, which would be a bug.
pub fn bert_base(width: Width) -> Result<Model, Error> {
    let sizes = Sizes::bert_base(width);
    let hidden = sizes.hidden as i64;
    let mut encoder = Encoder { graph: Graph::new("bert-base"), weights: Seeded::new(0x6265_7274), sizes };
    let (ids, mask) = encoder.inputs();
    let states = encoder.encode(&ids, &mask, None)?;
    let states = encoder.graph.op("Identity", &[&states]).named("last_hidden_state").value();
    let first = encoder.graph.scalar(0_i64);
    let first = encoder.graph.op("Gather", &[&states, &first]).attr("axis", 1).value();
    let pooled = encoder.dense("pooler.dense", &first, sizes.hidden, sizes.hidden)?;
    let pooled = encoder.graph.op("Tanh", &[&pooled]).named("pooled_output").value();
    encoder.graph.output(&states, DataType::Fp32, &dims!["batch", "tokens", hidden]);
    encoder.graph.output(&pooled, DataType::Fp32, &dims!["batch", hidden]);
    Ok(encoder.graph.finish()?)
}

/// `input_ids`, `attention_mask` INT64 `[batch, tokens]` → `sentence_embedding` FP32 `[batch, 384]`, of length 1: the
/// normalized mean of the last states of unmasked tokens. At most 512 tokens.
///
/// # Errors
/// If the weights lack a tensor or have other shapes.
pub fn minilm(weights: impl WeightSource) -> Result<Model, Error> {
    minilm_of(Width::FULL, weights)
}

/// Like [`minilm`], with embeddings of 384 numbers at full width.
///
/// # Errors
/// If the weights lack a tensor or have other shapes.
pub fn minilm_of(width: Width, weights: impl WeightSource) -> Result<Model, Error> {
    let sizes = Sizes::minilm(width);
    let mut encoder = Encoder { graph: Graph::new("minilm"), weights, sizes };
    let (ids, mask) = encoder.inputs();
    let states = encoder.encode(&ids, &mask, None)?;
    let embedding = encoder.graph.scope("pooling", |graph| mean_and_normalise(graph, &states, &mask));
    encoder.graph.output(&embedding, DataType::Fp32, &dims!["batch", sizes.hidden as i64]);
    Ok(encoder.graph.finish()?)
}

/// A cross-encoder with random weights: `input_ids`, `attention_mask`, `token_type_ids` INT64 `[batch, tokens]` →
/// `logits` FP32 `[batch, 1]`, a score of a pair of texts.
///
/// # Errors
/// Only if the graph built here is invalid, which would be a bug.
pub fn reranker() -> Result<Model, Error> {
    let sizes = Sizes::reranker();
    let mut encoder = Encoder { graph: Graph::new("reranker"), weights: Seeded::new(0x7061_6972), sizes };
    let (ids, mask) = encoder.inputs();
    let types = encoder.graph.input("token_type_ids", DataType::Int64, &dims!["batch", "tokens"]);
    let states = encoder.encode(&ids, &mask, Some(&types))?;
    let first = encoder.graph.scalar(0_i64);
    let first = encoder.graph.op("Gather", &[&states, &first]).attr("axis", 1).value();
    let pooled = encoder.dense("pooler.dense", &first, sizes.hidden, sizes.hidden)?;
    let pooled = encoder.graph.op("Tanh", &[&pooled]).value();
    let logits = encoder.dense("classifier", &pooled, sizes.hidden, 1)?;
    let logits = encoder.graph.op("Identity", &[&logits]).named("logits").value();
    encoder.graph.output(&logits, DataType::Fp32, &dims!["batch", 1]);
    Ok(encoder.graph.finish()?)
}

fn mean_and_normalise(graph: &mut Graph, states: &Value, mask: &Value) -> Value {
    let mask = graph.op("Cast", &[mask]).attr("to", 1).value();
    let (last, tokens) = (graph.literal(&[-1_i64]), graph.literal(&[1_i64]));
    let mask = graph.op("Unsqueeze", &[&mask, &last]).value();
    let kept = graph.op("Mul", &[states, &mask]).value();
    let sum = graph.op("ReduceSum", &[&kept, &tokens]).attr("keepdims", 0).value();
    let count = graph.op("ReduceSum", &[&mask, &tokens]).attr("keepdims", 0).value();
    // Lower bounds of the divisors, so that the mean of a text without tokens, and the direction of a zero vector, are
    // 0 rather than undefined.
    let least = graph.scalar(1e-9_f32);
    let count = graph.op("Max", &[&count, &least]).value();
    let mean = graph.op("Div", &[&sum, &count]).value();
    let length = graph.op("ReduceL2", &[&mean]).attr("axes", [1]).attr("keepdims", 1).value();
    let least = graph.scalar(1e-12_f32);
    let length = graph.op("Max", &[&length, &least]).value();
    graph.op("Div", &[&mean, &length]).named("sentence_embedding").value()
}

/// An encoder under construction. Names are those of the checkpoints. Bias and GELU are in the form that ONNX Runtime
/// fuses.
struct Encoder<W> {
    graph: Graph,
    weights: W,
    sizes: Sizes,
}

impl<W: WeightSource> Encoder<W> {
    fn inputs(&mut self) -> (Value, Value) {
        let shape = dims!["batch", "tokens"];
        let ids = self.graph.input("input_ids", DataType::Int64, &shape);
        (ids, self.graph.input("attention_mask", DataType::Int64, &shape))
    }

    fn tensor(&mut self, name: &str, dims: &[usize], spread: f32) -> Result<Value, Error> {
        let data = self.weights.tensor(name, dims, spread)?;
        Ok(self.graph.raw(name, DataType::Fp32, dims, data))
    }

    /// Returns the states after the last layer, `[batch, tokens, hidden]`.
    fn encode(&mut self, ids: &Value, mask: &Value, types: Option<&Value>) -> Result<Value, Error> {
        let mut states = self.embed(ids, types)?;
        let bias = self.graph.scope("mask", |graph| {
            let (heads, queries) = (graph.literal(&[1_i64]), graph.literal(&[2_i64]));
            let mask = graph.op("Unsqueeze", &[mask, &heads]).value();
            let mask = graph.op("Unsqueeze", &[&mask, &queries]).value();
            let mask = graph.op("Cast", &[&mask]).attr("to", 1).value();
            let (one, masked) = (graph.scalar(1.0_f32), graph.scalar(MASKED));
            let absent = graph.op("Sub", &[&one, &mask]).value();
            graph.op("Mul", &[&absent, &masked]).value()
        });
        for layer in 0..self.sizes.layers {
            states = self.layer(&format!("encoder.layer.{layer}"), &states, &bias)?;
        }
        Ok(states)
    }

    /// Without `types`, all tokens have type 0.
    fn embed(&mut self, ids: &Value, types: Option<&Value>) -> Result<Value, Error> {
        let Sizes { vocabulary, positions, hidden, .. } = self.sizes;
        let words = self.tensor("embeddings.word_embeddings.weight", &[vocabulary, hidden], 0.02)?;
        let places = self.tensor("embeddings.position_embeddings.weight", &[positions, hidden], 0.02)?;
        let kinds = self.tensor("embeddings.token_type_embeddings.weight", &[2, hidden], 0.02)?;
        let graph = &mut self.graph;
        let words = graph.op("Gather", &[&words, ids]).value();
        // Slices the positions by length, which hides the sum's shape from shape inference, so that ONNX Runtime does
        // not fuse the residual sums with their normalization. On the CPU, that form was measured to be faster by a
        // tenth.
        let shape = graph.op("Shape", &[ids]).value();
        let (zero, one) = (graph.literal(&[0_i64]), graph.literal(&[1_i64]));
        let tokens = graph.op("Gather", &[&shape, &one]).value();
        let places = graph.op("Slice", &[&places, &zero, &tokens, &zero]).value();
        let kind = graph.op("Gather", &[&kinds, types.unwrap_or(&zero)]).value();
        let sum = graph.op("Add", &[&words, &places]).value();
        let sum = graph.op("Add", &[&sum, &kind]).value();
        self.normalise("embeddings.LayerNorm", &sum)
    }

    fn layer(&mut self, name: &str, states: &Value, bias: &Value) -> Result<Value, Error> {
        let Sizes { hidden, intermediate, .. } = self.sizes;
        let attended = self.attend(&format!("{name}.attention.self"), states, bias)?;
        let attended = self.dense(&format!("{name}.attention.output.dense"), &attended, hidden, hidden)?;
        let sum = self.graph.op("Add", &[&attended, states]).value();
        let states = self.normalise(&format!("{name}.attention.output.LayerNorm"), &sum)?;
        let wide = self.dense(&format!("{name}.intermediate.dense"), &states, hidden, intermediate)?;
        let wide = self.gelu(&wide);
        let narrow = self.dense(&format!("{name}.output.dense"), &wide, intermediate, hidden)?;
        let sum = self.graph.op("Add", &[&narrow, &states]).value();
        self.normalise(&format!("{name}.output.LayerNorm"), &sum)
    }

    fn attend(&mut self, name: &str, states: &Value, bias: &Value) -> Result<Value, Error> {
        let Sizes { hidden, heads, .. } = self.sizes;
        let width = hidden / heads;
        let query = self.dense(&format!("{name}.query"), states, hidden, hidden)?;
        let key = self.dense(&format!("{name}.key"), states, hidden, hidden)?;
        let value = self.dense(&format!("{name}.value"), states, hidden, hidden)?;
        let graph = &mut self.graph;
        let split = graph.literal(&[0, 0, heads as i64, width as i64]);
        let mut by_head = |x: &Value, order: [i64; 4]| {
            let parts = graph.op("Reshape", &[x, &split]).value();
            graph.op("Transpose", &[&parts]).attr("perm", order).value()
        };
        let query = by_head(&query, [0, 2, 1, 3]);
        let key = by_head(&key, [0, 2, 3, 1]);
        let value = by_head(&value, [0, 2, 1, 3]);
        let scores = graph.op("MatMul", &[&query, &key]).value();
        let root = graph.scalar((width as f32).sqrt());
        let scores = graph.op("Div", &[&scores, &root]).value();
        let scores = graph.op("Add", &[&scores, bias]).value();
        let shares = graph.op("Softmax", &[&scores]).attr("axis", -1).value();
        let mixed = graph.op("MatMul", &[&shares, &value]).value();
        let mixed = graph.op("Transpose", &[&mixed]).attr("perm", [0, 2, 1, 3]).value();
        let joined = graph.literal(&[0, 0, hidden as i64]);
        Ok(graph.op("Reshape", &[&mixed, &joined]).value())
    }

    fn dense(&mut self, name: &str, x: &Value, input: usize, output: usize) -> Result<Value, Error> {
        let weight_name = format!("{name}.weight");
        let spread = (2.0 / (input + output) as f32).sqrt();
        let data = self.weights.transposed(&weight_name, input, output, spread)?;
        let weight = self.graph.raw(&weight_name, DataType::Fp32, &[input, output], data);
        let bias = self.tensor(&format!("{name}.bias"), &[output], 0.01)?;
        let product = self.graph.op("MatMul", &[x, &weight]).value();
        Ok(self.graph.op("Add", &[&product, &bias]).value())
    }

    /// Adds a layer normalization. Random scales are around 0 like all random weights, which keeps rows distinct.
    fn normalise(&mut self, name: &str, x: &Value) -> Result<Value, Error> {
        let hidden = self.sizes.hidden;
        let scale = self.tensor(&format!("{name}.weight"), &[hidden], 1.0)?;
        let shift = self.tensor(&format!("{name}.bias"), &[hidden], 0.01)?;
        let call = self.graph.op("LayerNormalization", &[x, &scale, &shift]);
        Ok(call.attr("axis", -1).attr("epsilon", 1e-12_f32).value())
    }

    /// x · (1 + erf(x / √2)) / 2.
    fn gelu(&mut self, x: &Value) -> Value {
        let graph = &mut self.graph;
        let root = graph.scalar(std::f32::consts::SQRT_2);
        let (one, half) = (graph.scalar(1.0_f32), graph.scalar(0.5_f32));
        let scaled = graph.op("Div", &[x, &root]).value();
        let error = graph.op("Erf", &[&scaled]).value();
        let shifted = graph.op("Add", &[&error, &one]).value();
        let product = graph.op("Mul", &[x, &shifted]).value();
        graph.op("Mul", &[&product, &half]).value()
    }
}
