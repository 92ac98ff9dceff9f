//! `stages` and `exits` of a `model.yaml`.

use super::{
    put,
    read::{Reader, Value},
    tree::Node,
};
use crate::repository::config::{
    ConfigError,
    knobs::MAX_STAGES,
    pb,
    stages::{EXITS, STAGES},
};

const EXIT: [&str; 5] = ["stage", "value", "at_least", "outputs", "skip_to"];

/// Reads `stages`: a number, `auto`, or the tensors to cut at.
pub(super) fn cuts(
    reader: &mut Reader<'_>,
    value: &Value<'_>,
    config: &mut pb::ModelConfig,
) -> Result<(), ConfigError> {
    let expected = format!("auto, a number of stages from 1 to {MAX_STAGES} or a list of tensors to cut at");
    match value.node {
        Node::Int(count) if (1..=i128::from(MAX_STAGES)).contains(count) => {
            put(reader, config, STAGES.to_owned(), count.to_string(), value);
        }
        Node::Text(word) if word == "auto" => put(reader, config, STAGES.to_owned(), word.clone(), value),
        Node::List(items) if !items.is_empty() => {
            for (number, tensor) in reader.list(value)?.iter().enumerate() {
                let name = reader.text(tensor)?;
                put(reader, config, format!("{STAGES}.{number}"), name, tensor);
            }
        }
        _ => return Err(reader.expected(value, &expected)),
    }
    Ok(())
}

/// Reads `exits`, a list.
pub(super) fn exits(
    reader: &mut Reader<'_>,
    value: &Value<'_>,
    config: &mut pb::ModelConfig,
) -> Result<(), ConfigError> {
    for (number, item) in reader.list(value)?.iter().enumerate() {
        let section = reader.section(item, &EXIT)?;
        let exit = format!("{EXITS}.{number}");
        for name in ["stage", "value", "at_least"] {
            if section.get(name).is_none() {
                return Err(reader.error(item, format!("expected the key '{name}'")));
            }
        }
        for (name, entry) in section.entries() {
            let key = format!("{exit}.{name}");
            match *name {
                "value" => {
                    let tensor = reader.text(entry)?;
                    put(reader, config, key, tensor, entry);
                }
                "at_least" => {
                    let least = reader.number(entry)?;
                    put(reader, config, key, least.to_string(), entry);
                }
                "outputs" => {
                    for (output, tensor) in reader.mapping(entry)?.entries() {
                        let name = reader.text(tensor)?;
                        put(reader, config, format!("{key}.{output}"), name, tensor);
                    }
                }
                _ => {
                    let stage: u16 = reader.int(entry, 0..=i128::from(MAX_STAGES) - 1)?;
                    put(reader, config, key, stage.to_string(), entry);
                }
            }
        }
    }
    Ok(())
}
