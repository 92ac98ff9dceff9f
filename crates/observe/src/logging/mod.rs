//! The log: its destination, its levels, and changes of both at run time.

use std::{
    collections::BTreeMap,
    fs::{File, OpenOptions},
    io,
    path::PathBuf,
    sync::Arc,
};

use parking_lot::Mutex;
use tracing::{
    Dispatch, Level, Metadata, Subscriber,
    level_filters::LevelFilter,
    subscriber::{Interest, SetGlobalDefaultError},
};
use tracing_subscriber::{
    Layer, Registry,
    fmt::{self, MakeWriter, writer::BoxMakeWriter},
    layer::{Context, SubscriberExt},
    reload,
};

use super::{
    log_fields::SpanFields,
    log_format::{LogFormat, NoText, SharedFormat},
};

/// Prefix of the targets of this crate's records.
const OWN_TARGET: &str = "paternoster";

/// Maximum verbosity; higher levels add nothing.
pub const MAX_VERBOSE_LEVEL: u32 = 3;

/// Settings of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogOptions {
    /// File to append to; `None`: standard error.
    pub file: Option<PathBuf>,
    /// Whether errors are logged.
    pub error: bool,
    /// Whether warnings are logged.
    pub warning: bool,
    /// Whether informational records are logged.
    pub info: bool,
    /// 0: no verbose records; 1: debug records of the server; 2: also its trace records; [`MAX_VERBOSE_LEVEL`]: also
    /// those of libraries.
    pub verbose_level: u32,
    /// Format of a record.
    pub format: LogFormat,
}

impl Default for LogOptions {
    /// Triton's defaults.
    fn default() -> Self {
        Self { file: None, error: true, warning: true, info: true, verbose_level: 0, format: LogFormat::Default }
    }
}

/// The value of a log setting, in the types of the LogSettings call.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum LogValue {
    Bool(bool),
    Uint(u32),
    Text(String),
}

impl LogValue {
    fn kind(&self) -> &'static str {
        match self {
            Self::Bool(_) => "bool",
            Self::Uint(_) => "uint32",
            Self::Text(_) => "string",
        }
    }
}

/// Why the log could not be started.
#[derive(Debug, thiserror::Error)]
pub enum LogStartError {
    /// The file cannot be opened for writing.
    #[error("cannot open log file '{}': {error}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// The process already has a log.
    #[error("a log is installed already")]
    Installed(#[from] SetGlobalDefaultError),
}

/// Why a change of settings was rejected. None of the call's changes took effect.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum LogSettingError {
    /// `log_verbose_level` is above [`MAX_VERBOSE_LEVEL`].
    #[error("log setting 'log_verbose_level' expects a level from 0 to {MAX_VERBOSE_LEVEL}, got {got}")]
    TooVerbose {
        /// The given value.
        got: u32,
    },
    /// The value has the wrong type.
    #[error("log setting '{name}' expects {expected}, got {got}")]
    WrongType {
        /// The setting.
        name: &'static str,
        /// The type of the setting.
        expected: &'static str,
        /// The type of the value.
        got: &'static str,
    },
    /// `log_format` is not a known format.
    #[error("log setting 'log_format': {0}")]
    Format(String),
    /// As in Triton, the file is fixed at startup: a client must not choose which files the server writes.
    #[error("log file location can not be updated through network protocol")]
    FileFixed,
}

/// The running log. This handle is needed only for changing settings, not for logging.
#[derive(Clone, Debug)]
pub struct Logging {
    current: Arc<Mutex<LogOptions>>,
    levels: reload::Handle<Levels, Registry>,
    format: SharedFormat,
}

impl Logging {
    /// Opens the log and installs it for the process.
    ///
    /// # Errors
    /// If the file cannot be opened, or if the process already has a log.
    pub fn start(options: LogOptions) -> Result<Self, LogStartError> {
        let writer = match &options.file {
            None => BoxMakeWriter::new(io::stderr),
            Some(path) => {
                let file = OpenOptions::new().create(true).append(true).open(path);
                let file: File = file.map_err(|error| LogStartError::File { path: path.clone(), error })?;
                BoxMakeWriter::new(Arc::new(file))
            }
        };
        let (logging, dispatch) = Self::build(options, writer);
        tracing::dispatcher::set_global_default(dispatch)?;
        Ok(logging)
    }

    /// Creates a log that is not installed for the process. It receives the records of the returned dispatcher.
    pub fn detached(options: LogOptions) -> (Self, Dispatch) {
        Self::build(options, io::stderr)
    }

    fn build(options: LogOptions, writer: impl for<'a> MakeWriter<'a> + Send + Sync + 'static) -> (Self, Dispatch) {
        let format = SharedFormat::new(options.format);
        let (filter, levels) = reload::Layer::new(Levels::of(&options));
        let lines = fmt::layer().with_ansi(false).with_writer(writer);
        let lines = lines.event_format(format.clone()).fmt_fields(NoText);
        let dispatch = Dispatch::new(Registry::default().with(filter).with(SpanFields).with(lines));
        (Self { current: Arc::new(Mutex::new(options)), levels, format }, dispatch)
    }

