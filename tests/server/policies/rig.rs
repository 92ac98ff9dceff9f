//! Models on disk, loaded as a server does, and clients that send requests in bursts and cancel some of them.

use std::{fs, os::unix::fs::symlink, path::PathBuf, sync::Arc, time::Duration};

use bytes::Bytes;
use paternoster_config::CustomPolicies;
use paternoster_engine::onnxruntime::Runtime;
use paternoster_executor::{InferError, InferRequest, ModelHandle, Pool, PoolOptions, Response, ResponseFuture};
use paternoster_model::{Dims, InputTensor};
use paternoster_observe::MetaCounters;
use paternoster_onnx::Model;
use paternoster_repository::{Options, Overrides, PoolLoader, Repository};
use tempfile::TempDir;

/// Number of clients that submit concurrently.
const CLIENTS: usize = 3;
/// Maximum requests that a client submits without a pause.
const BURST: u32 = 6;
/// Percentage of requests that are cancelled.
const CANCELLED_PERCENT: u32 = 15;
/// Time limit of waits. A pool that does not answer for so long has lost a request; the test fails instead of hanging.
pub(crate) const NEVER_SO_LONG: Duration = Duration::from_secs(120);

/// A repeatable sequence of pseudo-random numbers.
pub(crate) struct Noise(u64);

impl Noise {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5851_f42d_4c95_7f2d)
    }

    pub(crate) fn next(&mut self) -> u32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as u32
    }

    pub(crate) fn below(&mut self, limit: u32) -> u32 {
        self.next() % limit
    }

    /// Returns a number from −1 to 1.
    pub(crate) fn unit(&mut self) -> f32 {
        (self.below(20_001) as f32 - 10_000.0) / 10_000.0
    }
}

/// A request and its expected answer.
pub(crate) struct Exchange {
    pub rows: u32,
    pub inputs: Vec<InputTensor>,
    /// The expected outputs; `None` if the request fails in the engine.
    pub expected: Option<Vec<Expected>>,
}

/// One expected output.
#[derive(Clone)]
pub(crate) struct Expected {
    pub shape: Dims,
    pub values: Vec<f32>,
    /// Maximum allowed difference.
    pub tolerance: f32,
}

impl Expected {
    pub(crate) fn exactly(shape: &[i64], values: Vec<f32>) -> Self {
        Self { shape: Dims::from_slice(shape), values, tolerance: 0.0 }
    }
}

pub(crate) fn tensor<'a, const N: usize>(
    shape: &[i64],
    elements: impl IntoIterator<Item = &'a [u8; N]>,
) -> InputTensor {
    let data: Vec<u8> = elements.into_iter().flatten().copied().collect();
    InputTensor { shape: Dims::from_slice(shape), data: Bytes::from(data) }
}

pub(crate) fn values(data: &[u8]) -> Vec<f32> {
    data.as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect()
}

/// A folder with one model's file, and a model directory for each configuration.
pub(crate) struct Place {
    root: TempDir,
    program: PathBuf,
}

impl Place {
    pub(crate) fn new(model: &Model) -> Self {
        let root = tempfile::tempdir().expect("a folder");
        let program = root.path().join("model.onnx");
        model.write(&program).expect("the folder takes the model");
        Self { root, program }
    }

    /// Loads the model with a configuration on a pool of two lanes.
    pub(crate) async fn serve(&self, runtime: &Runtime, yaml: &str, context: &str) -> Served {
        self.serve_with(runtime, yaml, CustomPolicies::default(), context).await
    }

    /// Does the same on a server that knows these policies of other crates.
    pub(crate) async fn serve_with(
        &self,
        runtime: &Runtime,
        yaml: &str,
        custom_policies: CustomPolicies,
        context: &str,
    ) -> Served {
        let repository = tempfile::tempdir_in(self.root.path()).expect("a folder");
        let version = repository.path().join("model/1");
        fs::create_dir_all(&version).expect("a folder");
        fs::write(repository.path().join("model/model.yaml"), yaml).expect("a file");
        symlink(&self.program, version.join("model.onnx")).expect("a link");
        let pool = Pool::start(&PoolOptions { cpu_lanes: 2, ..PoolOptions::default() }).expect("threads start");
        let options = Options { custom_policies, ..Options::on_request(repository.path().to_owned()) };
        let loader = Arc::new(PoolLoader::new(Arc::clone(&pool), Ok(runtime.clone())));
        let repository = Repository::start(options, loader).await.expect("the folder is readable");
        if let Err(refused) = repository.load("model", Overrides::default()).await {
            panic!("{context}: {refused}\n{yaml}");
        }
        let handle =
            repository.resolve("model", "").expect("it is loaded").servable().model().expect("a model").clone();
        Served { pool, repository, handle }
    }
}

/// A loaded model.
pub(crate) struct Served {
    pool: Arc<Pool>,
    repository: Arc<Repository>,
    pub handle: Arc<ModelHandle>,
}

