use std::collections::BTreeSet;

use serde_json::Value as Json;

use super::*;
use crate::{
    ConfigErrorKind::{Unknown, Value},
    parameters::tests::parameter,
    tests::refusals::{Refusals, part},
    values::Keywords,
};

/// Every key of a schema, whatever it is a key of.
fn keys(schema: &Json, found: &mut BTreeSet<String>) {
    match schema {
        Json::Object(entries) => {
            for (name, value) in entries {
                if let ("properties", Json::Object(properties)) = (name.as_str(), value) {
                    found.extend(properties.keys().cloned());
                }
                keys(value, found);
            }
        }
        Json::Array(items) => items.iter().for_each(|item| keys(item, found)),
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

pub(crate) fn refusals(all: &mut Refusals) {
    part(all, "parameters of knobs", parameter).refuses(&[
        (Value, "parameters[batching.latency_objective_ms]", "batching.latency_objective_ms: 0"),
        (Value, "parameters[batching.latency_objective_ms]", "batching.latency_objective_ms: -1"),
        (Value, "parameters[batching.latency_objective_ms]", "batching.latency_objective_ms: NaN"),
        (Value, "parameters[batching.latency_objective_ms]", "batching.latency_objective_ms: inf"),
        (Value, "parameters[batching.latency_objective_ms]", "batching.latency_objective_ms: 1e9"),
        (Value, "parameters[batching.latency_objective_ms]", "batching.latency_objective_ms: "),
        (Value, "parameters[batching.latency_objective_ms]", "batching.latency_objective_ms: ten"),
        (Value, "parameters[batching.buffer_pairs]", "batching.buffer_pairs: 0"),
        (Value, "parameters[batching.adaptive.headroom]", "batching.adaptive.headroom: -0.1"),
        (Unknown, "parameters[batching.adaptive.mode]", "batching.adaptive.mode: fast"),
        (Value, "parameters[batching.lazy.reject_late]", "batching.lazy.reject_late: yes"),
        (Value, "parameters[batching.lazy.predictor]", "batching.lazy.predictor: oracle"),
        (Value, "parameters[batching.diversity.input.bounds]", "batching.diversity.input.bounds: 64,32"),
        (Value, "parameters[batching.diversity.input.bounds]", "batching.diversity.input.bounds: 8,8"),
        (Value, "parameters[batching.diversity.input.bounds]", "batching.diversity.input.bounds: "),
        (Value, "parameters[batching.diversity.input.bounds]", "batching.diversity.input.bounds: 8,x"),
        (Value, "parameters[batching.diversity.input.bounds]", "batching.diversity.input.bounds: 8,"),
        (Value, "parameters[batching.diversity.input.bounds]", "batching.diversity.input.bounds: 0,8"),
        (Unknown, "parameters[batching.adaptive.headrom]", "batching.adaptive.headrom: 1"),
        (Unknown, "parameters[batching.weights]", "batching.weights: 2"),
        (Unknown, "parameters[batching.diversity.load.max_stages]", "batching.diversity.load.max_stages: 1"),
    ]);
    let many: Vec<String> = (1..=65).map(|length: u32| length.to_string()).collect();
    part(all, "parameters of knobs: 65 bounds", parameter).refuses(&[(
        Value,
        "parameters[batching.diversity.input.bounds]",
        &format!("batching.diversity.input.bounds: {}", many.join(",")),
    )]);
}
