//! From a program's bytes to a model that the engine may open.

use bytes::Bytes;

use super::{CellProgram, Isolation, StageRequest};
use crate::{engine::onnxruntime::Runtime, onnx::SealedModel};

/// Opens programs: first in a process of their own, where that is asked for, then here.
pub(super) struct Opener<'a> {
    pub runtime: &'a Runtime,
    pub isolation: Option<&'a Isolation>,
}

impl Opener<'_> {
    /// Finds and checks all that a program is made of; `graph` is its own file's content.
    ///
    /// # Errors
    /// When it is no model, takes more than it may, or needs a file that is not where it may lie; with the reason.
    pub(super) fn open(
        &self,
        program: &CellProgram,
        graph: Bytes,
        stages: &StageRequest,
    ) -> Result<SealedModel, String> {
        if let Some(isolation) = self.isolation.filter(|isolation| isolation.covers(program)) {
            isolation.try_open(self.runtime.path(), program, &graph, stages)?;
        }
        SealedModel::new(&program.file.display().to_string(), graph, &program.external)
            .map_err(|error| error.to_string())
    }
}
