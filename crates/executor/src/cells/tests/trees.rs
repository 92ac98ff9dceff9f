//! Trees, in which each node reads its children.

use super::*;

pub(super) fn same(inputs: &[Vec<i64>]) -> Vec<Vec<i64>> {
    vec![inputs[0].clone()]
}

pub(super) fn two_left_and_right(inputs: &[Vec<i64>]) -> Vec<Vec<i64>> {
    vec![vec![2 * inputs[0][0] + inputs[1][0]]]
}

pub(super) fn tree() -> Tried {
    let child = |child| CellInputSource::Child { child, output: 0, none: bytes(&[0]) };
    let types = smallvec![
        NodeType { cell: 0, inputs: vec![row_of_input(0)] },
        NodeType { cell: 1, inputs: vec![child(0), child(1)] },
    ];
    let unfolding = Unfolding {
        cells: vec![cell("leaf", &[("x", &[])], &["v"]), cell("node", &[("left", &[1]), ("right", &[1])], &["v"])],
        segments: vec![segment(
            "tree",
            (types, Nodes::Tree { children: 1, max_nodes: 16 }),
            vec![emit("root", 0, EmitRange::Last), emit("all", 0, EmitRange::All)],
        )],
        outputs: vec![emitted(0, 0), emitted(0, 1)],
        limits: Vec::new(),
    };
    let spec = model(&[("tokens", &[-1]), ("children", &[-1, 2])], 2);
    Tried::new(spec, unfolding, &[same, two_left_and_right]).expect("it fits")
}

#[test]
fn a_tree_combines_its_children_and_leaves_its_root() {
    // Node 4 is the parent of (0, 3), and node 3 that of (1, 2).
    let children = [-1, -1, -1, -1, -1, -1, 1, 2, 0, 3];
    let outputs = tree().alone(&[(&[5], &[5, 6, 7, 0, 0]), (&[5, 2], &children)]);
    assert_eq!(outputs, Ok(vec![(vec![1], vec![29]), (vec![5, 1], vec![5, 6, 7, 19, 29])]));
}

#[test]
fn a_node_may_have_fewer_children_and_a_child_several_parents() {
    // Node 1 is the parent of (0), node 2 that of (0, 1).
    let outputs = tree().alone(&[(&[3], &[5, 0, 0]), (&[3, 2], &[-1, -1, 0, -1, 0, 1])]);
    assert_eq!(outputs, Ok(vec![(vec![1], vec![20]), (vec![3, 1], vec![5, 10, 20])]));
}

#[test]
fn a_single_leaf_is_its_own_root() {
    let outputs = tree().alone(&[(&[1], &[5]), (&[1, 2], &[-1, -1])]);
    assert_eq!(outputs, Ok(vec![(vec![1], vec![5]), (vec![1, 1], vec![5])]));
}
