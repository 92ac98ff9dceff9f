//! Models whose weights lie in separate files. Whole, cut into stages, made of cells, profiled and sliced, they behave
//! as with the weights in the model's own file.
//!
//! Needs ONNX Runtime, from `ORT_DYLIB_PATH` or where `make` puts it. Without the library each test prints a note and
//! passes.

use std::{
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use bytes::Bytes;
use clap::{Args, FromArgMatches};
use paternoster::cli::{
    DeviceArgs,
    model_args::ModelArgs,
    models::{self, ModelsArgs},
    profile::{self, Cutting, PlotArgs, ProfileArgs},
    slice::{self, SliceArgs},
};
use paternoster_engine::onnxruntime::{OnnxProgram, Runtime};
use paternoster_executor::{InferRequest, Pool, PoolOptions};
use paternoster_model::{Dims, InputTensor};
use paternoster_onnx::{
    Model, SealedModel,
    pb::{StringStringEntryProto, TensorProto, tensor_proto::DataLocation},
    zoo::{self, Width},
};
use paternoster_repository::{Options, Overrides, PoolLoader, Repository};
use paternoster_testing::runtime::runtime;
use tempfile::TempDir;

/// Moves every weight of a model's file into a separate file next to it.
fn put_apart(program: &Path) {
    let mut model = Model::read(program).expect("it is a model");
    let name = program.file_name().expect("a file").to_string_lossy().into_owned() + ".data";
    let mut data = Vec::new();
    let graph = model.0.graph.as_mut().expect("a graph");
    let constants = graph.node.iter_mut().flat_map(|node| &mut node.attribute).filter_map(|it| it.t.as_deref_mut());
    for tensor in graph.initializer.iter_mut().chain(constants) {
        put_tensor_apart(tensor, &name, &mut data);
    }
    assert!(!data.is_empty(), "it has weights");
    model.write(program).expect("the folder takes it");
    fs::write(program.with_file_name(name), data).expect("the folder takes it");
}

fn put_tensor_apart(tensor: &mut TensorProto, location: &str, data: &mut Vec<u8>) {
    let Some(raw) = tensor.raw_data.take() else { return };
    let entry = |(key, value): (&str, String)| StringStringEntryProto { key: Some(key.to_owned()), value: Some(value) };
    let entries =
        [("location", location.to_owned()), ("offset", data.len().to_string()), ("length", raw.len().to_string())];
    tensor.external_data = entries.map(entry).to_vec();
    tensor.data_location = Some(DataLocation::External.into());
    data.extend_from_slice(&raw);
}

/// A repository that has each model twice: unchanged in `inside`, and with separate weights in `apart`.
struct Twice {
    root: TempDir,
}

impl Twice {
    /// Creates MobileNet, cut into three stages.
    fn of_stages() -> Self {
        let twice = Self { root: tempfile::tempdir().expect("a folder") };
        for repository in ["inside", "apart"] {
            let directory = twice.root.path().join(repository).join("model");
            fs::create_dir_all(directory.join("1")).expect("a folder");
            fs::write(directory.join("model.yaml"), "max_batch_size: 2\nstages: 3\n").expect("a file");
            let model = zoo::mobilenet(Width::QUARTER).expect("it is sound");
            model.write(&directory.join("1/model.onnx")).expect("a file");
        }
        put_apart(&twice.repository("apart").join("model/1/model.onnx"));
        twice
    }

    /// Creates a translation model of two cells.
    fn of_cells() -> Self {
        let twice = Self { root: tempfile::tempdir().expect("a folder") };
        for repository in ["inside", "apart"] {
            let out = twice.repository(repository);
            let words = ["models", "--only", "seq2seq", "--quarter", "--out"].map(OsString::from);
            let command = ModelsArgs::augment_args(clap::Command::new("models"));
            let matches = command.get_matches_from(words.into_iter().chain([out.into()]));
            let args = ModelsArgs::from_arg_matches(&matches).expect("they are right");
            models::run(&args).expect("they are written");
        }
        for cell in ["encoder", "decoder"] {
            put_apart(&twice.repository("apart").join(format!("seq2seq/1/{cell}.onnx")));
        }
        twice
    }

    fn repository(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    /// Returns the answers of both models to a request.
    async fn answers(&self, runtime: &Runtime, model: &str, input: &InputTensor) -> [Vec<Bytes>; 2] {
        let mut answers = [Vec::new(), Vec::new()];
        for (repository, answer) in ["inside", "apart"].iter().zip(&mut answers) {
            let pool = Pool::start(&PoolOptions::default()).expect("threads start");
            let options = Options::on_request(self.repository(repository));
            let loader = Arc::new(PoolLoader::new(pool, Ok(runtime.clone())));
            let served = Repository::start(options, loader).await.expect("the folder is readable");
            served.load(model, Overrides::default()).await.expect("it loads");
            let inputs = vec![Some(input.clone())];
            let request = InferRequest::new(1, inputs);
            let handle = served.resolve(model, "").expect("it is ready").servable().clone();
            let response = handle.submit(request).await.expect("it answers");
            *answer = response.outputs.into_iter().map(|output| output.data).collect();
        }
        answers
    }
}

#[tokio::test]
async fn a_model_cut_into_stages_finds_its_weights() {
    let Some(runtime) = runtime() else { return };
    let pixels: Vec<f32> = (0..3 * 224 * 224).map(|pixel| (pixel % 251) as f32 / 251.0).collect();
    let data = Bytes::copy_from_slice(bytemuck::cast_slice(&pixels));
    let image = InputTensor { shape: Dims::from_slice(&[1, 3, 224, 224]), data };
    let [inside, apart] = Twice::of_stages().answers(runtime, "model", &image).await;
    assert_eq!(inside, apart);
}

#[tokio::test]
async fn each_cell_finds_its_weights() {
    let Some(runtime) = runtime() else { return };
    let tokens: [i64; 5] = [3, 1, 4, 1, 5];
    let data = Bytes::copy_from_slice(bytemuck::cast_slice(&tokens));
    let sentence = InputTensor { shape: Dims::from_slice(&[1, 5]), data };
    let [inside, apart] = Twice::of_cells().answers(runtime, "seq2seq", &sentence).await;
    assert_eq!(inside, apart);
    assert!(!inside[0].is_empty());
}

#[test]
fn a_model_is_sliced_and_profiled_with_its_weights_apart() {
    let twice = Twice::of_stages();
    let sliced = |repository: &str| {
        let model = twice.repository(repository).join("model");
        let mut out = Vec::new();
        let args = SliceArgs { model: ModelArgs::at(model), stages: Some(3), profile: None, json: true };
        slice::run_with(&args, &mut out).expect("it can be cut");
        String::from_utf8(out).expect("it is text")
    };
    assert_eq!(sliced("apart"), sliced("inside"));
    let Some(runtime) = runtime() else { return };
    let args = ProfileArgs {
        model: ModelArgs::of(twice.repository("apart"), "model"),
        budget_s: 1,
        profile_directory: Some(twice.repository("profiles")),
        plots: PlotArgs::default(),
        cut: Cutting::default(),
        engines: false,
        sizes: Vec::new(),
        json: false,
        device: DeviceArgs {
            cpu_lanes: 1,
            cpu_shards: 1,
            task_time_limit_secs: 60,
            last_lane_limit_ms: 50,
            cpu_threads: 1,
            max_output_bytes: None,
            max_sequence_state_bytes: None,
            max_memory_bytes: None,
            onnxruntime_library: None,
            openvino_library: None,
        },
    };
    let mut out = Vec::new();
    profile::run_with(&args, Ok(runtime.clone()), &mut out).expect("it is measured");
    let shown = String::from_utf8(out).expect("it is text");
    assert!(shown.contains("\n3 stages of even time\n"), "{shown}");
}

#[test]
fn equal_graphs_with_other_weights_are_other_programs() {
    let Some(runtime) = runtime() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let origin = |name: &str, change: Option<usize>| {
        let program = folder.path().join(name).join("model.onnx");
        fs::create_dir(folder.path().join(name)).expect("a folder");
        zoo::mobilenet(Width::QUARTER).expect("it is sound").write(&program).expect("a file");
        put_apart(&program);
        let weights = program.with_file_name("model.onnx.data");
        let mut data = fs::read(&weights).expect("a file");
        if let Some(at) = change {
            data[at] ^= 1;
            fs::write(&weights, data).expect("a file");
        }
        let sealed = SealedModel::read(&program).expect("all is there");
        let outside = sealed.weights().count();
        assert!(outside > 0, "large weights stay outside");
        let compiled = OnnxProgram::compile_sealed(runtime, &sealed, &[], &[]).expect("it compiles");
        paternoster_engine::Program::origin(&compiled).expect("it is known")
    };
    let first = origin("first", None);
    assert_eq!(first, origin("second", None), "the same weights are shared");
    let end = fs::metadata(folder.path().join("first/model.onnx.data")).expect("a file").len() as usize;
    // The classifier's matrix is the largest weight. Its middle is outside of the graph in every case.
    assert_ne!(first, origin("third", Some(end - (100 << 10))));
}
