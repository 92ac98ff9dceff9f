//! A policy in one line, for command lines: the section `batching` of `model.yaml` in flow style, without its braces.

use serde_yaml::{Mapping, Value};

/// Keys of the model that the line may contain beside those of `batching`.
const OF_THE_MODEL: [&str; 2] = ["max_batch_size", "stages"];

/// A policy's text, split by section. [`super::yaml`] checks its keys and values.
#[derive(Clone, Debug, PartialEq)]
pub struct PolicyText {
    /// The section `batching`, always with `policy`.
    pub batching: Mapping,
    /// `max_batch_size` and `stages`, if given.
    pub model: Mapping,
}

impl PolicyText {
    /// Reads `lazy`, `window: { max_queue_delay_us: 500 }, queueing: { bucket_width: 10 }` or `policy: window,
    /// queueing: { … }`. The first key names the policy, unless there is a key `policy`. Returns `None` if the text is
    /// not a mapping.
    pub fn read(text: &str) -> Option<Self> {
        let mut batching: Mapping = serde_yaml::from_str(&format!("{{ {text} }}")).ok()?;
        let mut model = Mapping::new();
        for key in OF_THE_MODEL {
            if let Some(value) = batching.remove(key) {
                model.insert(key.into(), value);
            }
        }
        if !batching.contains_key("policy") {
            let (first, knobs) = batching.iter().next()?;
            let (policy, is_bare) = (first.as_str()?.to_owned(), *knobs == Value::Null);
            if is_bare {
                batching.remove(policy.as_str());
            }
            batching.insert("policy".into(), policy.into());
        }
        Some(Self { batching, model })
    }

    /// Returns both as a document of `model.yaml`.
    pub fn document(&self) -> Mapping {
        let mut document = self.model.clone();
        document.insert("batching".into(), Value::Mapping(self.batching.clone()));
        document
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Option<String> {
        PolicyText::read(text).map(|read| serde_yaml::to_string(&read.document()).expect("it can be written"))
    }

    #[test]
    fn the_first_key_is_the_policy_unless_it_is_named() {
        assert_eq!(read("lazy").as_deref(), Some("batching:\n  policy: lazy\n"));
        let window = "batching:\n  window:\n    max_queue_delay_us: 5\n  policy: window\n";
        assert_eq!(read("window: { max_queue_delay_us: 5 }").as_deref(), Some(window));
        let named = "batching:\n  queueing:\n    bucket_width: 10\n  policy: window\n";
        assert_eq!(read("queueing: { bucket_width: 10 }, policy: window").as_deref(), Some(named));
    }

    #[test]
    fn what_belongs_to_the_model_stands_beside() {
        let both = "max_batch_size: 8\nstages: 3\nbatching:\n  policy: lazy\n";
        assert_eq!(read("lazy, stages: 3, max_batch_size: 8").as_deref(), Some(both));
    }

    #[test]
    fn what_is_no_mapping_is_refused() {
        assert_eq!([read("[1]"), read(""), read("window: {"), read("3: 4")], [None, None, None, None]);
    }
}
