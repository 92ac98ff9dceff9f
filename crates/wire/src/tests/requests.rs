//! Requests as clients build them.

use bytes::Bytes;

use crate::pb::{
    InferParameter, InferTensorContents, ModelInferRequest,
    infer_parameter::ParameterChoice,
    model_infer_request::{InferInputTensor, InferRequestedOutputTensor},
};

/// A request that is built tensor by tensor.
#[derive(Clone, Debug, Default)]
pub(crate) struct Request(pub ModelInferRequest);

/// Returns `count` FP32 elements 0, 1, 2, … in wire form.
pub(crate) fn fp32(count: usize) -> Bytes {
    (0..count).flat_map(|value| (value as f32).to_le_bytes()).collect()
}

/// Creates a parameter.
pub(crate) fn parameter(value: ParameterChoice) -> InferParameter {
    InferParameter { parameter_choice: Some(value) }
}

/// Returns the parameters that refer to shared memory.
pub(crate) fn region(name: &str, offset: i64, byte_size: i64) -> Vec<(&'static str, ParameterChoice)> {
    vec![
        ("shared_memory_region", ParameterChoice::StringParam(name.to_owned())),
        ("shared_memory_offset", ParameterChoice::Int64Param(offset)),
        ("shared_memory_byte_size", ParameterChoice::Int64Param(byte_size)),
    ]
}

impl Request {
    pub(crate) fn new(id: &str) -> Self {
        Self(ModelInferRequest { id: id.to_owned(), ..ModelInferRequest::default() })
    }

    fn input(&mut self, name: &str, datatype: &str, shape: &[i64]) -> &mut InferInputTensor {
        let (name, datatype, shape) = (name.to_owned(), datatype.to_owned(), shape.to_vec());
        self.0.inputs.push(InferInputTensor { name, datatype, shape, ..InferInputTensor::default() });
        self.0.inputs.last_mut().expect("just pushed")
    }

    pub(crate) fn raw(mut self, name: &str, datatype: &str, shape: &[i64], data: impl Into<Bytes>) -> Self {
        self.input(name, datatype, shape);
        self.0.raw_input_contents.push(data.into());
        self
    }

    pub(crate) fn typed(mut self, name: &str, datatype: &str, shape: &[i64], contents: InferTensorContents) -> Self {
        self.input(name, datatype, shape).contents = Some(contents);
        self
    }

    pub(crate) fn shared(
        mut self,
        name: &str,
        datatype: &str,
        shape: &[i64],
        parameters: Vec<(&'static str, ParameterChoice)>,
    ) -> Self {
        let entries = parameters.into_iter().map(|(key, value)| (key.to_owned(), parameter(value)));
        self.input(name, datatype, shape).parameters = entries.collect();
        self
    }

    pub(crate) fn output(mut self, name: &str, parameters: Vec<(&'static str, ParameterChoice)>) -> Self {
        let entries = parameters.into_iter().map(|(key, value)| (key.to_owned(), parameter(value)));
        self.0.outputs.push(InferRequestedOutputTensor { name: name.to_owned(), parameters: entries.collect() });
        self
    }

    pub(crate) fn with(mut self, key: &str, value: ParameterChoice) -> Self {
        self.0.parameters.insert(key.to_owned(), parameter(value));
        self
    }
}
