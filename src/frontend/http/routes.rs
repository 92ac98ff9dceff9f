//! The routes and their answers.

use std::{collections::HashMap, sync::Arc};

use axum::{
    Json, Router,
    extract::{FromRequestParts, Path, State},
    response::{IntoResponse, Response},
    routing::get,
};
use http::{Method, StatusCode, Uri, header::CONTENT_TYPE, request::Parts};
use serde::Serialize;
use serde_json::{Value, json};

pub use super::config_json::ConfigSchemaError;
use super::{Models, Problem, ServerInfo, config_json::ConfigJson, timeline::TimelineRoute};
use crate::{
    observe::{LoadedVersion, Metrics, StatsSnapshot, timeline::Timeline},
    wire::pb::{ModelMetadataResponse, ServerMetadataResponse, model_metadata_response::TensorMetadata},
};

/// The content type of Prometheus' text format, as Triton writes it.
const METRICS_TYPE: &str = "text/plain; charset=utf-8";

#[derive(Clone)]
struct Api {
    server: Arc<ServerMetadataResponse>,
    models: Arc<dyn Models>,
    config_json: ConfigJson,
    timeline: TimelineRoute,
}

/// The routes of the HTTP port.
pub(super) fn api(
    ServerInfo { metadata, grpc_port }: ServerInfo,
    models: Arc<dyn Models>,
    timeline: Arc<Timeline>,
) -> Result<Router, ConfigSchemaError> {
    let timeline = TimelineRoute::new(timeline);
    let state = Api { server: Arc::new(metadata), models, config_json: ConfigJson::new()?, timeline };
    let mut router = Router::new()
        .route("/v2", get(server_metadata))
        .route("/v2/health/live", get(server_live))
        .route("/v2/health/ready", get(server_ready))
        .route("/v2/models/stats", get(all_stats))
        .route("/v2/timeline", get(|State(api): State<Api>| async move { api.timeline.answer().await }));
    for model in ["/v2/models/{model}", "/v2/models/{model}/versions/{version}"] {
        router = router
            .route(model, get(model_metadata))
            .route(&format!("{model}/ready"), get(model_ready))
            .route(&format!("{model}/config"), get(model_config))
            .route(&format!("{model}/stats"), get(model_stats));
    }
    let elsewhere = match grpc_port {
        Some(port) => format!("; inference and the rest of the protocol are served over gRPC on port {port}"),
        None => "; inference is served over gRPC, which is off (--allow-grpc)".to_owned(),
    };
    Ok(otherwise(router, elsewhere).with_state(state))
}

/// The one route of the metrics port.
pub(super) fn metrics(metrics: Arc<Metrics>) -> Router {
    otherwise(Router::new().route("/metrics", get(scrape)), String::new()).with_state(metrics)
}

/// JSON errors for everything that no route answers; `elsewhere` says what to do instead.
fn otherwise<S: Clone + Send + Sync + 'static>(router: Router<S>, elsewhere: String) -> Router<S> {
    let elsewhere: Arc<str> = elsewhere.into();
    router
        .fallback(|uri: Uri| async move { Problem::NotFound(format!("no such route: {}{elsewhere}", uri.path())) })
        .method_not_allowed_fallback(|method: Method, uri: Uri| async move {
            Problem::Method(format!("method {method} is not allowed for {}", uri.path()))
        })
}

/// The model, and the version or nothing, that a path names.
struct ModelPath {
    model: String,
    version: String,
}

impl<S: Send + Sync> FromRequestParts<S> for ModelPath {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let captured = Path::<HashMap<String, String>>::from_request_parts(parts, state).await;
        let Path(mut captured) = captured.map_err(|rejection| Problem::Invalid(rejection.body_text()))?;
        let mut take = |name| captured.remove(name).unwrap_or_default();
        Ok(Self { model: take("model"), version: take("version") })
    }
}

fn status_of(ready: bool) -> StatusCode {
    if ready { StatusCode::OK } else { StatusCode::BAD_REQUEST }
}

async fn server_live(State(api): State<Api>) -> StatusCode {
    status_of(api.models.server_live())
}

async fn server_ready(State(api): State<Api>) -> StatusCode {
    status_of(api.models.server_ready())
}

async fn model_ready(State(api): State<Api>, path: ModelPath) -> Result<StatusCode, Problem> {
    api.models.model_ready(&path.model, &path.version).map(status_of)
}

async fn server_metadata(State(api): State<Api>) -> Json<Value> {
    let ServerMetadataResponse { name, version, extensions } = &*api.server;
    Json(json!({ "name": name, "version": version, "extensions": extensions }))
}

async fn model_metadata(State(api): State<Api>, path: ModelPath) -> Result<Json<Value>, Problem> {
    let ModelMetadataResponse { name, versions, platform, inputs, outputs } =
        api.models.metadata(&path.model, &path.version)?;
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

async fn model_config(State(api): State<Api>, path: ModelPath) -> Result<Json<Value>, Problem> {
    let config = api.models.config(&path.model, &path.version)?;
    api.config_json.write(&config).map(Json)
}

/// `ModelStatisticsResponse` as Triton's HTTP endpoint writes it: all fields, all numbers as numbers.
#[derive(Serialize)]
struct ModelStatistics {
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

fn statistics(loaded: impl IntoIterator<Item = LoadedVersion>) -> Json<ModelStatistics> {
    let of_version = |loaded: LoadedVersion| VersionStatistics {
        name: loaded.name,
        version: loaded.version.to_string(),
        stats: loaded.stats.snapshot(),
        memory_usage: [],
    };
    Json(ModelStatistics { model_stats: loaded.into_iter().map(of_version).collect() })
}

async fn all_stats(State(api): State<Api>) -> Json<ModelStatistics> {
    statistics(api.models.loaded())
}

/// Versions are compared as numbers; statistics of what is not ready do not exist.
async fn model_stats(State(api): State<Api>, path: ModelPath) -> Result<Json<ModelStatistics>, Problem> {
    let ModelPath { model, version } = path;
    let mut found = api.models.loaded();
    found.retain(|loaded| loaded.name == model);
    if found.is_empty() {
        return Err(Problem::Invalid(format!("requested model '{model}' is not available")));
    }
    if !version.is_empty() {
        found.retain(|loaded| version.parse() == Ok(loaded.version));
        if found.is_empty() {
            let reason = format!("requested model version '{version}' is not available for model '{model}'");
            return Err(Problem::Invalid(reason));
        }
    }
    Ok(statistics(found))
}

async fn scrape(State(metrics): State<Arc<Metrics>>) -> Result<Response, Problem> {
    let text = metrics.render().map_err(|error| Problem::Internal(error.to_string()))?;
    Ok(([(CONTENT_TYPE, METRICS_TYPE)], text).into_response())
}
