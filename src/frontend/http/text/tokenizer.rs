//! The tokenizer of a model that takes texts. Without the feature `text` there are none.

#[cfg(feature = "text")]
use std::any::Any;

#[cfg(feature = "text")]
use super::item::request_bytes;
use super::{
    fault::Fault,
    item::{Item, Treatment},
};
use crate::repository::ModelVersion;
#[cfg(feature = "text")]
use crate::{
    budget::Reservation,
    executor::InferError,
    pipeline::WorkerGroup,
    text::{RowSize, Tokenize, TokenizerOptions, Truncate},
};

/// How a model cuts texts of too many tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cuts {
    /// Whether they lose their start; otherwise their end.
    pub(super) left: bool,
    /// Most tokens that stay.
    pub(super) max_tokens: usize,
}

/// Returns how a model cuts texts; `None` if it has no tokenizer in this server.
#[cfg(feature = "text")]
pub(super) fn cuts(version: &ModelVersion) -> Option<Cuts> {
    let options = tokenizer_options(version)?;
    Some(Cuts { left: options.truncate == Truncate::Left, max_tokens: options.max_tokens })
}

/// Without the feature `text` there are no tokenizers.
#[cfg(not(feature = "text"))]
pub(super) fn cuts(_: &ModelVersion) -> Option<Cuts> {
    None
}

/// Checks that no item is longer than the tokenizer of a version reads.
#[cfg(feature = "text")]
pub(super) fn check_lengths(version: &ModelVersion, items: &[Item]) -> Result<(), Fault> {
    let check = |step: &Tokenize| {
        let tokenizer = step.tokenizer();
        items.iter().try_for_each(|item| match item {
            Item::Text(text) => Ok(tokenizer.check_bytes(text.len())?),
            Item::Pair(text, pair) => Ok(tokenizer.check_bytes(text.len() + pair.len())?),
            Item::Tokens(ids) => step.check_count(ids.len()).map_err(Fault::Request),
        })
    };
    // Models without a tokenizer here, such as those with one in their graph, check for themselves.
    if cuts(version).is_some() { with_tokenizer(version, check) } else { Ok(()) }
}

/// Without the feature `text` there are no tokenizers.
#[cfg(not(feature = "text"))]
pub(super) fn check_lengths(_: &ModelVersion, _: &[Item]) -> Result<(), Fault> {
    Ok(())
}

/// Returns how the tokenizer of a version cuts texts; `None` without one.
#[cfg(feature = "text")]
fn tokenizer_options(version: &ModelVersion) -> Option<TokenizerOptions> {
    with_tokenizer(version, |step| Ok(*step.tokenizer().options())).ok()
}

/// Returns the worker threads for the texts of a version; `None` if it has no steps here.
#[cfg(feature = "text")]
pub(super) fn text_workers(version: &ModelVersion) -> Option<WorkerGroup> {
    version.servable().pipeline().map(|pipeline| pipeline.workers().texts.clone())
}

/// Checks that there can ever be room for the requests of all items, which are there at once, and their tokens.
#[cfg(feature = "text")]
pub(super) fn check_room(version: &ModelVersion, items: &[Item], treatment: &Treatment) -> Result<(), Fault> {
    let (Some(_), Some(pipeline)) = (cuts(version), version.servable().pipeline()) else { return Ok(()) };
    let built = with_tokenizer(version, |step| {
        let prompt = step.prompt(treatment.prompt.as_deref()).map_err(Fault::Request)?.len();
        let size = |item: &Item| match item {
            Item::Text(text) => RowSize { text: prompt + text.len(), ..RowSize::default() },
            Item::Pair(text, pair) => RowSize { text: prompt + text.len(), pair: Some(pair.len()), tokens: 0 },
            Item::Tokens(ids) => RowSize { tokens: ids.len(), ..RowSize::default() },
        };
        Ok(step.built_bytes_of(items.iter().map(size)))
    })?;
    let wanted = request_bytes(items, treatment).saturating_add(built);
    match Reservation::none(&pipeline.budgets().bytes).refusal(wanted) {
        None => Ok(()),
        Some(full) => Err(Fault::TooLarge(InferError::NoRoom(full).to_string())),
    }
}

/// Without the feature `text` there are no tokens.
#[cfg(not(feature = "text"))]
pub(super) fn check_room(_: &ModelVersion, _: &[Item], _: &Treatment) -> Result<(), Fault> {
    Ok(())
}

/// Calls `use_it` with the step that tokenizes the texts of a version.
#[cfg(feature = "text")]
pub(super) fn with_tokenizer<T>(
    version: &ModelVersion,
    use_it: impl FnOnce(&Tokenize) -> Result<T, Fault>,
) -> Result<T, Fault> {
    let mut steps = version.servable().pipeline().into_iter().flat_map(|pipeline| pipeline.built_in());
    let step = steps.find_map(|step| {
        let step: &dyn Any = &**step;
        step.downcast_ref::<Tokenize>()
    });
    let name = &version.spec().name;
    use_it(step.ok_or_else(|| Fault::Request(format!("the model '{name}' has no tokenizer in this server")))?)
}
