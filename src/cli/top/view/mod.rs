//! Lines of text that show an overview: in full, or as much as fits a terminal.

use std::{cmp::Reverse, collections::BTreeMap, time::Duration};

use paternoster_frontend::http::overview_response::{
    Attention, LimitedResource, ModelOverview, OverviewResponse, Usage,
};
use reqwest::Url;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use super::{Order, client::ClientError};

/// Width of the line of the last minute, and seconds that a character of it stands for.
const MINUTE_COLUMNS: usize = 20;
const MINUTE_SECONDS: usize = 60;

/// Heights of a character of that line.
const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// Bound of the durations that servers tell apart.
const LONGEST_MS: f64 = 10_000.0;

/// Columns of a terminal below which nothing is left out any more, but cut.
const LEAST_NAME: usize = 12;

/// Space between columns.
const GAP: usize = 2;

/// What is shown, of which server.
pub(super) struct View<'v> {
    pub(super) url: &'v Url,
    pub(super) order: Order,
    pub(super) model: Option<&'v str>,
}

/// A line on a terminal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Line {
    pub(super) text: String,
    pub(super) style: Option<Style>,
}

/// How a line stands out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Style {
    Heading,
    Alert,
}

impl Style {
    /// Returns the sequence that begins it on a terminal.
    pub(super) fn sequence(self) -> &'static str {
        match self {
            Self::Heading => "\x1b[1m",
            Self::Alert => "\x1b[31m",
        }
    }
}

/// A column of the table.
struct Column {
    title: &'static str,
    cell: fn(&ModelOverview) -> String,
    is_number: bool,
    /// Columns with the largest numbers are left out first where a terminal is narrow.
    rank: u8,
}

const fn text(title: &'static str, rank: u8, cell: fn(&ModelOverview) -> String) -> Column {
    Column { title, cell, is_number: false, rank }
}

const fn number(title: &'static str, rank: u8, cell: fn(&ModelOverview) -> String) -> Column {
    Column { title, cell, is_number: true, rank }
}

static COLUMNS: [Column; 15] = [
    text("MODEL", 0, |model| clean(&model.name)),
    text("VER", 11, |model| clean(&model.version)),
    text("STATE", 1, |model| if model.state.is_empty() { "-".to_owned() } else { clean(&model.state) }),
    number("REQ/S", 2, |model| figure(model.requests_per_second)),
    number("FAIL/S", 3, |model| figure(model.failures_per_second)),
    number("P50MS", 9, |model| milliseconds(model.p50_ms)),
    number("P99MS", 4, |model| milliseconds(model.p99_ms)),
    number("QUEUEMS", 5, |model| milliseconds(model.queue_ms)),
    number("COMPMS", 10, |model| milliseconds(model.compute_ms)),
    number("INFLIGHT", 7, |model| served(model, model.in_flight_requests)),
    number("WAIT", 6, |model| served(model, model.pending_requests)),
    number("ROWS", 12, |model| figure(model.mean_batch_rows)),
    number("MEMORY", 13, memory),
    text("POLICY", 14, |model| clean(&model.policy)),
    text("REQ/S, LAST MINUTE", 8, minute),
];

