//! TraceSetting: which requests are traced, globally and per model.

use paternoster_observe::trace::TraceSettingError;
use paternoster_wire::pb::{self, trace_setting_response::SettingValue};
use tonic::Status;

use crate::Services;

/// Answers TraceSetting with all settings, of the server or of the named model, after applying the request's changes,
/// which apply all or none. A setting without a value is reset.
///
/// # Errors
/// INVALID_ARGUMENT for a model without a ready version, and for unknown settings or invalid values; UNIMPLEMENTED for
/// the file and the mode; RESOURCE_EXHAUSTED if too many models have their own settings.
pub(crate) fn trace_setting(
    services: &Services,
    request: pb::TraceSettingRequest,
) -> Result<pb::TraceSettingResponse, Status> {
    let model = Some(&*request.model_name).filter(|name| !name.is_empty());
    if let Some(model) = model.filter(|model| services.repository.ready_versions(model).is_empty()) {
        return Err(Status::invalid_argument(format!("Request for unknown model : {model}")));
    }
    if !request.settings.is_empty() {
        let changes = request.settings.iter().map(|(name, setting)| (&**name, &*setting.value));
        services.tracer.change(model, changes).map_err(|error| refused(&error))?;
    }
    let shown = services.tracer.settings(model).into_iter();
    let settings = shown.map(|(name, value)| (name.to_owned(), SettingValue { value }));
    Ok(pb::TraceSettingResponse { settings: settings.collect() })
}

fn refused(error: &TraceSettingError) -> Status {
    let message = error.to_string();
    match error {
        TraceSettingError::Fixed(_) => Status::unimplemented(message),
        TraceSettingError::TooMany(_) => Status::resource_exhausted(message),
        TraceSettingError::Unknown(_) | TraceSettingError::Value { .. } | TraceSettingError::Inconsistent(_) => {
            Status::invalid_argument(message)
        }
    }
}
