//! Configuration texts of the models of cells.

/// One cell per token.
pub(super) const LSTM: &str = r"# An LSTM over tokens. Each request unfolds into one cell per token. Cells of different requests share tasks,
# regardless of the requests' positions.
inputs:
  - name: tokens
    dtype: INT64
    dims: [-1]
outputs:
  - name: hidden
    dtype: FP32
    dims: [HIDDEN]
cells:
  step: { program: step.onnx, batch_sizes: [1, 2, 4, 8, 16, 32, 64, 128, 256, 512] }
unfold:
  - chain:
      cell: step
      over: tokens
      as: x
      carry: { h: h_next, c: c_next }
      emit: { hidden: last(h_next) }
";

/// The same as a stateful model.
pub(super) const LSTM_SEQUENCE: &str = r"# An LSTM over streams: each request has the next tokens of its sequence (sequence_id, sequence_start, sequence_end),
# and returns the hidden state after the last of them. The server keeps the state between requests.
inputs:
  - name: tokens
    dtype: INT64
    dims: [-1]
outputs:
  - name: hidden
    dtype: FP32
    dims: [HIDDEN]
cells:
  step: { program: step.onnx, batch_sizes: [1, 2, 4, 8, 16, 32, 64] }
unfold:
  - chain:
      cell: step
      over: tokens
      as: x
      keep: { h: h_next, c: c_next }
      emit: { hidden: last(h_next) }
sequence_batching: { max_candidate_sequences: 1024, max_sequence_idle_us: 60000000 }
";

/// One cell per token, after one that reads all tokens at once.
pub(super) const LSTM_PROJECTED: &str = r"# The LSTM of the model lstm, with the same weights. What tokens contribute to the gates does not depend on earlier
# steps: one run of 'project' multiplies all tokens of the waiting requests by their weights, and a step only adds the
# contribution of the state.
inputs:
  - name: tokens
    dtype: INT64
    dims: [-1]
outputs:
  - name: hidden
    dtype: FP32
    dims: [HIDDEN]
cells:
  project: { program: project.onnx, batch_sizes: [1, 2, 4, 8, 16, 32, 64] }
  step: { program: step.onnx, batch_sizes: [1, 2, 4, 8, 16, 32, 64, 128, 256, 512] }
unfold:
  - stage: { cell: project, over: tokens, as: x }
  - chain:
      cell: step
      over: project.gates
      as: gates
      carry: { h: h_next, c: c_next }
      emit: { hidden: last(h_next) }
";

/// An encoder and a decoder, with these first lines and additional settings of the decoder.
macro_rules! seq2seq {
    ($first:literal, $decoder:literal) => {
        concat!(
            $first,
            r#"inputs:
  - name: source
    dtype: INT64
    dims: [-1]
outputs:
  - name: tokens
    dtype: INT64
    dims: [-1]
cells:
  encoder: { program: encoder.onnx, batch_sizes: [1, 2, 4, 8, 16, 32, 64, 128, 256, 512] }
  decoder: { program: decoder.onnx, batch_sizes: [1, 2, 4, 8, 16, 32, 64, 128, 256] }
unfold:
  - chain:
      cell: encoder
      over: source
      as: token
      carry: { h: h_next, c: c_next }
      emit: { h: last(h_next), c: last(c_next) }
  - decode:
      cell: decoder
      feed: { token: next_token }
      carry: { h: h_next, c: c_next }
      start: { token: 1, h: encoder.h, c: encoder.c }
      until: { next_token: 2 }
      max_steps: "len(source) + 20"
      emit: { tokens: all(next_token) }
"#,
            $decoder
        )
    };
}

/// An encoder and a decoder.
pub(super) const SEQ2SEQ: &str = seq2seq!(
    "# Translation: one cell for each token that is read, then one for each that is written, up to the end token, 2.\n",
    ""
);

/// The same, with one response per token.
pub(super) const SEQ2SEQ_STREAM: &str = seq2seq!(
    "# Translation as in seq2seq, but each token is sent as soon as it is known.\ndecoupled: true\n",
    "      stream: true\n"
);

