//! Responses within ModelStreamInfer: responses marked as last or not, and errors in-band.

use std::collections::HashMap;

use paternoster_model::ModelSpec;

use super::{
    RequestError, ResponsePlan,
    pb::{InferParameter, ModelInferResponse, ModelStreamInferResponse, infer_parameter::ParameterChoice},
};

/// Present on every successful stream response, and on failures of admitted requests.
pub const FINAL_RESPONSE: &str = "triton_final_response";

/// Builds a response. `last` is true for the single response of an ordinary model. Responses of decoupled models are
/// never last (see [`empty_final`]).
pub fn success(mut response: ModelInferResponse, last: bool) -> ModelStreamInferResponse {
    mark(&mut response.parameters, last);
    ModelStreamInferResponse { error_message: String::new(), infer_response: Some(response) }
}

/// Builds the final response of a decoupled request that asked for one: only id and model, without outputs and version.
pub fn empty_final(spec: &ModelSpec, plan: &ResponsePlan) -> ModelStreamInferResponse {
    let response =
        ModelInferResponse { model_name: spec.name.clone(), id: plan.id.clone(), ..ModelInferResponse::default() };
    success(response, true)
}

/// Builds the response for an error before admission: it carries only the id, and the stream continues.
pub fn refusal(error: RequestError) -> ModelStreamInferResponse {
    let (id, error_message) = error.into_parts();
    let response = ModelInferResponse { id, ..ModelInferResponse::default() };
    ModelStreamInferResponse { error_message, infer_response: Some(response) }
}

/// Builds the response for the failure of an admitted request: it names the model and is the request's last response.
pub fn failure(spec: &ModelSpec, error: RequestError) -> ModelStreamInferResponse {
    let (id, error_message) = error.into_parts();
    let mut response = ModelInferResponse { model_name: spec.name.clone(), id, ..ModelInferResponse::default() };
    mark(&mut response.parameters, true);
    ModelStreamInferResponse { error_message, infer_response: Some(response) }
}

fn mark(parameters: &mut HashMap<String, InferParameter>, last: bool) {
    let value = InferParameter { parameter_choice: Some(ParameterChoice::BoolParam(last)) };
    parameters.insert(FINAL_RESPONSE.to_owned(), value);
}

#[cfg(test)]
mod tests {
    use paternoster_executor::InferError;

    use super::*;
    use crate::{Kind, plan::SelectedOutputs, tests::models};

    fn final_mark(answer: &ModelStreamInferResponse) -> Option<bool> {
        let parameter = answer.infer_response.as_ref()?.parameters.get(FINAL_RESPONSE)?;
        match parameter.parameter_choice {
            Some(ParameterChoice::BoolParam(last)) => Some(last),
            _ => None,
        }
    }

    #[test]
    fn a_success_says_whether_it_is_the_last() {
        assert_eq!(final_mark(&success(ModelInferResponse::default(), true)), Some(true));
        assert_eq!(final_mark(&success(ModelInferResponse::default(), false)), Some(false));
        assert_eq!(success(ModelInferResponse::default(), true).error_message, "");
    }

    #[test]
    fn an_empty_final_response_has_id_and_model_only() {
        let plan = ResponsePlan {
            id: "d".to_owned(),
            outputs: SelectedOutputs::All,
            enable_empty_final_response: true,
            parameters: HashMap::new(),
        };
        let answer = empty_final(&models::decoupled_py(), &plan);
        assert_eq!(final_mark(&answer), Some(true));
        let response = answer.infer_response.expect("present in every answer");
        assert_eq!((response.id.as_str(), response.model_name.as_str()), ("d", "decoupled_py"));
        assert_eq!(response.model_version, "");
        assert!(response.outputs.is_empty() && response.raw_output_contents.is_empty());
    }

    #[test]
    fn a_refused_request_is_answered_by_text_and_id_alone() {
        let answer = refusal(RequestError::new(Kind::InvalidArgument, "wrong").with_id("bad"));
        assert_eq!(answer.error_message, "wrong");
        assert_eq!(final_mark(&answer), None);
        let response = answer.infer_response.expect("present in every answer");
        assert_eq!(response, ModelInferResponse { id: "bad".to_owned(), ..ModelInferResponse::default() });
    }

    #[test]
    fn a_failed_request_is_answered_by_text_model_and_the_last_mark() {
        let error = RequestError::from_infer(&InferError::Engine("negative count".to_owned()), "d");
        let answer = failure(&models::decoupled_py(), error);
        assert_eq!(answer.error_message, "negative count");
        assert_eq!(final_mark(&answer), Some(true));
        let response = answer.infer_response.expect("present in every answer");
        assert_eq!((response.id.as_str(), response.model_name.as_str()), ("d", "decoupled_py"));
    }
}
