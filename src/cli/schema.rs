//! `paternoster schema`: what editors check and complete a `model.yaml` by, from the types that read it.

use std::io::{self, Write};

use clap::Args;
use paternoster_config::model::ModelSettings;
use schemars::{
    Schema,
    generate::SchemaSettings,
    transform::{RecursiveTransform, Transform as _},
};
use serde_json::Value;

/// What references to definitions begin with.
const DEFINITIONS: &str = "#/definitions/";

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  paternoster schema > models/model.schema.json
  sed -i '1i # yaml-language-server: $schema=../model.schema.json' models/mine/model.yaml")]
pub(super) struct SchemaArgs {}

/// Prints the JSON schema of `model.yaml`.
///
/// # Errors
/// When it cannot be printed.
pub(super) fn run(_: &SchemaArgs) -> io::Result<()> {
    writeln!(io::stdout().lock(), "{}", serde_json::to_string_pretty(&schema())?)
}

fn schema() -> Schema {
    let mut schema = SchemaSettings::draft07().into_generator().into_root_schema_for::<ModelSettings>();
    let definitions = schema.get("definitions").cloned().unwrap_or_default();
    RecursiveTransform(|schema: &mut Schema| without_null(schema, &definitions)).transform(&mut schema);
    schema
}

/// A key without a value is an empty mapping where there may be one, and otherwise refused.
fn without_null(schema: &mut Schema, definitions: &Value) {
    if may_be_empty_mapping(schema.as_value(), definitions) {
        return;
    }
    let mut retain = |key: &str, is_kept: fn(&Value) -> bool| {
        if let Some(alternatives) = schema.get_mut(key).and_then(Value::as_array_mut) {
            alternatives.retain(is_kept);
        }
    };
    retain("type", |kind| kind != "null");
    retain("enum", |word| !word.is_null());
    retain("anyOf", |alternative| alternative["type"] != "null");
}

fn may_be_empty_mapping(schema: &Value, definitions: &Value) -> bool {
    if schema["required"].as_array().is_some_and(|keys| !keys.is_empty()) {
        return false;
    }
    let is_mapping = |kind: &Value| kind == "object";
    let name = schema["$ref"].as_str().and_then(|path| path.strip_prefix(DEFINITIONS));
    let alternatives = ["anyOf", "oneOf"].iter().filter_map(|key| schema[key].as_array()).flatten();
    is_mapping(&schema["type"])
        || schema["type"].as_array().is_some_and(|kinds| kinds.iter().any(is_mapping))
        || name.is_some_and(|name| may_be_empty_mapping(&definitions[name], definitions))
        || alternatives.into_iter().any(|alternative| may_be_empty_mapping(alternative, definitions))
}

#[cfg(test)]
mod tests {
    use paternoster_config::yaml;

    use super::*;

    /// Returns the alternatives of a schema, without references.
    fn alternatives<'s>(schema: &'s Value, definitions: &'s Value) -> Vec<&'s Value> {
        if let Some(name) = schema["$ref"].as_str().and_then(|path| path.strip_prefix(DEFINITIONS)) {
            return alternatives(&definitions[name], definitions);
        }
        match schema["anyOf"].as_array().or(schema["oneOf"].as_array()) {
            Some(all) => all.iter().flat_map(|one| alternatives(one, definitions)).collect(),
            None => vec![schema],
        }
    }

    /// Returns the paths of all keys in mappings, and whether they may be without a value.
    fn keys(schema: &Value, definitions: &Value, path: &str, found: &mut Vec<(String, bool)>) {
        for section in alternatives(schema, definitions) {
            for (key, property) in section["properties"].as_object().into_iter().flatten() {
                let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                let is_null = |kind: &Value| kind == "null";
                let may_be_null = |one: &&Value| {
                    is_null(&one["type"]) || one["type"].as_array().is_some_and(|kinds| kinds.iter().any(is_null))
                };
                found.push((path.clone(), alternatives(property, definitions).iter().any(may_be_null)));
                keys(property, definitions, &path, found);
            }
        }
    }

    #[test]
    fn a_key_may_be_without_a_value_only_where_the_reader_takes_that() {
        let schema = schema();
        let mut found = Vec::new();
        keys(schema.as_value(), &schema.as_value()["definitions"], "", &mut found);
        let refused = |path: &str| {
            let (section, key) = path.rsplit_once('.').unwrap_or(("", path));
            let sections: String =
                section.split('.').filter(|name| !name.is_empty()).map(|name| format!("{name}: {{ ")).collect();
            let text = format!("{sections}{key}: {}", "} ".repeat(sections.matches('{').count()));
            let read = yaml::parse("model.yaml", text.as_bytes());
            read.err().map(|fault| fault.to_string()).filter(|fault| fault.ends_with("but found nothing"))
        };
        for key in ["batching.adaptive.mode", "batching.diversity.operator.order", "engine", "instance.precision"] {
            assert!(found.contains(&(key.to_owned(), false)) && refused(key).is_some(), "{key} in {found:?}");
        }
        assert!(found.contains(&("batching".to_owned(), true)) && refused("batching").is_none(), "{found:?}");
        for (path, _) in found.iter().filter(|(_, may_be_null)| *may_be_null) {
            assert_eq!(refused(path), None, "{path}");
        }
    }
}
