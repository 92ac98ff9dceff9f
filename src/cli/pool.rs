//! Where the executor joins the server.

use std::{io, sync::Arc, time::Instant};

use tracing::{info, warn};

use super::{AutoArgs, DeviceArgs, options, recording::TimelineRecording, server::StartedPool};
use crate::{
    engine::onnxruntime::Runtime,
    executor::{BacklogLimits, Pool, PoolOptions},
    repository::{Isolation, PoolLoader},
};

/// Starts the executor pool on the CPU and gives what loads models into it.
///
/// Without ONNX Runtime's library the server starts all the same: it answers probes, and shows why its models are not
/// ready.
///
/// # Errors
/// When a thread cannot be started.
pub(super) fn start_pool(
    device: &DeviceArgs,
    auto: &AutoArgs,
    isolation: Option<Isolation>,
    backlog: BacklogLimits,
    recording: TimelineRecording,
) -> io::Result<StartedPool> {
    let began = Instant::now();
    let runtime = Runtime::load(&options::runtime(device));
    match &runtime {
        Ok(runtime) => info!("ONNX Runtime is '{}': {}", runtime.path().display(), runtime.description()),
        Err(error) => warn!("models that need ONNX Runtime will not load: {error}"),
    }
    let timeline = Arc::clone(&recording.timeline);
    let pool = Pool::start(&PoolOptions { timeline, backlog, ..options::pool(device) })?;
    let loader = auto.apply(PoolLoader::new(Arc::clone(&pool), runtime).with_isolation(isolation));
    Ok(StartedPool { loader: Arc::new(loader), pool, recording, began })
}
