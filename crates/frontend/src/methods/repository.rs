//! RepositoryIndex, RepositoryModelLoad, RepositoryModelUnload.

use std::collections::HashMap;

use paternoster_observe::budget::{Reservation, SharedReservation};
use paternoster_repository::Overrides;
use paternoster_wire::pb::{
    self, ModelRepositoryParameter, model_repository_parameter::ParameterChoice, repository_index_response::ModelIndex,
};
use tonic::Status;

use super::unresolved::uncontrolled;
use crate::Services;

/// Answers RepositoryIndex.
///
/// # Errors
/// UNIMPLEMENTED if the request names a repository.
pub(crate) async fn index(
    services: &Services,
    request: pb::RepositoryIndexRequest,
) -> Result<pb::RepositoryIndexResponse, Status> {
    refuse_repository_name(&request.repository_name)?;
    let models = services.repository.index(request.ready).await.into_iter().map(|entry| ModelIndex {
        name: entry.name,
        version: entry.version,
        state: entry.state.to_owned(),
        reason: entry.reason,
    });
    Ok(pb::RepositoryIndexResponse { models: models.collect() })
}

/// Answers RepositoryModelLoad once the model is ready or has failed. Dropping the future ends the load early. `held`
/// is the reservation of the message and of what decoding built.
///
/// # Errors
/// UNAVAILABLE outside explicit mode, INTERNAL for an unknown model or an unreadable configuration, INVALID_ARGUMENT
/// for a model that fails to load or an unexpected parameter.
pub(crate) async fn load(
    services: &Services,
    request: pb::RepositoryModelLoadRequest,
    held: Reservation,
) -> Result<pb::RepositoryModelLoadResponse, Status> {
    refuse_repository_name(&request.repository_name)?;
    services.repository.control_allowed().map_err(|error| uncontrolled(&error))?;
    refuse_model_name(&request.model_name)?;
    let overrides = overrides(request.parameters, held)?;
    services.repository.load(&request.model_name, overrides).await.map_err(|error| uncontrolled(&error))?;
    Ok(pb::RepositoryModelLoadResponse {})
}

/// Answers RepositoryModelUnload once the model takes no more requests.
///
/// # Errors
/// UNAVAILABLE outside explicit mode, INVALID_ARGUMENT for a parameter of the wrong type.
pub(crate) async fn unload(
    services: &Services,
    request: pb::RepositoryModelUnloadRequest,
) -> Result<pb::RepositoryModelUnloadResponse, Status> {
    refuse_repository_name(&request.repository_name)?;
    services.repository.control_allowed().map_err(|error| uncontrolled(&error))?;
    let dependents = match request.parameters.get("unload_dependents").map(|value| &value.parameter_choice) {
        None => false,
        Some(Some(ParameterChoice::BoolParam(dependents))) => *dependents,
        Some(_) => return Err(wrong_type("unload_dependents", "bool_param")),
    };
    services.repository.unload(&request.model_name, dependents).await.map_err(|error| uncontrolled(&error))?;
    Ok(pb::RepositoryModelUnloadResponse {})
}

fn refuse_repository_name(name: &str) -> Result<(), Status> {
    if name.is_empty() {
        return Ok(());
    }
    Err(Status::unimplemented(format!("'repository_name' specification is not supported, got '{name}'")))
}

/// Refuses what cannot be the name of a model, as Triton does from 2.73 on.
fn refuse_model_name(name: &str) -> Result<(), Status> {
    let trimmed = name.trim();
    if trimmed.is_empty() {
        return Err(Status::invalid_argument("Model name cannot be empty. Please enter a valid name to deploy."));
    }
    if trimmed == ".." || trimmed.contains('/') {
        let text = format!("invalid model name '{name}', model name must not contain path traversal characters");
        return Err(Status::invalid_argument(text));
    }
    Ok(())
}

fn overrides(
    parameters: HashMap<String, ModelRepositoryParameter>,
    mut held: Reservation,
) -> Result<Overrides, Status> {
    let mut overrides = Overrides::default();
    for (key, value) in parameters {
        if key == "config" {
            let Some(ParameterChoice::StringParam(config)) = value.parameter_choice else {
                return Err(wrong_type(&key, "string_param"));
            };
            overrides.config_json = Some(config);
        } else if let Some(path) = key.strip_prefix("file:") {
            let Some(ParameterChoice::BytesParam(content)) = value.parameter_choice else {
                return Err(wrong_type(&key, "bytes_param"));
            };
            overrides.files.insert(path.to_owned(), content.into());
        } else {
            return Err(Status::invalid_argument(format!(
                "unrecognized load parameter '{key}', expected 'config' or 'file:<version>/<file>'"
            )));
        }
    }
    // The message itself has been dropped.
    let files = overrides.files.iter().map(|(path, content)| path.len() + content.len());
    held.shrink_to(overrides.config_json.as_ref().map_or(0, String::len) + files.sum::<usize>());
    let held = SharedReservation::new(held);
    for content in overrides.files.values_mut() {
        *content = held.attach(std::mem::take(content));
    }
    overrides.held = Some(held);
    Ok(overrides)
}

fn wrong_type(key: &str, expected: &str) -> Status {
    Status::invalid_argument(format!("invalid value type for '{key}' parameter, expected {expected}"))
}

#[cfg(test)]
mod tests {
    use paternoster_observe::budget::Budget;
    use tonic::Code;

    use super::*;

    fn parameter(key: &str, choice: ParameterChoice) -> HashMap<String, ModelRepositoryParameter> {
        HashMap::from([(key.to_owned(), ModelRepositoryParameter { parameter_choice: Some(choice) })])
    }

    #[test]
    fn what_cannot_be_a_name_is_refused() {
        for name in ["", " ", "\t\n", "..", " .. ", "../etc", "a/b", "/etc"] {
            let status = refuse_model_name(name).expect_err(name);
            assert_eq!(status.code(), Code::InvalidArgument, "{name:?}");
        }
        for name in ["a", "a b", "..a", "a..b", "."] {
            refuse_model_name(name).expect(name);
        }
    }

    #[test]
    fn configuration_and_files_are_taken_over() {
        let config = parameter("config", ParameterChoice::StringParam("{}".into()));
        let files = parameter("file:1/model.onnx", ParameterChoice::BytesParam(b"onnx".to_vec()));
        let budget = Budget::of(100);
        let mut held = Reservation::none(&budget);
        assert!(held.try_grow(100), "the message and what was built from it");
        let overrides = overrides(config.into_iter().chain(files).collect(), held).expect("both are known");
        assert_eq!(overrides.config_json.as_deref(), Some("{}"));
        assert_eq!(overrides.files["1/model.onnx"], &b"onnx"[..]);
        let file = overrides.files["1/model.onnx"].clone();
        assert_eq!(budget.used(), "{}1/model.onnxonnx".len(), "without the message");
        drop(overrides);
        assert_eq!(budget.used(), "{}1/model.onnxonnx".len(), "as long as a load works on a file");
        drop(file);
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn other_parameters_and_other_types_are_refused_by_name() {
        for (key, choice) in [
            ("colour", ParameterChoice::StringParam("red".into())),
            ("config", ParameterChoice::BoolParam(true)),
            ("file:1/model.onnx", ParameterChoice::StringParam("onnx".into())),
        ] {
            let held = Reservation::none(&Budget::of(0));
            let status = overrides(parameter(key, choice), held).expect_err(key);
            assert_eq!(status.code(), Code::InvalidArgument, "{key}");
            assert!(status.message().contains(key), "'{}' names '{key}'", status.message());
        }
    }
}
