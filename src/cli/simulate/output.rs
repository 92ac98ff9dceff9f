//! Prints the figures, for people and for programs.

use std::{io::stdout, path::Path};

use paternoster_lab::{
    report::write_csv,
    simulate::{ModelFigures, SimulatedFigures},
};
use serde_json::{Map, Value, json};

use super::{SimulateArgs, SimulateError, ask::Ask, line::Line, plots};
use crate::cli::table::{Table, terminal_width};

const NS_PER_MS: f64 = 1e6;
const NS_PER_S: f64 = 1e9;

/// The number of devices that one policy needs.
#[derive(Debug)]
pub(super) struct Sizing {
    pub(super) policy: String,
    /// The smallest number that is enough; `None` if the largest one tried is not.
    pub(super) devices: Option<u16>,
    /// Figures with these devices, or with the largest number tried.
    pub(super) figures: SimulatedFigures,
}

/// The figures of one model, or of all, in the order of [`COLUMNS`].
type Row = [Option<f64>; COLUMNS.len()];

/// The figures of one model under one policy and load: its line, its name, its columns, and figures for programs only.
type ModelRow<'l> = (&'l Line, String, Row, Map<String, Value>);

/// Name for programs, title for people, digits after the decimal point.
const COLUMNS: [(&str, &str, usize); 14] = [
    ("mean_ms", "Mean ms", 2),
    ("p50_ms", "p50", 2),
    ("p90_ms", "p90", 2),
    ("p99_ms", "p99", 2),
    ("throughput", "Done/s", 1),
    ("goodput", "Good/s", 1),
    ("missed", "Missed", 4),
    ("batch", "Batch", 2),
    ("stretches", "Stretches", 0),
    ("splits", "Splits", 0),
    ("merges", "Merges", 0),
    ("utilisation", "Busy", 2),
    ("requests_per_joule", "Req/J", 2),
    ("requests", "Requests", 0),
];

/// Prints the figures of each policy under each load, and writes the requested files.
///
/// # Errors
/// Fails if a file cannot be written.
pub(super) fn figures(
    args: &SimulateArgs,
    ask: &Ask<'_>,
    peak: Option<f64>,
    lines: &[Line],
) -> Result<(), SimulateError> {
    let rows = rows_of(ask, lines);
    if let Some(path) = &args.csv {
        let head = ["policy", "objective_ms", "load", "rate", "model"];
        let titles: Vec<&str> = head.into_iter().chain(COLUMNS.map(|(name, ..)| name)).collect();
        let records = rows.iter().map(|(line, model, row, _)| {
            let head =
                [line.policy.clone(), plain(line.objective_ms), plain(line.part), plain(line.rate), model.clone()];
            head.into_iter().chain(row.iter().map(|value| plain(*value))).collect::<Vec<_>>()
        });
        write_csv(path, &titles, records).map_err(|error| unwritable(path, error))?;
    }
    if let Some(path) = &args.svg {
        plots::write(path, ask, lines)?;
    }
    if args.json {
        println!("{}", json!({ "table": ask.table.name, "peak": peak, "runs": json(ask, lines) }));
        return Ok(());
    }
    println!("{}", heading(args, ask, peak));
    const KEYS: [&str; 5] = ["Policy", "Objective", "Load", "Rate/s", "Model"];
    let titles = KEYS.into_iter().chain(COLUMNS.map(|(_, title, _)| title));
    let table = Table::new(&titles.collect::<Vec<_>>());
    let mut table = table.with_keys(KEYS.len()).with_text(&["Policy", "Model"]);
    for (line, model, row, _) in &rows {
        let objective = line.objective_ms.map(|objective_ms| format!("{objective_ms} ms"));
        let [part, rate] = [line.part.map(|part| format!("{part:.2}")), line.rate.map(|rate| format!("{rate:.1}"))];
        let head = [line.policy.clone(), or_dash(objective), or_dash(part), or_dash(rate), model.clone()];
        table.row(head.into_iter().chain(cells(row)));
    }
    println!("{}", table.within(terminal_width(stdout())));
    for line in lines {
        let Some((rate, objective_ms)) = highest_step(ask, line).zip(line.objective_ms) else { continue };
        println!("{}: the highest step below {objective_ms} ms has {rate:.0} requests/s", line.policy);
    }
    Ok(())
}

