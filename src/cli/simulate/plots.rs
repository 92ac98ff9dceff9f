//! `--svg`: plots of a comparison.

use std::path::{Path, PathBuf};

use paternoster_lab::{
    report::{Latencies, plot::Lines},
    simulate::{ModelFigures, Period, SimulatedFigures},
};

use super::{SimulateError, ask::Ask, line::Line};

const NS_PER_MS: f64 = 1e6;
const NS_PER_S: f64 = 1e9;
const PER_CENT: f64 = 100.0;

/// Number of points of a distribution of latencies, and of additional ones in its tail.
const EVERY: u32 = 50;
const TAIL: [f64; 4] = [0.99, 0.995, 0.998, 0.999];

/// A plot over the load: suffix of the file's name, axis, whether it is logarithmic, and the value.
type OverLoad = (&'static str, &'static str, bool, fn(&SimulatedFigures, &ModelFigures) -> Option<f64>);

const OVER_LOAD: [OverLoad; 5] = [
    ("mean", "mean latency in ms", true, |_, all| latency_ms(all, all.latencies.mean_ns())),
    ("p90", "90th percentile of the latency in ms", true, |_, all| {
        latency_ms(all, all.latencies.quantile_ns(0.9) as f64)
    }),
    ("p99", "99th percentile of the latency in ms", true, |_, all| {
        latency_ms(all, all.latencies.quantile_ns(0.99) as f64)
    }),
    ("throughput", "completed requests a second", false, |figures, all| Some(figures.throughput(all))),
    ("goodput", "requests a second within the objective", false, |figures, all| Some(figures.goodput(all))),
];

/// A plot over the share of the requests: suffix of the file's name, axis, and latencies.
type Distribution = (&'static str, &'static str, fn(&ModelFigures) -> &Latencies);

const DISTRIBUTIONS: [Distribution; 3] = [
    ("quantiles", "latency", |all| &all.latencies),
    ("queued", "time before the first task", |all| &all.queued),
    ("computing", "time from the first task on", |all| &all.computing),
];

/// Plots the figures of each policy over the load and over the share of the requests. With several objectives, also
/// plots over the objectives, and the other plots show the last one. If the rate changes, also plots over time.
///
/// # Errors
/// Fails if a file cannot be written.
pub(super) fn write(path: &Path, ask: &Ask<'_>, lines: &[Line]) -> Result<(), SimulateError> {
    let models: Vec<&str> = ask.models.iter().map(|model| model.table.name.as_str()).collect();
    let title = format!("{} on {}", models.join(" and "), ask.table.name);
    let last_objective = lines.last().and_then(|line| line.objective_ms);
    let last: Vec<&Line> = lines.iter().filter(|line| line.objective_ms == last_objective).collect();
    for (ending, what, log_y, value) in OVER_LOAD {
        let place = |line: &&Line| {
            let all = line.figures.all();
            Some((line.rate.unwrap_or_else(|| line.figures.throughput(&all)), value(&line.figures, &all)?))
        };
        let plot = Lines {
            title: title.clone(),
            x: "requests a second".to_owned(),
            y: what.to_owned(),
            log_y,
            series: by_policy(&last, |own| own.iter().filter_map(place).collect()),
        };
        plot.write_svg(&beside(path, ending))?;
    }
    for (ending, what, latencies) in DISTRIBUTIONS {
        quantiles(&title, what, latencies, &last).write_svg(&beside(path, ending))?;
    }
    if last.len() < lines.len() {
        missed(&title, lines).write_svg(&beside(path, "missed"))?;
    }
    if last.iter().any(|line| !line.figures.periods.is_empty()) {
        over_time(&title, ask, &last).write_svg(&beside(path, "time"))?;
    }
    Ok(())
}

