//! Submits texts to a model and takes its outputs.

use std::sync::Arc;

use axum::extract::Request;
use bytes::{BufMut, Bytes, BytesMut};
use futures_util::{TryFutureExt, future::try_join_all};
use http::{StatusCode, request::Parts};
use paternoster_executor::InferRequest;
use paternoster_model::{Dims, InputTensor, ModelSpec, element_count, text};
use paternoster_observe::{budget::Reservation, trace::Transport};
use paternoster_repository::{ModelVersion, Repository, ResolveError};
use serde::de::DeserializeOwned;
use tracing::{Instrument, Span};

pub(super) use super::item::{Treatment, Wanted};
use super::{
    super::{
        Problem,
        api::Api,
        body::{self, Limit},
        infer::{LONGEST_JSON_HERE_BYTES, pending_place},
    },
    fault::Fault,
    item::{Item, request_bytes},
    read::{built_bytes, read},
    rows::{Row, rows_of},
    scores::logistic,
    tokenizer::{check_items, check_room},
};
use crate::{clients::ClientPlace, intake::MOST_BUILT_HERE_BYTES, span};

/// Most texts of a request, as OpenAI allows.
pub(super) const MOST_TEXTS: usize = 2048;

/// Memory for the result of an item, beside its numbers.
const ROW_BYTES: usize = 256;

/// A request whose JSON has been read, with what it holds.
pub(super) struct Received<T> {
    pub(super) request: T,
    pub(super) parts: Parts,
    pub(super) span: Span,
    _place: Reservation,
    _client: Option<ClientPlace>,
    /// Of the body, of what parsing built, and of what is built from that.
    bytes: Reservation,
}

impl<T> Received<T> {
    /// Reserves what is built from the request.
    pub(super) async fn reserve(&mut self, bytes: usize) -> Result<(), Fault> {
        Ok(body::grow(&mut self.bytes, bytes).await?)
    }

    /// Hands over what is reserved, for work that may last longer than the request.
    pub(super) fn take_reservation(&mut self) -> Reservation {
        self.bytes.take()
    }

    /// Takes back what [`Self::take_reservation`] handed over.
    pub(super) fn give_reservation(&mut self, held: Reservation) {
        self.bytes = held;
    }
}

/// The JSON of a request that has been received, with what it holds.
pub(super) struct Body {
    json: Bytes,
    pub(super) parts: Parts,
    span: Span,
    place: Reservation,
    client: Option<ClientPlace>,
    held: Reservation,
}

/// Receives and reads the JSON of a request, within the server's budgets.
pub(super) async fn receive<T: DeserializeOwned + Send + 'static>(
    api: &Api,
    request: Request,
) -> Result<Received<T>, Fault> {
    receive_body(api, request).await?.read(api).await
}

/// Receives the JSON of a request.
pub(super) async fn receive_body(api: &Api, request: Request) -> Result<Body, Fault> {
    let span = span::open(Transport::Http);
    let (parts, body) = request.into_parts();
    let holds = api.holds(&parts.extensions);
    let client = api.client_place(&holds, &parts.headers).await;
    let limit = Limit::Texts(api.max_input_bytes);
    let mut message = body::read(body, &parts.headers, limit, &holds.share, &api.workers).await?;
    let place = pending_place(api)?;
    body::grow(&mut message.held, built_bytes(&message.bytes)).await?;
    Ok(Body { json: message.bytes, parts, span, place, client, held: message.held })
}

impl Body {
    /// Reads the whole.
    pub(super) async fn read<T: DeserializeOwned + Send + 'static>(self, api: &Api) -> Result<Received<T>, Fault> {
        let request = self.part(api).await?;
        let Self { parts, span, place, client, held, .. } = self;
        Ok(Received { request, parts, span, _place: place, _client: client, bytes: held })
    }

    /// Reads some of its keys.
    pub(super) async fn part<T: DeserializeOwned + Send + 'static>(&self, api: &Api) -> Result<T, Fault> {
        let bytes = self.json.clone();
        let length = bytes.len();
        let parse = move || read(&bytes);
        if length <= LONGEST_JSON_HERE_BYTES {
            return parse();
        }
        api.workers.run(length, parse).await.map_err(Problem::from)?
    }
}

