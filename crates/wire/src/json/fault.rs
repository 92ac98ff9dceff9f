//! The faults of a request as JSON, before it is checked against its model.

use paternoster_model::DataType;

use crate::{Kind, RequestError};

#[derive(Debug, thiserror::Error)]
pub(super) enum JsonFault {
    #[error("failed to parse the request JSON: {0}")]
    Syntax(serde_json::Error),
    #[error("failed to parse the request JSON: '{member}': {error}")]
    Member { member: String, error: serde_json::Error },
    #[error("expected parameter '{key}' to be a number, a boolean or a string")]
    Nested { key: String },
    #[error("JSON nesting depth exceeds maximum allowed limit ({most})")]
    TooDeep { most: usize },
    #[error("Inference-Header-Content-Length is {json}, but the body has {body} bytes")]
    HeaderLength { json: usize, body: usize },
    #[error("input '{input}': {fault}")]
    Input { input: String, fault: InputFault },
    #[error("{left} bytes of binary data follow those of the inputs, expected none")]
    BinaryLeft { left: usize },
    #[error("invalid value type for '{key}' parameter, expected {expected}")]
    ParameterType { key: &'static str, expected: &'static str },
    #[error(
        "output '{output}' for model '{model}': sending {datatype} data via JSON is not supported, ask for it as \
         binary data"
    )]
    NoJsonForm { model: String, output: String, datatype: DataType },
    #[error("raw binary request: {0}")]
    Raw(String),
}

#[derive(Debug, thiserror::Error)]
pub(super) enum InputFault {
    #[error("expected one of 'data', the parameter 'binary_data_size', or shared memory, got {got}")]
    Sources { got: &'static str },
    #[error("invalid value type for 'binary_data_size' parameter, expected a number of bytes")]
    BinarySizeType,
    #[error("'binary_data_size' is {wanted}, but {left} bytes of binary data are left")]
    BinaryData { wanted: i64, left: usize },
    #[error("receiving {0} data via JSON is not supported, expected binary data")]
    NoJsonForm(DataType),
    #[error("unable to parse 'data' as {datatype}: {error}")]
    Data { datatype: DataType, error: serde_json::Error },
    #[error("unable to parse 'data' as {datatype}: the value {value} does not fit the datatype, expected {expected}")]
    NotFinite { datatype: DataType, value: &'static str, expected: &'static str },
    #[error("the shape {shape:?} has a negative dimension or more elements than can be counted")]
    Uncountable { shape: Vec<i64> },
    #[error("the shape {shape:?} does not match the number of elements in 'data': expected {expected}, got {got}")]
    Count { shape: Vec<i64>, expected: usize, got: usize },
}

impl JsonFault {
    pub(super) fn of_input(input: &str, fault: InputFault) -> Self {
        Self::Input { input: input.to_owned(), fault }
    }
}

impl From<JsonFault> for RequestError {
    fn from(fault: JsonFault) -> Self {
        Self::new(Kind::InvalidArgument, fault.to_string())
    }
}
