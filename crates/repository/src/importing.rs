//! Writes a model directory from one that Hugging Face or sentence-transformers laid out, with a configuration that
//! says what was understood.

use std::{
    fs::{self, Permissions},
    io,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    sync::Arc,
};

use paternoster_config::{model::Text, settings::ONNX_FILENAME};
use paternoster_model::{ModelSpec, TensorSpec};
use paternoster_onnx::{Model, SealedModel};
use paternoster_text::TextModelTask;
use serde::Serialize;
use serde_yaml::Value;

use super::{
    LoadAttempt, LoadError, Loader, Overrides, ResolvedVersion,
    configuration::{self, YAML},
    directory::{self, PROGRAMS, TOKENIZER},
    generation, prepare,
    resolving::resolve,
    scan,
    stores::is_remote,
    text::TextModel,
};

/// The version that the program becomes.
const VERSION: i64 = 1;

/// The first lines of the configuration.
const HEADING: &str =
    "# What `paternoster import` understood. Keys that are left out are read from the files beside this one, and from
# the graph.
";

/// A model directory that was written.
#[derive(Debug)]
pub struct Imported {
    /// Where it is.
    pub directory: PathBuf,
    /// What the model does.
    pub kind: &'static str,
    /// Inputs, outputs and padded axes of the program.
    pub program: ModelSpec,
    /// Files of weights beside the graph, by their paths from it.
    pub weights: Vec<String>,
    /// The text of `model.yaml`.
    pub configuration: String,
}

/// A `model.yaml`.
#[derive(Serialize)]
struct Written<'a> {
    max_batch_size: u32,
    inputs: Vec<Tensor<'a>>,
    outputs: Vec<Tensor<'a>>,
    text: Value,
}

/// An input or output in a `model.yaml`.
#[derive(Serialize)]
struct Tensor<'a> {
    name: &'a str,
    dtype: &'static str,
    dims: Vec<Value>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    optional: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pad: Option<Pad<'a>>,
}

#[derive(Serialize)]
struct Pad<'a> {
    axes: Vec<&'a str>,
    value: f64,
}

/// Writes the model in `source` into a repository, under `name`. It gives the same answers as `source` served as it is.
/// The directory appears at once, when it is complete.
///
/// # Errors
/// Names what is missing in `source` or cannot be followed, or what exists already. Then nothing was written.
pub fn import(source: &Path, repository: &Path, name: &str, loader: &dyn Loader) -> Result<Imported, LoadError> {
    if is_remote(repository) {
        let place = repository.display();
        let message = format!("{place} is in an object store: import into a directory, and upload that");
        return Err(LoadError::files(message));
    }
    if !scan::is_model_name(name) {
        let message = format!("'{name}' cannot be the name of a model: expected the name of a directory, not hidden");
        return Err(LoadError::settings(message));
    }
    let target = repository.join(name);
    if fs::symlink_metadata(&target).is_ok() {
        let message = format!("'{}' exists already: choose another name, or remove it", target.display());
        return Err(LoadError::files(message));
    }
    let program = program_of(source)?;
    if generation::generates(source, &source.join(&program)) {
        let shown = source.display();
        let message = format!("'{shown}' is a decoder, which is served as it is: copy it into the repository instead");
        return Err(LoadError::files(message));
    }
    // Before anything is written, since most refusals are about these files.
    let read = TextModel::read(source, &Text::default())?;
    let program = source.join(program);
    let weights = Model::read(&program)?.external_files();
    let weights = weights.map_err(|fault| LoadError::files(format!("{}: {fault}", program.display())))?;

    fs::create_dir_all(repository).map_err(failed("create", repository))?;
    // Servers take no hidden directory for a model.
    let mut builder = tempfile::Builder::new();
    let builder = builder.prefix(".import-").permissions(Permissions::from_mode(0o777));
    let staged = builder.tempdir_in(repository).map_err(failed("write to", repository))?;
    let version = staged.path().join(VERSION.to_string());
    for file in read.files() {
        copy(&source.join(file), &staged.path().join(file))?;
    }
    let copied = version.join(ONNX_FILENAME);
    copy(&program, &copied)?;
    let beside = program.parent().unwrap_or(source);
    for file in &weights {
        copy(&beside.join(file), &version.join(file))?;
    }
    // Files of weights that are too short.
    SealedModel::read(&copied)?;

    let configured = staged.path().join(YAML);
    let write = |text: &str| fs::write(&configured, text).map_err(failed("write", &configured));
    write("text: {}\n")?;
    let (text, resolved) = read_as_served(staged.path(), name, loader)?;
    let section = text.section(&resolved.spec)?;
    let configuration = configuration_of(&resolved.spec, &section)?;
    write(&configuration)?;
    read_as_served(staged.path(), name, loader)?;
    fs::rename(staged.path(), &target).map_err(failed("write", &target))?;
    // It has another name now.
    let _ = staged.keep();
    Ok(Imported {
        directory: target,
        kind: kind(&text, &section, &resolved.spec),
        program: resolved.spec,
        weights: weights.into_iter().collect(),
        configuration,
    })
}

