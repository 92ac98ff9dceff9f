//! Settings of this server among the `parameters` of `ModelConfig`, which has no fields for them. A setting with a
//! single value is one parameter, whose key is its path in `model.yaml` (`batching.lazy.max_depth`). All
//! others, such as stages and cells, are in the one parameter `paternoster`, whose text is the YAML or JSON of
//! `model.yaml`.

use std::{collections::BTreeMap, marker::PhantomData};

use serde_json::{Map, Value as Json, json};

use super::{
    ConfigError, CustomPolicies, Origin, Position, bounds,
    origin::{OWN_KEYS, STRUCTURED, duplicate_key, flat_key, parameter},
    pb,
    settings::{OwnSettings, POLICY, Settings},
    tree::{self, Node, Value, unknown_key},
};

/// Keys of `model.yaml` that `ModelConfig` has fields for, or other parameters, with those.
const ELSEWHERE: [(&str, &str); 19] = [
    ("name", "the field 'name'"),
    ("backend", "the field 'backend'"),
    ("program", "the field 'default_model_filename'"),
    ("max_batch_size", "the field 'max_batch_size'"),
    ("version_policy", "the field 'version_policy'"),
    ("inputs", "the field 'input', with parameters 'pad.<input>' and 'axes.<input>'"),
    ("outputs", "the field 'output', with parameters 'axes.<output>'"),
    ("decoupled", "the field 'model_transaction_policy'"),
    ("response_cache", "the field 'response_cache'"),
    ("instance.devices", "the field 'instance_group'"),
    ("instance.count", "the field 'instance_group'"),
    ("instance.rate_limiter", "the field 'instance_group'"),
    ("sequence_batching", "the field 'sequence_batching', with parameters 'batching.sequences.<key>'"),
    ("batching.queueing", "the field 'dynamic_batching', with the parameter 'batching.bucket_width'"),
    ("batching.window", "the field 'dynamic_batching'"),
    ("batching.bucket_width", "a parameter 'batching.bucket_width'"),
    ("batching.sequences", "parameters 'batching.sequences.<key>'"),
    ("warmup", "the field 'model_warmup'"),
    ("parameters", "other parameters"),
];

/// Whether a key is reserved for settings of this server.
pub fn is_ours(key: &str) -> bool {
    match key.split_once('.') {
        _ if key.starts_with("stages") || key.starts_with("exits") || key.starts_with(STRUCTURED) => true,
        Some((section, _)) => !["engine", "pin"].contains(&section) && OWN_KEYS.contains(&section),
        None => ["engine", "pin", "cells", "unfold"].contains(&key),
    }
}

/// Parameters by key.
type Parameters = BTreeMap<String, pb::ModelParameter>;

/// Moves the settings of this server out of a configuration's parameters.
///
/// # Errors
/// Rejects reserved keys that do not exist, values of a wrong kind, policies that do not exist, and settings that are
/// given twice.
pub fn fold(
    mut config: pb::ModelConfig,
    policies: &CustomPolicies,
    origin: &mut Origin,
) -> Result<Settings, ConfigError> {
    let mut ours: Parameters = config.parameters.extract_if(.., |key, _| is_ours(key)).collect();
    let structured = ours.remove(STRUCTURED);
    origin.set_flat(ours.keys().cloned());
    if let Some(key) = ours.keys().find(|key| is_structured(key)) {
        return Err(origin.error(&parameter(key), moved(key, &ours)));
    }
    let mut root = root(&ours);
    if let Some(parameter) = structured {
        add_structured(&mut root, parameter.string_value, origin)?;
    }
    let read = tree::typed(PhantomData::<OwnSettings>, &root);
    let mut own = read.map_err(|fault| origin.error("", fault))?;
    if let Some(key) = ["queueing", "window"].iter().find(|key| root.find(&format!("batching.{key}")).is_whole) {
        return Err(origin.error(&format!("batching.{key}"), unknown_key(key, [])));
    }
    own.batching.find_policy(policies).map_err(|fault| origin.error(POLICY, fault))?;
    own.name_over(origin)?;
    let settings = Settings { config, own };
    settings.refuse_stray_knobs(origin)?;
    Ok(settings)
}

