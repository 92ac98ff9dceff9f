//! `paternoster timeline`: draws a recorded timeline.

use std::{fs, io, path::PathBuf};

use crate::observe::timeline::{DrawError, Picture, ReadError, View};

const NS_PER_MS: f64 = 1e6;

/// Draws a timeline that a server recorded: requests as rows, stages as bars, the lanes beneath.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Examples:
  paternoster serve --model-repository /models --timeline-file trace.json
  paternoster timeline trace.json --svg timeline.svg
  paternoster timeline trace.json --svg part.svg --from 1200 --to 1250

The file itself opens in ui.perfetto.dev and chrome://tracing.")]
pub struct TimelineArgs {
    /// What `serve --timeline-file` wrote, or GET /v2/timeline gave
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// File to draw to
    #[arg(long, value_name = "SVG")]
    pub svg: PathBuf,
    /// Milliseconds after the first event at which the drawing begins
    #[arg(long, value_name = "MS", value_parser = milliseconds)]
    pub from: Option<f64>,
    /// Milliseconds after the first event at which it ends
    #[arg(long, value_name = "MS", value_parser = milliseconds)]
    pub to: Option<f64>,
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
    /// The file holds something else.
    #[error("cannot read '{file}': {error}")]
    Foreign {
        /// The file.
        file: String,
        /// What is wrong with it.
        error: ReadError,
    },
    /// There is nothing to be seen.
    #[error("cannot draw '{file}': {error}")]
    Undrawable {
        /// The file.
        file: String,
        /// Why.
        error: DrawError,
    },
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
/// When the file cannot be read or is no timeline, nothing happens in the part asked for, or the drawing cannot be written.
pub fn run(args: &TimelineArgs) -> Result<(), TimelineError> {
    let file = args.file.display().to_string();
    let json = fs::read(&args.file).map_err(|error| TimelineError::Unreadable { file: file.clone(), error })?;
    let picture = Picture::read_chrome(&json).map_err(|error| TimelineError::Foreign { file: file.clone(), error })?;
    let ns = |ms: f64| (ms * NS_PER_MS).round() as u64;
    let view = View { from_ns: args.from.map(ns), to_ns: args.to.map(ns) };
    let drawn = picture.to_svg(view).map_err(|error| TimelineError::Undrawable { file, error })?;
    let unwritable = |error| TimelineError::Unwritable { file: args.svg.display().to_string(), error };
    fs::write(&args.svg, drawn).map_err(unwritable)
}

fn milliseconds(given: &str) -> Result<f64, String> {
    let number = given.parse::<f64>().ok().filter(|ms| ms.is_finite() && *ms >= 0.0);
    number.ok_or_else(|| "expected milliseconds from 0, such as 12 or 12.5".to_owned())
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;
    use crate::observe::timeline::{RequestEnd, Timeline};

    fn drawn(json: &[u8], from: Option<f64>) -> Result<String, String> {
        let directory = TempDir::new().expect("a directory for the test");
        let (file, svg) = (directory.path().join("trace.json"), directory.path().join("out.svg"));
        fs::write(&file, json).expect("a file for the test");
        let args = TimelineArgs { file, svg: svg.clone(), from, to: None };
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
    fn what_cannot_be_drawn_is_said_with_the_files_name() {
        let refusal = |json: &[u8], from| drawn(json, from).expect_err("it cannot be drawn");
        let foreign = refusal(b"{\"traceEvents\": []}", None);
        assert!(foreign.contains("trace.json") && foreign.contains("not a timeline of paternoster"), "{foreign}");
        let empty = refusal(&trace(), Some(3.0));
        assert!(empty.starts_with("cannot draw ") && empty.ends_with("the timeline is 2 ms long"), "{empty}");
        let missing = TimelineArgs { file: "/no/such.json".into(), svg: "out.svg".into(), from: None, to: None };
        assert!(run(&missing).expect_err("no such file").to_string().starts_with("cannot read '/no/such.json': "));
    }

    #[test]
    fn times_are_milliseconds_from_zero() {
        assert_eq!(milliseconds("12.5"), Ok(12.5));
        for wrong in ["-1", "NaN", "inf", "soon", ""] {
            assert!(milliseconds(wrong).is_err(), "'{wrong}' is no time");
        }
    }
}
