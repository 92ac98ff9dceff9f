//! From directories to load requests.

use std::sync::Arc;

use paternoster_batching::{CostPoint, CostTable, Policy};
use paternoster_config::stages::StageCuts;
use paternoster_engine::OnnxEngine;

#[cfg(feature = "text")]
use super::fake::{explicit, load};
use super::{
    fake::{Directory, FakeLoader, options, start},
    refusals::Refusals,
};
use crate::{
    ControlMode, EngineKind,
    LoadErrorKind::{Files, Settings},
    Options, Repository,
};

#[cfg(feature = "text")]
#[tokio::test]
async fn texts_have_no_more_tokens_than_the_model_has_positions() {
    let roberta = r#"{"model_type": "roberta", "pad_token_id": 1, "max_position_embeddings": 514}"#;
    for config in [r#"{"max_position_embeddings": 512}"#, roberta] {
        let of = async |yaml| {
            let directory = Directory::new();
            directory.model("m").write("m/config.json", config).write("m/model.yaml", yaml);
            load(&start(&directory, explicit()).await.0, "m").await.expect_err("it should be refused")
        };
        let refusal = of("text: { max_tokens: 513 }").await;
        let expected = "text.max_tokens: expected at most 512, for which the model has positions, but found 513";
        assert!(refusal.contains(expected), "{refusal}");
        let refusal = of("text: { max_tokens: 512 }").await;
        assert!(refusal.contains("there is no tokenizer"), "the limit is fine, the next file is missing: {refusal}");
    }
}

#[tokio::test]
async fn without_completion_a_configuration_must_be_whole() {
    let directory = Directory::new();
    directory.model("bare").model("partial").write("partial/config.pbtxt", "max_batch_size: 4").model("whole");
    let tensors = "max_batch_size: 4 input { name: 'INPUT0' data_type: TYPE_FP32 dims: 16 }
                   output { name: 'OUTPUT0' data_type: TYPE_FP32 dims: 16 }";
    directory.write("whole/config.pbtxt", tensors);
    let options = Options { auto_complete: false, ..options(&[&directory], ControlMode::None) };
    let repository = Repository::start(options, Arc::new(FakeLoader::default())).await.unwrap();
    let names: Vec<String> = repository.loaded().iter().map(|version| version.spec().name.clone()).collect();
    assert_eq!(names, ["whole"]);
    let reasons: Vec<String> = repository.index(false).await.into_iter().map(|entry| entry.reason).collect();
    assert!(reasons[0].contains("auto-completion is disabled"), "{}", reasons[0]);
    assert!(reasons[1].contains("the model has no inputs"), "{}", reasons[1]);
}

#[tokio::test]
async fn a_request_carries_all_that_a_loader_needs() {
    let directory = Directory::new();
    directory.model("m").write("m/labels.txt", "cat\r\ndog\n").write("m/warmup/row", &"abcd".repeat(16)).write(
        "m/model.yaml",
        "max_batch_size: 8
outputs: [ { name: OUTPUT0, labels: labels.txt } ]
batching: { policy: window, window: { max_queue_delay_us: 5 } }
warmup: [ { batch_size: 2, inputs: { INPUT0: { dtype: FP32, dims: [16], file: row } } } ]
",
    );
    let (repository, loader) = start(&directory, ControlMode::None).await;
    assert!(repository.ready(), "{:?}", repository.index(false).await);
    let requests = loader.requests.lock();
    let request = &requests[0];
    assert_eq!(request.engine, EngineKind::Onnx(OnnxEngine::OnnxRuntime));
    assert!(request.program.file.ends_with("m/1/model.onnx") && request.program.bytes.is_none());
    assert_eq!(*request.spec.outputs[0].labels, ["cat", "dog"]);
    assert!(matches!(&request.knobs.policy, Policy::Window(window) if window.max_queue_delay_ns == 5_000));
    assert_eq!(request.warmup[0].inputs[0].as_ref().unwrap().data.len(), 2 * 64);
    assert_eq!(request.config.platform, "onnxruntime_onnx");
    let shown = repository.resolve("m", "").unwrap();
    assert_eq!(shown.config().as_ref(), request.config.as_ref());
}

