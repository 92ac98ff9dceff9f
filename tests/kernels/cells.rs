//! The pointwise parts of LSTM, GRU and TreeLSTM cells.

use crate::{
    array::{Array, Kind, UNTOUCHED},
    library::{
        Arg::{self, Int, Null},
        Library,
    },
    numbers::{LAUNCHES, LIVE, ROWS, SIZES, assert_close, live, padded, sigmoid, uniform},
};

/// Rows of a slot table.
const TABLE_ROWS: usize = 6;

/// The table's row for each row of the batch. The second row's is beyond the table; those of padding rows may be
/// anything.
const SLOTS: [f64; ROWS] = [5.0, TABLE_ROWS as f64, 2.0, 1e9, -1.0];
const LEFT_SLOTS: [f64; ROWS] = [0.0, 1.0, 3.0, 1e9, -1.0];
const RIGHT_SLOTS: [f64; ROWS] = [1.0, 1.0, 4.0, 1e9, -1.0];

/// A cell's gates and bias for one case, and whether its states lie in slot tables.
struct Case {
    element: Kind,
    hidden: usize,
    gates: Array,
    bias: Option<Array>,
    in_slots: bool,
    launch: ([u32; 2], u32),
}

/// A state that a cell reads or writes: an array, and the rows of it that belong to the live rows of the batch.
struct State {
    array: Array,
    rows: [Option<usize>; LIVE],
}

impl Case {
    /// Checks cases of each element type, width and launch for cells of `parts` gates. Some have no bias, some have
    /// slots.
    fn for_each(parts: usize, check: impl Fn(&Self)) {
        for element in Kind::ELEMENTS {
            for hidden in SIZES {
                for (place, launch) in LAUNCHES.into_iter().enumerate() {
                    let gates = Array::new(element, padded(hidden, parts * hidden, 4.0));
                    let bias = (place != 1).then(|| Array::new(element, uniform(7, parts * hidden, 1.0)));
                    check(&Self { element, hidden, gates, bias, in_slots: place != 0, launch });
                }
            }
        }
    }

    /// Returns the gates of all live rows' units in the order of the batch, with their bias.
    fn units<const PARTS: usize>(&self) -> Vec<[f64; PARTS]> {
        let (gates, bias) = (self.gates.values(), self.bias.as_ref().map(Array::values));
        let unit = |row: usize, unit: usize| {
            std::array::from_fn(|part| {
                let place = part * self.hidden + unit;
                gates[row * PARTS * self.hidden + place] + bias.as_ref().map_or(0.0, |bias| bias[place])
            })
        };
        let unit = &unit;
        (0..LIVE).flat_map(|row| (0..self.hidden).map(move |column| unit(row, column))).collect()
    }

    fn rows(&self, slots: [f64; ROWS]) -> [Option<usize>; LIVE] {
        let in_table = |slot: f64| (slot < TABLE_ROWS as f64).then_some(slot as usize);
        std::array::from_fn(|row| if self.in_slots { in_table(slots[row]) } else { Some(row) })
    }

    fn state_rows(&self) -> usize {
        if self.in_slots { TABLE_ROWS } else { ROWS }
    }

    /// Returns a state in which only the rows of live batch rows are numbers.
    fn state(&self, kind: Kind, seed: usize, slots: [f64; ROWS]) -> State {
        let rows = self.rows(slots);
        let values = uniform(seed, self.state_rows() * self.hidden, 2.0).into_iter().enumerate();
        let known = |place: usize| rows.contains(&Some(place / self.hidden));
        let values = values.map(|(place, value)| if known(place) { value } else { f64::NAN });
        State { array: Array::new(kind, values), rows }
    }

    /// Returns a state to be written.
    fn kept(&self, kind: Kind) -> State {
        State { array: Array::untouched(kind, self.state_rows() * self.hidden), rows: self.rows(SLOTS) }
    }

