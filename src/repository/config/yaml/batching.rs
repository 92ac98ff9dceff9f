//! `batching` of a `model.yaml`: the policy by name, what all policies have in common, and one section of knobs per
//! policy. Sections of policies that are not chosen are checked, so that a switch brings no surprise, and otherwise
//! ignored.

use super::{
    queueing::{self, Queueing},
    read::{Reader, Section, Value},
    tree::Node,
};
use crate::{
    batching::PolicyKind,
    repository::config::{
        ConfigError,
        knobs::{self, Form},
        latencies,
        params::{self, PolicyName},
        pb::{self, model_config::SchedulingChoice},
        sequences, unfold,
    },
};

/// Keys that do not name the section of a policy.
const KEYS: [&str; 7] =
    ["policy", "latency_objective_ms", "weight", "buffer_pairs", "task_time_limit_ms", "latencies", "queueing"];

const COMMON: [&str; 4] = ["latency_objective_ms", "weight", "buffer_pairs", "task_time_limit_ms"];

const OWN_OF_WINDOW: [&str; 2] = ["max_queue_delay_us", "preferred_batch_sizes"];

const LATENCY: [&str; 4] = ["stage", "rows", "length", "latency_us"];

/// Prefix of the keys of knobs.
const BATCHING: &str = "batching";

/// Fills in the scheduler and the knobs. Without `batching` the policy is `auto`; whether `auto` batches is decided
/// when the largest batch is known (`complete`).
pub(super) fn policy(
    reader: &mut Reader<'_>,
    value: Option<&Value<'_>>,
    config: &mut pb::ModelConfig,
) -> Result<(), ConfigError> {
    let Some(value) = value else {
        reader.origin.imply(params::policy_path());
        insert(config, params::POLICY.to_owned(), PolicyName::Auto.as_str().to_owned());
        return Ok(());
    };
    let keys: Vec<&str> = KEYS.into_iter().chain(PolicyKind::ALL.iter().map(|kind| kind.name())).collect();
    let section = reader.section(value, &keys)?;
    let chosen = chosen(reader, &section)?;
    insert(config, params::POLICY.to_owned(), chosen.as_str().to_owned());
    reader.note("dynamic_batching", value);
    common(reader, &section, config)?;
    if let Some(serial) = section.get("serial") {
        reader.section(serial, &[])?;
    }
    for kind in PolicyKind::ALL.iter().filter(|kind| !matches!(kind, PolicyKind::Serial | PolicyKind::Window)) {
        let name = kind.name();
        let Some(knobs) = section.get(name) else { continue };
        // Of a model of cells, auto is cellular, and lazy has its knobs too.
        let unfolds = unfold::is_given(config) || sequences::given(config).is_some();
        let by_cells = unfolds && matches!(chosen, PolicyName::Auto | PolicyName::Of(PolicyKind::Lazy));
        let is_chosen = chosen.as_str() == name || by_cells && name == "cellular";
        if !is_chosen {
            needs_choice(reader, knobs, chosen, name)?;
        }
        let given = knob_section(reader, knobs, &format!("{BATCHING}.{name}"))?;
        if is_chosen {
            take(reader, config, given);
        }
    }
    if sequences::given(config).is_some() {
        let stray = ["queueing", "window"].into_iter().find_map(|key| section.get(key));
        return match stray {
            Some(stray) => {
                Err(reader
                    .error(stray, "a model with sequences has its queue in sequence_batching: move or remove this"))
            }
            None => Ok(()),
        };
    }
    let batching = scheduler(reader, &section, chosen, config)?;
    if chosen == PolicyName::Of(PolicyKind::Serial) || chosen == PolicyName::Auto && section.get("queueing").is_none() {
        return Ok(());
    }
    config.scheduling_choice = Some(SchedulingChoice::DynamicBatching(batching));
    Ok(())
}

fn insert(config: &mut pb::ModelConfig, key: String, string_value: String) {
    config.parameters.insert(key, pb::ModelParameter { string_value });
}

