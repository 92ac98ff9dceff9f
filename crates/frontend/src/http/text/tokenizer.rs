//! The tokenizer of a model that takes texts. Without the feature `text` there are none.

#[cfg(feature = "text")]
use std::any::Any;

#[cfg(feature = "text")]
use paternoster_executor::InferError;
#[cfg(feature = "text")]
use paternoster_observe::budget::Reservation;
#[cfg(feature = "text")]
use paternoster_pipeline::WorkerGroup;
use paternoster_repository::ModelVersion;
#[cfg(feature = "text")]
use paternoster_text::{RowSize, Tokenize, TokenizerOptions, Truncate};

#[cfg(feature = "text")]
use super::item::request_bytes;
use super::{
    fault::Fault,
    item::{Item, Treatment},
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

/// Whether a model has a prompt of this name.
#[cfg(feature = "text")]
pub(super) fn has_prompt(version: &ModelVersion, name: &str) -> bool {
    with_tokenizer(version, |step| step.prompt(Some(name)).map_err(Fault::Request).map(drop)).is_ok()
}

/// Without the feature `text` there are no prompts.
#[cfg(not(feature = "text"))]
pub(super) fn has_prompt(_: &ModelVersion, _: &str) -> bool {
    false
}

/// Checks that the tokenizer of a version reads each item: that texts are short enough, and tokens are in the
/// vocabulary.
#[cfg(feature = "text")]
pub(super) fn check_items(version: &ModelVersion, items: &[Item], treatment: &Treatment) -> Result<(), Fault> {
    let may_truncate = treatment.truncate.unwrap_or(true);
    let check = |step: &Tokenize| {
        let check_bytes = |bytes| step.tokenizer().check_bytes(bytes).map_err(|fault| fault.to_string());
        items.iter().enumerate().try_for_each(|(number, item)| {
            let checked = match item {
                Item::Text(text) => check_bytes(text.len()),
                Item::Pair(text, pair) => check_bytes(text.len() + pair.len()),
                Item::Tokens(ids) => step.tokens(ids, may_truncate).map(drop),
            };
            let place = if items.len() == 1 { String::new() } else { format!("[{number}]") };
            checked.map_err(|fault| Fault::Request(format!("{}{place}: {fault}", treatment.list)))
        })
    };
    // Models without a tokenizer here, such as those with one in their graph, check for themselves.
    if cuts(version).is_some() { with_tokenizer(version, check) } else { Ok(()) }
}

/// Without the feature `text` there are no tokenizers.
#[cfg(not(feature = "text"))]
pub(super) fn check_items(_: &ModelVersion, _: &[Item], _: &Treatment) -> Result<(), Fault> {
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
