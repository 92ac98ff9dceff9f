//! The log: where it goes, what it holds, and changing that while the server runs.

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

/// Records of this crate have targets that begin so.
const OWN_TARGET: &str = "paternoster";

/// The most that the log can hold: no level above it adds anything.
pub const MAX_VERBOSE_LEVEL: u32 = 3;

/// What the log holds and where it goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogOptions {
    /// Appended to; none: standard error.
    pub file: Option<PathBuf>,
    /// Whether errors are logged.
    pub error: bool,
    /// Whether warnings are logged.
    pub warning: bool,
    /// Whether informational records are logged.
    pub info: bool,
    /// 0: nothing more; 1: debug records of the server; 2: its trace records too; [`MAX_VERBOSE_LEVEL`]: the libraries'
    /// as well.
    pub verbose_level: u32,
    /// Form of a record.
    pub format: LogFormat,
}

impl Default for LogOptions {
    /// Triton's defaults.
    fn default() -> Self {
        Self { file: None, error: true, warning: true, info: true, verbose_level: 0, format: LogFormat::Default }
    }
}

/// A log setting's value, in the types of the LogSettings call.
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
    /// The file cannot be written.
    #[error("cannot open log file '{}': {error}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },
    /// The process has a log already.
    #[error("a log is installed already")]
    Installed(#[from] SetGlobalDefaultError),
}

/// Why a change of settings was refused; none of the call's changes took place.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum LogSettingError {
    /// `log_verbose_level` is above [`MAX_VERBOSE_LEVEL`].
    #[error("log setting 'log_verbose_level' expects a level from 0 to {MAX_VERBOSE_LEVEL}, got {got}")]
    TooVerbose {
        /// As given.
        got: u32,
    },
    /// The value has another type than the setting.
    #[error("log setting '{name}' expects {expected}, got {got}")]
    WrongType {
        /// The setting.
        name: &'static str,
        /// Its type.
        expected: &'static str,
        /// The value's type.
        got: &'static str,
    },
    /// `log_format` names no format.
    #[error("log setting 'log_format': {0}")]
    Format(String),
    /// The file is chosen at start-up alone (as in Triton): a client must not choose which files the server writes.
    #[error("log setting 'log_file' cannot be changed while the server runs; start it with --log-file")]
    FileFixed,
}

/// The running log. Holding it is not needed for logging, only for changing the settings.
#[derive(Clone, Debug)]
pub struct Logging {
    current: Arc<Mutex<LogOptions>>,
    levels: reload::Handle<Levels, Registry>,
    format: SharedFormat,
}

impl Logging {
    /// Opens the log and makes it the process's.
    ///
    /// # Errors
    /// When the file cannot be opened, or the process has a log already.
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

    /// A log that is not the process's: its settings can be changed, and it holds what the dispatcher is given.
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

    /// All settings by their name in the LogSettings call.
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

    /// Changes settings by their name in the LogSettings call: all of them, or none where one is refused. Names that
    /// are no setting are ignored, as Triton ignores them: clients may know settings of later servers.
    ///
    /// # Errors
    /// The first setting that has no value or one of a wrong type, is out of bounds, or not changeable.
    pub fn apply<'a>(
        &self,
        changes: impl IntoIterator<Item = (&'a str, Option<LogValue>)>,
    ) -> Result<(), LogSettingError> {
        let mut current = self.current.lock();
        let mut next = current.clone();
        for (name, value) in changes {
            next.set(name, value)?;
        }
        // The handle fails only once the log itself is gone, and then there is nothing left to change.
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

/// Which records pass. Triton switches each severity by itself, so that this is not one threshold.
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
            // Warnings and errors need the fields of the spans around them where nothing else is logged.
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
