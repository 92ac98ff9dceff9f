//! The test models: identity, one behind a gate, a repeating one, and a broken one.

use std::{fs, path::Path, sync::Arc};

use bytes::Bytes;
use crossbeam_channel::{Receiver, Sender};
use paternoster_engine::{Program, Repeat};
use paternoster_executor::{ModelHandle, Pool};
use paternoster_model::DataType;
use paternoster_onnx::{Port, PortDim, Signature};
use paternoster_repository::{
    ControlMode, LoadAttempt, LoadError, LoadErrorKind, Loader, Options, Repository, ResolvedVersion,
};
use paternoster_testing::program::{FakeProgram, identity};
use tempfile::TempDir;
use tokio::sync::mpsc;

/// The models of a server.
pub(crate) struct Models {
    names: Vec<&'static str>,
    mode: ControlMode,
}

impl Models {
    /// Returns `identity`, `gated` and `repeat`, loaded at the start.
    pub(crate) fn all() -> Self {
        Self { names: vec!["gated", "identity", "repeat"], mode: ControlMode::None }
    }

    /// Adds a model that fails to load.
    pub(crate) fn with_broken(mut self) -> Self {
        self.names.push("broken");
        self
    }

    /// Adds a model whose batches wait for an hour.
    pub(crate) fn with_patient(mut self) -> Self {
        self.names.push("patient");
        self
    }

    /// Loads no model until a client asks for it.
    pub(crate) fn explicit(mut self) -> Self {
        self.mode = ControlMode::Explicit { startup: Vec::new() };
        self
    }

    /// Starts a repository of these models on the pool. Its directory is removed when the returned folder is dropped.
    pub(crate) async fn start(self, pool: &Arc<Pool>) -> (Arc<Repository>, Gate, TempDir) {
        let folder = TempDir::new().expect("a folder");
        for name in self.names {
            let version = folder.path().join(name).join("1");
            fs::create_dir_all(&version).expect("a folder");
            fs::write(version.join("model.onnx"), []).expect("a file");
            fs::write(folder.path().join(name).join("config.pbtxt"), configuration(name)).expect("a file");
        }
        let (began, begun) = mpsc::unbounded_channel();
        let (release, go_on) = crossbeam_channel::unbounded();
        let loader = TestLoader { pool: Arc::clone(pool), began, go_on };
        let options = Options {
            mode: self.mode,
            auto_complete: false,
            load_threads: 2,
            ..Options::on_request(folder.path().to_owned())
        };
        let repository = Repository::start(options, Arc::new(loader)).await.expect("a repository");
        (repository, Gate { begun, release }, folder)
    }
}

fn configuration(name: &str) -> String {
    let kind = match name {
        "repeat" => "backend: \"repeat\" model_transaction_policy { decoupled: true }",
        _ => "backend: \"onnxruntime\" platform: \"onnxruntime_onnx\"",
    };
    let batching = match name {
        "patient" => "dynamic_batching { max_queue_delay_microseconds: 3600000000 }",
        _ => "",
    };
    format!(
        r#"name: "{name}" {kind} {batching} max_batch_size: 8
        input {{ name: "INPUT0" data_type: TYPE_FP32 dims: -1 }}
        output {{ name: "OUTPUT0" data_type: TYPE_FP32 dims: -1 }}
        instance_group {{ kind: KIND_CPU count: 2 }}"#
    )
}

/// The test's ends of the gate at which runs of the model `gated` stop.
pub(crate) struct Gate {
    begun: mpsc::UnboundedReceiver<()>,
    release: Sender<()>,
}

impl Gate {
    /// Waits until a run reaches the gate.
    pub(crate) async fn await_run(&mut self) {
        super::soon(self.begun.recv()).await.expect("the model lives");
    }

    /// Lets that many runs pass, at once or as they arrive.
    pub(crate) fn let_pass(&self, runs: usize) {
        for _ in 0..runs {
            self.release.send(()).expect("the model lives");
        }
    }
}

struct TestLoader {
    pool: Arc<Pool>,
    began: mpsc::UnboundedSender<()>,
    go_on: Receiver<()>,
}

impl TestLoader {
    fn gated(&self) -> FakeProgram {
        let (began, go_on) = (self.began.clone(), self.go_on.clone());
        FakeProgram::new(move |batch| {
            // The test may have ended; runs are not held then.
            let _ = began.send(());
            let _ = go_on.recv();
            identity(batch)
        })
    }
}

impl Loader for TestLoader {
    fn load(&self, request: ResolvedVersion, _: &LoadAttempt) -> Result<Arc<ModelHandle>, LoadError> {
        let program: Arc<dyn Program> = match request.spec.name.as_str() {
            "broken" => return Err(LoadError::new(LoadErrorKind::Engine, "the program is broken")),
            "repeat" => Arc::new(Repeat { decoupled: true }),
            "gated" => Arc::new(self.gated()),
            _ => Arc::new(FakeProgram::identity()),
        };
        Ok(Arc::new(self.pool.bring_up(request.spec, request.knobs, program).expect("the CPU has room")))
    }

    fn signature(&self, _program: &Path, _bytes: Option<&Bytes>) -> Result<Signature, LoadError> {
        let port = |name: &str| Port::tensor(name, DataType::Fp32, &[PortDim::Unknown, PortDim::Unknown]);
        Ok(Signature { inputs: vec![port("INPUT0")], outputs: vec![port("OUTPUT0")], ..Signature::default() })
    }
}
