//! The engines that compile ONNX graphs for the CPU.

use std::{fmt, path::Path, str::FromStr, sync::Arc};

use paternoster_onnx::SealedModel;

use super::{
    EngineError, LibraryError, Precision, Program, ProgramPort,
    onnxruntime::{OnnxProgram, Runtime},
    openvino::{OpenVino, OpenVinoProgram},
};

/// An engine that runs ONNX graphs on the CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum OnnxEngine {
    /// ONNX Runtime, which computes in fp32.
    #[default]
    OnnxRuntime,
    /// OpenVINO, which may compute in BF16 or FP16.
    OpenVino,
}

impl OnnxEngine {
    /// All engines, with their names in configurations.
    pub const NAMES: [(&'static str, Self); 2] = [("onnxruntime", Self::OnnxRuntime), ("openvino", Self::OpenVino)];

    /// Returns its name in configurations.
    pub fn name(self) -> &'static str {
        match self {
            Self::OnnxRuntime => "onnxruntime",
            Self::OpenVino => "openvino",
        }
    }
}

impl FromStr for OnnxEngine {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let found = Self::NAMES.iter().find(|(known, _)| *known == name);
        found.map(|(_, engine)| *engine).ok_or_else(|| format!("expected onnxruntime or openvino, but found '{name}'"))
    }
}

impl fmt::Display for OnnxEngine {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

/// The engines of a server. If one is missing, models that do not need it are still served.
#[derive(Debug)]
pub struct Engines {
    /// ONNX Runtime, or why it could not be loaded; `None` if this process runs no model on it.
    pub onnxruntime: Option<Result<Runtime, LibraryError>>,
    /// OpenVINO, which is loaded when the first model needs it.
    pub openvino: OpenVino,
}

impl Engines {
    /// Compiles a model with these inputs and outputs, in this order.
    ///
    /// # Errors
    /// Returns the reason if the engine is missing or rejects the model, or if the model lacks one of the tensors.
    pub fn compile(
        &self,
        (engine, precision): (OnnxEngine, Precision),
        model: &SealedModel,
        inputs: &[ProgramPort<'_>],
        outputs: &[ProgramPort<'_>],
    ) -> Result<Arc<dyn Program>, EngineError> {
        match engine {
            OnnxEngine::OnnxRuntime => {
                let runtime = self.runtime()?;
                Ok(Arc::new(OnnxProgram::compile_sealed(runtime, model, inputs, outputs)?))
            }
            OnnxEngine::OpenVino => {
                Ok(Arc::new(OpenVinoProgram::compile_sealed(&self.openvino, precision, model, inputs, outputs)?))
            }
        }
    }

    /// Describes what programs of an engine run on: its build, the precision if there is a choice, and the threads per
    /// run.
    ///
    /// # Errors
    /// Fails if the engine is missing.
    pub fn describe(&self, engine: OnnxEngine, precision: Precision) -> Result<String, EngineError> {
        match engine {
            OnnxEngine::OnnxRuntime => {
                let runtime = self.runtime()?;
                Ok(format!("{}, {} threads", runtime.description(), runtime.threads()))
            }
            OnnxEngine::OpenVino => {
                let (_, version) = self.openvino.description()?;
                Ok(format!("OpenVINO {version}, {precision}, {} threads", self.openvino.threads()))
            }
        }
    }

    /// Returns the path of an engine's library, and loads it first if necessary.
    ///
    /// # Errors
    /// Fails if the engine is missing.
    pub fn path(&self, engine: OnnxEngine) -> Result<&Path, EngineError> {
        match engine {
            OnnxEngine::OnnxRuntime => self.runtime().map(Runtime::path),
            OnnxEngine::OpenVino => self.openvino.description().map(|(path, _)| path),
        }
    }

    /// Returns ONNX Runtime.
    ///
    /// # Errors
    /// Returns the reason if it is missing.
    pub fn runtime(&self) -> Result<&Runtime, EngineError> {
        match &self.onnxruntime {
            Some(runtime) => runtime.as_ref().map_err(|error| EngineError::missing(error.to_string())),
            None => Err(EngineError::missing("ONNX Runtime was not loaded")),
        }
    }
}

impl From<Result<Runtime, LibraryError>> for Engines {
    /// This ONNX Runtime, and OpenVINO if one is installed.
    fn from(runtime: Result<Runtime, LibraryError>) -> Self {
        Self { onnxruntime: Some(runtime), openvino: OpenVino::default() }
    }
}

impl From<OpenVino> for Engines {
    fn from(openvino: OpenVino) -> Self {
        Self { onnxruntime: None, openvino }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_has_a_name() {
        for (name, engine) in OnnxEngine::NAMES {
            assert_eq!(name.parse(), Ok(engine));
            assert_eq!(engine.to_string(), name);
        }
        let refused = "expected onnxruntime or openvino, but found 'OpenVINO'";
        assert_eq!("OpenVINO".parse::<OnnxEngine>(), Err(refused.to_owned()));
    }
}
