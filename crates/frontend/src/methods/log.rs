//! LogSettings: reads and changes log settings at run time.

use paternoster_observe::{LogSettingError, LogValue};
use paternoster_wire::pb::{
    self,
    log_settings_request::setting_value::ParameterChoice as Given,
    log_settings_response::{SettingValue, setting_value::ParameterChoice as Shown},
};
use tonic::Status;

use crate::Services;

/// Answers LogSettings with all settings after applying the request's changes, which apply all or none.
///
/// # Errors
/// INVALID_ARGUMENT for a setting of the wrong type or out of range, UNIMPLEMENTED for the file. Unknown names are
/// ignored.
pub(crate) fn log_settings(
    services: &Services,
    request: pb::LogSettingsRequest,
) -> Result<pb::LogSettingsResponse, Status> {
    let mut changes = Vec::with_capacity(request.settings.len());
    for (name, setting) in &request.settings {
        let value = setting.parameter_choice.as_ref().map(|given| match given {
            Given::BoolParam(value) => LogValue::Bool(*value),
            Given::Uint32Param(value) => LogValue::Uint(*value),
            Given::StringParam(value) => LogValue::Text(value.clone()),
        });
        changes.push((name.as_str(), value));
    }
    services.log.apply(changes).map_err(|error| {
        let message = error.to_string();
        match error {
            LogSettingError::FileFixed => Status::unimplemented(message),
            _ => Status::invalid_argument(message),
        }
    })?;
    let settings = services.log.settings().into_iter().map(|(name, value)| (name.to_owned(), shown(value)));
    Ok(pb::LogSettingsResponse { settings: settings.collect() })
}

fn shown(value: LogValue) -> SettingValue {
    let choice = match value {
        LogValue::Bool(value) => Shown::BoolParam(value),
        LogValue::Uint(value) => Shown::Uint32Param(value),
        LogValue::Text(value) => Shown::StringParam(value),
    };
    SettingValue { parameter_choice: Some(choice) }
}
