//! Profiles of models of cells: listed in the configuration, or made from the recurrent layers of a graph.

use std::{ffi::OsString, fs, time::Duration};

use bytes::Bytes;
use clap::{Args, FromArgMatches};
use paternoster::cli::{
    models::{self, ModelsArgs},
    simulate::{self, SimulateArgs},
};
use paternoster_executor::InferRequest;
use paternoster_model::{DataType, Dims, InputTensor};
use paternoster_onnx::{Model, build::Graph};
use paternoster_profile::{Profile, Store};
use paternoster_repository::{Trials, read_model};
use paternoster_testing::runtime::runtime;

use crate::profile::{
    command::printed,
    rig::{Place, Served, text},
};

/// Writes a model of a set of them.
fn write_model(place: &Place, set: &str, name: &str) {
    let words = ["models", "--quarter", "--set", set, "--only", name, "--out"].map(OsString::from);
    let command = ModelsArgs::augment_args(clap::Command::new("models"));
    let matches = command.get_matches_from(words.into_iter().chain([place.repository().into()]));
    models::run(&ModelsArgs::from_arg_matches(&matches).expect("they are right")).expect("it is written");
}

/// Writes an example model under the name 'model', with these replacements in its configuration.
fn add_example(place: &Place, name: &str, changes: &[(&str, &str)]) {
    write_model(place, "examples", name);
    let directory = place.repository().join("model");
    fs::rename(place.repository().join(name), &directory).expect("the folder is ours");
    let file = directory.join("model.yaml");
    let written = changes.iter().fold(text(&file), |written, (from, to)| {
        assert!(written.contains(from), "{from} in {written}");
        written.replace(from, to)
    });
    fs::write(file, written).expect("the folder is ours");
}

const ENCODER: &str = "encoder.onnx, batch_sizes: [1, 2, 4, 8, 16, 32, 64, 128, 256, 512]";

/// Leaves the batches of the leaves of a tree to the profile.
const OPEN_LEAF: (&str, &str) = ("leaf.onnx, batch_sizes: [1, 2, 4, 8, 16, 32, 64]", "leaf.onnx");

/// A translation model that leaves the batches of the encoder to the profile.
fn add_translation(place: &Place) {
    add_example(place, "seq2seq", &[(ENCODER, "encoder.onnx")]);
}

/// An LSTM over steps of `x`, whose last state is `y`.
fn recurrent() -> Model {
    let mut graph = Graph::new("recurrent");
    let x = graph.input("x", DataType::Fp32, &["batch".into(), "time".into(), 3.into()]);
    let x = graph.op("Transpose", &[&x]).attr("perm", [1, 0, 2]).value();
    let w = graph.constant("W", &[1, 8, 3], &[0.5_f32; 24]);
    let r = graph.constant("R", &[1, 8, 2], &[0.25_f32; 16]);
    let layer = graph.op("LSTM", &[&x, &w, &r]).attr("hidden_size", 2_i64).named("lstm");
    let [_, last] = layer.values();
    let first = graph.literal(&[0_i64]);
    let y = graph.op("Squeeze", &[&last, &first]).named("y").value();
    graph.output(&y, DataType::Fp32, &["batch".into(), 2.into()]);
    graph.finish().expect("it is sound")
}

fn profile_of(report: &serde_json::Value) -> Profile {
    serde_json::from_value(report["profile"].clone()).expect("it is a profile")
}

