//! Rows that fail a task: rows that share it are answered, and only the bad ones fail.

use std::sync::Arc;

use paternoster_model::DataType;
use paternoster_onnx::{Model, PortDim, build::Graph};
use paternoster_testing::runtime::runtime;

use crate::policies::{
    combinations::POLICIES,
    rig::{Exchange, Expected, Noise, Place, tensor},
};

const REQUESTS: usize = 60;
const TOKENS: usize = 4;
const VOCABULARY: u32 = 32;
/// A token beyond every table.
const BAD_TOKEN: i64 = 1_000_000;
/// One of this many requests has a bad token.
const BAD_EVERY: usize = 12;

/// `shifted` = `ids` + 1, `found` = each one's entry in a table (100, 101, …), `y` = 2 `found`. The second stage fails.
fn lookup() -> Model {
    let dims: [PortDim; 2] = ["batch".into(), (TOKENS as i64).into()];
    let mut graph = Graph::new("lookup");
    let ids = graph.input("ids", DataType::Int64, &dims);
    let entries: Vec<f32> = (0..=VOCABULARY).map(|entry| 100.0 + entry as f32).collect();
    let table = graph.constant("table", &[entries.len()], &entries);
    let (one, two) = (graph.scalar(1_i64), graph.scalar(2.0_f32));
    let shifted = graph.op("Add", &[&ids, &one]).named("shifted").value();
    let found = graph.op("Gather", &[&table, &shifted]).named("found").value();
    let y = graph.op("Mul", &[&found, &two]).named("y").value();
    graph.output(&y, DataType::Fp32, &dims);
    graph.finish().expect("the graph is sound")
}

fn exchanges() -> Arc<Vec<Exchange>> {
    let mut noise = Noise::new(11);
    let requests = (0..REQUESTS).map(|index| {
        let rows = noise.below(3) + 1;
        let shape = [i64::from(rows), TOKENS as i64];
        let mut ids: Vec<i64> = (0..rows * TOKENS as u32).map(|_| i64::from(noise.below(VOCABULARY))).collect();
        let expected = match index % BAD_EVERY {
            0 => {
                let place = noise.below(ids.len() as u32) as usize;
                ids[place] = BAD_TOKEN;
                None
            }
            _ => Some(vec![Expected::exactly(&shape, ids.iter().map(|&id| 2.0 * (101 + id) as f32).collect())]),
        };
        let sent: Vec<[u8; 8]> = ids.iter().map(|id| id.to_le_bytes()).collect();
        Exchange { rows, inputs: vec![tensor(&shape, &sent)], expected }
    });
    Arc::new(requests.collect())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bad_token_fails_its_own_request_alone() {
    let Some(runtime) = runtime() else { return };
    let place = Place::new(&lookup());
    let exchanges = exchanges();
    for stages in ["1", "[shifted, found]"] {
        for (number, policy) in POLICIES.iter().filter(|policy| !policy.is_padded_only()).enumerate() {
            let count = if stages == "1" { 1 } else { 3 };
            let context = format!("stages {stages}, {}", policy.name);
            let yaml = format!("max_batch_size: 8\nstages: {stages}\n{}", policy.batching(count));
            let served = place.serve(runtime, &yaml, &context).await;
            let counts = served.drive(&exchanges, number as u64, &context).await;
            assert_eq!(counts.answered + counts.cancelled, REQUESTS, "{context}: every request ends");
            served.stop(&context);
        }
    }
}