fn chosen(reader: &mut Reader<'_>, section: &Section<'_>) -> Result<PolicyName, ConfigError> {
    let Some(name) = section.get("policy") else {
        reader.origin.imply(params::policy_path());
        return Ok(PolicyName::Auto);
    };
    let text = reader.text(name)?;
    reader.note(format!("parameters[{}]", params::POLICY), name);
    PolicyName::from_name(&text).map_err(|message| reader.error(name, message))
}

fn needs_choice(reader: &Reader<'_>, knobs: &Value<'_>, chosen: PolicyName, name: &str) -> Result<(), ConfigError> {
    match chosen {
        PolicyName::Auto => Err(reader.error(knobs, format!("these knobs need 'policy: {name}'; auto has none"))),
        _ => Ok(()),
    }
}

/// A knob's parameter, and where its value stands.
type Given<'n> = (String, String, Value<'n>);

fn take(reader: &mut Reader<'_>, config: &mut pb::ModelConfig, given: Vec<Given<'_>>) {
    for (key, text, value) in given {
        reader.note(format!("parameters[{key}]"), &value);
        insert(config, key, text);
    }
}

fn common(reader: &mut Reader<'_>, section: &Section<'_>, config: &mut pb::ModelConfig) -> Result<(), ConfigError> {
    for (name, form) in knobs::within(BATCHING).filter(|(name, _)| COMMON.contains(name)) {
        if let Some(value) = section.get(name) {
            let text = knob(reader, value, form)?;
            take(reader, config, vec![(format!("{BATCHING}.{name}"), text, value.clone())]);
        }
    }
    if let Some(value) = section.get("latencies") {
        let text = latency_table(reader, value)?;
        take(reader, config, vec![(knobs::LATENCIES.key.to_owned(), text, value.clone())]);
    }
    Ok(())
}

/// The text of a knob's parameter.
fn knob(reader: &Reader<'_>, value: &Value<'_>, form: Form) -> Result<String, ConfigError> {
    let text = match (form, value.node) {
        (Form::Flag, Node::Flag(flag)) => flag.to_string(),
        (Form::Whole { .. } | Form::Number { .. } | Form::Positive { .. }, Node::Int(number)) => number.to_string(),
        (Form::Number { .. } | Form::Positive { .. }, Node::Float(number)) => number.to_string(),
        (Form::Word { .. } | Form::Text, Node::Text(text)) => text.clone(),
        (Form::Lengths, Node::List(_)) => {
            let lengths = reader.list(value)?;
            let lengths = lengths.iter().map(|length| reader.int::<u32>(length, 1..=i128::from(u32::MAX)));
            let lengths: Vec<String> =
                lengths.map(|length| length.map(|length| length.to_string())).collect::<Result<_, _>>()?;
            lengths.join(",")
        }
        _ => return Err(reader.expected(value, &form.to_string())),
    };
    form.check(&text).map_err(|message| reader.error(value, message))?;
    Ok(text)
}

/// The knobs of a section whose keys begin with `prefix` as parameters. A switch that has knobs of its own is a flag,
/// or a section of these that switches it on.
fn knob_section<'n>(reader: &Reader<'_>, value: &Value<'n>, prefix: &str) -> Result<Vec<Given<'n>>, ConfigError> {
    let known: Vec<&str> = knobs::within(prefix).map(|(name, _)| name).collect();
    let section = reader.section(value, &known)?;
    let mut given = Vec::new();
    for (name, form) in knobs::within(prefix) {
        let Some(value) = section.get(name) else { continue };
        let key = format!("{prefix}.{name}");
        let has_own = knobs::within(&key).next().is_some();
        match value.node {
            Node::Map(_) if has_own => {
                given.push((key.clone(), true.to_string(), value.clone()));
                given.extend(knob_section(reader, value, &key)?);
            }
            Node::Flag(_) => given.push((key, knob(reader, value, form)?, value.clone())),
            _ if has_own => return Err(reader.expected(value, "true, false or a mapping of knobs")),
            _ => given.push((key, knob(reader, value, form)?, value.clone())),
        }
    }
    Ok(given)
}