#[test]
fn each_cell_of_a_configuration_is_measured_and_has_its_batch_sizes() {
    let place = Place::new();
    add_translation(&place);
    let Some(shown) = printed(&place, "model", false) else { return };
    let shown = shown.expect("it is measured");
    for expected in [
        "\ncell 'encoder'\n",
        "\ncell 'decoder'\n",
        "\nbatch_sizes, of which the last is the smallest within 5 % of the best throughput\n  encoder: [1",
        "; the configuration sets 256\n",
        "\na server with this profile uses them where the configuration sets none\nin model.yaml:\n  cells:\n",
    ] {
        assert!(shown.contains(expected), "{expected} in {shown}");
    }
    assert!(!shown.contains("vary in length"), "{shown}");
    assert_eq!(place.kept().len(), 1);

    let json = printed(&place, "model", true).expect("there is a runtime").expect("it is measured");
    assert_eq!(place.kept().len(), 1, "the same cells have the same file");
    let profile = profile_of(&serde_json::from_str(&json).expect("it is JSON"));
    let names: Vec<&str> = profile.cells.iter().map(|cell| cell.name.as_str()).collect();
    assert_eq!((names, profile.cuts.len()), (vec!["encoder", "decoder"], 0));
    for cell in &profile.cells {
        assert_eq!(cell.times.rows()[..4], [1, 2, 4, 8], "{}", cell.name);
        assert_eq!(cell.times.lengths(), [0], "{}", cell.name);
    }

    // A server loads it with these sizes and times.
    let (_pool, loader) = place.loader(runtime().expect("there is a runtime"));
    let request = read_model(&place.repository(), "model", &*loader).expect("it is there");
    let file = Store::new(place.profiles()).path(&loader.profile_key(&request).expect("it has files"));
    assert_eq!(place.kept(), std::slice::from_ref(&file));
    // A busy machine may give times that are not trusted.
    if profile.doubt().is_none() {
        let advised = loader.by_profile(&request).expect("its profile is trusted");
        let cells = &advised.unfold.expect("it has cells").cells;
        assert_eq!(cells[0].batch_sizes.as_ref(), Some(&profile.cells[0].batch_sizes));
        assert_eq!(cells[1].max_rows(), 256, "as configured");
        let latencies = advised.knobs.latencies.expect("they are measured").stages;
        assert_eq!(
            latencies.iter().map(Vec::len).collect::<Vec<_>>(),
            [0, 1].map(|at| profile.cells[at].times.rows().len())
        );
    }

    let csv = place.repository().with_file_name("figures.csv");
    let words =
        ["simulate", "--model", "model", "--policy", "cellular", "--rate", "50", "--requests", "200", "--table"];
    let paths = [file.into_os_string(), "--csv".into(), csv.clone().into_os_string()];
    let command = SimulateArgs::augment_args(clap::Command::new("simulate"));
    let matches = command.get_matches_from(words.map(OsString::from).into_iter().chain(paths));
    simulate::run(&SimulateArgs::from_arg_matches(&matches).expect("they are right")).expect("it is a table");
    assert!(text(&csv).lines().nth(1).is_some_and(|line| line.contains("cellular")), "{}", text(&csv));
}

#[test]
fn recurrent_layers_are_measured_by_steps_as_they_are_served() {
    let place = Place::new();
    place.add("model", "max_batch_size: 8\n", &recurrent());
    let Some(json) = printed(&place, "model", true) else { return };
    let profile = profile_of(&serde_json::from_str(&json.expect("it is measured")).expect("it is JSON"));
    let [chain] = &profile.cells[..] else { panic!("one chain: {profile:?}") };
    assert!(chain.chunk.is_some_and(|chunk| chunk.lengths), "{chain:?}");
    assert_eq!(chain.times.lengths(), [1, 4, 16, 64]);
    assert_eq!(chain.max_rows, None, "the configuration cannot set it");
}

#[test]
fn cells_that_hold_and_grow_tensors_are_measured_at_lengths() {
    let place = Place::new();
    add_example(&place, "transformer", &[]);
    let Some(json) = printed(&place, "model", true) else { return };
    let profile = profile_of(&serde_json::from_str(&json.expect("it is measured")).expect("it is JSON"));
    for cell in &profile.cells {
        assert_eq!(cell.times.lengths()[..2], [16, 64], "{}", cell.name);
    }
}

