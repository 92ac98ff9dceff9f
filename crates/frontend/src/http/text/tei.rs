//! The routes of text-embeddings-inference. Without `model`, which that server does not have, the only model that can
//! answer does.

use axum::{
    Json,
    extract::{Query, Request, State, rejection::QueryRejection},
    response::{IntoResponse, Response},
};
use http::StatusCode;
use paternoster_model::{ModelSpec, text};
use paternoster_repository::ModelVersion;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{
    super::api::Api,
    fault::Fault,
    inputs::{Inputs, Listed},
    item::Item,
    rows::Vectors,
    run::{self, Body, Received, Treatment, Wanted, rank, receive, receive_body, resolve, resolve_any},
    scores::{Form, Predictions, SORTED_BYTES},
    tokenizer::{Cuts, cuts},
    written::send,
};
use crate::span;

#[derive(Deserialize)]
struct EmbedRequest {
    model: Option<String>,
    inputs: Inputs,
    normalize: Option<bool>,
    truncate: Option<bool>,
    truncation_direction: Option<Direction>,
    prompt_name: Option<String>,
    dimensions: Option<u32>,
}

#[derive(Deserialize)]
struct RerankRequest {
    model: Option<String>,
    query: String,
    texts: Vec<String>,
    truncate: Option<bool>,
    truncation_direction: Option<Direction>,
    raw_scores: Option<bool>,
    return_text: Option<bool>,
}

#[derive(Deserialize)]
struct PredictRequest {
    model: Option<String>,
    inputs: Listed<Texts>,
    truncate: Option<bool>,
    truncation_direction: Option<Direction>,
    raw_scores: Option<bool>,
}

/// In the list of inputs: a text of the only item, or an item.
#[derive(Deserialize)]
#[serde(untagged, expecting = "expected a string, or a list of one or two strings")]
enum Texts {
    Text(String),
    Item(Vec<String>),
}

/// A text and its score.
#[derive(Serialize)]
struct Ranked {
    index: usize,
    score: f32,
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<String>,
}

/// The end that a text of too many tokens loses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub(super) enum Direction {
    Left,
    Right,
}

impl TryFrom<String> for Direction {
    type Error = String;

    fn try_from(name: String) -> Result<Self, String> {
        match &*name {
            "Left" | "left" => Ok(Self::Left),
            "Right" | "right" => Ok(Self::Right),
            _ => Err(format!("expected truncation_direction to be Left or Right, but found '{name}'")),
        }
    }
}

/// Refuses an end that a model does not cut: its configuration chooses the end for all requests.
pub(super) fn check_direction(version: &ModelVersion, asked: Option<Direction>) -> Result<(), Fault> {
    let (Some(asked), Some(Cuts { left, .. })) = (asked, cuts(version)) else { return Ok(()) };
    let own = if left { Direction::Left } else { Direction::Right };
    if asked == own {
        return Ok(());
    }
    let model = &version.spec().name;
    Err(Fault::Request(format!(
        "expected truncation_direction to be {own:?}, as the configuration of model '{model}' says (text.truncate), but \
         found {asked:?}"
    )))
}

/// An error as the clients of text-embeddings-inference read it.
struct TeiError(Fault);

impl IntoResponse for TeiError {
    fn into_response(self) -> Response {
        let (status, kind) = match &self.0 {
            Fault::Model(_) => (StatusCode::NOT_FOUND, "Validation"),
            Fault::Request(_) => (StatusCode::UNPROCESSABLE_ENTITY, "Validation"),
            Fault::TooLarge(_) => (StatusCode::PAYLOAD_TOO_LARGE, "Validation"),
            Fault::Overloaded(_) => (StatusCode::TOO_MANY_REQUESTS, "Overloaded"),
            Fault::Starting(_) => (StatusCode::SERVICE_UNAVAILABLE, "Unhealthy"),
            Fault::Server(..) => (StatusCode::FAILED_DEPENDENCY, "Backend"),
        };
        (status, Json(json!({ "error": self.0.message(), "error_type": kind }))).into_response()
    }
}

pub(super) fn or_error(answer: Result<Response, Fault>) -> Response {
    answer.unwrap_or_else(|fault| TeiError(fault).into_response())
}

/// A request whose model says what it asks for.
#[derive(Deserialize)]
struct RootRequest {
    model: Option<String>,
}

