//! ModelStatistics.

use std::sync::Arc;

use paternoster_observe::{BatchStats, InferenceStats, ResponseStats, StatsSnapshot, Tally};
use paternoster_repository::{ModelVersion, ResolveError};
use paternoster_wire::pb::{self, StatisticDuration};
use tokio::task::spawn_blocking;
use tonic::Status;

use super::unresolved;
use crate::Services;

/// Most versions whose statistics are gathered on an I/O thread.
const FEW_VERSIONS: usize = 16;

/// Answers ModelStatistics for all ready models, for one model's ready versions, or for one version.
///
/// # Errors
/// INVALID_ARGUMENT for a model or version that is not ready, UNAVAILABLE for a model that is still being loaded at
/// startup.
pub(crate) async fn model_statistics(
    services: &Services,
    request: pb::ModelStatisticsRequest,
) -> Result<pb::ModelStatisticsResponse, Status> {
    let versions = versions(services, &request.name, &request.version)?;
    gather(versions, |versions| {
        let model_stats = versions.iter().map(|version| statistics(version)).collect();
        pb::ModelStatisticsResponse { model_stats }
    })
    .await
}

/// Does something for each of these versions: on a thread that may block if there are many, because that takes long
/// enough to delay requests.
///
/// # Errors
/// INTERNAL if the work panics.
pub(crate) async fn gather<T: Send + 'static>(
    versions: Vec<Arc<ModelVersion>>,
    work: impl FnOnce(&[Arc<ModelVersion>]) -> T + Send + 'static,
) -> Result<T, Status> {
    if versions.len() <= FEW_VERSIONS {
        return Ok(work(&versions));
    }
    let done = spawn_blocking(move || work(&versions)).await;
    done.map_err(|error| Status::internal(format!("statistics could not be gathered: {error}")))
}

/// Returns the versions whose statistics are requested; empty names mean all.
///
/// # Errors
/// See [`model_statistics`].
pub(crate) fn versions(services: &Services, name: &str, version: &str) -> Result<Vec<Arc<ModelVersion>>, Status> {
    if !name.is_empty() && !version.is_empty() {
        let found = services.repository.look_up(name, version).map_err(|error| unavailable(name, &error))?;
        return Ok(vec![found]);
    }
    let mut loaded = services.repository.loaded();
    loaded.retain(|loaded| name.is_empty() || loaded.spec().name == name);
    if loaded.is_empty() && !name.is_empty() {
        let error = services.repository.look_up(name, "").err();
        return Err(error.map_or_else(|| unknown_model(name), |error| unavailable(name, &error)));
    }
    Ok(loaded)
}

fn unavailable(name: &str, error: &ResolveError) -> Status {
    match error {
        ResolveError::UnknownModel { .. }
        | ResolveError::NoAvailableVersion { .. }
        | ResolveError::NotLoaded { .. } => unknown_model(name),
        ResolveError::UnknownVersion { version, .. } | ResolveError::UnreadyVersion { version, .. } => {
            Status::invalid_argument(format!(
                "requested model version is not available for model '{name}', got version {version}"
            ))
        }
        ResolveError::Loading { .. }
        | ResolveError::BadVersion { .. }
        | ResolveError::NotLoadable { .. }
        | ResolveError::NoMemory { .. }
        | ResolveError::NotInTime { .. }
        | ResolveError::TooManyWaiting { .. } => unresolved(error).into(),
    }
}

fn unknown_model(name: &str) -> Status {
    Status::invalid_argument(format!("requested model '{name}' is not available"))
}

fn statistics(version: &ModelVersion) -> pb::ModelStatistics {
    let spec = version.spec();
    let StatsSnapshot {
        last_inference,
        inference_count,
        execution_count,
        inference_stats,
        response_stats,
        batch_stats,
    } = version.servable().stats().snapshot();
    pb::ModelStatistics {
        name: spec.name.clone(),
        version: spec.version.to_string(),
        last_inference,
        inference_count,
        execution_count,
        inference_stats: Some(per_request(inference_stats)),
        batch_stats: batch_stats.into_iter().map(per_execution).collect(),
        memory_usage: Vec::new(),
        response_stats: response_stats
            .into_iter()
            .enumerate()
            .map(|(step, stats)| (step.to_string(), per_response(stats)))
            .collect(),
    }
}

fn per_request(stats: InferenceStats) -> pb::InferStatistics {
    pb::InferStatistics {
        success: duration(stats.success),
        fail: duration(stats.fail),
        queue: duration(stats.queue),
        compute_input: duration(stats.compute_input),
        compute_infer: duration(stats.compute_infer),
        compute_output: duration(stats.compute_output),
        cache_hit: duration(stats.cache_hit),
        cache_miss: duration(stats.cache_miss),
    }
}

fn per_execution(stats: BatchStats) -> pb::InferBatchStatistics {
    pb::InferBatchStatistics {
        batch_size: stats.batch_size,
        compute_input: duration(stats.compute_input),
        compute_infer: duration(stats.compute_infer),
        compute_output: duration(stats.compute_output),
    }
}

fn per_response(stats: ResponseStats) -> pb::InferResponseStatistics {
    pb::InferResponseStatistics {
        compute_infer: duration(stats.compute_infer),
        compute_output: duration(stats.compute_output),
        success: duration(stats.success),
        fail: duration(stats.fail),
        empty_response: duration(stats.empty_response),
        cancel: duration(stats.cancel),
    }
}

fn duration(tally: Tally) -> Option<StatisticDuration> {
    Some(StatisticDuration { count: tally.count, ns: tally.ns })
}
