//! `paternoster import`: writes a model directory from one that Hugging Face or sentence-transformers laid out.

use std::{
    fmt::Display,
    io::{self, Write},
    path::{Path, PathBuf},
    sync::Arc,
};

use paternoster_engine::{
    Engines,
    onnxruntime::{Runtime, RuntimeOptions},
};
use paternoster_executor::{Pool, PoolOptions};
use paternoster_repository::{Imported, LoadError, PoolLoader, import};

/// Write a model directory from one of Hugging Face or sentence-transformers
///
/// Copies the graph, its weights, the tokenizer and the descriptions, and writes a model.yaml that says what was
/// understood: edit it to change that. The model gives the same answers as the directory served as it is.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Examples:
  paternoster import e5-small --model-repository models
  paternoster import ~/downloads/reranker --model-repository models --name rerank")]
pub(super) struct ImportArgs {
    /// Directory with config.json, tokenizer.json and onnx/model.onnx
    #[arg(value_name = "DIR")]
    directory: PathBuf,
    /// Directory of models to write to
    #[arg(long, alias = "model-store", value_name = "DIR")]
    model_repository: PathBuf,
    /// Name of the model; that of the directory by default
    #[arg(long)]
    name: Option<String>,
    /// ONNX Runtime library, which is asked for shapes that the graph does not give
    #[arg(long = "onnxruntime-library", value_name = "FILE")]
    library: Option<PathBuf>,
}

/// Why a model was not imported.
#[derive(Debug, thiserror::Error)]
pub(super) enum ImportError {
    /// The directory cannot be imported.
    #[error("{0}")]
    Load(#[from] LoadError),
    /// The directory has no name that a model can have.
    #[error("{0}")]
    Name(String),
    /// Threads could not be started.
    #[error("cannot start threads: {0}")]
    Threads(io::Error),
    /// What was understood could not be printed.
    #[error("cannot print what was understood: {0}")]
    Print(#[from] io::Error),
}

/// Runs the subcommand and prints what was understood.
///
/// # Errors
/// If the directory has no model of texts, or the repository has a model of that name.
pub(super) fn run(args: &ImportArgs) -> Result<(), ImportError> {
    let ImportArgs { directory, model_repository, name, library } = args;
    let options = RuntimeOptions { library: library.clone(), ..RuntimeOptions::default() };
    let engines = Engines::from(Runtime::load(&options));
    let pool = Pool::start(&PoolOptions::default()).map_err(ImportError::Threads)?;
    let loader = PoolLoader::new(Arc::clone(&pool), engines);
    let name = match name {
        Some(name) => name.clone(),
        None => name_of(directory).map_err(ImportError::Name)?,
    };
    let imported = import(directory, model_repository, &name, &loader)?;
    print(&imported, &mut io::stdout().lock())?;
    Ok(())
}

/// Returns the name of a directory.
fn name_of(directory: &Path) -> Result<String, String> {
    let cannot = |fault: &dyn Display| format!("cannot read '{}': {fault}", directory.display());
    let resolved = match directory.file_name() {
        Some(_) => directory.to_owned(),
        // Such as '.'.
        None => directory.canonicalize().map_err(|fault| cannot(&fault))?,
    };
    let name = resolved.file_name().and_then(|name| name.to_str());
    name.map(str::to_owned).ok_or_else(|| cannot(&"it has no name that a model can have: name one with --name"))
}

fn print(imported: &Imported, out: &mut dyn Write) -> io::Result<()> {
    let Imported { directory, kind, program, weights, configuration } = imported;
    let listed = |names: &[String]| if names.is_empty() { "none".to_owned() } else { names.join(", ") };
    writeln!(out, "kind: {kind}")?;
    writeln!(out, "padded axes: {}", listed(&program.symbols))?;
    writeln!(out, "files of weights: {}", listed(weights))?;
    writeln!(out, "written to '{}', with this model.yaml:\n", directory.display())?;
    out.write_all(configuration.as_bytes())
}
