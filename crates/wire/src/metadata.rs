//! A model's specification in the form of ModelMetadata.

use paternoster_model::{ModelSpec, TensorSpec};

use super::pb::{ModelMetadataResponse, model_metadata_response::TensorMetadata};

/// Returns the reply to ModelMetadata. `versions` are the ready versions; `platform` comes from the configuration.
///
/// Shapes have −1 for the batch, if the model has one, and for every variable dimension.
pub fn metadata(spec: &ModelSpec, versions: &[i64], platform: &str) -> ModelMetadataResponse {
    let batched = spec.has_batch_axis();
    ModelMetadataResponse {
        name: spec.name.clone(),
        versions: versions.iter().map(i64::to_string).collect(),
        platform: platform.to_owned(),
        inputs: spec.inputs.iter().map(|tensor| tensor_metadata(tensor, batched)).collect(),
        outputs: spec.outputs.iter().map(|tensor| tensor_metadata(tensor, batched)).collect(),
    }
}

fn tensor_metadata(tensor: &TensorSpec, batched: bool) -> TensorMetadata {
    let batch = batched.then_some(-1);
    TensorMetadata {
        name: tensor.name.clone(),
        datatype: tensor.datatype.as_str().to_owned(),
        shape: batch.into_iter().chain(tensor.dims.iter().copied()).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::models;

    #[test]
    fn the_batch_and_variable_dimensions_show_as_minus_one() {
        let response = metadata(&models::ident_var(), &[1, 3], "onnxruntime_onnx");
        assert_eq!(response.name, "ident_var");
        assert_eq!(response.versions, ["1", "3"]);
        assert_eq!(response.platform, "onnxruntime_onnx");
        assert_eq!(response.inputs[0].datatype, "INT64");
        assert_eq!(response.inputs[0].shape, [-1, -1]);
        assert_eq!(response.outputs[0].name, "OUTPUT0");
    }

    #[test]
    fn a_model_without_a_batch_axis_shows_its_dims_alone() {
        let response = metadata(&models::identity_nobatch(), &[1], "");
        assert_eq!(response.inputs[0].shape, [1, 16]);
        assert_eq!(response.outputs[0].shape, [1, 16]);
    }
}
