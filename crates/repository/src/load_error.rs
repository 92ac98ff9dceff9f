//! Why a load failed: what kind of fault it is, of which model, where in the model, and its source.

use std::{error::Error, fmt, io, path::PathBuf, sync::Arc, time::Duration};

use paternoster_config::{ConfigError, ConfigErrorKind, SettingError};
use paternoster_engine::{EngineError, EngineErrorKind};
use paternoster_profile::Halt;

use super::{ControlError, ResolveError};

/// What kind of fault ended a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoadErrorKind {
    /// The configuration is refused, or contradicts the program or the server.
    Settings,
    /// A file, a directory or a store is missing or cannot be read.
    Files,
    /// The graph of a program is malformed, or lacks what the configuration or the task needs.
    Graph,
    /// An engine is missing, or cannot compile or run a program.
    Engine,
    /// The model needs a CUDA card that the server does not have or cannot use.
    Cards,
    /// A limit on memory is exceeded that is not that of all models: of what clients send, or of a process.
    Limit,
    /// There is no memory for the model, although nothing is wrong with it.
    Memory,
    /// The model is not wanted any more: nothing is wrong with it.
    Stopped,
    /// A time limit has passed.
    TimedOut,
    /// A pipeline needs a model that is not served, or itself.
    Dependency,
    /// A fault of the server itself.
    Internal,
}

/// The part of a model that an error is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LoadPlace {
    /// The program in a file.
    Program(PathBuf),
    /// A cell.
    Cell(String),
    /// A stage.
    Stage(usize),
    /// The lengths of padded axes for which plans are prepared.
    Lengths(Vec<u32>),
    /// An input of a warm-up sample.
    SampleInput {
        /// The sample.
        sample: String,
        /// The input.
        input: String,
    },
    /// The run of a warm-up sample.
    Sample(String),
    /// The run of an example request.
    Example,
    /// A model of a pipeline's steps.
    Step(String),
}

impl fmt::Display for LoadPlace {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Program(file) => write!(formatter, "cannot load '{}'", file.display()),
            Self::Cell(name) => write!(formatter, "cell '{name}'"),
            Self::Stage(number) => write!(formatter, "stage {number}"),
            Self::Lengths(lengths) => write!(formatter, "with lengths {lengths:?}"),
            Self::SampleInput { sample, input } => write!(formatter, "warm-up sample '{sample}', input '{input}'"),
            Self::Sample(name) => write!(formatter, "warmup sample '{name}' failed"),
            Self::Example => formatter.write_str("an example request failed"),
            Self::Step(model) => write!(formatter, "model '{model}' of its steps"),
        }
    }
}

/// Why a load failed.
#[derive(Clone, Debug)]
pub struct LoadError {
    kind: LoadErrorKind,
    model: Option<Arc<str>>,
    place: Option<LoadPlace>,
    source: Arc<dyn Error + Send + Sync>,
}

impl LoadError {
    /// Creates an error of a kind. The source is an error of a lower layer, or a text.
    pub fn new(kind: LoadErrorKind, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self { kind, model: None, place: None, source: Arc::from(source.into()) }
    }

    pub(super) fn settings(source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::new(LoadErrorKind::Settings, source)
    }

    pub(super) fn files(source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::new(LoadErrorKind::Files, source)
    }

    pub(super) fn graph(source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::new(LoadErrorKind::Graph, source)
    }

    pub(super) fn engine(source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::new(LoadErrorKind::Engine, source)
    }

    pub(super) fn memory(source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::new(LoadErrorKind::Memory, source)
    }

    pub(super) fn internal(source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::new(LoadErrorKind::Internal, source)
    }

    /// Returns what kind of fault it is.
    pub fn kind(&self) -> LoadErrorKind {
        self.kind
    }

    /// Returns the model, once the error has left the part that knows only files and programs.
    pub fn model(&self) -> Option<&str> {
        self.model.as_deref()
    }

    /// Returns the part of the model that it is about; `None` for the whole of it.
    pub fn place(&self) -> Option<&LoadPlace> {
        self.place.as_ref()
    }

    /// Returns whether there was no memory for the model.
    pub(super) fn is_memory(&self) -> bool {
        self.kind == LoadErrorKind::Memory
    }

    /// Returns whether the model was not wanted any more.
    pub(super) fn is_stopped(&self) -> bool {
        self.kind == LoadErrorKind::Stopped
    }

    /// Returns the error as one of another kind.
    pub(super) fn of_kind(self, kind: LoadErrorKind) -> Self {
        Self { kind, ..self }
    }

    /// Returns the error as that of a model.
    pub(super) fn of_model(self, model: &str) -> Self {
        Self { model: Some(model.into()), ..self }
    }

    /// Returns the error as one about a part of the model, within which it may name a part already.
    pub(super) fn within(self, place: LoadPlace) -> Self {
        match self.place {
            None => Self { place: Some(place), ..self },
            Some(_) => Self { kind: self.kind, model: self.model.clone(), place: Some(place), source: Arc::new(self) },
        }
    }

