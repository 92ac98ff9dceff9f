//! One arena of a limited size, from which all sessions of an environment take the memory of their tensors. A session's
//! own arena has no limit that could be set.

use std::{fmt, ptr};

use ort::{
    AsPointer,
    environment::Environment,
    session::{RunOptions, Session, SessionInputValue},
    sys,
};
use parking_lot::Mutex;

use super::{status::check, value::HostMemory};
use crate::{
    engine::EngineError,
    model::DataType,
    onnx::build::{BuildError, Graph},
};

/// Runs with this option end with the arena giving back what nothing uses.
const SHRINK: (&str, &str) = ("memory.enable_memory_arena_shrinkage", "cpu:0");
/// What the arena is left to choose: how it grows, its first chunk, and what it may waste of a chunk.
const DEFAULT: i32 = -1;

/// The arena of an environment.
pub(super) struct Arena {
    /// A session that does nothing: only a run can make the arena shrink.
    idle: Mutex<Session>,
    shrinking: RunOptions,
}

impl Arena {
    /// Gives an environment an arena of at most `max_bytes`, for sessions that ask for the environment's allocators.
    ///
    /// # Errors
    /// When ONNX Runtime refuses it.
    pub(super) fn share(environment: &Environment, max_bytes: usize) -> Result<Self, EngineError> {
        let host = HostMemory::of_arena()?;
        let mut config: *mut sys::OrtArenaCfg = ptr::null_mut();
        // SAFETY: `config` receives the new object, which is released once, behind its last use; the environment is
        // alive.
        unsafe {
            check((ort::api().CreateArenaCfg)(max_bytes, DEFAULT, DEFAULT, DEFAULT, &mut config))?;
            let registered =
                (ort::api().CreateAndRegisterAllocator)(environment.ptr().cast_mut(), host.as_ptr(), config);
            (ort::api().ReleaseArenaCfg)(config);
            check(registered)?;
        }
        let idle = idle_graph().map_err(|fault| EngineError(fault.to_string()))?;
        let session = Session::builder(environment)
            .and_then(|builder| builder.with_env_allocators().map_err(ort::Error::from))
            .and_then(|mut builder| builder.commit_from_memory(&idle));
        let mut shrinking = RunOptions::new().map_err(|error| EngineError(error.to_string()))?;
        shrinking.set(SHRINK.0, SHRINK.1).map_err(|error| EngineError(error.to_string()))?;
        Ok(Self { idle: Mutex::new(session.map_err(|error| EngineError(error.to_string()))?), shrinking })
    }

    /// Gives memory back to the system that no session uses.
    pub(super) fn shrink(&self) {
        let none: [SessionInputValue<'_>; 0] = [];
        // Where it fails, the memory stays with the arena for later runs.
        let _ = self.idle.lock().run_with_options(none, &self.shrinking);
    }
}

impl fmt::Debug for Arena {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Arena").finish_non_exhaustive()
    }
}

/// A graph without inputs that gives a number.
fn idle_graph() -> Result<Vec<u8>, BuildError> {
    let mut graph = Graph::new("idle");
    let number = graph.scalar(0.0_f32);
    let given = graph.op("Identity", &[&number]).value();
    graph.output(&given, DataType::Fp32, &[]);
    Ok(graph.finish()?.to_bytes().to_vec())
}
