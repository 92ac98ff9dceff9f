//! Specifications for tests and fuzzing: the models of the recorded Triton responses, and others with features that
//! those lack.

use paternoster_model::{DataType, ModelSpec, SymbolId, TensorSpec};
use smallvec::smallvec;

/// Builds a model with these tensors; −1 is a variable dimension.
pub(crate) fn model(name: &str, max_batch_size: u32, inputs: Vec<TensorSpec>, outputs: Vec<TensorSpec>) -> ModelSpec {
    let (name, version, symbols, decoupled) = (name.to_owned(), 1, Vec::new(), false);
    ModelSpec { name, version, max_batch_size, inputs, outputs, symbols, decoupled }
}

/// Builds a model with input `INPUT0` and output `OUTPUT0` of the same type.
pub(crate) fn identity(name: &str, max_batch_size: u32, datatype: DataType, dims: &[i64]) -> ModelSpec {
    let tensor = |name| vec![TensorSpec::new(name, datatype, dims)];
    model(name, max_batch_size, tensor("INPUT0"), tensor("OUTPUT0"))
}

pub(crate) fn identity_onnx() -> ModelSpec {
    identity("identity_onnx", 64, DataType::Fp32, &[16])
}

pub(crate) fn identity_nobatch() -> ModelSpec {
    identity("identity_nobatch", 0, DataType::Fp32, &[1, 16])
}

pub(crate) fn ident_var() -> ModelSpec {
    identity("ident_var", 8, DataType::Int64, &[-1])
}

pub(crate) fn ident_str() -> ModelSpec {
    identity("ident_str", 8, DataType::Bytes, &[2])
}

#[cfg(test)]
pub(crate) fn decoupled_py() -> ModelSpec {
    ModelSpec { decoupled: true, ..identity("decoupled_py", 8, DataType::Fp32, &[16]) }
}

pub(crate) fn addsub() -> ModelSpec {
    let tensor = |name| TensorSpec::new(name, DataType::Fp32, &[16]);
    model("addsub", 8, vec![tensor("INPUT0"), tensor("INPUT1")], vec![tensor("OUTPUT0"), tensor("OUTPUT1")])
}

/// Two token inputs padded along one axis, and an optional third input.
pub(crate) fn padded() -> ModelSpec {
    let tokens =
        |name| TensorSpec { symbols: smallvec![Some(SymbolId(0))], ..TensorSpec::new(name, DataType::Int64, &[-1]) };
    let types = TensorSpec { optional: true, ..tokens("token_type_ids") };
    let output = TensorSpec::new("sentence_embedding", DataType::Fp32, &[384]);
    let inputs = vec![tokens("input_ids"), tokens("attention_mask"), types];
    ModelSpec { symbols: vec!["sequence".to_owned()], ..model("padded", 8, inputs, vec![output]) }
}

/// One input and one output of every datatype, each with one variable axis, without a batch.
pub(crate) fn every_datatype() -> ModelSpec {
    let tensors = || DataType::ALL.map(|datatype| TensorSpec::new(datatype.as_str(), datatype, &[-1])).to_vec();
    let inputs = tensors().into_iter().map(|tensor| TensorSpec { optional: true, ..tensor }).collect();
    model("every_datatype", 0, inputs, tensors())
}

/// Returns the model of a recorded response; `None` if the name is unknown.
#[cfg(test)]
pub(crate) fn measured(name: &str) -> Option<ModelSpec> {
    match name {
        "identity_onnx" => Some(identity_onnx()),
        "identity_nobatch" => Some(identity_nobatch()),
        "ident_var" => Some(ident_var()),
        "ident_str" => Some(ident_str()),
        "ident_seq" => Some(identity("ident_seq", 8, DataType::Fp32, &[16])),
        "ident_prio" => Some(identity("ident_prio", 8, DataType::Fp32, &[16])),
        "decoupled_py" => Some(decoupled_py()),
        "addsub" => Some(addsub()),
        _ => None,
    }
}

/// Returns specifications of every kind, for fuzzing.
pub(crate) fn all() -> Vec<ModelSpec> {
    let huge = identity("huge", u32::MAX, DataType::Fp64, &[-1, -1, -1]);
    let scalar = identity("scalar", 0, DataType::Uint8, &[]);
    vec![
        identity_onnx(),
        identity_nobatch(),
        ident_var(),
        ident_str(),
        addsub(),
        padded(),
        every_datatype(),
        huge,
        scalar,
    ]
}
