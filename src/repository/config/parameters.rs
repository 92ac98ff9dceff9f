//! Our own settings among `parameters`, where `ModelConfig` has no fields for them. Keys with dots are paths of the
//! tree that is typed as [`Own`], which is printed as such keys.
//!
//! Lists are numbered from 0 (`stages.0`, `exits.0.stage`, `unfold.0.cell`), lists of numbers have commas, and the kind
//! of a segment is its key `kind`.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value as Json;

use super::{
    ConfigError, Origin, pb,
    settings::{Own, Settings},
    tree::{Fault, Node, unknown_key},
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

/// Whether a key is in our name space.
pub fn is_ours(key: &str) -> bool {
    let is_section = ["pad.", "axes.", "lengths.", "batching.", "instance."].iter().any(|begin| key.starts_with(begin));
    is_section
        || key.starts_with(STAGES)
        || key.starts_with("exits")
        || key == "engine"
        || matches!(key.split('.').next(), Some("cells" | UNFOLD))
}

/// Takes our own settings out of a configuration's parameters.
///
/// # Errors
/// For keys of our name space that there are not, and values of a wrong kind.
pub fn fold(mut config: pb::ModelConfig, origin: &Origin) -> Result<Settings, ConfigError> {
    let ours: BTreeMap<String, pb::ModelParameter> = config.parameters.extract_if(.., |key, _| is_ours(key)).collect();
    let mut root = Branch::default();
    for (key, parameter) in &ours {
        // Names at the end of a key may hold dots themselves.
        let levels = match key.split('.').next() {
            Some("pad" | "axes" | "lengths" | STAGES) => 2,
            _ => 4,
        };
        let last = key.splitn(levels, '.').fold(&mut root, |branch, name| branch.children.entry(name).or_default());
        (last.key, last.text) = (key, Some(parameter.string_value.as_str()));
    }
    let refuse = |(key, message): Refusal| origin.error(&path(place(&key, ours.keys())), message);
    let root = root.node(0).map_err(refuse)?;
    let mut own = Own::deserialize(&root).map_err(|fault| refuse(refusal(&root, fault)))?;
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

/// A fault of the tree as one of a key.
fn refusal(root: &Node, fault: Fault) -> Refusal {
    let steps = root.steps(&fault.trail()).into_iter();
    let mut steps: Vec<String> = steps.map(|(name, number)| name.map_or(number.to_string(), str::to_owned)).collect();
    let is_of_segment = steps.first().is_some_and(|first| first == UNFOLD) && steps.len() > 2;
    let is_segment = is_of_segment && steps.len() == 3;
    if is_of_segment {
        steps.remove(2);
    }
    let key = steps.join(".").trim_end_matches('.').to_owned();
    let message = fault.missing.map_or(fault.message, |missing| format!("expected {key}.{missing} too"));
    (if is_segment { format!("{key}.kind") } else { key }, message)
}

/// The parameter at which a key stands: an item of a list stands at the list, and a whole at the first of its parts.
fn place<'k>(key: &'k str, mut given: impl Iterator<Item = &'k String> + Clone) -> &'k str {
    let is_below = |one: &str, other: &str| one.strip_prefix(other).is_some_and(|rest| rest.starts_with('.'));
    let found = given.clone().find(|given| *given == key || is_below(key, given));
    found.or_else(|| given.find(|given| is_below(given, key))).map_or(key, String::as_str)
}

/// Parameters whose keys begin alike.
#[derive(Debug, Default)]
struct Branch<'p> {
    key: &'p str,
    text: Option<&'p str>,
    children: BTreeMap<&'p str, Branch<'p>>,
}

impl Branch<'_> {
    /// The first of its keys.
    fn first(&self) -> String {
        match (self.text, self.children.values().next()) {
            (None, Some(child)) => child.first(),
            _ => self.key.to_owned(),
        }
    }

    /// The node of what is `depth` names deep. The text of a key that has others below it has the empty name there.
    fn node(&self, depth: usize) -> Result<Node, Refusal> {
        let raw = |text: &str| Node::Raw(text.to_owned());
        if let (Some(text), true) = (self.text, self.children.is_empty()) {
            return Ok(raw(text));
        }
        let mut entries: Vec<(String, Node)> = self.text.map(|text| (String::new(), raw(text))).into_iter().collect();
        for (name, child) in &self.children {
            let is_list = depth == 0 && !child.children.is_empty() && [STAGES, "exits", UNFOLD].contains(name);
            let node = if is_list { child.list(name)? } else { child.node(depth + 1)? };
            entries.push(((*name).to_owned(), node));
        }
        Ok(Node::Map(entries))
    }

    /// Children that are numbered from 0.
    fn list(&self, section: &str) -> Result<Node, Refusal> {
        if self.text.is_some() {
            let what = if section == STAGES { "a number or tensors to cut at" } else { "a text or a list" };
            return Err((section.to_owned(), format!("expected either {what} ({section}.0 …), but found both")));
        }
        let mut numbered: BTreeMap<u16, &Branch<'_>> = BTreeMap::new();
        for (name, child) in &self.children {
            // In the one form that is printed.
            let number = name.parse().ok().filter(|number: &u16| number.to_string() == *name);
            let number = number.ok_or_else(|| {
                (child.first(), format!("expected a number from 0 behind '{section}.', but found '{name}'"))
            })?;
            numbered.insert(number, child);
        }
        let items = numbered.into_iter().enumerate().map(|(expected, (number, child))| {
            if usize::from(number) != expected {
                let (what, key) = match section {
                    STAGES => ("cuts", ""),
                    UNFOLD => ("segments", ".kind"),
                    section => (section, ""),
                };
                let message = format!("{what} count from 0 without gaps: expected {section}.{expected}{key} too");
                return Err((child.first(), message));
            }
            let node = child.node(2)?;
            if section == UNFOLD { child.segment(node, expected) } else { Ok(node) }
        });
        items.collect::<Result<_, _>>().map(Node::List)
    }

    /// A segment as `model.yaml` has it: a mapping of its kind to its keys.
    fn segment(&self, node: Node, number: usize) -> Result<Node, Refusal> {
        let Node::Map(mut keys) = node else { return Ok(node) };
        let kind = keys.iter().position(|(key, _)| key == "kind").map(|at| keys.remove(at).1);
        match kind {
            Some(Node::Raw(kind)) => Ok(Node::Map(vec![(kind.trim().to_owned(), Node::Map(keys))])),
            _ => Err((self.first(), format!("expected {UNFOLD}.{number}.kind too"))),
        }
    }
}

/// Our own settings as parameters.
pub fn of(own: &Own) -> BTreeMap<String, String> {
    let mut texts = BTreeMap::new();
    // Settings are plain data with text keys, which always serialise.
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