/// Returns the rows of each line: one per model, and one for all models if there are several.
fn rows_of<'l>(ask: &Ask<'_>, lines: &'l [Line]) -> Vec<ModelRow<'l>> {
    let mut rows = Vec::new();
    for line in lines {
        let mut models: Vec<(String, ModelFigures)> = Vec::new();
        for (model, figures) in ask.models.iter().zip(&line.figures.models) {
            models.push((model.table.name.clone(), figures.clone()));
        }
        if models.len() > 1 {
            models.push(("all".to_owned(), line.figures.all()));
        }
        let of_model = |(model, figures): (String, ModelFigures)| {
            let row = row(&line.figures, &figures);
            let mut more = parts(&figures);
            more.extend(counts(&line.figures, &figures));
            (line, model, row, more)
        };
        rows.extend(models.into_iter().map(of_model));
    }
    rows
}

/// Returns the figures of each line, as `--json` prints them.
pub(super) fn json(ask: &Ask<'_>, lines: &[Line]) -> Vec<Value> {
    let objects = rows_of(ask, lines).into_iter().map(|(line, model, row, more)| {
        let mut object = object(&row);
        object.insert("policy".to_owned(), json!(line.policy));
        object.insert("objective_ms".to_owned(), json!(line.objective_ms));
        object.insert("highest_step".to_owned(), json!(highest_step(ask, line)));
        object.insert("load".to_owned(), json!(line.part));
        object.insert("rate".to_owned(), json!(line.rate));
        object.insert("model".to_owned(), json!(model));
        object.extend(more);
        Value::Object(object)
    });
    objects.collect()
}

/// Prints how many devices each policy needs, and writes the requested file.
///
/// # Errors
/// Fails if the file cannot be written.
pub(super) fn sizings(
    args: &SimulateArgs,
    ask: &Ask<'_>,
    rate: f64,
    p99_ms: f64,
    sizings: &[Sizing],
) -> Result<(), SimulateError> {
    let rows: Vec<(&Sizing, Row)> =
        sizings.iter().map(|sizing| (sizing, row(&sizing.figures, &sizing.figures.all()))).collect();
    if let Some(path) = &args.csv {
        let titles: Vec<&str> = ["policy", "devices"].into_iter().chain(COLUMNS.map(|(name, ..)| name)).collect();
        let records = rows.iter().map(|(sizing, row)| {
            let head = [sizing.policy.clone(), plain(sizing.devices.map(f64::from))];
            head.into_iter().chain(row.iter().map(|value| plain(*value))).collect::<Vec<_>>()
        });
        write_csv(path, &titles, records).map_err(|error| unwritable(path, error))?;
    }
    if args.json {
        let objects = rows.iter().map(|(sizing, row)| {
            let mut object = object(row);
            object.insert("policy".to_owned(), json!(sizing.policy));
            object.insert("devices".to_owned(), json!(sizing.devices));
            object.extend(counts(&sizing.figures, &sizing.figures.all()));
            Value::Object(object)
        });
        let asked = json!({ "rate": rate, "p99_ms": p99_ms, "max_devices": args.max_devices });
        let answers: Vec<Value> = objects.collect();
        println!("{}", json!({ "table": ask.table.name, "capacity": asked, "answers": answers }));
        return Ok(());
    }
    println!("{}", heading(args, ask, None));
    println!("devices for {rate} requests/s with 99 of 100 within {p99_ms} ms:");
    let titles = ["Policy", "Devices"].into_iter().chain(COLUMNS.map(|(_, title, _)| title));
    let mut table = Table::new(&titles.collect::<Vec<_>>()).with_text(&["Policy"]);
    for (sizing, row) in &rows {
        let devices = sizing.devices.map_or_else(|| format!("> {}", args.max_devices), |devices| devices.to_string());
        table.row([sizing.policy.clone(), devices].into_iter().chain(cells(row)));
    }
    println!("{}", table.within(terminal_width(stdout())));
    Ok(())
}

