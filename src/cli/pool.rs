//! Starts the executor for the server.

use std::{io, sync::Arc, time::Instant};

use paternoster_batching::ResourceAmount;
use paternoster_engine::{Engines, onnxruntime::Runtime};
use paternoster_executor::{BacklogLimits, Pool, PoolOptions};
use paternoster_observe::budget::Budget;
use paternoster_repository::PoolLoader;
use tracing::{info, warn};

use super::{CudaArgs, DeviceArgs, options, recording::TimelineRecording, server::StartedPool};

/// Starts the executor pool on the CPU and the cards, and returns it with a loader, configured by `set_up`.
///
/// The server starts even without ONNX Runtime's library: it answers probes and shows why its models are not ready. If
/// cards cannot be used and were not requested explicitly, it serves on the CPU.
///
/// # Errors
/// Fails if a thread cannot be started, or requested cards cannot be used.
pub(super) fn start_pool(
    (device, cuda): (&DeviceArgs, &CudaArgs),
    (pending_bytes, backlog, rate_limiter): (Arc<Budget>, BacklogLimits, Option<Vec<ResourceAmount>>),
    recording: TimelineRecording,
    set_up: impl FnOnce(PoolLoader) -> PoolLoader,
) -> io::Result<StartedPool> {
    let began = Instant::now();
    let runtime = Runtime::load(&options::runtime(device));
    match &runtime {
        Ok(runtime) => {
            info!(library = %runtime.path().display(), build = runtime.description(), "ONNX Runtime is loaded");
        }
        Err(error) => warn!(%error, "models that need ONNX Runtime will not load"),
    }
    let timeline = Arc::clone(&recording.timeline);
    let pool_options = PoolOptions { timeline, pending_bytes, backlog, rate_limiter, ..options::pool(device) };
    let (pool, no_cards) = match cuda.cards().map_err(io::Error::other)? {
        Err(reason) => (Pool::start(&pool_options)?, reason),
        Ok(cards) => match Pool::start(&PoolOptions { cards, ..pool_options.clone() }) {
            Err(error) if cuda.leaves_open() => {
                warn!(%error, "cards cannot be used; models run on the CPU");
                (Pool::start(&pool_options)?, error.to_string())
            }
            started => (started?, String::new()),
        },
    };
    let engines = Engines { onnxruntime: Some(runtime), openvino: options::openvino(device) };
    let cards = if pool.has_cards() { Ok(pool.cards().collect()) } else { Err(no_cards.clone()) };
    let loader = PoolLoader::new(Arc::clone(&pool), engines).without_cards(no_cards, cuda.allow_cpu_fallback);
    let loader = set_up(loader);
    Ok(StartedPool { loader: Arc::new(loader), pool, cards, recording, began })
}
