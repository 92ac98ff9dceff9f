//! Draws a picture as SVG: requests as rows, stages as coloured bars with the number of their batch, and the lanes
//! below.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
};

use super::picture::{Facts, Kind, LANES, Mark, Picture, Process, Row, Span};

/// Width of the drawing, in its own units.
const WIDTH: f64 = 900.0;
/// Start and end of the bars.
const LEFT: f64 = 96.0;
const RIGHT: f64 = WIDTH - 14.0;
/// Number of rows from which rows are drawn narrower.
const MANY_ROWS: usize = 40;
/// Approximate width of a character in the labels of bars.
const CHARACTER: f64 = 5.8;

/// Colours of stages: light enough for dark letters, and distinguishable with colour blindness.
const STAGES: [&str; 8] = ["#a6cee3", "#fdbf6f", "#b2df8a", "#e8b4cb", "#cab2d6", "#f3e79b", "#9bd8cd", "#d8c0a3"];
const INK: &str = "#24292f";
const FAINT: &str = "#d0d7de";
const WAITS: &str = "#8c959f";
const QUEUED: &str = "#c4cad1";
const FAILED: &str = "#c1272d";

/// The part of a picture to draw. Times are in nanoseconds from its first event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DrawnPart {
    /// Start; defaults to the first event.
    pub from_ns: Option<u64>,
    /// End; defaults to the last event.
    pub to_ns: Option<u64>,
}

/// Why a picture cannot be drawn.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum DrawError {
    /// Nothing happened in the requested part.
    #[error("nothing was recorded in this part: the timeline is {length_ms} ms long")]
    Empty {
        /// Length of the whole timeline, rounded to milliseconds.
        length_ms: u64,
    },
}

/// A row with its contents.
#[derive(Default)]
struct Drawn<'a> {
    spans: Vec<&'a Span>,
    marks: Vec<&'a Mark>,
}

/// The time axis.
struct Axis {
    /// Zero of the labels.
    zero_ns: u64,
    from_ns: u64,
    to_ns: u64,
}

impl Axis {
    fn x(&self, at_ns: u64) -> f64 {
        let along = at_ns.clamp(self.from_ns, self.to_ns) - self.from_ns;
        LEFT + (RIGHT - LEFT) * along as f64 / (self.to_ns - self.from_ns) as f64
    }

    /// Returns round times with their labels.
    fn ticks(&self) -> Vec<(u64, String)> {
        let length_ns = self.to_ns - self.from_ns;
        let steps = (0..19).flat_map(|power| [1, 2, 5].map(|digit| digit * 10_u64.pow(power)));
        let step_ns = steps.into_iter().find(|step| length_ns / step <= 10).unwrap_or(length_ns);
        let (unit_ns, unit) = match length_ns {
            0..1_000 => (1, "ns"),
            1_000..1_000_000 => (1_000, "µs"),
            1_000_000..1_000_000_000 => (1_000_000, "ms"),
            _ => (1_000_000_000, "s"),
        };
        let in_units = |ns: u64| ns as f64 / unit_ns as f64;
        let first = (self.from_ns - self.zero_ns).div_ceil(step_ns);
        let last = (self.to_ns - self.zero_ns) / step_ns;
        let at = (first..=last).map(|n| n * step_ns);
        at.map(|at_ns| (self.zero_ns + at_ns, format!("{} {unit}", in_units(at_ns)))).collect()
    }
}

impl Picture {
    /// Draws the part of the picture in `view`, 900 units wide, on a white background.
    ///
    /// # Errors
    /// If nothing was recorded in that part.
    pub fn to_svg(&self, view: DrawnPart) -> Result<String, DrawError> {
        let times = || self.spans.iter().flat_map(|span| [span.from_ns, span.to_ns]);
        let marks = || self.marks.iter().map(|mark| mark.at_ns);
        let zero_ns = times().chain(marks()).min().unwrap_or(0);
        let last_ns = times().chain(marks()).max().unwrap_or(0);
        let empty = DrawError::Empty { length_ms: (last_ns - zero_ns).div_ceil(1_000_000) };
        let axis = Axis {
            zero_ns,
            from_ns: zero_ns.saturating_add(view.from_ns.unwrap_or(0)),
            to_ns: view.to_ns.map_or(last_ns, |to_ns| zero_ns.saturating_add(to_ns)),
        };
        if axis.from_ns >= axis.to_ns {
            return Err(empty);
        }

        let mut rows: BTreeMap<Row, Drawn<'_>> = BTreeMap::new();
        for span in self.spans.iter().filter(|span| span.from_ns < axis.to_ns && span.to_ns > axis.from_ns) {
            rows.entry(span.row).or_default().spans.push(span);
        }
        for mark in self.marks.iter().filter(|mark| (axis.from_ns..=axis.to_ns).contains(&mark.at_ns)) {
            rows.entry(mark.row).or_default().marks.push(mark);
        }
        if rows.is_empty() {
            return Err(empty);
        }
        Ok(self.draw(&axis, &rows))
    }