/// Returns the model of a request: that of its name, or the only one that can answer it. If no loaded one can, the only
/// one that takes texts is loaded.
pub(super) async fn resolve(
    api: &Api,
    parts: &Parts,
    name: Option<&str>,
    wanted: Wanted,
) -> Result<Arc<ModelVersion>, Fault> {
    resolve_any(api, parts, name, &[wanted]).await
}

/// As [`resolve`], of a model that gives one of these.
pub(super) async fn resolve_any(
    api: &Api,
    parts: &Parts,
    name: Option<&str>,
    wanted: &[Wanted],
) -> Result<Arc<ModelVersion>, Fault> {
    let is_able = |spec: &ModelSpec| wanted.iter().any(|wanted| wanted.is_given_by(spec));
    let outputs: Vec<String> = wanted.iter().map(|wanted| format!("'{}'", wanted.output())).collect();
    let outputs = outputs.join(" or ");
    let repository = &api.services.repository;
    let name = match name.filter(|name| !name.is_empty()) {
        Some(name) => name.to_owned(),
        None => only_able(repository, is_able, &outputs)?,
    };
    let version = repository.route_or_load(&name, "", &api.caller(parts)).await;
    let version = version.map_err(|error| match error {
        // Nothing that a client should repeat soon.
        ResolveError::NotLoadable { .. } => Fault::Server(StatusCode::SERVICE_UNAVAILABLE, error.to_string()),
        ResolveError::Loading { .. } => Fault::Starting(error.to_string()),
        error => Problem::from(&error).into(),
    })?;
    if is_able(version.spec()) {
        return Ok(version);
    }
    Err(Fault::Request(format!("the model '{name}' does not take texts and give {outputs} of each")))
}

/// Returns the name of the only model that can answer a request without one.
fn only_able(repository: &Repository, is_able: impl Fn(&ModelSpec) -> bool, outputs: &str) -> Result<String, Fault> {
    let mut able = repository.loaded();
    able.retain(|version| is_able(version.spec()));
    let mut names: Vec<String> = able.iter().map(|version| version.spec().name.clone()).collect();
    names.dedup();
    if names.is_empty() {
        names = repository.loadable_texts();
    }
    match names.len() {
        1 => Ok(names.remove(0)),
        0 if repository.is_starting() => {
            Err(Fault::Starting("Server not ready: models are still being loaded".to_owned()))
        }
        0 => Err(Fault::Model(format!("no model takes texts and gives {outputs}"))),
        _ => Err(Fault::Request(format!("several models can answer, expected \"model\": one of {}", names.join(", ")))),
    }
}

/// Runs all items of a request. Each is batched by itself; the answers are in the order of the items. What they take is
/// reserved: before they run, where the model says how much that is.
pub(super) async fn run<T>(
    api: &Api,
    received: &mut Received<T>,
    version: &Arc<ModelVersion>,
    wanted: Wanted,
    (items, treatment): (Vec<Item>, Treatment),
) -> Result<Vec<Row>, Fault> {
    let (count, most_rows) = (items.len(), version.spec().max_batch_size as usize);
    check_count(treatment.list, count)?;
    check_items(version, &items, &treatment)?;
    check_room(version, &items, &treatment)?;
    let list = treatment.list;
    let requests = built(api, received, version, most_rows, (items, treatment)).await?;
    let expected = output_bytes(version.spec(), wanted).saturating_add(ROW_BYTES).saturating_mul(count);
    received.reserve(expected).await?;
    let mut first = 0;
    let answers = requests.into_iter().map(|request| {
        let own = first;
        first += request.rows as usize;
        version.submit(request).map_err(move |error| of_element(error.into(), list, own))
    });
    let responses = try_join_all(answers).instrument(received.span.clone()).await?;
    let taken = responses.iter().flat_map(|response| &response.outputs).map(|output| output.data.len()).sum::<usize>();
    received.reserve(taken.saturating_sub(expected)).await?;
    let mut rows = Vec::with_capacity(count);
    for response in responses {
        rows.extend(rows_of(version.spec(), wanted, response)?);
    }
    Ok(rows)
}

/// Returns the bytes of an output for one item, as far as the model says.
fn output_bytes(spec: &ModelSpec, wanted: Wanted) -> usize {
    let dims = spec.output_index(wanted.output()).map(|number| &spec.outputs[number].dims[..]);
    let elements = dims.and_then(element_count).unwrap_or(0);
    elements.saturating_mul(size_of::<f32>())
}

