//! A node as the rules of lowering see it.

use crate::onnx::pb;

/// A node, with the version of the standard operator set.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call<'m> {
    /// The node.
    pub node: &'m pb::NodeProto,
    /// Version of the standard operator set.
    pub opset: i64,
}

impl<'m> Call<'m> {
    /// The operator.
    pub(crate) fn op(&self) -> &'m str {
        self.node.op_type()
    }

    /// Whether the operator is the standard's.
    pub(crate) fn is_standard(&self) -> bool {
        matches!(self.node.domain(), "" | "ai.onnx")
    }

    /// The name of an operand, unless it is left out.
    pub(crate) fn operand(&self, index: usize) -> Option<&'m str> {
        self.node.input.get(index).map(String::as_str).filter(|name| !name.is_empty())
    }

    /// The operands that are there.
    pub(crate) fn operands(&self) -> impl Iterator<Item = &'m str> {
        self.node.input.iter().map(String::as_str).filter(|name| !name.is_empty())
    }

    /// The name of an output; empty where it is left out.
    pub(crate) fn result(&self, index: usize) -> &'m str {
        self.node.output.get(index).map_or("", String::as_str)
    }

    /// An attribute.
    pub(crate) fn attribute(&self, name: &str) -> Option<&'m pb::AttributeProto> {
        self.node.attribute.iter().find(|attribute| attribute.name() == name)
    }

    /// A whole number.
    pub(crate) fn int(&self, name: &str) -> Option<i64> {
        self.attribute(name)?.i
    }

    /// A number.
    pub(crate) fn float(&self, name: &str) -> Option<f32> {
        self.attribute(name)?.f
    }

    /// Whole numbers.
    pub(crate) fn ints(&self, name: &str) -> Option<&'m [i64]> {
        self.attribute(name).map(|attribute| attribute.ints.as_slice())
    }

    /// A text.
    pub(crate) fn text(&self, name: &str) -> Option<&'m [u8]> {
        self.attribute(name)?.s.as_deref()
    }

    /// The node in a message, with a reason.
    pub(crate) fn named(&self, reason: Option<&str>) -> String {
        let domain = match self.node.domain() {
            "" | "ai.onnx" => String::new(),
            domain => format!("{domain}."),
        };
        let name = match self.node.name() {
            "" => format!("the node of '{}'", self.result(0)),
            name => format!("node '{name}'"),
        };
        let reason = reason.map(|reason| format!(": {reason}")).unwrap_or_default();
        format!("{domain}{} ({name}{reason})", self.op())
    }
}
