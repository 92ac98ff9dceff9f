//! Convolutions, pooling and the other operators of convolutional networks, one by one and in small groups, compute the
//! same as ONNX Runtime.

use paternoster_onnx::build::{Node, Value};
use paternoster_testing::fake_cuda::with_card;

use crate::{
    operators::Draft,
    rig::{Case, OnCard, floats},
};

/// Sets the attributes of a convolution or a pool.
fn with<'g>(mut call: Node<'g>, ints: &[(&str, &[i64])]) -> Node<'g> {
    for (name, numbers) in ints {
        call = call.attr(name, *numbers);
    }
    call
}

impl Draft {
    /// Adds a convolution with a bias; `weights` are `[outputs, inputs of a group, …]`.
    fn conv(&mut self, x: &Value, weights: &[usize], groups: i64, ints: &[(&str, &[i64])]) -> Value {
        let number = self.next();
        let (w, b) = (self.numbers(&format!("w{number}"), weights), self.numbers(&format!("b{number}"), &weights[..1]));
        with(self.graph.op("Conv", &[x, &w, &b]).attr("group", groups), ints).value()
    }

    /// Adds a transposed convolution with a bias; `weights` are `[inputs, outputs of a group, …]`.
    fn spread(&mut self, x: &Value, weights: &[usize], groups: usize, ints: &[(&str, &[i64])]) -> Value {
        let number = self.next();
        let w = self.numbers(&format!("w{number}"), weights);
        let b = self.numbers(&format!("b{number}"), &[weights[1] * groups]);
        with(self.graph.op("ConvTranspose", &[x, &w, &b]).attr("group", groups as i64), ints).value()
    }
}

#[test]
fn strides_dilations_and_pads_of_convolutions() {
    with_card(|| {
        let mut draft = Draft::new();
        let x = draft.floats("x", &[3, 9, 8]);
        for (ints, dims) in [
            (&[][..], [5, 7, 7]),
            (&[("strides", &[2, 3][..])], [5, 4, 3]),
            (&[("dilations", &[3, 2])], [5, 3, 6]),
            (&[("pads", &[1, 2, 1, 2])], [5, 9, 11]),
            // Pads of three at the top and none at the right.
            (&[("pads", &[3, 1, 0, 2]), ("strides", &[2, 2])], [5, 5, 5]),
            (&[("pads", &[0, 0, 1, 1]), ("dilations", &[2, 1])], [5, 6, 8]),
        ] {
            let y = draft.conv(&x, &[5, 3, 3, 2], 1, ints);
            draft.give(&y, &dims.map(i64::from));
        }
        draft.case().check();
    });
}

#[test]
fn pads_that_follow_from_the_stride() {
    with_card(|| {
        let mut draft = Draft::new();
        let x = draft.floats("x", &[2, 7, 10]);
        for (auto, strides, dims) in [
            ("SAME_UPPER", [1, 1], [3, 7, 10]),
            ("SAME_LOWER", [1, 1], [3, 7, 10]),
            ("SAME_UPPER", [2, 3], [3, 4, 4]),
            ("SAME_LOWER", [2, 3], [3, 4, 4]),
            ("VALID", [2, 2], [3, 2, 4]),
            ("NOTSET", [2, 2], [3, 2, 4]),
        ] {
            let number = draft.next();
            let (w, b) =
                (draft.numbers(&format!("w{number}"), &[3, 2, 4, 3]), draft.numbers(&format!("b{number}"), &[3]));
            let call = draft.graph.op("Conv", &[&x, &w, &b]).attr("auto_pad", auto);
            let y = call.attr("strides", strides).value();
            draft.give(&y, &dims);
        }
        draft.case().check();
    });
}

/// Returns convolutions of groups of channels, and of each channel separately.
pub(crate) fn groups_of() -> Case {
    let mut draft = Draft::new();
    let (x, odd) = (draft.floats("x", &[6, 5, 7]), draft.floats("odd", &[6, 8, 8]));
    let pads: (&str, &[i64]) = ("pads", &[1, 1, 1, 1]);
    let two = draft.conv(&x, &[4, 3, 3, 3], 2, &[pads]);
    draft.give(&two, &[4, 5, 7]);
    // Depthwise: one filter for each channel, two filters, and a window too large for an expression.
    let alone = draft.conv(&x, &[6, 1, 3, 3], 6, &[pads, ("strides", &[2, 1])]);
    draft.give(&alone, &[6, 3, 7]);
    let doubled = draft.conv(&x, &[12, 1, 2, 3], 6, &[]);
    draft.give(&doubled, &[12, 4, 5]);
    let wide = draft.conv(&odd, &[6, 1, 8, 7], 6, &[("pads", &[4, 3, 3, 3])]);
    draft.give(&wide, &[6, 8, 8]);
    // Convolutions of computed values: of a few cheap operators, and of one whose result is stored first.
    for op in ["HardSwish", "Tanh"] {
        let y = draft.graph.op(op, &[&two]).value();
        let shifted = draft.conv(&y, &[4, 1, 3, 3], 4, &[("pads", &[2, 0, 1, 1]), ("strides", &[2, 1])]);
        draft.give(&shifted, &[4, 3, 6]);
    }
    let largest = draft.conv(&odd, &[6, 1, 7, 7], 6, &[("pads", &[3, 3, 3, 3])]);
    draft.give(&largest, &[6, 8, 8]);
    let uneven = draft.conv(&odd, &[6, 1, 5, 5], 6, &[("pads", &[1, 2, 2, 1]), ("strides", &[2, 2])]);
    draft.give(&uneven, &[6, 4, 4]);
    let spread = draft.conv(&odd, &[6, 1, 3, 3], 6, &[("dilations", &[2, 3])]);
    draft.give(&spread, &[6, 4, 2]);
    draft.case()
}

