//! The routes and their answers.

use std::{collections::HashMap, sync::Arc};

use axum::{
    Json, Router,
    extract::{FromRequestParts, Path, Request, State},
    middleware::{Next, from_fn_with_state},
    response::{IntoResponse, Response},
    routing::{MethodRouter, get, post},
};
use http::{Extensions, Method, StatusCode, Uri, header::CONTENT_TYPE, request::Parts};
use serde::Serialize;
use serde_json::{Value, json};

use super::{
    HttpConfig, HttpStartError, Problem,
    config_json::ConfigJson,
    control,
    generate::{generate, generate_stream},
    infer::infer,
    listener::Certified,
    openapi,
    overview::Overview,
    page::page,
    timeline::TimelineRoute,
};
use crate::{
    frontend::{
        Protocol, Services,
        intake::Workers,
        methods::{self, unresolved},
        restricted::Restrictions,
        services::ConnectionHolds,
    },
    observe::{Metrics, StatsSnapshot, timeline::Timeline},
    wire::pb::{
        ModelMetadataRequest, ModelMetadataResponse, ModelReadyRequest, ServerMetadataRequest, ServerMetadataResponse,
        model_metadata_response::TensorMetadata,
    },
};

/// The content type of Prometheus' text format, as Triton writes it.
const METRICS_TYPE: &str = "text/plain; charset=utf-8";

/// What the routes work on.
#[derive(Clone)]
pub(super) struct Api {
    pub(super) services: Arc<Services>,
    pub(super) workers: Arc<Workers>,
    /// Longest body of a request, in bytes.
    pub(super) max_receive_bytes: usize,
    config_json: ConfigJson,
    timeline: TimelineRoute,
    overview: Overview,
}

impl Api {
    /// What the connection of a request holds.
    pub(super) fn holds(&self, of_request: &Extensions) -> ConnectionHolds {
        of_request.get().cloned().unwrap_or_else(|| self.services.connection())
    }
}

/// The routes of the HTTP port.
pub(super) fn api(
    services: Arc<Services>,
    config: HttpConfig,
    timeline: Arc<Timeline>,
) -> Result<Router, HttpStartError> {
    let restrictions = Restrictions::new(&config.restricted)?;
    let asks_for_certificates = config.tls.is_some_and(|tls| tls.client_ca.is_some());
    let overview = Overview::new(Arc::clone(&services), Arc::clone(&timeline));
    let (timeline, config_json) = (TimelineRoute::new(timeline), ConfigJson::new()?);
    let (workers, max_receive_bytes) = (Workers::new(), config.max_receive_bytes);
    let state = Api { services, workers, max_receive_bytes, config_json, timeline, overview };
    let mut router = Router::new();
    let web = if config.allow_web { web() } else { Vec::new() };
    for (path, group, methods) in table().into_iter().chain(web) {
        let needs_certificate = asks_for_certificates && group != Protocol::Health;
        let restriction = Restriction { restrictions: restrictions.clone(), group, needs_certificate };
        let methods = match needs_certificate || restrictions.restricts(group) {
            true => methods.layer(from_fn_with_state(restriction, check)),
            false => methods,
        };
        router = router.route(&path, methods);
    }
    Ok(otherwise(router).with_state(state))
}

/// A group of routes that asks for a header, a certificate or both.
#[derive(Clone)]
struct Restriction {
    restrictions: Restrictions,
    group: Protocol,
    needs_certificate: bool,
}

/// Lets a request pass whose client showed a certificate, and that carries the header of its group, where they are
/// asked for.
async fn check(State(restriction): State<Restriction>, request: Request, next: Next) -> Result<Response, Problem> {
    if restriction.needs_certificate && request.extensions().get::<Certified>().is_none() {
        let message = "This API is restricted, expecting a client certificate";
        return Err(Problem::new(StatusCode::FORBIDDEN, message));
    }
    match restriction.restrictions.check(restriction.group, request.headers()) {
        Ok(()) => Ok(next.run(request).await),
        Err(header) => {
            let message = format!("This API is restricted, expecting header '{header}'");
            Err(Problem::new(StatusCode::FORBIDDEN, message))
        }
    }
}

/// The page for people, and what it shows: statistics.
pub(super) fn web() -> Vec<(String, Protocol, MethodRouter<Api>)> {
    let overview = get(|State(api): State<Api>| async move { api.overview.answer().await });
    vec![("/".to_owned(), Protocol::Statistics, get(page)), ("/v2/overview".to_owned(), Protocol::Statistics, overview)]
}

