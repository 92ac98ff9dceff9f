use std::collections::BTreeSet;

use serde_json::Value;

use super::*;
use crate::{parameters::tests::folded, values::Keywords};

/// The refusal of a parameter's text, behind its key.
fn refusal(key: &str, text: &str) -> String {
    let refused = folded(&[(key, text)]).expect_err("it should be refused").to_string();
    let (_, message) = refused.split_once(&format!("parameters[{key}]: ")).expect("it names the key");
    message.to_owned()
}

#[test]
fn values_outside_of_their_bounds_are_refused_with_what_is_expected() {
    let objective = "batching.latency_objective_ms";
    assert_eq!(refusal(objective, "0"), "expected a number above 0, at most 86400000, but found 0");
    for text in ["-1", "NaN", "inf", "1e9", "", "ten"] {
        assert!(refusal(objective, text).starts_with("expected a number above 0"), "{text}");
    }
    assert_eq!(refusal("batching.buffer_pairs", "0"), "expected a whole number from 1 to 16, but found 0");
    assert_eq!(refusal("batching.adaptive.headroom", "-0.1"), "expected a number from 0 to 10, but found -0.1");
    assert_eq!(refusal("batching.adaptive.mode", "fast"), "expected default or paper, but found 'fast'");
    assert_eq!(refusal("batching.lazy.reject_late", "yes"), "expected true or false, but found 'yes'");
    assert_eq!(
        refusal("batching.lazy.predictor", "oracle"),
        "the predictor 'oracle' is for simulation only, where latencies are known exactly; expected table or paper"
    );
    let bounds = "batching.diversity.input.bounds";
    for text in ["64,32", "8,8"] {
        let expected = format!("expected ascending lengths from 1, at most 64 of them, but found '{text}'");
        assert_eq!(refusal(bounds, text), expected);
    }
    for text in ["", "8,x", "8,"] {
        assert_eq!(refusal(bounds, text), format!("expected numbers with commas between them, but found '{text}'"));
    }
    assert_eq!(refusal(bounds, "0,8"), "expected a whole number from 1 to 4294967295, but found 0");
    let many: Vec<String> = (1..=65).map(|length: u32| length.to_string()).collect();
    assert!(refusal(bounds, &many.join(",")).contains("at most 64"));
}

#[test]
fn keys_that_are_not_known_get_a_hint() {
    let refused = refusal("batching.adaptive.headrom", "1");
    assert_eq!(refused, "unknown key 'headrom'; did you mean 'headroom'?");
    assert_eq!(refusal("batching.weights", "2"), "unknown key 'weights'; did you mean 'weight'?");
    assert_eq!(
        refusal("batching.diversity.load.max_stages", "1"),
        "unknown key 'max_stages'; did you mean 'max_stage'?"
    );
}

/// Every key of a schema, whatever it is a key of.
fn keys(schema: &Value, found: &mut BTreeSet<String>) {
    match schema {
        Value::Object(entries) => {
            for (name, value) in entries {
                if let ("properties", Value::Object(properties)) = (name.as_str(), value) {
                    found.extend(properties.keys().cloned());
                }
                keys(value, found);
            }
        }
        Value::Array(items) => items.iter().for_each(|item| keys(item, found)),
        _ => {}
    }
}

#[test]
fn the_documentation_names_every_key() {
    let mut found = BTreeSet::new();
    keys(schemars::schema_for!(ModelSettings).as_value(), &mut found);
    assert!(found.contains("max_catch_up_ms") && found.contains("min_followup"), "{found:?}");
    let page = include_str!("../../../../docs/model-configuration.md");
    let words = words(page);
    let missing: Vec<&String> = found.iter().filter(|key| !words.contains(key.as_str())).collect();
    assert!(missing.is_empty(), "docs/model-configuration.md does not name {missing:?}");
}

/// The words of a page, which may have hyphens, and their parts between those.
fn words(page: &str) -> BTreeSet<&str> {
    let hyphened = page.split(|letter: char| !letter.is_alphanumeric() && !['_', '-'].contains(&letter));
    hyphened.flat_map(|word| word.split('-').chain([word])).collect()
}

#[test]
fn the_documentation_describes_every_policy() {
    let pages = [
        ("docs/model-configuration.md", include_str!("../../../../docs/model-configuration.md")),
        ("docs/policies.md", include_str!("../../../../docs/policies.md")),
    ];
    for (file, page) in pages {
        for name in PolicyName::keywords() {
            let is_named = page.contains(&format!("\n| `{name}`")) || page.contains(&format!("\n| [`{name}`]("));
            assert!(is_named, "no table of {file} has a line for '{name}'");
        }
    }
}

#[test]
fn every_key_of_the_schema_says_what_it_means() {
    let schema = schemars::schema_for!(ModelSettings);
    let sections = schema.as_value()["$defs"].as_object().expect("it has sections").values();
    for section in sections.chain([schema.as_value()]) {
        for (key, property) in section["properties"].as_object().into_iter().flatten() {
            assert!(property["description"].is_string(), "'{key}' has no description");
        }
    }
}
