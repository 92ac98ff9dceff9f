//! What something costs, by servers or protocols that take turns in one run: whatever else the machine does meets all
//! of them alike.

use std::{error::Error, path::Path, time::Duration};

use axum::{Router, extract::DefaultBodyLimit, routing::post};
use paternoster_lab::report::{self, Latencies};
use paternoster_model::DataType;
use paternoster_observe::machine;
use paternoster_onnx::{PortDim, zoo};

use crate::{
    CONCURRENCIES,
    client::{Model, Protocol},
    load::{Loops, Turn, WARM_UP},
    servers::{Kind, Server},
};

/// One row of one server, by its elements: 64 bytes, 64 KiB, 1 MiB.
const SIZES: [usize; 3] = [16, 16 << 10, 256 << 10];

/// How many rounds there are, and how long each turn of a round lasts.
#[derive(Clone, Copy)]
pub(crate) struct Rounds {
    pub(crate) count: usize,
    pub(crate) turn: Duration,
}

/// One turn of one of those that are compared; the first of them is what the others are compared with.
pub(crate) struct Row {
    case: String,
    in_flight: usize,
    variant: &'static str,
    round: usize,
    turn: Turn,
}

/// Small requests without traces, and with one request in a hundred traced, in Triton's file or exported as spans.
pub(crate) async fn traces(repository: &Path, rounds: Rounds) -> Result<Vec<Row>, Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let collector = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}/v1/traces", collector.local_addr()?);
    let routes = Router::new().route("/v1/traces", post(|_: bytes::Bytes| async {})).layer(DefaultBodyLimit::disable());
    tokio::spawn(async move { axum::serve(collector, routes).await });

    let file = format!("level=TIMESTAMPS,rate=100,mode=triton,file={}", folder.path().join("traces.json").display());
    let spans = format!("level=TIMESTAMPS,rate=100,mode=opentelemetry,url={url}");
    let flags: [(&str, Vec<String>); 3] = [
        ("off", Vec::new()),
        ("file", vec![format!("--trace-config={file}")]),
        ("otlp", vec![format!("--trace-config={spans}")]),
    ];
    let mut servers = Vec::new();
    for (variant, flags) in flags {
        servers.push((variant, Server::start(Kind::Paternoster, repository, &flags)?));
    }
    let model = Model { name: "identity".to_owned(), elements: 16 };
    let mut rows = Vec::new();
    for protocol in [Protocol::Grpc, Protocol::Http] {
        for in_flight in CONCURRENCIES {
            let mut variants = Vec::new();
            for (variant, server) in &servers {
                let loops = Loops::connect(server, protocol, &model, in_flight).await?;
                variants.push((*variant, server, loops));
            }
            let case = format!("{protocol:?}").to_lowercase();
            alternate(&case, in_flight, &mut variants, rounds, &mut rows).await?;
        }
    }
    Ok(rows)
}

/// The same requests over gRPC and over HTTP, to one server.
pub(crate) async fn protocols(rounds: Rounds) -> Result<Vec<Row>, Box<dyn Error>> {
    let repository = tempfile::tempdir()?;
    let models = SIZES.map(|elements| Model { name: format!("identity_{elements}"), elements });
    for Model { name, elements } in &models {
        let version = repository.path().join(name).join("1");
        std::fs::create_dir_all(&version)?;
        let shape = [PortDim::from("batch"), PortDim::from(*elements as i64)];
        zoo::identity_of(DataType::Fp32, &shape)?.write(&version.join("model.onnx"))?;
    }
    let server = Server::start(Kind::Paternoster, repository.path(), &[])?;
    let mut rows = Vec::new();
    for model in &models {
        for in_flight in CONCURRENCIES {
            let mut variants = Vec::new();
            let compared = [("grpc", Protocol::Grpc), ("grpc-apart", Protocol::GrpcApart), ("http", Protocol::Http)];
            for (variant, protocol) in compared {
                // Alone it has a connection of its own anyway.
                if in_flight == 1 && protocol == Protocol::GrpcApart {
                    continue;
                }
                variants.push((variant, &server, Loops::connect(&server, protocol, model, in_flight).await?));
            }
            alternate(&(model.elements * 4).to_string(), in_flight, &mut variants, rounds, &mut rows).await?;
        }
    }
    Ok(rows)
}