fn row(figures: &SimulatedFigures, model: &ModelFigures) -> Row {
    let some = |count: u64| Some(count as f64);
    let latency = |ns: f64| (model.completed > 0).then_some(ns / NS_PER_MS);
    let quantile = |quantile| latency(model.latencies.quantile_ns(quantile) as f64);
    [
        latency(model.latencies.mean_ns()),
        quantile(0.5),
        quantile(0.9),
        quantile(0.99),
        Some(figures.throughput(model)),
        Some(figures.goodput(model)),
        Some(model.missed()),
        Some(model.mean_batch()),
        some(model.counters.stretches),
        some(model.counters.splits),
        some(model.counters.merges),
        Some(figures.utilisation()),
        (figures.joules > 0.0).then(|| figures.requests_per_joule()),
        some(model.offered),
    ]
}

/// Returns the time that requests waited for their first task, and the time from there to their end.
fn parts(model: &ModelFigures) -> Map<String, Value> {
    let mut parts = Map::new();
    for (part, latencies) in [("queued", &model.queued), ("computing", &model.computing)] {
        for (name, quantile) in [("p50", 0.5), ("p90", 0.9), ("p99", 0.99)] {
            let ms = (model.completed > 0).then(|| latencies.quantile_ns(quantile) as f64 / NS_PER_MS);
            parts.insert(format!("{part}_{name}_ms"), json!(ms));
        }
    }
    parts
}

/// Returns figures that show that no request is lost: `requests` is the sum of completed and refused ones, and
/// `throughput` times `span_s` is the number completed. `tasks` and `rows` cover the whole run, including the warm-up.
fn counts(figures: &SimulatedFigures, model: &ModelFigures) -> Map<String, Value> {
    let counts = [
        ("completed", json!(model.completed)),
        ("refused", json!(model.refused)),
        ("tasks", json!(model.counters.tasks_launched)),
        ("rows", json!(model.counters.rows_launched)),
        ("span_s", json!(figures.span_ns as f64 / NS_PER_S)),
    ];
    counts.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

/// Returns the peak under a stepped load: the highest step before the mean latency exceeds the objective.
fn highest_step(ask: &Ask<'_>, line: &Line) -> Option<f64> {
    line.figures.highest_step(line.objective_ms.filter(|_| ask.is_stepped())? * NS_PER_MS)
}

/// Describes in one line what was simulated.
fn heading(args: &SimulateArgs, ask: &Ask<'_>, peak: Option<f64>) -> String {
    let model = |model: &super::ask::Model| {
        let lengths = model.workload.as_ref().filter(|_| args.trace.is_none());
        let lengths = lengths.map(|name| format!(", lengths {name}")).unwrap_or_default();
        let kind = if model.table.cells.is_some() { "cells" } else { "stages" };
        format!("{} ({} {kind}{lengths})", model.table.name, model.table.latencies.stages.len())
    };
    let models: Vec<String> = ask.models.iter().map(model).collect();
    let arrivals =
        args.trace.as_ref().map_or_else(|| args.arrivals.clone(), |path| format!("trace {}", path.display()));
    let peak = peak.map(|peak| format!("; peak of {} {peak:.1} requests/s", ask.peak_policy())).unwrap_or_default();
    let runs = format!("{} × {} requests from seed {}", args.seeds, ask.requests, args.seed);
    format!("{}: {}; {arrivals}, {runs}{peak}", ask.table.name, models.join(", "))
}

fn cells(row: &Row) -> impl Iterator<Item = String> {
    row.iter().zip(COLUMNS).map(|(value, (_, _, digits))| or_dash(value.map(|value| format!("{value:.digits$}"))))
}

fn object(row: &Row) -> Map<String, Value> {
    row.iter().zip(COLUMNS).map(|(value, (name, ..))| (name.to_owned(), json!(value))).collect()
}

fn plain(value: Option<f64>) -> String {
    value.map(|value| value.to_string()).unwrap_or_default()
}

fn or_dash(cell: Option<String>) -> String {
    cell.unwrap_or_else(|| "-".to_owned())
}

fn unwritable(path: &Path, error: std::io::Error) -> SimulateError {
    SimulateError::Unwritable { file: path.display().to_string(), error }
}
