//! Configuration texts.

/// A full `config.pbtxt`, as an example to copy from.
pub(super) const ADD_SUB: &str = r#"# A Triton configuration. Dimensions leave out the batch, which is axis 0 of every tensor.
backend: "onnxruntime"
max_batch_size: 8
input [
  { name: "INPUT0" data_type: TYPE_FP32 dims: [ 16 ] },
  { name: "INPUT1" data_type: TYPE_FP32 dims: [ 16 ] }
]
output [
  { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ 16 ] },
  { name: "OUTPUT1" data_type: TYPE_FP32 dims: [ 16 ] }
]
# Requests that wait at the same time share a batch.
dynamic_batching { }
"#;

/// Strings: Triton's TYPE_STRING, BYTES on the wire.
pub(super) const STRINGS: &str = r#"backend: "onnxruntime"
max_batch_size: 8
input [ { name: "INPUT0" data_type: TYPE_STRING dims: [ 2 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_STRING dims: [ 2 ] } ]
dynamic_batching { }
"#;

/// A varying dimension.
pub(super) const VARIABLE: &str = r#"backend: "onnxruntime"
max_batch_size: 8
input [ { name: "INPUT0" data_type: TYPE_INT64 dims: [ -1 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_INT64 dims: [ -1 ] } ]
# Without padding only requests of the same length share a batch.
dynamic_batching { }
"#;

/// A model slow enough to watch queues with.
pub(super) const SLOW: &str = r#"backend: "onnxruntime"
max_batch_size: 8
dynamic_batching { default_queue_policy { max_queue_size: 64 } }
instance_group [ { count: 1 kind: KIND_CPU } ]
"#;

/// Several responses to one request. The engine is built in, so there is no model file.
pub(super) const REPEAT: &str = r#"backend: "repeat"
max_batch_size: 8
input [ { name: "INPUT0" data_type: TYPE_FP32 dims: [ 16 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ 16 ] } ]
model_transaction_policy { decoupled: true }
instance_group [ { count: 1 kind: KIND_CPU } ]
"#;

/// The sentence encoder, as `model.yaml`.
pub(super) const MINILM: &str = r"# Sentence embeddings of all-MiniLM-L6-v2. A text's tokens are an axis that varies: texts of different lengths share a
# batch, the shorter ones padded. The mask keeps padding out of attention and mean, so answers do not depend on it.
max_batch_size: 32
inputs:
  - name: input_ids
    dtype: INT64
    dims: [tokens]
    pad: { axis: tokens, value: 0 }
  - name: attention_mask
    dtype: INT64
    dims: [tokens]
    pad: { axis: tokens, value: 0 }
outputs:
  - name: sentence_embedding
    dtype: FP32
    dims: [384]
";

/// Texts in, embeddings out, by the model `minilm`.
pub(super) const SENTENCES: &str = r"# Embeddings of texts. The texts of a request are batched with those of all others, and with what clients of minilm
# send.
max_batch_size: 2048
inputs:
  - { name: TEXT, dtype: BYTES, dims: [1], optional: true }
  - { name: TOKENS, dtype: INT64, dims: [-1], optional: true }
  - { name: TRUNCATE, dtype: BOOL, dims: [1], optional: true }
  - { name: DIMENSIONS, dtype: INT32, dims: [1], optional: true }
outputs:
  - { name: embedding, dtype: FP32, dims: [-1] }
  - { name: tokens, dtype: INT32, dims: [1] }
pipeline:
  - tokenize:
      max_tokens: 256
      inputs: { TEXT: TEXT, TOKENS: TOKENS, TRUNCATE: TRUNCATE }
      outputs: { ids: ids, mask: mask, tokens: tokens }
  - model:
      name: minilm
      inputs: { input_ids: ids, attention_mask: mask }
      outputs: { sentence_embedding: vector }
  - pool:
      pooling: done
      normalize: true
      inputs: { states: vector, DIMENSIONS: DIMENSIONS }
      outputs: { embedding: embedding }
";

/// A pipeline with a condition: a text that is not urgent does not reach the last step.
pub(super) const TRIAGE: &str = r"max_batch_size: 64
inputs:
  - { name: TEXT, dtype: BYTES, dims: [1] }
outputs:
  - { name: urgency, dtype: FP32, dims: [1] }
  - { name: desk, dtype: FP32, dims: [4] }
pipeline:
  - tokenize:
      max_tokens: 256
      inputs: { TEXT: TEXT }
      outputs: { ids: ids, mask: mask }
  - model:
      name: minilm
      inputs: { input_ids: ids, attention_mask: mask }
      outputs: { sentence_embedding: vector }
  - model: { name: urgency, inputs: { vector: vector }, outputs: { scores: urgency } }
  - model:
      name: desk
      inputs: { vector: vector }
      outputs: { scores: desk }
      when: { tensor: urgency, at_least: 0.5 }
";

/// Photos in, scores of classes out, by the model `glance`. The numbers are those of networks trained on ImageNet.
pub(super) const PHOTOS: &str = r"# Scores of a photo's classes. IMAGE has a file in JPEG, PNG or WebP.
max_batch_size: 32
inputs:
  - { name: IMAGE, dtype: BYTES, dims: [1] }
outputs:
  - { name: logits, dtype: FP32, dims: [1000] }
pipeline:
  - image:
      resize: { shortest_edge: 256 }
      crop: { height: 224, width: 224 }
      mean: [0.485, 0.456, 0.406]
      std: [0.229, 0.224, 0.225]
      inputs: { IMAGE: IMAGE }
      outputs: { pixels: pixels }
  - model: { name: glance, inputs: { image: pixels }, outputs: { logits: logits } }
";

/// A cross-encoder: pairs of texts.
pub(super) const RERANKER: &str = r"# Scores of pairs of texts, by /v1/rerank, /rerank or /predict.
text:
  task: classify
  max_tokens: 512
";

/// BERT-base. Only inputs: outputs are completed from the graph and cut back to each request's own tokens.
pub(super) const BERT: &str = r"max_batch_size: 32
inputs:
  - name: input_ids
    dtype: INT64
    dims: [tokens]
    pad: { axis: tokens, value: 0 }
  - name: attention_mask
    dtype: INT64
    dims: [tokens]
    pad: { axis: tokens, value: 0 }
";

/// Padding with a value that is visible if it leaks.
pub(super) const PADDED: &str = r"max_batch_size: 8
inputs:
  - name: INPUT0
    dtype: INT64
    dims: [tokens]
    pad: { axis: tokens, value: -1 }
outputs:
  - name: OUTPUT0
    dtype: INT64
    dims: [tokens]
";

/// The networks of the benchmarks.
pub(super) const NETWORK: &str = r#"backend: "onnxruntime"
max_batch_size: 32
dynamic_batching { }
"#;

pub(super) const SIXTY_FOUR: &str = r#"backend: "onnxruntime"
max_batch_size: 64
dynamic_batching { }
"#;

pub(super) const BATCHED: &str = r#"backend: "onnxruntime"
max_batch_size: 8
dynamic_batching { }
"#;

/// No dynamic batching: requests run one after another.
pub(super) const EIGHT: &str = r#"backend: "onnxruntime"
max_batch_size: 8
"#;

pub(super) const SEQUENCES: &str = r#"backend: "onnxruntime"
max_batch_size: 8
sequence_batching { max_sequence_idle_microseconds: 5000000 }
"#;

/// A state and two control inputs, which clients do not see.
pub(super) const TOTAL: &str = r#"backend: "onnxruntime"
max_batch_size: 8
sequence_batching {
  max_sequence_idle_microseconds: 60000000
  oldest { max_candidate_sequences: 4 }
  control_input [
    { name: "START" control [ { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } ] },
    { name: "END" control [ { kind: CONTROL_SEQUENCE_END fp32_false_true: [ 0, 1 ] } ] }
  ]
  state [ { input_name: "total" output_name: "total_next" data_type: TYPE_INT64 dims: [ 1 ] } ]
}
"#;

pub(super) const CORRELATION_ID: &str = r#"backend: "onnxruntime"
max_batch_size: 4
sequence_batching {
  direct { }
  control_input [
    { name: "READY" control [ { kind: CONTROL_SEQUENCE_READY bool_false_true: [ false, true ] } ] },
    { name: "CORRID" control [ { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64 } ] }
  ]
}
"#;

pub(super) const NO_BATCH: &str = r#"backend: "onnxruntime"
max_batch_size: 0
"#;

pub(super) const ONE_INSTANCE: &str = r#"backend: "onnxruntime"
max_batch_size: 8
instance_group [ { count: 1 kind: KIND_CPU } ]
"#;

/// Waits long enough for eight requests to share a batch.
pub(super) const LOOKUP: &str = r#"backend: "onnxruntime"
max_batch_size: 8
dynamic_batching {
  preferred_batch_size: [ 8 ]
  max_queue_delay_microseconds: 500000
}
"#;

pub(super) const PRIORITIES: &str = r#"backend: "onnxruntime"
max_batch_size: 8
dynamic_batching {
  priority_levels: 2
  default_priority_level: 2
  default_queue_policy {
    timeout_action: REJECT
    default_timeout_microseconds: 0
    allow_timeout_override: true
    max_queue_size: 0
  }
}
"#;

pub(super) const SHORT_QUEUE: &str = r#"backend: "onnxruntime"
max_batch_size: 1
dynamic_batching {
  default_queue_policy {
    timeout_action: REJECT
    default_timeout_microseconds: 120000000
    allow_timeout_override: true
    max_queue_size: 2
  }
}
instance_group [ { count: 1 kind: KIND_CPU } ]
"#;
