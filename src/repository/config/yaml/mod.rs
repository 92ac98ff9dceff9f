//! `model.yaml`: our own form of a model's configuration, read into the same `ModelConfig` that `config.pbtxt` gives.
//!
//! `tree` turns text into nodes, `read` reads them with keys and places, and the files beside them fill in the
//! parts of the configuration. Whatever `ModelConfig` has no field for goes into `parameters`
//! ([`crate::repository::config::params`]).

mod batching;
mod queueing;
mod read;
mod sequences;
mod stages;
mod tensors;
mod tree;
mod unfold;
mod warmup;

pub(super) use tree::{Trail, locate};

use std::str::FromStr;

use self::read::{Reader, Section, Value};
use super::{
    ConfigError, Origin, bounds,
    engine::ENGINE,
    lengths::{self, LENGTHS},
    params,
    pb::{self, model_instance_group::Kind, model_version_policy as version_policy},
    precision::PRECISION,
};
use crate::engine::{OnnxEngine, Precision};

/// More text than any model needs.
const MAX_BYTES: usize = 128 << 10;

const KEYS: [&str; 18] = [
    "name",
    "backend",
    "engine",
    "program",
    "max_batch_size",
    "version_policy",
    "inputs",
    "outputs",
    "instance",
    "decoupled",
    "stages",
    "exits",
    "cells",
    "unfold",
    "sequence_batching",
    "batching",
    "warmup",
    "parameters",
];

/// Reads a `model.yaml`. `file` is the name that errors carry.
///
/// # Errors
/// For text that is too large or not YAML, for unknown and repeated keys, and for values of a wrong kind; with file,
/// line, column, key and what was expected.
pub fn parse(file: &str, bytes: &[u8]) -> Result<(pb::ModelConfig, Origin), ConfigError> {
    let plain = |message: String| ConfigError { file: file.to_owned(), position: None, key: String::new(), message };
    if bytes.len() > MAX_BYTES {
        return Err(plain(bounds::too_large(bytes.len(), MAX_BYTES)));
    }
    let text = std::str::from_utf8(bytes)
        .map_err(|fault| plain(format!("expected UTF-8 text, but byte {} is not", fault.valid_up_to())))?;
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    bounds::yaml(text).map_err(|bounds::Excess { position, message }| ConfigError { position, ..plain(message) })?;
    let root = tree::read(text).map_err(|(position, message)| ConfigError { position, ..plain(message) })?;

    let mut reader = Reader::new(file, text);
    let mut config = pb::ModelConfig::default();
    let top = reader.section(&Reader::root(&root), &KEYS)?;
    identity(&mut reader, &top, &mut config)?;
    if let Some(value) = top.get("version_policy") {
        config.version_policy = Some(versions(&reader, value)?);
        reader.note("version_policy", value);
    }
    if let Some(value) = top.get("inputs") {
        tensors::inputs(&mut reader, value, &mut config)?;
    }
    if let Some(value) = top.get("outputs") {
        tensors::outputs(&mut reader, value, &mut config)?;
    }
    if let Some(value) = top.get("instance") {
        instance(&mut reader, value, &mut config)?;
    }
    if let Some(value) = top.get("decoupled") {
        config.model_transaction_policy = Some(pb::ModelTransactionPolicy { decoupled: reader.flag(value)? });
        reader.note("model_transaction_policy", value);
    }
    if let Some(value) = top.get("warmup") {
        warmup::samples(&mut reader, value, &mut config)?;
    }
    if let Some(value) = top.get("parameters") {
        parameters(&mut reader, value, &mut config)?;
    }
    if let Some(value) = top.get("stages") {
        stages::cuts(&mut reader, value, &mut config)?;
    }
    if let Some(value) = top.get("exits") {
        stages::exits(&mut reader, value, &mut config)?;
    }
    if let Some(value) = top.get("cells") {
        unfold::cells(&mut reader, value, &mut config)?;
        // Each request unfolds by itself.
        if top.get("max_batch_size").is_none() {
            config.max_batch_size = 1;
        }
    }
    if let Some(value) = top.get("unfold") {
        unfold::segments(&mut reader, value, &mut config)?;
    }
    if let Some(value) = top.get("sequence_batching") {
        sequences::batching(&mut reader, value, &mut config)?;
    }
    batching::policy(&mut reader, top.get("batching"), &mut config)?;
    Ok((config, reader.origin))
}

fn identity(reader: &mut Reader<'_>, top: &Section<'_>, config: &mut pb::ModelConfig) -> Result<(), ConfigError> {
    if let Some(value) = top.get("name") {
        config.name = reader.text(value)?;
        reader.note("name", value);
    }
    if let Some(value) = top.get("backend") {
        config.backend = reader.text(value)?;
        reader.note("backend", value);
    }
    if let Some(value) = top.get("engine") {
        let text = named::<OnnxEngine>(reader, value)?;
        put(reader, config, ENGINE.to_owned(), text, value);
    }
    if let Some(value) = top.get("program") {
        config.default_model_filename = reader.text(value)?;
        reader.note("default_model_filename", value);
    }
    if let Some(value) = top.get("max_batch_size") {
        config.max_batch_size = reader.int(value, 0..=i128::from(i32::MAX))?;
        reader.note("max_batch_size", value);
    }
    Ok(())
}

