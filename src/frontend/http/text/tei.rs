//! The routes of text-embeddings-inference. Without `model`, which that server does not have, the only model that can
//! answer does.

use axum::{
    Json,
    extract::{Query, Request, State, rejection::QueryRejection},
    response::{IntoResponse, Response},
};
use http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{
    super::api::Api,
    fault::Fault,
    item::Item,
    run::{self, Received, Treatment, Wanted, rank, receive, resolve, scores, send},
    tokenizer::{Cuts, cuts},
};
use crate::{
    frontend::span,
    model::{ModelSpec, text},
    repository::ModelVersion,
};

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
#[serde(untagged, expecting = "expected inputs to be a string, a list of strings, or lists of tokens")]
pub(super) enum Inputs {
    One(String),
    Many(Vec<String>),
    Tokens(Vec<i64>),
    ManyTokens(Vec<Vec<i64>>),
}

impl Inputs {
    pub(super) fn into_items(self) -> Vec<Item> {
        match self {
            Self::One(text) => vec![Item::Text(text)],
            Self::Many(texts) => texts.into_iter().map(Item::Text).collect(),
            Self::Tokens(tokens) => vec![Item::Tokens(tokens)],
            Self::ManyTokens(all) => all.into_iter().map(Item::Tokens).collect(),
        }
    }
}

impl Default for Inputs {
    /// None.
    fn default() -> Self {
        Self::Many(Vec::new())
    }
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
    inputs: PredictInputs,
    truncate: Option<bool>,
    truncation_direction: Option<Direction>,
    raw_scores: Option<bool>,
}

/// A text, a list of one text or of a pair, or several of these lists.
#[derive(Deserialize)]
#[serde(
    untagged,
    expecting = "expected inputs to be a string, a list of one or two strings, or several of these lists"
)]
enum PredictInputs {
    Text(String),
    One(Vec<String>),
    Many(Vec<Vec<String>>),
}

impl Default for PredictInputs {
    /// None.
    fn default() -> Self {
        Self::Many(Vec::new())
    }
}

#[derive(Serialize)]
struct Prediction {
    score: f32,
    label: String,
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
            Fault::Server(..) => (StatusCode::FAILED_DEPENDENCY, "Backend"),
        };
        (status, Json(json!({ "error": self.0.message(), "error_type": kind }))).into_response()
    }
}

pub(super) fn or_error(answer: Result<Response, Fault>) -> Response {
    answer.unwrap_or_else(|fault| TeiError(fault).into_response())
}

/// Answers `POST /embed` with a vector for each text.
pub(super) async fn embed(State(api): State<Api>, request: Request) -> Response {
    or_error(embedded(&api, request).await)
}

async fn embedded(api: &Api, request: Request) -> Result<Response, Fault> {
    let mut received: Received<EmbedRequest> = receive(api, request).await?;
    let EmbedRequest { model, inputs, normalize, truncate, truncation_direction, prompt_name, dimensions } =
        &mut received.request;
    let version = resolve(api, &received.parts.headers, model.as_deref(), Wanted::Vectors).await?;
    check_direction(&version, *truncation_direction)?;
    span::asked(&received.span, &version.spec().name, "", "");
    let items = std::mem::take(inputs).into_items();
    let treatment = Treatment {
        prompt: prompt_name.take(),
        truncate: *truncate,
        dimensions: *dimensions,
        // That server normalizes unless it is told not to. A pipeline may leave no choice.
        normalize: normalize.or(version.spec().input_index(text::NORMALIZE).map(|_| true)),
    };
    let rows = run::run(api, &mut received, &version, Wanted::Vectors, (items, treatment)).await?;
    let elements = rows.iter().map(|row| row.values.len()).sum();
    send(api, &received.parts, elements, move || rows.into_iter().map(|row| row.values).collect::<Vec<_>>()).await
}

/// Answers `POST /rerank` with the texts' scores for a query, the highest first.
pub(super) async fn rerank(State(api): State<Api>, request: Request) -> Response {
    or_error(reranked(&api, request).await)
}

