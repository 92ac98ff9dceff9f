//! Inputs and outputs of a graph, and the mapping between ONNX's and the protocol's types.

use std::fmt;

use paternoster_model::DataType;

use super::pb::{self, tensor_proto::DataType as Elem, tensor_shape_proto::dimension, type_proto};

/// The type of probabilities in the default output of converters for scikit-learn and LightGBM models.
const SEQUENCE_OF_MAPS: &str = "sequence of maps";

/// An input or output of a graph.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    /// Name of the tensor.
    pub name: String,
    /// Element type; `None` if the port is not a dense tensor or its type is not supported by the protocol.
    pub datatype: Option<DataType>,
    /// Name of the type in the file, for messages: `FLOAT`, `FLOAT8E4M3FN`, `sequence of maps`, …
    pub type_name: &'static str,
    /// Dimensions, including the batch; `None` if the rank is unknown.
    pub dims: Option<Vec<PortDim>>,
}

/// A dimension of a port.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum PortDim {
    /// A fixed length. A file may contain a meaningless negative number here.
    Fixed(i64),
    /// The same length as every other dimension with this name (ONNX's `dim_param`).
    Symbol(String),
    /// Any length.
    Unknown,
}

impl fmt::Display for PortDim {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(length) => write!(formatter, "{length}"),
            Self::Symbol(name) => formatter.write_str(name),
            Self::Unknown => formatter.write_str("?"),
        }
    }
}

impl From<i64> for PortDim {
    fn from(length: i64) -> Self {
        Self::Fixed(length)
    }
}

impl From<&str> for PortDim {
    fn from(symbol: &str) -> Self {
        Self::Symbol(symbol.to_owned())
    }
}

/// Dimensions in short form: `dims!["batch", 3, 224, 224]`.
#[cfg(feature = "tools")]
#[macro_export]
macro_rules! dims {
    ($($dim:expr),* $(,)?) => { [$($crate::PortDim::from($dim)),*] };
}
#[cfg(feature = "tools")]
pub(crate) use dims;

impl Port {
    /// Creates the port of a dense tensor.
    pub fn tensor(name: &str, datatype: DataType, dims: &[PortDim]) -> Self {
        let type_name = elem_of(datatype).as_str_name();
        Self { name: name.to_owned(), datatype: Some(datatype), type_name, dims: Some(dims.to_vec()) }
    }

    /// Returns a message on why a port without a supported datatype cannot be served, and how to fix it.
    pub fn refusal(&self) -> String {
        let Self { name, type_name, .. } = self;
        match *type_name {
            SEQUENCE_OF_MAPS => format!(
                "the graph gives '{name}' as a sequence of maps, expected a tensor: convert the model with \
                 zipmap=False (skl2onnx: options={{'zipmap': False}}), or list the other outputs alone"
            ),
            _ => format!("the graph has the type {type_name} for '{name}', which the protocol does not have"),
        }
    }

    /// Decodes an input or output of a graph.
    pub fn of(info: &pb::ValueInfoProto) -> Self {
        Self::decode(info.clone())
    }

    pub(super) fn decode(info: pb::ValueInfoProto) -> Self {
        let name = info.name.unwrap_or_default();
        let declared = info.r#type.and_then(|declared| declared.value);
        let (elem, shape, type_name) = match declared {
            Some(type_proto::Value::TensorType(tensor)) => (tensor.elem_type, tensor.shape, None),
            Some(type_proto::Value::SequenceType(sequence)) => {
                let element = sequence.elem_type.and_then(|element| element.value);
                let of_maps = matches!(element, Some(type_proto::Value::MapType(_)));
                (None, None, Some(if of_maps { SEQUENCE_OF_MAPS } else { "sequence" }))
            }
            Some(type_proto::Value::MapType(_)) => (None, None, Some("map")),
            Some(type_proto::Value::OptionalType(_)) => (None, None, Some("optional")),
            Some(type_proto::Value::SparseTensorType(_)) => (None, None, Some("sparse tensor")),
            Some(type_proto::Value::OpaqueType(_)) => (None, None, Some("opaque")),
            None => (None, None, Some("undeclared")),
        };
        let elem = elem.map(Elem::try_from).and_then(Result::ok);
        let dims = shape.map(|shape| shape.dim.into_iter().map(PortDim::decode).collect());
        let named = type_name.unwrap_or_else(|| elem.map_or("unknown", |elem| elem.as_str_name()));
        Self { name, datatype: elem.and_then(datatype_of), type_name: named, dims }
    }
}

impl PortDim {
    /// Returns the length; −1 if it varies.
    pub fn size(&self) -> i64 {
        match self {
            Self::Fixed(length) if *length >= 0 => *length,
            Self::Fixed(_) | Self::Symbol(_) | Self::Unknown => -1,
        }
    }

    /// Returns the dimension with a name. Some exporters name axes of which they know nothing `?`.
    pub fn named(name: &str) -> Self {
        if ["", "?"].contains(&name) { Self::Unknown } else { Self::Symbol(name.to_owned()) }
    }

    fn decode(dim: pb::tensor_shape_proto::Dimension) -> Self {
        match dim.value {
            Some(dimension::Value::DimValue(length)) => Self::Fixed(length),
            Some(dimension::Value::DimParam(name)) => Self::named(&name),
            None => Self::Unknown,
        }
    }

    fn encode(&self) -> pb::tensor_shape_proto::Dimension {
        let value = match self {
            Self::Fixed(length) => Some(dimension::Value::DimValue(*length)),
            Self::Symbol(name) => Some(dimension::Value::DimParam(name.clone())),
            Self::Unknown => None,
        };
        pb::tensor_shape_proto::Dimension { value, denotation: None }
    }
}

/// Declares a dense tensor.
pub(super) fn declare(name: &str, datatype: DataType, dims: &[PortDim]) -> pb::ValueInfoProto {
    let shape = pb::TensorShapeProto { dim: dims.iter().map(PortDim::encode).collect() };
    let tensor = type_proto::Tensor { elem_type: Some(elem_of(datatype).into()), shape: Some(shape) };
    let declared = pb::TypeProto { value: Some(type_proto::Value::TensorType(tensor)), denotation: None };
    pb::ValueInfoProto { name: Some(name.to_owned()), r#type: Some(declared), ..Default::default() }
}

/// Returns ONNX's element type for a datatype.
pub(super) fn elem_of(datatype: DataType) -> Elem {
    match datatype {
        DataType::Bool => Elem::Bool,
        DataType::Uint8 => Elem::Uint8,
        DataType::Uint16 => Elem::Uint16,
        DataType::Uint32 => Elem::Uint32,
        DataType::Uint64 => Elem::Uint64,
        DataType::Int8 => Elem::Int8,
        DataType::Int16 => Elem::Int16,
        DataType::Int32 => Elem::Int32,
        DataType::Int64 => Elem::Int64,
        DataType::Fp16 => Elem::Float16,
        DataType::Fp32 => Elem::Float,
        DataType::Fp64 => Elem::Double,
        DataType::Bytes => Elem::String,
        DataType::Bf16 => Elem::Bfloat16,
    }
}

pub(super) fn datatype_of(elem: Elem) -> Option<DataType> {
    DataType::ALL.into_iter().find(|&datatype| elem_of(datatype) == elem)
}