/// Gives each variant its turn in every round, the first one in each round another.
async fn alternate(
    case: &str,
    in_flight: usize,
    variants: &mut [(&'static str, &Server, Loops)],
    rounds: Rounds,
    rows: &mut Vec<Row>,
) -> Result<(), Box<dyn Error>> {
    for (_, server, loops) in variants.iter_mut() {
        loops.turn(server, WARM_UP).await?;
    }
    let count = variants.len();
    for round in 0..rounds.count {
        for offset in 0..count {
            let (variant, server, loops) = &mut variants[(round + offset) % count];
            let turn = loops.turn(server, rounds.turn).await?;
            rows.push(Row { case: case.to_owned(), in_flight, variant, round, turn });
        }
    }
    summary(case, in_flight, &variants.iter().map(|(variant, ..)| *variant).collect::<Vec<_>>(), rows);
    Ok(())
}

/// Prints what each variant costs, and its ratios to the first one: of the rates the median of the rounds with its
/// quartiles, of the CPU time that of all rounds together.
fn summary(case: &str, in_flight: usize, variants: &[&'static str], rows: &[Row]) {
    let of = |variant| {
        let own = move |row: &&Row| row.case == case && row.in_flight == in_flight && row.variant == variant;
        rows.iter().filter(own).collect::<Vec<_>>()
    };
    let first = of(variants[0]);
    for &variant in variants {
        let own = of(variant);
        let mut ratios: Vec<f64> =
            own.iter().map(|row| row.turn.point().rate / rate_in_round(&first, row.round)).collect();
        ratios.sort_by(f64::total_cmp);
        let quartile = |part: usize| ratios[(ratios.len() - 1) * part / 4];
        let mut latencies = Latencies::new();
        own.iter().for_each(|row| latencies.merge(&row.turn.latencies));
        println!(
            "{case:>8} {in_flight:>3} in flight  {variant:<10} {:>8.0} requests/s ({:.3}, {:.3} to {:.3})  p50 {:>6.0} us  \
             p99 {:>6.0} us  {:>7.2} us of CPU ({:.3})",
            median(own.iter().map(|row| row.turn.point().rate)),
            quartile(2),
            quartile(1),
            quartile(3),
            latencies.quantile_ns(0.5) as f64 / 1e3,
            latencies.quantile_ns(0.99) as f64 / 1e3,
            cpu_us(&own),
            cpu_us(&own) / cpu_us(&first),
        );
    }
}

fn rate_in_round(rows: &[&Row], round: usize) -> f64 {
    rows.iter().find(|row| row.round == round).map_or(f64::NAN, |row| row.turn.point().rate)
}

fn cpu_us(rows: &[&Row]) -> f64 {
    let cpu: Duration = rows.iter().map(|row| row.turn.cpu).sum();
    cpu.as_secs_f64() * 1e6 / rows.iter().map(|row| row.turn.latencies.count()).sum::<u64>() as f64
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Writes all turns.
pub(crate) fn write_csv(path: &Path, case: &str, rows: &[Row]) -> Result<(), Box<dyn Error>> {
    let figures = ["requests", "seconds", "cpu_seconds", "p50_us", "p99_us"];
    let titles = ["machine", case, "in_flight", "variant", "round"].into_iter().chain(figures).collect::<Vec<_>>();
    let machine = machine();
    let fields = rows.iter().map(|Row { case, in_flight, variant, round, turn }| {
        let point = turn.point();
        [
            machine.clone(),
            case.clone(),
            in_flight.to_string(),
            (*variant).to_owned(),
            (round + 1).to_string(),
            turn.latencies.count().to_string(),
            format!("{:.3}", turn.took.as_secs_f64()),
            format!("{:.2}", turn.cpu.as_secs_f64()),
            format!("{:.1}", point.p50_us),
            format!("{:.1}", point.p99_us),
        ]
    });
    Ok(report::write_csv(path, &titles, fields)?)
}
