//! Models that need no directory, for tests and fuzzing.

use std::sync::Arc;

use super::{Models, Problem, ServerInfo};
use crate::{
    model::{DataType, ModelSpec, TensorSpec},
    observe::{LoadedVersion, ModelStats},
    repository::config::pb::ModelConfig,
    wire::{
        self,
        pb::{ModelMetadataResponse, ServerMetadataResponse},
    },
};

/// One model `ident` with versions 1 and 3, of which the latest is meant where none is named.
pub(super) struct Fake {
    pub ready: bool,
    pub loaded: Vec<LoadedVersion>,
}

impl Fake {
    pub fn new(ready: bool) -> Self {
        let version =
            |version| LoadedVersion { name: "ident".to_owned(), version, stats: Arc::new(ModelStats::new(4)) };
        Self { ready, loaded: vec![version(1), version(3)] }
    }

    fn find(&self, name: &str, version: &str) -> Result<&LoadedVersion, Problem> {
        let wanted = match version {
            "" => 3,
            given => given.parse().map_err(|_| Problem::Invalid(format!("version '{given}' is no number")))?,
        };
        let found = self.loaded.iter().find(|loaded| loaded.name == name && loaded.version == wanted);
        found.ok_or_else(|| Problem::NotFound(format!("Request for unknown model: '{name}' is not found")))
    }
}

/// What such a server says of itself.
pub(super) fn info() -> ServerInfo {
    let metadata = ServerMetadataResponse {
        name: "paternoster".to_owned(),
        version: "0.1.0".to_owned(),
        extensions: vec!["statistics".to_owned()],
    };
    ServerInfo { metadata, grpc_port: Some(9001) }
}

impl Models for Fake {
    fn server_live(&self) -> bool {
        true
    }

    fn server_ready(&self) -> bool {
        self.ready
    }

    fn model_ready(&self, name: &str, version: &str) -> Result<bool, Problem> {
        match self.find(name, version) {
            Err(Problem::NotFound(_)) => Ok(false),
            found => found.map(|_| true),
        }
    }

    fn metadata(&self, name: &str, version: &str) -> Result<ModelMetadataResponse, Problem> {
        let version = self.find(name, version)?.version;
        let tensor = |name: &str| TensorSpec::new(name, DataType::Fp32, &[16]);
        let spec = ModelSpec {
            name: name.to_owned(),
            version,
            max_batch_size: 4,
            inputs: vec![tensor("INPUT0")],
            outputs: vec![tensor("OUTPUT0")],
            symbols: Vec::new(),
            decoupled: false,
        };
        Ok(wire::metadata::metadata(&spec, &[1, 3], "onnxruntime_onnx"))
    }

    fn config(&self, name: &str, version: &str) -> Result<Arc<ModelConfig>, Problem> {
        self.find(name, version)?;
        Ok(Arc::new(ModelConfig { name: name.to_owned(), max_batch_size: 4, ..ModelConfig::default() }))
    }

    fn loaded(&self) -> Vec<LoadedVersion> {
        self.loaded.clone()
    }
}
