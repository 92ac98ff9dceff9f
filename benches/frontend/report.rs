//! The table: medians over the rounds, and what each point is of the limit.

use std::{error::Error, fmt::Write, fs, path::Path};

use crate::{CONCURRENCIES, load::Point, servers::Kind};

/// One measured point of one round.
pub struct Row {
    pub kind: Kind,
    pub concurrency: usize,
    pub point: Point,
}

/// Prints the table; `idle` is the idle server's share of a core.
pub fn print(rows: &[Row], idle: f64) {
    println!("{}", machine());
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
pub fn write_csv(path: &Path, rows: &[Row]) -> Result<(), Box<dyn Error>> {
    let mut csv = format!("# {}\nserver,concurrency,requests_per_s,p50_us,p99_us,cpu_us_per_request\n", machine());
    for Row { kind, concurrency, point } in rows {
        let Point { rate, p50_us, p99_us, cpu_us } = point;
        writeln!(csv, "{kind:?},{concurrency},{rate:.0},{p50_us:.1},{p99_us:.1},{cpu_us:.2}")?;
    }
    Ok(fs::write(path, csv)?)
}

/// The round with the median rate.
pub fn median(rows: &[Row], kind: Kind, concurrency: usize) -> Point {
    let mut points: Vec<&Point> =
        rows.iter().filter(|row| row.kind == kind && row.concurrency == concurrency).map(|row| &row.point).collect();
    points.sort_by(|one, other| one.rate.total_cmp(&other.rate));
    points[points.len() / 2].clone()
}

fn machine() -> String {
    let cores = std::thread::available_parallelism().map_or(0, std::num::NonZero::get);
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = info.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or("unknown CPU");
    format!("{cores} cores of {}, servers and client together", name.trim_start_matches([' ', '\t', ':']))
}