/// Builds the requests of items that were checked, each with at most `most_rows` of them.
pub(super) async fn built<T>(
    api: &Api,
    received: &mut Received<T>,
    version: &Arc<ModelVersion>,
    most_rows: usize,
    (items, treatment): (Vec<Item>, Treatment),
) -> Result<Vec<InferRequest>, Fault> {
    let built = request_bytes(&items, &treatment);
    received.reserve(built).await?;
    let version = Arc::clone(version);
    let build = move || by_rows(version.spec(), &items, &treatment, most_rows.max(1));
    if built <= MOST_BUILT_HERE_BYTES { build() } else { api.workers.run(built, build).await.map_err(Problem::from)? }
}

/// Checks the number of texts of a request.
pub(super) fn check_count(list: &str, count: usize) -> Result<(), Fault> {
    match count {
        0 => Err(Fault::Request(format!("{list}: expected at least one text"))),
        1..=MOST_TEXTS => Ok(()),
        _ => Err(Fault::Request(format!("{list}: expected at most {MOST_TEXTS} texts, but found {count}"))),
    }
}

/// Names the element of the body where a fault names the row of a request, whose own first row is element `first`.
fn of_element(fault: Fault, list: &str, first: usize) -> Fault {
    let Fault::Request(text) = &fault else { return fault };
    let at = if text.starts_with("row ") { Some(0) } else { text.find(": row ").map(|at| at + ": ".len()) };
    let named = at.and_then(|at| {
        let (row, what) = text[at..].strip_prefix("row ")?.split_once(": ")?;
        Some(format!("{list}[{}]: {}{what}", first + row.parse::<usize>().ok()?, &text[..at]))
    });
    named.map_or(fault, Fault::Request)
}

fn by_rows(
    spec: &ModelSpec,
    items: &[Item],
    treatment: &Treatment,
    most_rows: usize,
) -> Result<Vec<InferRequest>, Fault> {
    // Tokens of different numbers make no common tensor.
    let are_alike = |one: &Item, other: &Item| std::mem::discriminant(one) == std::mem::discriminant(other);
    let alike = items.chunk_by(|one, other| are_alike(one, other) && !matches!(one, Item::Tokens(_)));
    alike.flat_map(|alike| alike.chunks(most_rows)).map(|rows| request(spec, rows, treatment)).collect()
}

/// Builds the request of some items of one kind.
fn request(spec: &ModelSpec, items: &[Item], treatment: &Treatment) -> Result<InferRequest, Fault> {
    let mut inputs: Vec<Option<InputTensor>> = vec![None; spec.inputs.len()];
    let mut set = |name: &str, tensor: InputTensor| {
        let number = spec.input_index(name);
        let number = number.ok_or_else(|| Fault::Request(format!("the model '{}' has no input {name}", spec.name)))?;
        inputs[number] = Some(tensor);
        Ok::<_, Fault>(())
    };
    let count = items.len();
    let texts = |of: fn(&Item) -> Option<&str>| strings(items.iter().filter_map(of), count, spec.has_batch_axis());
    match &items[0] {
        Item::Tokens(ids) => {
            let data: Vec<u8> = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
            set(text::TOKENS, InputTensor { shape: Dims::from_slice(&[1, ids.len() as i64]), data: data.into() })?;
        }
        Item::Text(_) => set(text::TEXT, texts(Item::first))?,
        Item::Pair(..) => {
            set(text::TEXT, texts(Item::first))?;
            set(text::PAIR, texts(Item::second))?;
        }
    }
    let repeated =
        |bytes: &[u8]| InputTensor { shape: shape(count, spec.has_batch_axis()), data: bytes.repeat(count).into() };
    if let Some(prompt) = &treatment.prompt {
        set(text::PROMPT, strings(std::iter::repeat_n(prompt.as_str(), count), count, spec.has_batch_axis()))?;
    }
    // A model that never truncates needs no permission to do so.
    if let Some(truncate) =
        treatment.truncate.filter(|truncate| !truncate || spec.input_index(text::TRUNCATE).is_some())
    {
        set(text::TRUNCATE, repeated(&[u8::from(truncate)]))?;
    }
    if let Some(dimensions) = treatment.dimensions {
        let wide = |_| Fault::Request(format!("expected dimensions up to {}, but found {dimensions}", i32::MAX));
        set(text::DIMENSIONS, repeated(&i32::try_from(dimensions).map_err(wide)?.to_le_bytes()))?;
    }
    if let Some(normalize) = treatment.normalize {
        set(text::NORMALIZE, repeated(&[u8::from(normalize)]))?;
    }
    Ok(InferRequest::new(u32::try_from(count).unwrap_or(u32::MAX), inputs))
}

