//! The pointwise parts of LSTM, GRU and TreeLSTM cells.

use crate::{
    array::{Array, Kind},
    library::{
        Arg::{self, Int, Null},
        Library,
    },
    numbers::{LAUNCHES, LIVE, ROWS, SIZES, assert_rows, live, padded, sigmoid, uniform},
};

/// A cell's arrays for one case: gates, their bias, and states of a kind each.
struct Case {
    element: Kind,
    hidden: usize,
    gates: Array,
    bias: Option<Array>,
    grid: [u32; 2],
    threads: u32,
}

impl Case {
    /// Cases of each element type, width and launch, with and without bias, for cells of `parts` gates.
    fn for_each(parts: usize, check: impl Fn(&Self)) {
        for element in Kind::ELEMENTS {
            for hidden in SIZES {
                for (place, (grid, threads)) in LAUNCHES.into_iter().enumerate() {
                    let gates = Array::new(element, padded(hidden, parts * hidden, 4.0));
                    let bias = (place != 1).then(|| Array::new(element, uniform(7, parts * hidden, 1.0)));
                    check(&Self { element, hidden, gates, bias, grid, threads });
                }
            }
        }
    }

    /// The gates of all live rows' units in the order of the states, with their bias.
    fn units<const PARTS: usize>(&self) -> Vec<[f64; PARTS]> {
        let (gates, bias) = (self.gates.values(), self.bias.as_ref().map(Array::values));
        let unit = |row: usize, unit: usize| {
            std::array::from_fn(|part| {
                let place = part * self.hidden + unit;
                gates[row * PARTS * self.hidden + place] + bias.as_ref().map_or(0.0, |bias| bias[place])
            })
        };
        (0..LIVE).flat_map(|row| (0..self.hidden).map(move |column| unit(row, column))).collect()
    }

    fn state(&self, kind: Kind, seed: usize) -> Array {
        Array::new(kind, padded(seed, self.hidden, 2.0))
    }

    fn output(&self, kind: Kind) -> Array {
        Array::untouched(kind, ROWS * self.hidden)
    }

    /// Launches a cell's kernel on these gates and the further arrays.
    fn launch(&self, kernel: &str, arrays: &[&Array]) {
        let live = live(LIVE);
        let mut arguments = vec![Arg::Array(&live), Int(ROWS as i32), Int(self.hidden as i32), Arg::Array(&self.gates)];
        arguments.push(self.bias.as_ref().map_or(Null, Arg::Array));
        arguments.extend(arrays.iter().map(|array| Arg::Array(array)));
        Library::of(self.element)
            .launch(kernel, self.grid, self.threads, &arguments)
            .expect("the launch keeps the rules");
    }
}

#[test]
fn lstm_follows_onnx_with_gates_i_o_f_c() {
    Case::for_each(4, |case| {
        let (before, c, h) = (case.state(Kind::F32, 3), case.output(Kind::F32), case.output(case.element));
        case.launch("lstm", &[&before, &c, &h]);
        let (expected_c, expected_h): (Vec<f64>, Vec<f64>) = case
            .units()
            .into_iter()
            .zip(before.values())
            .map(|([i, o, f, u], before)| {
                let c = sigmoid(f) * before + sigmoid(i) * u.tanh();
                (c, sigmoid(o) * c.tanh())
            })
            .unzip();
        assert_rows(Kind::F32, &c, &expected_c, "c of lstm");
        assert_rows(case.element, &h, &expected_h, "h of lstm");
    });
}

#[test]
fn lstm_may_write_its_memory_over_the_one_before() {
    Case::for_each(4, |case| {
        let (before, c, h) = (case.state(Kind::F32, 3), case.output(Kind::F32), case.output(case.element));
        case.launch("lstm", &[&before, &c, &h]);
        let live = LIVE * case.hidden;
        case.launch("lstm", &[&before, &before, &h]);
        assert_eq!(before.values()[..live], c.values()[..live]);
    });
}

#[test]
fn a_tree_leaf_has_gates_i_o_u() {
    Case::for_each(3, |case| {
        let (c, h) = (case.output(Kind::F32), case.output(case.element));
        case.launch("tree_lstm_leaf", &[&c, &h]);
        let (expected_c, expected_h): (Vec<f64>, Vec<f64>) = case
            .units()
            .into_iter()
            .map(|[i, o, u]| {
                let c = sigmoid(i) * u.tanh();
                (c, sigmoid(o) * c.tanh())
            })
            .unzip();
        assert_rows(Kind::F32, &c, &expected_c, "c of a leaf");
        assert_rows(case.element, &h, &expected_h, "h of a leaf");
    });
}

#[test]
fn a_tree_node_forgets_each_child_by_its_own_gate() {
    Case::for_each(5, |case| {
        let (left, right) = (case.state(Kind::F32, 3), case.state(Kind::F32, 4));
        let (c, h) = (case.output(Kind::F32), case.output(case.element));
        case.launch("tree_lstm_node", &[&left, &right, &c, &h]);
        let children = left.values().into_iter().zip(right.values());
        let (expected_c, expected_h): (Vec<f64>, Vec<f64>) = case
            .units()
            .into_iter()
            .zip(children)
            .map(|([i, f_left, f_right, o, u], (left, right))| {
                let c = sigmoid(i) * u.tanh() + sigmoid(f_left) * left + sigmoid(f_right) * right;
                (c, sigmoid(o) * c.tanh())
            })
            .unzip();
        assert_rows(Kind::F32, &c, &expected_c, "c of a node");
        assert_rows(case.element, &h, &expected_h, "h of a node");
    });
}

#[test]
fn gru_resets_the_state_before_its_product() {
    Case::for_each(3, |case| {
        let (before, reset) = (case.state(case.element, 3), case.output(case.element));
        case.launch("gru_reset", &[&before, &reset]);
        let units = case.units().into_iter().zip(before.values());
        let expected: Vec<f64> = units.map(|([_, r, _], before): ([f64; 3], f64)| sigmoid(r) * before).collect();
        assert_rows(case.element, &reset, &expected, "the reset state of gru");
    });
}

#[test]
fn gru_mixes_the_new_state_with_the_one_before_by_z() {
    Case::for_each(3, |case| {
        let (before, h) = (case.state(case.element, 3), case.output(case.element));
        case.launch("gru_update", &[&before, &h]);
        let units = case.units().into_iter().zip(before.values());
        let mixed = |([z, _, n], before): ([f64; 3], f64)| (1.0 - sigmoid(z)) * n.tanh() + sigmoid(z) * before;
        assert_rows(case.element, &h, &units.map(mixed).collect::<Vec<f64>>(), "h of gru");
    });
}

#[test]
fn gru_may_reset_behind_the_product_instead() {
    Case::for_each(4, |case| {
        let (before, h) = (case.state(case.element, 3), case.output(case.element));
        case.launch("gru_linear_before_reset", &[&before, &h]);
        let units = case.units().into_iter().zip(before.values());
        let mixed = |([z, r, of_input, of_state], before): ([f64; 4], f64)| {
            let n = (of_input + sigmoid(r) * of_state).tanh();
            (1.0 - sigmoid(z)) * n + sigmoid(z) * before
        };
        assert_rows(case.element, &h, &units.map(mixed).collect::<Vec<f64>>(), "h of gru");
    });
}