async fn reranked(api: &Api, request: Request) -> Result<Response, Fault> {
    let mut received: Received<RerankRequest> = receive(api, request).await?;
    let RerankRequest { model, query, texts, truncate, truncation_direction, raw_scores, return_text } =
        &mut received.request;
    let version = resolve(api, &received.parts.headers, model.as_deref(), Wanted::Classes).await?;
    check_direction(&version, *truncation_direction)?;
    span::asked(&received.span, &version.spec().name, "", "");
    let (query, asked) = (std::mem::take(query), std::mem::take(texts));
    let texts = return_text.unwrap_or(false).then(|| asked.clone());
    let treatment = Treatment { truncate: *truncate, ..Treatment::default() };
    let raw = raw_scores.unwrap_or(false);
    let (ranked, _) = rank(api, &mut received, &version, (&query, asked), (treatment, raw)).await?;
    let write = move || {
        let result = |(index, score): (usize, f32)| match &texts {
            Some(texts) => json!({ "index": index, "score": score, "text": texts[index] }),
            None => json!({ "index": index, "score": score }),
        };
        ranked.into_iter().map(result).collect::<Vec<Value>>()
    };
    send(api, &received.parts, 0, write).await
}

/// Answers `POST /predict` with the scores of the classes, the highest first.
pub(super) async fn predict(State(api): State<Api>, request: Request) -> Response {
    or_error(predicted(&api, request).await)
}

async fn predicted(api: &Api, request: Request) -> Result<Response, Fault> {
    let mut received: Received<PredictRequest> = receive(api, request).await?;
    let PredictRequest { model, inputs, truncate, truncation_direction, raw_scores } = &mut received.request;
    let version = resolve(api, &received.parts.headers, model.as_deref(), Wanted::Classes).await?;
    check_direction(&version, *truncation_direction)?;
    let spec = version.spec();
    span::asked(&received.span, &spec.name, "", "");
    let item = |mut texts: Vec<String>| match (texts.pop(), texts.pop(), texts.len()) {
        (Some(text), None, _) => Ok(Item::Text(text)),
        (Some(pair), Some(text), 0) => Ok(Item::Pair(text.into(), pair)),
        (None, ..) => Err(Fault::Request("expected at least one text".to_owned())),
        (_, _, more) => Err(Fault::Request(format!("expected one text or two, but found {}", more + 2))),
    };
    let (items, is_one) = match std::mem::take(inputs) {
        PredictInputs::Text(text) => (vec![Item::Text(text)], true),
        PredictInputs::One(texts) => (vec![item(texts)?], true),
        PredictInputs::Many(all) => (all.into_iter().map(item).collect::<Result<_, _>>()?, false),
    };
    let (treatment, raw) = (Treatment { truncate: *truncate, ..Treatment::default() }, raw_scores.unwrap_or(false));
    let rows = run::run(api, &mut received, &version, Wanted::Classes, (items, treatment)).await?;
    let labels = spec.outputs.iter().find(|output| output.name == text::LOGITS);
    let labels: Vec<String> = labels.map(|output| output.labels.clone()).unwrap_or_default();
    let elements = rows.iter().map(|row| row.values.len()).sum();
    let write = move || {
        let of_row = |row: run::Row| {
            let scored = if raw { row.values } else { scores(&row.values) };
            let named = scored.into_iter().enumerate().map(|(class, score)| Prediction {
                score,
                label: labels.get(class).cloned().unwrap_or_else(|| format!("LABEL_{class}")),
            });
            let mut named: Vec<Prediction> = named.collect();
            named.sort_by(|one, other| other.score.total_cmp(&one.score));
            named
        };
        let mut all: Vec<Vec<Prediction>> = rows.into_iter().map(of_row).collect();
        if is_one { Predictions::One(all.pop().unwrap_or_default()) } else { Predictions::Many(all) }
    };
    send(api, &received.parts, elements, write).await
}

#[derive(Serialize)]
#[serde(untagged)]
enum Predictions {
    One(Vec<Prediction>),
    Many(Vec<Vec<Prediction>>),
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
    able.retain(|version| kind_of(version.spec()).is_some());
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
        "model_type": kind_of(version.spec()),
        "max_input_length": cuts(version).map(|cuts| cuts.max_tokens),
        "max_client_batch_size": version.spec().max_batch_size,
        "version": env!("CARGO_PKG_VERSION"),
        "models": names,
    }))
    .into_response()
}

/// What text-embeddings-inference calls a model; `None` if it takes no texts.
fn kind_of(spec: &ModelSpec) -> Option<Value> {
    match () {
        () if Wanted::Vectors.is_given_by(spec) => Some(json!({ "embedding": {} })),
        () if Wanted::Classes.is_given_by(spec) => Some(json!({ "classifier": {} })),
        () => None,
    }
}
