//! Every example model on the pool, whole, cut into stages and made of cells, with both engines.

use std::{ffi::OsString, fs, path::Path, sync::Arc};

use bytes::Bytes;
use clap::{Args, FromArgMatches};
use paternoster::cli::models::{self, ModelsArgs};
use paternoster_engine::Engines;
use paternoster_executor::{InferRequest, OutputTensor, Pool, PoolOptions};
use paternoster_model::{DataType, Dims, InputTensor, ModelSpec, TensorSpec};
use paternoster_repository::{Options, Overrides, PoolLoader, Repository};
use tempfile::TempDir;

use crate::openvino::rig::{FP32, deviation, engines};

/// Length of the varying axes in requests.
const LENGTH: i64 = 5;

/// Writes example models, and adds a key to the `model.yaml` of each.
fn written(names: &[&str], key: &str) -> TempDir {
    let root = tempfile::tempdir().expect("a folder");
    let words = ["models", "--quarter", "--only", &names.join(","), "--out"].map(OsString::from);
    let command = ModelsArgs::augment_args(clap::Command::new("models"));
    let matches = command.get_matches_from(words.into_iter().chain([root.path().into()]));
    models::run(&ModelsArgs::from_arg_matches(&matches).expect("they are right")).expect("they are written");
    for name in names {
        add_key(&root.path().join(name), key);
    }
    root
}

/// Adds a key to a model's configuration, in the configuration's own format.
fn add_key(directory: &Path, key: &str) {
    let (name, value) = key.split_once(": ").expect("a key and its value");
    let pbtxt = directory.join("config.pbtxt");
    let (file, line) = if pbtxt.exists() {
        (pbtxt, format!("parameters {{ key: \"{name}\" value {{ string_value: \"{value}\" }} }}\n"))
    } else {
        (directory.join("model.yaml"), format!("{key}\n"))
    };
    let text = fs::read_to_string(&file).unwrap_or_default();
    fs::write(file, format!("{text}\n{line}")).expect("the folder takes it");
}

/// Returns a request for a model: different tokens, frames of any numbers, or a tree with two children at each inner
/// node.
fn request(spec: &ModelSpec) -> InferRequest {
    let inputs = spec.inputs.iter().enumerate().map(|(number, input)| Some(tensor(spec, number, input))).collect();
    InferRequest::new(1, inputs)
}

fn tensor(spec: &ModelSpec, number: usize, input: &TensorSpec) -> InputTensor {
    let length = if input.datatype == DataType::Fp32 { 40 } else { LENGTH };
    let dims = input.dims.iter().map(|dim| if *dim < 0 { length } else { *dim });
    let shape: Dims = spec.has_batch_axis().then_some(1).into_iter().chain(dims).collect();
    let count: i64 = shape.iter().product();
    // Nodes 2 and 4 have the two nodes before them as children.
    let children: [i32; 10] = [-1, -1, -1, -1, 0, 1, -1, -1, 2, 3];
    let data: Vec<u8> = (0..count)
        .flat_map(|place| match input.datatype {
            DataType::Fp32 => {
                (((place * 7919 + number as i64 * 1299) % 10_007) as f32 / 5003.5 - 1.0).to_le_bytes().to_vec()
            }
            DataType::Int64 => (3 + place * 17).to_le_bytes().to_vec(),
            DataType::Int32 => children[place as usize].to_le_bytes().to_vec(),
            other => panic!("no elements of {other}"),
        })
        .collect();
    InputTensor { shape, data: Bytes::from(data) }
}

type Answer = Result<(Arc<ModelSpec>, Vec<OutputTensor>), String>;

/// Returns the response of each model to a request, or why it does not load.
async fn answers(engines: Engines, root: &TempDir, names: &[&str]) -> Vec<Answer> {
    let pool = Pool::start(&PoolOptions::default()).expect("threads start");
    let loader = Arc::new(PoolLoader::new(pool, engines));
    let served =
        Repository::start(Options::on_request(root.path().to_owned()), loader).await.expect("the folder is readable");
    let mut answers = Vec::new();
    for name in names {
        if let Err(reason) = served.load(name, Overrides::default()).await {
            answers.push(Err(reason.to_string()));
            continue;
        }
        let handle = served.resolve(name, "").expect("it is ready").servable().clone();
        let response = handle.submit(request(handle.spec())).await.unwrap_or_else(|error| panic!("{name}: {error}"));
        answers.push(Ok((Arc::clone(handle.spec()), response.outputs)));
        served.unload(name, false).await.expect("it goes");
    }
    answers
}

