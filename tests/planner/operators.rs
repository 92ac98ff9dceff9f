//! Operators, one by one and in small groups, compute the same as ONNX Runtime.

use paternoster_model::{DataType, TensorSpec};
use paternoster_onnx::{
    PortDim,
    build::{Graph, Value},
};
use paternoster_testing::fake_cuda::with_card;

use crate::rig::Case;

/// A graph under construction, and its ports.
pub(crate) struct Draft {
    pub graph: Graph,
    inputs: Vec<TensorSpec>,
    outputs: Vec<TensorSpec>,
    most: Vec<i64>,
    named: usize,
}

impl Draft {
    pub(crate) fn new() -> Self {
        Self { graph: Graph::new("draft"), inputs: Vec::new(), outputs: Vec::new(), most: Vec::new(), named: 0 }
    }

    fn dims(dims: &[i64]) -> Vec<PortDim> {
        [PortDim::from("batch")].into_iter().chain(dims.iter().map(|&length| length.into())).collect()
    }

    /// Adds an input of numbers, or of whole numbers below `most`.
    pub(crate) fn input(&mut self, name: &str, datatype: DataType, dims: &[i64], most: i64) -> Value {
        self.inputs.push(TensorSpec::new(name, datatype, dims));
        self.most.push(most);
        self.graph.input(name, datatype, &Self::dims(dims))
    }

    pub(crate) fn floats(&mut self, name: &str, dims: &[i64]) -> Value {
        self.input(name, DataType::Fp32, dims, 1)
    }

    pub(crate) fn output(&mut self, value: &Value, datatype: DataType, dims: &[i64]) {
        let named = self.graph.op("Identity", &[value]).named(&format!("output{}", self.outputs.len())).value();
        self.outputs.push(TensorSpec::new(named.name(), datatype, dims));
        self.graph.output(&named, datatype, &Self::dims(dims));
    }

    pub(crate) fn give(&mut self, value: &Value, dims: &[i64]) {
        self.output(value, DataType::Fp32, dims);
    }

    /// Adds a constant of different numbers.
    pub(crate) fn numbers(&mut self, name: &str, dims: &[usize]) -> Value {
        let count: usize = dims.iter().product();
        let numbers: Vec<f32> = (0..count).map(|place| (place * 37 % 101) as f32 / 50.5 - 1.0).collect();
        self.graph.constant(name, dims, &numbers)
    }

    /// Returns a number for unique names.
    pub(crate) fn next(&mut self) -> usize {
        self.named += 1;
        self.named
    }

    pub(crate) fn case(self) -> Case {
        let model = self.graph.finish().expect("the graph is sound");
        Case { model, inputs: self.inputs, outputs: self.outputs, most: self.most, has_batch_axis: true }
    }
}

#[test]
fn broadcasting() {
    with_card(|| {
        let mut draft = Draft::new();
        let (x, column, row) =
            (draft.floats("x", &[3, 4]), draft.floats("column", &[3, 1]), draft.floats("row", &[1, 4]));
        let (vector, matrix) = (draft.numbers("vector", &[4]), draft.numbers("matrix", &[3, 1]));
        let sum = draft.graph.op("Add", &[&x, &column]).value();
        let product = draft.graph.op("Mul", &[&sum, &row]).value();
        let shifted = draft.graph.op("Sub", &[&vector, &product]).value();
        let divided = draft.graph.op("Div", &[&shifted, &matrix]).value();
        let outer = draft.graph.op("Add", &[&column, &row]).value();
        let most = draft.graph.op("Max", &[&x, &outer, &vector]).value();
        draft.give(&divided, &[3, 4]);
        draft.give(&outer, &[3, 4]);
        draft.give(&most, &[3, 4]);
        draft.case().check();
    });
}

