//! The tokenizers of models, as text-embeddings-inference gives access to them.

use std::sync::Arc;

use axum::{
    extract::{Request, State},
    response::Response,
};
use http::StatusCode;
use serde::{Deserialize, Serialize};

use super::{
    super::api::Api,
    fault::Fault,
    run::{Received, Wanted, check_count, receive, resolve, send},
    tei::or_error,
    tokenizer::{text_workers, with_tokenizer},
};
use crate::{
    budget::Reservation,
    executor::InferError,
    frontend::span,
    pipeline::{Progress, WorkerGroup},
    repository::ModelVersion,
    text::{Piece, TextTokenizer, Tokenize, TokenizerFault},
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
    let version = resolve(api, &received.parts, model.as_deref(), Wanted::Tokens).await?;
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
    let sized = texts.into_iter().map(|text| (prompt.len() + text.len(), text)).collect();
    let tokens = move |text: String| Ok(tokenizer.pieces(&format!("{prompt}{text}"), adds)?);
    let rows = for_each(&mut received, &version, sized, tokens).await?;
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
    let version = resolve(api, &received.parts, model.as_deref(), Wanted::Tokens).await?;
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
    let sized = lists.into_iter().map(|ids| (size_of_val(&ids[..]), ids)).collect();
    let texts = for_each(&mut received, &version, sized, decode_within(tokenizer, most, skips)).await?;
    let elements = texts.iter().map(String::len).sum();
    send(api, &received.parts, elements, move || texts).await
}

/// Returns the texts of lists of tokens, which have at most `most` bytes together.
fn decode_within(
    tokenizer: Arc<TextTokenizer>,
    most: usize,
    skips: bool,
) -> impl FnMut(Vec<u32>) -> Result<String, Fault> + Send {
    let mut bytes = 0;
    move |ids| {
        let text = tokenizer.decode(&ids, skips)?;
        bytes += text.len();
        if bytes > most { Err(TokenizerFault::TooLong { most, bytes }.into()) } else { Ok(text) }
    }
}

/// Calls `work` for each item, which comes with its bytes: here if they are few, else on the worker threads for texts.
/// What the request has reserved stays so until the work has ended, even if its client leaves before.
async fn for_each<R, T: Send + 'static, U: Send + 'static>(
    received: &mut Received<R>,
    version: &ModelVersion,
    items: Vec<(usize, T)>,
    work: impl FnMut(T) -> Result<U, Fault> + Send + 'static,
) -> Result<Vec<U>, Fault> {
    let bytes = items.iter().map(|(bytes, _)| *bytes).fold(0, usize::saturating_add);
    let (Some(workers), false) = (text_workers(version), Tokenize::is_short_work(bytes)) else {
        return items.into_iter().map(|(_, item)| item).map(work).collect();
    };
    let (done, held) = on_workers(&workers, received.take_reservation(), items, work).await?;
    received.give_reservation(held);
    done
}

/// Calls `work` for each item on worker threads, and gives the reservation back when that has ended.
async fn on_workers<T: Send + 'static, U: Send + 'static>(
    workers: &WorkerGroup,
    mut held: Reservation,
    items: Vec<(usize, T)>,
    mut work: impl FnMut(T) -> Result<U, Fault> + Send + 'static,
) -> Result<(Result<Vec<U>, Fault>, Reservation), InferError> {
    let mut items = items.into_iter();
    let effort = |items: &std::vec::IntoIter<(usize, T)>| {
        Tokenize::effort_of(items.as_slice().first().map_or(0, |(bytes, _)| *bytes))
    };
    let (first, mut done) = (effort(&items), Vec::with_capacity(items.len()));
    let piece = move || match items.next().map(|(_, item)| work(item)).transpose() {
        Err(fault) => Progress::Done((Err(fault), held.take())),
        Ok(made) => {
            done.extend(made);
            if items.len() > 0 {
                return Progress::Next(effort(&items));
            }
            Progress::Done((Ok(std::mem::take(&mut done)), held.take()))
        }
    };
    workers.run(first, None, piece).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        budget::Budget,
        pipeline::Workers,
        text::{DEFAULT_MAX_BYTES, TokenizerOptions, Truncate},
    };

    #[test]
    fn the_texts_of_all_lists_have_no_more_bytes_than_one_may_have() {
        let file = br#"{"version": "1.0", "added_tokens": [],
            "model": {"type": "WordLevel", "vocab": {"abcd": 0, "?": 1}, "unk_token": "?"}}"#;
        let (max_tokens, truncate, max_bytes) = (8, Truncate::Right, DEFAULT_MAX_BYTES);
        let options = TokenizerOptions { max_tokens, truncate, max_bytes, offsets: false, lowercase: false };
        let tokenizer = Arc::new(TextTokenizer::read(file, options).expect("a tokenizer"));
        let mut decode = decode_within(tokenizer, 9, true);
        assert_eq!(decode(vec![0]).ok().as_deref(), Some("abcd"));
        assert_eq!(decode(vec![0]).ok().as_deref(), Some("abcd"));
        assert!(matches!(decode(vec![0]), Err(Fault::Request(_))), "twelve bytes");
    }
    #[tokio::test]
    async fn work_of_a_client_that_has_left_ends_with_its_text_and_keeps_its_memory_until_then() {
        let budget = Budget::of_bytes(1 << 20);
        let mut held = Reservation::none(&budget);
        assert!(held.try_grow(4096));
        let (begun, mut has_begun) = tokio::sync::mpsc::unbounded_channel();
        let (release, released) = std::sync::mpsc::channel::<()>();
        let work = move |item: u32| {
            begun.send(item).unwrap_or_default();
            released.recv().unwrap_or_default();
            Ok(item)
        };
        let workers = Workers::new(1).texts;
        // The second text is too long for the turn of the first.
        let items = vec![(1, 0), (1 << 20, 1)];
        let request = tokio::spawn(async move { on_workers(&workers, held, items, work).await.map(|_| ()) });
        assert_eq!(has_begun.recv().await, Some(0));
        request.abort();
        drop(request.await);
        assert_eq!(budget.used(), 4096, "the first text is still worked on");
        drop(release);
        assert_eq!(has_begun.recv().await, None, "the second never is");
        while budget.used() > 0 {
            tokio::task::yield_now().await;
        }
    }
}