/// Answers `POST /` as the route of the model's kind does.
pub(super) async fn root(State(api): State<Api>, request: Request) -> Response {
    or_error(async { by_kind(&api, receive_body(&api, request).await?).await }.await)
}

async fn by_kind(api: &Api, body: Body) -> Result<Response, Fault> {
    let RootRequest { model } = body.part(api).await?;
    let any = [Wanted::Vectors, Wanted::Classes];
    let version = resolve_any(api, &body.parts, model.as_deref(), &any).await?;
    match Kind::of(version.spec()) {
        Some(Kind::Reranker) => reranked(api, body.read(api).await?).await,
        Some(Kind::Classifier) => predicted(api, body.read(api).await?).await,
        _ => embedded(api, body.read(api).await?).await,
    }
}

/// Answers `GET /health` and `GET /ping`.
pub(super) async fn health(State(api): State<Api>) -> Response {
    if api.services.readiness.ready() {
        return StatusCode::OK.into_response();
    }
    let unhealthy = json!({ "error": "unhealthy", "error_type": "unhealthy" });
    (StatusCode::SERVICE_UNAVAILABLE, Json(unhealthy)).into_response()
}

/// The paths of text-embeddings-inference, whether or not they are served.
const PATHS: [&str; 14] = [
    "/",
    "/decode",
    "/embed",
    "/embed_all",
    "/embed_sparse",
    "/embeddings",
    "/health",
    "/info",
    "/invocations",
    "/ping",
    "/predict",
    "/rerank",
    "/similarity",
    "/tokenize",
];

/// Answers a request that reaches no route, if its path is one of that server.
pub(super) fn refusal(path: &str, status: StatusCode, message: &str) -> Option<Response> {
    let error = || (status, Json(json!({ "error": message, "error_type": "Validation" }))).into_response();
    PATHS.contains(&path).then(error)
}

/// Answers `POST /embed` with a vector for each text.
pub(super) async fn embed(State(api): State<Api>, request: Request) -> Response {
    or_error(async { embedded(&api, receive(&api, request).await?).await }.await)
}

async fn embedded(api: &Api, mut received: Received<EmbedRequest>) -> Result<Response, Fault> {
    let EmbedRequest { model, inputs, normalize, truncate, truncation_direction, prompt_name, dimensions } =
        &mut received.request;
    let version = resolve(api, &received.parts, model.as_deref(), Wanted::Vectors).await?;
    check_direction(&version, *truncation_direction)?;
    span::asked(&received.span, &version.spec().name, "", "");
    let Inputs(items) = std::mem::take(inputs);
    let treatment = Treatment {
        list: "inputs",
        prompt: prompt_name.take(),
        truncate: *truncate,
        dimensions: *dimensions,
        // That server normalizes unless it is told not to. A pipeline may leave no choice.
        normalize: normalize.or(version.spec().input_index(text::NORMALIZE).map(|_| true)),
    };
    let rows = run::run(api, &mut received, &version, Wanted::Vectors, (items, treatment)).await?;
    let elements = rows.iter().map(|row| row.values().len()).sum();
    send(api, &mut received, elements, Vectors(rows)).await
}

/// Answers `POST /rerank` with the texts' scores for a query, the highest first.
pub(super) async fn rerank(State(api): State<Api>, request: Request) -> Response {
    or_error(async { reranked(&api, receive(&api, request).await?).await }.await)
}

async fn reranked(api: &Api, mut received: Received<RerankRequest>) -> Result<Response, Fault> {
    let RerankRequest { model, query, texts, truncate, truncation_direction, raw_scores, return_text } =
        &mut received.request;
    let version = resolve(api, &received.parts, model.as_deref(), Wanted::Classes).await?;
    check_direction(&version, *truncation_direction)?;
    span::asked(&received.span, &version.spec().name, "", "");
    let (query, asked) = (std::mem::take(query), std::mem::take(texts));
    let raw = raw_scores.unwrap_or(false);
    let (treatment, wanted) =
        (Treatment { list: "texts", truncate: *truncate, ..Treatment::default() }, return_text.unwrap_or(false));
    let mut returned = copied_if(&mut received, wanted, &asked).await?;
    let (ranked, _) = rank(api, &mut received, &version, (&query, asked), (treatment, raw)).await?;
    let result =
        |(index, score): (usize, f32)| Ranked { index, score, text: returned.get_mut(index).map(std::mem::take) };
    let ranked: Vec<Ranked> = ranked.into_iter().map(result).collect();
    let elements = ranked.iter().map(|one| 1 + one.text.as_ref().map_or(0, String::len)).sum();
    send(api, &mut received, elements, ranked).await
}

