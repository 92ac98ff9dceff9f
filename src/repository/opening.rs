//! Reads and checks a program's model, and compiles it by the program's engine.

use std::sync::Arc;

use bytes::Bytes;

use super::{CellProgram, HeldProgram, Isolation, StageRequest};
use crate::{
    engine::{EngineError, Engines, OnnxEngine, Program, ProgramPort, onnxruntime::OnnxProgram},
    onnx::{Port, SealedModel, Signature},
};

/// Opens and compiles programs. Where isolation is configured, a separate process opens each program first.
pub(super) struct Opener<'a> {
    pub engines: &'a Engines,
    pub isolation: Option<&'a Isolation>,
}

impl Opener<'_> {
    /// Checks a program's model and finds the files of its weights. `graph` is the content of the program's own file.
    ///
    /// # Errors
    /// Returns the reason if the engine is missing, the content is not an ONNX model or exceeds a limit, a file of its
    /// weights is outside the allowed directory, or the separate process fails.
    pub(super) fn open(
        &self,
        program: &CellProgram,
        graph: Bytes,
        stages: &StageRequest,
    ) -> Result<SealedModel, String> {
        let library = self.engines.path(program.engine).map_err(|error| error.to_string())?;
        // First, so that a model that crashes a parser or an engine never reaches this process.
        if let Some(isolation) = self.isolation.filter(|isolation| isolation.covers(program)) {
            isolation.try_open(library, program, &graph, stages)?;
        }
        let model = SealedModel::new(&program.file.display().to_string(), graph, &program.external)
            .map_err(|error| error.to_string())?
            .with_operators(&program.operators);
        Ok(if program.bytes.is_none() { model.with_file(&program.file) } else { model })
    }

    /// Compiles a program's model, or one stage of it, by the program's engine.
    ///
    /// # Errors
    /// Fails if the engine rejects the model, or the model lacks one of the named tensors.
    pub(super) fn compile(
        &self,
        program: &CellProgram,
        model: &SealedModel,
        inputs: &[ProgramPort<'_>],
        outputs: &[ProgramPort<'_>],
    ) -> Result<Arc<dyn Program>, EngineError> {
        self.engines.compile((program.engine, program.precision), model, inputs, outputs)
    }

    /// Fills in the shapes of outputs that the signature lacks, as far as the program's engine knows them. Returns the
    /// compiled program; `None` if nothing is missing, or if the engine cannot be asked.
    ///
    /// # Errors
    /// Fails if the engine rejects the model.
    pub(super) fn infer_shapes(
        &self,
        program: &CellProgram,
        model: &SealedModel,
        signature: &mut Signature,
    ) -> Result<Option<HeldProgram>, EngineError> {
        let lacks = |port: &&mut Port| port.dims.is_none() && port.datatype.is_some();
        let mut missing = signature.outputs.iter_mut().filter(lacks).peekable();
        if program.engine != OnnxEngine::OnnxRuntime || missing.peek().is_none() {
            return Ok(None);
        }
        let compiled = OnnxProgram::compile_sealed(self.engines.runtime()?, model, &[], &[])?;
        for port in missing {
            port.dims = compiled.output_dims(&port.name);
        }
        Ok(Some(HeldProgram(Arc::new(compiled))))
    }
}
