//! The tokenizers of models, as text-embeddings-inference gives access to them.

use std::sync::Arc;

use axum::{
    extract::{Request, State},
    response::Response,
};
use http::StatusCode;
use paternoster_executor::InferError;
use paternoster_observe::budget::Reservation;
use paternoster_pipeline::{Progress, WorkerGroup};
use paternoster_repository::ModelVersion;
use paternoster_text::{Piece, TextTokenizer, Tokenize, TokenizerFault};
use serde::{Deserialize, Serialize, Serializer};

use super::{
    super::api::Api,
    fault::Fault,
    inputs::{Inputs, Listed},
    item::Item,
    run::{Received, Wanted, check_count, receive, resolve},
    tei::or_error,
    tokenizer::{text_workers, with_tokenizer},
    written::send,
};
use crate::span;

/// Bytes that are built for each byte of the text of tokens.
const DECODED_FOR_EACH_BYTE: usize = 16;

/// Bytes that are built for each token of a list, beside its text.
const DECODED_FOR_EACH_TOKEN: usize = 128;

/// The numbers in a response for each token, as [`send`] counts them.
const NUMBERS_OF_A_TOKEN: usize = 16;

#[derive(Deserialize)]
struct TokenizeRequest {
    model: Option<String>,
    inputs: Listed<String>,
    add_special_tokens: Option<bool>,
    prompt_name: Option<String>,
}

#[derive(Deserialize)]
struct DecodeRequest {
    model: Option<String>,
    ids: Inputs,
    skip_special_tokens: Option<bool>,
}

/// A token in a response. The tokens that the tokenizer added have no place in the text.
#[derive(Serialize)]
struct Token<'a> {
    id: u32,
    text: &'a str,
    special: bool,
    start: Option<usize>,
    stop: Option<usize>,
}

impl<'a> From<&'a Piece> for Token<'a> {
    fn from(Piece { id, text, place }: &'a Piece) -> Self {
        let (start, stop) = place.unzip();
        Self { id: *id, text, special: place.is_none(), start, stop }
    }
}

/// The tokens of a text, which are written without building them again.
struct Pieces(Vec<Piece>);

impl Serialize for Pieces {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.iter().map(Token::from))
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
    let texts = match std::mem::take(inputs) {
        Listed::Text(text) => vec![text],
        Listed::List(texts) => texts,
    };
    let (adds, prompt_name) = (add_special_tokens.unwrap_or(true), prompt_name.take());
    check_count("inputs", texts.len())?;
    let (prompt, tokenizer) = with_tokenizer(&version, |step| {
        let prompt = step.prompt(prompt_name.as_deref()).map(str::to_owned).map_err(Fault::Request)?;
        Ok((prompt, Arc::clone(step.tokenizer())))
    })?;
    texts.iter().try_for_each(|text| tokenizer.check_bytes(prompt.len() + text.len()))?;
    received.reserve(tokenizer.pieces_bytes(texts.iter().map(|text| prompt.len() + text.len()))).await?;
    let (of_work, of_prompt) = (Arc::clone(&tokenizer), prompt.clone());
    let work = move |text: &String| of_work.work(&[&of_prompt, text], false);
    let tokens = move |text: String| Ok(Pieces(tokenizer.pieces(&format!("{prompt}{text}"), adds)?));
    let rows = for_each(&mut received, &version, texts, work, tokens).await?;
    let elements = rows.iter().map(|Pieces(pieces)| pieces.len()).sum::<usize>() * NUMBERS_OF_A_TOKEN;
    send(api, &mut received, elements, rows).await
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
    let lists = std::mem::take(ids).0.into_iter().enumerate().map(ids_of).collect::<Result<Vec<_>, _>>()?;
    let skips = skip_special_tokens.unwrap_or(true);
    check_count("ids", lists.len())?;
    let tokenizer = with_tokenizer(&version, |step| Ok(Arc::clone(step.tokenizer())))?;
    // The vocabulary says how long the text of a token is, so only the limit of all is known before.
    let most = tokenizer.options().max_bytes;
    // A longer list is refused by its length.
    let tokens = lists.iter().map(Vec::len).max().unwrap_or(0).min(most);
    let of_tokens = tokens.saturating_mul(DECODED_FOR_EACH_TOKEN);
    received.reserve(most.saturating_mul(DECODED_FOR_EACH_BYTE).saturating_add(of_tokens)).await?;
    let work = |ids: &Vec<u32>| size_of_val(&ids[..]);
    let texts = for_each(&mut received, &version, lists, work, decode_within(tokenizer, most, skips)).await?;
    let elements = texts.iter().map(String::len).sum();
    send(api, &mut received, elements, texts).await
}

/// Returns the tokens of a list, which has this number.
fn ids_of((number, item): (usize, Item)) -> Result<Vec<u32>, Fault> {
    let wrong = |fault: &str| Fault::Request(format!("ids: list {number}: {fault}"));
    let Item::Tokens(ids) = item else { return Err(wrong("expected numbers of tokens, but found a text")) };
    let ids = ids.into_iter().map(u32::try_from).collect::<Result<_, _>>();
    ids.map_err(|_| wrong("expected numbers of tokens from 0 to 4294967295"))
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

/// Makes something of each item: here if that is little work, else on the worker threads for texts. `work` says about
/// how many bytes of usual text an item is. What the request has reserved stays so until the work has ended, even if
/// its client leaves before.
async fn for_each<R, T: Send + 'static, U: Send + 'static>(
    received: &mut Received<R>,
    version: &ModelVersion,
    items: Vec<T>,
    work: impl Fn(&T) -> usize + Send + 'static,
    make: impl FnMut(T) -> Result<U, Fault> + Send + 'static,
) -> Result<Vec<U>, Fault> {
    let mut together = 0_usize;
    let is_short = items.iter().all(|item| {
        together = together.saturating_add(work(item));
        Tokenize::is_short_work(together)
    });
    let (Some(workers), false) = (text_workers(version), is_short) else {
        return items.into_iter().map(make).collect();
    };
    let (done, held) = on_workers(&workers, received.take_reservation(), items, work, make).await?;
    received.give_reservation(held);
    done
}

/// Makes something of each item on worker threads, and gives the reservation back when that has ended.
async fn on_workers<T: Send + 'static, U: Send + 'static>(
    workers: &WorkerGroup,
    mut held: Reservation,
    items: Vec<T>,
    work: impl Fn(&T) -> usize + Send + 'static,
    mut make: impl FnMut(T) -> Result<U, Fault> + Send + 'static,
) -> Result<(Result<Vec<U>, Fault>, Reservation), InferError> {
    let mut items = items.into_iter();
    let effort = move |items: &std::vec::IntoIter<T>| Tokenize::effort_of(items.as_slice().first().map_or(0, &work));
    let (first, mut done) = (effort(&items), Vec::with_capacity(items.len()));
    let piece = move || match items.next().map(&mut make).transpose() {
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
    use paternoster_observe::budget::Budget;
    use paternoster_pipeline::Workers;
    use paternoster_text::{DEFAULT_MAX_BYTES, TokenizerOptions, Truncate};

    use super::*;

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
        let long = |item: &u32| if *item == 0 { 1 } else { 1 << 20 };
        let request = tokio::spawn(async move { on_workers(&workers, held, vec![0, 1], long, work).await.map(|_| ()) });
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
