//! Settings of this server among the `parameters` of `ModelConfig`, which has no fields for them. Their keys are paths
//! with dots into [`OwnSettings`].
//!
//! Lists are numbered from 0 (`stages.0`, `exits.0.stage`, `unfold.0.cell`), lists of numbers are separated by commas,
//! and the key `kind` names the kind of a segment.

use std::{collections::BTreeMap, marker::PhantomData};

use serde_json::Value as Json;
use serde_path_to_error::{Path, Segment};

use super::{
    ConfigError, Origin, pb,
    settings::{OwnSettings, Settings},
    tree::{self, Fault, Node, unknown_key},
};
use crate::batching::knob::given;

/// The key of the policy's name.
pub const POLICY: &str = "batching.policy";

const STAGES: &str = "stages";
const UNFOLD: &str = "unfold";

/// The path of a parameter, for errors.
pub fn path(key: &str) -> String {
    format!("parameters[{key}]")
}

/// Whether a key is reserved for settings of this server.
pub fn is_ours(key: &str) -> bool {
    let is_section = ["pad.", "axes.", "lengths.", "batching.", "instance."].iter().any(|begin| key.starts_with(begin));
    is_section
        || key.starts_with(STAGES)
        || key.starts_with("exits")
        || key == "engine"
        || matches!(key.split('.').next(), Some("cells" | UNFOLD))
}

/// Parameters by key.
type Parameters = BTreeMap<String, pb::ModelParameter>;

/// Moves the settings of this server out of a configuration's parameters.
///
/// # Errors
/// Rejects reserved keys that do not exist, and values of a wrong kind.
pub fn fold(mut config: pb::ModelConfig, origin: &Origin) -> Result<Settings, ConfigError> {
    let ours: Parameters = config.parameters.extract_if(.., |key, _| is_ours(key)).collect();
    let refuse = |(key, message): Refusal| origin.error(&path(parameter_of(&key, ours.keys())), message);
    let root = root(&ours).map_err(refuse)?;
    let mut own =
        tree::typed(PhantomData::<OwnSettings>, &root).map_err(|(path, fault)| refuse(refusal(&path, fault)))?;
    if let Some(key) = given(&own.batching).iter().find(|key| ["queueing", "window"].contains(&key.as_str())) {
        return Err(refuse((format!("batching.{key}"), unknown_key(key, []))));
    }
    for (number, segment) in own.unfold.iter_mut().enumerate() {
        let named = segment.name_over();
        named.map_err(|(key, message)| refuse((format!("{UNFOLD}.{number}.{key}"), message.to_owned())))?;
    }
    Ok(Settings { config, own })
}

/// A key and what is wrong with it.
type Refusal = (String, String);

/// Expresses a fault of the tree in terms of keys.
fn refusal(path: &Path, fault: Fault) -> Refusal {
    let names = path.iter().filter_map(|segment| match segment {
        Segment::Seq { index } => Some(index.to_string()),
        Segment::Map { key } if !key.is_empty() => Some(key.clone()),
        // The kind of a segment is a key of its own.
        Segment::Map { .. } | Segment::Enum { .. } | Segment::Unknown => None,
    });
    let names: Vec<String> = names.collect();
    let key = names.join(".");
    let message = fault.missing.map_or(fault.message, |missing| format!("expected {key}.{missing} too"));
    let is_segment = names.len() == 2 && names[0] == UNFOLD;
    (if is_segment { format!("{key}.kind") } else { key }, message)
}

/// The parameter to report for a key: itself, the list of which it is an item, or the first parameter below it.
fn parameter_of<'k>(key: &'k str, mut given: impl Iterator<Item = &'k String> + Clone) -> &'k str {
    let is_below = |one: &str, other: &str| one.strip_prefix(other).is_some_and(|rest| rest.starts_with('.'));
    let found = given.clone().find(|given| *given == key || is_below(key, given));
    found.or_else(|| given.find(|given| is_below(given, key))).map_or(key, String::as_str)
}

