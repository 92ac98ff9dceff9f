//! Inference rules of the operators: shape and values of each output, and the axis along which it carries the rows.
//!
//! A rule returns `None` if it cannot determine the result. Rules never fail, whatever the file contains.

mod along;
mod elementwise;
mod layout;
mod matrix;
mod shape;
mod window;

use super::{
    call::{Call, Outcomes},
    size::{Dim, Symbols},
};
use crate::{links::subgraphs, pb};

/// Returns the outcomes of an operator; `None` for unknown operators as well.
pub(super) fn outcomes(call: &Call<'_>, symbols: &mut Symbols) -> Outcomes {
    if !is_standard(call.node) {
        return fused(call);
    }
    match call.node.op_type() {
        "Abs" | "Acos" | "Acosh" | "Asin" | "Asinh" | "Atan" | "Atanh" | "BitwiseNot" | "Cast" | "CastLike"
        | "Ceil" | "Celu" | "Clip" | "Cos" | "Cosh" | "Elu" | "Erf" | "Exp" | "Floor" | "Gelu" | "HardSigmoid"
        | "HardSwish" | "Identity" | "IsInf" | "IsNaN" | "LeakyRelu" | "Log" | "Mish" | "Neg" | "Not"
        | "Reciprocal" | "Relu" | "Round" | "Selu" | "Shrink" | "Sigmoid" | "Sign" | "Sin" | "Sinh" | "Softplus"
        | "Softsign" | "Sqrt" | "Swish" | "Tan" | "Tanh" | "ThresholdedRelu" => elementwise::of_first(call),
        name if broadcasts(name) => elementwise::broadcasting(call, symbols),
        "Dropout" => elementwise::dropout(call),
        "Shape" => shape::shape(call),
        "Size" => shape::size(call),
        "Reshape" => shape::reshape(call, symbols),
        "Flatten" => shape::flatten(call, symbols),
        "Unsqueeze" => shape::unsqueeze(call),
        "Squeeze" => shape::squeeze(call),
        "Expand" => shape::expand(call, symbols),
        "Tile" => shape::tile(call, symbols),
        "ConstantOfShape" => shape::constant_of_shape(call, symbols),
        "Range" => shape::range(call, symbols),
        "Transpose" => layout::transpose(call),
        "Concat" => layout::concat(call, symbols),
        "Split" => layout::split(call),
        "Slice" => layout::slice(call, symbols),
        "Gather" => layout::gather(call),
        "GatherElements" => layout::gather_elements(call),
        "ScatterElements" => layout::scatter_elements(call),
        "Pad" => layout::pad(call, symbols),
        "OneHot" => layout::one_hot(call),
        "Trilu" => layout::triangle(call),
        "DepthToSpace" | "SpaceToDepth" => layout::depth_and_space(call, symbols),
        "Resize" | "Upsample" => layout::resize(call),
        "MatMul" | "MatMulInteger" => matrix::product(call, 0, 1),
        "QLinearMatMul" => matrix::product(call, 0, 3),
        "Gemm" => matrix::gemm(call),
        "Conv" | "ConvInteger" => window::convolution(call, symbols, 0, 1),
        "QLinearConv" => window::convolution(call, symbols, 0, 3),
        "ConvTranspose" => window::transposed_convolution(call, symbols),
        "MaxPool" | "AveragePool" | "LpPool" => window::pool(call, symbols),
        "GlobalAveragePool" | "GlobalLpPool" | "GlobalMaxPool" => window::global_pool(call),
        "ReduceL1" | "ReduceL2" | "ReduceLogSum" | "ReduceLogSumExp" | "ReduceMax" | "ReduceMean" | "ReduceMin"
        | "ReduceProd" | "ReduceSum" | "ReduceSumSquare" => along::reduce(call),
        "ArgMax" | "ArgMin" => along::greatest_index(call),
        "Softmax" | "LogSoftmax" | "Hardmax" => along::softmax(call),
        "CumSum" => along::running_sum(call),
        "LpNormalization" => along::unit_length(call),
        "LayerNormalization" | "RMSNormalization" => along::layer_norm(call),
        "BatchNormalization" | "InstanceNormalization" | "GroupNormalization" | "LRN" => along::channel_norm(call),
        "QuantizeLinear" | "DequantizeLinear" => along::quantize(call),
        "TopK" => along::greatest(call),
        "LSTM" | "GRU" | "RNN" => along::recurrent(call),
        _ => None,
    }
}