impl View<'_> {
    /// Returns all figures, or why there are none: for files, pipes and `--once`.
    pub(super) fn plain(&self, answer: &Result<OverviewResponse, ClientError>) -> Vec<String> {
        let answer = match answer {
            Ok(answer) => answer,
            Err(fault) => return vec![fault.to_string()],
        };
        let mut lines = self.head(answer);
        let models = self.sorted(answer);
        let all: Vec<&Column> = COLUMNS.iter().collect();
        let widths = widths(&all, &models);
        if !models.is_empty() {
            lines.push(titles(&all, &widths));
        }
        for model in &models {
            lines.push(row(&all, &widths, model));
            lines.extend(note(model).map(|note| format!("  {note}")));
        }
        lines.extend(left_out(answer));
        lines.push(String::new());
        lines
    }

    /// Returns at most as many lines as a terminal of `size` columns and lines shows. `answer` came `age` ago; `fault`
    /// is why there is no newer one.
    pub(super) fn on_screen(
        &self,
        answer: Option<&OverviewResponse>,
        fault: Option<&ClientError>,
        age: Duration,
        size: (usize, usize),
    ) -> Vec<Line> {
        let (width, height) = size;
        let plain = |text: String| Line { text, style: None };
        let mut lines = Vec::new();
        match (answer, fault) {
            (None, None) => lines.push(plain(format!("{}: asked for the first time …", self.url))),
            (None, Some(fault)) => lines.push(alert(format!("{fault}; it is asked on"))),
            (Some(answer), fault) => {
                lines.extend(self.head(answer).into_iter().map(plain));
                let stale = |fault| format!("{fault}; it is asked on. These figures are {} s old", age.as_secs());
                lines.extend(fault.map(|fault| alert(stale(fault))));
                lines.extend(self.table(answer, width, height.saturating_sub(lines.len())));
            }
        }
        lines.truncate(height);
        lines.into_iter().map(|line| Line { text: fitted(&line.text, width), ..line }).collect()
    }

    fn table(&self, answer: &OverviewResponse, width: usize, height: usize) -> Vec<Line> {
        let models = self.sorted(answer);
        let (columns, widths) = chosen(&models, width);
        let mut rows = Vec::new();
        for model in &models {
            let style = model.attention.map(|_| Style::Alert);
            rows.push(Line { text: row(&columns, &widths, model), style });
            rows.extend(note(model).map(|note| Line { text: format!("  {note}"), style }));
            // One line is the heading, and one says that there are more.
            if rows.len() >= height {
                break;
            }
        }
        if rows.is_empty() {
            return Vec::new();
        }
        let mut lines = vec![Line { text: titles(&columns, &widths), style: Some(Style::Heading) }];
        if rows.len() + 1 > height {
            rows.truncate(height.saturating_sub(2));
            let more = format!("… {} models in all: a higher terminal or --model shows others", models.len());
            rows.push(Line { text: more, style: None });
        }
        lines.extend(rows);
        lines.extend(left_out(answer).map(|text| Line { text, style: None }));
        lines
    }

    /// Returns the lines above the table.
    fn head(&self, answer: &OverviewResponse) -> Vec<String> {
        let server = &answer.server;
        let state = match (server.live, server.ready) {
            (_, true) => "ready",
            (true, false) => "live, not ready",
            (false, false) => "not live",
        };
        let mut lines = vec![format!("{}: {state}, version {}", self.url, clean(&server.version))];
        let load = &answer.load;
        lines.push(format!(
            "requests {}, {}; connections gRPC {}, HTTP {}",
            of(load.pending_requests, |count| count.to_string()),
            of(load.pending_bytes, bytes),
            of(load.grpc_connections, |count| count.to_string()),
            of(load.http_connections, |count| count.to_string()),
        ));
        let memory = answer.memory.map(|memory| {
            let limit = memory.limit_bytes.map(|limit| format!(" of {}", bytes(limit)));
            format!("memory of models {}{}", bytes(memory.used_bytes), limit.unwrap_or_default())
        });
        let on_demand = answer.on_demand.map(|on_demand| {
            format!(
                "requests that wait for a model {}; loads {}, failed {}; models left for others {}, idle {}",
                on_demand.waiting_requests,
                on_demand.loads,
                on_demand.failed_loads,
                on_demand.unloaded_for_memory,
                on_demand.unloaded_idle,
            )
        });
        let of_models: Vec<String> = memory.into_iter().chain(on_demand).collect();
        if !of_models.is_empty() {
            lines.push(of_models.join("; "));
        }
        let resources = answer.resources.iter().map(|resource| {
            let LimitedResource { name, device, units } = resource;
            format!("{} ({}) {}", clean(name), clean(device), of(*units, |count| count.to_string()))
        });
        let resources: Vec<String> = resources.collect();
        if !resources.is_empty() {
            lines.push(format!("resources {}", resources.join(", ")));
        }
        lines.push(self.counted(&answer.models));
        lines
    }

    fn counted(&self, models: &[ModelOverview]) -> String {
        if let (Some(name), true) = (self.model, models.is_empty()) {
            return format!("the server knows no model '{}'", clean(name));
        }
        let mut states = BTreeMap::<&str, usize>::new();
        for model in models {
            let state = if model.state.is_empty() { "not loaded" } else { &model.state };
            *states.entry(state).or_default() += 1;
        }
        let attention = models.iter().filter(|model| model.attention.is_some()).count();
        let states: Vec<String> = states.iter().map(|(state, count)| format!("{count} {}", clean(state))).collect();
        match states.as_slice() {
            [] => "no model was loaded yet".to_owned(),
            states => format!("{attention} of {} need attention: {}", models.len(), states.join(", ")),
        }
    }

    fn sorted<'a>(&self, answer: &'a OverviewResponse) -> Vec<&'a ModelOverview> {
        let mut models: Vec<&ModelOverview> = answer.models.iter().collect();
        let descending = |of: fn(&ModelOverview) -> Option<f64>| {
            move |one: &&ModelOverview, other: &&ModelOverview| {
                let [one, other] = [one, other].map(|model| of(model).unwrap_or(-1.0));
                other.total_cmp(&one)
            }
        };
        // Stable sorts: what an order does not tell apart stays as the server sent it, by attention.
        match self.order {
            Order::Attention => {}
            Order::Name => models.sort_by(|one, other| one.name.cmp(&other.name)),
            Order::Requests => models.sort_by(descending(|model| model.requests_per_second)),
            Order::P99 => models.sort_by(descending(|model| model.p99_ms)),
            Order::Memory => models.sort_by_key(|model| Reverse(memory_bytes(model))),
        }
        models
    }
}