/// Builds the tree of parameters, as `model.yaml` has it.
fn root(parameters: &Parameters) -> Result<Node, Refusal> {
    let split = |(key, parameter): (&'_ String, &'_ pb::ModelParameter)| {
        // Names at the end of a key may contain dots.
        let levels = match key.split('.').next() {
            Some("pad" | "axes" | "lengths" | STAGES) => 2,
            _ => 4,
        };
        (key.splitn(levels, '.').map(str::to_owned).collect(), parameter.string_value.clone())
    };
    let sorted: BTreeMap<Vec<String>, String> = parameters.iter().map(split).collect();
    let Node::Map(mut sections) = node(&sorted.into_iter().collect::<Vec<_>>(), 0) else { return Ok(Node::Null) };
    for (section, node) in &mut sections {
        let Node::Map(items) = node else { continue };
        if !matches!(section.as_str(), STAGES | "exits" | UNFOLD) {
            continue;
        }
        if parameters.contains_key(section) {
            let what = if section == STAGES { "a number or tensors to cut at" } else { "a text or a list" };
            return Err((section.clone(), format!("expected either {what} ({section}.0 …), but found both")));
        }
        *node = list(section, std::mem::take(items))?;
    }
    Ok(Node::Map(sections))
}

/// The node of parameters whose paths have their first `depth` names in common. If one path is the beginning of others,
/// its text becomes an entry with the empty name.
fn node(parameters: &[(Vec<String>, String)], depth: usize) -> Node {
    match parameters {
        [(path, text)] if path.len() == depth => Node::Raw(text.clone()),
        _ => {
            let groups = parameters.chunk_by(|(one, _), (other, _)| one.get(depth) == other.get(depth));
            let entry = |group: &[(Vec<String>, String)]| match group[0].0.get(depth) {
                Some(name) => (name.clone(), node(group, depth + 1)),
                None => (String::new(), Node::Raw(group[0].1.clone())),
            };
            Node::Map(groups.map(entry).collect())
        }
    }
}

/// Makes a list of items that are numbered from 0.
fn list(section: &str, items: Vec<(String, Node)>) -> Result<Node, Refusal> {
    let mut numbered: BTreeMap<u16, Node> = BTreeMap::new();
    for (name, item) in items {
        // A number has one form, the printed one.
        let number = name.parse().ok().filter(|number: &u16| number.to_string() == name);
        let message = || format!("expected a number from 0 behind '{section}.', but found '{name}'");
        numbered.insert(number.ok_or_else(|| (format!("{section}.{name}"), message()))?, item);
    }
    let items = numbered.into_iter().zip(0..).map(|((number, item), expected)| {
        if number != expected {
            let (what, key) = match section {
                STAGES => ("cuts", ""),
                UNFOLD => ("segments", ".kind"),
                section => (section, ""),
            };
            let message = format!("{what} count from 0 without gaps: expected {section}.{expected}{key} too");
            return Err((format!("{section}.{number}"), message));
        }
        match item {
            Node::Map(keys) if section == UNFOLD => segment(number, keys),
            item => Ok(item),
        }
    });
    items.collect::<Result<_, _>>().map(Node::List)
}

/// Makes the keys of a segment a mapping from its kind to the other keys, as `model.yaml` has it.
fn segment(number: u16, mut keys: Vec<(String, Node)>) -> Result<Node, Refusal> {
    let kind = keys.iter().position(|(key, _)| key == "kind").map(|at| keys.remove(at).1);
    match kind {
        Some(Node::Raw(kind)) => Ok(Node::Map(vec![(kind.trim().to_owned(), Node::Map(keys))])),
        _ => Err((format!("{UNFOLD}.{number}"), format!("expected {UNFOLD}.{number}.kind too"))),
    }
}

