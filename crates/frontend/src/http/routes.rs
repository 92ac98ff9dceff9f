//! The routing table: which path is answered by which handler, and what it asks of the client.

use std::{sync::Arc, time::Duration};

use axum::{
    Router,
    extract::{Query, Request, State, rejection::QueryRejection},
    middleware::{Next, from_fn_with_state},
    response::{IntoResponse, Response},
    routing::{MethodRouter, get, post},
};
use http::{Method, StatusCode, Uri, header::CONTENT_TYPE};
use paternoster_exporters::Metrics;
use paternoster_observe::timeline::Timeline;

use super::{
    HttpConfig, HttpStartError, Problem,
    api::Api,
    config_json::ConfigJson,
    control,
    describe::{model_config, model_metadata, model_ready, model_stats, server_live, server_metadata, server_ready},
    generate::{generate, generate_stream},
    infer::infer,
    listener::Certified,
    openapi,
    overview::{self, Overview},
    page::page,
    shared_response::SharedResponse,
    text,
    timeline::TimelineRoute,
};
use crate::{Protocol, Services, intake::Workers, restricted::Restrictions};

/// The path of the metrics.
const METRICS: &str = "/metrics";

/// Content type of Prometheus' text format, as Triton writes it.
const METRICS_TYPE: &str = "text/plain; charset=utf-8";

/// Builds the routes of the HTTP port. Must be called within a tokio runtime, which then samples the load.
pub(super) fn api(
    services: Arc<Services>,
    config: HttpConfig,
    timeline: Arc<Timeline>,
) -> Result<Router, HttpStartError> {
    let restrictions = Arc::new(Restrictions::new(&config.restricted)?);
    let asks_for_certificates = config.tls.is_some_and(|tls| tls.client_ca.is_some());
    let overview = Overview::new(Arc::clone(&services), Arc::clone(&timeline));
    if config.allow_web {
        overview.sample();
    }
    let (timeline, config_json) = (TimelineRoute::new(timeline), ConfigJson::new()?);
    let (workers, max_input_bytes) = (Workers::new(), config.max_input_bytes);
    let for_loads = Arc::clone(&restrictions);
    let state = Api { services, workers, max_input_bytes, config_json, timeline, overview, restrictions: for_loads };
    let mut router = Router::new();
    let web = if config.allow_web { web() } else { Vec::new() };
    let metrics = config.metrics.map(|metrics| (METRICS.to_owned(), Protocol::Statistics, scraping(metrics)));
    for (path, group, methods) in table().into_iter().chain(web).chain(metrics) {
        let needs_certificate = asks_for_certificates && group != Protocol::Health;
        let restriction = Restriction { restrictions: Arc::clone(&restrictions), group, needs_certificate };
        let methods = if needs_certificate || restrictions.restricts(group) {
            methods.layer(from_fn_with_state(restriction, check))
        } else {
            methods
        };
        router = router.route(&path, methods);
    }
    Ok(otherwise(router).with_state(state))
}

/// A group of routes that requires a header, a certificate or both.
#[derive(Clone)]
struct Restriction {
    restrictions: Arc<Restrictions>,
    group: Protocol,
    needs_certificate: bool,
}

/// Passes a request if its client presented a certificate and it carries the group's header, where required.
async fn check(State(restriction): State<Restriction>, request: Request, next: Next) -> Response {
    let missing = if restriction.needs_certificate && request.extensions().get::<Certified>().is_none() {
        "a client certificate".to_owned()
    } else {
        match restriction.restrictions.check(restriction.group, request.headers()) {
            Ok(()) => return next.run(request).await,
            Err(header) => format!("header '{header}'"),
        }
    };
    let message = format!("This API is restricted, expecting {missing}");
    text::refusal(request.uri().path(), StatusCode::FORBIDDEN, message)
}

/// The web page and its data, which belong to the statistics group.
pub(super) fn web() -> Vec<(String, Protocol, MethodRouter<Api>)> {
    let overview = get(|State(api): State<Api>, query: Result<Query<overview::Query>, QueryRejection>| async move {
        let Query(query) = query.map_err(|rejection| Problem::invalid(rejection.body_text()))?;
        api.overview.answer(query).await
    });
    vec![("/".to_owned(), Protocol::Statistics, get(page)), ("/v2/overview".to_owned(), Protocol::Statistics, overview)]
}

/// Every path of the protocol with its group and methods.
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
    table.extend(text::table());
    table
}

/// The routes of the metrics port.
pub(super) fn metrics(metrics: Arc<Metrics>) -> Router {
    otherwise(Router::new().route(METRICS, scraping(metrics)))
}

fn scraping<S: Clone + Send + Sync + 'static>(metrics: Arc<Metrics>) -> MethodRouter<S> {
    get(scrape).with_state(Scraped { metrics, last: SharedResponse::default() })
}

/// Adds JSON errors for unknown paths and methods.
fn otherwise<S: Clone + Send + Sync + 'static>(router: Router<S>) -> Router<S> {
    router
        .fallback(|uri: Uri| async move {
            let message = format!("no such route: {}", uri.path());
            text::refusal(uri.path(), StatusCode::NOT_FOUND, message)
        })
        .method_not_allowed_fallback(|method: Method, uri: Uri| async move {
            let message = format!("method {method} is not allowed for {}", uri.path());
            text::refusal(uri.path(), StatusCode::METHOD_NOT_ALLOWED, message)
        })
}

/// The metrics, and the page that was written last.
#[derive(Clone)]
struct Scraped {
    metrics: Arc<Metrics>,
    last: SharedResponse,
}

/// Writes the page on a worker, because the pages of many models take long enough to delay requests.
async fn scrape(State(Scraped { metrics, last }): State<Scraped>) -> Result<Response, Problem> {
    let text = last.get(Duration::ZERO, move || metrics.render().map(String::into_bytes)).await?;
    Ok(([(CONTENT_TYPE, METRICS_TYPE)], text).into_response())
}
