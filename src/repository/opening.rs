//! From a program's bytes to a model that the engine may open, and to what runs it.

use std::sync::Arc;

use bytes::Bytes;

use super::{CellProgram, Isolation, StageRequest};
use crate::{
    engine::{EngineError, Engines, Program, ProgramPort},
    onnx::SealedModel,
};

/// Opens programs: first in a process of their own, where that is asked for, then here.
pub(super) struct Opener<'a> {
    pub engines: &'a Engines,
    pub isolation: Option<&'a Isolation>,
}

impl Opener<'_> {
    /// Finds and checks all that a program is made of; `graph` is its own file's content.
    ///
    /// # Errors
    /// When its engine is missing, it is no model, takes more than it may, or needs a file that is not where it may
    /// lie; with the reason.
    pub(super) fn open(
        &self,
        program: &CellProgram,
        graph: Bytes,
        stages: &StageRequest,
    ) -> Result<SealedModel, String> {
        let library = self.engines.path(program.engine).map_err(|error| error.to_string())?;
        if let Some(isolation) = self.isolation.filter(|isolation| isolation.covers(program)) {
            isolation.try_open(library, program, &graph, stages)?;
        }
        SealedModel::new(&program.file.display().to_string(), graph, &program.external)
            .map_err(|error| error.to_string())
    }

    /// Compiles a program's model, or a stage of it, by the program's engine.
    ///
    /// # Errors
    /// When the engine refuses it, or it lacks a tensor that is named.
    pub(super) fn compile(
        &self,
        program: &CellProgram,
        model: &SealedModel,
        inputs: &[ProgramPort<'_>],
        outputs: &[ProgramPort<'_>],
    ) -> Result<Arc<dyn Program>, EngineError> {
        self.engines.compile((program.engine, program.precision), model, inputs, outputs)
    }
}