/// Prints settings as parameters.
pub fn of(own: &OwnSettings) -> BTreeMap<String, String> {
    let mut texts = BTreeMap::new();
    // Plain data with text keys always serialises.
    print("", &serde_json::to_value(own).unwrap_or_default(), &mut texts);
    texts
}

/// Prints a value below a key.
fn print(key: &str, value: &Json, texts: &mut BTreeMap<String, String>) {
    let below = |name: &str| if key.is_empty() { name.to_owned() } else { format!("{key}.{name}") };
    let text = match value {
        Json::Null => return,
        Json::Object(entries) => {
            for (name, value) in entries {
                // The value of a switch has no name.
                print(&if name.is_empty() { key.to_owned() } else { below(name) }, value, texts);
            }
            return;
        }
        Json::Array(items) if items.iter().all(Json::is_number) && !items.is_empty() => {
            items.iter().map(Json::to_string).collect::<Vec<_>>().join(",")
        }
        Json::Array(items) => {
            for (number, item) in items.iter().enumerate() {
                let key = below(&number.to_string());
                match item.as_object().and_then(|segment| segment.iter().next()) {
                    Some((kind, keys)) if key.starts_with(UNFOLD) => {
                        texts.insert(format!("{key}.kind"), kind.clone());
                        print(&key, keys, texts);
                    }
                    _ => print(&key, item, texts),
                }
            }
            return;
        }
        Json::String(text) => text.clone(),
        Json::Number(number) if number.is_f64() => number.as_f64().unwrap_or_default().to_string(),
        other => other.to_string(),
    };
    texts.insert(key.to_owned(), text);
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// The settings of a configuration of parameters alone, or the refusal of one of them.
    pub(in crate::repository::config) fn folded(parameters: &[(&str, &str)]) -> Result<Settings, String> {
        let entry = |(key, text): &(&str, &str)| {
            let string_value = (*text).to_owned();
            ((*key).to_owned(), pb::ModelParameter { string_value })
        };
        let config = pb::ModelConfig { parameters: parameters.iter().map(entry).collect(), ..Default::default() };
        fold(config, &Origin::default()).map_err(|refused| refused.to_string())
    }

    #[test]
    fn what_is_folded_is_printed_as_it_was() {
        let parameters = [
            ("axes.y.1", "tokens,-"),
            ("batching.diversity.input.groups", "4"),
            ("batching.diversity.operator", "true"),
            ("batching.diversity.operator.threshold", "0.9"),
            ("batching.latency_objective_ms", "50"),
            ("engine", "openvino"),
            ("exits.0.at_least", "0.5"),
            ("exits.0.outputs.y.1", "a,b"),
            ("exits.0.stage", "0"),
            ("exits.0.value", "v"),
            ("lengths.tokens", "16,64"),
            ("owner", "me"),
            ("pad.x", "tokens=0"),
            ("stages.0", "auto"),
        ];
        let settings = folded(&parameters).expect("each is sound");
        assert_eq!(settings.config.parameters.keys().collect::<Vec<_>>(), ["owner"], "the others are ours");
        let shown = settings.shown().parameters;
        let shown = shown.iter().map(|(key, parameter)| (key.as_str(), parameter.string_value.as_str()));
        assert_eq!(shown.collect::<Vec<_>>(), parameters);
    }

    #[test]
    fn what_only_model_yaml_has_is_no_parameter() {
        let refused = folded(&[("batching.queueing.bucket_width", "4")]).expect_err("it is batching.bucket_width");
        assert!(refused.ends_with("unknown key 'queueing'"), "{refused}");
        let refused = folded(&[("instance.precisio", "bf16")]).expect_err("there is none");
        assert!(refused.ends_with("unknown key 'precisio'; did you mean 'precision'?"), "{refused}");
        let refused = folded(&[("stages", "2"), ("stages.0", "t")]).expect_err("it is given twice");
        assert!(refused.contains("stages]: expected either a number or tensors to cut at (stages.0 …)"), "{refused}");
    }
}
