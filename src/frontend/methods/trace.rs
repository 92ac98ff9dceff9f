//! TraceSetting: tracing of requests is off and cannot be turned on yet.

use tonic::Status;

use crate::frontend::Services;
use crate::wire::pb::{self, trace_setting_response::SettingValue};

/// The settings of a server that does not trace, as Triton shows them.
const OFF: [(&str, &str); 6] = [
    ("trace_file", ""),
    ("trace_level", "OFF"),
    ("trace_rate", "1000"),
    ("trace_count", "-1"),
    ("log_frequency", "0"),
    ("trace_mode", "triton"),
];

/// Answers TraceSetting: reads show that tracing is off.
///
/// # Errors
/// INVALID_ARGUMENT for a model without a ready version, UNIMPLEMENTED for a change.
pub(in crate::frontend) fn trace_setting(
    services: &Services,
    request: pb::TraceSettingRequest,
) -> Result<pb::TraceSettingResponse, Status> {
    let model = &request.model_name;
    if !model.is_empty() && services.repository.ready_versions(model).is_empty() {
        return Err(Status::invalid_argument(format!("Request for unknown model : {model}")));
    }
    if let Some(setting) = request.settings.keys().min() {
        let message = format!("trace setting '{setting}' cannot be changed: this server does not trace requests yet");
        return Err(Status::unimplemented(message));
    }
    let settings = OFF.map(|(name, value)| (name.to_owned(), SettingValue { value: vec![value.to_owned()] }));
    Ok(pb::TraceSettingResponse { settings: settings.into() })
}