    fn draw(&self, axis: &Axis, rows: &BTreeMap<Row, Drawn<'_>>) -> String {
        let pitch = if rows.len() > MANY_ROWS { 14.0 } else { 20.0 };
        let legend = Legend::of(rows);
        let (mut body, top) = (String::new(), legend.y + 14.0);
        let mut y = top;
        // Requests come first, because readers want them, followed by the lanes that run them.
        let (lanes, models): (Vec<_>, Vec<_>) = self.processes.iter().partition(|process| process.id == LANES);
        for process in models.into_iter().chain(lanes) {
            let own = || rows.range(Row { process: process.id, row: 0 }..=Row { process: process.id, row: u32::MAX });
            if own().next().is_none() {
                continue;
            }
            text(&mut body, 10.0, y + 13.0, "font-weight=\"600\"", &process.name);
            y += 20.0;
            for (row, drawn) in own() {
                text(&mut body, 10.0, y + pitch / 2.0 + 4.0, "", &row_label(process, *row, drawn));
                drawn.spans.iter().for_each(|span| bar(&mut body, axis, span, y, pitch));
                drawn.marks.iter().for_each(|mark| cross(&mut body, axis, mark, y + pitch / 2.0));
                y += pitch;
            }
            y += 6.0;
        }

        let mut grid = String::new();
        for (at_ns, label) in axis.ticks() {
            let x = axis.x(at_ns);
            line(&mut grid, (x, top), (x, y), &format!("stroke=\"{FAINT}\""));
            text(&mut grid, x, y + 14.0, "text-anchor=\"middle\"", &label);
        }
        let height = y + 24.0;
        let legend = legend.drawn;
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height:.0}\" width=\"{WIDTH}\" \
             height=\"{height:.0}\" font-family=\"system-ui, sans-serif\" font-size=\"11\" fill=\"{INK}\">\n\
             <rect width=\"{WIDTH}\" height=\"{height:.0}\" fill=\"#ffffff\"/>\n{legend}{grid}{body}</svg>\n"
        )
    }
}

/// The legend; contains only entries for what is drawn.
struct Legend {
    drawn: String,
    x: f64,
    y: f64,
}

impl Legend {
    fn of(rows: &BTreeMap<Row, Drawn<'_>>) -> Self {
        let mut legend = Self { drawn: String::new(), x: 10.0, y: 20.0 };
        let spans = || rows.values().flat_map(|row| &row.spans);
        let stages: BTreeSet<u16> = spans().filter_map(|span| span.facts.stage).collect();
        for stage in stages {
            let (x, y) = legend.place(78.0);
            let style = format!("fill=\"{}\" stroke=\"{INK}\" stroke-width=\"0.5\"", colour(stage));
            rect(&mut legend.drawn, (x, y - 10.0, 14.0, 12.0), &style, "");
            text(&mut legend.drawn, x + 19.0, y, "", &format!("stage {stage}"));
        }
        for (kind, style, label) in [(Kind::Queue, queued(), "queued"), (Kind::Wait, waits(), "waits")] {
            if spans().any(|span| span.kind == kind) {
                let (x, y) = legend.place(78.0);
                line(&mut legend.drawn, (x, y - 4.0), (x + 18.0, y - 4.0), &style);
                text(&mut legend.drawn, x + 23.0, y, "", label);
            }
        }
        if rows.values().any(|row| !row.marks.is_empty()) {
            let (x, y) = legend.place(104.0);
            text(&mut legend.drawn, x, y, &format!("fill=\"{FAILED}\""), "× not completed");
        }
        let (x, y) = legend.place(104.0);
        text(&mut legend.drawn, x, y, "", "numbers: batches");
        legend
    }

    /// Returns a place for an entry of this width, on the next line if the current one is full.
    fn place(&mut self, width: f64) -> (f64, f64) {
        if self.x + width > WIDTH {
            (self.x, self.y) = (10.0, self.y + 18.0);
        }
        let place = (self.x, self.y);
        self.x += width;
        place
    }
}