fn versions(reader: &Reader<'_>, value: &Value<'_>) -> Result<pb::ModelVersionPolicy, ConfigError> {
    let chosen = |choice| pb::ModelVersionPolicy { policy_choice: Some(choice) };
    if let tree::Node::Text(word) = value.node {
        return match word.as_str() {
            "latest" => Ok(chosen(version_policy::PolicyChoice::Latest(version_policy::Latest { num_versions: 1 }))),
            "all" => Ok(chosen(version_policy::PolicyChoice::All(version_policy::All {}))),
            _ => Err(reader.error(value, format!("expected latest, all or a mapping, but found '{word}'"))),
        };
    }
    let section = reader.section(value, &["latest", "specific"])?;
    match (section.get("latest"), section.get("specific")) {
        (Some(count), None) => {
            let num_versions = reader.int(count, 1..=i128::from(u32::MAX))?;
            Ok(chosen(version_policy::PolicyChoice::Latest(version_policy::Latest { num_versions })))
        }
        (None, Some(list)) => {
            let versions = reader.list(list)?;
            let versions = versions.iter().map(|item| reader.int(item, 1..=i128::from(i64::MAX)));
            let versions = versions.collect::<Result<_, _>>()?;
            Ok(chosen(version_policy::PolicyChoice::Specific(version_policy::Specific { versions })))
        }
        _ => Err(reader.error(value, "expected latest, all, { latest: <count> } or { specific: [<versions>] }")),
    }
}

fn instance(reader: &mut Reader<'_>, value: &Value<'_>, config: &mut pb::ModelConfig) -> Result<(), ConfigError> {
    let section = reader.section(value, &["devices", "count", "lengths", "precision"])?;
    config.instance_group = instance_groups(reader, &section)?;
    reader.note("instance_group", value);
    if let Some(precision) = section.get("precision") {
        let text = named::<Precision>(reader, precision)?;
        put(reader, config, PRECISION.to_owned(), text, precision);
    }
    let Some(lengths) = section.get("lengths") else { return Ok(()) };
    for (axis, entry) in reader.mapping(lengths)?.entries() {
        let listed = reader.list(entry)?;
        let listed = listed.iter().map(|length| reader.int(length, 1..=i128::from(u32::MAX)));
        let listed: Vec<u32> = listed.collect::<Result<_, _>>()?;
        put(reader, config, format!("{LENGTHS}{axis}"), lengths::text_of(&listed), entry);
    }
    Ok(())
}

fn instance_groups(reader: &Reader<'_>, section: &Section<'_>) -> Result<Vec<pb::ModelInstanceGroup>, ConfigError> {
    let count = section.get("count").map(|count| reader.int(count, 1..=i128::from(i32::MAX))).transpose()?;
    let group = |kind: Kind| pb::ModelInstanceGroup {
        kind: kind.into(),
        count: count.unwrap_or(0),
        ..pb::ModelInstanceGroup::default()
    };
    let Some(devices) = section.get("devices") else { return Ok(vec![group(Kind::Auto)]) };
    let mut groups: Vec<pb::ModelInstanceGroup> = Vec::new();
    for device in reader.list(devices)? {
        let name = reader.text(&device)?;
        let named = |number: &str| number.parse().ok().filter(|number: &i32| *number >= 0);
        let (kind, gpu) = match (name.as_str(), name.strip_prefix("cuda:").map(named)) {
            ("cpu", _) => (Kind::Cpu, None),
            ("cuda", _) => (Kind::Gpu, None),
            (_, Some(gpu @ Some(_))) => (Kind::Gpu, gpu),
            _ => {
                let message = format!("expected cpu, cuda or cuda:<number>, but found '{name}'");
                return Err(reader.error(&device, message));
            }
        };
        match groups.iter_mut().find(|group| group.kind == i32::from(kind)) {
            Some(group) => group.gpus.extend(gpu),
            None => groups.push(pb::ModelInstanceGroup { gpus: gpu.into_iter().collect(), ..group(kind) }),
        }
    }
    Ok(groups)
}

fn parameters(reader: &mut Reader<'_>, value: &Value<'_>, config: &mut pb::ModelConfig) -> Result<(), ConfigError> {
    for (name, entry) in reader.mapping(value)?.entries() {
        if params::is_ours(name) {
            let message = "expected as a key of its own in model.yaml: pad and dims of a tensor, engine, instance, batching, \
                           stages, exits, cells or unfold";
            return Err(reader.error(entry, message));
        }
        let string_value = reader.text(entry)?;
        reader.note(format!("parameters[{name}]"), entry);
        config.parameters.insert((*name).to_owned(), pb::ModelParameter { string_value });
    }
    Ok(())
}

/// The name of one of several, as it is written in parameters.
fn named<T: FromStr<Err = String> + ToString>(reader: &Reader<'_>, value: &Value<'_>) -> Result<String, ConfigError> {
    let one: T = reader.text(value)?.parse().map_err(|fault: String| reader.error(value, fault))?;
    Ok(one.to_string())
}

/// Puts a parameter of ours into the configuration, and notes where its value stands.
fn put(reader: &mut Reader<'_>, config: &mut pb::ModelConfig, key: String, string_value: String, value: &Value<'_>) {
    reader.note(format!("parameters[{key}]"), value);
    config.parameters.insert(key, pb::ModelParameter { string_value });
}

#[cfg(test)]
mod tests;
