//! `inputs` and `outputs` of a `model.yaml`.

use super::{
    read::{Reader, Section, Value},
    tree::Node,
};
use crate::{
    model::DataType,
    repository::config::{
        ConfigError,
        convert::{datatype_from_name, datatype_to_pb},
        nearest::suggestion,
        params::{self, Pad},
        pb,
    },
};

/// What inputs and outputs have in common.
struct Common {
    name: String,
    data_type: i32,
    dims: Vec<i64>,
    reshape: Option<pb::ModelTensorReshape>,
}

pub(super) fn inputs(
    reader: &mut Reader<'_>,
    value: &Value<'_>,
    config: &mut pb::ModelConfig,
) -> Result<(), ConfigError> {
    reader.note("input", value);
    for (number, item) in reader.list(value)?.iter().enumerate() {
        let section = reader.section(item, &["name", "dtype", "dims", "reshape", "optional", "pad"])?;
        let common = tensor(reader, config, item, &section, &format!("input[{number}]"))?;
        let optional = section.get("optional").map(|flag| reader.flag(flag)).transpose()?.unwrap_or(false);
        if let Some(given) = section.get("pad") {
            let key = format!("{}{}", params::PAD, common.name);
            let string_value = pad(reader, given)?.text();
            reader.note(format!("parameters[{key}]"), given);
            config.parameters.insert(key, pb::ModelParameter { string_value });
        }
        let Common { name, data_type, dims, reshape } = common;
        config.input.push(pb::ModelInput { name, data_type, dims, reshape, optional, ..Default::default() });
    }
    Ok(())
}

pub(super) fn outputs(
    reader: &mut Reader<'_>,
    value: &Value<'_>,
    config: &mut pb::ModelConfig,
) -> Result<(), ConfigError> {
    reader.note("output", value);
    for (number, item) in reader.list(value)?.iter().enumerate() {
        let section = reader.section(item, &["name", "dtype", "dims", "reshape", "labels"])?;
        let path = format!("output[{number}]");
        let common = tensor(reader, config, item, &section, &path)?;
        let mut label_filename = String::new();
        if let Some(labels) = section.get("labels") {
            label_filename = reader.text(labels)?;
            reader.note(format!("{path}.label_filename"), labels);
        }
        let Common { name, data_type, dims, reshape } = common;
        config.output.push(pb::ModelOutput { name, data_type, dims, reshape, label_filename, ..Default::default() });
    }
    Ok(())
}

fn tensor(
    reader: &mut Reader<'_>,
    config: &mut pb::ModelConfig,
    item: &Value<'_>,
    section: &Section<'_>,
    path: &str,
) -> Result<Common, ConfigError> {
    reader.note(path, item);
    let Some(name_value) = section.get("name") else { return Err(reader.error(item, "expected the key 'name'")) };
    let name = reader.text(name_value)?;
    reader.note(format!("{path}.name"), name_value);
    let mut data_type = 0;
    if let Some(value) = section.get("dtype") {
        data_type = datatype_to_pb(datatype(reader, value)?).into();
        reader.note(format!("{path}.data_type"), value);
    }
    let mut sizes = Vec::new();
    if let Some(value) = section.get("dims") {
        let (numbers, names) = dims(reader, value)?;
        sizes = numbers;
        reader.note(format!("{path}.dims"), value);
        if names.iter().any(Option::is_some) {
            let key = format!("{}{name}", params::AXES);
            reader.note(format!("parameters[{key}]"), value);
            config.parameters.insert(key, pb::ModelParameter { string_value: params::axes_text(&names) });
        }
    }
    let mut reshape = None;
    if let Some(value) = section.get("reshape") {
        let items = reader.list(value)?;
        let shape = items.iter().map(|item| reader.int(item, -1..=i128::from(i64::MAX)));
        reshape = Some(pb::ModelTensorReshape { shape: shape.collect::<Result<_, _>>()? });
        reader.note(format!("{path}.reshape"), value);
    }
    Ok(Common { name, data_type, dims: sizes, reshape })
}

pub(super) fn datatype(reader: &Reader<'_>, value: &Value<'_>) -> Result<DataType, ConfigError> {
    let name = reader.text(value)?;
    datatype_from_name(&name).ok_or_else(|| {
        let hint = suggestion(&name, DataType::ALL.map(DataType::as_str));
        reader.error(value, format!("expected a datatype such as FP32, INT64 or BYTES, but found '{name}'{hint}"))
    })
}

/// Sizes, and the names of those dimensions that vary under a name.
fn dims(reader: &Reader<'_>, value: &Value<'_>) -> Result<(Vec<i64>, Vec<Option<String>>), ConfigError> {
    let mut sizes = Vec::new();
    let mut names = Vec::new();
    for item in reader.list(value)? {
        if let Node::Text(name) = item.node {
            if !params::is_symbol(name) {
                let message = format!("expected a size, -1, or the name of an axis, but found '{name}'");
                return Err(reader.error(&item, message));
            }
            sizes.push(-1);
            names.push(Some(name.clone()));
        } else {
            sizes.push(reader.int(&item, -1..=i128::from(i64::MAX))?);
            names.push(None);
        }
    }
    Ok((sizes, names))
}

fn pad(reader: &Reader<'_>, value: &Value<'_>) -> Result<Pad, ConfigError> {
    let section = reader.section(value, &["axis", "axes", "value"])?;
    let axis = |item: &Value<'_>| {
        let name = match item.node {
            Node::Int(number) => {
                let message = format!("expected the name of an axis, but found {number}: give it a name in dims");
                return Err(reader.error(item, message));
            }
            _ => reader.text(item)?,
        };
        if params::is_symbol(&name) {
            return Ok(name);
        }
        Err(reader.error(item, format!("expected the name of an axis, but found '{name}'")))
    };
    let symbols = match (section.get("axis"), section.get("axes")) {
        (Some(item), None) => vec![axis(item)?],
        (None, Some(list)) => reader.list(list)?.iter().map(axis).collect::<Result<_, _>>()?,
        _ => return Err(reader.error(value, "expected either 'axis' (a name) or 'axes' (a list of names)")),
    };
    if symbols.is_empty() {
        return Err(reader.error(value, "expected at least one axis"));
    }
    let value = section.get("value").map(|number| reader.number(number)).transpose()?.unwrap_or(0.0);
    Ok(Pad { symbols, value })
}
