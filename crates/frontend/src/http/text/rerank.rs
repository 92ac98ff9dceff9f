//! Reranking as clients of Cohere and Jina ask for it.

use axum::{
    extract::{Request, State},
    response::Response,
};
use paternoster_repository::ModelVersion;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{
    super::api::Api,
    cohere::refused,
    fault::Fault,
    run::{Received, Treatment, Wanted, rank, receive, resolve},
    tei::copied_if,
    tokenizer::cuts,
    written::send,
};
use crate::span;

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
#[serde(untagged, expecting = "expected a string, or an object with a text")]
enum Document {
    Text(String),
    Object { text: String },
}

#[derive(Serialize)]
struct RerankResponse {
    id: &'static str,
    object: &'static str,
    model: String,
    results: Vec<Ranked>,
    usage: Value,
    meta: Value,
}

/// A document and its score.
#[derive(Serialize)]
struct Ranked {
    index: usize,
    relevance_score: f32,
    #[serde(skip_serializing_if = "Option::is_none")]
    document: Option<Returned>,
}

#[derive(Serialize)]
struct Returned {
    text: String,
}

/// Answers `POST /v1/rerank` and `POST /v2/rerank`.
pub(super) async fn rerank(State(api): State<Api>, request: Request) -> Response {
    match answer(&api, request).await {
        Ok(response) => response,
        Err(fault) => refused(&fault),
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
    let wanted = return_documents.unwrap_or(false);
    let version = resolve(api, &received.parts, model.as_deref(), Wanted::Classes).await?;
    check_most_tokens(&version, most)?;
    span::asked(&received.span, &version.spec().name, "", "");
    let mut returned = copied_if(&mut received, wanted, &texts).await?;
    let ranking = rank(
        api,
        &mut received,
        &version,
        (&query, texts),
        (Treatment { list: "documents", ..Treatment::default() }, false),
    );
    let (mut ranked, tokens) = ranking.await?;
    ranked.truncate(top_n.unwrap_or(ranked.len()));
    let model = model.unwrap_or_else(|| version.spec().name.clone());
    let result = |(index, relevance_score): (usize, f32)| {
        let document = returned.get_mut(index).map(|text| Returned { text: std::mem::take(text) });
        Ranked { index, relevance_score, document }
    };
    let results: Vec<Ranked> = ranked.into_iter().map(result).collect();
    let elements = results.iter().map(|one| 1 + one.document.as_ref().map_or(0, |document| document.text.len())).sum();
    let answer = RerankResponse {
        id: "",
        object: "list",
        model,
        results,
        usage: json!({ "prompt_tokens": tokens, "total_tokens": tokens }),
        meta: json!({ "api_version": { "version": "2" }, "billed_units": { "search_units": 1 } }),
    };
    send(api, &mut received, elements, answer).await
}