    /// Returns an output in the order of the batch.
    fn output(&self) -> State {
        let rows = self.rows(SLOTS);
        let rows = std::array::from_fn(|row| rows[row].map(|_| row));
        State { array: Array::untouched(self.element, ROWS * self.hidden), rows }
    }

    /// Launches a cell's kernel on these gates and states.
    fn launch(&self, kernel: &str, states: &[&State]) {
        let live = live(LIVE);
        let slots = [LEFT_SLOTS, RIGHT_SLOTS, SLOTS].map(|slots| Array::new(Kind::I32, slots));
        let of_children = if kernel == "tree_lstm_node" { 0 } else { 2 };
        let mut arguments = vec![Arg::Array(&live), Int(ROWS as i32), Int(self.hidden as i32)];
        arguments.extend(slots[of_children..].iter().map(|slots| if self.in_slots { Arg::Array(slots) } else { Null }));
        arguments.push(Int(TABLE_ROWS as i32));
        arguments.push(Arg::Array(&self.gates));
        arguments.push(self.bias.as_ref().map_or(Null, Arg::Array));
        arguments.extend(states.iter().map(|state| Arg::Array(&state.array)));
        if kernel != "gru_reset" && !self.in_slots {
            // Without slots, h is written only in the order of the batch.
            arguments.pop();
            arguments.push(Null);
        }
        let (grid, threads) = self.launch;
        Library::of(self.element).launch(kernel, grid, threads, &arguments).expect("the launch keeps the rules");
    }

    /// Returns a state's values in the order of the batch, for the reference; NaN for a row without a slot.
    fn values(&self, state: &State) -> Vec<f64> {
        let values = state.array.values();
        let row = |row: &Option<usize>| match row {
            Some(row) => values[row * self.hidden..][..self.hidden].to_vec(),
            None => vec![f64::NAN; self.hidden],
        };
        state.rows.iter().flat_map(row).collect()
    }

    /// Checks that the rows of live batch rows match the reference, and that all others are unchanged.
    fn assert(&self, kind: Kind, state: &State, expected: &[f64], what: &str) {
        let mut whole = vec![UNTOUCHED; state.array.values().len()];
        for (row, expected) in state.rows.iter().zip(expected.chunks(self.hidden)) {
            if let Some(row) = row {
                whole[row * self.hidden..][..self.hidden].copy_from_slice(expected);
            }
        }
        assert_close(kind, &state.array.values(), &whole, what);
    }

    /// Checks both copies of h against the reference.
    fn assert_h(&self, h: &State, kept: &State, expected: &[f64], what: &str) {
        self.assert(self.element, h, expected, what);
        if self.in_slots {
            self.assert(self.element, kept, expected, &format!("{what}, kept"));
        }
    }
}

#[test]
fn lstm_follows_onnx_with_gates_i_o_f_c() {
    Case::for_each(4, |case| {
        let before = case.state(Kind::F32, 3, SLOTS);
        let (c, h, kept) = (case.kept(Kind::F32), case.output(), case.kept(case.element));
        case.launch("lstm", &[&before, &c, &h, &kept]);
        let (expected_c, expected_h): (Vec<f64>, Vec<f64>) = case
            .units()
            .into_iter()
            .zip(case.values(&before))
            .map(|([i, o, f, u], before)| {
                let c = sigmoid(f) * before + sigmoid(i) * u.tanh();
                (c, sigmoid(o) * c.tanh())
            })
            .unzip();
        case.assert(Kind::F32, &c, &expected_c, "c of lstm");
        case.assert_h(&h, &kept, &expected_h, "h of lstm");
    });
}

#[test]
fn lstm_may_write_its_memory_over_the_one_before() {
    Case::for_each(4, |case| {
        let before = case.state(Kind::F32, 3, SLOTS);
        let (c, h, kept) = (case.kept(Kind::F32), case.output(), case.kept(case.element));
        case.launch("lstm", &[&before, &c, &h, &kept]);
        case.launch("lstm", &[&before, &before, &h, &kept]);
        assert_close(Kind::F32, &case.values(&before), &case.values(&c), "c of lstm in place");
    });
}