/// Returns every function of numbers that needs no thread-local memory on a card.
pub(crate) fn numbers() -> Case {
    let mut draft = Draft::new();
    let x = draft.floats("x", &[33]);
    let (low, high) = (draft.graph.scalar(-0.25_f32), draft.graph.scalar(0.5_f32));
    let (two, three) = (draft.graph.scalar(2.0_f32), draft.graph.scalar(3_i64));
    let mut values = Vec::new();
    for op in ["Sigmoid", "Tanh", "Relu", "Erf", "Exp", "Neg", "Abs", "Sign", "Floor", "Ceil", "Round"] {
        values.push(draft.graph.op(op, &[&x]).value());
    }
    let positive = draft.graph.op("Exp", &[&x]).value();
    for op in ["Sqrt", "Log", "Reciprocal"] {
        values.push(draft.graph.op(op, &[&positive]).value());
    }
    values.push(draft.graph.op("Clip", &[&x, &low, &high]).value());
    values.push(draft.graph.op("Clip", &[&x]).skip().with(&high).value());
    values.push(draft.graph.op("LeakyRelu", &[&x]).attr("alpha", 0.2_f32).value());
    values.push(draft.graph.op("HardSigmoid", &[&x]).value());
    values.push(draft.graph.op("Pow", &[&x, &two]).value());
    values.push(draft.graph.op("Pow", &[&x, &three]).value());
    values.push(draft.graph.op("Mod", &[&x, &high]).attr("fmod", 1).value());
    for value in values {
        draft.give(&value, &[33]);
    }
    draft.case()
}

#[test]
fn functions_of_numbers() {
    with_card(|| numbers().check());
}

/// Returns functions of whole numbers and Booleans.
pub(crate) fn whole_numbers() -> Case {
    let mut draft = Draft::new();
    let (x, y) = (draft.input("x", DataType::Int64, &[5], 9), draft.input("y", DataType::Int32, &[5], 7));
    let (z, flag) = (draft.floats("z", &[5]), draft.input("flag", DataType::Bool, &[5], 2));
    let (four, small) = (draft.graph.scalar(4_i64), draft.graph.scalar(4_i32));
    for op in ["Add", "Sub", "Mul", "Div", "Mod", "Min", "Max"] {
        let value = draft.graph.op(op, &[&x, &four]).value();
        draft.output(&value, DataType::Int64, &[5]);
        let value = draft.graph.op(op, &[&y, &small]).value();
        draft.output(&value, DataType::Int32, &[5]);
    }
    let mut truths = Vec::new();
    for op in ["Less", "LessOrEqual", "Equal", "Greater", "GreaterOrEqual"] {
        truths.push(draft.graph.op(op, &[&x, &four]).value());
    }
    let zero = draft.graph.scalar(0.0_f32);
    truths.push(draft.graph.op("Greater", &[&z, &zero]).value());
    for op in ["And", "Or", "Xor"] {
        truths.push(draft.graph.op(op, &[&truths[0], &flag]).value());
    }
    truths.push(draft.graph.op("Not", &[&flag]).value());
    let chosen = draft.graph.op("Where", &[&flag, &z, &zero]).value();
    draft.give(&chosen, &[5]);
    let wide = draft.graph.op("Where", &[&truths[0], &x, &four]).value();
    draft.output(&wide, DataType::Int64, &[5]);
    for truth in truths {
        draft.output(&truth, DataType::Bool, &[5]);
    }
    for (from, to, datatype) in [
        (&x, 1, DataType::Fp32),
        (&flag, 1, DataType::Fp32),
        (&z, 7, DataType::Int64),
        (&x, 6, DataType::Int32),
        (&x, 9, DataType::Bool),
    ] {
        let cast = draft.graph.op("Cast", &[from]).attr("to", to).value();
        draft.output(&cast, datatype, &[5]);
    }
    draft.case()
}

#[test]
fn whole_numbers_and_truth_values() {
    with_card(|| whole_numbers().check());
}

