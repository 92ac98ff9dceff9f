//! The tokenizers of models, as text-embeddings-inference gives access to them.

use std::sync::Arc;

use axum::{
    extract::{Request, State},
    response::Response,
};
use http::StatusCode;
use serde::{Deserialize, Serialize};

use super::{
    super::{Problem, api::Api},
    fault::Fault,
    run::{Received, Wanted, check_count, receive, resolve, send},
    tei::or_error,
    tokenizer::with_tokenizer,
};
use crate::{
    frontend::span,
    text::{Piece, TextTokenizer, TokenizerFault},
};

/// Bytes that are built for each byte of text, at most one token each: while the library works, and for the answer.
const BUILT_FOR_EACH_BYTE: usize = 256;

/// Bytes that are built for each byte of the text of tokens.
const DECODED_FOR_EACH_BYTE: usize = 16;

/// The numbers in an answer for each token, as [`send`] counts them.
const NUMBERS_OF_A_TOKEN: usize = 16;

#[derive(Deserialize)]
struct TokenizeRequest {
    model: Option<String>,
    inputs: Inputs,
    add_special_tokens: Option<bool>,
    prompt_name: Option<String>,
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "expected inputs to be a string or a list of strings")]
enum Inputs {
    One(String),
    Many(Vec<String>),
}

#[derive(Deserialize)]
struct DecodeRequest {
    model: Option<String>,
    ids: Ids,
    skip_special_tokens: Option<bool>,
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "expected ids to be a list of tokens, or a list of these lists")]
enum Ids {
    One(Vec<u32>),
    Many(Vec<Vec<u32>>),
}

/// A token in an answer. The tokens that the tokenizer added have no place in the text.
#[derive(Serialize)]
struct Token {
    id: u32,
    text: String,
    special: bool,
    start: Option<usize>,
    stop: Option<usize>,
}

impl From<Piece> for Token {
    fn from(Piece { id, text, place }: Piece) -> Self {
        let (start, stop) = place.unzip();
        Self { id, text, special: place.is_none(), start, stop }
    }
}

impl From<TokenizerFault> for Fault {
    fn from(fault: TokenizerFault) -> Self {
        match fault {
            TokenizerFault::TooLong { .. } | TokenizerFault::TooManyTokens { .. } | TokenizerFault::Grows { .. } => {
                Self::Request(fault.to_string())
            }
            TokenizerFault::Failed(_) | TokenizerFault::File(_) => {
                Self::Server(StatusCode::INTERNAL_SERVER_ERROR, fault.to_string())
            }
        }
    }
}

/// Answers `POST /tokenize` with the tokens of each text.
pub(super) async fn tokenize(State(api): State<Api>, request: Request) -> Response {
    or_error(tokenized(&api, request).await)
}

async fn tokenized(api: &Api, request: Request) -> Result<Response, Fault> {
    let mut received: Received<TokenizeRequest> = receive(api, request).await?;
    let TokenizeRequest { model, inputs, add_special_tokens, prompt_name } = &mut received.request;
    let version = resolve(api, &received.parts.headers, model.as_deref(), Wanted::Tokens).await?;
    span::asked(&received.span, &version.spec().name, "", "");
    let texts = match std::mem::replace(inputs, Inputs::Many(Vec::new())) {
        Inputs::One(text) => vec![text],
        Inputs::Many(texts) => texts,
    };
    let (adds, prompt_name) = (add_special_tokens.unwrap_or(true), prompt_name.take());
    check_count(texts.len())?;
    let (prompt, tokenizer) = with_tokenizer(&version, |step| {
        let prompt = step.prompt(prompt_name.as_deref()).map(str::to_owned).map_err(Fault::Request)?;
        Ok((prompt, Arc::clone(step.tokenizer())))
    })?;
    texts.iter().try_for_each(|text| tokenizer.check_bytes(prompt.len() + text.len()))?;
    let bytes = texts.iter().map(|text| text.len() + prompt.len()).fold(0, usize::saturating_add);
    received.reserve(bytes.saturating_mul(BUILT_FOR_EACH_BYTE)).await?;
    let work = move || {
        let tokens = |text: String| tokenizer.pieces(&format!("{prompt}{text}"), adds);
        texts.into_iter().map(tokens).collect::<Result<Vec<Vec<Piece>>, _>>()
    };
    let rows = api.workers.run(bytes, work).await.map_err(Problem::from)??;
    let elements = rows.iter().map(Vec::len).sum::<usize>() * NUMBERS_OF_A_TOKEN;
    let tokens = |row: Vec<Piece>| row.into_iter().map(Token::from).collect::<Vec<_>>();
    send(api, &received.parts, elements, move || rows.into_iter().map(tokens).collect::<Vec<_>>()).await
}

/// Answers `POST /decode` with the texts of tokens.
pub(super) async fn decode(State(api): State<Api>, request: Request) -> Response {
    or_error(decoded(&api, request).await)
}

async fn decoded(api: &Api, request: Request) -> Result<Response, Fault> {
    let mut received: Received<DecodeRequest> = receive(api, request).await?;
    let DecodeRequest { model, ids, skip_special_tokens } = &mut received.request;
    let version = resolve(api, &received.parts.headers, model.as_deref(), Wanted::Tokens).await?;
    span::asked(&received.span, &version.spec().name, "", "");
    let lists = match std::mem::replace(ids, Ids::Many(Vec::new())) {
        Ids::One(ids) => vec![ids],
        Ids::Many(lists) => lists,
    };
    let skips = skip_special_tokens.unwrap_or(true);
    check_count(lists.len())?;
    let tokenizer = with_tokenizer(&version, |step| Ok(Arc::clone(step.tokenizer())))?;
    // The vocabulary says how long the text of a token is, so only the limit of all is known before.
    let most = tokenizer.options().max_bytes;
    received.reserve(most.saturating_mul(DECODED_FOR_EACH_BYTE)).await?;
    let bytes = lists.iter().map(|ids| size_of_val(&ids[..])).sum();
    let work = move || decode_all(&tokenizer, &lists, skips);
    let texts = api.workers.run(bytes, work).await.map_err(Problem::from)??;
    let elements = texts.iter().map(String::len).sum();
    send(api, &received.parts, elements, move || texts).await
}

/// Returns the texts of lists of tokens, which have at most as many bytes together as one text may have.
fn decode_all(tokenizer: &TextTokenizer, lists: &[Vec<u32>], skips: bool) -> Result<Vec<String>, Fault> {
    let most = tokenizer.options().max_bytes;
    let mut bytes = 0;
    let decode = |ids: &Vec<u32>| {
        let text = tokenizer.decode(ids, skips)?;
        bytes += text.len();
        if bytes > most { Err(TokenizerFault::TooLong { most, bytes }.into()) } else { Ok(text) }
    };
    lists.iter().map(decode).collect()
}