/// Returns the distributions of latencies under the highest load.
fn quantiles(title: &str, what: &str, latencies: fn(&ModelFigures) -> &Latencies, lines: &[&Line]) -> Lines {
    let highest = lines.iter().filter_map(|line| line.rate).fold(f64::NEG_INFINITY, f64::max);
    let drawn: Vec<&Line> = lines.iter().copied().filter(|line| line.rate.is_none_or(|rate| rate == highest)).collect();
    let points = |own: &[&Line]| {
        let all = own.first().map(|line| line.figures.all()).unwrap_or_default();
        let within =
            |share: f64| Some((PER_CENT * share, latency_ms(&all, latencies(&all).quantile_ns(share) as f64)?));
        let even = (1..EVERY).map(|step| f64::from(step) / f64::from(EVERY));
        even.chain(TAIL).filter_map(within).collect()
    };
    let at = if highest > 0.0 { format!(", {highest:.0} requests/s") } else { String::new() };
    Lines {
        title: format!("{title}{at}"),
        x: "share of the requests in %".to_owned(),
        y: format!("{what} that they stay within, in ms"),
        log_y: true,
        series: by_policy(&drawn, points),
    }
}

/// Returns the share of requests that missed each objective, under the highest load.
fn missed(title: &str, lines: &[Line]) -> Lines {
    let highest = lines.iter().filter_map(|line| line.rate).fold(f64::NEG_INFINITY, f64::max);
    let drawn: Vec<&Line> = lines.iter().filter(|line| line.rate.is_none_or(|rate| rate == highest)).collect();
    let place = |line: &&Line| Some((line.objective_ms?, PER_CENT * line.figures.all().missed()));
    let at = if highest > 0.0 { format!(", {highest:.0} requests/s") } else { String::new() };
    Lines {
        title: format!("{title}{at}"),
        x: "objective in ms".to_owned(),
        y: "requests that missed it, in %".to_owned(),
        log_y: false,
        series: by_policy(&drawn, |own| own.iter().filter_map(place).collect()),
    }
}

/// Returns latency and rate as the load changes: over the request's number if the rate rises in steps, else over time.
fn over_time(title: &str, ask: &Ask<'_>, lines: &[&Line]) -> Lines {
    let (is_stepped, runs) = (ask.is_stepped(), ask.runs() as f64);
    let first: Vec<&Line> =
        lines.iter().copied().filter(|line| line.rate == lines.first().and_then(|line| line.rate)).collect();
    let placed = |figures: &SimulatedFigures, value: fn(&Period) -> Option<f64>| -> Vec<(f64, f64)> {
        let mut before = 0;
        let place = |period: &Period| {
            let middle = (before as f64 + period.offered as f64 / 2.0) / runs;
            before += period.offered;
            let x = if is_stepped { middle } else { period.mean_arrival_ns() / NS_PER_S };
            Some((x, value(period)?))
        };
        figures.periods.iter().filter_map(place).collect()
    };
    let mean_ms = |period: &Period| Some(period.mean_latency_ns()? / NS_PER_MS);
    let mut series =
        by_policy(&first, |own| own.first().map(|line| placed(&line.figures, mean_ms)).unwrap_or_default());
    let rate = |period: &Period| (period.offered > 1).then(|| period.rate());
    series.push(("requests/s that arrive".to_owned(), placed(&first[0].figures, rate)));
    Lines {
        title: title.to_owned(),
        x: if is_stepped { "number of the request" } else { "seconds" }.to_owned(),
        y: "mean latency in ms; requests a second".to_owned(),
        log_y: true,
        series,
    }
}

/// Returns the points of each policy's lines, by the first appearance of the policy.
fn by_policy(lines: &[&Line], points: impl Fn(&[&Line]) -> Vec<(f64, f64)>) -> Vec<(String, Vec<(f64, f64)>)> {
    let mut policies: Vec<&str> = Vec::new();
    for line in lines {
        if !policies.contains(&line.policy.as_str()) {
            policies.push(&line.policy);
        }
    }
    let series = |policy: &&str| {
        let own: Vec<&Line> = lines.iter().copied().filter(|line| line.policy == **policy).collect();
        ((*policy).to_owned(), points(&own))
    };
    policies.iter().map(series).collect()
}

fn latency_ms(all: &ModelFigures, ns: f64) -> Option<f64> {
    (all.completed > 0).then_some(ns / NS_PER_MS)
}

/// Returns the file `out-name.svg` for `out.svg`.
fn beside(path: &Path, name: &str) -> PathBuf {
    let stem = path.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
    let ending = path.extension().map_or_else(|| "svg".to_owned(), |ending| ending.to_string_lossy().into_owned());
    path.with_file_name(format!("{stem}-{name}.{ending}"))
}
