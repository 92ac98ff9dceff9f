//! Models and profiles on disk.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use paternoster_engine::onnxruntime::Runtime;
use paternoster_executor::{InferError, InferRequest, ModelHandle, Pool, PoolOptions, Response};
use paternoster_model::{Dims, InputTensor};
use paternoster_onnx::Model;
use paternoster_profile::Store;
use paternoster_repository::{Options, Overrides, PoolLoader, Repository};
use tempfile::TempDir;

/// A model repository, and a directory for profiles.
pub(crate) struct Place {
    root: TempDir,
}

impl Place {
    pub(crate) fn new() -> Self {
        Self { root: tempfile::tempdir().expect("a folder") }
    }

    pub(crate) fn repository(&self) -> PathBuf {
        self.root.path().join("models")
    }

    pub(crate) fn profiles(&self) -> PathBuf {
        self.root.path().join("profiles")
    }

    /// Returns the files in the directory for profiles.
    pub(crate) fn kept(&self) -> Vec<PathBuf> {
        let Ok(entries) = fs::read_dir(self.profiles()) else { return Vec::new() };
        entries.flatten().map(|entry| entry.path()).collect()
    }

    /// Adds a model.
    pub(crate) fn add(&self, name: &str, yaml: &str, model: &Model) {
        let directory = self.repository().join(name);
        fs::create_dir_all(directory.join("1")).expect("a folder");
        fs::write(directory.join("model.yaml"), yaml).expect("a file");
        model.write(&self.program(name)).expect("the folder takes the model");
    }

    /// Loads the model 'model', and measures it while it serves.
    pub(crate) async fn serve_and_measure(&self, runtime: &Runtime, limit: Duration) -> Served {
        let pool = Pool::start(&PoolOptions::default()).expect("threads start");
        let loader = PoolLoader::new(pool, Ok(runtime.clone())).with_profiles(Store::new(self.profiles()));
        self.serve_with(Arc::new(loader.with_background_profiles(limit))).await
    }

    /// Creates a loader that uses the profiles of this place.
    pub(crate) fn loader(&self, runtime: &Runtime) -> (Arc<Pool>, Arc<PoolLoader>) {
        let pool = Pool::start(&PoolOptions::default()).expect("threads start");
        let loader = PoolLoader::new(Arc::clone(&pool), Ok(runtime.clone()));
        (pool, Arc::new(loader.with_profiles(Store::new(self.profiles()))))
    }

    /// Loads the model 'model'.
    pub(crate) async fn serve(&self, runtime: &Runtime) -> Served {
        let (_, loader) = self.loader(runtime);
        self.serve_with(loader).await
    }

    async fn serve_with(&self, loader: Arc<PoolLoader>) -> Served {
        let options = Options::on_request(self.repository());
        let repository = Repository::start(options, loader).await.expect("the folder is readable");
        repository.load("model", Overrides::default()).await.expect("it loads");
        Served { repository }
    }

    pub(crate) fn program(&self, name: &str) -> PathBuf {
        self.repository().join(name).join("1").join("model.onnx")
    }
}

/// Returns a file's text.
pub(crate) fn text(path: &Path) -> String {
    fs::read_to_string(path).expect("it is there")
}

/// The model 'model', loaded.
pub(crate) struct Served {
    pub repository: Arc<Repository>,
}

impl Served {
    /// Returns the handle that serves at the moment.
    pub(crate) fn handle(&self) -> Arc<ModelHandle> {
        self.repository.resolve("model", "").expect("it is loaded").servable().model().expect("a model").clone()
    }

    /// Returns its number of stages at the moment.
    pub(crate) fn stages(&self) -> usize {
        self.handle().stats().reading().stages.len().max(1)
    }

    /// Returns the response to one row of numbers.
    pub(crate) async fn answer(&self, row: &[f32]) -> Result<Response, InferError> {
        let shape = Dims::from_slice(&[1, row.len() as i64]);
        self.send(InputTensor { shape, data: Bytes::copy_from_slice(bytemuck::cast_slice(row)) }).await
    }

    /// Sends an image and checks the response's shape.
    pub(crate) async fn classify(&self) {
        let shape = Dims::from_slice(&[1, 3, 224, 224]);
        let image = InputTensor { shape, data: Bytes::from(vec![0; 3 * 224 * 224 * 4]) };
        let response = self.send(image).await.expect("it answers");
        assert_eq!(response.outputs[0].shape.as_slice(), [1, 1000]);
    }

    async fn send(&self, input: InputTensor) -> Result<Response, InferError> {
        let inputs = vec![Some(input)];
        let request = InferRequest::new(1, inputs);
        self.handle().submit(request).await
    }
}

/// Returns the numbers of a response's first output.
pub(crate) fn values(response: &Response) -> Vec<f32> {
    response.outputs[0].data.as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect()
}
