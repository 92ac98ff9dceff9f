//! How one log record looks.

use std::{
    fmt::{self, Write as _},
    path::Path,
    process,
    str::FromStr,
    sync::{
        Arc,
        atomic::{AtomicU8, Ordering},
    },
};

use serde_json::{Map, Value};
use tracing::{
    Event, Level, Metadata, Subscriber,
    field::{Field, Visit},
};
use tracing_subscriber::{
    fmt::{
        FmtContext, FormatEvent, FormatFields,
        format::Writer,
        time::{FormatTime, SystemTime},
    },
    registry::LookupSpan,
};

/// The forms of a log record. Times are UTC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// Triton's: `I1231 23:59:59.123456 42 serve.rs:7] message key=value`, with the severity, month and day, time,
    /// process and place.
    #[default]
    Default,
    /// Triton's other one: `2026-12-31T23:59:59Z I 42 serve.rs:7] message key=value`.
    Iso8601,
    /// One JSON object a line: `timestamp`, `level`, `target`, `message`, then the record's own keys.
    Json,
}

impl LogFormat {
    const ALL: [Self; 3] = [Self::Default, Self::Iso8601, Self::Json];

    /// Its name as a flag and as a log setting.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Default => "default",
            Self::Iso8601 => "ISO8601",
            Self::Json => "json",
        }
    }
}

impl fmt::Display for LogFormat {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.as_str())
    }
}

impl FromStr for LogFormat {
    type Err = String;

    fn from_str(given: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|format| format.as_str().eq_ignore_ascii_case(given));
        found.ok_or_else(|| format!("expected default, ISO8601 or json, got '{given}'"))
    }
}

/// The format in use, changeable while records are written.
#[derive(Clone, Debug, Default)]
pub(super) struct SharedFormat(Arc<AtomicU8>);

impl SharedFormat {
    pub(super) fn new(format: LogFormat) -> Self {
        let shared = Self::default();
        shared.set(format);
        shared
    }

    pub(super) fn set(&self, format: LogFormat) {
        self.0.store(format as u8, Ordering::Relaxed);
    }

    fn get(&self) -> LogFormat {
        let stored = self.0.load(Ordering::Relaxed);
        LogFormat::ALL.into_iter().find(|format| *format as u8 == stored).unwrap_or_default()
    }
}

impl<S, N> FormatEvent<S, N> for SharedFormat
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, _: &FmtContext<'_, S, N>, mut writer: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let mut timestamp = String::with_capacity(32);
        SystemTime.format_time(&mut Writer::new(&mut timestamp))?;
        match self.get() {
            LogFormat::Default => write_default(&mut writer, &timestamp, event),
            LogFormat::Iso8601 => write_iso8601(&mut writer, &timestamp, event),
            LogFormat::Json => write_json(&mut writer, timestamp, event),
        }
    }
}

/// `timestamp` is RFC 3339 with six decimals, always of one width until the year 10000.
fn write_default(writer: &mut Writer<'_>, timestamp: &str, event: &Event<'_>) -> fmt::Result {
    let part = |range| timestamp.get(range).unwrap_or_default();
    let (month, day, time) = (part(5..7), part(8..10), part(11..26));
    write!(writer, "{}{month}{day} {time} {}", severity(event.metadata().level()), process::id())?;
    write_rest(writer, event)
}

fn write_iso8601(writer: &mut Writer<'_>, timestamp: &str, event: &Event<'_>) -> fmt::Result {
    let seconds = timestamp.get(..19).unwrap_or(timestamp);
    write!(writer, "{seconds}Z {} {}", severity(event.metadata().level()), process::id())?;
    write_rest(writer, event)
}

fn write_rest(writer: &mut Writer<'_>, event: &Event<'_>) -> fmt::Result {
    let mut text = TextFields::default();
    event.record(&mut text);
    writeln!(writer, " {}] {}{}", Place(event.metadata()), text.message, text.others)
}

fn write_json(writer: &mut Writer<'_>, timestamp: String, event: &Event<'_>) -> fmt::Result {
    let metadata = event.metadata();
    let mut fields = JsonFields::default();
    fields.0.insert("timestamp".to_owned(), timestamp.into());
    fields.0.insert("level".to_owned(), metadata.level().as_str().into());
    fields.0.insert("target".to_owned(), metadata.target().into());
    event.record(&mut fields);
    let line = serde_json::to_string(&fields.0).map_err(|_| fmt::Error)?;
    writeln!(writer, "{line}")
}

/// Triton's letter; verbose records are informational to it.
fn severity(level: &Level) -> char {
    match *level {
        Level::ERROR => 'E',
        Level::WARN => 'W',
        _ => 'I',
    }
}

/// File name and line of a record.
struct Place<'a>(&'a Metadata<'static>);

impl fmt::Display for Place<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let file = self.0.file().and_then(|file| Path::new(file).file_name()?.to_str());
        match (file, self.0.line()) {
            (Some(file), Some(line)) => write!(formatter, "{file}:{line}"),
            _ => formatter.write_str(self.0.target()),
        }
    }
}

/// The message, and ` key=value` for every other field.
#[derive(Default)]
struct TextFields {
    message: String,
    others: String,
}

impl Visit for TextFields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        // Writing into a string cannot fail.
        let _ = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            name => write!(self.others, " {name}={value:?}"),
        };
    }

    fn record_error(&mut self, field: &Field, value: &(dyn std::error::Error + 'static)) {
        self.record_debug(field, &format_args!("{value}"));
    }
}

#[derive(Default)]
struct JsonFields(Map<String, Value>);

impl JsonFields {
    fn insert(&mut self, field: &Field, value: impl Into<Value>) {
        self.0.insert(field.name().to_owned(), value.into());
    }
}

impl Visit for JsonFields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.insert(field, format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.insert(field, value);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.insert(field, value);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.insert(field, value);
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.insert(field, value);
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.insert(field, value);
    }

    fn record_error(&mut self, field: &Field, value: &(dyn std::error::Error + 'static)) {
        self.insert(field, value.to_string());
    }
}