/// Returns whether a layer of gates runs along the steps that are followed.
pub(super) fn recurs(call: &Call<'_>) -> bool {
    call.follows_steps && has_gates(call.node) && along::runs_along_rows(call)
}

/// Returns whether a node is a recurrent layer whose step the operator defines.
pub(crate) fn has_gates(node: &pb::NodeProto) -> bool {
    is_standard(node) && matches!(node.op_type(), "LSTM" | "GRU" | "RNN")
}

fn broadcasts(name: &str) -> bool {
    matches!(
        name,
        "Add"
            | "And"
            | "BitShift"
            | "BitwiseAnd"
            | "BitwiseOr"
            | "BitwiseXor"
            | "Div"
            | "Equal"
            | "Greater"
            | "GreaterOrEqual"
            | "Less"
            | "LessOrEqual"
            | "Max"
            | "Mean"
            | "Min"
            | "Mod"
            | "Mul"
            | "Or"
            | "Pow"
            | "PRelu"
            | "Sub"
            | "Sum"
            | "Where"
            | "Xor"
    )
}

/// Returns pairs of lengths of a node's operands that must be equal, unless one of them is 1.
pub(super) fn equal_lengths<'d>(node: &pb::NodeProto, operands: &[&'d [Dim]]) -> Vec<(&'d Dim, &'d Dim)> {
    let (Some((first, others)), true) = (operands.split_first(), is_standard(node)) else { return Vec::new() };
    match node.op_type() {
        name if broadcasts(name) => {
            others.iter().flat_map(|other| first.iter().rev().zip(other.iter().rev())).collect()
        }
        "MatMul" => match (first.last(), others) {
            (Some(last), [[.., inner, _], ..] | [[inner], ..]) => vec![(last, inner)],
            _ => Vec::new(),
        },
        _ => Vec::new(),
    }
}

/// Operators of ONNX Runtime that its optimizer writes into files.
fn fused(call: &Call<'_>) -> Outcomes {
    match (call.node.domain(), call.node.op_type()) {
        ("com.microsoft", "Gelu" | "QuickGelu" | "FastGelu" | "BiasGelu") => along::onto_first(call),
        _ => None,
    }
}

/// Returns whether a node is of the standard operator set.
pub(crate) fn is_standard(node: &pb::NodeProto) -> bool {
    matches!(node.domain(), "" | "ai.onnx")
}

/// Returns whether a node always computes the same results from the same operands, as far as known.
pub(crate) fn is_repeatable(node: &pb::NodeProto) -> bool {
    let draws = matches!(
        node.op_type(),
        "Bernoulli" | "Multinomial" | "RandomNormal" | "RandomNormalLike" | "RandomUniform" | "RandomUniformLike"
    );
    is_standard(node) && !draws && subgraphs(node).all(|graph| graph.node.iter().all(is_repeatable))
}

/// Returns whether an operand specifies the shape of the output, or a part of the first operand.
pub(super) fn is_shape_operand(node: &pb::NodeProto, index: usize) -> bool {
    match node.op_type() {
        "ConstantOfShape" | "Range" => true,
        "Expand" | "OneHot" | "Reshape" | "Split" | "Squeeze" | "Tile" | "TopK" | "Unsqueeze" => index == 1,
        "Upsample" | "Slice" | "Resize" => index >= 1,
        "Pad" => index == 1 || index == 3,
        name => name.starts_with("Reduce") && index == 1,
    }
}
