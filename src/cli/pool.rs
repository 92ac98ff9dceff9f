//! Where the executor joins the server.

use std::{io, sync::Arc, time::Instant};

use tracing::{info, warn};

use super::{DeviceArgs, options, recording::TimelineRecording, server::StartedPool};
use crate::{
    engine::onnxruntime::Runtime,
    executor::{BacklogLimits, Pool, PoolOptions},
    repository::PoolLoader,
};

/// Starts the executor pool on the CPU and gives what loads models into it, set up as `set_up` does.
///
/// Without ONNX Runtime's library the server starts all the same: it answers probes, and shows why its models are not
/// ready.
///
/// # Errors
/// When a thread cannot be started.
pub(super) fn start_pool(
    device: &DeviceArgs,
    backlog: BacklogLimits,
    recording: TimelineRecording,
    set_up: impl FnOnce(PoolLoader) -> PoolLoader,
) -> io::Result<StartedPool> {
    let began = Instant::now();
    let runtime = Runtime::load(&options::runtime(device));
    match &runtime {
        Ok(runtime) => info!("ONNX Runtime is '{}': {}", runtime.path().display(), runtime.description()),
        Err(error) => warn!("models that need ONNX Runtime will not load: {error}"),
    }
    let timeline = Arc::clone(&recording.timeline);
    let pool = Pool::start(&PoolOptions { timeline, backlog, ..options::pool(device) })?;
    let loader = set_up(PoolLoader::new(Arc::clone(&pool), runtime));
    Ok(StartedPool { loader: Arc::new(loader), pool, recording, began })
}
