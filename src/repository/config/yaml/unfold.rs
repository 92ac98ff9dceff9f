//! `cells` and `unfold` of a `model.yaml`.

use super::{
    named, put,
    read::{Reader, Section, Value},
    tree::Node,
};
use crate::{
    engine::{OnnxEngine, Precision},
    repository::config::{
        ConfigError, pb,
        unfold::{
            CELLS, Kind, MAX_NODES, MAX_ROWS, UNFOLD, is_name,
            keys::{
                BATCH_SIZES, CELL, ENGINE, KIND, MAX_NODES as NODES, MAX_STEPS, OF_CELLS, OVER, PRECISION, PRIORITY,
                PROGRAM, REVERSE, START, STEPS, STREAM, UNTIL,
            },
        },
    },
};

/// The cell's input that `over` gives its rows, where `over` is no mapping.
const AS: &str = "as";

/// Reads `cells`, a mapping.
pub(super) fn cells(
    reader: &mut Reader<'_>,
    value: &Value<'_>,
    config: &mut pb::ModelConfig,
) -> Result<(), ConfigError> {
    let cells = reader.mapping(value)?;
    if cells.entries().is_empty() {
        return Err(reader.error(value, "expected at least one cell"));
    }
    for (cell, own) in cells.entries() {
        if !is_name(cell) {
            let message = format!("expected a name of letters, digits, '_' and '-', but found '{cell}'");
            return Err(reader.error(own, message));
        }
        let section = reader.section(own, &OF_CELLS)?;
        required(reader, own, &section, &[PROGRAM])?;
        for (key, entry) in section.entries() {
            let text = match *key {
                PROGRAM => reader.text(entry)?,
                BATCH_SIZES => {
                    let sizes = reader.list(entry)?;
                    let sizes = sizes.iter().map(|size| whole(reader, size, 1..=i128::from(MAX_ROWS)));
                    sizes.collect::<Result<Vec<_>, _>>()?.join(",")
                }
                PRIORITY => whole(reader, entry, 1..=i128::from(u32::MAX))?,
                ENGINE => named::<OnnxEngine>(reader, entry)?,
                PRECISION => named::<Precision>(reader, entry)?,
                _ => whole(reader, entry, 1..=i128::from(MAX_ROWS))?,
            };
            put(reader, config, format!("{CELLS}.{cell}.{key}"), text, entry);
        }
    }
    Ok(())
}

/// Reads `unfold`, a list of segments, each a mapping from its kind to its keys.
pub(super) fn segments(
    reader: &mut Reader<'_>,
    value: &Value<'_>,
    config: &mut pb::ModelConfig,
) -> Result<(), ConfigError> {
    let items = reader.list(value)?;
    if items.is_empty() {
        return Err(reader.error(value, "expected at least one segment"));
    }
    for (number, item) in items.iter().enumerate() {
        let choice = reader.section(item, &Kind::ALL.map(Kind::as_str))?;
        let [(word, own)] = choice.entries() else {
            return Err(reader.error(item, "expected one of stage, chain, decode and tree"));
        };
        let Some(kind) = Kind::from_name(word) else { continue };
        let prefix = format!("{UNFOLD}.{number}");
        put(reader, config, format!("{prefix}.{KIND}"), kind.as_str().to_owned(), own);
        match own.node {
            Node::Text(cell) if kind == Kind::Stage => {
                put(reader, config, format!("{prefix}.{CELL}"), cell.clone(), own)
            }
            _ => segment(reader, own, kind, &prefix, config)?,
        }
    }
    Ok(())
}

fn segment(
    reader: &mut Reader<'_>,
    value: &Value<'_>,
    kind: Kind,
    prefix: &str,
    config: &mut pb::ModelConfig,
) -> Result<(), ConfigError> {
    let steps_over = kind.maps().contains(&OVER);
    let own = kind.plain().iter().chain(kind.maps()).copied();
    let known: Vec<&str> = own.chain(steps_over.then_some(AS)).collect();
    let section = reader.section(value, &known)?;
    required(reader, value, &section, kind.required())?;
    for (key, entry) in section.entries() {
        let path = format!("{prefix}.{key}");
        match *key {
            AS if section.get(OVER).is_none() => {
                return Err(reader.error(entry, "expected 'over', which names the tensor, beside it"));
            }
            AS => {}
            OVER if !matches!(entry.node, Node::Map(_)) => {
                let tensor = reader.text(entry)?;
                let Some(input) = section.get(AS) else {
                    let message = "expected 'as', the cell's input, beside it, or a mapping from inputs to tensors";
                    return Err(reader.error(entry, message));
                };
                put(reader, config, format!("{path}.{}", reader.text(input)?), tensor, entry);
            }
            map if kind.maps().contains(&map) => {
                if let (OVER, Some(input)) = (map, section.get(AS)) {
                    return Err(reader.error(input, "the mapping 'over' names the cell's inputs: remove this"));
                }
                mapping(reader, entry, map, &path, config)?;
            }
            plain => {
                let text = scalar(reader, entry, plain)?;
                put(reader, config, path, text, entry);
            }
        }
    }
    Ok(())
}

fn mapping(
    reader: &mut Reader<'_>,
    value: &Value<'_>,
    map: &str,
    path: &str,
    config: &mut pb::ModelConfig,
) -> Result<(), ConfigError> {
    let section = reader.mapping(value)?;
    if section.entries().is_empty() {
        return Err(reader.error(value, "expected at least one entry"));
    }
    for (from, entry) in section.entries() {
        if from.is_empty() {
            return Err(reader.error(entry, "expected a name as key"));
        }
        let text = match (map, entry.node) {
            (START, Node::Int(number)) => number.to_string(),
            (START, Node::Float(number)) if number.is_finite() => number.to_string(),
            (START, Node::Text(tensor)) => tensor.clone(),
            (START, _) => return Err(reader.expected(entry, "a number, or the name of a tensor")),
            (UNTIL, _) => whole(reader, entry, i128::from(i64::MIN)..=i128::from(i64::MAX))?,
            _ => reader.text(entry)?,
        };
        put(reader, config, format!("{path}.{from}"), text, entry);
    }
    Ok(())
}

fn scalar(reader: &Reader<'_>, value: &Value<'_>, key: &str) -> Result<String, ConfigError> {
    match key {
        STEPS | MAX_STEPS => match value.node {
            Node::Text(expression) => Ok(expression.clone()),
            Node::Int(number) if *number >= 0 => Ok(number.to_string()),
            _ => Err(reader.expected(value, "a number of steps, or an expression such as \"len(tokens) + 1\"")),
        },
        REVERSE | STREAM => reader.flag(value).map(|flag| flag.to_string()),
        NODES => whole(reader, value, 1..=i128::from(MAX_NODES)),
        _ => reader.text(value),
    }
}

fn whole(reader: &Reader<'_>, value: &Value<'_>, range: std::ops::RangeInclusive<i128>) -> Result<String, ConfigError> {
    reader.int::<i128>(value, range).map(|number| number.to_string())
}

fn required(reader: &Reader<'_>, value: &Value<'_>, section: &Section<'_>, keys: &[&str]) -> Result<(), ConfigError> {
    match keys.iter().find(|key| section.get(key).is_none()) {
        Some(missing) => Err(reader.error(value, format!("expected the key '{missing}'"))),
        None => Ok(()),
    }
}
