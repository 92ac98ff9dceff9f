//! Closed loops: a fixed number of requests in flight, each followed by the next as soon as it is answered.

use std::{
    error::Error,
    fmt,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use paternoster::{
    report::Latencies,
    wire::pb::{
        self, grpc_inference_service_client::GrpcInferenceServiceClient, model_infer_request::InferInputTensor,
    },
};
use tonic::transport::Endpoint;

use crate::servers::Server;

/// Requests in flight per connection.
const PER_CONNECTION: usize = 8;
/// Unmeasured time before each point.
const WARM_UP: Duration = Duration::from_secs(1);

/// One measured point.
#[derive(Clone, Debug)]
pub(crate) struct Point {
    /// Requests per second.
    pub rate: f64,
    /// Median latency in microseconds.
    pub p50_us: f64,
    /// 99th percentile of the latency in microseconds.
    pub p99_us: f64,
    /// CPU time of the server per request in microseconds.
    pub cpu_us: f64,
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

/// The built-in client, in this process.
pub(crate) fn closed_loop(server: &Server, concurrency: usize, measured: Duration) -> Result<Point, Box<dyn Error>> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut clients = Vec::new();
        for _ in 0..concurrency.div_ceil(PER_CONNECTION) {
            let channel =
                Endpoint::from_shared(format!("http://{}", server.address))?.tcp_nodelay(true).connect().await?;
            clients.push(GrpcInferenceServiceClient::new(channel));
        }
        let payload = payload();
        let begin = Instant::now() + WARM_UP;
        let end = begin + measured;
        let loops: Vec<_> = (0..concurrency)
            .map(|index| {
                let client = clients[index % clients.len()].clone();
                tokio::spawn(one_loop(client, Arc::clone(&payload), begin, end))
            })
            .collect();
        tokio::time::sleep_until(begin.into()).await;
        let cpu_before = server.cpu_time()?;
        tokio::time::sleep_until(end.into()).await;
        let cpu = server.cpu_time()? - cpu_before;
        let mut latencies = Latencies::new();
        for one in loops {
            latencies.merge(&one.await?.map_err(|error| error.to_string())?);
        }
        let count = latencies.count() as f64;
        Ok(Point {
            rate: count / measured.as_secs_f64(),
            p50_us: latencies.quantile_ns(0.5) as f64 / 1e3,
            p99_us: latencies.quantile_ns(0.99) as f64 / 1e3,
            cpu_us: cpu.as_secs_f64() * 1e6 / count,
        })
    })
}

fn payload() -> Arc<Vec<Bytes>> {
    // Distinct contents, so that an answer that belongs to another request shows.
    let one = |seed: u32| (0..16).flat_map(|index| ((seed * 16 + index) as f32).to_le_bytes()).collect::<Vec<u8>>();
    Arc::new((0..251).map(|seed| Bytes::from(one(seed))).collect())
}

async fn one_loop(
    mut client: GrpcInferenceServiceClient<tonic::transport::Channel>,
    payloads: Arc<Vec<Bytes>>,
    begin: Instant,
    end: Instant,
) -> Result<Latencies, Box<dyn Error + Send + Sync>> {
    let mut latencies = Latencies::new();
    for payload in payloads.iter().cycle() {
        let sent = Instant::now();
        if sent >= end {
            break;
        }
        let answer = client.model_infer(request(payload.clone())).await?.into_inner();
        let answered = Instant::now();
        if answer.raw_output_contents != [payload.clone()] {
            return Err("an answer is not its request's".into());
        }
        if sent >= begin && answered <= end {
            latencies.record(answered.duration_since(sent).as_nanos() as u64);
        }
    }
    Ok(latencies)
}

fn request(payload: Bytes) -> pb::ModelInferRequest {
    pb::ModelInferRequest {
        model_name: "identity".to_owned(),
        inputs: vec![InferInputTensor {
            name: "INPUT0".to_owned(),
            datatype: "FP32".to_owned(),
            shape: vec![1, 16],
            ..InferInputTensor::default()
        }],
        raw_input_contents: vec![payload],
        ..pb::ModelInferRequest::default()
    }
}