/// A tree in each request.
pub(super) const TREE_LSTM: &str = r"# A binary tree LSTM. Row n of 'children' has the children of node n, or -1 where there is none. Only the tokens of
# leaves are used.
inputs:
  - name: tokens
    dtype: INT64
    dims: [-1]
  - name: children
    dtype: INT32
    dims: [-1, 2]
outputs:
  - name: root
    dtype: FP32
    dims: [HIDDEN]
cells:
  leaf: { program: leaf.onnx, batch_sizes: [1, 2, 4, 8, 16, 32, 64] }
  node: { program: node.onnx, batch_sizes: [1, 2, 4, 8, 16, 32, 64] }
unfold:
  - tree:
      leaf: leaf
      internal: node
      children: children
      over: tokens
      as: token
      child: { h_left: 0.h, c_left: 0.c, h_right: 1.h, c_right: 1.c }
      max_nodes: 256
      emit: { root: root(h) }
";

/// Two directions, a layer over both, and a decoder with attention.
pub(super) const GNMT: &str = r#"# Translation with attention: the source is read in both directions, then by a layer over both, whose states the
# decoder attends to.
inputs:
  - name: source
    dtype: INT64
    dims: [-1]
outputs:
  - name: tokens
    dtype: INT64
    dims: [-1]
cells:
  forward: { program: forward.onnx }
  backward: { program: backward.onnx }
  upper: { program: upper.onnx }
  decoder: { program: decoder.onnx }
unfold:
  - chain:
      cell: forward
      over: source
      as: token
      carry: { h: h_next, c: c_next }
      emit: { states: all(h_next) }
  - chain:
      cell: backward
      over: source
      as: token
      reverse: true
      carry: { h: h_next, c: c_next }
      emit: { states: all(h_next) }
  - chain:
      cell: upper
      over: { forward: forward.states, backward: backward.states }
      carry: { h: h_next, c: c_next }
      emit: { states: all(h_next), h: last(h_next), c: last(c_next) }
  - decode:
      cell: decoder
      feed: { token: next_token }
      carry: { h1: h1_next, c1: c1_next, h2: h2_next, c2: c2_next }
      start: { token: 1, h1: upper.h, c1: upper.c }
      hold: { memory: upper.states }
      length: { memory_length: upper.states }
      until: { next_token: 2 }
      max_steps: "len(source) + 20"
      emit: { tokens: all(next_token) }
"#;

/// Stages before and after chains.
pub(super) const DEEPSPEECH2: &str = r#"# Speech: convolutions over all frames, which halve their number, a recurrent layer over them in both directions, and
# scores of the characters for each.
inputs:
  - name: frames
    dtype: FP32
    dims: [-1, 80]
outputs:
  - name: logits
    dtype: FP32
    dims: [-1, 29]
cells:
  conv: { program: conv.onnx, batch_sizes: [1, 2, 4, 8] }
  forward: { program: forward.onnx }
  backward: { program: backward.onnx }
  dense: { program: dense.onnx, batch_sizes: [1, 2, 4, 8, 16, 32, 64] }
unfold:
  # Recordings of different lengths share its runs, because it receives the length of each.
  - stage: { cell: conv, length: { frames_length: frames } }
  - chain:
      cell: forward
      over: conv.features
      as: x
      steps: "(len(frames) + 1) / 2"
      carry: { h: h_next }
      emit: { states: all(h_next) }
  - chain:
      cell: backward
      over: conv.features
      as: x
      steps: "(len(frames) + 1) / 2"
      reverse: true
      carry: { h: h_next }
      emit: { states: all(h_next) }
  - stage:
      cell: dense
      over: { forward: forward.states, backward: backward.states }
"#;

/// Chains over one another, and a decoder with attention.
pub(super) const LAS: &str = r#"# Speech with attention: a listener of two layers over the frames, and a speller that attends to what it has heard.
inputs:
  - name: frames
    dtype: FP32
    dims: [-1, 40]
outputs:
  - name: tokens
    dtype: INT64
    dims: [-1]
