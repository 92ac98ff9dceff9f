//! Node attributes.

use super::{
    check::DataLength,
    pb::{self, attribute_proto::AttributeType},
};

/// The value of a node attribute. Implements `From` for numbers, texts, lists and graphs.
#[derive(Debug)]
pub enum Attribute {
    /// An integer.
    Int(i64),
    /// A floating-point number.
    Float(f32),
    /// A text.
    Text(String),
    /// A list of integers.
    Ints(Vec<i64>),
    /// A sub-graph, with the length mismatches of its constants, which are reported when the outer graph is finished.
    Graph(Box<pb::GraphProto>, Vec<DataLength>),
}

impl Attribute {
    pub(super) fn into_proto(self, name: &str, lengths: &mut Vec<DataLength>) -> pb::AttributeProto {
        let mut proto = pb::AttributeProto { name: Some(name.to_owned()), ..Default::default() };
        let kind = match self {
            Self::Int(value) => {
                proto.i = Some(value);
                AttributeType::Int
            }
            Self::Float(value) => {
                proto.f = Some(value);
                AttributeType::Float
            }
            Self::Text(value) => {
                proto.s = Some(value.into_bytes());
                AttributeType::String
            }
            Self::Ints(values) => {
                proto.ints = values;
                AttributeType::Ints
            }
            Self::Graph(graph, inner) => {
                proto.g = Some(graph);
                lengths.extend(inner);
                AttributeType::Graph
            }
        };
        proto.r#type = Some(kind.into());
        proto
    }
}

impl From<i64> for Attribute {
    fn from(value: i64) -> Self {
        Self::Int(value)
    }
}

impl From<f32> for Attribute {
    fn from(value: f32) -> Self {
        Self::Float(value)
    }
}

impl From<&str> for Attribute {
    fn from(value: &str) -> Self {
        Self::Text(value.to_owned())
    }
}

impl<const N: usize> From<[i64; N]> for Attribute {
    fn from(values: [i64; N]) -> Self {
        Self::Ints(values.to_vec())
    }
}

impl From<&[i64]> for Attribute {
    fn from(values: &[i64]) -> Self {
        Self::Ints(values.to_vec())
    }
}
