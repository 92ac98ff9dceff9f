//! Embeddings and models as OpenAI's clients ask for them.

use std::{collections::BTreeSet, fmt};

use axum::{
    Json,
    extract::{Path, Request, State},
    response::{IntoResponse, Response},
};
use base64::{Engine, engine::general_purpose::STANDARD};
use http::StatusCode;
use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{self, Unexpected, Visitor},
};
use serde_json::{Value, json};

use super::{
    super::api::Api,
    fault::Fault,
    inputs::Inputs,
    rows::{Numbers, Row},
    run::{self, Received, Treatment, Wanted, receive, resolve},
    tei::Kind,
    written::send,
};
use crate::span;

/// A request for embeddings. Other keys, such as `user`, have no effect.
#[derive(Deserialize)]
struct EmbeddingsRequest {
    model: Option<String>,
    input: Inputs,
    encoding_format: Option<Encoding>,
    dimensions: Option<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Encoding {
    Float,
    Base64,
}

/// Derived, it would also be read from an object with its name as the only key.
impl<'de> Deserialize<'de> for Encoding {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(EncodingVisitor)
    }
}

struct EncodingVisitor;

impl Visitor<'_> for EncodingVisitor {
    type Value = Encoding;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("encoding_format to be \"float\" or \"base64\"")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Encoding, E> {
        match text {
            "float" => Ok(Encoding::Float),
            "base64" => Ok(Encoding::Base64),
            _ => Err(E::invalid_value(Unexpected::Str(text), &self)),
        }
    }
}

#[derive(Serialize)]
struct EmbeddingsResponse {
    object: &'static str,
    data: Vec<Embedding>,
    model: String,
    usage: Usage,
}

#[derive(Serialize)]
struct Embedding {
    object: &'static str,
    index: usize,
    embedding: Vector,
}

/// The numbers of a text, written as its request says.
struct Vector(Row, Encoding);

impl Serialize for Vector {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self(row, encoding) = self;
        match encoding {
            Encoding::Float => Numbers(row).serialize(serializer),
            Encoding::Base64 => serializer.serialize_str(&STANDARD.encode(row.bytes())),
        }
    }
}

#[derive(Serialize)]
struct Usage {
    prompt_tokens: u64,
    total_tokens: u64,
}

/// An error as OpenAI's clients read it.
pub(super) struct OpenAiError(pub(super) Fault);

impl IntoResponse for OpenAiError {
    fn into_response(self) -> Response {
        let (status, kind, parameter, code) = match &self.0 {
            Fault::Model(_) => (StatusCode::NOT_FOUND, "invalid_request_error", Some("model"), Some("model_not_found")),
            Fault::Request(_) => (StatusCode::BAD_REQUEST, "invalid_request_error", None, None),
            Fault::TooLarge(_) => (StatusCode::PAYLOAD_TOO_LARGE, "invalid_request_error", None, None),
            Fault::Overloaded(_) => (StatusCode::SERVICE_UNAVAILABLE, "server_error", None, Some("overloaded")),
            Fault::Starting(_) => (StatusCode::SERVICE_UNAVAILABLE, "server_error", None, Some("starting")),
            Fault::Server(status, _) if status.is_client_error() => (*status, "invalid_request_error", None, None),
            Fault::Server(status, _) => (*status, "server_error", None, None),
        };
        let error = json!({ "message": self.0.message(), "type": kind, "param": parameter, "code": code });
        (status, Json(json!({ "error": error }))).into_response()
    }
}

/// Answers `POST /v1/embeddings`.
pub(super) async fn embeddings(State(api): State<Api>, request: Request) -> Response {
    match answer(&api, request).await {
        Ok(response) => response,
        Err(fault) => OpenAiError(fault).into_response(),
    }
}

async fn answer(api: &Api, request: Request) -> Result<Response, Fault> {
    let mut received: Received<EmbeddingsRequest> = receive(api, request).await?;
    let version = resolve(api, &received.parts, received.request.model.as_deref(), Wanted::Vectors).await?;
    let spec = version.spec();
    span::asked(&received.span, &spec.name, "", "");
    let Inputs(items) = std::mem::take(&mut received.request.input);
    let EmbeddingsRequest { model, encoding_format, dimensions, .. } = &received.request;
    let (model, format) = (model.clone(), encoding_format.unwrap_or(Encoding::Float));
    let treatment = Treatment { list: "input", dimensions: *dimensions, ..Treatment::default() };
    let rows = run::run(api, &mut received, &version, Wanted::Vectors, (items, treatment)).await?;
    let tokens = rows.iter().map(|row| row.tokens).sum();
    let elements = rows.iter().map(|row| row.values().len()).sum();
    let model = model.unwrap_or_else(|| spec.name.clone());
    let embedding = |(index, row)| Embedding { object: "embedding", index, embedding: Vector(row, format) };
    let data = rows.into_iter().enumerate().map(embedding).collect();
    let usage = Usage { prompt_tokens: tokens, total_tokens: tokens };
    send(api, &mut received, elements, EmbeddingsResponse { object: "list", data, model, usage }).await
}

/// Answers `GET /v1/models`: the models that take texts.
pub(super) async fn models(State(api): State<Api>) -> Response {
    let names = text_models(&api);
    let data: Vec<Value> = names.iter().map(|name| described(name)).collect();
    Json(json!({ "object": "list", "data": data })).into_response()
}

/// Answers `GET /v1/models/{model}`.
pub(super) async fn model(State(api): State<Api>, Path(name): Path<String>) -> Response {
    if text_models(&api).contains(&name) {
        return Json(described(&name)).into_response();
    }
    OpenAiError(Fault::Model(format!("no model that takes texts is called '{name}'"))).into_response()
}

/// Returns the models that take texts, by name: loaded ones, and those that a request would load.
fn text_models(api: &Api) -> BTreeSet<String> {
    let repository = &api.services.repository;
    let loaded = repository.loaded();
    let able = loaded.iter().filter(|version| Kind::of(version.spec()).is_some());
    able.map(|version| version.spec().name.clone()).chain(repository.loadable_texts()).collect()
}

fn described(name: &str) -> Value {
    json!({ "id": name, "object": "model", "created": 0, "owned_by": "paternoster" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_encoding_is_one_of_two_names_and_nothing_else() {
        let read = |json: &str| serde_json::from_str::<Encoding>(json).map_err(|fault| fault.to_string());
        assert_eq!(read("\"float\""), Ok(Encoding::Float));
        assert_eq!(read("\"base64\""), Ok(Encoding::Base64));
        for wrong in [r#"{"base64": null}"#, "1", "\"Float\"", "[\"float\"]"] {
            let fault = read(wrong).expect_err(wrong);
            assert!(fault.contains(r#"expected encoding_format to be "float" or "base64""#), "{fault}");
        }
    }
}
