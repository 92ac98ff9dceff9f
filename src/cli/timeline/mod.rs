//! `paternoster timeline`: draws a recorded timeline, or the distributions of several.

mod plots;

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use paternoster_lab::report::plot::PlotError;
use paternoster_observe::timeline::{DrawError, DrawnPart, Picture, ReadError};

use self::plots::Series;

const NS_PER_MS: f64 = 1e6;
/// Bytes of a drawing from which on browsers and viewers are slow to show it.
const LARGE: usize = 1 << 20;

/// Draw a timeline that a server recorded: requests as rows, stages as bars, and the lanes beneath. Or plot how long
/// requests waited and ran, and how large tasks were
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Examples:
  paternoster serve --model-repository /models --timeline-file trace.json
  paternoster timeline trace.json --svg timeline.svg
  paternoster timeline trace.json --svg part.svg --from 1200 --to 1250
  paternoster timeline cells.json --beside padded.json --plots wmt15

The file itself opens in ui.perfetto.dev and chrome://tracing.")]
pub struct TimelineArgs {
    /// Timeline file, from `serve --timeline-file` or GET /v2/timeline
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// SVG file to write
    #[arg(long, value_name = "SVG", required_unless_present = "plots")]
    pub svg: Option<PathBuf>,
    /// Milliseconds after the first event at which the drawing begins
    #[arg(long, value_name = "MS", value_parser = milliseconds)]
    pub from: Option<f64>,
    /// Milliseconds after the first event at which the drawing ends
    #[arg(long, value_name = "MS", value_parser = milliseconds)]
    pub to: Option<f64>,
    /// Prefix of three plots: PATH-queueing.svg and PATH-computing.svg, the distributions of the times from arrival to
    /// the first task and from there to the response, and PATH-batch-size.svg, the rows of tasks over time
    #[arg(long, value_name = "PATH")]
    pub plots: Option<PathBuf>,
    /// Another timeline for the same plots, labelled with its file name; may be given several times
    #[arg(long, value_name = "FILE", requires = "plots")]
    pub beside: Vec<PathBuf>,
    /// Number of requests at the beginning that plots leave out
    #[arg(long, value_name = "N", requires = "plots", default_value_t = 0)]
    pub leave_out: u32,
}

/// Why a timeline could not be drawn.
#[derive(Debug, thiserror::Error)]
pub enum TimelineError {
    /// The file could not be read.
    #[error("cannot read '{file}': {error}")]
    Unreadable {
        /// The file.
        file: String,
        /// The operating system's reason.
        error: io::Error,
    },
    /// The file is not a timeline.
    #[error("cannot read '{file}': {error}")]
    Foreign {
        /// The file.
        file: String,
        /// What is wrong with it.
        error: ReadError,
    },
    /// There is nothing to draw.
    #[error("cannot draw '{file}': {error}")]
    Undrawable {
        /// The file.
        file: String,
        /// The reason.
        error: DrawError,
    },
    /// There are no requests to plot.
    #[error("'{file}' has no request after the first {left_out}, which are excluded")]
    NoRequest {
        /// The file.
        file: String,
        /// Number of requests left out.
        left_out: u32,
    },
    /// A plot could not be written.
    #[error(transparent)]
    Plot(#[from] PlotError),
    /// The drawing could not be written.
    #[error("cannot write '{file}': {error}")]
    Unwritable {
        /// The file.
        file: String,
        /// The operating system's reason.
        error: io::Error,
    },
}

/// Runs the subcommand.
///
/// # Errors
/// Fails if the file cannot be read or is not a timeline, if nothing happens in the requested part, or if the drawing
/// cannot be written.
pub fn run(args: &TimelineArgs) -> Result<(), TimelineError> {
    let picture = read(&args.file)?;
    if let Some(path) = &args.plots {
        let mut series = vec![distributions(&args.file, &picture, args.leave_out)?];
        for file in &args.beside {
            series.push(distributions(file, &read(file)?, args.leave_out)?);
        }
        plots::write(path, &series)?;
    }
    let Some(svg) = &args.svg else { return Ok(()) };
    let ns = |ms: f64| (ms * NS_PER_MS).round() as u64;
    let view = DrawnPart { from_ns: args.from.map(ns), to_ns: args.to.map(ns) };
    let undrawable = |error| TimelineError::Undrawable { file: args.file.display().to_string(), error };
    let drawn = picture.to_svg(view).map_err(undrawable)?;
    let unwritable = |error| TimelineError::Unwritable { file: svg.display().to_string(), error };
    fs::write(svg, &drawn).map_err(unwritable)?;
    if let Some(hint) = hint(drawn.len()) {
        eprintln!("'{}' {hint}", svg.display());
    }
    Ok(())
}

/// Returns a hint on how to draw less, if a drawing of this size in bytes is large.
fn hint(bytes: usize) -> Option<String> {
    let megabytes = bytes as f64 / 1e6;
    (bytes >= LARGE).then(|| format!("has {megabytes:.1} MB and may be slow to open: --from and --to draw a part"))
}

fn read(file: &Path) -> Result<Picture, TimelineError> {
    let name = || file.display().to_string();
    let json = fs::read(file).map_err(|error| TimelineError::Unreadable { file: name(), error })?;
    Picture::read_chrome(&json).map_err(|error| TimelineError::Foreign { file: name(), error })
}

/// Returns the distributions of one timeline, labelled with its file name.
fn distributions(file: &Path, picture: &Picture, left_out: u32) -> Result<Series, TimelineError> {
    let name = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let series = Series::of(name, picture, left_out as usize);
    series.ok_or_else(|| TimelineError::NoRequest { file: file.display().to_string(), left_out })
}

fn milliseconds(given: &str) -> Result<f64, String> {
    let number = given.parse::<f64>().ok().filter(|ms| ms.is_finite() && *ms >= 0.0);
    number.ok_or_else(|| "expected milliseconds from 0, such as 12 or 12.5".to_owned())
}

#[cfg(test)]
mod tests {
    use paternoster_observe::{
        RequestEnd,
        timeline::{TaskLaunch, TaskRows, Timeline},
    };
    use tempfile::TempDir;

