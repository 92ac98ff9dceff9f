//! The Chrome trace format, which chrome://tracing and ui.perfetto.dev open: converts a picture to JSON and back.

use std::{
    collections::BTreeMap,
    io::{self, Write},
};

use serde::{Deserialize, Serialize};

use super::picture::{Arrow, Facts, Kind, Mark, Picture, Process, Row, Span};

/// Names of colours in chrome://tracing, in the order in which batches use them.
const COLOURS: [&str; 8] = [
    "rail_response",
    "thread_state_iowait",
    "good",
    "rail_animation",
    "detailed_memory_dump",
    "vsync_highlight_color",
    "rail_load",
    "cq_build_passed",
];

/// Colour of waiting.
const PALE: &str = "white";

/// Identifies a recording of this program.
const RECORDER: &str = "paternoster";

/// Why a picture could not be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// It is not JSON of the expected form.
    #[error("it is not a timeline in the Chrome trace format: {0}")]
    Json(#[from] serde_json::Error),
    /// It was recorded by another program.
    #[error("it is a trace, but not a timeline of paternoster: expected otherData.recorder to be '{RECORDER}'")]
    Foreign,
}

/// The whole file.
#[derive(Deserialize)]
struct File {
    #[serde(default, rename = "otherData")]
    about: About,
    #[serde(rename = "traceEvents")]
    events: Vec<Event>,
}

#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
struct About {
    recorder: String,
    version: String,
    dropped_events: u64,
}

/// One event; times in microseconds.
#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
struct Event {
    ph: String,
    name: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    cat: String,
    pid: u32,
    tid: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    ts: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dur: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<u64>,
    /// For the end of an arrow: it belongs to the surrounding span.
    #[serde(skip_serializing_if = "Option::is_none")]
    bp: Option<String>,
    /// For a mark: it belongs to its row.
    #[serde(skip_serializing_if = "Option::is_none")]
    s: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cname: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    args: Option<serde_json::Value>,
}

impl Picture {
    /// Writes the picture as JSON, one event per line.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn write_chrome(&self, to: &mut impl Write) -> io::Result<()> {
        let about = About {
            recorder: RECORDER.to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            dropped_events: self.dropped,
        };
        let about = serde_json::to_string(&about)?;
        write!(to, "{{\"displayTimeUnit\":\"ms\",\"otherData\":{about},\"traceEvents\":[")?;
        let spans = self.spans.iter().map(span_event);
        let marks = self.marks.iter().map(mark_event);
        let arrows = self.arrows.iter().enumerate().flat_map(|(id, arrow)| arrow_events(id as u64, arrow));
        // Arrows come last, because the spans that they refer to must be read first.
        let events = self.processes.iter().flat_map(process_events).chain(spans).chain(marks).chain(arrows);
        for (position, event) in events.enumerate() {
            to.write_all(if position == 0 { b"\n" } else { b",\n" })?;
            serde_json::to_writer(&mut *to, &event)?;
        }
        to.write_all(b"\n]}\n")
    }

    /// Reads the output of [`Self::write_chrome`]. Arrows are ignored, because they follow from the spans.
    ///
    /// # Errors
    /// If it is not JSON in the Chrome trace format, or was not recorded by this program.
    pub fn read_chrome(json: &[u8]) -> Result<Self, ReadError> {
        let File { about, events } = serde_json::from_slice(json)?;
        if about.recorder != RECORDER {
            return Err(ReadError::Foreign);
        }
        let mut picture = Self { dropped: about.dropped_events, ..Self::default() };
        let mut processes: BTreeMap<u32, Process> = BTreeMap::new();
        for event in events {
            match event.ph.as_str() {
                "M" => read_name(&mut processes, &event),
                "X" => picture.spans.extend(read_span(event)?),
                "i" => picture.marks.push(Mark { row: event.row(), at_ns: event.begins_ns(), name: event.name }),
                _ => {}
            }
        }
        picture.processes = processes.into_values().collect();
        Ok(picture)
    }
}