fn shape(rows: usize, batched: bool) -> Dims {
    if batched { Dims::from_slice(&[rows as i64, 1]) } else { Dims::from_slice(&[1]) }
}

/// Builds a tensor of one string for each row.
fn strings<'a>(texts: impl Iterator<Item = &'a str>, rows: usize, batched: bool) -> InputTensor {
    let mut data = BytesMut::new();
    for text in texts {
        // A body of JSON is shorter than 2^32 bytes.
        data.put_u32_le(text.len() as u32);
        data.put_slice(text.as_bytes());
    }
    InputTensor { shape: shape(rows, batched), data: data.freeze() }
}

/// Scores of documents for a query by a model of a single class, the highest first, and the number of tokens.
pub(super) async fn rank<T>(
    api: &Api,
    received: &mut Received<T>,
    version: &Arc<ModelVersion>,
    (query, documents): (&str, Vec<String>),
    (treatment, raw): (Treatment, bool),
) -> Result<(Vec<(usize, f32)>, u64), Fault> {
    let query: Arc<str> = query.into();
    let items = documents.into_iter().map(|document| Item::Pair(Arc::clone(&query), document)).collect();
    let rows = run(api, received, version, Wanted::Classes, (items, treatment)).await?;
    let tokens = rows.iter().map(|row| row.tokens).sum();
    let mut ranked = Vec::with_capacity(rows.len());
    for (number, row) in rows.iter().enumerate() {
        let mut values = row.values();
        let (Some(logit), 0) = (values.next(), values.len()) else {
            let (name, found) = (&version.spec().name, row.values().len());
            let text = format!("the model '{name}' has {found} classes; expected one, which scores pairs");
            return Err(Fault::Request(text));
        };
        ranked.push((number, logit));
    }
    // By the logit: scores of large ones are the same number.
    ranked.sort_by(|(_, one), (_, other)| other.total_cmp(one));
    if !raw {
        ranked.iter_mut().for_each(|(_, score)| *score = logistic(*score));
    }
    Ok((ranked, tokens))
}

#[cfg(test)]
mod tests {
    use paternoster_model::{DataType, TensorSpec};

    use super::*;

    #[test]
    fn the_row_of_a_request_is_named_as_the_element_of_the_body() {
        let named = |text: &str| match of_element(Fault::Request(text.to_owned()), "inputs", 3) {
            Fault::Request(text) => text,
            _ => panic!("it is the request's fault"),
        };
        assert_eq!(named("row 2: too long"), "inputs[5]: too long");
        assert_eq!(named("in pipeline 'p', step 0: row 0: too long"), "inputs[3]: in pipeline 'p', step 0: too long");
        for other in ["too long", "row: too long", "row many: too long", "a row 1: too long"] {
            assert_eq!(named(other), other);
        }
    }

    #[test]
    fn dimensions_that_no_vector_has_are_refused_as_they_came() {
        let inputs = [(text::TEXT, DataType::Bytes), (text::DIMENSIONS, DataType::Int32)];
        let inputs = inputs.map(|(name, datatype)| TensorSpec::new(name, datatype, &[1])).to_vec();
        let (name, outputs, symbols) = ("m".to_owned(), Vec::new(), Vec::new());
        let spec = ModelSpec { name, version: 1, max_batch_size: 1, inputs, outputs, symbols, decoupled: false };
        let of = |dimensions| {
            let treatment = Treatment { dimensions: Some(dimensions), ..Treatment::default() };
            request(&spec, &[Item::Text("a".to_owned())], &treatment).map_err(|fault| fault.message().to_owned())
        };
        assert!(of(i32::MAX as u32).is_ok());
        let refusal = "expected dimensions up to 2147483647, but found 2147483648".to_owned();
        assert_eq!(of(1 << 31).err(), Some(refusal));
    }
}