/// Every path of the protocol with its group and its methods.
pub(super) fn table() -> Vec<(String, Protocol, MethodRouter<Api>)> {
    use Protocol::{
        Health, Inference, Logging, Metadata, ModelConfig, ModelRepository, SharedMemory, Statistics, Trace,
    };
    let timeline = get(|State(api): State<Api>| async move { api.timeline.answer().await });
    let mut table = vec![
        ("/v2".to_owned(), Metadata, get(server_metadata)),
        ("/v2/health/live".to_owned(), Health, get(server_live)),
        ("/v2/health/ready".to_owned(), Health, get(server_ready)),
        ("/v2/models/stats".to_owned(), Statistics, get(model_stats)),
        ("/v2/timeline".to_owned(), Trace, timeline),
        (openapi::PATH.to_owned(), Metadata, get(openapi::description)),
        ("/v2/logging".to_owned(), Logging, get(control::logging).post(control::logging)),
        ("/v2/trace/setting".to_owned(), Trace, get(control::trace).post(control::trace)),
        ("/v2/models/{model}/trace/setting".to_owned(), Trace, get(control::trace).post(control::trace)),
    ];
    for model in ["/v2/models/{model}", "/v2/models/{model}/versions/{version}"] {
        table.extend([
            (model.to_owned(), Metadata, get(model_metadata)),
            (format!("{model}/ready"), Health, get(model_ready)),
            (format!("{model}/config"), ModelConfig, get(model_config)),
            (format!("{model}/stats"), Statistics, get(model_stats)),
            (format!("{model}/infer"), Inference, post(infer)),
            (format!("{model}/generate"), Inference, post(generate)),
            (format!("{model}/generate_stream"), Inference, post(generate_stream)),
        ]);
    }
    for repository in ["/v2/repository", "/v2/repository/{repository}"] {
        table.extend([
            (format!("{repository}/index"), ModelRepository, post(control::index)),
            (format!("{repository}/models/{{model}}/load"), ModelRepository, post(control::load)),
            (format!("{repository}/models/{{model}}/unload"), ModelRepository, post(control::unload)),
        ]);
    }
    for region in ["", "/region/{region}"] {
        table.extend([
            (format!("/v2/systemsharedmemory{region}/status"), SharedMemory, get(control::system_status)),
            (format!("/v2/systemsharedmemory{region}/unregister"), SharedMemory, post(control::system_unregister)),
            (format!("/v2/cudasharedmemory{region}/status"), SharedMemory, get(control::cuda_status)),
            (format!("/v2/cudasharedmemory{region}/unregister"), SharedMemory, post(control::cuda_unregister)),
        ]);
    }
    table.extend([
        ("/v2/systemsharedmemory/region/{region}/register".to_owned(), SharedMemory, post(control::system_register)),
        ("/v2/cudasharedmemory/region/{region}/register".to_owned(), SharedMemory, post(control::cuda_register)),
    ]);
    table
}

/// The one route of the metrics port.
pub(super) fn metrics(metrics: Arc<Metrics>) -> Router {
    otherwise(Router::new().route("/metrics", get(scrape))).with_state(metrics)
}

/// JSON errors for everything that no route answers.
fn otherwise<S: Clone + Send + Sync + 'static>(router: Router<S>) -> Router<S> {
    router
        .fallback(
            |uri: Uri| async move { Problem::new(StatusCode::NOT_FOUND, format!("no such route: {}", uri.path())) },
        )
        .method_not_allowed_fallback(|method: Method, uri: Uri| async move {
            let message = format!("method {method} is not allowed for {}", uri.path());
            Problem::new(StatusCode::METHOD_NOT_ALLOWED, message)
        })
}

/// What a path names; empty where it names nothing.
#[derive(Debug, Default)]
pub(super) struct PathNames {
    pub(super) model: String,
    pub(super) region: String,
    pub(super) repository: String,
    version: String,
}

impl<S: Send + Sync> FromRequestParts<S> for PathNames {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let captured = Path::<HashMap<String, String>>::from_request_parts(parts, state).await;
        let Path(mut captured) = captured.map_err(|rejection| Problem::invalid(rejection.body_text()))?;
        let mut take = |name| captured.remove(name).unwrap_or_default();
        Ok(Self {
            model: take("model"),
            region: take("region"),
            repository: take("repository"),
            version: take("version"),
        })
    }
}

/// The model, and the version or nothing, that a path names.
#[derive(Debug)]
pub(super) struct ModelPath {
    pub(super) model: String,
    pub(super) version: String,
}

impl<S: Send + Sync> FromRequestParts<S> for ModelPath {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let PathNames { model, version, .. } = PathNames::from_request_parts(parts, state).await?;
        Ok(Self { model, version })
    }
}

fn status_of(ready: bool) -> StatusCode {
    if ready { StatusCode::OK } else { StatusCode::BAD_REQUEST }
}

async fn server_live(State(api): State<Api>) -> StatusCode {
    status_of(api.services.readiness.live())
}

async fn server_ready(State(api): State<Api>) -> StatusCode {
    status_of(api.services.readiness.ready())
}

async fn model_ready(State(api): State<Api>, path: ModelPath) -> Result<StatusCode, Problem> {
    let asked = ModelReadyRequest { name: path.model, version: path.version };
    Ok(status_of(methods::model_ready(&api.services, asked)?.ready))
}

async fn server_metadata(State(api): State<Api>) -> Json<Value> {
    let answer = methods::metadata(&api.services, ServerMetadataRequest {});
    let ServerMetadataResponse { name, version, extensions } = answer;
    Json(json!({ "name": name, "version": version, "extensions": extensions }))
}

async fn model_metadata(State(api): State<Api>, path: ModelPath) -> Result<Json<Value>, Problem> {
    let asked = ModelMetadataRequest { name: path.model, version: path.version };
    let ModelMetadataResponse { name, versions, platform, inputs, outputs } =
        methods::model_metadata(&api.services, asked)?;
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
    let version = api.services.repository.resolve(&path.model, &path.version).map_err(|error| unresolved(&error))?;
    api.config_json.write(version.config()).map(Json)
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

/// Of all models where the path names none.
async fn model_stats(State(api): State<Api>, path: ModelPath) -> Result<Json<ModelStatistics>, Problem> {
    let versions = methods::versions(&api.services, &path.model, &path.version)?;
    let statistics = versions.iter().map(|version| VersionStatistics {
        name: version.spec().name.clone(),
        version: version.spec().version.to_string(),
        stats: version.handle().stats().snapshot(),
        memory_usage: [],
    });
    Ok(Json(ModelStatistics { model_stats: statistics.collect() }))
}

async fn scrape(State(metrics): State<Arc<Metrics>>) -> Result<Response, Problem> {
    let text = metrics.render().map_err(|error| Problem::internal(&error))?;
    Ok(([(CONTENT_TYPE, METRICS_TYPE)], text).into_response())
}