#[tokio::test]
async fn a_request_carries_stages_and_measured_latencies() {
    let directory = Directory::new();
    directory.model("m").write("m/latencies.csv", "stage,rows,length,latency_us\n1,8,0,2.5\n").write(
        "m/model.yaml",
        "stages: [middle]
exits: [ { stage: 0, value: sure, at_least: 0.5, outputs: { OUTPUT0: early } } ]
batching: { policy: lazy, latency_objective_ms: 100, latencies: latencies.csv }
",
    );
    let (repository, loader) = start(&directory, ControlMode::None).await;
    assert!(repository.ready(), "{:?}", repository.index(false).await);
    let requests = loader.requests.lock();
    let request = &requests[0];
    assert_eq!(request.stages.cuts, StageCuts::At(vec!["middle".to_owned()]));
    assert_eq!(request.stages.exits[0].stage, 0);
    let measured = vec![vec![], vec![CostPoint { rows: 8, length: 0, took_ns: 2_500 }]];
    assert_eq!(request.knobs.latencies, Some(CostTable { stages: measured }));
    assert!(matches!(&request.knobs.policy, Policy::Lazy(_)));
    assert_eq!((request.knobs.max_in_flight, request.knobs.objective_ns), (2, Some(100_000_000)));
}

/// A model of two cells.
const CELLS: &str = "\
inputs: [ { name: x, dtype: FP32, dims: [n] } ]
outputs: [ { name: y, dtype: FP32, dims: [1] } ]
cells: { one: { program: one.onnx }, two: { program: two.onnx, batch_sizes: [16] } }
unfold: [ stage: one, chain: { cell: two, over: x, as: x, emit: { y: last(y) } } ]
batching: { latencies: [ { stage: 1, rows: 1, latency_us: 2.5 } ] }
";

#[tokio::test]
async fn a_request_carries_cells_and_their_programs() {
    let directory = Directory::new();
    directory.write("m/1/one.onnx", "good").write("m/1/two.onnx", "good").write("m/model.yaml", CELLS);
    let (repository, loader) = start(&directory, ControlMode::None).await;
    assert!(repository.ready(), "{:?}", repository.index(false).await);
    let requests = loader.requests.lock();
    let request = &requests[0];
    let unfold = request.unfold.as_ref().expect("it has cells");
    let names: Vec<&str> = unfold.cells.iter().map(|cell| cell.name.as_str()).collect();
    assert_eq!((names, unfold.segments.len()), (vec!["one", "two"], 2));
    let ends: Vec<bool> = request
        .cells
        .iter()
        .zip(["m/1/one.onnx", "m/1/two.onnx"])
        .map(|(cell, end)| cell.file.ends_with(end) && cell.bytes.is_none())
        .collect();
    assert_eq!(ends, [true, true]);
    assert!(request.program.file.ends_with("m/1") && request.program.bytes.is_none());
    assert!(matches!(&request.knobs.policy, Policy::Cellular(_)));
    assert_eq!(request.knobs.max_in_flight, 1, "one task at a time");
    let measured = vec![vec![], vec![CostPoint { rows: 1, length: 0, took_ns: 2_500 }]];
    assert_eq!(request.knobs.latencies, Some(CostTable { stages: measured }), "one list for each cell");
    assert!(!request.automatic.is_any() && request.config.default_model_filename.is_empty());
}

#[tokio::test]
async fn the_repeat_backend_needs_no_program() {
    let directory = Directory::new();
    let config = "backend: 'repeat' max_batch_size: 8 model_transaction_policy { decoupled: true }
                  input { name: 'INPUT0' data_type: TYPE_FP32 dims: 16 } output { name: 'OUTPUT0' data_type: \
                  TYPE_FP32 dims: 16 }";
    directory.write("r/config.pbtxt", config).write("r/1/README", "nothing to run");
    let (repository, loader) = start(&directory, ControlMode::None).await;
    assert!(repository.ready(), "{:?}", repository.index(false).await);
    let requests = loader.requests.lock();
    assert_eq!(requests[0].engine, EngineKind::Repeat);
    assert!(requests[0].spec.decoupled);
}

