//! The ways to models that take texts which clients of other servers use: embeddings as OpenAI's and Cohere's clients
//! ask for them, reranking as those of Cohere and Jina, and the routes of text-embeddings-inference.
//!
//! `read` reads requests, `inputs` the items of those for vectors, `run` submits each `item` to a model, `rows` are the
//! results, `scores` makes those of classes, `written` the JSON of answers, and `fault` says why there is none;
//! `tokenizer` finds a model's tokenizer, and `tokenize` asks that alone. The other modules have one interface each:
//! its requests, its answers and its errors.
//! Which models an interface can use shows in the names of their tensors. Tokenizers and batching must not live here.

mod cohere;
#[cfg(feature = "text")]
mod embed_all;
mod fault;
mod inputs;
mod item;
mod openai;
mod read;
mod rerank;
mod rows;
mod run;
mod scores;
mod tei;
#[cfg(feature = "text")]
mod tokenize;
mod tokenizer;
mod written;

use axum::{
    response::{IntoResponse, Response},
    routing::{MethodRouter, get, post},
};
use http::StatusCode;

use self::{fault::Fault, openai::OpenAiError};
use super::{Problem, api::Api};
use crate::Protocol;

/// Answers requests that reach no route, or not the one that they ask for: those of the clients of OpenAI, whose paths
/// begin with `/v1/`, of Cohere, and of text-embeddings-inference in their form.
pub(super) fn refusal(path: &str, status: StatusCode, message: String) -> Response {
    match path {
        "/v1/rerank" | "/v2/rerank" | "/v2/embed" => return cohere::refused(&Fault::Server(status, message)),
        path if path.starts_with("/v1/") => return OpenAiError(Fault::Server(status, message)).into_response(),
        _ => {}
    }
    tei::refusal(path, status, &message).unwrap_or_else(|| Problem::new(status, message).into_response())
}

/// The routes of these interfaces, with their groups.
pub(super) fn table() -> Vec<(String, Protocol, MethodRouter<Api>)> {
    use Protocol::{Health, Inference, Metadata};
    let route = |path: &str, group, methods| (path.to_owned(), group, methods);
    #[cfg(feature = "text")]
    let of_tokenizers = [
        route("/tokenize", Inference, post(tokenize::tokenize)),
        route("/decode", Inference, post(tokenize::decode)),
        route("/embed_all", Inference, post(embed_all::embed_all)),
    ];
    #[cfg(not(feature = "text"))]
    let of_tokenizers = [];
    let mut table = vec![
        route("/v1/embeddings", Inference, post(openai::embeddings)),
        route("/v1/models", Metadata, get(openai::models)),
        route("/v1/models/{model}", Metadata, get(openai::model)),
        route("/v2/embed", Inference, post(cohere::embed)),
        route("/v1/rerank", Inference, post(rerank::rerank)),
        route("/v2/rerank", Inference, post(rerank::rerank)),
        route("/", Inference, post(tei::root)),
        route("/health", Health, get(tei::health)),
        route("/ping", Health, get(tei::health)),
        route("/embed", Inference, post(tei::embed)),
        route("/rerank", Inference, post(tei::rerank)),
        route("/predict", Inference, post(tei::predict)),
        route("/info", Metadata, get(tei::info)),
    ];
    table.extend(of_tokenizers);
    table
}
