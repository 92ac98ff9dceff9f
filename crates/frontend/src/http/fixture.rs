//! A server's services over small models that need no engine, for tests and fuzzing.

use std::{fs, path::Path, sync::Arc};

use bytes::{BufMut, Bytes, BytesMut};
use paternoster_engine::{Batch, BatchInput, BatchOutput, EngineError, Execution, Program, Repeat};
use paternoster_executor::{ModelHandle, Pool, PoolOptions};
use paternoster_model::{DataType, Dims};
use paternoster_observe::{
    LogOptions, Logging,
    budget::Budgets,
    trace::{TraceOptions, Tracer},
};
use paternoster_onnx::{Port, PortDim, Signature};
use paternoster_repository::{
    ControlMode, LoadAttempt, LoadError, LoadErrorKind, Loader, Options, Repository, ResolvedVersion,
};
use paternoster_wire::SharedMemory;
use tempfile::TempDir;

use crate::{Readiness, Services};

/// Services over a temporary model directory, which exists as long as this value.
pub(super) struct Fixture {
    pub(super) services: Services,
    _folder: TempDir,
}

/// The models: `ident` with versions 1 and 3 for rows of 16 FP32, `text` for BYTES, and `half` for FP16 return their
/// input; `repeat` responds as often as the first element of its input says.
const MODELS: [(&str, &[&str], &str); 4] = [
    ("ident", &["1", "3"], "TYPE_FP32 dims: 16"),
    ("text", &["1"], "TYPE_STRING dims: -1"),
    ("half", &["1"], "TYPE_FP16 dims: -1"),
    ("repeat", &["1"], "TYPE_FP32 dims: -1"),
];

impl Fixture {
    /// Starts services with these budgets.
    pub(super) async fn start(budgets: Budgets) -> Self {
        let folder = TempDir::new().expect("a folder");
        for (name, versions, tensor) in MODELS {
            let model = folder.path().join(name);
            for version in versions {
                let version = model.join(version);
                fs::create_dir_all(&version).expect("a folder");
                fs::write(version.join("model.onnx"), []).expect("a file");
            }
            fs::write(model.join("config.pbtxt"), configuration(name, tensor)).expect("a file");
        }
        let pool = Pool::start(&PoolOptions::default()).expect("threads");
        let options =
            Options { mode: ControlMode::None, auto_complete: false, ..Options::on_request(folder.path().to_owned()) };
        let loader = Arc::new(EchoLoader(Arc::clone(&pool)));
        let repository = Repository::start(options, loader).await.expect("a repository");
        let services = Services {
            server_name: "paternoster".to_owned(),
            readiness: Readiness::new(Arc::clone(&repository), pool.responsiveness()),
            repository,
            shared_memory: Arc::new(SharedMemory::new(false)),
            pool,
            log: Logging::detached(LogOptions::default()).0,
            tracer: Arc::new(Tracer::start(TraceOptions::default()).expect("no thread is needed")),
            budgets,
            clients: None,
        };
        Self { services, _folder: folder }
    }
}

fn configuration(name: &str, tensor: &str) -> String {
    let kind = match name {
        "repeat" => "backend: \"repeat\" model_transaction_policy { decoupled: true }",
        _ => "backend: \"onnxruntime\" platform: \"onnxruntime_onnx\"",
    };
    format!(
        r#"name: "{name}" {kind} max_batch_size: 4 version_policy {{ all {{ }} }}
        input {{ name: "INPUT0" data_type: {tensor} }}
        output {{ name: "OUTPUT0" data_type: {tensor} }}
        instance_group {{ kind: KIND_CPU count: 1 }}"#
    )
}

struct EchoLoader(Arc<Pool>);

impl Loader for EchoLoader {
    fn load(&self, request: ResolvedVersion, _: &LoadAttempt) -> Result<Arc<ModelHandle>, LoadError> {
        let program: Arc<dyn Program> = match request.spec.name.as_str() {
            "repeat" => Arc::new(Repeat { decoupled: true }),
            _ => Arc::new(Echo),
        };
        self.0
            .bring_up(request.spec, request.knobs, program)
            .map(Arc::new)
            .map_err(|reason| LoadError::new(LoadErrorKind::Engine, reason))
    }

    fn signature(&self, program: &Path, _: Option<&Bytes>) -> Result<Signature, LoadError> {
        let is_of = |model: &str| program.components().any(|part| part.as_os_str() == model);
        let datatype = match () {
            () if is_of("text") => DataType::Bytes,
            () if is_of("half") => DataType::Fp16,
            () => DataType::Fp32,
        };
        let port = |name: &str| Port::tensor(name, datatype, &[PortDim::Unknown, PortDim::Unknown]);
        Ok(Signature { inputs: vec![port("INPUT0")], outputs: vec![port("OUTPUT0")], ..Signature::default() })
    }
}

/// Returns its only input.
struct Echo;

impl Program for Echo {
    fn run(&self, batch: &Batch<'_>) -> Result<Execution, EngineError> {
        let (shape, data) = match batch.inputs {
            [BatchInput::Dense { shape, data }] => (shape, Bytes::copy_from_slice(data)),
            [BatchInput::Strings { shape, elements }] => {
                let mut data = BytesMut::new();
                for element in *elements {
                    data.put_u32_le(u32::try_from(element.len()).expect("it came with such a length"));
                    data.put_slice(element);
                }
                (shape, data.freeze())
            }
            _ => return Err(EngineError::new("one input is expected")),
        };
        let output = BatchOutput { shape: Dims::from_slice(shape), data };
        Ok(Execution { outputs: vec![output], ..Execution::default() })
    }
}
