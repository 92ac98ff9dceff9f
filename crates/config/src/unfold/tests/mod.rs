//! What configurations say of cells: as it is read, as it is refused, and as programs make it whole.

use super::*;
use crate::{pbtxt, yaml};

mod reading;
mod refusals;

/// An encoder and a decoder, with every key that they may have.
const TRANSLATE: &str = "\
inputs: [ { name: source, dtype: INT64, dims: [words] } ]
outputs: [ { name: tokens, dtype: INT64, dims: [-1] } ]
cells:
  encode: { program: encoder.onnx, batch_sizes: [1, 4, 512], min_followup: 64, priority: 7 }
  decode: { program: decoder.onnx }
unfold:
- chain:
    cell: encode
    name: encoder
    over: source
    as: word
    carry: { h: h_next, c: c_next }
    start: { h: -0.5 }
    reverse: true
    emit: { h: last(h_next), all: all(h_next) }
- decode:
    cell: decode
    feed: { token: next }
    carry: { h: h_next }
    start: { token: 1, h: encoder.h }
    hold: { memory: encoder.all }
    length: { words: encoder.all, past_words: grow.past }
    until: { next: 2 }
    max_steps: \"2 * len(encoder.all) + 50\"
    emit: { tokens: all(next) }
    grow: { past: key }
";

const TREE: &str = "\
inputs:
- { name: tokens, dtype: INT64, dims: [nodes] }
- { name: children, dtype: INT32, dims: [nodes, 2] }
outputs: [ { name: root, dtype: FP32, dims: [8] } ]
cells: { leaf: { program: leaf.onnx }, node: { program: node.onnx } }
unfold:
- tree:
    leaf: leaf
    internal: node
    children: children
    over: tokens
    as: x
    child: { left: 0.h, right: 1.h }
    max_nodes: 31
    emit: { root: root(h), all: all(h) }
";

const SPEECH: &str = "\
inputs: [ { name: frames, dtype: FP32, dims: [frames, 80] } ]
outputs: [ { name: logits, dtype: FP32, dims: [-1, 29] } ]
cells: { conv: { program: conv.onnx }, step: { program: step.onnx }, dense: { program: dense.onnx } }
unfold:
- stage: conv
- chain: { cell: step, over: { x: conv.features }, steps: len(frames) / 2, carry: { h: h_next },
    emit: { h: all(h_next) } }
- stage: { cell: dense, inputs: { x: step.h }, emit: { logits: all(y) } }
";

fn from_yaml(text: &str) -> Result<Option<UnfoldRequest>, ConfigError> {
    let (config, origin) = yaml::parse("f", text.as_bytes())?;
    read(&config, &origin)
}

fn sound(text: &str) -> UnfoldRequest {
    from_yaml(text).unwrap_or_else(|fault| panic!("{fault}")).expect("it says something of cells")
}

/// A text with one part of it replaced.
fn changed(text: &str, from: &str, to: &str) -> String {
    assert!(text.contains(from), "{from}");
    text.replacen(from, to, 1)
}

pub(crate) fn refusals(all: &mut crate::tests::refusals::Refusals) {
    refusals::refusals(all);
    resolve::tests::refusals(all);
}
