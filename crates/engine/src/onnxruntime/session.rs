//! Sessions: what they are compiled from, and with which options.

use std::{fs, path::PathBuf, sync::Arc};

use ort::{
    environment::Environment,
    session::{
        Session,
        builder::{GraphOptimizationLevel, SessionBuilder},
    },
};
use sha2::{Digest, Sha256};

use super::{cuda_provider::CudaProvider, weights::Weights};
use crate::{EngineError, sessions::Origin};

/// The configuration that has the names of optimizers that do not run.
const DISABLED: &str = "optimization.disable_specified_optimizers";
/// The optimizer that gives convolutions of FP32 another layout. It reads beyond its memory in graphs of FP16, such as
/// those with a `Transpose` before a product (ONNX Runtime 1.32), and has nothing to do in them.
const LAYOUT_OF_CONVOLUTIONS: &str = "NchwcTransformer";

/// What the options of a session depend on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Form {
    /// Whether the environment has an arena for all sessions.
    pub(super) has_arena: bool,
    /// Whether the graph has tensors of FP16.
    pub(super) has_halves: bool,
}

/// What ONNX Runtime says where a graph needs a locale that is not installed.
const NO_LOCALE: &str = "Failed to construct locale";

/// A session, and the weights outside of the graph that it refers to.
pub(super) struct SharedSession {
    // Dropped before the weights.
    session: Session,
    #[allow(dead_code, reason = "the session refers to them")]
    weights: Arc<Weights>,
}

impl SharedSession {
    pub(super) fn session(&self) -> &Session {
        &self.session
    }
}

/// Returns the hash of everything that a session depends on, so that programs with equal hashes share it.
///
/// # Errors
/// Fails if a library of operators cannot be read.
pub(super) fn origin_of(
    graph: &[u8],
    weights: &Weights,
    operators: &[PathBuf],
    provider: Option<CudaProvider>,
) -> Result<Origin, EngineError> {
    let mut hash = Sha256::new();
    if let Some(provider) = provider {
        hash.update(provider.origin());
    }
    hash.update((graph.len() as u64).to_le_bytes());
    hash.update(graph);
    weights.add_to(&mut hash);
    for library in operators {
        // The content too, since a library may be replaced under its name.
        hash.update(library.as_os_str().as_encoded_bytes());
        let fail = |error: std::io::Error| EngineError::new(format!("cannot read '{}': {error}", library.display()));
        hash.update(fs::read(library).map_err(fail)?);
    }
    Ok(hash.finalize().into())
}

/// Returns options of a session.
///
/// # Errors
/// Fails if ONNX Runtime rejects one of them.
pub(super) fn builder(environment: &Environment, form: Form) -> Result<SessionBuilder, EngineError> {
    let Form { has_arena, has_halves } = form;
    Session::builder(environment)
        .and_then(|builder| builder.with_optimization_level(GraphOptimizationLevel::All).map_err(ort::Error::from))
        .and_then(
            |builder| if has_arena { builder.with_env_allocators().map_err(ort::Error::from) } else { Ok(builder) },
        )
        .and_then(|builder| {
            if !has_halves {
                return Ok(builder);
            }
            builder.with_config_entry(DISABLED, LAYOUT_OF_CONVOLUTIONS).map_err(ort::Error::from)
        })
        .map_err(refused)
}

/// Creates a session.
///
/// # Errors
/// Fails if ONNX Runtime rejects the graph, or a library of operators cannot be loaded.
pub(super) fn commit(
    mut builder: SessionBuilder,
    graph: &[u8],
    weights: &Arc<Weights>,
    operators: &[PathBuf],
) -> Result<SharedSession, EngineError> {
    for library in operators {
        let fail = |error: ort::Error| {
            EngineError::of_engine(format!("cannot load the operators of '{}': {}", library.display(), error.message()))
        };
        builder = builder.with_operator_library(library).map_err(ort::Error::from).map_err(fail)?;
    }
    // SAFETY: the weights move with the session into a `SharedSession`, which drops the session first.
    unsafe { weights.share(&mut builder)? };
    let session = builder.commit_from_memory(graph).map_err(refused)?;
    Ok(SharedSession { session, weights: Arc::clone(weights) })
}

pub(super) fn refused(error: ort::Error) -> EngineError {
    let message = error.message();
    let advice = if message.contains(NO_LOCALE) {
        ": install the locale that the graph names, en_US.UTF-8 by default (on Debian: package locales, localedef)"
    } else {
        ""
    };
    EngineError::of_engine(format!("onnx runtime error: {message}{advice}"))
}