/// Returns the label of a row: the lane, or the request if the row has only one.
fn row_label(process: &Process, row: Row, drawn: &Drawn<'_>) -> String {
    if process.id == LANES {
        return process.rows.get(&row.row).cloned().unwrap_or_default();
    }
    let requests: BTreeSet<Option<u64>> = drawn.spans.iter().map(|span| span.facts.request).collect();
    match requests.first() {
        Some(Some(request)) if requests.len() == 1 => format!("request {request}"),
        _ => String::new(),
    }
}

fn bar(body: &mut String, axis: &Axis, span: &Span, y: f64, pitch: f64) {
    let (from, to) = (axis.x(span.from_ns), axis.x(span.to_ns));
    let middle = y + pitch / 2.0;
    let Facts { stage, batch, changes, failed, open, .. } = &span.facts;
    let style = match span.kind {
        Kind::Queue => return line(body, (from, middle), (to, middle), &queued()),
        Kind::Wait => return line(body, (from, middle), (to, middle), &waits()),
        Kind::Stage | Kind::Task => {
            let (edge, width) = if *failed { (FAILED, "1.5") } else { (INK, "0.5") };
            let dashes = if *open { " stroke-dasharray=\"3 2\"" } else { "" };
            let fill = colour(stage.unwrap_or_default());
            format!("fill=\"{fill}\" stroke=\"{edge}\" stroke-width=\"{width}\"{dashes}")
        }
    };
    let hint = match span.facts.request {
        Some(request) => format!("request {request} · {}", span.name()),
        None => span.name(),
    };
    // A bar narrower than a line would be invisible.
    let width = (to - from).max(0.5);
    rect(body, (from, y + 2.0, width, pitch - 4.0), &style, &hint);

    let number = batch.unwrap_or_default().to_string();
    let words: Vec<&str> = changes.iter().map(|change| change.name()).collect();
    let spoken = if words.is_empty() { number.clone() } else { format!("{number} · {}", words.join(", ")) };
    let spoken = if span.kind == Kind::Task { spoken } else { number.clone() };
    let fits = |label: &String| label.chars().count() as f64 * CHARACTER + 4.0 <= width;
    if let Some(label) = [spoken, number].into_iter().find(fits) {
        text(body, from + width / 2.0, middle + 3.6, "text-anchor=\"middle\" font-size=\"10\"", &label);
    }
}

fn cross(body: &mut String, axis: &Axis, mark: &Mark, y: f64) {
    let x = axis.x(mark.at_ns);
    let arm = 3.0;
    // Writing to a string cannot fail, here and below.
    let _ = writeln!(
        body,
        "<path d=\"M{:.2} {:.2}l{} {}m0 -{}l-{} {}\" stroke=\"{FAILED}\" stroke-width=\"1.6\"><title>{}</title></path>",
        x - arm,
        y - arm,
        2.0 * arm,
        2.0 * arm,
        2.0 * arm,
        2.0 * arm,
        2.0 * arm,
        escaped(&mark.name)
    );
}

fn colour(stage: u16) -> &'static str {
    STAGES[usize::from(stage) % STAGES.len()]
}

fn queued() -> String {
    format!("stroke=\"{QUEUED}\" stroke-width=\"4\"")
}

fn waits() -> String {
    format!("stroke=\"{WAITS}\" stroke-width=\"1.5\" stroke-dasharray=\"2 3\"")
}

fn line(to: &mut String, (x1, y1): (f64, f64), (x2, y2): (f64, f64), style: &str) {
    let _ = writeln!(to, "<line x1=\"{x1:.2}\" y1=\"{y1:.2}\" x2=\"{x2:.2}\" y2=\"{y2:.2}\" {style}/>");
}

fn rect(to: &mut String, (x, y, width, height): (f64, f64, f64, f64), style: &str, hint: &str) {
    let place = format!("x=\"{x:.2}\" y=\"{y:.2}\" width=\"{width:.2}\" height=\"{height:.2}\"");
    let _ = match hint {
        "" => writeln!(to, "<rect {place} {style}/>"),
        hint => writeln!(to, "<rect {place} {style}><title>{}</title></rect>", escaped(hint)),
    };
}

fn text(to: &mut String, x: f64, y: f64, style: &str, content: &str) {
    let gap = if style.is_empty() { "" } else { " " };
    let _ = writeln!(to, "<text x=\"{x:.2}\" y=\"{y:.2}\"{gap}{style}>{}</text>", escaped(content));
}

/// Escapes text for XML. Characters that XML does not allow become the replacement character.
fn escaped(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\u{fffe}' | '\u{ffff}' => safe.push('\u{fffd}'),
            control if control.is_control() => safe.push('\u{fffd}'),
            other => safe.push(other),
        }
    }
    safe
}
