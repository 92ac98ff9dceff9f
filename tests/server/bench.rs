//! `paternoster bench` from its command line to its figures and files, on small generated models.
//!
//! Models run on ONNX Runtime, from `ORT_DYLIB_PATH` or where `make` puts it. Without the library each test prints a
//! note and passes.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use paternoster_model::DataType;
use paternoster_onnx::zoo;
use tempfile::TempDir;

/// Creates a repository with a model that returns its input, of any length.
fn repository(config: &str) -> TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    let model = folder.path().join("echo");
    fs::create_dir_all(model.join("1")).expect("a folder");
    let identity = zoo::identity_of(DataType::Fp32, &["batch".into(), "n".into()]).expect("a model");
    identity.write(&model.join("1/model.onnx")).expect("the folder takes the model");
    fs::write(model.join("model.yaml"), config).expect("a file");
    folder
}

const BATCHED: &str = "max_batch_size: 8\n";

/// Returns the library's file where `make` puts it; `None` leaves the search to the command.
fn library() -> Option<PathBuf> {
    let cached = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(".cache/onnxruntime/libonnxruntime.so");
    cached.exists().then_some(cached)
}

fn has_library() -> bool {
    let found = library().is_some() || std::env::var_os("ORT_DYLIB_PATH").is_some();
    if !found {
        eprintln!("skipped: no ONNX Runtime library; run `make test`, or set ORT_DYLIB_PATH");
    }
    found
}

/// Runs the command on that model with further arguments. Returns its output, or its error message if it exits with
/// status 1.
fn bench(repository: &Path, more: &[&str]) -> Result<String, String> {
    let words = ["bench", "--model", "echo", "--cpu-threads", "1", "--warm-up-seconds", "0", "--samples", "8"];
    let mut command = Command::new(env!("CARGO_BIN_EXE_paternoster"));
    command.args(words).arg("--model-repository").arg(repository).args(more);
    if let Some(library) = library() {
        command.arg("--onnxruntime-library").arg(library);
    }
    let output = command.output().expect("the binary runs");
    let [printed, complaint] = [output.stdout, output.stderr].map(|text| String::from_utf8(text).expect("text"));
    match output.status.code() {
        Some(0) => Ok(printed),
        Some(1) => Err(complaint),
        other => panic!("{more:?} ends with {other:?}: {complaint}"),
    }
}

#[test]
fn policies_are_compared_and_files_written() {
    if !has_library() {
        return;
    }
    let folder = repository(BATCHED);
    let [csv, svg] = ["out.csv", "out.svg"].map(|name| folder.path().join(name));
    let files = ["--csv", csv.to_str().expect("text"), "--svg", svg.to_str().expect("text")];
    let words = ["--policy", "window: { max_queue_delay_us: 0 }", "--policy", "serial", "--length", "3"];
    let own = ["--policy", "as configured"];
    let load = ["--rate", "200", "--seconds", "0.3", "--rounds", "2", "--json"];
    let printed = bench(folder.path(), &[&words[..], &own, &load, &files].concat()).expect("all answers are right");
    let json: serde_json::Value = serde_json::from_str(&printed).expect("JSON and nothing else");
    assert_eq!(json["loads"][0]["policies"][1]["policy"], "serial");
    assert_eq!(json["loads"][0]["policies"][2]["policy"], "as configured");
    assert!(json["machine"].is_string());
    let written = fs::read_to_string(&csv).expect("it is there");
    assert_eq!(written.lines().count(), 7, "titles and two runs of each policy: {written}");
    assert!(written.contains("window: { max_queue_delay_us: 0 }") && written.contains(",serial,"), "{written}");
    assert!(fs::read_to_string(&svg).expect("it is there").contains("serial: p99"));
}

#[test]
fn closed_loops_and_shares_of_the_peak_are_measured() {
    if !has_library() {
        return;
    }
    let folder = repository(BATCHED);
    for load in [&["--concurrency", "4"][..], &["--load", "0.2"], &["--load", "0.2", "--follow-peak"]] {
        let words = ["--seconds", "0.3", "--rounds", "1", "--workload", "glue-short", "--objective-ms", "1000"];
        let run = bench(folder.path(), &[load, &words].concat());
        run.unwrap_or_else(|error| panic!("{load:?}: {error}"));
    }
}