cells:
  listener: { program: listener.onnx }
  upper: { program: upper.onnx }
  speller: { program: speller.onnx }
unfold:
  - chain:
      cell: listener
      over: frames
      as: frame
      carry: { h: h_next, c: c_next }
      emit: { states: all(h_next) }
  - chain:
      cell: upper
      over: listener.states
      as: x
      carry: { h: h_next, c: c_next }
      emit: { states: all(h_next) }
  - decode:
      cell: speller
      feed: { token: next_token }
      carry: { context: context_next, h: h_next, c: c_next }
      start: { token: 1 }
      hold: { memory: upper.states }
      length: { memory_length: upper.states }
      until: { next_token: 2 }
      max_steps: "len(frames) + 20"
      emit: { tokens: all(next_token) }
"#;

/// A stage over the whole source, and a decoder whose past grows.
pub(super) const TRANSFORMER: &str = r#"# Translation by a Transformer: the encoder reads the whole source at once, and the decoder writes token by token. It
# attends to the whole source and to its own past: the keys and values of each step are kept for later steps.
inputs:
  - name: source
    dtype: INT64
    dims: [-1]
outputs:
  - name: tokens
    dtype: INT64
    dims: [-1]
cells:
  encoder: { program: encoder.onnx, batch_sizes: [1, 2, 4, 8] }
  decoder: { program: decoder.onnx }
unfold:
  # Sources of different lengths share its runs, because it receives the length of each.
  - stage: { cell: encoder, length: { source_length: source } }
  - decode:
      cell: decoder
      feed: { token: next_token }
      start: { token: 1 }
      grow: { keys_0: key_0, values_0: value_0, keys_1: key_1, values_1: value_1 }
      hold:
        memory_keys_0: encoder.memory_keys_0
        memory_values_0: encoder.memory_values_0
        memory_keys_1: encoder.memory_keys_1
        memory_values_1: encoder.memory_values_1
      length: { past_length: grow.keys_0, memory_length: encoder.memory_keys_0 }
      until: { next_token: 2 }
      max_steps: "len(source) + 20"
      emit: { tokens: all(next_token) }
"#;

/// A streaming encoder.
pub(super) const CONFORMER: &str = r"# A streaming Conformer. A request has the next chunks of 320 ms of its sequence: 32 frames of 10 ms, of 80 filters.
# The server keeps what the encoder has to know of the past; the batch of keys and values is their axis 1.
max_batch_size: 0
inputs:
  - name: frames
    dtype: FP32
    dims: [-1, 32, 80]
outputs:
  - name: log_probs
    dtype: FP32
    dims: [-1, 8, 500]
cells:
  chunk: { program: chunk.onnx, batch_axes: {
      keys_0: 1, keys_0_next: 1, values_0: 1, values_0_next: 1, keys_1: 1, keys_1_next: 1, values_1: 1,
      values_1_next: 1, keys_2: 1, keys_2_next: 1, values_2: 1, values_2_next: 1, keys_3: 1, keys_3_next: 1,
      values_3: 1, values_3_next: 1, keys_4: 1, keys_4_next: 1, values_4: 1, values_4_next: 1, keys_5: 1,
      keys_5_next: 1, values_5: 1, values_5_next: 1 } }
unfold:
  - chain:
      cell: chunk
      over: frames
      as: x
      keep: {
        past: past_next, keys_0: keys_0_next, values_0: values_0_next, convolved_0: convolved_0_next,
        keys_1: keys_1_next, values_1: values_1_next, convolved_1: convolved_1_next, keys_2: keys_2_next,
        values_2: values_2_next, convolved_2: convolved_2_next, keys_3: keys_3_next, values_3: values_3_next,
        convolved_3: convolved_3_next, keys_4: keys_4_next, values_4: values_4_next,
        convolved_4: convolved_4_next, keys_5: keys_5_next, values_5: values_5_next,
        convolved_5: convolved_5_next
      }
      emit: { log_probs: all(log_probs) }
sequence_batching: { max_candidate_sequences: 1024, max_sequence_idle_us: 60000000 }
";
