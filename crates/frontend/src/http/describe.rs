//! The state, metadata, configuration and statistics of the server and its models, as JSON.

use axum::{
    Json,
    extract::State,
    response::{IntoResponse, Response},
};
use http::{StatusCode, request::Parts};
use paternoster_observe::StatsSnapshot;
use paternoster_wire::pb::{
    ModelMetadataRequest, ModelMetadataResponse, ModelReadyRequest, ServerMetadataRequest, ServerMetadataResponse,
    model_metadata_response::TensorMetadata,
};
use serde::Serialize;
use serde_json::{Value, json};

use super::{Problem, api::Api, path::ModelPath};
use crate::methods;

fn status_of(ready: bool) -> StatusCode {
    if ready { StatusCode::OK } else { StatusCode::BAD_REQUEST }
}

pub(super) async fn server_live(State(api): State<Api>) -> Response {
    stated("live", api.services.readiness.live())
}

pub(super) async fn server_ready(State(api): State<Api>) -> Response {
    stated("ready", api.services.readiness.ready())
}

/// Answers a question about the server's state. The status says everything; KServe's clients read a body as well.
fn stated(state: &str, holds: bool) -> Response {
    if holds { Json(json!({ state: true })).into_response() } else { status_of(false).into_response() }
}

pub(super) async fn model_ready(State(api): State<Api>, path: ModelPath) -> Result<StatusCode, Problem> {
    let asked = ModelReadyRequest { name: path.model, version: path.version };
    Ok(status_of(methods::model_ready(&api.services, asked)?.ready))
}

pub(super) async fn server_metadata(State(api): State<Api>) -> Json<Value> {
    let answer = methods::metadata(&api.services, ServerMetadataRequest {});
    let ServerMetadataResponse { name, version, extensions } = answer;
    Json(json!({ "name": name, "version": version, "extensions": extensions }))
}

pub(super) async fn model_metadata(
    State(api): State<Api>,
    path: ModelPath,
    parts: Parts,
) -> Result<Json<Value>, Problem> {
    let asked = ModelMetadataRequest { name: path.model, version: path.version };
    let ModelMetadataResponse { name, versions, platform, inputs, outputs } =
        methods::model_metadata(&api.services, asked, api.loader(&parts)).await?;
    let tensors = |tensors: &[TensorMetadata]| -> Vec<Value> {
        let written = tensors.iter().map(
            |TensorMetadata { name, datatype, shape }| json!({ "name": name, "datatype": datatype, "shape": shape }),
        );
        written.collect()
    };
    Ok(Json(json!({
        "name": name,
        "versions": versions,
        "platform": platform,
        "inputs": tensors(&inputs),
        "outputs": tensors(&outputs),
    })))
}

pub(super) async fn model_config(
    State(api): State<Api>,
    path: ModelPath,
    parts: Parts,
) -> Result<Json<Value>, Problem> {
    let version = methods::described(&api.services, &path.model, &path.version, api.loader(&parts)).await?;
    api.config_json.write(version.config()).map(Json)
}

/// `ModelStatisticsResponse` as Triton's HTTP endpoint writes it: all fields, with all numbers as numbers.
#[derive(Serialize)]
pub(super) struct ModelStatistics {
    model_stats: Vec<VersionStatistics>,
}

#[derive(Serialize)]
struct VersionStatistics {
    name: String,
    version: String,
    #[serde(flatten)]
    stats: StatsSnapshot,
    memory_usage: [(); 0],
}

/// Statistics of a model, or of all models if the path names none.
pub(super) async fn model_stats(State(api): State<Api>, path: ModelPath) -> Result<Response, Problem> {
    let versions = methods::versions(&api.services, &path.model, &path.version)?;
    let answer = methods::gather(versions, |versions| {
        let statistics = versions.iter().map(|version| VersionStatistics {
            name: version.spec().name.clone(),
            version: version.spec().version.to_string(),
            stats: version.servable().stats().snapshot(),
            memory_usage: [],
        });
        Json(ModelStatistics { model_stats: statistics.collect() }).into_response()
    });
    Ok(answer.await?)
}
