//! The table and the picture: medians over the rounds, and what each point is of the limit.

use std::{error::Error, path::Path};

use paternoster_lab::report::{self, plot::Bars};
use paternoster_observe::machine;

use crate::{CONCURRENCIES, load::Point, servers::Kind};

/// One measured point of one round.
pub(crate) struct Row {
    pub(crate) kind: Kind,
    pub(crate) concurrency: usize,
    pub(crate) point: Point,
}

/// Prints the table; `idle` is the idle server's share of a core.
pub(crate) fn print(rows: &[Row], idle: f64) {
    println!("{}, servers and client together", machine());
    println!(
        "{:<12} {:>11} {:>12} {:>10} {:>10} {:>16}",
        "server", "concurrency", "requests/s", "p50 (us)", "p99 (us)", "CPU (us/request)"
    );
    for concurrency in CONCURRENCIES {
        let [echo, ours] = [Kind::Echo, Kind::Paternoster].map(|kind| median(rows, kind, concurrency));
        for (name, point) in [("echo", &echo), ("paternoster", &ours)] {
            println!(
                "{name:<12} {concurrency:>11} {:>12.0} {:>10.0} {:>10.0} {:>16.1}",
                point.rate, point.p50_us, point.p99_us, point.cpu_us
            );
        }
        println!("{:<12} {concurrency:>11} {:>12.2}", "ratio", ours.rate / echo.rate);
    }
    println!("idle server: {:.2} % of a core", idle * 100.0);
}

/// Writes all rounds.
pub(crate) fn write_csv(path: &Path, rows: &[Row]) -> Result<(), Box<dyn Error>> {
    let titles = ["machine", "server", "concurrency", "requests_per_s", "p50_us", "p99_us", "cpu_us_per_request"];
    let machine = machine();
    let fields = rows.iter().map(|Row { kind, concurrency, point }| {
        let Point { rate, p50_us, p99_us, cpu_us } = point;
        let figures = [format!("{rate:.0}"), format!("{p50_us:.1}"), format!("{p99_us:.1}"), format!("{cpu_us:.2}")];
        [machine.clone(), format!("{kind:?}"), concurrency.to_string()].into_iter().chain(figures)
    });
    Ok(report::write_csv(path, &titles, fields)?)
}

/// Draws the rates, server beside server.
pub(crate) fn write_svg(path: &Path, rows: &[Row]) -> Result<(), Box<dyn Error>> {
    let rates = |kind| CONCURRENCIES.iter().map(|&concurrency| median(rows, kind, concurrency).rate).collect();
    let bars = Bars {
        title: "small requests over gRPC, closed loop, server and client on one machine".to_owned(),
        x: "requests in flight".to_owned(),
        y: "requests per second".to_owned(),
        groups: CONCURRENCIES.iter().map(usize::to_string).collect(),
        series: vec![
            ("paternoster".to_owned(), rates(Kind::Paternoster)),
            ("bare tonic echo".to_owned(), rates(Kind::Echo)),
        ],
    };
    Ok(bars.write_svg(path)?)
}

/// The round with the median rate.
pub(crate) fn median(rows: &[Row], kind: Kind, concurrency: usize) -> Point {
    let mut points: Vec<&Point> =
        rows.iter().filter(|row| row.kind == kind && row.concurrency == concurrency).map(|row| &row.point).collect();
    points.sort_by(|one, other| one.rate.total_cmp(&other.rate));
    points[points.len() / 2].clone()
}