fn alert(text: String) -> Line {
    Line { text, style: Some(Style::Alert) }
}

/// Returns why a model needs attention, and the server's reason.
fn note(model: &ModelOverview) -> Option<String> {
    let attention = match model.attention {
        Some(Attention::Failures) => "requests fail",
        Some(Attention::Queue) => "requests wait long",
        Some(Attention::Unavailable | Attention::Reload) | None => "",
    };
    let reason = clean(&model.reason);
    let parts: Vec<&str> = [reason.as_str(), attention].into_iter().filter(|part| !part.is_empty()).collect();
    (!parts.is_empty()).then(|| parts.join("; "))
}

fn left_out(answer: &OverviewResponse) -> Option<String> {
    let count = answer.models_left_out;
    (count > 0).then(|| format!("{count} more are not shown; --model shows one"))
}

/// Returns the columns that a terminal has room for, and their widths.
fn chosen(models: &[&ModelOverview], width: usize) -> (Vec<&'static Column>, Vec<usize>) {
    let mut columns: Vec<&Column> = COLUMNS.iter().collect();
    loop {
        let mut widths = widths(&columns, models);
        let total = widths.iter().sum::<usize>() + GAP * (widths.len() - 1);
        // The name, which comes first, gives way before a column does.
        let least = total - widths[0].saturating_sub(LEAST_NAME);
        if least <= width || columns.len() == 1 {
            widths[0] -= total.saturating_sub(width).min(widths[0].saturating_sub(1));
            return (columns, widths);
        }
        let lowest = columns.iter().map(|column| column.rank).max();
        columns.retain(|column| Some(column.rank) != lowest);
    }
}

fn widths(columns: &[&Column], models: &[&ModelOverview]) -> Vec<usize> {
    let width = |column: &&Column| {
        let cells = models.iter().map(|model| (column.cell)(model).width());
        cells.chain([column.title.width()]).max().unwrap_or_default()
    };
    columns.iter().map(width).collect()
}

fn titles(columns: &[&Column], widths: &[usize]) -> String {
    joined(columns, widths, |column| column.title.to_owned())
}

