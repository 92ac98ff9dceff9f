//! Plots of timelines: how long requests waited and ran, and how large tasks were.

use std::path::{Path, PathBuf};

use paternoster_lab::report::plot::{Lines, PlotError};
use paternoster_observe::timeline::{Picture, RanRequest, RanTask};

const NS_PER_MS: f64 = 1e6;
const NS_PER_S: f64 = 1e9;
/// Number of points of a distribution.
const SHARES: usize = 200;
/// Number of intervals over which the sizes of tasks are averaged.
const PARTS: u64 = 100;

/// The series of one timeline.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Series {
    name: String,
    /// Times in milliseconds from arrival to first task, ascending.
    queueing_ms: Vec<f64>,
    /// Times from there to the end, ascending.
    computing_ms: Vec<f64>,
    /// Seconds, and the mean number of rows of the tasks that ran at that time.
    sizes: Vec<(f64, f64)>,
}

impl Series {
    /// Returns the series from the arrival of request number `first`, counted from 0; `None` if there is no such
    /// request.
    pub(super) fn of(name: String, picture: &Picture, first: usize) -> Option<Self> {
        let requests = picture.requests();
        let requests = requests.get(first..).filter(|rest| !rest.is_empty())?;
        let sorted = |time_ns: fn(&RanRequest) -> u64| {
            let mut times_ms: Vec<f64> = requests.iter().map(|request| time_ns(request) as f64 / NS_PER_MS).collect();
            times_ms.sort_by(f64::total_cmp);
            times_ms
        };
        let queueing_ms = sorted(|request| request.began_ns - request.arrived_ns);
        let computing_ms = sorted(|request| request.ended_ns - request.began_ns);
        let ended_ns = requests.iter().map(|request| request.ended_ns).max().unwrap_or(0);
        let sizes = sizes(&picture.tasks(), requests[0].arrived_ns, ended_ns);
        Some(Self { name, queueing_ms, computing_ms, sizes })
    }
}

