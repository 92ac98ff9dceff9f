//! Reranking as clients of Cohere and Jina ask for it.

use axum::{
    Json,
    extract::{Request, State},
    response::{IntoResponse, Response},
};
use http::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    super::api::Api,
    fault::Fault,
    run::{Received, Treatment, Wanted, rank, receive, resolve, send},
    tokenizer::cuts,
};
use crate::{frontend::span, repository::ModelVersion};

#[derive(Deserialize)]
struct RerankRequest {
    model: Option<String>,
    query: String,
    documents: Vec<Document>,
    top_n: Option<usize>,
    return_documents: Option<bool>,
    max_tokens_per_doc: Option<u64>,
}

/// A document: its text, or an object that has it.
#[derive(Deserialize)]
#[serde(untagged, expecting = "expected each document to be a string, or an object with a text")]
enum Document {
    Text(String),
    Object { text: String },
}

/// Answers `POST /v1/rerank` and `POST /v2/rerank`.
pub(super) async fn rerank(State(api): State<Api>, request: Request) -> Response {
    match answer(&api, request).await {
        Ok(response) => response,
        Err(fault) => {
            let status = match &fault {
                Fault::Model(_) => StatusCode::NOT_FOUND,
                Fault::Request(_) => StatusCode::BAD_REQUEST,
                Fault::TooLarge(_) => StatusCode::PAYLOAD_TOO_LARGE,
                Fault::Overloaded(_) => StatusCode::SERVICE_UNAVAILABLE,
                Fault::Server(status, _) => *status,
            };
            // Cohere's clients read `message`, Jina's `detail`.
            (status, Json(json!({ "message": fault.message(), "detail": fault.message() }))).into_response()
        }
    }
}

/// Refuses a limit below that of the model, which is the one that documents are cut at.
fn check_most_tokens(version: &ModelVersion, asked: Option<u64>) -> Result<(), Fault> {
    let (Some(asked), Some(cuts)) = (asked, cuts(version)) else { return Ok(()) };
    if asked >= cuts.max_tokens as u64 {
        return Ok(());
    }
    let (model, most) = (&version.spec().name, cuts.max_tokens);
    Err(Fault::Request(format!(
        "expected max_tokens_per_doc to be at least {most}, at which model '{model}' cuts query and document together, \
         but found {asked}"
    )))
}

async fn answer(api: &Api, request: Request) -> Result<Response, Fault> {
    let mut received: Received<RerankRequest> = receive(api, request).await?;
    let RerankRequest { model, query, documents, top_n, return_documents, max_tokens_per_doc } = &mut received.request;
    let most = *max_tokens_per_doc;
    let (model, query, top_n) = (model.take(), std::mem::take(query), *top_n);
    let texts = std::mem::take(documents).into_iter().map(|document| match document {
        Document::Text(text) | Document::Object { text } => text,
    });
    let texts: Vec<String> = texts.collect();
    let returned = return_documents.unwrap_or(false).then(|| texts.clone());
    let version = resolve(api, &received.parts, model.as_deref(), Wanted::Classes).await?;
    check_most_tokens(&version, most)?;
    span::asked(&received.span, &version.spec().name, "", "");
    let ranking = rank(api, &mut received, &version, (&query, texts), (Treatment::default(), false));
    let (mut ranked, tokens) = ranking.await?;
    ranked.truncate(top_n.unwrap_or(ranked.len()));
    let model = model.unwrap_or_else(|| version.spec().name.clone());
    let elements = ranked.len();
    let write = move || {
        let result = |(index, score): (usize, f32)| {
            let mut result = json!({ "index": index, "relevance_score": score });
            if let Some(texts) = &returned {
                result["document"] = json!({ "text": texts[index] });
            }
            result
        };
        let results: Vec<Value> = ranked.into_iter().map(result).collect();
        json!({
            "id": "",
            "object": "list",
            "model": model,
            "results": results,
            "usage": { "prompt_tokens": tokens, "total_tokens": tokens },
            "meta": { "api_version": { "version": "2" }, "billed_units": { "search_units": 1 } },
        })
    };
    send(api, &received.parts, elements, write).await
}
