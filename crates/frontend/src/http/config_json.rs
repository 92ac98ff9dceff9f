//! A model's configuration as JSON.

use paternoster_config::pb;
use prost_reflect::{DescriptorError, DescriptorPool, DynamicMessage, MessageDescriptor, SerializeOptions};
use serde_json::Value;

use super::Problem;

/// Why the schema of configurations cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigSchemaError {
    /// The descriptors are damaged.
    #[error(transparent)]
    Descriptors(#[from] DescriptorError),
    /// The descriptors have no `inference.ModelConfig`.
    #[error("the descriptors lack inference.ModelConfig")]
    Missing,
}

/// Writes `ModelConfig` like Triton's HTTP endpoint: keys as in `model_config.proto`, 64-bit integers as numbers, and
/// every field, whether set or default. Only unset messages and choices are omitted.
#[derive(Clone, Debug)]
pub(super) struct ConfigJson(MessageDescriptor);

impl ConfigJson {
    pub(super) fn new() -> Result<Self, ConfigSchemaError> {
        let pool = DescriptorPool::decode(pb::DESCRIPTORS)?;
        pool.get_message_by_name("inference.ModelConfig").map(Self).ok_or(ConfigSchemaError::Missing)
    }

    pub(super) fn write(&self, config: &pb::ModelConfig) -> Result<Value, Problem> {
        let mut message = DynamicMessage::new(self.0.clone());
        message.transcode_from(config).map_err(|error| Problem::internal(&error))?;
        let options = SerializeOptions::new()
            .use_proto_field_name(true)
            .stringify_64_bit_integers(false)
            .skip_default_fields(false);
        message
            .serialize_with_options(serde_json::value::Serializer, &options)
            .map_err(|error| Problem::internal(&error))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_field_is_there_by_its_name_in_the_schema_and_dims_are_numbers() {
        let input = pb::ModelInput {
            name: "INPUT0".to_owned(),
            data_type: pb::DataType::TypeFp32.into(),
            dims: vec![-1, 16],
            ..pb::ModelInput::default()
        };
        let config = pb::ModelConfig {
            name: "ident".to_owned(),
            max_batch_size: 8,
            input: vec![input],
            ..pb::ModelConfig::default()
        };
        let written = ConfigJson::new().expect("the descriptors are whole").write(&config).expect("a plain message");
        let expected = json!({
            "name": "ident",
            "max_batch_size": 8,
            "input": [{
                "name": "INPUT0",
                "data_type": "TYPE_FP32",
                "format": "FORMAT_NONE",
                "dims": [-1, 16],
                "is_shape_tensor": false,
                "allow_ragged_batch": false,
                "optional": false,
                "is_non_linear_format_io": false,
            }],
            "platform": "",
            "backend": "",
            "runtime": "",
            "output": [],
            "batch_input": [],
            "batch_output": [],
            "instance_group": [],
            "default_model_filename": "",
            "cc_model_filenames": {},
            "metric_tags": {},
            "parameters": {},
            "model_warmup": [],
        });
        assert_eq!(written, expected);
    }
}