    /// Returns all settings by their names in the LogSettings call.
    pub fn settings(&self) -> BTreeMap<&'static str, LogValue> {
        let current = self.current.lock().clone();
        let file = current.file.map(|path| path.to_string_lossy().into_owned()).unwrap_or_default();
        BTreeMap::from([
            ("log_file", LogValue::Text(file)),
            ("log_info", LogValue::Bool(current.info)),
            ("log_warning", LogValue::Bool(current.warning)),
            ("log_error", LogValue::Bool(current.error)),
            ("log_verbose_level", LogValue::Uint(current.verbose_level)),
            ("log_format", LogValue::Text(current.format.as_str().to_owned())),
        ])
    }

    /// Changes settings by their names in the LogSettings call: all of them, or none if one is rejected. Unknown names
    /// are ignored, as in Triton, because clients may know settings of later servers.
    ///
    /// # Errors
    /// Returns the first setting that has no value, has the wrong type, is out of range, or cannot be changed.
    pub fn apply<'a>(
        &self,
        changes: impl IntoIterator<Item = (&'a str, Option<LogValue>)>,
    ) -> Result<(), LogSettingError> {
        let mut current = self.current.lock();
        let mut next = current.clone();
        for (name, value) in changes {
            next.set(name, value)?;
        }
        // Fails only if the log itself is gone, and then there is nothing to change.
        let _ = self.levels.reload(Levels::of(&next));
        self.format.set(next.format);
        *current = next;
        Ok(())
    }
}

impl LogOptions {
    fn set(&mut self, name: &str, value: Option<LogValue>) -> Result<(), LogSettingError> {
        match name {
            "log_file" => return Err(LogSettingError::FileFixed),
            "log_info" => self.info = bool_of("log_info", value)?,
            "log_warning" => self.warning = bool_of("log_warning", value)?,
            "log_error" => self.error = bool_of("log_error", value)?,
            "log_verbose_level" => {
                let Some(LogValue::Uint(level)) = value else {
                    return Err(wrong_type("log_verbose_level", "uint32", value));
                };
                if level > MAX_VERBOSE_LEVEL {
                    return Err(LogSettingError::TooVerbose { got: level });
                }
                self.verbose_level = level;
            }
            "log_format" => {
                let Some(LogValue::Text(format)) = value else { return Err(wrong_type("log_format", "string", value)) };
                self.format = format.parse().map_err(LogSettingError::Format)?;
            }
            _ => {}
        }
        Ok(())
    }
}

fn bool_of(name: &'static str, value: Option<LogValue>) -> Result<bool, LogSettingError> {
    let Some(LogValue::Bool(on)) = value else { return Err(wrong_type(name, "bool", value)) };
    Ok(on)
}

fn wrong_type(name: &'static str, expected: &'static str, value: Option<LogValue>) -> LogSettingError {
    LogSettingError::WrongType { name, expected, got: value.as_ref().map_or("no value", LogValue::kind) }
}

/// Filters records. Triton switches each severity separately, so this is not a single threshold.
#[derive(Clone, Copy, Debug)]
struct Levels {
    error: bool,
    warning: bool,
    info: bool,
    verbose_level: u32,
}

impl Levels {
    fn of(options: &LogOptions) -> Self {
        let LogOptions { error, warning, info, verbose_level, .. } = *options;
        Self { error, warning, info, verbose_level }
    }

    /// Whether records of any severity pass.
    fn any(self) -> bool {
        self.error || self.warning || self.info
    }

    fn passes(self, metadata: &Metadata<'_>) -> bool {
        let own = metadata.target().starts_with(OWN_TARGET);
        if metadata.is_span() && *metadata.level() <= Level::INFO {
            // Spans are needed even if only warnings and errors are logged, because those include their fields.
            return own && self.any() || self.verbose_level >= 3;
        }
        match *metadata.level() {
            Level::ERROR => self.error,
            Level::WARN => self.warning,
            Level::INFO => self.info,
            Level::DEBUG => self.verbose_level >= if own { 1 } else { 3 },
            Level::TRACE => self.verbose_level >= if own { 2 } else { 3 },
        }
    }
}

impl<S: Subscriber> Layer<S> for Levels {
    fn register_callsite(&self, metadata: &'static Metadata<'static>) -> Interest {
        if self.passes(metadata) { Interest::always() } else { Interest::never() }
    }

    fn enabled(&self, metadata: &Metadata<'_>, _: Context<'_, S>) -> bool {
        self.passes(metadata)
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        let highest = match self.verbose_level {
            0 if self.any() => LevelFilter::INFO,
            0 => LevelFilter::OFF,
            1 => LevelFilter::DEBUG,
            _ => LevelFilter::TRACE,
        };
        Some(highest)
    }
}

#[cfg(test)]
mod tests;