#[test]
fn views_of_what_is_computed_and_of_what_is_stored() {
    with_card(|| {
        let mut draft = Draft::new();
        let x = draft.floats("x", &[4, 6]);
        let computed = draft.graph.op("Tanh", &[&x]).value();
        let product = {
            let weight = draft.numbers("weight", &[6, 6]);
            draft.graph.op("MatMul", &[&x, &weight]).value()
        };
        for from in [&x, &computed, &product] {
            let turned = draft.graph.op("Transpose", &[from]).attr("perm", [0, 2, 1]).value();
            draft.give(&turned, &[6, 4]);
            let (starts, ends) = (draft.graph.literal(&[-1_i64, 1]), draft.graph.literal(&[i64::MIN, 6_i64]));
            let (axes, steps) = (draft.graph.literal(&[1_i64, -1]), draft.graph.literal(&[-1_i64, 2]));
            let slice = draft.graph.op("Slice", &[from, &starts, &ends, &axes, &steps]).value();
            draft.give(&slice, &[4, 3]);
            let lengths = draft.graph.literal(&[1_i64, 3, 2]);
            let [first, second, third] = draft.graph.op("Split", &[from, &lengths]).attr("axis", -1).values();
            let sum = draft.graph.op("Add", &[&second, &first]).value();
            draft.give(&sum, &[4, 3]);
            let again = draft.graph.op("Concat", &[&third, &sum, &first]).attr("axis", -1).value();
            draft.give(&again, &[4, 6]);
            let stacked = draft.graph.op("Concat", &[&turned, &turned]).attr("axis", 1).value();
            draft.give(&stacked, &[12, 4]);
            let flat = draft.graph.op("Flatten", &[&turned]).value();
            draft.give(&flat, &[24]);
            let shape = draft.graph.literal(&[0_i64, 3, -1, 2]);
            let cut = draft.graph.op("Reshape", &[from, &shape]).value();
            draft.give(&cut, &[3, 4, 2]);
            let one = draft.graph.literal(&[2_i64, -1]);
            let wide = draft.graph.op("Unsqueeze", &[from, &one]).value();
            draft.give(&wide, &[4, 1, 6, 1]);
            let narrow = draft.graph.op("Squeeze", &[&wide, &one]).value();
            let most = draft.graph.op("Max", &[&narrow, from]).value();
            draft.give(&most, &[4, 6]);
        }
        draft.case().check();
    });
}

#[test]
fn shapes_that_graphs_compute_from_shapes() {
    with_card(|| {
        let mut draft = Draft::new();
        let x = draft.floats("x", &[4, 6]);
        let shape = draft.graph.op("Shape", &[&x]).value();
        let (zero, one, two) =
            (draft.graph.literal(&[0_i64]), draft.graph.literal(&[1_i64]), draft.graph.literal(&[2_i64]));
        let rows = draft.graph.op("Gather", &[&shape, &zero]).value();
        let end = draft.graph.literal(&[i64::MAX]);
        let width = draft.graph.op("Slice", &[&shape, &two, &end, &zero]).value();
        let half = draft.graph.op("Div", &[&width, &two]).value();
        let entries = draft.graph.literal(&[-1_i64]);
        let wanted = draft.graph.op("Concat", &[&rows, &two, &entries, &half]).attr("axis", 0).value();
        let cut = draft.graph.op("Reshape", &[&x, &wanted]).value();
        draft.give(&cut, &[2, 4, 3]);
        // Reshapes all rows of all batches to one matrix, and back.
        let merged = draft.graph.literal(&[-1_i64, 6]);
        let merged = draft.graph.op("Reshape", &[&x, &merged]).value();
        let weight = draft.numbers("weight", &[6, 5]);
        let bias = draft.numbers("bias", &[5]);
        let product = draft.graph.op("Gemm", &[&merged, &weight, &bias]).value();
        let five = draft.graph.literal(&[5_i64]);
        let back = draft.graph.op("Concat", &[&rows, &entries, &five]).attr("axis", 0).value();
        let back = draft.graph.op("Reshape", &[&product, &back]).value();
        draft.give(&back, &[4, 5]);
        let filled = draft.graph.op("Concat", &[&rows, &one, &width]).attr("axis", 0).value();
        let zeros = draft.graph.op("ConstantOfShape", &[&filled]).value();
        let sum = draft.graph.op("Add", &[&zeros, &x]).value();
        draft.give(&sum, &[4, 6]);
        let narrow = draft.floats("narrow", &[1, 6]);
        let spread = draft.graph.op("Expand", &[&narrow, &shape]).value();
        draft.give(&spread, &[4, 6]);
        draft.case().check();
    });
}

