//! `POST /embed_all` of text-embeddings-inference: the vectors of all tokens of a text, which other routes pool.

use std::{any::Any, sync::Arc};

use axum::{
    extract::{Request, State},
    response::Response,
};
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use http::StatusCode;
use paternoster_executor::OutputTensor;
use paternoster_model::{DataType, text};
use paternoster_pipeline::{BuiltIn, Pipeline, TensorIx};
use paternoster_repository::ModelVersion;
use paternoster_text::{Pooling, PoolingStep, STATES, floats};
use serde::{Deserialize, Serialize, Serializer};
use tracing::Instrument;

use super::{
    super::api::Api,
    fault::Fault,
    inputs::Inputs,
    rows::check_finite,
    run::{Received, Treatment, Wanted, built, check_count, receive, resolve},
    tei::{Direction, check_direction, or_error},
    tokenizer::check_items,
    written::send,
};
use crate::span;

/// Texts that run at a time. The response takes far more memory than that of `/embed`, and is reserved as it grows.
const MOST_AT_A_TIME: usize = 64;

/// How much memory the vectors of a text take for each byte of them, while they are checked and written.
const NUMBERS: usize = 3;

#[derive(Deserialize)]
struct EmbedAllRequest {
    model: Option<String>,
    inputs: Inputs,
    truncate: Option<bool>,
    truncation_direction: Option<Direction>,
    prompt_name: Option<String>,
}

/// Answers with a list of vectors for each text.
pub(super) async fn embed_all(State(api): State<Api>, request: Request) -> Response {
    or_error(embedded(&api, request).await)
}

async fn embedded(api: &Api, request: Request) -> Result<Response, Fault> {
    let mut received: Received<EmbedAllRequest> = receive(api, request).await?;
    let EmbedAllRequest { model, inputs, truncate, truncation_direction, prompt_name } = &mut received.request;
    let version = resolve(api, &received.parts, model.as_deref(), Wanted::Vectors).await?;
    check_direction(&version, *truncation_direction)?;
    span::asked(&received.span, &version.spec().name, "", "");
    let Inputs(items) = std::mem::take(inputs);
    let treatment =
        Treatment { list: "inputs", prompt: prompt_name.take(), truncate: *truncate, ..Treatment::default() };
    let (pipeline, tensor, datatype) = with_tokens(&version)?;
    check_count(treatment.list, items.len())?;
    check_items(&version, &items, &treatment)?;
    // One text each: rows of different lengths would be padded.
    let requests = built(api, &mut received, &version, 1, (items, treatment)).await?;
    let answers = requests.into_iter().map(|request| pipeline.submit_for(tensor, request));
    let mut answers = stream::iter(answers).buffered(MOST_AT_A_TIME);
    let span = received.span.clone();
    let mut texts = Vec::new();
    while let Some(answer) = answers.next().instrument(span.clone()).await {
        let answer = answer?;
        received.reserve(answer.outputs.iter().map(|output| output.data.len()).sum::<usize>() * NUMBERS).await?;
        texts.push(vectors_of(&version, &answer.outputs, datatype)?);
    }
    let elements = texts.iter().map(|text| text.data.len() / size_of::<f32>()).sum();
    send(api, &mut received, elements, texts).await
}

/// Returns the pipeline of a model, and the tensor in it that has the vectors of tokens: what it pools, or what its
/// program gives beside the vector of the text.
fn with_tokens(version: &ModelVersion) -> Result<(&Arc<Pipeline>, TensorIx, DataType), Fault> {
    let name = &version.spec().name;
    let missing = || Fault::Request(format!("the model '{name}' gives vectors of texts, and none of their tokens"));
    let pipeline = version.servable().pipeline().ok_or_else(missing)?;
    let pools = |step: &dyn BuiltIn| {
        let step: &dyn Any = step;
        step.downcast_ref::<PoolingStep>().is_some_and(|pool| pool.options().pooling != Pooling::Done)
    };
    let tensor = pipeline.input_of(pools, STATES).unwrap_or(text::TOKEN_EMBEDDINGS);
    let (tensor, datatype) = pipeline.tensor(tensor).ok_or_else(missing)?;
    Ok((pipeline, tensor, datatype))
}

/// The vectors of a text's tokens.
struct TokenVectors {
    data: Bytes,
    datatype: DataType,
    /// Numbers of a vector.
    width: usize,
}

impl Serialize for TokenVectors {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(floats(&self.data, self.datatype).chunks_exact(self.width))
    }
}

/// Checks the only output of one text.
fn vectors_of(version: &ModelVersion, outputs: &[OutputTensor], datatype: DataType) -> Result<TokenVectors, Fault> {
    let spec = version.spec();
    let wrong = || {
        let text = format!("expected a vector for each token from the model '{}'", spec.name);
        Fault::Server(StatusCode::INTERNAL_SERVER_ERROR, text)
    };
    let [OutputTensor { shape, data }] = outputs else { return Err(wrong()) };
    let [1, _, width] = shape[..] else { return Err(wrong()) };
    let width = usize::try_from(width).ok().filter(|&width| width > 0).ok_or_else(wrong)?;
    check_finite(spec, floats(data, datatype).into_iter())?;
    Ok(TokenVectors { data: data.clone(), datatype, width })
}
