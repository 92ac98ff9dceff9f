//! Element types of operator outputs.

use paternoster_model::DataType;

use super::{call::Call, ops::is_standard};
use crate::{pb::tensor_proto::DataType as Elem, port::datatype_of};

/// Returns the element type of an output; `None` if it is unknown or not supported by the protocol.
pub(super) fn of_output(call: &Call<'_>, index: usize) -> Option<DataType> {
    let operand = |index: usize| call.operand(index)?.datatype;
    let named = |name: &str| call.int(name).and_then(|code| Elem::try_from(i32::try_from(code).ok()?).ok());
    if !is_standard(call.node) {
        return call.node.op_type().ends_with("Gelu").then(|| operand(0)).flatten();
    }
    match (call.node.op_type(), index) {
        ("And" | "Equal" | "Greater" | "GreaterOrEqual" | "IsInf" | "IsNaN" | "Less" | "LessOrEqual", _)
        | ("Not" | "Or" | "Xor", _)
        | ("Dropout", 1) => Some(DataType::Bool),
        ("ArgMax" | "ArgMin" | "NonZero" | "Shape" | "Size", _) | ("MaxPool" | "TopK", 1) => Some(DataType::Int64),
        ("Cast", _) => datatype_of(named("to")?),
        ("CastLike" | "Where" | "DequantizeLinear", _) => operand(1),
        ("OneHot", _) => operand(2),
        ("QuantizeLinear", _) => match call.operand(2) {
            Some(zero) => zero.datatype,
            None => {
                named("output_dtype").filter(|elem| *elem != Elem::Undefined).map_or(Some(DataType::Uint8), datatype_of)
            }
        },
        ("QLinearConv" | "QLinearMatMul", _) => operand(7),
        ("MatMulInteger" | "ConvInteger", _) => Some(DataType::Int32),
        ("ConstantOfShape", _) => match call.attribute("value").and_then(|attribute| attribute.t.as_ref()) {
            Some(tensor) => datatype_of(Elem::try_from(tensor.data_type()).ok()?),
            None => Some(DataType::Fp32),
        },
        ("EyeLike", _) => named("dtype").map_or(operand(0), datatype_of),
        ("LayerNormalization", 1..) => Some(DataType::Fp32),
        // Results of bodies, sequences and optionals can have any type.
        ("If" | "Loop" | "Scan" | "SequenceAt" | "OptionalGetElement", _) => None,
        (name, _) if name.starts_with("Random") || name.starts_with("Sequence") || name.contains("Window") => None,
        ("Bernoulli" | "Multinomial" | "Unique" | "DynamicQuantizeLinear" | "StringSplit" | "ImageDecoder", _) => None,
        ("TfIdfVectorizer" | "NonMaxSuppression" | "StringNormalizer" | "RegexFullMatch", _) => None,
        _ => operand(0),
    }
}
