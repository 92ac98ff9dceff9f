//! Where the executor joins the server.

use std::{io, sync::Arc, time::Instant};

use tracing::{info, warn};

use super::{AutoArgs, DeviceArgs, recording::TimelineRecording, server::StartedPool};
use crate::{
    engine::onnxruntime::{Runtime, RuntimeOptions},
    executor::{Pool, PoolOptions},
    repository::PoolLoader,
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
    recording: TimelineRecording,
) -> io::Result<StartedPool> {
    let began = Instant::now();
    let library = device.onnxruntime_library.clone();
    let runtime = Runtime::load(&RuntimeOptions { library, threads: device.cpu_threads as usize });
    match &runtime {
        Ok(runtime) => info!("ONNX Runtime is '{}': {}", runtime.path().display(), runtime.description()),
        Err(error) => warn!("models that need ONNX Runtime will not load: {error}"),
    }
    let pool = Pool::start(&PoolOptions {
        cpu_lanes: device.cpu_lanes,
        timeline: Arc::clone(&recording.timeline),
        ..PoolOptions::default()
    })?;
    let loader = auto.apply(PoolLoader::new(Arc::clone(&pool), runtime));
    Ok(StartedPool { loader: Arc::new(loader), pool, recording, began })
}
