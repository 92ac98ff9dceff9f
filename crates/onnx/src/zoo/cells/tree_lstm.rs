//! A binary tree LSTM (Tai et al.: Improved semantic representations from tree-structured long short-term memory
//! networks, 2015, section 3.2, with two children; only leaves have tokens).

use super::layers::{STATES, State, Widths};
use crate::{
    Model,
    build::{BuildError, Value},
    zoo::{Width, layers::Net},
};

const VOCABULARY: usize = 2_000;

fn hidden(width: Width) -> usize {
    width.of(1024)
}

/// `token` INT64 `[]` → `h`, `c` FP32 `[hidden]`; `hidden` is 1,024 at full width. The gates in `leaf.weight` are i, o,
/// u.
///
/// # Errors
/// Only if the graph built here is invalid, which would be a bug.
pub fn leaf(width: Width) -> Result<Model, BuildError> {
    let hidden = hidden(width);
    let mut net = Net::new("tree-lstm/leaf");
    let token = net.number("token");
    let x = net.embed(&token, VOCABULARY, hidden);
    let gates = net.affine("leaf", &x, hidden, 1.0, &vec![0.0; 3 * hidden]);
    let [i, o, u] = net.graph.op("Split", &[&gates]).attr("axis", 1).values();
    let (i, u) = (net.sigmoid(&i), net.tanh(&u));
    let c = net.graph.op("Mul", &[&i, &u]).named("c").value();
    give(&mut net, &o, c, hidden);
    net.graph.finish()
}

/// `h_left`, `c_left`, `h_right`, `c_right` FP32 `[hidden]` → `h`, `c` FP32 `[hidden]`. The gates in `node.weight` `[2
/// · hidden, 5 · hidden]`, whose first rows are the left child's, are i, f of the left child, f of the right child, o,
/// u.
///
/// # Errors
/// Only if the graph built here is invalid, which would be a bug.
pub fn node(width: Width) -> Result<Model, BuildError> {
    let Widths { input, hidden, gain } = Widths { input: 2 * hidden(width), hidden: hidden(width), gain: STATES };
    let mut net = Net::new("tree-lstm/node");
    let (left, right) = (net.state("_left", hidden), net.state("_right", hidden));
    let joined = net.join(&[&left.h, &right.h]);
    // Two memories are added, so forget gates start half open, which bounds their sum at any depth of the tree.
    let gates = net.affine("node", &joined, input, gain, &vec![0.0; 5 * hidden]);
    let [i, f_left, f_right, o, u] = net.graph.op("Split", &[&gates]).attr("axis", 1).values();
    let (i, f_left, f_right, u) = (net.sigmoid(&i), net.sigmoid(&f_left), net.sigmoid(&f_right), net.tanh(&u));
    let (left, right) = (net.multiply(&f_left, &left.c), net.multiply(&f_right, &right.c));
    let own = net.multiply(&i, &u);
    let kept = net.add(&left, &right);
    let c = net.graph.op("Add", &[&own, &kept]).named("c").value();
    give(&mut net, &o, c, hidden);
    net.graph.finish()
}

/// Adds the outputs `h` and `c` of a node, given its output gate before the sigmoid and its memory.
fn give(net: &mut Net, gate: &Value, c: Value, hidden: usize) {
    let (gate, squashed) = (net.sigmoid(gate), net.tanh(&c));
    let h = net.graph.op("Mul", &[&gate, &squashed]).named("h").value();
    net.give_state(&State { h, c }, hidden);
}
