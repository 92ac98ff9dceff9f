//! Models of one or two operators, for tests and examples.

use paternoster_model::DataType;

use crate::{
    Error, Model, PortDim,
    build::{BuildError, Graph},
    port::dims,
    weights::{Seeded, WeightSource},
};

/// `OUTPUT0` = `INPUT0`, FP32 `[batch, 16]`.
///
/// # Errors
/// Only if the graph built here is invalid, which would be a bug.
pub fn identity() -> Result<Model, BuildError> {
    identity_of(DataType::Fp32, &dims!["batch", 16])
}

/// `OUTPUT0` = `INPUT0` for any datatype and shape; `shape` includes the batch.
///
/// # Errors
/// Only if the graph built here is invalid, which would be a bug.
pub fn identity_of(datatype: DataType, shape: &[PortDim]) -> Result<Model, BuildError> {
    let mut graph = Graph::new("identity");
    let input = graph.input("INPUT0", datatype, shape);
    let output = graph.op("Identity", &[&input]).named("OUTPUT0").value();
    graph.output(&output, datatype, shape);
    graph.finish()
}

/// `OUTPUT0` = `INPUT0` + `INPUT1`, `OUTPUT1` = `INPUT0` − `INPUT1`, FP32 `[batch, 16]`.
///
/// # Errors
/// Only if the graph built here is invalid, which would be a bug.
pub fn add_sub() -> Result<Model, BuildError> {
    let shape = dims!["batch", 16];
    let mut graph = Graph::new("addsub");
    let left = graph.input("INPUT0", DataType::Fp32, &shape);
    let right = graph.input("INPUT1", DataType::Fp32, &shape);
    let sum = graph.op("Add", &[&left, &right]).named("OUTPUT0").value();
    let difference = graph.op("Sub", &[&left, &right]).named("OUTPUT1").value();
    graph.output(&sum, DataType::Fp32, &shape);
    graph.output(&difference, DataType::Fp32, &shape);
    graph.finish()
}

/// `vector` FP32 `[batch, 384]` → `scores` FP32 `[batch, classes]`: probabilities of random classes; of a single class,
/// the logistic function. The name sets the weights.
///
/// # Errors
/// Only if the graph built here is invalid, which would be a bug.
pub fn classifier(name: &str, classes: usize) -> Result<Model, Error> {
    const WIDTH: usize = 384;
    let seed = name.bytes().fold(0, |seed: u64, byte| seed.wrapping_mul(31) + u64::from(byte));
    let mut graph = Graph::new(name);
    let vector = graph.input("vector", DataType::Fp32, &dims!["batch", WIDTH as i64]);
    // An embedding has length 1: with weights of this spread, scores differ from text to text.
    let weights = Seeded::new(seed).tensor("weights", &[WIDTH, classes], 3.0)?;
    let weights = graph.raw("weights", DataType::Fp32, &[WIDTH, classes], weights);
    let sums = graph.op("MatMul", &[&vector, &weights]).value();
    let scores = match classes {
        1 => graph.op("Sigmoid", &[&sums]),
        _ => graph.op("Softmax", &[&sums]).attr("axis", -1),
    };
    let scores = scores.named("scores").value();
    graph.output(&scores, DataType::Fp32, &dims!["batch", classes as i64]);
    Ok(graph.finish()?)
}

/// `OUTPUT0` = `INPUT0` × `factor`, FP32 `[batch, 16]`: for versions that differ in their results.
///
/// # Errors
/// Only if the graph built here is invalid, which would be a bug.
pub fn scale(factor: f32) -> Result<Model, BuildError> {
    let shape = dims!["batch", 16];
    let mut graph = Graph::new("scale");
    let input = graph.input("INPUT0", DataType::Fp32, &shape);
    let factor = graph.constant("factor", &[1], &[factor]);
    let output = graph.op("Mul", &[&input, &factor]).named("OUTPUT0").value();
    graph.output(&output, DataType::Fp32, &shape);
    graph.finish()
}

/// `OUTPUT0` INT64 `[batch, 1]` = `total` + `INPUT0`, also as `total_next`; and the control inputs: `is_first` =
/// `START` INT32 and `is_last` = `END` FP32. A model whose state and control inputs the server fills in.
///
/// # Errors
/// Only if the graph built here is invalid, which would be a bug.
pub fn running_total() -> Result<Model, BuildError> {
    let shape = dims!["batch", 1];
    let mut graph = Graph::new("running_total");
    let input = graph.input("INPUT0", DataType::Int64, &shape);
    let total = graph.input("total", DataType::Int64, &shape);
    let sum = graph.op("Add", &[&total, &input]).named("OUTPUT0").value();
    let next = graph.op("Identity", &[&sum]).named("total_next").value();
    graph.output(&sum, DataType::Int64, &shape);
    graph.output(&next, DataType::Int64, &shape);
    for (control, datatype, flag) in [("START", DataType::Int32, "is_first"), ("END", DataType::Fp32, "is_last")] {
        let control = graph.input(control, datatype, &shape);
        let flag = graph.op("Identity", &[&control]).named(flag).value();
        graph.output(&flag, datatype, &shape);
    }
    graph.finish()
}

