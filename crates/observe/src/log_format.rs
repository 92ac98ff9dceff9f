//! The formats of a log record.

use std::{
    fmt,
    path::Path,
    process,
    str::FromStr,
    sync::{
        Arc,
        atomic::{AtomicU8, Ordering},
    },
};

use serde_json::Map;
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::{
    field::RecordFields,
    fmt::{
        FmtContext, FormatEvent, FormatFields,
        format::Writer,
        time::{FormatTime, SystemTime},
    },
    registry::LookupSpan,
};

use super::log_fields::Fields;

/// The formats of a log record. Times are UTC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// Triton's default: `I1231 23:59:59.123456 42 serve.rs:7] message key=value`, with severity, month and day, time,
    /// process id and source location.
    #[default]
    Default,
    /// Triton's alternative: `2026-12-31T23:59:59Z I 42 serve.rs:7] message key=value`.
    Iso8601,
    /// One JSON object per line: `timestamp`, `level`, `target`, `message`, then the record's own fields.
    Json,
}

impl LogFormat {
    const ALL: [Self; 3] = [Self::Default, Self::Iso8601, Self::Json];

    /// Returns its name as a flag and as a log setting.
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

/// The current format, which may change while records are written.
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
    fn format_event(&self, context: &FmtContext<'_, S, N>, mut writer: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let mut timestamp = String::with_capacity(32);
        SystemTime.format_time(&mut Writer::new(&mut timestamp))?;
        let (metadata, fields) = (event.metadata(), Fields::of(event, context.event_scope()));
        match self.get() {
            LogFormat::Default => write_default(&mut writer, &timestamp, metadata, &fields),
            LogFormat::Iso8601 => write_iso8601(&mut writer, &timestamp, metadata, &fields),
            LogFormat::Json => write_json(&mut writer, timestamp, metadata, fields),
        }
    }
}

/// Formats no text, because the fields of spans are stored as values ([`SpanFields`](super::log_fields::SpanFields)).
#[derive(Debug)]
pub(super) struct NoText;

impl<'a> FormatFields<'a> for NoText {
    fn format_fields<R: RecordFields>(&self, _: Writer<'a>, _: R) -> fmt::Result {
        Ok(())
    }
}

/// Writes Triton's default format. `timestamp` is RFC 3339 with six decimals, and has a fixed width until the year
/// 10000.
fn write_default(
    writer: &mut Writer<'_>,
    timestamp: &str,
    metadata: &Metadata<'static>,
    fields: &Fields,
) -> fmt::Result {
    let part = |range| timestamp.get(range).unwrap_or_default();
    let (month, day, time) = (part(5..7), part(8..10), part(11..26));
    write!(writer, "{}{month}{day} {time} {}", severity(metadata.level()), process::id())?;
    write_rest(writer, metadata, fields)
}

fn write_iso8601(
    writer: &mut Writer<'_>,
    timestamp: &str,
    metadata: &Metadata<'static>,
    fields: &Fields,
) -> fmt::Result {
    let seconds = timestamp.get(..19).unwrap_or(timestamp);
    write!(writer, "{seconds}Z {} {}", severity(metadata.level()), process::id())?;
    write_rest(writer, metadata, fields)
}

fn write_rest(writer: &mut Writer<'_>, metadata: &Metadata<'static>, fields: &Fields) -> fmt::Result {
    write!(writer, " {}] ", Place(metadata))?;
    fields.write_line(writer)?;
    writeln!(writer)
}

fn write_json(writer: &mut Writer<'_>, timestamp: String, metadata: &Metadata<'static>, fields: Fields) -> fmt::Result {
    let mut object = Map::new();
    object.insert("timestamp".to_owned(), timestamp.into());
    object.insert("level".to_owned(), metadata.level().as_str().into());
    object.insert("target".to_owned(), metadata.target().into());
    fields.add_to(&mut object);
    let line = serde_json::to_string(&object).map_err(|_| fmt::Error)?;
    writeln!(writer, "{line}")
}

/// Returns Triton's letter for a level; Triton logs verbose records as informational.
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