#[test]
fn a_trace_gives_arrivals_and_lengths() {
    if !has_library() {
        return;
    }
    let folder = repository(BATCHED);
    let [trace, csv] = ["trace.csv", "out.csv"].map(|name| folder.path().join(name));
    let each = folder.path().join("each.csv");
    let files = ["--csv", csv.to_str().expect("text"), "--requests-csv", each.to_str().expect("text")];
    let words = [&["--rounds", "1", "--trace", trace.to_str().expect("text")][..], &files].concat();
    fs::write(&trace, "arrival_s,length\n0,3\n0.01,5\n0.01,2\n").expect("a file");
    bench(folder.path(), &words).expect("all answers are right");
    let written = fs::read_to_string(&csv).expect("it is there");
    assert!(written.contains(",as configured,1,3,"), "each of the three requests was answered: {written}");
    let each = fs::read_to_string(&each).expect("it is there");
    let titles_and_times: Vec<&str> = each.lines().map(|line| line.split(',').nth(3).expect("a column")).collect();
    assert_eq!(titles_and_times[0], "sent_s");
    let mut times = titles_and_times[1..].to_vec();
    times.sort_unstable();
    assert_eq!(times, ["0.000000", "0.010000", "0.010000"], "{each}");
    fs::write(&trace, "0,3\nsoon,5\n").expect("a file");
    let refusal = bench(folder.path(), &words).expect_err("it is no trace");
    assert!(refusal.contains("line 2: found 'soon'"), "{refusal}");
}

#[test]
fn failed_requests_make_the_command_fail() {
    if !has_library() {
        return;
    }
    // Requests that arrive together find the queue full.
    let folder =
        repository("max_batch_size: 1\nbatching: { policy: window, window: { queue: { max_queue_size: 1 } } }\n");
    let trace = folder.path().join("trace.csv");
    fs::write(&trace, "0,100000\n".repeat(64)).expect("a file");
    let refusal = bench(folder.path(), &["--rounds", "1", "--trace", trace.to_str().expect("text")]);
    let told = refusal.expect_err("requests were refused");
    assert!(told.contains("0 wrong answers and") && told.contains("Exceeds maximum queue size"), "{told}");
}

#[test]
fn the_best_window_of_a_sweep_stands_first() {
    if !has_library() {
        return;
    }
    let folder = repository(BATCHED);
    let csv = folder.path().join("out.csv");
    let words = ["--sweep-window", "--sweep-seconds", "0.05", "--policy", "serial", "--length", "3", "--rate", "200"];
    let rest = ["--rounds", "1", "--seconds", "0.1", "--csv", csv.to_str().expect("text")];
    bench(folder.path(), &[&words[..], &rest].concat()).expect("all answers are right");
    let written = fs::read_to_string(&csv).expect("it is there");
    let rows: Vec<&str> = written.lines().skip(1).collect();
    assert!(rows[0].contains("window") && rows[0].contains("(best)"), "{written}");
    assert!(rows[1].contains(",serial,") && rows.len() == 2, "{written}");
}

#[test]
fn models_whose_requests_bring_trees_are_given_some() {
    if !has_library() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let made = Command::new(env!("CARGO_BIN_EXE_paternoster"))
        .args(["models", "--quarter", "--only", "tree-lstm", "--out"])
        .arg(folder.path())
        .status();
    assert!(made.expect("the binary runs").success());
    fs::rename(folder.path().join("tree-lstm"), folder.path().join("echo")).expect("it was written");
    let load = ["--concurrency", "4", "--rounds", "1", "--seconds", "0.3"];
    for workload in ["trees", "trees-16"] {
        let printed = bench(folder.path(), &[&["--workload", workload][..], &load].concat());
        let printed = printed.unwrap_or_else(|error| panic!("{workload}: {error}"));
        assert!(printed.contains(&format!("trees '{workload}'")), "{printed}");
    }
    let refusal =
        bench(folder.path(), &[&["--workload", "wmt15"][..], &load].concat()).expect_err("those are no trees");
    assert!(refusal.contains("names the child"), "{refusal}");
}

#[test]
fn a_model_is_measured_in_stages_and_under_every_policy() {
    if !has_library() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let model = folder.path().join("echo");
    fs::create_dir_all(model.join("1")).expect("a folder");
    let network = zoo::mobilenet(zoo::Width::QUARTER).expect("a model");
    network.write(&model.join("1/model.onnx")).expect("the folder takes the model");
    let policies = ["window", "adaptive", "lazy, latency_objective_ms: 50", "diversity: { load: true }, stages: 3"];
    let words = policies.iter().flat_map(|policy| ["--policy", policy]).collect::<Vec<_>>();
    let rest = ["--stages", "2", "--rounds", "1", "--seconds", "0.5", "--concurrency", "4"];
    let printed = bench(folder.path(), &[&words[..], &rest].concat()).expect("all policies answer the same");
    assert!(printed.contains("(FP32) in process, 2 lanes") && printed.contains("lazy, latency"), "{printed}");
}