    /// Returns the error with another text, unless that is its own.
    pub(super) fn worded(self, change: impl FnOnce(String) -> String) -> Self {
        let text = self.to_string();
        let changed = change(text.clone());
        if changed == text { self } else { Self { model: self.model, ..Self::new(self.kind, changed) } }
    }

    /// Returns the error as that of a load that a client asked for.
    pub(super) fn into_control(self, name: &str) -> ControlError {
        let (name, reason) = (name.to_owned(), self.to_string());
        if self.is_memory() {
            ControlError::NoMemory { name, reason }
        } else {
            ControlError::LoadFailed { name, kind: self.kind, reason }
        }
    }

    /// Returns the error as that of a request that waited for the load.
    pub(super) fn into_resolve(self, name: &str, retry: Duration) -> ResolveError {
        let (name, reason) = (name.to_owned(), self.to_string());
        if self.is_memory() {
            ResolveError::NoMemory { name, reason }
        } else {
            ResolveError::NotLoadable { name, reason, retry }
        }
    }
}

impl fmt::Display for LoadError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(place) = &self.place {
            write!(formatter, "{place}: ")?;
        }
        self.source.fmt(formatter)
    }
}

impl Error for LoadError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&*self.source)
    }
}

impl PartialEq for LoadError {
    fn eq(&self, other: &Self) -> bool {
        self.kind == other.kind && self.to_string() == other.to_string()
    }
}

impl From<ConfigError> for LoadError {
    fn from(error: ConfigError) -> Self {
        Self::settings(error)
    }
}

impl From<SettingError> for LoadError {
    fn from(error: SettingError) -> Self {
        let kind = if error.kind == ConfigErrorKind::Graph { LoadErrorKind::Graph } else { LoadErrorKind::Settings };
        Self::new(kind, error)
    }
}

impl From<paternoster_onnx::Error> for LoadError {
    fn from(error: paternoster_onnx::Error) -> Self {
        match &error {
            paternoster_onnx::Error::Read { .. } => Self::files(error),
            _ => Self::graph(error),
        }
    }
}

impl From<EngineError> for LoadError {
    fn from(error: EngineError) -> Self {
        let is_memory = error.kind == EngineErrorKind::Memory;
        Self::new(if is_memory { LoadErrorKind::Limit } else { LoadErrorKind::Engine }, error)
    }
}

impl From<LoadError> for Halt {
    fn from(error: LoadError) -> Self {
        Self::Failed(error.to_string())
    }
}

/// Returns the error of a file or directory that cannot be read.
pub(super) fn cannot_read(path: &std::path::Path) -> impl Fn(io::Error) -> LoadError {
    move |error| LoadError::files(format!("cannot read {}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_names_its_parts_from_the_outside_in() {
        let error = LoadError::engine("no such operator").within(LoadPlace::Stage(2));
        let error = error.within(LoadPlace::Program("m/1/model.onnx".into())).of_model("m");
        assert_eq!(error.to_string(), "cannot load 'm/1/model.onnx': stage 2: no such operator");
        assert_eq!((error.kind(), error.model()), (LoadErrorKind::Engine, Some("m")));
        let inner = error.source().and_then(|source| source.downcast_ref::<LoadError>()).expect("it is within another");
        assert_eq!((inner.kind(), inner.place()), (LoadErrorKind::Engine, Some(&LoadPlace::Stage(2))));
    }

    #[test]
    fn only_a_lack_of_memory_for_models_is_no_fault_of_the_model() {
        let full = |kind| LoadError::new(kind, "full").into_control("m");
        let reason = "full".to_owned();
        assert_eq!(full(LoadErrorKind::Memory), ControlError::NoMemory { name: "m".to_owned(), reason });
        let limit = full(LoadErrorKind::Limit);
        assert!(matches!(limit, ControlError::LoadFailed { kind: LoadErrorKind::Limit, .. }), "{limit}");
    }

    #[test]
    fn the_source_of_a_refused_configuration_has_its_place() {
        let refused = paternoster_config::yaml::parse("m/model.yaml", b"\nmax_batch_size: x").expect_err("no number");
        let error = LoadError::from(refused);
        let source = error.source().and_then(|source| source.downcast_ref::<ConfigError>()).expect("it is the source");
        assert_eq!(source.position.map(|place| (place.line, place.column)), Some((2, 1)));
        assert_eq!(error.kind(), LoadErrorKind::Settings);
    }

    #[test]
    fn another_wording_keeps_kind_and_model() {
        let error = LoadError::files("cannot read /cache/m").of_model("m");
        assert_eq!(error.clone().worded(|text| text), error);
        let worded = error.worded(|text| text.replace("/cache", "s3://bucket"));
        assert_eq!(worded.to_string(), "cannot read s3://bucket/m");
        assert_eq!((worded.kind(), worded.model()), (LoadErrorKind::Files, Some("m")));
    }
}