#[test]
fn groups_of_channels() {
    with_card(|| groups_of().check());
}

#[test]
fn convolutions_along_one_axis_and_without_a_bias() {
    with_card(|| {
        let mut draft = Draft::new();
        let x = draft.floats("x", &[4, 11]);
        let y = draft.conv(&x, &[3, 4, 3], 1, &[("pads", &[2, 1]), ("strides", &[2])]);
        draft.give(&y, &[3, 6]);
        let alone = draft.conv(&x, &[4, 1, 5], 4, &[("pads", &[2, 2])]);
        draft.give(&alone, &[4, 11]);
        let back = draft.spread(&y, &[3, 2, 4], 1, &[("strides", &[2]), ("pads", &[1, 1])]);
        draft.give(&back, &[2, 12]);
        let w = draft.numbers("w", &[2, 4, 1]);
        let plain = draft.graph.op("Conv", &[&x, &w]).value();
        draft.give(&plain, &[2, 11]);
        // An omitted operand has an empty name.
        let skipped = draft.graph.op("Conv", &[&x, &w]).skip().value();
        let computed = draft.graph.op("Tanh", &[&skipped]).value();
        draft.give(&computed, &[2, 11]);
        draft.case().check();
    });
}

#[test]
fn transposed_convolutions() {
    with_card(|| {
        let mut draft = Draft::new();
        let x = draft.floats("x", &[4, 3, 5]);
        for (groups, ints, dims) in [
            (1, &[][..], [2, 5, 7]),
            (1, &[("strides", &[2, 3][..])], [2, 7, 15]),
            (2, &[("strides", &[2, 2]), ("pads", &[1, 1, 1, 1])], [4, 5, 9]),
            (1, &[("strides", &[2, 2]), ("pads", &[1, 1, 0, 0])], [2, 6, 10]),
            (1, &[("strides", &[2, 2]), ("pads", &[0, 0, 1, 1])], [2, 6, 10]),
            (1, &[("strides", &[2, 2]), ("pads", &[0, 2, 2, 1])], [2, 5, 8]),
            (1, &[("strides", &[3, 2]), ("output_padding", &[2, 1]), ("pads", &[1, 1, 1, 1])], [2, 9, 10]),
            (2, &[("dilations", &[2, 1])], [4, 7, 7]),
        ] {
            let y = draft.spread(&x, &[4, 2, 3, 3], groups, ints);
            draft.give(&y, &dims.map(i64::from));
        }
        for (auto, shape, dims) in [
            ("SAME_UPPER", None, [2, 6, 10]),
            ("SAME_LOWER", None, [2, 6, 10]),
            ("VALID", None, [2, 7, 11]),
            ("NOTSET", Some([6, 8]), [2, 6, 8]),
            ("SAME_UPPER", Some([6, 8]), [2, 6, 8]),
        ] {
            let number = draft.next();
            let w = draft.numbers(&format!("w{number}"), &[4, 2, 3, 3]);
            let call = draft.graph.op("ConvTranspose", &[&x, &w]).attr("auto_pad", auto).attr("strides", [2, 2]);
            let call = if let Some(shape) = shape { call.attr("output_shape", shape) } else { call };
            let y = call.value();
            draft.give(&y, &dims);
        }
        draft.case().check();
    });
}

/// Operators after a convolution, computed in its call or not.
#[test]
fn what_follows_convolutions() {
    with_card(|| {
        let mut draft = Draft::new();
        let (x, other) = (draft.floats("x", &[3, 4, 5]), draft.floats("other", &[2, 4, 5]));
        let conv = |draft: &mut Draft| draft.conv(&x, &[2, 3, 1, 1], 1, &[]);
        let dims = [2, 4, 5];
        let op = |draft: &mut Draft, op: &str, operands: &[&Value]| {
            let value = draft.graph.op(op, operands).value();
            draft.give(&value, &dims);
            value
        };
        // Sums with an input, with an earlier convolution, with itself, and of three operands.
        let y = conv(&mut draft);
        let sum = draft.graph.op("Add", &[&other, &y]).value();
        op(&mut draft, "Relu", &[&sum]);
        let (first, second) = (conv(&mut draft), conv(&mut draft));
        let sum = draft.graph.op("Add", &[&second, &first]).value();
        op(&mut draft, "Relu", &[&sum]);
        let y = conv(&mut draft);
        let double = draft.graph.op("Add", &[&y, &y]).value();
        op(&mut draft, "Relu", &[&double]);
        let (first, second) = (conv(&mut draft), conv(&mut draft));
        let sum = draft.graph.op("Sum", &[&first, &second, &other]).value();
        op(&mut draft, "Relu", &[&sum]);
        // The convolution is an output itself, too.
        let y = conv(&mut draft);
        draft.give(&y, &dims);
        let relu = op(&mut draft, "Relu", &[&y]);
        let again = draft.conv(&relu, &[2, 2, 1, 1], 1, &[]);
        op(&mut draft, "HardSwish", &[&again]);
        let row = draft.numbers("row", &[5]);
        let y = conv(&mut draft);
        let sum = draft.graph.op("Add", &[&y, &row]).value();
        op(&mut draft, "Relu", &[&sum]);
        draft.case().check();
    });
}