#[test]
fn products() {
    with_card(|| {
        let mut draft = Draft::new();
        let (x, y) = (draft.floats("x", &[3, 4]), draft.floats("y", &[4, 5]));
        let (heads, others) = (draft.floats("heads", &[2, 3, 4]), draft.floats("others", &[2, 4, 3]));
        let (weight, turned) = (draft.numbers("weight", &[4, 5]), draft.numbers("turned", &[5, 12]));
        let (several, vector) = (draft.numbers("several", &[2, 4, 5]), draft.numbers("vector", &[4]));
        let flat = draft.graph.op("Flatten", &[&x]).value();
        let bias = draft.numbers("bias", &[5]);
        let matrix = draft.floats("matrix", &[5]);
        let swapped = draft.graph.op("Transpose", &[&x]).attr("perm", [0, 2, 1]).value();
        let mut op = |op: &str, operands: &[&Value], dims: &[i64]| {
            let value = draft.graph.op(op, operands).value();
            draft.give(&value, dims);
        };
        op("MatMul", &[&x, &weight], &[3, 5]);
        op("MatMul", &[&x, &y], &[3, 5]);
        op("MatMul", &[&heads, &others], &[2, 3, 3]);
        op("MatMul", &[&heads, &several], &[2, 3, 5]);
        op("MatMul", &[&heads, &weight], &[2, 3, 5]);
        op("MatMul", &[&x, &vector], &[3]);
        op("MatMul", &[&vector, &y], &[5]);
        op("MatMul", &[&swapped, &x], &[4, 4]);
        for (alpha, beta, more) in [(1.0, 1.0, &bias), (0.5, 2.0, &bias), (2.0, 1.0, &matrix), (1.0, 0.5, &matrix)] {
            let call = draft.graph.op("Gemm", &[&flat, &turned, more]).attr("transB", 1);
            let value = call.attr("alpha", alpha).attr("beta", beta).value();
            draft.give(&value, &[5]);
        }
        let plain = draft.graph.op("Gemm", &[&flat, &turned]).attr("transB", 1).attr("alpha", -1.0_f32).value();
        draft.give(&plain, &[5]);
        draft.case().check();
    });
}

#[test]
fn attention_by_heads() {
    with_card(|| {
        let mut draft = Draft::new();
        let (x, mask) = (draft.floats("x", &[5, 8]), draft.input("mask", DataType::Int64, &[5], 2));
        let split = draft.graph.literal(&[0_i64, 0, 2, 4]);
        let parts = ["q", "k", "v"].map(|name| {
            let weight = draft.numbers(&format!("{name}.weight"), &[8, 8]);
            let product = draft.graph.op("MatMul", &[&x, &weight]).value();
            let order = if name == "k" { [0, 2, 3, 1] } else { [0, 2, 1, 3] };
            let heads = draft.graph.op("Reshape", &[&product, &split]).value();
            draft.graph.op("Transpose", &[&heads]).attr("perm", order).value()
        });
        let [q, k, v] = &parts;
        let scores = draft.graph.op("MatMul", &[q, k]).value();
        let (axes, low) = (draft.graph.literal(&[1_i64, 2]), draft.graph.scalar(-10_000.0_f32));
        let mask = draft.graph.op("Unsqueeze", &[&mask, &axes]).value();
        let mask = draft.graph.op("Cast", &[&mask]).attr("to", 9).value();
        let scores = draft.graph.op("Where", &[&mask, &scores, &low]).value();
        let shares = draft.graph.op("Softmax", &[&scores]).attr("axis", -1).value();
        let mixed = draft.graph.op("MatMul", &[&shares, v]).value();
        draft.give(&mixed, &[2, 5, 4]);
        let turned = draft.graph.op("Transpose", &[&mixed]).attr("perm", [0, 2, 1, 3]).value();
        let flat = draft.graph.literal(&[0_i64, 0, 8]);
        let flat = draft.graph.op("Reshape", &[&turned, &flat]).value();
        let weight = draft.numbers("out.weight", &[8, 3]);
        let out = draft.graph.op("MatMul", &[&flat, &weight]).value();
        draft.give(&out, &[5, 3]);
        draft.case().check();
    });
}