/// Adds the text of the parameter [`STRUCTURED`] to the tree of the other parameters.
fn add_structured(root: &mut Node, text: String, origin: &mut Origin) -> Result<(), ConfigError> {
    bounds::text(text.len(), bounds::MAX_YAML_BYTES).map_err(|fault| origin.structured_error(None, fault))?;
    let read = tree::yaml(&text).map_err(|refusal| origin.structured_error(refusal.position, refusal.fault))?;
    if read.value == Value::Null {
        return Ok(());
    }
    if !matches!(read.value, Value::Map(_)) {
        let message = "expected a mapping of keys to values, as in model.yaml";
        return Err(origin.structured_error(Some(Position::at(&text, read.at)), message));
    }
    if let Some(duplicate) = duplicate_key(&text, &read) {
        return Err(origin.structured_error(Some(duplicate.place), duplicate.message));
    }
    let place = |path: &str| read.find(path).at.map(|at| Position::at(&text, at));
    if let Some((key, there)) = ELSEWHERE.iter().find(|(key, _)| read.find(key).is_whole) {
        let message = format!("{key}: expected {there} for this");
        return Err(origin.structured_error(place(key), message));
    }
    if let Value::Map(entries) = &read.value {
        // `model.yaml` has these elsewhere too.
        let known = || OWN_KEYS.into_iter().filter(|key| !["pad", "axes", "lengths"].contains(key));
        if let Some((name, _)) = entries.iter().find(|(name, _)| !known().any(|key| key == name)) {
            return Err(
                origin.structured_error(place(name), unknown_key(name, known()).prefixed(format_args!("{name}: ")))
            );
        }
    }
    if let Some(path) = merge(root, read.clone(), "") {
        let Position { line, column } = place(&path).unwrap_or(Position { line: 1, column: 1 });
        let message =
            format!("the parameter '{STRUCTURED}' gives this too, in its line {line}, column {column}: remove one");
        return Err(origin.error(&path, message));
    }
    origin.set_structured(text, read);
    Ok(())
}

/// Adds the entries of one tree to another. Returns the path of a value that both give.
fn merge(root: &mut Node, other: Node, path: &str) -> Option<String> {
    let (Value::Map(entries), Value::Map(others)) = (&mut root.value, other.value) else {
        return Some(path.to_owned());
    };
    for (name, node) in others {
        let below = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
        match entries.iter_mut().find(|(own, _)| *own == name) {
            Some((_, own)) => {
                if let Some(twice) = merge(own, node, &below) {
                    return Some(twice);
                }
            }
            None => entries.push((name, node)),
        }
    }
    None
}

/// Whether a key is one of the parameters with dots that stood for structured settings before there was [`STRUCTURED`].
fn is_structured(key: &str) -> bool {
    key.starts_with("stages.") || matches!(key.split('.').next(), Some("exits" | "cells" | "unfold"))
}

/// Longest value that a refusal shows.
const MOST_SHOWN_BYTES: usize = 128;

/// The refusal of such a parameter, which shows what takes its place.
fn moved(key: &str, parameters: &Parameters) -> String {
    let text = |key: &str| {
        let text = parameters.get(key).map_or("", |parameter| parameter.string_value.trim());
        if text.len() > MOST_SHOWN_BYTES { "…" } else { text }
    };
    // A segment whose kind is missing is shown as the most common one.
    let kind_of = |segment: &str| Some(text(&format!("unfold.{segment}.kind"))).filter(|kind| !kind.is_empty());
    let mut parts: Vec<&str> = key.splitn(if key.starts_with("stages") { 2 } else { 4 }, '.').collect();
    let mut new = match text(key) {
        number if key.starts_with("stages") => json!(number),
        sizes if key.ends_with(".batch_sizes") => serde_json::from_str(&format!("[{sizes}]")).unwrap_or(json!(sizes)),
        text => serde_json::from_str(text).ok().filter(|value: &Json| !value.is_string()).unwrap_or(json!(text)),
    };
    while let Some(part) = parts.pop() {
        new = match parts[..] {
            ["unfold", _] if part == "kind" => json!({ text(key): {} }),
            ["unfold", segment] => json!({ kind_of(segment).unwrap_or("chain"): { part: new } }),
            ["stages" | "exits" | "unfold"] => json!([new]),
            _ => json!({ part: new }),
        };
    }
    format!(
        "parameters whose keys have dots no longer give stages, exits, cells and segments: expected the YAML or JSON \
         of model.yaml in the parameter '{STRUCTURED}', such as {new}"
    )
}