/// Returns the program's path in a directory that Hugging Face laid out.
///
/// # Errors
/// Says what is missing, or that the directory is one that a server reads already.
fn program_of(source: &Path) -> Result<PathBuf, LoadError> {
    let shown = source.display();
    if !source.is_dir() {
        return Err(LoadError::files(format!("there is no directory '{shown}'")));
    }
    let is_model = |found: &str| {
        let message =
            format!("'{shown}' has {found}, so it is a model directory already: copy it into the repository instead");
        LoadError::files(message)
    };
    if let Some(found) = configuration::configurations(source, None).iter().find(|path| path.exists()) {
        return Err(is_model(&format!("'{}'", found.file_name().unwrap_or_default().display())));
    }
    if directory::versions(source).map_err(failed("read", source))?.is_empty() {
        return directory::laid_out(source).ok_or_else(|| {
            if PROGRAMS.iter().any(|program| source.join(program).is_file()) {
                return LoadError::files(format!("'{shown}' has no '{TOKENIZER}'"));
            }
            LoadError::files(format!(
                "'{shown}' has no graph: expected '{}', which {} writes",
                PROGRAMS.join("' or '"),
                configuration::export_command(source)
            ))
        });
    }
    Err(is_model("version directories"))
}

fn copy(from: &Path, to: &Path) -> Result<(), LoadError> {
    // Copying a device or a pipe might never end.
    if !fs::metadata(from).map_err(failed("read", from))?.is_file() {
        return Err(failed("read", from)(io::Error::other("not a file")));
    }
    if let Some(parent) = to.parent() {
        fs::create_dir_all(parent).map_err(failed("create", parent))?;
    }
    fs::copy(from, to).map(drop).map_err(failed("copy", from))
}

fn failed(what: &str, path: &Path) -> impl Fn(io::Error) -> LoadError {
    move |fault| LoadError::files(format!("cannot {what} '{}': {fault}", path.display()))
}

/// Reads a model directory as a server does.
fn read_as_served(
    directory: &Path,
    name: &str,
    loader: &dyn Loader,
) -> Result<(Arc<TextModel>, ResolvedVersion), LoadError> {
    let completion = prepare::Completion::without_server();
    let found = prepare::FoundModel::read(name, Some(directory.to_owned()), Overrides::default(), None, completion)?;
    let resolved = resolve(&found, VERSION, loader, &LoadAttempt::of_repository())?;
    let text = found.text.ok_or_else(|| LoadError::settings(format!("model '{name}' takes no texts")))?;
    Ok((text, resolved))
}

fn kind(text: &TextModel, section: &Text, spec: &ModelSpec) -> &'static str {
    let states = section.output.as_ref().and_then(|name| spec.outputs.iter().find(|output| output.name == name.0));
    let classes = states.and_then(|output| output.dims.last());
    match text.layout().task {
        TextModelTask::Embed { .. } => "embedding (a vector for each text)",
        TextModelTask::Classify { .. } if classes == Some(&1) => "cross-encoder (a score for each pair of texts)",
        TextModelTask::Classify { .. } => "classifier of texts",
        TextModelTask::ClassifyTokens { .. } => "classifier of tokens",
    }
}

fn configuration_of(spec: &ModelSpec, section: &Text) -> Result<String, LoadError> {
    let written = || {
        let mut text = serde_yaml::to_value(section)?;
        if let Value::Mapping(keys) = &mut text {
            keys.retain(|_, value| !value.is_null());
        }
        serde_yaml::to_string(&Written {
            max_batch_size: spec.max_batch_size,
            inputs: spec.inputs.iter().map(|tensor| described(spec, tensor)).collect(),
            outputs: spec.outputs.iter().map(|tensor| described(spec, tensor)).collect(),
            text,
        })
    };
    let written = written().map_err(|fault: serde_yaml::Error| LoadError::internal(fault))?;
    Ok(format!("{HEADING}{written}"))
}

fn described<'a>(spec: &'a ModelSpec, tensor: &'a TensorSpec) -> Tensor<'a> {
    let padded = |axis: usize| {
        let symbol = tensor.symbols.get(axis).copied().flatten()?;
        spec.symbols.get(usize::from(symbol.0)).map(String::as_str)
    };
    let axes: Vec<&str> = (0..tensor.dims.len()).filter_map(padded).collect();
    let dims = tensor.dims.iter().enumerate();
    let is_input = spec.inputs.iter().any(|input| input.name == tensor.name);
    Tensor {
        name: &tensor.name,
        dtype: tensor.datatype.as_str(),
        dims: dims.map(|(axis, &size)| padded(axis).map_or(Value::from(size), Value::from)).collect(),
        optional: tensor.optional,
        pad: (is_input && !axes.is_empty()).then_some(Pad { axes, value: tensor.pad_value }),
    }
}
