//! The first step of a version's load: from what its files have to what is to be opened.

use paternoster_onnx::decoder;

use super::{
    LoadAttempt, LoadError, LoadPlace, Loader, ResolvedVersion,
    prepare::{FoundModel, FoundVersion, ReadGraph},
};

/// Resolves a version of a model: reads its graph, and completes and checks its settings.
///
/// # Errors
/// Returns the reason: the file, the key, what was expected and what was found.
pub(super) fn resolve(
    model: &FoundModel,
    version: i64,
    loader: &dyn Loader,
    attempt: &LoadAttempt,
) -> Result<ResolvedVersion, LoadError> {
    let found = model.version(version)?;
    let graph = if found.has_graph { Some(read_graph(model, &found, loader, attempt)?) } else { None };
    model.resolve(found, graph, attempt)
}

fn read_graph(
    model: &FoundModel,
    FoundVersion { program, .. }: &FoundVersion,
    loader: &dyn Loader,
    attempt: &LoadAttempt,
) -> Result<ReadGraph, LoadError> {
    let mut signature = loader.signature(&program.file, program.bytes.as_ref())?;
    if program.takes_texts {
        let refused = |reason| LoadError::graph(reason).within(LoadPlace::Program(program.file.clone()));
        decoder::complete_signature(&mut signature).map_err(refused)?;
    }
    let lacks_shapes = model.lacks_shapes(&signature);
    let held = if lacks_shapes { loader.infer_shapes(program, &mut signature, attempt)? } else { None };
    Ok(ReadGraph { signature, held })
}
