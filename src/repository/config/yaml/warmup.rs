//! `warmup` of a `model.yaml`: requests that run before a version is ready.

use super::{
    read::{Reader, Value},
    tensors::datatype,
};
use crate::repository::config::{
    ConfigError,
    convert::datatype_to_pb,
    pb::{self, model_warmup::input::InputDataType},
};

pub(super) fn samples(
    reader: &mut Reader<'_>,
    value: &Value<'_>,
    config: &mut pb::ModelConfig,
) -> Result<(), ConfigError> {
    reader.note("model_warmup", value);
    for (number, item) in reader.list(value)?.iter().enumerate() {
        let path = format!("model_warmup[{number}]");
        let section = reader.section(item, &["name", "batch_size", "count", "inputs"])?;
        let mut sample = pb::ModelWarmup { name: format!("warmup {number}"), batch_size: 1, ..Default::default() };
        reader.note(path.as_str(), item);
        if let Some(name) = section.get("name") {
            sample.name = reader.text(name)?;
        }
        if let Some(size) = section.get("batch_size") {
            sample.batch_size = reader.int(size, 1..=i128::from(u32::MAX))?;
            reader.note(format!("{path}.batch_size"), size);
        }
        if let Some(count) = section.get("count") {
            sample.count = reader.int(count, 1..=i128::from(u32::MAX))?;
        }
        if let Some(inputs) = section.get("inputs") {
            reader.note(format!("{path}.inputs"), inputs);
            for (name, entry) in reader.mapping(inputs)?.entries() {
                sample.inputs.insert((*name).to_owned(), input(reader, entry)?);
                reader.note(format!("{path}.inputs[{name}]"), entry);
            }
        }
        config.model_warmup.push(sample);
    }
    Ok(())
}

fn input(reader: &Reader<'_>, value: &Value<'_>) -> Result<pb::model_warmup::Input, ConfigError> {
    let section = reader.section(value, &["dtype", "dims", "data", "file"])?;
    let Some(dtype) = section.get("dtype") else { return Err(reader.error(value, "expected the key 'dtype'")) };
    let Some(dims) = section.get("dims") else { return Err(reader.error(value, "expected the key 'dims'")) };
    let data_type = datatype_to_pb(datatype(reader, dtype)?).into();
    let sizes = reader.list(dims)?;
    let sizes = sizes.iter().map(|size| reader.int(size, 0..=i128::from(i64::MAX))).collect::<Result<_, _>>()?;
    let data = match (section.get("data"), section.get("file")) {
        (None, None) => InputDataType::ZeroData(true),
        (Some(kind), None) => match reader.text(kind)?.as_str() {
            "zero" => InputDataType::ZeroData(true),
            "random" => InputDataType::RandomData(true),
            other => return Err(reader.error(kind, format!("expected zero or random, but found '{other}'"))),
        },
        (None, Some(file)) => InputDataType::InputDataFile(reader.text(file)?),
        (Some(_), Some(file)) => return Err(reader.error(file, "expected either 'data' or 'file', but found both")),
    };
    Ok(pb::model_warmup::Input { data_type, dims: sizes, input_data_type: Some(data) })
}