/// Returns pools with all of their attributes.
pub(crate) fn pools_of() -> Case {
    let mut draft = Draft::new();
    let (x, line) = (draft.floats("x", &[3, 7, 9]), draft.floats("line", &[2, 12]));
    let size: (&str, &[i64]) = ("kernel_shape", &[3, 2]);
    for (ints, floor, up) in [
        (&[size][..], [3, 5, 8], [3, 5, 8]),
        (&[size, ("strides", &[2, 2])], [3, 3, 4], [3, 3, 5]),
        (&[size, ("pads", &[1, 0, 2, 1])], [3, 8, 9], [3, 8, 9]),
        (&[size, ("strides", &[3, 2]), ("pads", &[1, 1, 1, 1])], [3, 3, 5], [3, 3, 5]),
        (&[size, ("strides", &[3, 4]), ("pads", &[1, 0, 0, 1])], [3, 2, 3], [3, 3, 3]),
    ] {
        for (rounds_up, dims) in [(0, floor), (1, up)] {
            let most = with(draft.graph.op("MaxPool", &[&x]).attr("ceil_mode", rounds_up), ints).value();
            draft.give(&most, &dims);
            for counts in [0, 1] {
                if rounds_up * counts == 1 && dims != floor {
                    // See `means_count_what_is_padded_and_nothing_beyond`.
                    continue;
                }
                let call = draft.graph.op("AveragePool", &[&x]).attr("ceil_mode", rounds_up);
                let mean = with(call.attr("count_include_pad", counts), ints).value();
                draft.give(&mean, &dims);
            }
        }
    }
    let dilated = with(draft.graph.op("MaxPool", &[&x]), &[size, ("dilations", &[2, 3]), ("pads", &[1, 0, 1, 1])]);
    let dilated = dilated.value();
    draft.give(&dilated, &[3, 5, 7]);
    for auto in ["SAME_UPPER", "SAME_LOWER"] {
        for op in ["MaxPool", "AveragePool"] {
            let call = draft.graph.op(op, &[&x]).attr("auto_pad", auto).attr("kernel_shape", [3, 2]);
            let y = call.attr("strides", [2, 2]).value();
            draft.give(&y, &[3, 4, 5]);
        }
    }
    for (op, dims) in [("GlobalMaxPool", [3, 1, 1]), ("GlobalAveragePool", [3, 1, 1])] {
        let y = draft.graph.op(op, &[&x]).value();
        draft.give(&y, &dims);
    }
    let along = with(draft.graph.op("MaxPool", &[&line]), &[("kernel_shape", &[4]), ("strides", &[3])]).value();
    draft.give(&along, &[2, 3]);
    let global = draft.graph.op("GlobalAveragePool", &[&line]).value();
    draft.give(&global, &[2, 1]);
    draft.case()
}

#[test]
fn pools() {
    with_card(|| pools_of().check());
}

/// ONNX Runtime 1.23 divides by the whole window in operator sets before 19. Later releases compute the same as plans
/// do.
#[test]
fn means_count_what_is_padded_and_nothing_beyond() {
    with_card(|| {
        let mut draft = Draft::new();
        let x = draft.floats("x", &[1, 5]);
        for (pads, dims) in [([0, 0], [1, 3]), ([0, 1], [1, 3]), ([1, 1], [1, 3])] {
            let call = draft.graph.op("AveragePool", &[&x]).attr("kernel_shape", [2]).attr("strides", [2]);
            let call = call.attr("ceil_mode", 1).attr("count_include_pad", 1);
            let mean = call.attr("pads", pads).value();
            draft.give(&mean, &dims);
        }
        let case = draft.case();
        let mut on = OnCard::new(&case, 1);
        let graph = on.graph(1);
        let x: Vec<u8> = [1.0_f32, 2.0, 3.0, 4.0, 6.0].iter().flat_map(|number| number.to_le_bytes()).collect();
        let answers = on.run(&graph, 1, 1, &[x]);
        let answers: Vec<Vec<f32>> = answers.iter().map(|answer| floats(answer)).collect();
        assert_eq!(answers, [vec![1.5, 3.5, 6.0], vec![1.5, 3.5, 3.0], vec![0.5, 2.5, 5.0]]);
    });
}
