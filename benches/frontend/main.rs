//! What the front end costs, by closed loops that compare every response while timing. `--what` says of what:
//!
//! `echo` (default): small requests against `paternoster serve` with the identity model, and against a bare tonic
//! echo of the same messages in the same run, as a yardstick. Prints requests per second, p50, p99 and server CPU per
//! request at concurrency 1, 8 and 64, and the ratios.
//!
//! `traces`: the same requests over both protocols to servers that trace nothing, and one request in a hundred.
//!
//! `protocols`: binary requests of three sizes over gRPC and over HTTP, to one server.
//!
//!     cargo bench --bench frontend -- [--what WHAT] [--seconds S] [--rounds N] [--csv FILE] [--svg FILE]
//!
//! Servers are processes of their own, so that their CPU time is theirs alone. Rounds alternate between what is
//! compared. The binary is taken from the build; ONNX Runtime is found as the server finds it (`ORT_DYLIB_PATH`).

mod client;
mod costs;
mod echo;
mod load;
mod report;
mod servers;

use std::{error::Error, path::PathBuf, time::Duration};

use clap::{Parser, ValueEnum};

use self::client::{Model, Protocol};

/// Concurrencies of the comparison.
const CONCURRENCIES: [usize; 3] = [1, 8, 64];

/// What is measured.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum What {
    /// The server beside a bare echo
    Echo,
    /// Traces of one request in a hundred beside none
    Traces,
    /// HTTP beside gRPC
    Protocols,
}

#[derive(Parser)]
struct Args {
    /// What is measured
    #[arg(long, value_enum, default_value_t = What::Echo)]
    what: What,
    /// Measured time of each point of a round
    #[arg(long, default_value_t = 5.0)]
    seconds: f64,
    /// How often each point is measured
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
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let rounds = costs::Rounds { count: args.rounds.max(1), turn: measured };
    let compared = match args.what {
        What::Echo => None,
        What::Traces => Some(("protocol", runtime.block_on(costs::traces(repository.path(), rounds))?)),
        What::Protocols => Some(("bytes", runtime.block_on(costs::protocols(rounds))?)),
    };
    if let Some((case, rows)) = compared {
        if let Some(path) = &args.csv {
            costs::write_csv(path, case, &rows)?;
        }
        return Ok(());
    }
    let model = Model { name: "identity".to_owned(), elements: 16 };
    let mut results = Vec::new();
    for round in 0..args.rounds {
        for concurrency in CONCURRENCIES {
            let mut targets = [servers::Kind::Echo, servers::Kind::Paternoster];
            // Neither profits from a fixed place in the order.
            if round % 2 == 1 {
                targets.reverse();
            }
            for kind in targets {
                let server = servers::Server::start(kind, repository.path(), &[])?;
                let point = runtime.block_on(async {
                    let mut loops = load::Loops::connect(&server, Protocol::Grpc, &model, concurrency).await?;
                    loops.turn(&server, load::WARM_UP).await?;
                    Ok::<_, Box<dyn Error>>(loops.turn(&server, measured).await?.point())
                })?;
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