/// Builds the tree of parameters with single values, as `model.yaml` has it.
fn root(parameters: &Parameters) -> Node {
    let split = |(key, parameter): (&'_ String, &'_ pb::ModelParameter)| {
        // Names at the end of a key may contain dots.
        let path: Vec<String> = match key.split_once('.') {
            Some(("lengths", axis)) => ["instance", "lengths", axis].map(str::to_owned).to_vec(),
            Some((section @ ("pad" | "axes"), name)) => [section, name].map(str::to_owned).to_vec(),
            _ => key.splitn(4, '.').map(str::to_owned).collect(),
        };
        (path, parameter.string_value.clone())
    };
    let sorted: BTreeMap<Vec<String>, String> = parameters.iter().map(split).collect();
    node(&sorted.into_iter().collect::<Vec<_>>(), 0)
}

/// The node of parameters whose paths have their first `depth` names in common. If one path is the beginning of others,
/// its text becomes an entry with the empty name.
fn node(parameters: &[(Vec<String>, String)], depth: usize) -> Node {
    let value = match parameters {
        [(path, text)] if path.len() == depth => Value::Raw(text.clone()),
        _ => {
            let groups = parameters.chunk_by(|(one, _), (other, _)| one.get(depth) == other.get(depth));
            let entry = |group: &[(Vec<String>, String)]| match group[0].0.get(depth) {
                Some(name) => (name.clone(), node(group, depth + 1)),
                None => (String::new(), Node { at: 0, value: Value::Raw(group[0].1.clone()) }),
            };
            Value::Map(groups.map(entry).collect())
        }
    };
    Node { at: 0, value }
}

impl Settings {
    /// Returns all settings as one `ModelConfig`, with those that it has no fields for among its `parameters`.
    pub fn shown(&self) -> pb::ModelConfig {
        let mut config = self.config.clone();
        let own = parameters_of(&self.own).into_iter();
        config.parameters.extend(own.map(|(key, string_value)| (key, pb::ModelParameter { string_value })));
        config
    }
}

/// Prints settings as parameters.
fn parameters_of(own: &OwnSettings) -> BTreeMap<String, String> {
    let mut texts = BTreeMap::new();
    // Plain data with text keys always serialises.
    let Json::Object(sections) = serde_json::to_value(own).unwrap_or_default() else { return texts };
    let is_structured = |(key, value): &(String, Json)| match key.as_str() {
        "exits" | "cells" | "unfold" | "pipeline" => true,
        "text" | "generate" => value.is_object(),
        "stages" => value.is_array(),
        _ => false,
    };
    let (mut structured, flat): (Map<String, Json>, Map<String, Json>) = sections.into_iter().partition(is_structured);
    structured.retain(|_, value| !matches!(value, Json::Array(items) if items.is_empty()));
    structured.retain(|_, value| !matches!(value, Json::Object(entries) if entries.is_empty()));
    if !structured.is_empty() {
        let mut structured = Json::Object(structured);
        remove_nulls(&mut structured);
        texts.insert(STRUCTURED.to_owned(), structured.to_string());
    }
    print("", &Json::Object(flat), &mut texts);
    texts
}

/// Removes the keys that are not given.
fn remove_nulls(value: &mut Json) {
    match value {
        Json::Object(entries) => {
            entries.retain(|_, value| !value.is_null());
            entries.values_mut().for_each(remove_nulls);
        }
        Json::Array(items) => items.iter_mut().for_each(remove_nulls),
        _ => {}
    }
}