    use super::*;

    fn args(file: PathBuf) -> TimelineArgs {
        TimelineArgs { file, svg: None, from: None, to: None, plots: None, beside: Vec::new(), leave_out: 0 }
    }

    fn drawn(json: &[u8], from: Option<f64>) -> Result<String, String> {
        let directory = TempDir::new().expect("a directory for the test");
        let (file, svg) = (directory.path().join("trace.json"), directory.path().join("out.svg"));
        fs::write(&file, json).expect("a file for the test");
        let args = TimelineArgs { svg: Some(svg.clone()), from, ..args(file) };
        run(&args).map_err(|error| error.to_string())?;
        Ok(fs::read_to_string(svg).expect("it was drawn"))
    }

    fn trace() -> Vec<u8> {
        let timeline = Timeline::on(10);
        timeline.arrived(5_000_000, 1, 0, 1);
        timeline.ended(7_000_000, 1, RequestEnd::Rejected);
        let mut json = Vec::new();
        timeline.recording().expect("it is on").picture().write_chrome(&mut json).expect("a vector takes everything");
        json
    }

    #[test]
    fn a_trace_becomes_a_drawing_whose_time_begins_at_its_first_event() {
        let whole = drawn(&trace(), None).expect("a timeline");
        assert!(
            whole.starts_with("<svg ") && whole.contains(">0 ms</text>") && whole.contains(">2 ms</text>"),
            "{whole}"
        );
        let part = drawn(&trace(), Some(1.5)).expect("the request still waits");
        assert!(!part.contains(">0 ms</text>") && part.contains(">2000 µs</text>"), "{part}");
    }

    #[test]
    fn only_a_large_drawing_comes_with_a_hint_to_draw_a_part() {
        assert_eq!(hint(LARGE - 1), None);
        let large = hint(6_700_000).expect("it is large");
        assert_eq!(large, "has 6.7 MB and may be slow to open: --from and --to draw a part");
    }

    #[test]
    fn what_cannot_be_drawn_is_said_with_the_files_name() {
        let refusal = |json: &[u8], from| drawn(json, from).expect_err("it cannot be drawn");
        let foreign = refusal(b"{\"traceEvents\": []}", None);
        assert!(foreign.contains("trace.json") && foreign.contains("not a timeline of paternoster"), "{foreign}");
        let empty = refusal(&trace(), Some(3.0));
        assert!(empty.starts_with("cannot draw ") && empty.ends_with("the timeline is 2 ms long"), "{empty}");
        let missing = args("/no/such.json".into());
        assert!(run(&missing).expect_err("no such file").to_string().starts_with("cannot read '/no/such.json': "));
    }

    #[test]
    fn timelines_are_told_beside_each_other_under_their_files_names() {
        let directory = TempDir::new().expect("a directory for the test");
        let files = ["cells", "padded"].map(|name| directory.path().join(format!("{name}.json")));
        let timeline = Timeline::on(10);
        timeline.arrived(0, 1, 0, 1);
        let (rows, launch) = (
            TaskRows { req: 1, start: 0, count: 1, at: 0 },
            TaskLaunch { task: 0, model: 0, stage: 0, lane: 0, batch: 0, bucket_rows: 1, lengths: &[] },
        );
        timeline.launched(2_000_000, &launch, [rows]);
        timeline.completed(5_000_000, 0, false);
        timeline.ended(5_000_000, 1, RequestEnd::Completed);
        let mut ran = Vec::new();
        timeline.recording().expect("it is on").picture().write_chrome(&mut ran).expect("a vector takes everything");
        files.iter().for_each(|file| fs::write(file, &ran).expect("a file for the test"));
        let plots = Some(directory.path().join("out"));
        let both = TimelineArgs { plots, beside: vec![files[1].clone()], ..args(files[0].clone()) };
        run(&both).expect("both are shown");
        let svg = fs::read_to_string(directory.path().join("out-queueing.svg")).expect("it was drawn");
        assert!(svg.contains("cells") && svg.contains("padded"), "{svg}");
        let none = run(&TimelineArgs { leave_out: 1, ..both }).expect_err("there is one request").to_string();
        assert!(none.ends_with("cells.json' has no request after the first 1, which are excluded"), "{none}");
    }

    #[test]
    fn times_are_milliseconds_from_zero() {
        assert_eq!(milliseconds("12.5"), Ok(12.5));
        for wrong in ["-1", "NaN", "inf", "soon", ""] {
            assert!(milliseconds(wrong).is_err(), "'{wrong}' is no time");
        }
    }
}
