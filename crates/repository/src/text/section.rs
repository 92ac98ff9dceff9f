//! The section `text` of a configuration, and the names in it.

use paternoster_config::model::{PoolingName, Side, Text, TextTask};
use paternoster_text::{Pooling, TextModelLayout, TextModelTask, Truncate};

use crate::LoadError;

/// Puts what the configuration says in place of what the files say.
pub(super) fn override_layout(layout: &mut TextModelLayout, section: &Text) -> Result<(), LoadError> {
    let (mut labels, mut given) = (Vec::new(), (Pooling::Mean, false));
    let multi_label = matches!(layout.task, TextModelTask::Classify { multi_label: true, .. });
    match &layout.task {
        TextModelTask::Embed { pooling, normalize } => given = (*pooling, *normalize),
        TextModelTask::Classify { labels: known, .. } | TextModelTask::ClassifyTokens { labels: known } => {
            labels.clone_from(known)
        }
    }
    match section.task {
        Some(TextTask::Embed) => layout.task = TextModelTask::Embed { pooling: given.0, normalize: given.1 },
        Some(TextTask::Classify) => layout.task = TextModelTask::Classify { labels, multi_label },
        Some(TextTask::ClassifyTokens) => layout.task = TextModelTask::ClassifyTokens { labels },
        None => {}
    }
    if section.task.is_some() {
        layout.other_architecture = None;
    }
    match &mut layout.task {
        TextModelTask::Embed { pooling, normalize } => {
            *pooling = section.pooling.map_or(*pooling, pooling_of);
            *normalize = section.normalize.unwrap_or(*normalize);
        }
        TextModelTask::Classify { .. } | TextModelTask::ClassifyTokens { .. } => {
            if section.pooling.is_some() || section.normalize.is_some() {
                return Err(LoadError::settings("text: pooling and normalize go with the task embed"));
            }
        }
    }
    if let Some(tokens) = section.max_tokens {
        let tokens = tokens.0 as usize;
        if let Some(positions) = layout.positions.filter(|&positions| tokens > positions) {
            return Err(LoadError::settings(format!(
                "text.max_tokens: expected at most {positions}, for which the model has positions, but found {tokens}"
            )));
        }
        layout.max_tokens = tokens;
    }
    if let Some(side) = section.truncate {
        layout.truncate = truncate_of(side);
    }
    if let Some(prompts) = &section.prompts {
        layout.prompts = prompts.iter().map(|(name, prompt)| (name.0.clone(), prompt.clone())).collect();
        layout.default_prompt = None;
    }
    if let Some(name) = &section.default_prompt {
        if !layout.prompts.contains_key(&name.0) {
            return Err(LoadError::settings(format!("text.default_prompt: there is no prompt '{}'", name.0)));
        }
        layout.default_prompt = Some(name.0.clone());
    }
    Ok(())
}

pub(super) fn truncate_of(side: Side) -> Truncate {
    match side {
        Side::Left => Truncate::Left,
        Side::Right => Truncate::Right,
    }
}

pub(super) fn pooling_of(name: PoolingName) -> Pooling {
    match name {
        PoolingName::Mean => Pooling::Mean,
        PoolingName::Cls => Pooling::Cls,
        PoolingName::Last => Pooling::Last,
        PoolingName::WeightedMean => Pooling::WeightedMean,
        PoolingName::Max => Pooling::Max,
        PoolingName::MeanSqrtLen => Pooling::MeanSqrtLen,
        PoolingName::Done => Pooling::Done,
    }
}

pub(super) fn name_of(pooling: Pooling) -> PoolingName {
    match pooling {
        Pooling::Mean => PoolingName::Mean,
        Pooling::Cls => PoolingName::Cls,
        Pooling::Last => PoolingName::Last,
        Pooling::WeightedMean => PoolingName::WeightedMean,
        Pooling::Max => PoolingName::Max,
        Pooling::MeanSqrtLen => PoolingName::MeanSqrtLen,
        Pooling::Done => PoolingName::Done,
    }
}