/// Returns the mean rows of tasks over time, in intervals between two instants.
fn sizes(tasks: &[RanTask<'_>], from_ns: u64, to_ns: u64) -> Vec<(f64, f64)> {
    let part_ns = (to_ns.saturating_sub(from_ns) / PARTS).max(1);
    let mean = |part: u64| {
        let begin_ns = from_ns + part * part_ns;
        let end_ns = begin_ns + part_ns;
        let within = tasks.iter().map(|task| {
            let ran_ns = task.to_ns.min(end_ns).saturating_sub(task.from_ns.max(begin_ns)) as f64;
            (ran_ns, ran_ns * f64::from(task.rows))
        });
        let (ran_ns, row_ns) = within.fold((0.0, 0.0), |sum: (f64, f64), own| (sum.0 + own.0, sum.1 + own.1));
        let middle_s = (part as f64 + 0.5) * part_ns as f64 / NS_PER_S;
        (middle_s, if ran_ns > 0.0 { row_ns / ran_ns } else { 0.0 })
    };
    (0..PARTS).map(mean).collect()
}

/// Returns the share of times up to each time, at evenly spaced shares.
fn distribution(times_ms: &[f64]) -> Vec<(f64, f64)> {
    let last = times_ms.len().saturating_sub(1);
    let points = (0..=SHARES).map(|point| point as f64 / SHARES as f64).filter_map(|share| {
        let time_ms = times_ms.get((share * last as f64).round() as usize)?;
        Some((*time_ms, share))
    });
    points.collect()
}

/// Writes the three plots to files with the prefix `path`.
///
/// # Errors
/// Fails if one cannot be written.
pub(super) fn write(path: &Path, series: &[Series]) -> Result<(), PlotError> {
    let lines = |title: &str, x: &str, y: &str, points: fn(&Series) -> Vec<(f64, f64)>| Lines {
        title: title.to_owned(),
        x: x.to_owned(),
        y: y.to_owned(),
        log_y: false,
        series: series.iter().map(|own| (own.name.clone(), points(own))).collect(),
    };
    let share = "share of the requests";
    let queueing = |own: &Series| distribution(&own.queueing_ms);
    lines("from arrival to the first task", "ms", share, queueing).write_svg(&ending(path, "queueing"))?;
    let computing = |own: &Series| distribution(&own.computing_ms);
    lines("from the first task to the reply", "ms", share, computing).write_svg(&ending(path, "computing"))?;
    let sizes = |own: &Series| own.sizes.clone();
    lines("rows of the tasks that ran", "s", "rows", sizes).write_svg(&ending(path, "batch-size"))
}

fn ending(path: &Path, what: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(format!("-{what}.svg"));
    name.into()
}

#[cfg(test)]
mod tests {
    use paternoster_observe::{
        RequestEnd,
        timeline::{TaskLaunch, TaskRows, Timeline},
    };

    use super::*;

    const MS: u64 = 1_000_000;

    /// Two requests that wait 1 and 2 ms; the second boards after the first has run for 1 ms.
    fn picture() -> Picture {
        let timeline = Timeline::on(100);
        let launch = |at_ns, task, requests: &[u64]| {
            let rows = (0..).zip(requests).map(|(at, &req)| TaskRows { req, start: (task - 1) as u32, count: 1, at });
            let (model, batch, bucket_rows) = (0, task, requests.len() as u32);
            let launched = TaskLaunch { task, batch, model, bucket_rows, stage: 0, lane: 0, lengths: &[] };
            timeline.launched(at_ns, &launched, rows);
        };
        timeline.arrived(0, 1, 0, 1);
        launch(MS, 1, &[1]);
        timeline.arrived(2 * MS, 2, 0, 1);
        timeline.completed(4 * MS, 1, false);
        launch(4 * MS, 2, &[1, 2]);
        timeline.completed(6 * MS, 2, false);
        timeline.ended(6 * MS, 1, RequestEnd::Completed);
        timeline.ended(7 * MS, 2, RequestEnd::Completed);
        timeline.recording().expect("it is on").picture()
    }

    #[test]
    fn times_and_sizes_are_those_of_the_requests_and_their_tasks() {
        let series = Series::of("one".to_owned(), &picture(), 0).expect("it has two requests");
        assert_eq!(series.queueing_ms, [1.0, 2.0]);
        assert_eq!(series.computing_ms, [3.0, 5.0], "to the reply, though the task ended before");
        let at = |part: usize| series.sizes[part].1;
        assert_eq!([at(5), at(30), at(70), at(95)], [0.0, 1.0, 2.0, 0.0]);
        assert!((series.sizes[99].0 - 0.006_965).abs() < 1e-9, "{:?}", series.sizes[99]);
        let second = Series::of("one".to_owned(), &picture(), 1).expect("the second request");
        assert_eq!((second.queueing_ms.as_slice(), second.sizes[0].1), (&[2.0][..], 1.0));
        assert_eq!(Series::of("one".to_owned(), &picture(), 2), None);
    }

    #[test]
    fn a_distribution_goes_from_the_least_to_the_greatest() {
        let points = distribution(&[1.0, 2.0, 4.0]);
        assert_eq!((points[0], points[SHARES / 2], points[SHARES]), ((1.0, 0.0), (2.0, 0.5), (4.0, 1.0)));
        assert!(distribution(&[]).is_empty());
    }

    #[test]
    fn each_plot_has_a_line_for_each_timeline() {
        let folder = tempfile::tempdir().expect("a folder");
        let series =
            ["cells", "padded"].map(|name| Series::of(name.to_owned(), &picture(), 0).expect("it has requests"));
        write(&folder.path().join("wmt15"), &series).expect("they are written");
        for (ending, axis) in [("queueing", "ms"), ("computing", "ms"), ("batch-size", "rows")] {
            let path = folder.path().join(format!("wmt15-{ending}.svg"));
            let svg = std::fs::read_to_string(path).expect("it is there");
            assert!(["cells", "padded", axis].iter().all(|word| svg.contains(word)), "{ending}");
        }
    }
}
