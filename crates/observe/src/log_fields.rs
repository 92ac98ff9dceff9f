//! The fields of log records, and of the spans in which records are written.

use std::fmt::{self, Write as _};

use serde_json::{Map, Value};
use tracing::{
    Event, Subscriber,
    field::{Field, Visit},
    span::{Attributes, Id, Record},
};
use tracing_subscriber::{
    Layer,
    layer::Context,
    registry::{LookupSpan, Scope},
};

/// The field that contains a record's message.
const MESSAGE: &str = "message";

/// Fields in order of appearance, each name once.
#[derive(Debug, Default)]
pub(super) struct Fields(Vec<(&'static str, Shown)>);

/// A value, as both log formats print it.
#[derive(Clone, Debug, PartialEq)]
enum Shown {
    /// A string, which a line always quotes.
    Text(String),
    /// The output of a value's `Debug` or `Display`; a line quotes it if it would be ambiguous.
    Written(String),
    /// A number or boolean.
    Plain(Value),
}

impl Fields {
    /// Collects the fields of a record, followed by those of the surrounding spans. If a name occurs twice, the
    /// innermost wins.
    pub(super) fn of<S>(event: &Event<'_>, spans: Option<Scope<'_, S>>) -> Self
    where
        S: for<'a> LookupSpan<'a>,
    {
        let mut fields = Self::default();
        event.record(&mut fields);
        for span in spans.into_iter().flatten() {
            if let Some(around) = span.extensions().get::<Self>() {
                for (name, value) in &around.0 {
                    if fields.0.iter().all(|(known, _)| known != name) {
                        fields.0.push((*name, value.clone()));
                    }
                }
            }
        }
        fields
    }

    fn set(&mut self, field: &Field, value: Shown) {
        match self.0.iter_mut().find(|(name, _)| *name == field.name()) {
            Some((_, old)) => *old = value,
            None => self.0.push((field.name(), value)),
        }
    }

    /// Writes the message, followed by ` name=value` for every other field. Further lines of a message are indented, so
    /// that none of them can be mistaken for a record.
    pub(super) fn write_line(&self, writer: &mut impl fmt::Write) -> fmt::Result {
        let message = self.0.iter().find(|(name, _)| *name == MESSAGE);
        if let Some((_, Shown::Text(text) | Shown::Written(text))) = message {
            for (number, line) in text.split('\n').enumerate() {
                if number > 0 {
                    writer.write_str("\n  ")?;
                }
                write_escaped(writer, line)?;
            }
        }
        for (name, value) in self.0.iter().filter(|(name, _)| *name != MESSAGE) {
            match value {
                Shown::Text(text) => write!(writer, " {name}={text:?}")?,
                Shown::Written(text) if is_ambiguous(text) => write!(writer, " {name}={text:?}")?,
                Shown::Written(text) => write!(writer, " {name}={text}")?,
                Shown::Plain(value) => write!(writer, " {name}={value}")?,
            }
        }
        Ok(())
    }

    /// Adds all fields to a JSON object.
    pub(super) fn add_to(self, object: &mut Map<String, Value>) {
        for (name, value) in self.0 {
            let value = match value {
                Shown::Text(text) | Shown::Written(text) => Value::String(text),
                Shown::Plain(value) => value,
            };
            object.insert(name.to_owned(), value);
        }
    }
}

/// Whether a value contains characters that would end it, start a field or end the line.
fn is_ambiguous(text: &str) -> bool {
    text.is_empty()
        || text.chars().any(|letter| letter.is_whitespace() || letter.is_control() || "=\"".contains(letter))
}

/// Writes text with control characters and line separators escaped, so that it cannot end the line or move a terminal's
/// cursor.
fn write_escaped(writer: &mut impl fmt::Write, text: &str) -> fmt::Result {
    for letter in text.chars() {
        if letter.is_control() || matches!(letter, '\u{2028}' | '\u{2029}') {
            write!(writer, "{}", letter.escape_debug())?
        } else {
            writer.write_char(letter)?
        }
    }
    Ok(())
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let mut written = String::new();
        // Writing to a string cannot fail.
        let _ = write!(written, "{value:?}");
        self.set(field, Shown::Written(written));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.set(field, Shown::Text(value.to_owned()));
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.set(field, Shown::Plain(value.into()));
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.set(field, Shown::Plain(value.into()));
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.set(field, Shown::Plain(value.into()));
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.set(field, Shown::Plain(value.into()));
    }

    fn record_error(&mut self, field: &Field, value: &(dyn std::error::Error + 'static)) {
        self.set(field, Shown::Written(value.to_string()));
    }
}

/// A layer that stores the fields of every span for the records within it.
#[derive(Debug)]
pub(super) struct SpanFields;

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for SpanFields {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        if let Some(span) = context.span(id) {
            let mut fields = Fields::default();
            attributes.record(&mut fields);
            span.extensions_mut().insert(fields);
        }
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        if let Some(span) = context.span(id)
            && let Some(fields) = span.extensions_mut().get_mut::<Fields>()
        {
            values.record(fields);
        }
    }
}
