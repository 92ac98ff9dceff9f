//! A node of the graph, as lowering rules read it.

use paternoster_onnx::pb;

/// A node, with the opset version of the standard operators.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call<'m> {
    /// The node.
    pub node: &'m pb::NodeProto,
    /// Opset version of the standard operators.
    pub opset: i64,
}

impl<'m> Call<'m> {
    /// Returns the operator.
    pub(crate) fn op(&self) -> &'m str {
        self.node.op_type()
    }

    /// Returns whether it is a standard ONNX operator.
    pub(crate) fn is_standard(&self) -> bool {
        matches!(self.node.domain(), "" | "ai.onnx")
    }

    /// Returns the name of an operand; `None` if it is left out.
    pub(crate) fn operand(&self, index: usize) -> Option<&'m str> {
        self.node.input.get(index).map(String::as_str).filter(|name| !name.is_empty())
    }

    /// Returns the names of the operands that are not left out.
    pub(crate) fn operands(&self) -> impl Iterator<Item = &'m str> {
        self.node.input.iter().map(String::as_str).filter(|name| !name.is_empty())
    }

    /// Returns the name of an output; empty if it is left out.
    pub(crate) fn result(&self, index: usize) -> &'m str {
        self.node.output.get(index).map_or("", String::as_str)
    }

    /// Returns an attribute.
    pub(crate) fn attribute(&self, name: &str) -> Option<&'m pb::AttributeProto> {
        self.node.attribute.iter().find(|attribute| attribute.name() == name)
    }

    /// Returns an integer attribute.
    pub(crate) fn int(&self, name: &str) -> Option<i64> {
        self.attribute(name)?.i
    }

    /// Returns a float attribute.
    pub(crate) fn float(&self, name: &str) -> Option<f32> {
        self.attribute(name)?.f
    }

    /// Returns an attribute that is a list of integers.
    pub(crate) fn ints(&self, name: &str) -> Option<&'m [i64]> {
        self.attribute(name).map(|attribute| attribute.ints.as_slice())
    }

    /// Returns a string attribute.
    pub(crate) fn text(&self, name: &str) -> Option<&'m [u8]> {
        self.attribute(name)?.s.as_deref()
    }

    /// Returns how messages name the node, with a reason if one is given.
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