/// How requests ended.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    pub answered: usize,
    pub cancelled: usize,
}

impl Served {
    /// Makes clients submit the requests in a random order, in bursts of random sizes, and checks every response. Some
    /// requests are cancelled, at once or later.
    pub(crate) async fn drive(&self, exchanges: &Arc<Vec<Exchange>>, seed: u64, context: &str) -> Counts {
        let mut noise = Noise::new(seed);
        let mut order: Vec<usize> = (0..exchanges.len()).collect();
        for at in (1..order.len()).rev() {
            order.swap(at, noise.below(at as u32 + 1) as usize);
        }
        let share = order.len().div_ceil(CLIENTS);
        let clients: Vec<_> = order
            .chunks(share)
            .map(|share| {
                let client = Client {
                    handle: Arc::clone(&self.handle),
                    exchanges: Arc::clone(exchanges),
                    noise: Noise::new(u64::from(noise.next())),
                    context: context.to_owned(),
                    counts: Counts::default(),
                };
                tokio::spawn(client.run(share.to_vec()))
            })
            .collect();
        let mut counts = Counts::default();
        for client in clients {
            let ended = tokio::time::timeout(NEVER_SO_LONG, client).await;
            let ended = ended.unwrap_or_else(|_| panic!("{context}: some request does not end"));
            let own = ended.expect("what a client asserts holds");
            counts.answered += own.answered;
            counts.cancelled += own.cancelled;
        }
        assert_eq!(self.pool.in_flight(), 0, "{context}: nothing is in flight at the end");
        counts
    }

    /// Unloads the model and stops the pool. Returns what the policy did.
    pub(crate) fn stop(self, context: &str) -> MetaCounters {
        let Self { pool, repository, handle } = self;
        pool.count_meta_operations();
        let meta = handle.stats().reading().meta;
        drop((repository, handle));
        assert!(pool.stop(Duration::from_secs(60)), "{context}: all threads end");
        assert_eq!(pool.buffers().in_use_bytes(), 0, "{context}: no batch keeps anything");
        meta
    }
}

struct Client {
    handle: Arc<ModelHandle>,
    exchanges: Arc<Vec<Exchange>>,
    noise: Noise,
    context: String,
    counts: Counts,
}

impl Client {
    async fn run(mut self, mut left: Vec<usize>) -> Counts {
        let mut open: Vec<(usize, ResponseFuture)> = Vec::new();
        let mut unwanted: Vec<ResponseFuture> = Vec::new();
        while !left.is_empty() {
            for _ in 0..=self.noise.below(BURST) {
                let Some(index) = left.pop() else { break };
                let response = self.submit(index);
                if self.noise.below(100) < CANCELLED_PERCENT {
                    unwanted.push(response);
                    self.counts.cancelled += 1;
                } else {
                    open.push((index, response));
                }
            }
            for _ in 0..self.noise.below(20) {
                tokio::task::yield_now().await;
            }
            if self.noise.below(2) == 0 {
                unwanted.clear();
            }
            if self.noise.below(3) == 0 && !open.is_empty() {
                let (index, response) = open.swap_remove(self.noise.below(open.len() as u32) as usize);
                self.receive(index, response.await);
            }
        }
        drop(unwanted);
        for (index, response) in open {
            self.receive(index, response.await);
        }
        self.counts
    }

    fn submit(&self, index: usize) -> ResponseFuture {
        let Exchange { rows, inputs, .. } = &self.exchanges[index];
        self.handle.submit(InferRequest::new(*rows, inputs.iter().cloned().map(Some).collect()))
    }

    fn receive(&mut self, index: usize, answer: Result<Response, InferError>) {
        self.counts.answered += 1;
        let context = format!("{}, request {index}", self.context);
        let (response, expected) = match (answer, &self.exchanges[index].expected) {
            (Ok(response), Some(expected)) => (response, expected),
            (Err(InferError::Engine(reason)), None) => {
                assert!(reason.contains("onnx runtime error"), "{context}: {reason}");
                return;
            }
            (Ok(_), None) => panic!("{context}: it should have failed"),
            (Err(error), _) => panic!("{context}: {error}"),
        };
        assert_eq!(response.outputs.len(), expected.len(), "{context}");
        for (output, expected) in response.outputs.iter().zip(expected) {
            assert_eq!(output.shape, expected.shape, "{context}");
            let got = values(&output.data);
            assert_eq!(got.len(), expected.values.len(), "{context}");
            // NaN never counts as close.
            let wrong = got.iter().zip(&expected.values).position(|(got, expected_value)| {
                let difference = (got - expected_value).abs();
                difference.is_nan() || difference > expected.tolerance
            });
            if let Some(at) = wrong {
                let (got, wanted) = (got[at], expected.values[at]);
                panic!("{context}: element {at} is {got}, expected {wanted} within {}", expected.tolerance);
            }
        }
    }
}
