//! Triton's `ModelConfig`: its descriptor, decoded once, by which text and JSON are read, its datatypes, and its inputs
//! and outputs as one list.

use std::sync::LazyLock;

use paternoster_model::DataType;
use paternoster_onnx::{Port, Signature};
use prost_reflect::{DescriptorPool, DynamicMessage, MessageDescriptor, Value};

use super::{ConfigErrorKind, SettingError, nearest::suggestion, pb};

static MODEL_CONFIG: LazyLock<Option<MessageDescriptor>> = LazyLock::new(|| {
    let pool = DescriptorPool::decode(pb::DESCRIPTORS).ok()?;
    pool.get_message_by_name("inference.ModelConfig")
});

/// Returns the descriptor of `inference.ModelConfig`.
///
/// # Errors
/// Fails only if the crate was built from a broken descriptor set.
pub(super) fn descriptor() -> Result<MessageDescriptor, SettingError> {
    MODEL_CONFIG.clone().ok_or_else(|| internal("the compiled descriptors hold no inference.ModelConfig"))
}

/// The error about a key that a message does not have; `within` says where, such as ` in input[0]`.
pub(super) fn unknown_field(message: &MessageDescriptor, name: &str, within: &str) -> SettingError {
    let names: Vec<String> = message.fields().map(|field| field.name().to_owned()).collect();
    let hint = suggestion(name, names.iter().map(String::as_str));
    SettingError::unknown(format!("unknown key '{name}'{within}{hint}"))
}

fn internal(message: impl Into<String>) -> SettingError {
    SettingError::new(ConfigErrorKind::Internal, message)
}

/// A field that is set, in a configuration or in one of the messages and lists within it.
#[derive(Debug)]
pub(super) struct SetField {
    /// The message and the field as `model_config.proto` names them, such as `ModelInput.format`.
    pub(super) name: String,
    /// The path, such as `input[0].format`.
    pub(super) path: String,
}

/// Converts a configuration to a message of the descriptor.
///
/// # Errors
/// Fails only if the crate was built from a broken descriptor set.
pub(super) fn message(config: &pb::ModelConfig) -> Result<DynamicMessage, SettingError> {
    let mut message = DynamicMessage::new(descriptor()?);
    message.transcode_from(config).map_err(|fault| internal(fault.to_string()))?;
    Ok(message)
}

/// Lists all fields that are set to anything but their default. Values of maps are left out.
///
/// # Errors
/// As [`message`].
pub(super) fn set_fields(config: &pb::ModelConfig) -> Result<Vec<SetField>, SettingError> {
    let mut found = Vec::new();
    collect(&message(config)?, "", &mut found);
    Ok(found)
}

fn collect(message: &DynamicMessage, within: &str, found: &mut Vec<SetField>) {
    for (field, value) in message.fields() {
        let path = format!("{within}{}", field.name());
        match value {
            Value::Message(inner) => collect(inner, &format!("{path}."), found),
            Value::List(items) => {
                for (number, inner) in items.iter().filter_map(Value::as_message).enumerate() {
                    collect(inner, &format!("{path}[{number}]."), found);
                }
            }
            _ => {}
        }
        let name = field.full_name().trim_start_matches("inference.").to_owned();
        found.push(SetField { name, path });
    }
}

/// Converts a number of the configuration's enumeration; `None` for `TYPE_INVALID` and unknown numbers.
pub fn datatype(number: i32) -> Option<DataType> {
    let index = usize::try_from(number).ok()?.checked_sub(1)?;
    DataType::ALL.get(index).copied()
}

/// Returns the value of the configuration's enumeration for a datatype.
pub fn datatype_to_pb(datatype: DataType) -> pb::DataType {
    let index = DataType::ALL.iter().position(|known| *known == datatype).unwrap_or_default();
    i32::try_from(index + 1).ok().and_then(|number| pb::DataType::try_from(number).ok()).unwrap_or_default()
}

/// An input or an output, for checks that apply to both.
pub(super) struct Tensor<'a> {
    pub(super) path: String,
    pub(super) what: &'static str,
    pub(super) name: &'a str,
    pub(super) data_type: i32,
    pub(super) dims: &'a [i64],
    pub(super) reshape: Option<&'a [i64]>,
    pub(super) optional: bool,
}

impl Tensor<'_> {
    /// Returns the graph's inputs or outputs, whichever kind this is.
    pub(super) fn ports<'s>(&self, signature: &'s Signature) -> Vec<&'s Port> {
        if self.what == "input" { signature.all_inputs().collect() } else { signature.outputs.iter().collect() }
    }

    /// Returns the dims that the graph has.
    pub(super) fn shape(&self) -> &[i64] {
        self.reshape.unwrap_or(self.dims)
    }
}

pub(super) fn tensors(config: &pb::ModelConfig) -> impl Iterator<Item = Tensor<'_>> {
    let inputs = config.input.iter().enumerate().map(|(number, tensor)| Tensor {
        path: format!("input[{number}]"),
        what: "input",
        name: &tensor.name,
        data_type: tensor.data_type,
        dims: &tensor.dims,
        reshape: tensor.reshape.as_ref().map(|reshape| reshape.shape.as_slice()),
        optional: tensor.optional,
    });
    let outputs = config.output.iter().enumerate().map(|(number, tensor)| Tensor {
        path: format!("output[{number}]"),
        what: "output",
        name: &tensor.name,
        data_type: tensor.data_type,
        dims: &tensor.dims,
        reshape: tensor.reshape.as_ref().map(|reshape| reshape.shape.as_slice()),
        optional: false,
    });
    inputs.chain(outputs)
}

/// Returns the section `sequence_batching`.
pub fn sequence_batching(config: &pb::ModelConfig) -> Option<&pb::ModelSequenceBatching> {
    match &config.scheduling_choice {
        Some(pb::model_config::SchedulingChoice::SequenceBatching(batching)) => Some(batching),
        _ => None,
    }
}

/// Whether a tensor has no dimension in the graph and one of size 1 on the wire. Models with a batch axis have such
/// inputs only with sequences, where requests that run together must agree in it.
pub fn is_scalar(config: &pb::ModelConfig, port: &Port) -> bool {
    let may_be = config.max_batch_size == 0 || sequence_batching(config).is_some();
    may_be && port.dims.as_ref().is_some_and(Vec::is_empty)
}