/// The name of a table's file, or the text of the table whose lines the list holds.
fn latency_table(reader: &Reader<'_>, value: &Value<'_>) -> Result<String, ConfigError> {
    match value.node {
        Node::Text(text) => return Ok(text.clone()),
        Node::List(_) => {}
        _ => return Err(reader.expected(value, "the name of a file, or a list of latencies")),
    }
    let mut text = format!("{}\n", latencies::HEADER);
    for line in reader.list(value)? {
        let section = reader.section(&line, &LATENCY)?;
        let required =
            |name: &str| section.get(name).ok_or_else(|| reader.error(&line, format!("expected the key '{name}'")));
        let count = 0..=i128::from(u32::MAX);
        let stage: u16 = reader.int(required("stage")?, 0..=i128::from(knobs::MAX_STAGES) - 1)?;
        let rows: u32 = reader.int(required("rows")?, 1..=i128::from(u32::MAX))?;
        let length: u32 = section.get("length").map(|length| reader.int(length, count)).transpose()?.unwrap_or(0);
        let latency_us = reader.number(required("latency_us")?)?;
        text.push_str(&format!("{stage},{rows},{length},{latency_us}\n"));
    }
    Ok(text)
}

/// The queue and the window of the policy that was chosen. The queue's keys may stand in `queueing`, for every policy
/// that batches, or in `window`.
fn scheduler(
    reader: &mut Reader<'_>,
    section: &Section<'_>,
    chosen: PolicyName,
    config: &mut pb::ModelConfig,
) -> Result<pb::ModelDynamicBatching, ConfigError> {
    let mut batching = pb::ModelDynamicBatching::default();
    if let Some(value) = section.get("queueing") {
        if chosen == PolicyName::Of(PolicyKind::Serial) {
            let message = "the policy 'serial' has no such queue: remove this, or choose a policy that batches";
            return Err(reader.error(value, message));
        }
        let keys = reader.section(value, &queueing::KEYS)?;
        reader.note("dynamic_batching", value);
        queueing::read(reader, &keys, true)?.give(config, &mut batching);
    }
    let Some(value) = section.get("window") else { return Ok(batching) };
    needs_choice(reader, value, chosen, "window")?;
    let is_chosen = chosen == PolicyName::Of(PolicyKind::Window);
    let known: Vec<&str> = OWN_OF_WINDOW.into_iter().chain(queueing::KEYS).collect();
    let keys = reader.section(value, &known)?;
    let twice = keys.entries().iter().find(|(name, _)| queueing::KEYS.contains(name));
    if let (Some((name, entry)), Some(_)) = (twice, section.get("queueing")) {
        let message = format!("expected '{name}' in batching.queueing, with the queue's other keys");
        return Err(reader.error(entry, message));
    }
    let mut delay = 0;
    if let Some(given) = keys.get("max_queue_delay_us") {
        delay = reader.int(given, 0..=i128::from(u64::MAX))?;
    }
    let mut preferred = Vec::new();
    if let Some(sizes) = keys.get("preferred_batch_sizes") {
        let listed = reader.list(sizes)?;
        let listed = listed.iter().map(|size| reader.int(size, 1..=i128::from(i32::MAX)));
        preferred = listed.collect::<Result<_, _>>()?;
        if is_chosen {
            reader.note("dynamic_batching.preferred_batch_size", sizes);
        }
    }
    let queue: Queueing = queueing::read(reader, &keys, is_chosen)?;
    if is_chosen {
        reader.note("dynamic_batching", value);
        batching.max_queue_delay_microseconds = delay;
        batching.preferred_batch_size = preferred;
        if section.get("queueing").is_none() {
            queue.give(config, &mut batching);
        }
    }
    Ok(batching)
}