fn row(columns: &[&Column], widths: &[usize], model: &ModelOverview) -> String {
    joined(columns, widths, |column| (column.cell)(model))
}

fn joined(columns: &[&Column], widths: &[usize], cell: impl Fn(&Column) -> String) -> String {
    let cells = columns.iter().zip(widths).map(|(column, &width)| {
        let text = fitted(&cell(column), width);
        let space = " ".repeat(width - text.width());
        if column.is_number { space + &text } else { text + &space }
    });
    cells.collect::<Vec<_>>().join(&" ".repeat(GAP)).trim_end().to_owned()
}

/// Returns a text of at most `width` columns, which ends with `…` if it was cut.
fn fitted(text: &str, width: usize) -> String {
    if text.width() <= width {
        return text.to_owned();
    }
    let (mut kept, mut used) = (String::new(), 1);
    for letter in text.chars() {
        used += letter.width().unwrap_or(0);
        if used > width {
            break;
        }
        kept.push(letter);
    }
    if width > 0 {
        kept.push('…');
    }
    kept
}

/// Replaces what a terminal would obey rather than show: control characters, line breaks, changes of direction.
fn clean(text: &str) -> String {
    let is_obeyed = |letter: char| {
        letter.is_control()
            || matches!(letter, '\u{200e}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    text.chars().map(|letter| if is_obeyed(letter) { '\u{fffd}' } else { letter }).collect()
}

fn figure(value: Option<f64>) -> String {
    value.map(|value| if value >= 100.0 { format!("{value:.0}") } else { format!("{value:.1}") }).unwrap_or_default()
}

fn milliseconds(value: Option<f64>) -> String {
    match value {
        Some(value) if value >= LONGEST_MS => format!(">={LONGEST_MS:.0}"),
        Some(value) if value < 10.0 => format!("{value:.2}"),
        value => figure(value),
    }
}

/// Returns a count of a model that serves.
fn served(model: &ModelOverview, count: u64) -> String {
    if model.policy.is_empty() { String::new() } else { count.to_string() }
}

fn memory_bytes(model: &ModelOverview) -> Option<usize> {
    model.memory_measured_bytes.or(model.memory_estimated_bytes)
}

/// Returns the memory of the host; an estimate begins with `~`.
fn memory(model: &ModelOverview) -> String {
    let about = if model.memory_measured_bytes.is_some() { "" } else { "~" };
    memory_bytes(model).map(|count| format!("{about}{}", bytes(count))).unwrap_or_default()
}

fn bytes(count: usize) -> String {
    let (mut value, mut unit) = (count as f64, "B");
    for larger in ["KiB", "MiB", "GiB", "TiB"] {
        if value < 1024.0 {
            break;
        }
        (value, unit) = (value / 1024.0, larger);
    }
    if unit == "B" { format!("{count} B") } else { format!("{value:.1} {unit}") }
}

fn of(usage: Usage, written: impl Fn(usize) -> String) -> String {
    format!("{} of {}", written(usage.used), written(usage.limit))
}

/// Draws the rates of the last minute, the newest at the right.
fn minute(model: &ModelOverview) -> String {
    let rates = &model.history.requests_per_second;
    let most = rates.iter().copied().fold(0.0, f64::max);
    if most <= 0.0 {
        return String::new();
    }
    let of_each = MINUTE_SECONDS / MINUTE_COLUMNS;
    let pieces = rates.rchunks(of_each).map(|rates| rates.iter().copied().fold(0.0, f64::max));
    let bars = pieces.take(MINUTE_COLUMNS).map(|rate| match rate {
        0.0 => ' ',
        rate => BARS[((rate / most * BARS.len() as f64).ceil() as usize).clamp(1, BARS.len()) - 1],
    });
    let newest_first: Vec<char> = bars.collect();
    let missing = " ".repeat(MINUTE_COLUMNS - newest_first.len());
    missing + &newest_first.iter().rev().collect::<String>()
}

#[cfg(test)]
mod tests;
