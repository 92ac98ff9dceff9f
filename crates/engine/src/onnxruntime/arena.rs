//! One arena of limited size, from which all sessions of an environment allocate their tensors. ONNX Runtime offers no
//! limit for a session's own arena.

use std::{fmt, ptr};

use ort::{
    AsPointer,
    environment::Environment,
    session::{RunOptions, Session, SessionInputValue},
    sys,
};
use parking_lot::Mutex;
use paternoster_model::DataType;
use paternoster_onnx::build::{BuildError, Graph};

use super::{status::check, value::HostMemory};
use crate::EngineError;

/// Run option that makes the arena return unused memory at the end of the run.
const SHRINK: (&str, &str) = ("memory.enable_memory_arena_shrinkage", "cpu:0");
/// Lets the arena choose how it grows, its first chunk, and the unused part of a chunk.
const DEFAULT: i32 = -1;

/// The arena of an environment.
pub(super) struct Arena {
    /// A session that computes nothing: the arena shrinks only at the end of a run.
    idle: Mutex<Session>,
    shrinking: RunOptions,
}

impl Arena {
    /// Gives an environment an arena of at most `max_bytes`, for sessions that use the environment's allocators.
    ///
    /// # Errors
    /// Fails if ONNX Runtime rejects it.
    pub(super) fn share(environment: &Environment, max_bytes: usize) -> Result<Self, EngineError> {
        let host = HostMemory::of_arena()?;
        let mut config: *mut sys::OrtArenaCfg = ptr::null_mut();
        // SAFETY: `config` receives the new object, which is released once, after its last use; the environment is
        // alive.
        unsafe {
            check((ort::api().CreateArenaCfg)(max_bytes, DEFAULT, DEFAULT, DEFAULT, &mut config))?;
            let registered =
                (ort::api().CreateAndRegisterAllocator)(environment.ptr().cast_mut(), host.as_ptr(), config);
            (ort::api().ReleaseArenaCfg)(config);
            check(registered)?;
        }
        let idle = idle_graph().map_err(|fault| EngineError::new(fault.to_string()))?;
        let session = Session::builder(environment)
            .and_then(|builder| builder.with_env_allocators().map_err(ort::Error::from))
            .and_then(|mut builder| builder.commit_from_memory(&idle));
        let mut shrinking = RunOptions::new().map_err(|error| EngineError::new(error.to_string()))?;
        shrinking.set(SHRINK.0, SHRINK.1).map_err(|error| EngineError::new(error.to_string()))?;
        let arena = Self { idle: Mutex::new(session.map_err(|error| EngineError::new(error.to_string()))?), shrinking };
        // The first chunk is never returned, and is as large as the first tensor: it must be a small one.
        arena.shrink();
        Ok(arena)
    }

    /// Returns memory that no session uses to the system.
    pub(super) fn shrink(&self) {
        let none: [SessionInputValue<'_>; 0] = [];
        // If it fails, the arena keeps the memory for later runs.
        let _ = self.idle.lock().run_with_options(none, &self.shrinking);
    }
}

impl fmt::Debug for Arena {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Arena").finish_non_exhaustive()
    }
}

/// Builds a graph without inputs that outputs a constant.
fn idle_graph() -> Result<Vec<u8>, BuildError> {
    let mut graph = Graph::new("idle");
    let number = graph.scalar(0.0_f32);
    let given = graph.op("Identity", &[&number]).value();
    graph.output(&given, DataType::Fp32, &[]);
    Ok(graph.finish()?.to_bytes().to_vec())
}