/// Prints a value below a path.
fn print(path: &str, value: &Json, texts: &mut BTreeMap<String, String>) {
    let text = match value {
        Json::Null => return,
        Json::Object(entries) => {
            for (name, value) in entries {
                let below = match name.as_str() {
                    // The value of a switch has no name.
                    "" => path.to_owned(),
                    name if path.is_empty() => name.to_owned(),
                    name => format!("{path}.{name}"),
                };
                print(&below, value, texts);
            }
            return;
        }
        Json::Array(numbers) => numbers.iter().map(Json::to_string).collect::<Vec<_>>().join(","),
        Json::String(text) => text.clone(),
        Json::Number(number) if number.is_f64() => number.as_f64().unwrap_or_default().to_string(),
        other => other.to_string(),
    };
    texts.insert(flat_key(path), text);
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::{
        ConfigErrorKind::{Syntax, TooLarge, Unknown, Value},
        tests::refusals::{Refusals, part},
    };

    /// The settings of a configuration of parameters alone, or the refusal of one of them.
    pub(crate) fn folded(parameters: &[(&str, &str)]) -> Result<Settings, ConfigError> {
        let parameter = |(key, text): &(&str, &str)| {
            let string_value = (*text).to_owned();
            ((*key).to_owned(), pb::ModelParameter { string_value })
        };
        let config = pb::ModelConfig { parameters: parameters.iter().map(parameter).collect(), ..Default::default() };
        fold(config, &CustomPolicies::default(), &mut Origin::default())
    }

    /// Reads a parameter, written `key: value`.
    pub(crate) fn parameter(given: &str) -> Result<Settings, ConfigError> {
        folded(&[given.split_once(": ").expect("a key and a value")])
    }

    #[test]
    fn what_is_folded_is_printed_as_it_was() {
        let parameters = [
            ("axes.y.1", "tokens,-"),
            ("batching.diversity.input.groups", "4"),
            ("batching.diversity.operator", "true"),
            ("batching.diversity.operator.threshold", "0.9"),
            ("batching.latency_objective_ms", "50"),
            ("batching.policy", "diversity"),
            ("engine", "openvino"),
            ("lengths.tokens", "16,64"),
            ("owner", "me"),
            ("pad.x", "tokens=0"),
            ("paternoster", r#"{"stages":["auto","08"],"unfold":[{"stage":{"cell":"c"}}]}"#),
            ("pin", "true"),
        ];
        let settings = folded(&parameters).expect("each is sound");
        assert_eq!(settings.config.parameters.keys().collect::<Vec<_>>(), ["owner"], "the others are ours");
        let shown = settings.shown().parameters;
        let shown = shown.iter().map(|(key, parameter)| (key.as_str(), parameter.string_value.as_str()));
        assert_eq!(shown.collect::<Vec<_>>(), parameters);
    }

    #[test]
    fn yaml_and_json_are_read_as_in_model_yaml() {
        let yaml =
            "cells:\n  c: { program: c.onnx }\nunfold:\n- chain: { cell: c, over: x, as: y, emit: { z: all(h) } }";
        let json = r#"{"cells": {"c": {"program": "c.onnx"}},
                       "unfold": [{"chain": {"cell": "c", "over": {"y": "x"}, "emit": {"z": "all(h)"}}}]}"#;
        let [yaml, json] = [yaml, json].map(|text| folded(&[(STRUCTURED, text)]).expect("it is sound"));
        assert_eq!(yaml, json);
        let knobs = "batching: { policy: lazy, lazy: { max_depth: 2 } }\n\
                     instance: { lengths: { n: [2, 3] } }\nengine: openvino";
        let flat = [
            ("batching.policy", "lazy"),
            ("batching.lazy.max_depth", "2"),
            ("lengths.n", "2,3"),
            ("engine", "openvino"),
        ];
        assert_eq!(folded(&[(STRUCTURED, knobs)]), folded(&flat), "knobs too");
        assert_eq!(folded(&[(STRUCTURED, "")]), folded(&[]));
    }

    /// Keys of `model.yaml` that take another form here.
    #[test]
    fn every_key_of_model_yaml_is_read_or_has_its_place() {
        let schema = schemars::schema_for!(crate::model::ModelSettings);
        for key in schema.as_value()["properties"].as_object().expect("it has keys").keys() {
            let is_elsewhere = ELSEWHERE.iter().any(|(name, _)| name == key);
            assert_ne!(OWN_KEYS.contains(&key.as_str()), is_elsewhere, "'{key}' is read here or has its place");
        }
        for (key, there) in ELSEWHERE {
            let text = key.split('.').rev().fold("x".to_owned(), |value, part| format!("{{ {part}: {value} }}"));
            let refused = folded(&[(STRUCTURED, &text)]).expect_err("it is elsewhere");
            assert!(refused.message.starts_with(&format!("{key}: expected {there}")), "{refused}");
        }
    }

    #[test]
    fn both_forms_may_give_keys_of_one_section() {
        let apart = [("batching.weight", "2"), (STRUCTURED, "batching: { policy: lazy }")];
        assert!(folded(&apart).is_ok());
    }

    #[test]
    fn keys_with_dots_are_refused_with_the_form_that_replaces_them() {
        let parameter = |text: &str| pb::ModelParameter { string_value: text.to_owned() };
        for (key, value, expected) in [
            ("unfold.0.kind", "chain", r#"{"unfold":[{"chain":{}}]}"#),
            ("unfold.0.over.word", "source", r#"{"unfold":[{"chain":{"over":{"word":"source"}}}]}"#),
            ("unfold.0.emit.y.1", "all(h)", r#"{"unfold":[{"chain":{"emit":{"y.1":"all(h)"}}}]}"#),
            ("unfold.0.reverse", "true", r#"{"unfold":[{"chain":{"reverse":true}}]}"#),
            ("cells.c.batch_sizes", "1, 2,512", r#"{"cells":{"c":{"batch_sizes":[1,2,512]}}}"#),
            ("cells.c.program", "c.onnx", r#"{"cells":{"c":{"program":"c.onnx"}}}"#),
            ("exits.0.at_least", "0.5", r#"{"exits":[{"at_least":0.5}]}"#),
            ("exits.0.outputs.y.1", "t", r#"{"exits":[{"outputs":{"y.1":"t"}}]}"#),
            ("stages.0", "12", r#"{"stages":["12"]}"#),
        ] {
            let given = [("unfold.0.kind", "chain"), (key, value)].map(|(key, text)| (key.to_owned(), parameter(text)));
            let message = moved(key, &Parameters::from(given));
            assert!(message.ends_with(&format!("in the parameter 'paternoster', such as {expected}")), "{message}");
        }
        assert!(is_ours("stagess") && is_ours("cells") && is_ours("unfold.0") && is_ours("paternosters"));
        assert!(!is_ours("cellar") && !is_ours("unfolded.0") && !is_ours("engines"));
    }

    pub(crate) fn refusals(all: &mut Refusals) {
        part(all, "parameters", parameter).refuses(&[
            (Unknown, "parameters[batching.queueing.bucket_width]", "batching.queueing.bucket_width: 4"),
            (Unknown, "parameters[instance.precisio]", "instance.precisio: bf16"),
            (Unknown, "parameters[stagess]", "stagess: 2"),
            (Value, "parameters[unfold.0.over.word]", "unfold.0.over.word: source"),
            (Value, "parameters[exits]", "exits: 1"),
            (Value, "parameters[cells]", "cells: 1"),
            (Value, "parameters[unfold]", "unfold: 1"),
            (Value, "parameters[cells.step]", "cells.step: 1"),
        ]);
        part(all, "the parameter 'paternoster'", |text| folded(&[(STRUCTURED, text)])).refuses(&[
            (
                Unknown,
                "parameters[paternoster]:2:25: cells.c.batch_size",
                "cells:\n  c: { program: c.onnx, batch_size: 4 }",
            ),
            (
                Unknown,
                "parameters[paternoster]:2:42: unfold[0].chain.step",
                "unfold:\n- chain: { cell: c, emit: { y: all(h) }, step: 4 }",
            ),
            (Value, "parameters[paternoster]:1:10: cells.c", "cells: { c: {} }"),
            (Syntax, "parameters[paternoster]:1:8", "cells: {"),
            (Value, "parameters[paternoster]:2:1", "engine: openvino\nengine: openvino"),
            (Value, "parameters[paternoster]:1:1", "- a"),
            (Unknown, "parameters[paternoster]:1:1", "unfolds: []"),
            (Value, "parameters[paternoster]:2:13", "\ninstance: { count: 4 }"),
        ]);
        let long = "x".repeat(bounds::MAX_YAML_BYTES);
        all.add(
            TooLarge,
            "parameters[paternoster]",
            "a text of 128 KB",
            folded(&[(STRUCTURED, &format!("engine: '{long}'"))]),
        );
        all.title("parameters: two");
        let mut both = |one: (&str, &str), other: (&str, &str), place: &str| {
            all.add(Value, place, &format!("{}: {}\n{}: {}", one.0, one.1, other.0, other.1), folded(&[one, other]));
        };
        both(
            ("batching.policy", "lazy"),
            (STRUCTURED, "engine: openvino\nbatching: { policy: window }"),
            "parameters[batching.policy]",
        );
        both(("stages", "2"), (STRUCTURED, "stages: [a]"), "parameters[stages]");
        both(("lengths.n", "2"), (STRUCTURED, "instance: { lengths: { n: [3] } }"), "parameters[lengths.n]");
        both(("cells.c.priority", "1"), ("cells.c.program", "c.onnx"), "parameters[cells.c.priority]");
        all.title("parameters: a long one");
        all.add(
            Value,
            "parameters[cells.c.program]",
            "cells.c.program",
            folded(&[("cells.c.program", &"x".repeat(4096))]),
        );
    }
}