impl Event {
    fn new(ph: &str, name: String, row: Row) -> Self {
        Self { ph: ph.to_owned(), name, pid: row.process, tid: row.row, ..Self::default() }
    }

    fn row(&self) -> Row {
        Row { process: self.pid, row: self.tid }
    }

    fn begins_ns(&self) -> u64 {
        self.ts.map_or(0, nanoseconds)
    }
}

fn microseconds(ns: u64) -> f64 {
    ns as f64 / 1e3
}

/// Converts to nanoseconds. Negative and infinite times, which only other programs write, saturate.
fn nanoseconds(us: f64) -> u64 {
    (us * 1e3).round() as u64
}

fn process_events(process: &Process) -> Vec<Event> {
    let named = |key: &str, row: u32, name: &str| {
        let args = Some(serde_json::json!({ "name": name }));
        Event { args, ..Event::new("M", key.to_owned(), Row { process: process.id, row }) }
    };
    let sorted = |key: &str, row: u32, index: u32| {
        let args = Some(serde_json::json!({ "sort_index": index }));
        Event { args, ..Event::new("M", key.to_owned(), Row { process: process.id, row }) }
    };
    let mut events = vec![named("process_name", 0, &process.name), sorted("process_sort_index", 0, process.id)];
    for (&row, name) in &process.rows {
        events.extend([named("thread_name", row, name), sorted("thread_sort_index", row, row)]);
    }
    events
}

fn read_name(processes: &mut BTreeMap<u32, Process>, event: &Event) {
    let Some(name) = event.args.as_ref().and_then(|args| args["name"].as_str()).map(str::to_owned) else { return };
    let new = || Process { id: event.pid, name: String::new(), rows: BTreeMap::new() };
    let process = processes.entry(event.pid).or_insert_with(new);
    match event.name.as_str() {
        "process_name" => process.name = name,
        "thread_name" => drop(process.rows.insert(event.tid, name)),
        _ => {}
    }
}

fn span_event(span: &Span) -> Event {
    let category = match span.kind {
        Kind::Queue => "queue",
        Kind::Stage => "stage",
        Kind::Wait => "wait",
        Kind::Task => "task",
    };
    let colour = match (span.facts.failed, span.facts.batch) {
        (true, _) => "terrible",
        (false, Some(batch)) => COLOURS[(batch % COLOURS.len() as u64) as usize],
        (false, None) => PALE,
    };
    Event {
        cat: category.to_owned(),
        ts: Some(microseconds(span.from_ns)),
        dur: Some(microseconds(span.to_ns - span.from_ns)),
        cname: Some(colour.to_owned()),
        args: serde_json::to_value(&span.facts).ok(),
        ..Event::new("X", span.name(), span.row)
    }
}

/// Reads a span; a span of another category is skipped.
fn read_span(event: Event) -> Result<Option<Span>, serde_json::Error> {
    let Ok(kind) = serde_json::from_value::<Kind>(event.cat.clone().into()) else { return Ok(None) };
    let (row, from_ns) = (event.row(), event.begins_ns());
    let to_ns = from_ns.saturating_add(event.dur.map_or(0, nanoseconds));
    let facts = event.args.map_or_else(|| Ok(Facts::default()), serde_json::from_value)?;
    Ok(Some(Span { row, from_ns, to_ns, kind, facts }))
}

fn mark_event(mark: &Mark) -> Event {
    let event = Event::new("i", mark.name.clone(), mark.row);
    Event { cat: "end".to_owned(), ts: Some(microseconds(mark.at_ns)), s: Some("t".to_owned()), ..event }
}

fn arrow_events(id: u64, arrow: &Arrow) -> [Event; 2] {
    let event = |ph: &str, (row, at_ns): (Row, u64)| {
        let event = Event::new(ph, arrow.name.clone(), row);
        Event { cat: "batch".to_owned(), ts: Some(microseconds(at_ns)), id: Some(id), ..event }
    };
    [event("s", arrow.from), Event { bp: Some("e".to_owned()), ..event("f", arrow.to) }]
}
