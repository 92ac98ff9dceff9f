//! Embeddings as Cohere's clients ask for them, and the errors that those clients and Jina's read.

use axum::{
    Json,
    extract::{Request, State},
    response::{IntoResponse, Response},
};
use http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{
    super::api::Api,
    fault::Fault,
    item::Item,
    rows::{Numbers, Row},
    run::{self, Received, Treatment, Wanted, receive, resolve},
    tei::{Direction, check_direction},
    tokenizer::has_prompt,
    written::send,
};
use crate::span;

/// A request for vectors of texts.
#[derive(Deserialize)]
struct EmbedRequest {
    model: Option<String>,
    texts: Option<Vec<String>>,
    inputs: Option<Vec<Input>>,
    input_type: Option<String>,
    #[serde(default)]
    embedding_types: Vec<String>,
    output_dimension: Option<u32>,
    truncate: Option<String>,
}

/// A text, as Cohere's clients send it beside images.
#[derive(Deserialize)]
struct Input {
    content: Vec<Content>,
}

#[derive(Deserialize)]
struct Content {
    #[serde(rename = "type")]
    kind: String,
    text: Option<String>,
}

#[derive(Serialize)]
struct EmbedResponse {
    id: &'static str,
    response_type: &'static str,
    embeddings: ByType,
    texts: Vec<String>,
    meta: Value,
}

/// The vectors in the only type that models give.
#[derive(Serialize)]
struct ByType {
    float: Vec<Vector>,
}

struct Vector(Row);

impl Serialize for Vector {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Numbers(&self.0).serialize(serializer)
    }
}

/// Answers `POST /v2/embed`.
pub(super) async fn embed(State(api): State<Api>, request: Request) -> Response {
    match answer(&api, request).await {
        Ok(response) => response,
        Err(fault) => refused(&fault),
    }
}

/// Returns an error as Cohere's clients read it, by `message`, and Jina's, by `detail`.
pub(super) fn refused(fault: &Fault) -> Response {
    let status = match fault {
        Fault::Model(_) => StatusCode::NOT_FOUND,
        Fault::Request(_) => StatusCode::BAD_REQUEST,
        Fault::TooLarge(_) => StatusCode::PAYLOAD_TOO_LARGE,
        Fault::Overloaded(_) | Fault::Starting(_) => StatusCode::SERVICE_UNAVAILABLE,
        Fault::Server(status, _) => *status,
    };
    (status, Json(json!({ "message": fault.message(), "detail": fault.message() }))).into_response()
}

async fn answer(api: &Api, request: Request) -> Result<Response, Fault> {
    let mut received: Received<EmbedRequest> = receive(api, request).await?;
    let EmbedRequest { model, texts, inputs, input_type, embedding_types, output_dimension, truncate } =
        &mut received.request;
    let (list, texts) = match (texts.take(), inputs.take()) {
        (Some(texts), None) => ("texts", texts),
        (None, Some(inputs)) => ("inputs", inputs.into_iter().enumerate().map(text_of).collect::<Result<_, _>>()?),
        _ => return Err(Fault::Request("expected either texts or inputs".to_owned())),
    };
    if let Some(other) = embedding_types.iter().find(|name| *name != "float") {
        return Err(Fault::Request(format!("expected embedding_types to be [\"float\"], but found '{other}'")));
    }
    let (truncate, direction) = cutting(truncate.as_deref())?;
    let prompt = named_prompt(input_type.as_deref())?;
    let (model, dimensions) = (model.take(), *output_dimension);
    let version = resolve(api, &received.parts, model.as_deref(), Wanted::Vectors).await?;
    check_direction(&version, direction)?;
    span::asked(&received.span, &version.spec().name, "", "");
    let prompt = prompt.iter().find(|name| has_prompt(&version, name)).map(|name| (*name).to_owned());
    let treatment = Treatment { list, prompt, truncate, dimensions, ..Treatment::default() };
    // The response has the texts too.
    received.reserve(texts.iter().map(|text| size_of::<Item>() + text.len()).sum()).await?;
    let items = texts.iter().map(|text| Item::Text(text.clone())).collect();
    let rows = run::run(api, &mut received, &version, Wanted::Vectors, (items, treatment)).await?;
    let tokens: u64 = rows.iter().map(|row| row.tokens).sum();
    let elements =
        rows.iter().map(|row| row.values().len()).sum::<usize>() + texts.iter().map(String::len).sum::<usize>();
    let embeddings = ByType { float: rows.into_iter().map(Vector).collect() };
    let meta = json!({ "api_version": { "version": "2" }, "billed_units": { "input_tokens": tokens } });
    let answer = EmbedResponse { id: "", response_type: "embeddings_by_type", embeddings, texts, meta };
    send(api, &mut received, elements, answer).await
}

/// Returns the text of an input.
fn text_of((number, input): (usize, Input)) -> Result<String, Fault> {
    let mut text = String::new();
    for Content { kind, text: part } in input.content {
        match part {
            Some(part) if kind == "text" => text.push_str(&part),
            _ => {
                let message =
                    format!("inputs[{number}]: expected content of type \"text\" with a text, but found \"{kind}\"");
                return Err(Fault::Request(message));
            }
        }
    }
    Ok(text)
}

/// Returns whether texts may be cut, and where.
fn cutting(truncate: Option<&str>) -> Result<(Option<bool>, Option<Direction>), Fault> {
    match truncate {
        None => Ok((None, None)),
        Some("NONE") => Ok((Some(false), None)),
        Some("START") => Ok((Some(true), Some(Direction::Left))),
        Some("END") => Ok((Some(true), Some(Direction::Right))),
        Some(other) => {
            Err(Fault::Request(format!("expected truncate to be \"NONE\", \"START\" or \"END\", but found '{other}'")))
        }
    }
}

/// Returns the names that prompts for this type of input have, of which a model may have one.
fn named_prompt(input_type: Option<&str>) -> Result<&'static [&'static str], Fault> {
    match input_type {
        None => Ok(&[]),
        Some("search_query") => Ok(&["search_query", "query"]),
        Some("search_document") => Ok(&["search_document", "document", "passage"]),
        Some("classification") => Ok(&["classification"]),
        Some("clustering") => Ok(&["clustering"]),
        Some(other) => Err(Fault::Request(format!(
            "expected input_type to be search_query, search_document, classification or clustering, but found '{other}'"
        ))),
    }
}
