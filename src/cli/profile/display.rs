//! Progress line and plots of `paternoster profile`.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use indicatif::{ProgressBar, ProgressStyle};
use paternoster_lab::report::plot::Lines;
pub(super) use paternoster_lab::report::plot::PlotError;
use paternoster_profile::Profile;

use super::{shown_lengths, title};

/// Plot files.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct PlotArgs {
    /// File for a plot of the latencies; the throughput is plotted beside it: out.svg and out-throughput.svg
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
}

impl PlotArgs {
    pub(super) fn write(&self, profile: &Profile) -> Result<(), PlotError> {
        self.svg.as_ref().map_or(Ok(()), |path| draw(profile, path))
    }
}

/// A progress line, shown if there is a terminal.
pub(super) struct Progress(ProgressBar);

impl Progress {
    pub(super) fn start() -> Self {
        let bar = ProgressBar::new_spinner();
        if let Ok(style) = ProgressStyle::with_template("{spinner} {msg} {elapsed}") {
            bar.set_style(style);
        }
        bar.enable_steady_tick(Duration::from_millis(100));
        Self(bar)
    }

    pub(super) fn show(&self, what: String) {
        self.0.set_message(what);
    }

    pub(super) fn clear(self) {
        self.0.finish_and_clear();
    }
}

/// Draws T(n) and n / T(n): the whole model or each cell at each length, and the model in stages at the middle length.
fn draw(profile: &Profile, path: &Path) -> Result<(), PlotError> {
    let plot = |y: &str, log_y, of: fn(u32, f64) -> f64| {
        let cuts = profile.cuts.iter().map(|cut| (title(cut), "length", cut));
        let cells = profile.cells.iter().map(|cell| {
            let lengths = if cell.chunk.is_some() { "steps" } else { "length" };
            (format!("cell '{}'", cell.name), lengths, &cell.times)
        });
        let series = cuts.chain(cells).flat_map(|(title, lengths, cut)| {
            shown_lengths(cut).into_iter().map(move |length| {
                let at = if length == 0 { String::new() } else { format!(", {lengths} {length}") };
                let point = |rows| Some((f64::from(rows), of(rows, cut.total_ns(rows, length)? as f64)));
                (format!("{title}{at}"), cut.rows().into_iter().filter_map(point).collect())
            })
        });
        let title = format!("{}: {y}", profile.model);
        Lines { title, x: "rows of a batch".to_owned(), y: y.to_owned(), log_y, series: series.collect() }
    };
    plot("time of a batch, ms", true, |_, ns| ns / 1e6).write_svg(path)?;
    let throughput = plot("rows a second", false, |rows, ns| f64::from(rows) / ns * 1e9);
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    throughput.write_svg(&path.with_file_name(format!("{stem}-throughput.svg")))
}
