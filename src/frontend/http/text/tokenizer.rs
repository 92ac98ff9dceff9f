//! The tokenizer of a model that takes texts. Without the feature `text` there are none.

#[cfg(feature = "text")]
use std::any::Any;

#[cfg(feature = "text")]
use super::run::Fault;
use crate::repository::ModelVersion;
#[cfg(feature = "text")]
use crate::text::{Tokenize, TokenizerOptions, Truncate};

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

/// Returns how the tokenizer of a version cuts texts; `None` without one.
#[cfg(feature = "text")]
fn tokenizer_options(version: &ModelVersion) -> Option<TokenizerOptions> {
    with_tokenizer(version, |step| Ok(*step.tokenizer().options())).ok()
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
