//! Closed loops: a fixed number of requests in flight, each followed by the next as soon as it is answered.

use std::{
    error::Error,
    fmt,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use paternoster_lab::report::Latencies;

use crate::{
    client::{Client, Failure, Model, Protocol},
    servers::Server,
};

/// Unmeasured time before each point.
pub(crate) const WARM_UP: Duration = Duration::from_secs(1);

/// One measured point.
#[derive(Clone, Debug)]
pub(crate) struct Point {
    /// Requests per second.
    pub(crate) rate: f64,
    /// Median latency in microseconds.
    pub p50_us: f64,
    /// 99th percentile of the latency in microseconds.
    pub p99_us: f64,
    /// CPU time of the server per request in microseconds.
    pub(crate) cpu_us: f64,
}

impl fmt::Display for Point {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "{:.0} requests/s, p50 {:.0} us, p99 {:.0} us, {:.1} us of server CPU a request",
            self.rate, self.p50_us, self.p99_us, self.cpu_us
        )
    }
}

/// Loops over the connections to one server, which stay open between its turns.
pub(crate) struct Loops {
    clients: Vec<Client>,
    model: Arc<Model>,
    payloads: Arc<Vec<Bytes>>,
}

/// What one turn of a server gave.
pub(crate) struct Turn {
    pub(crate) latencies: Latencies,
    pub(crate) took: Duration,
    pub(crate) cpu: Duration,
}

impl Turn {
    pub(crate) fn point(&self) -> Point {
        let count = self.latencies.count() as f64;
        Point {
            rate: count / self.took.as_secs_f64(),
            p50_us: self.latencies.quantile_ns(0.5) as f64 / 1e3,
            p99_us: self.latencies.quantile_ns(0.99) as f64 / 1e3,
            cpu_us: self.cpu.as_secs_f64() * 1e6 / count,
        }
    }
}

impl Loops {
    pub(crate) async fn connect(
        server: &Server,
        protocol: Protocol,
        model: &Model,
        in_flight: usize,
    ) -> Result<Self, Box<dyn Error>> {
        let clients = Client::connect(protocol, server, in_flight).await.map_err(|error| error.to_string())?;
        Ok(Self { clients, model: Arc::new(model.clone()), payloads: Arc::new(model.payloads()) })
    }

    /// Asks for so long, and waits for the last answers.
    pub(crate) async fn turn(&mut self, server: &Server, lasting: Duration) -> Result<Turn, Box<dyn Error>> {
        let (began, cpu_before) = (Instant::now(), server.cpu_time()?);
        let end = began + lasting;
        let loops: Vec<_> = self
            .clients
            .drain(..)
            .map(|client| tokio::spawn(one_loop(client, Arc::clone(&self.model), Arc::clone(&self.payloads), end)))
            .collect();
        let mut latencies = Latencies::new();
        for one in loops {
            let (client, own) = one.await?.map_err(|error| error.to_string())?;
            self.clients.push(client);
            latencies.merge(&own);
        }
        Ok(Turn { latencies, took: began.elapsed(), cpu: server.cpu_time()? - cpu_before })
    }
}

async fn one_loop(
    mut client: Client,
    model: Arc<Model>,
    payloads: Arc<Vec<Bytes>>,
    end: Instant,
) -> Result<(Client, Latencies), Failure> {
    let mut latencies = Latencies::new();
    for payload in payloads.iter().cycle() {
        let sent = Instant::now();
        if sent >= end {
            break;
        }
        client.ask(&model, payload).await?;
        latencies.record(sent.elapsed().as_nanos() as u64);
    }
    Ok((client, latencies))
}