/// Lets the slow model run fewer rounds of its loop, whose number is in its file.
fn shorten(file: &Path) {
    let mut bytes = fs::read(file).expect("it is written");
    let rounds = 150_i64.to_le_bytes();
    let at = bytes.windows(rounds.len()).position(|window| *window == rounds).expect("it has a number of rounds");
    bytes[at..at + rounds.len()].copy_from_slice(&10_i64.to_le_bytes());
    fs::write(file, bytes).expect("the folder takes it");
}

/// Checks that models answer the same with both engines.
async fn check(names: &[&str], key: &str) {
    let (Some(one), Some(other)) = (engines(), engines()) else { return };
    let (plain, changed) = (written(names, "backend: onnxruntime"), written(names, key));
    if names.contains(&"slow") {
        for folder in [&plain, &changed] {
            shorten(&folder.path().join("slow/1/model.onnx"));
        }
    }
    let expected = answers(one, &plain, names).await;
    let given = answers(other, &changed, names).await;
    for ((name, expected), given) in names.iter().zip(expected).zip(given) {
        let (spec, expected) = expected.unwrap_or_else(|reason| panic!("{name}: {reason}"));
        let (_, given) = given.unwrap_or_else(|reason| panic!("{name}: {reason}"));
        for ((output, expected), given) in spec.outputs.iter().zip(&expected).zip(&given) {
            assert_eq!(expected.shape, given.shape, "{name}, '{}'", output.name);
            if output.datatype == DataType::Fp32 {
                let far = deviation(&given.data, &expected.data);
                assert!(far <= FP32, "{name}, '{}': {far}", output.name);
            } else {
                assert_eq!(expected.data, given.data, "{name}, '{}'", output.name);
            }
        }
    }
}

#[tokio::test]
async fn small_models() {
    check(&["identity", "addsub", "variable", "slow"], "engine: openvino").await;
}

#[tokio::test]
#[ignore = "one network of many: make nightly"]
async fn networks() {
    check(&["mobilenet", "resnet50", "vgg19", "unet", "linknet", "bert-base"], "engine: openvino").await;
}

#[tokio::test]
#[ignore = "one network of many: make nightly"]
async fn models_of_cells() {
    let names = ["lstm", "lstm-projected", "seq2seq", "tree-lstm", "gnmt", "deepspeech2", "las", "transformer"];
    check(&names, "engine: openvino").await;
}

/// All stages use the same engine, and tensors between them are fp32.
#[tokio::test]
async fn stages() {
    let Some(engines) = engines() else { return };
    let names = ["mobilenet"];
    let whole = answers(engines, &written(&names, "engine: openvino"), &names).await;
    let cut = written(&names, "engine: openvino");
    add_key(&cut.path().join("mobilenet"), "stages: 3");
    let cut = answers(crate::openvino::rig::engines().expect("they were there"), &cut, &names).await;
    let outputs = |answer: &Answer| answer.as_ref().expect("it loads").1[0].data.clone();
    let far = deviation(&outputs(&cut[0]), &outputs(&whole[0]));
    assert!(far <= FP32, "{far}");
}

/// Cells of one model may use different engines.
#[tokio::test]
async fn cells_by_different_engines() {
    let Some(one) = engines() else { return };
    let names = ["seq2seq"];
    let expected = answers(one, &written(&names, "backend: onnxruntime"), &names).await;
    let mixed = written(&names, "backend: onnxruntime");
    let file = mixed.path().join("seq2seq/model.yaml");
    let text = fs::read_to_string(&file).expect("it was written");
    let changed =
        text.replacen("program: encoder.onnx,", "program: encoder.onnx, engine: openvino, precision: fp32,", 1);
    assert_ne!(text, changed, "it has a cell 'encoder'");
    fs::write(&file, changed).expect("the folder takes it");
    let given = answers(engines().expect("they were there"), &mixed, &names).await;
    let tokens = |answer: &Answer| answer.as_ref().expect("it loads").1[0].data.clone();
    assert_eq!(tokens(&expected[0]), tokens(&given[0]));
}

#[tokio::test]
async fn strings_are_refused_by_name() {
    let Some(engines) = engines() else { return };
    let refused = answers(engines, &written(&["strings"], "engine: openvino"), &["strings"]).await;
    let reason = refused[0].as_ref().expect_err("it takes strings");
    assert!(reason.contains("holds strings, which the engine openvino does not take"), "{reason}");
}