/// Returns reductions over all kinds of axes.
pub(crate) fn reductions_of() -> Case {
    let mut draft = Draft::new();
    let x = draft.floats("x", &[3, 40]);
    let whole = draft.input("whole", DataType::Int64, &[3, 4], 50);
    let axes: [(&[i64], i64, &[i64]); 4] =
        [(&[2], 1, &[3, 1]), (&[-1], 0, &[3]), (&[1], 0, &[40]), (&[1, 2], 1, &[1, 1])];
    for op in ["ReduceMean", "ReduceMax", "ReduceMin", "ReduceL2", "ReduceSumSquare", "ReduceL1"] {
        for (axes, keeps, dims) in axes {
            let call = draft.graph.op(op, &[&x]).attr("keepdims", keeps);
            let value = match *axes {
                [axis] => call.attr("axes", [axis]).value(),
                [one, other] => call.attr("axes", [one, other]).value(),
                _ => panic!("one axis or two"),
            };
            draft.give(&value, dims);
        }
    }
    for (axes, keeps, dims) in axes {
        let axes = draft.graph.literal(axes);
        let value = draft.graph.op("ReduceSum", &[&x, &axes]).attr("keepdims", keeps).value();
        draft.give(&value, dims);
    }
    let one = draft.graph.literal(&[2_i64]);
    let sum = draft.graph.op("ReduceSum", &[&whole, &one]).attr("keepdims", 0).value();
    draft.output(&sum, DataType::Int64, &[3]);
    let most = draft.graph.op("ReduceMax", &[&whole]).attr("axes", [1]).attr("keepdims", 0).value();
    draft.output(&most, DataType::Int64, &[4]);
    for axis in [1, 2, -1] {
        let shares = draft.graph.op("Softmax", &[&x]).attr("axis", axis).value();
        draft.give(&shares, &[3, 40]);
        let place = draft.graph.op("ArgMax", &[&x]).attr("axis", axis).value();
        draft.output(&place, DataType::Int64, if axis == 1 { &[1, 40] } else { &[3, 1] });
    }
    let (scale, shift) = (draft.numbers("scale", &[40]), draft.numbers("shift", &[40]));
    let normal = draft.graph.op("LayerNormalization", &[&x, &scale, &shift]).attr("epsilon", 1e-5_f32).value();
    draft.give(&normal, &[3, 40]);
    let plain = draft.graph.op("LayerNormalization", &[&x, &scale]).attr("axis", -1).value();
    draft.give(&plain, &[3, 40]);
    draft.case()
}

#[test]
fn reductions() {
    with_card(|| reductions_of().check());
}

/// Returns lookups of entries by index.
pub(crate) fn lookups_of() -> Case {
    let mut draft = Draft::new();
    let (ids, small) = (draft.input("ids", DataType::Int64, &[3], 9), draft.input("id", DataType::Int32, &[], 9));
    let table = draft.numbers("table", &[9, 5]);
    let x = draft.floats("x", &[4, 6]);
    let rows = draft.graph.op("Gather", &[&table, &ids]).value();
    draft.give(&rows, &[3, 5]);
    let row = draft.graph.op("Gather", &[&table, &small]).value();
    draft.give(&row, &[5]);
    let from_end = draft.graph.scalar(-9_i64);
    let from_end = draft.graph.op("Add", &[&ids, &from_end]).value();
    let rows = draft.graph.op("Gather", &[&table, &from_end]).value();
    draft.give(&rows, &[3, 5]);
    let picks = draft.graph.literal(&[2_i64, -1, 0]);
    let picked = draft.graph.op("Gather", &[&x, &picks]).attr("axis", -1).value();
    draft.give(&picked, &[4, 3]);
    let one = draft.graph.scalar(-2_i64);
    let column = draft.graph.op("Gather", &[&x, &one]).attr("axis", 1).value();
    draft.give(&column, &[6]);
    let computed = draft.graph.op("Tanh", &[&x]).value();
    let picked = draft.graph.op("Gather", &[&computed, &picks]).attr("axis", 1).value();
    draft.give(&picked, &[3, 6]);
    draft.case()
}

#[test]
fn lookups() {
    with_card(|| lookups_of().check());
}

#[test]
fn an_output_that_is_an_input_or_another_output() {
    with_card(|| {
        let mut draft = Draft::new();
        let x = draft.floats("x", &[4]);
        draft.give(&x, &[4]);
        let double = draft.graph.op("Add", &[&x, &x]).value();
        draft.give(&double, &[4]);
        draft.give(&double, &[4]);
        // If shared values were computed twice, each step would double the work.
        let mut deep = double;
        for _ in 0..40 {
            let half = draft.graph.scalar(0.5_f32);
            let next = draft.graph.op("Add", &[&deep, &deep]).value();
            deep = draft.graph.op("Mul", &[&next, &half]).value();
        }
        draft.give(&deep, &[4]);
        draft.case().check();
    });
}

#[test]
fn angles() {
    with_card(|| {
        let mut draft = Draft::new();
        let x = draft.floats("x", &[5]);
        for op in ["Sin", "Cos"] {
            let value = draft.graph.op(op, &[&x]).value();
            draft.give(&value, &[5]);
        }
        draft.case().check();
    });
}