/// Returns texts that go into the response, which are reserved; none if they do not.
pub(super) async fn copied_if<T>(
    received: &mut Received<T>,
    wanted: bool,
    texts: &[String],
) -> Result<Vec<String>, Fault> {
    if !wanted {
        return Ok(Vec::new());
    }
    received.reserve(texts.iter().map(|text| size_of::<String>() + text.len()).sum()).await?;
    Ok(texts.to_vec())
}

/// Answers `POST /predict` with the scores of the classes, the highest first.
pub(super) async fn predict(State(api): State<Api>, request: Request) -> Response {
    or_error(async { predicted(&api, receive(&api, request).await?).await }.await)
}

async fn predicted(api: &Api, mut received: Received<PredictRequest>) -> Result<Response, Fault> {
    let PredictRequest { model, inputs, truncate, truncation_direction, raw_scores } = &mut received.request;
    let version = resolve(api, &received.parts, model.as_deref(), Wanted::Classes).await?;
    check_direction(&version, *truncation_direction)?;
    span::asked(&received.span, &version.spec().name, "", "");
    let (items, is_one) = items_of(std::mem::take(inputs))?;
    let (treatment, raw) =
        (Treatment { list: "inputs", truncate: *truncate, ..Treatment::default() }, raw_scores.unwrap_or(false));
    let rows = run::run(api, &mut received, &version, Wanted::Classes, (items, treatment)).await?;
    let classes = rows.iter().map(|row| row.values().len());
    let (elements, most): (usize, _) = (classes.clone().sum(), classes.max().unwrap_or(0));
    received.reserve(most.saturating_mul(SORTED_BYTES)).await?;
    let form = Form::of(&version, raw);
    send(api, &mut received, elements, Predictions { rows, form, is_one, version }).await
}

/// Returns what is classified, and whether that is one item and not a list of them.
fn items_of(inputs: Listed<Texts>) -> Result<(Vec<Item>, bool), Fault> {
    let item = |mut texts: Vec<String>| match (texts.pop(), texts.pop(), texts.len()) {
        (Some(text), None, _) => Ok(Item::Text(text)),
        (Some(pair), Some(text), 0) => Ok(Item::Pair(text.into(), pair)),
        (None, ..) => Err("expected at least one text".to_owned()),
        (_, _, more) => Err(format!("expected one text or two, but found {}", more + 2)),
    };
    let list = match inputs {
        Listed::Text(text) => return Ok((vec![Item::Text(text)], true)),
        Listed::List(list) => list,
    };
    let (mut of_one, mut items) = (Vec::new(), Vec::new());
    for (number, texts) in list.into_iter().enumerate() {
        let wrong = |fault: String| Fault::Request(format!("inputs[{number}]: {fault}"));
        match texts {
            Texts::Text(text) if items.is_empty() => of_one.push(text),
            Texts::Item(texts) if of_one.is_empty() => items.push(item(texts).map_err(wrong)?),
            Texts::Text(_) => return Err(wrong("expected a list, as those before it".to_owned())),
            Texts::Item(_) => return Err(wrong("expected a string, as those before it".to_owned())),
        }
    }
    if !items.is_empty() {
        return Ok((items, false));
    }
    let only = item(of_one).map_err(|fault| Fault::Request(format!("inputs: {fault}")))?;
    Ok((vec![only], true))
}

#[derive(Deserialize)]
pub(super) struct InfoQuery {
    model: Option<String>,
}

/// Answers `GET /info`: what a loaded model that takes texts is, and which there are. Without `model`, which that
/// server does not have, it is about the first.
pub(super) async fn info(State(api): State<Api>, query: Result<Query<InfoQuery>, QueryRejection>) -> Response {
    let model = match query {
        Ok(Query(query)) => query.model,
        Err(rejection) => return TeiError(Fault::Request(rejection.body_text())).into_response(),
    };
    let mut able = api.services.repository.loaded();
    able.retain(|version| Kind::of(version.spec()).is_some());
    let mut names: Vec<&str> = able.iter().map(|version| version.spec().name.as_str()).collect();
    names.dedup();
    let wanted = model.as_deref().or(names.first().copied());
    let Some(version) = able.iter().find(|version| Some(&*version.spec().name) == wanted) else {
        let fault = match wanted {
            Some(name) => format!("no loaded model that takes texts is called '{name}'"),
            None => "no model takes texts".to_owned(),
        };
        return TeiError(Fault::Model(fault)).into_response();
    };
    Json(json!({
        "model_id": version.spec().name,
        "model_type": Kind::of(version.spec()).map(Kind::shown),
        "max_input_length": cuts(version).map(|cuts| cuts.max_tokens),
        "max_client_batch_size": version.spec().max_batch_size,
        "version": env!("CARGO_PKG_VERSION"),
        "models": names,
    }))
    .into_response()
}