/// The control inputs of each row: `OUTPUT0` UINT64 `[batch, 1]` = `CORRID`, `is_ready` = `READY` BOOL; and `same` =
/// `INPUT0` INT64.
///
/// # Errors
/// Only if the graph built here is invalid, which would be a bug.
pub fn correlation_id() -> Result<Model, BuildError> {
    let shape = dims!["batch", 1];
    let mut graph = Graph::new("correlation_id");
    let input = graph.input("INPUT0", DataType::Int64, &shape);
    let ready = graph.input("READY", DataType::Bool, &shape);
    let id = graph.input("CORRID", DataType::Uint64, &shape);
    for (input, name, datatype) in
        [(&id, "OUTPUT0", DataType::Uint64), (&ready, "is_ready", DataType::Bool), (&input, "same", DataType::Int64)]
    {
        let output = graph.op("Identity", &[input]).named(name).value();
        graph.output(&output, datatype, &shape);
    }
    graph.finish()
}

/// `OUTPUT0` FP32 `[batch, 1]` = the entry at index `INPUT0` INT64 `[batch, 1]` of a table of 100, 101, … 115. An index
/// outside −16…15 fails the whole batch: the index is computed in the graph, so it cannot be checked before the run.
///
/// # Errors
/// Only if the graph built here is invalid, which would be a bug.
pub fn lookup() -> Result<Model, BuildError> {
    let shape = dims!["batch", 1];
    let mut graph = Graph::new("lookup");
    let index = graph.input("INPUT0", DataType::Int64, &shape);
    let entries: [f32; 16] = std::array::from_fn(|entry| 100.0 + entry as f32);
    let table = graph.constant("table", &[16], &entries);
    let none = graph.scalar(0_i64);
    let index = graph.op("Add", &[&index, &none]).value();
    let output = graph.op("Gather", &[&table, &index]).named("OUTPUT0").value();
    graph.output(&output, DataType::Fp32, &shape);
    graph.finish()
}

/// `OUTPUT0` = `INPUT0`, FP32 `[batch, 16]`, after 150 products of 1024 × 1024 matrices: 0.32 TFLOP, about a second on
/// two cores, whatever the batch.
///
/// # Errors
/// Only if the graph built here is invalid, which would be a bug.
pub fn slow() -> Result<Model, BuildError> {
    multiplying("slow", 150, 1024)
}

/// `OUTPUT0` = `INPUT0`, FP32 `[batch, 16]`, after practically endless work in small steps.
///
/// # Errors
/// Only if the graph built here is invalid, which would be a bug.
pub fn runaway() -> Result<Model, BuildError> {
    multiplying("runaway", i64::MAX, 64)
}

/// Builds a loop that carries the input along and multiplies two identity matrices `times` times. The engine cannot
/// know that they are identity matrices or that the product is unused, and every product stays finite.
fn multiplying(name: &str, times: i64, side: i64) -> Result<Model, BuildError> {
    let shape = dims!["batch", 16];
    let square = dims![side, side];
    let mut graph = Graph::new(name);
    let input = graph.input("INPUT0", DataType::Fp32, &shape);
    let size = graph.literal(&[side, side]);
    let zeros = graph.op("ConstantOfShape", &[&size]).value();
    let unit = graph.op("EyeLike", &[&zeros]).value();
    let times = graph.scalar(times);
    let forever = graph.scalar(true);

    let mut body = graph.subgraph("body");
    body.input("iteration", DataType::Int64, &[]);
    let condition = body.input("condition", DataType::Bool, &[]);
    let product = body.input("product", DataType::Fp32, &square);
    let carried = body.input("carried", DataType::Fp32, &shape);
    let condition = body.op("Identity", &[&condition]).value();
    let product = body.op("MatMul", &[&product, &unit]).value();
    let carried = body.op("Identity", &[&carried]).value();
    body.output(&condition, DataType::Bool, &[]);
    body.output(&product, DataType::Fp32, &square);
    body.output(&carried, DataType::Fp32, &shape);

    let looped = graph.op("Loop", &[&times, &forever, &unit, &input]).attr("body", body);
    let [_product, carried] = looped.values();
    let output = graph.op("Identity", &[&carried]).named("OUTPUT0").value();
    graph.output(&output, DataType::Fp32, &shape);
    graph.finish()
}
