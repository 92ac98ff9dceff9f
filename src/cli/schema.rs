//! `paternoster schema`: what editors check and complete a `model.yaml` by, from the types that read it.

use std::io::{self, Write};

use clap::Args;
use schemars::{Schema, generate::SchemaSettings, transform::RecursiveTransform};
use serde_json::Value;

use crate::repository::config::model::Model;

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
    let settings = SchemaSettings::draft07().with_transform(RecursiveTransform(without_null));
    let schema = settings.into_generator().into_root_schema_for::<Model>();
    writeln!(io::stdout().lock(), "{}", serde_json::to_string_pretty(&schema)?)
}

/// A key without a value is an empty mapping where there may be one, and otherwise refused.
fn without_null(schema: &mut Schema) {
    let Some(kinds) = schema.get_mut("type").and_then(Value::as_array_mut) else { return };
    if kinds.iter().any(|kind| kind == "object") {
        return;
    }
    kinds.retain(|kind| kind != "null");
    if let Some(words) = schema.get_mut("enum").and_then(Value::as_array_mut) {
        words.retain(|word| !word.is_null());
    }
}
