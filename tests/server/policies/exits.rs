//! Rows that leave after a stage, done with an early answer or on to a later stage, independently of the other rows of
//! their request and their batch.

use std::sync::Arc;

use paternoster_model::DataType;
use paternoster_onnx::{Model, PortDim, build::Graph};
use paternoster_testing::runtime::runtime;

use crate::policies::{
    combinations::POLICIES,
    rig::{Exchange, Expected, Noise, Place, tensor},
};

const REQUESTS: usize = 60;
const COLUMNS: usize = 4;

fn row_dims() -> [PortDim; 2] {
    ["batch".into(), (COLUMNS as i64).into()]
}

/// `h` = 2 `x`, `g` = `h` + 3, `y` = 10 `g`. After `h` and `g` there are heads (`early` = `h` + 1000, `late` = `g` +
/// 2000) whose first column is the confidence.
fn with_heads() -> Model {
    let mut graph = Graph::new("heads");
    let x = graph.input("x", DataType::Fp32, &row_dims());
    let [two, three, ten, thousand, two_thousand] = [2.0_f32, 3.0, 10.0, 1000.0, 2000.0].map(|it| graph.scalar(it));
    let first = graph.scalar(0_i64);
    let h = graph.op("Mul", &[&x, &two]).named("h").value();
    graph.op("Gather", &[&h, &first]).attr("axis", 1).named("confidence").value();
    graph.op("Add", &[&h, &thousand]).named("early").value();
    let g = graph.op("Add", &[&h, &three]).named("g").value();
    graph.op("Gather", &[&g, &first]).attr("axis", 1).named("confidence_2").value();
    graph.op("Add", &[&g, &two_thousand]).named("late").value();
    let y = graph.op("Mul", &[&g, &ten]).named("y").value();
    graph.output(&y, DataType::Fp32, &row_dims());
    graph.finish().expect("the graph is sound")
}

const HEADS: &str = "max_batch_size: 8\n\
    stages: [h, g]\n\
    exits:\n\
    - { stage: 0, value: confidence, at_least: 10, outputs: { y: early } }\n\
    - { stage: 1, value: confidence_2, at_least: 5, outputs: { y: late } }\n";

fn through_heads(row: &[f32]) -> Vec<f32> {
    let h = |x: &f32| 2.0 * x;
    let answer = |x: &f32| match h(&row[0]) {
        confidence if confidence >= 10.0 => h(x) + 1000.0,
        confidence if confidence + 3.0 >= 5.0 => h(x) + 3.0 + 2000.0,
        _ => (h(x) + 3.0) * 10.0,
    };
    row.iter().map(answer).collect()
}

/// `h` = 2 `x`, `y` = 10 `h`, and between them a middle stage that only computes `check` = `h` + 5. Rows end there if
/// its first column says so, unless the second column of `h` makes them skip the stage.
fn with_a_skipped_stage() -> Model {
    let mut graph = Graph::new("skip");
    let x = graph.input("x", DataType::Fp32, &row_dims());
    let (two, five, ten) = (graph.scalar(2.0_f32), graph.scalar(5.0_f32), graph.scalar(10.0_f32));
    let (first, second) = (graph.scalar(0_i64), graph.scalar(1_i64));
    let h = graph.op("Mul", &[&x, &two]).named("h").value();
    graph.op("Gather", &[&h, &second]).attr("axis", 1).named("easiness").value();
    let check = graph.op("Add", &[&h, &five]).named("check").value();
    graph.op("Gather", &[&check, &first]).attr("axis", 1).named("confidence").value();
    let y = graph.op("Mul", &[&h, &ten]).named("y").value();
    graph.output(&y, DataType::Fp32, &row_dims());
    graph.finish().expect("the graph is sound")
}

const SKIP: &str = "max_batch_size: 8\n\
    stages: [h, check]\n\
    exits:\n\
    - { stage: 0, value: easiness, at_least: 0, skip_to: 2 }\n\
    - { stage: 1, value: confidence, at_least: 5, outputs: { y: check } }\n";

fn past_the_skipped_stage(row: &[f32]) -> Vec<f32> {
    let skips = 2.0 * row[1] >= 0.0;
    let ends = !skips && 2.0 * row[0] + 5.0 >= 5.0;
    row.iter().map(|x| if ends { 2.0 * x + 5.0 } else { 20.0 * x }).collect()
}

/// Returns requests of one to three rows of small whole numbers, so that answers are exact. The last column is
/// different in each row.
fn exchanges(answer: fn(&[f32]) -> Vec<f32>) -> Arc<Vec<Exchange>> {
    let mut noise = Noise::new(7);
    let mut number = 0.0_f32;
    let requests = (0..REQUESTS).map(|_| {
        let rows = noise.below(3) + 1;
        let shape = [i64::from(rows), COLUMNS as i64];
        let mut sent = Vec::new();
        let mut answers = Vec::new();
        for _ in 0..rows {
            number += 1.0;
            let row = [noise.below(21) as f32 - 10.0, noise.below(21) as f32 - 10.0, 0.5, number];
            answers.extend(answer(&row));
            sent.extend(row.map(f32::to_le_bytes));
        }
        let expected = Some(vec![Expected::exactly(&shape, answers)]);
        Exchange { rows, inputs: vec![tensor(&shape, &sent)], expected }
    });
    Arc::new(requests.collect())
}

/// Runs the requests under every policy. Some rows are done before the last stage.
async fn under_every_policy(model: &Model, yaml: &str, answer: fn(&[f32]) -> Vec<f32>) {
    let Some(runtime) = runtime() else { return };
    let place = Place::new(model);
    let exchanges = exchanges(answer);
    let mut early_exits = 0;
    for (number, policy) in POLICIES.iter().filter(|policy| !policy.is_padded_only()).enumerate() {
        let served = place.serve(runtime, &format!("{yaml}{}", policy.batching(3)), policy.name).await;
        let counts = served.drive(&exchanges, number as u64, policy.name).await;
        assert_eq!(counts.answered + counts.cancelled, REQUESTS, "{}: every request ends", policy.name);
        early_exits += served.stop(policy.name).early_exits;
    }
    assert!(early_exits > REQUESTS as u64, "rows left early under all policies: {early_exits}");
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_that_are_sure_leave_with_their_heads_answer_and_the_others_go_on() {
    under_every_policy(&with_heads(), HEADS, through_heads).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_that_skip_a_stage_are_not_touched_by_it() {
    under_every_policy(&with_a_skipped_stage(), SKIP, past_the_skipped_stage).await;
}
