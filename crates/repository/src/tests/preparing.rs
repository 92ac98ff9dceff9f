//! From directories to load requests.

use std::sync::Arc;

use paternoster_batching::{CostPoint, CostTable, Policy};
use paternoster_config::stages::StageCuts;
use paternoster_engine::OnnxEngine;

use super::fake::{Directory, FakeLoader, explicit, load, options, start};
use crate::{ControlMode, EngineKind, Options, Repository};

async fn reason(files: &[(&str, &str)]) -> String {
    let directory = Directory::new();
    for (path, text) in files {
        directory.write(path, text);
    }
    let (repository, _) = start(&directory, explicit()).await;
    load(&repository, "m").await.expect_err("it should be refused")
}

#[tokio::test]
async fn reasons_name_file_place_and_key() {
    let model = ("m/1/model.onnx", "good");
    let refusal = reason(&[model, ("m/config.pbtxt", "max_batch_size: 8\ninput [ { nam: 'x' } ]")]).await;
    assert!(refusal.contains("m/config.pbtxt:2:11: unknown key 'nam' in input[0]"), "{refusal}");
    let refusal = reason(&[model, ("m/model.yaml", "max_batch_size: 8\ninput: []")]).await;
    assert!(refusal.contains("m/model.yaml:2:1: input: unknown key 'input'; did you mean 'inputs'?"), "{refusal}");
    let wrong = "inputs:\n- { name: INPUT0, dims: [8] }";
    let refusal = reason(&[model, ("m/model.yaml", wrong)]).await;
    assert!(refusal.contains("m/model.yaml:2:19: inputs[0].dims: the graph has the shape [16]"), "{refusal}");
    let refusal = reason(&[model, ("m/config.pbtxt", ""), ("m/model.yaml", "")]).await;
    assert!(refusal.contains("found both config.pbtxt and model.yaml"), "{refusal}");
}

#[tokio::test]
async fn missing_pieces_are_named() {
    let refusal = reason(&[("m/notes.txt", "")]).await;
    assert!(refusal.contains("no version directory (a number above 0) in "), "{refusal}");
    for found in ["onnx/model.onnx", "model.onnx"] {
        let refusal = reason(&[(&format!("m/{found}"), "good")]).await;
        let advice =
            format!("; found '{found}', expected '1/model.onnx': make the directory '1' and move the file there");
        assert!(refusal.contains(&advice), "{refusal}");
    }
    let refusal = reason(&[("m/1/model.plan", "")]).await;
    let advice = "m/1/model.onnx; found 'model.plan': an engine of TensorRT is not portable: serve the ONNX file that \
                  it was made of";
    assert!(refusal.contains("no program ") && refusal.ends_with(advice), "{refusal}");
    let refusal = reason(&[("m/model.pt", "")]).await;
    assert!(refusal.ends_with("; found 'model.pt': export the model with torch.onnx.export"), "{refusal}");
    let refusal = reason(&[("m/1/other.onnx", "good")]).await;
    assert!(refusal.ends_with("m/1/model.onnx; found 'other.onnx'"), "{refusal}");
    let specific = ("m/config.pbtxt", "version_policy { specific { versions: 9 } }");
    let refusal = reason(&[("m/1/model.onnx", "good"), specific]).await;
    assert!(refusal.contains("the version policy picks none of the versions [1]"), "{refusal}");
    let labels = ("m/config.pbtxt", "output { name: 'OUTPUT0' label_filename: 'labels.txt' }");
    let refusal = reason(&[("m/1/model.onnx", "good"), labels]).await;
    assert!(refusal.contains("config.pbtxt:1:26: output[0].label_filename: cannot read "), "{refusal}");
}

#[cfg(feature = "text")]
#[tokio::test]
async fn texts_have_no_more_tokens_than_the_model_has_positions() {
    let model = ("m/1/model.onnx", "good");
    let roberta = r#"{"model_type": "roberta", "pad_token_id": 1, "max_position_embeddings": 514}"#;
    for config in [r#"{"max_position_embeddings": 512}"#, roberta] {
        let of = async |yaml| reason(&[model, ("m/config.json", config), ("m/model.yaml", yaml)]).await;
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
async fn every_cell_needs_its_program() {
    let refusal = reason(&[("m/1/one.onnx", "good"), ("m/model.yaml", CELLS)]).await;
    assert!(refusal.contains("no program ") && refusal.ends_with("m/1/two.onnx; found 'one.onnx'"), "{refusal}");
    let unknown = CELLS.replace("last(y)", "last(y), z: first(y)");
    let refusal = reason(&[("m/1/one.onnx", "good"), ("m/model.yaml", &unknown)]).await;
    assert!(
        refusal.contains("m/model.yaml:4:") && refusal.contains("unfold[1].chain.emit.z: expected last("),
        "{refusal}"
    );
}

#[tokio::test]
async fn a_latency_table_that_cannot_be_read_is_refused_with_its_place() {
    let model = ("m/1/model.onnx", "good");
    let config = ("m/model.yaml", "batching:\n  latencies: latencies.csv\n");
    let refusal = reason(&[model, config]).await;
    let missing = "m/model.yaml:2:3: batching.latencies: cannot read ";
    assert!(refusal.contains(missing) && refusal.contains("m/latencies.csv: "), "{refusal}");
    let refusal = reason(&[model, config, ("m/latencies.csv", "stage,rows,length,latency_us\n1,1,0,5\n")]).await;
    let line = "batching.latencies: latencies.csv: stage 1, rows 1, length 0: expected a stage from 0 to 0";
    assert!(refusal.ends_with(line), "{refusal}");
    let large = "\n".repeat((1 << 20) + 1);
    let refusal = reason(&[model, config, ("m/latencies.csv", &large)]).await;
    assert!(refusal.ends_with("it has more than 1048576 bytes"), "{refusal}");
    let outside = ("m/model.yaml", "batching: { latencies: ../latencies.csv }");
    let refusal = reason(&[model, outside, ("latencies.csv", "")]).await;
    assert!(refusal.ends_with("expected a file in the model's directory, but found '../latencies.csv'"), "{refusal}");
    let inline = ("m/model.yaml", "batching: { latencies: [ { stage: 3, rows: 1, latency_us: 1 } ] }");
    let refusal = reason(&[model, inline]).await;
    assert!(
        refusal.ends_with("batching.latencies: stage 3, rows 1, length 0: expected a stage from 0 to 0"),
        "{refusal}"
    );
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