#[test]
fn the_program_of_a_model_with_sequences_is_measured_in_its_batches() {
    let place = Place::new();
    write_model(&place, "tests", "total");
    let Some(json) = printed(&place, "total", true) else { return };
    let profile = profile_of(&serde_json::from_str(&json.expect("it is measured")).expect("it is JSON"));
    let [program] = &profile.cells[..] else { panic!("one program: {profile:?}") };
    assert_eq!(program.times.rows().last().copied(), program.max_rows, "clients' batches are no larger");
    let shown = printed(&place, "total", false).expect("there is a runtime").expect("it is measured");
    assert!(!shown.contains("in model.yaml:"), "it lists no cells: {shown}");
}

/// Sends four leaves, two nodes over them, and the root.
async fn send_tree(served: &Served) {
    let ints = |shape: &[i64], data: Bytes| Some(InputTensor { shape: Dims::from_slice(shape), data });
    let tokens = Bytes::copy_from_slice(bytemuck::cast_slice(&[5_i64, 6, 7, 8, 0, 0, 0]));
    let children = [[-1, -1], [-1, -1], [-1, -1], [-1, -1], [0, 1], [2, 3], [4, 5_i32]];
    let children = Bytes::copy_from_slice(bytemuck::cast_slice(&children));
    let inputs = vec![ints(&[1, 7], tokens), ints(&[1, 7, 2], children)];
    served.handle().submit(InferRequest::new(1, inputs)).await.expect("it answers");
}

#[tokio::test(flavor = "multi_thread")]
async fn cells_without_sizes_are_measured_while_they_serve_if_the_policy_is_auto() {
    let Some(runtime) = runtime() else { return };
    let place = Place::new();
    let auto = "# A binary tree LSTM.";
    add_example(&place, "tree-lstm", &[OPEN_LEAF, (auto, "batching: { policy: auto }\n# A binary tree LSTM.")]);
    let served = place.serve_and_measure(runtime, Duration::from_secs(2)).await;
    let (_pool, loader) = place.loader(runtime);
    let request = read_model(&place.repository(), "model", &*loader).expect("it is there");
    let (store, key) = (Store::new(place.profiles()), loader.profile_key(&request).expect("it has files"));
    let measured = async {
        loop {
            send_tree(&served).await;
            if let Some(profile) = store.read(&key) {
                break profile;
            }
        }
    };
    let measured = tokio::time::timeout(Duration::from_secs(120), measured).await;
    let profile = measured.expect("it is measured in the end");
    assert_eq!(profile.cells.iter().map(|cell| cell.max_rows).collect::<Vec<_>>(), [None, Some(64)]);
    send_tree(&served).await;
}

#[tokio::test]
async fn cells_run_in_the_batches_of_their_profile() {
    let Some(runtime) = runtime() else { return };
    let mut tasks = Vec::new();
    for sizes in [None, Some(vec![1])] {
        let place = Place::new();
        add_example(&place, "tree-lstm", &[OPEN_LEAF]);
        let (_pool, loader) = place.loader(runtime);
        if let Some(sizes) = sizes {
            let request = read_model(&place.repository(), "model", &*loader).expect("it is there");
            let budget = Duration::from_secs(1);
            let trials = Trials { budget, before_run: &|_, _| true, wants_stages: &|_| true, by_operators: false };
            let mut profile = loader.measure(&request, trials).expect("it runs");
            for cell in &mut profile.cells {
                cell.batch_sizes.clone_from(&sizes);
                // Whatever else the machine does.
                cell.times.stages[0]
                    .iter_mut()
                    .for_each(|point| (point.median_ns, point.p99_ns, point.runs) = (9, 9, 9));
            }
            let key = loader.profile_key(&request).expect("it has files");
            Store::new(place.profiles()).write(&key, &profile).expect("the directory is ours");
        }
        let served = place.serve(runtime).await;
        send_tree(&served).await;
        tasks.push(served.handle().stats().reading().stages[0].tasks);
    }
    assert_eq!(tasks, [1, 4], "tasks of the leaves, whose batches the configuration leaves open");
}