#[test]
fn a_tree_leaf_has_gates_i_o_u() {
    Case::for_each(3, |case| {
        let (c, h, kept) = (case.kept(Kind::F32), case.output(), case.kept(case.element));
        case.launch("tree_lstm_leaf", &[&c, &h, &kept]);
        let (expected_c, expected_h): (Vec<f64>, Vec<f64>) = case
            .units()
            .into_iter()
            .map(|[i, o, u]| {
                let c = sigmoid(i) * u.tanh();
                (c, sigmoid(o) * c.tanh())
            })
            .unzip();
        case.assert(Kind::F32, &c, &expected_c, "c of a leaf");
        case.assert_h(&h, &kept, &expected_h, "h of a leaf");
    });
}

#[test]
fn a_tree_node_forgets_each_child_by_its_own_gate() {
    Case::for_each(5, |case| {
        let (left, right) = (case.state(Kind::F32, 3, LEFT_SLOTS), case.state(Kind::F32, 4, RIGHT_SLOTS));
        let (c, h, kept) = (case.kept(Kind::F32), case.output(), case.kept(case.element));
        case.launch("tree_lstm_node", &[&left, &right, &c, &h, &kept]);
        let children = case.values(&left).into_iter().zip(case.values(&right));
        let (expected_c, expected_h): (Vec<f64>, Vec<f64>) = case
            .units()
            .into_iter()
            .zip(children)
            .map(|([i, f_left, f_right, o, u], (left, right))| {
                let c = sigmoid(i) * u.tanh() + sigmoid(f_left) * left + sigmoid(f_right) * right;
                (c, sigmoid(o) * c.tanh())
            })
            .unzip();
        case.assert(Kind::F32, &c, &expected_c, "c of a node");
        case.assert_h(&h, &kept, &expected_h, "h of a node");
    });
}

#[test]
fn gru_resets_the_state_before_its_product() {
    Case::for_each(3, |case| {
        let (before, reset) = (case.state(case.element, 3, SLOTS), case.output());
        case.launch("gru_reset", &[&before, &reset]);
        let units = case.units().into_iter().zip(case.values(&before));
        let expected: Vec<f64> = units.map(|([_, r, _], before): ([f64; 3], f64)| sigmoid(r) * before).collect();
        case.assert(case.element, &reset, &expected, "the reset state of gru");
    });
}

#[test]
fn gru_mixes_the_new_state_with_the_one_before_by_z() {
    Case::for_each(3, |case| {
        let (before, h, kept) = (case.state(case.element, 3, SLOTS), case.output(), case.kept(case.element));
        case.launch("gru_update", &[&before, &h, &kept]);
        let units = case.units().into_iter().zip(case.values(&before));
        let mixed = |([z, _, n], before): ([f64; 3], f64)| (1.0 - sigmoid(z)) * n.tanh() + sigmoid(z) * before;
        case.assert_h(&h, &kept, &units.map(mixed).collect::<Vec<f64>>(), "h of gru");
    });
}

#[test]
fn gru_may_reset_behind_the_product_instead() {
    Case::for_each(4, |case| {
        let (before, h, kept) = (case.state(case.element, 3, SLOTS), case.output(), case.kept(case.element));
        case.launch("gru_linear_before_reset", &[&before, &h, &kept]);
        let units = case.units().into_iter().zip(case.values(&before));
        let mixed = |([z, r, of_input, of_state], before): ([f64; 4], f64)| {
            let n = (of_input + sigmoid(r) * of_state).tanh();
            (1.0 - sigmoid(z)) * n + sigmoid(z) * before
        };
        case.assert_h(&h, &kept, &units.map(mixed).collect::<Vec<f64>>(), "h of gru");
    });
}
