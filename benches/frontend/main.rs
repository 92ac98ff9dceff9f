//! What the front end costs: a closed loop of small requests against `paternoster serve` with the identity model, and
//! against a bare tonic echo of the same messages in the same run (the limit). Prints requests per second, p50, p99 and
//! server CPU per request at concurrency 1, 8 and 64, and the ratios; checks every answer while timing.
//!
//!     cargo bench --bench frontend -- [--seconds 5] [--rounds 3] [--csv FILE] [--svg FILE]
//!
//! Servers are processes of their own, so that their CPU time is theirs alone. Rounds alternate between the two. The
//! binary is taken from the build; ONNX Runtime is found as the server finds it (`ORT_DYLIB_PATH`).

mod echo;
mod load;
mod report;
mod servers;

use std::{error::Error, path::PathBuf, time::Duration};

use clap::Parser;

/// Concurrencies of the comparison.
const CONCURRENCIES: [usize; 3] = [1, 8, 64];

#[derive(Parser)]
struct Args {
    /// Measured time of each point
    #[arg(long, default_value_t = 5.0)]
    seconds: f64,
    /// How often each point is measured; the median round is reported
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Where to write the table as CSV
    #[arg(long)]
    csv: Option<PathBuf>,
    /// Where to draw the rates as SVG
    #[arg(long)]
    svg: Option<PathBuf>,
    /// Be the echo server (used by the benchmark itself)
    #[arg(long, hide = true)]
    echo: bool,
    /// Given by `cargo bench`
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() -> Result<(), Box<dyn Error>> {
    let args = Args::parse();
    if args.echo {
        return echo::serve();
    }
    let repository = servers::identity_repository()?;
    let measured = Duration::from_secs_f64(args.seconds);
    let mut results = Vec::new();
    for round in 0..args.rounds {
        for concurrency in CONCURRENCIES {
            let mut targets = [servers::Kind::Echo, servers::Kind::Paternoster];
            // Neither profits from a fixed place in the order.
            if round % 2 == 1 {
                targets.reverse();
            }
            for kind in targets {
                let server = servers::Server::start(kind, repository.path())?;
                let point = load::closed_loop(&server, concurrency, measured)?;
                eprintln!("round {} {kind:?} at {concurrency}: {point}", round + 1);
                results.push(report::Row { kind, concurrency, point });
            }
        }
    }
    let idle = servers::idle_cpu(repository.path(), Duration::from_secs(3))?;
    report::print(&results, idle);
    if let Some(path) = &args.csv {
        report::write_csv(path, &results)?;
    }
    if let Some(path) = &args.svg {
        report::write_svg(path, &results)?;
    }
    Ok(())
}