#[tokio::test]
async fn a_program_may_be_a_directory() {
    let directory = Directory::new();
    directory.write("m/1/model.onnx/model.onnx", "good").write("m/1/model.onnx/weights", "w");
    let (repository, loader) = start(&directory, ControlMode::None).await;
    assert!(repository.ready(), "{:?}", repository.index(false).await);
    assert!(loader.requests.lock()[0].program.file.ends_with("m/1/model.onnx/model.onnx"));
}

#[tokio::test]
async fn the_latencies_of_a_pipeline_are_recorded_as_those_of_models() {
    let directory = Directory::new();
    let text = "max_batch_size: 8
inputs:  [{ name: IN,  dtype: FP32, dims: [16] }]
outputs: [{ name: OUT, dtype: FP32, dims: [16] }]
pipeline:
  - model: { name: m, inputs: { INPUT0: IN }, outputs: { OUTPUT0: OUT } }
";
    directory.model("m").write("pipeline/model.yaml", text);
    let (repository, _) = start(&directory, ControlMode::None).await;
    let latencies = repository.resolve("pipeline", "").unwrap().servable().stats().reading().latencies;
    assert!(!latencies.counters && latencies.first_response.is_some(), "{latencies:?}");
}

pub(super) async fn refusals(all: &mut Refusals) {
    let model = ("1/model.onnx", "good");
    all.title("configurations of a model");
    all.load(Settings, &[model, ("config.pbtxt", "max_batch_size: 8\ninput [ { nam: 'x' } ]")]).await;
    all.load(Settings, &[model, ("model.yaml", "max_batch_size: 8\ninput: []")]).await;
    all.load(Settings, &[model, ("model.yaml", "inputs:\n- { name: INPUT0, dims: [8] }")]).await;
    all.load(Settings, &[model, ("config.pbtxt", ""), ("model.yaml", "")]).await;
    let labels = "output { name: 'OUTPUT0' label_filename: 'labels.txt' }";
    all.load(Settings, &[model, ("config.pbtxt", labels)]).await;
    all.title("files of a model");
    all.load(Files, &[("notes.txt", "")]).await;
    all.load(Files, &[model, ("config.pbtxt", "version_policy { specific { versions: 9 } }")]).await;
    all.load(Files, &[("onnx/model.onnx", "a program")]).await;
    all.load(Files, &[("model.onnx", "a program")]).await;
    all.load(Files, &[("1/model.plan", "")]).await;
    all.load(Files, &[("model.pt", "")]).await;
    all.load(Files, &[("1/other.onnx", "a program")]).await;
    all.title("cells of a model");
    all.load(Files, &[("1/one.onnx", "good"), ("model.yaml", CELLS)]).await;
    let unknown = CELLS.replace("last(y)", "last(y), z: first(y)");
    all.load(Settings, &[("1/one.onnx", "good"), ("model.yaml", &unknown)]).await;
    all.title("latencies of a model");
    let config = ("model.yaml", "batching:\n  latencies: latencies.csv\n");
    all.load(Settings, &[model, config]).await;
    all.load(Settings, &[model, config, ("latencies.csv", "stage,rows,length,latency_us\n1,1,0,5\n")]).await;
    all.load(Settings, &[model, config, ("latencies.csv", &"\n".repeat((1 << 20) + 1))]).await;
    all.load(Settings, &[model, ("model.yaml", "batching: { latencies: ../latencies.csv }")]).await;
    let inline = "batching: { latencies: [ { stage: 3, rows: 1, latency_us: 1 } ] }";
    all.load(Settings, &[model, ("model.yaml", inline)]).await;
}