/// What a model does with texts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Embedding,
    /// With a single class.
    Reranker,
    Classifier,
    /// None of text-embeddings-inference.
    TokenClassifier,
}

impl Kind {
    /// Returns the kind of a model; `None` if it takes no texts.
    pub(super) fn of(spec: &ModelSpec) -> Option<Self> {
        let classes = spec.outputs.iter().find(|output| output.name == text::LOGITS).map(|output| &output.dims[..]);
        match () {
            () if Wanted::Vectors.is_given_by(spec) => Some(Self::Embedding),
            () if Wanted::Classes.is_given_by(spec) && classes == Some(&[1]) => Some(Self::Reranker),
            () if Wanted::Classes.is_given_by(spec) => Some(Self::Classifier),
            () if Wanted::TokenClasses.is_given_by(spec) => Some(Self::TokenClassifier),
            () => None,
        }
    }

    /// Returns it as `GET /info` shows it.
    fn shown(self) -> Value {
        match self {
            Self::Embedding => json!({ "embedding": {} }),
            Self::Reranker => json!({ "reranker": {} }),
            Self::Classifier => json!({ "classifier": {} }),
            Self::TokenClassifier => json!({ "token_classifier": {} }),
        }
    }
}

#[cfg(test)]
mod tests {
    use paternoster_model::{DataType, TensorSpec};

    use super::*;

    #[test]
    fn inputs_of_predict_are_one_item_or_a_list_of_items() {
        let items = |json: &str| {
            let inputs = serde_json::from_str(json).map_err(|fault| fault.to_string())?;
            items_of(inputs).map_err(|fault| fault.message().to_owned())
        };
        let (text, pair) = (Item::Text("a".to_owned()), Item::Pair("a".into(), "b".to_owned()));
        assert_eq!(items(r#""a""#), Ok((vec![text.clone()], true)));
        assert_eq!(items(r#"["a"]"#), Ok((vec![text.clone()], true)));
        assert_eq!(items(r#"["a", "b"]"#), Ok((vec![pair.clone()], true)));
        assert_eq!(items(r#"[["a"], ["a", "b"]]"#), Ok((vec![text, pair], false)));
        for (json, fault) in [
            ("[]", "inputs: expected at least one text"),
            (r#"["a", "b", "c"]"#, "inputs: expected one text or two, but found 3"),
            (r#"[["a"], []]"#, "inputs[1]: expected at least one text"),
            (r#"[["a"], ["a"], ["a", "b", "c"]]"#, "inputs[2]: expected one text or two, but found 3"),
            (r#"[["a"], "b"]"#, "inputs[1]: expected a list, as those before it"),
            (r#"["a", ["b"]]"#, "inputs[1]: expected a string, as those before it"),
        ] {
            assert_eq!(items(json).expect_err(json), fault);
        }
    }

    #[test]
    fn the_kind_of_a_model_is_in_its_outputs() {
        let kind = |output: &str, dims: &[i64]| {
            let tensor = |name: &str, datatype, dims: &[i64]| vec![TensorSpec::new(name, datatype, dims)];
            let (inputs, outputs) = (tensor(text::TEXT, DataType::Bytes, &[1]), tensor(output, DataType::Fp32, dims));
            let (name, symbols) = ("m".to_owned(), Vec::new());
            Kind::of(&ModelSpec { name, version: 1, max_batch_size: 1, inputs, outputs, symbols, decoupled: false })
        };
        assert_eq!(kind(text::EMBEDDING, &[-1]), Some(Kind::Embedding));
        assert_eq!(kind(text::LOGITS, &[1]), Some(Kind::Reranker));
        assert_eq!(kind(text::LOGITS, &[3]), Some(Kind::Classifier));
        assert_eq!(kind(text::LOGITS, &[-1, 3]), Some(Kind::TokenClassifier));
        assert_eq!(kind("pixels", &[1]), None);
    }
}
