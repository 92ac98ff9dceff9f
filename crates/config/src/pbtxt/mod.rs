//! `config.pbtxt`: protobuf's text format, in every form that Triton accepts.
//!
//! prost-reflect reads the text. A pass before it (`structure`) inserts the colons that Triton does not
//! require, reports unknown keys and values, and records the position of each key.

mod structure;

use miette::Diagnostic;
use prost_reflect::DynamicMessage;

use super::{
    ConfigError, ConfigErrorKind, CustomPolicies, Origin, Position, SettingError, bounds, model_config, parameters,
    settings::Settings,
};

/// Reads a `config.pbtxt`. `file` is the name that errors carry.
///
/// # Errors
/// Rejects text that is too large, not UTF-8 or not in the text format, and unknown keys or values; with file, line,
/// column and what was expected.
pub fn parse(file: &str, bytes: &[u8]) -> Result<(Settings, Origin), ConfigError> {
    parse_with(file, bytes, &CustomPolicies::default())
}

/// Reads a `config.pbtxt`, which may name policies of other crates.
///
/// # Errors
/// As [`parse`] does.
pub fn parse_with(file: &str, bytes: &[u8], policies: &CustomPolicies) -> Result<(Settings, Origin), ConfigError> {
    let origin = Origin::new(file);
    bounds::text(bytes.len(), bounds::MAX_TEXT_BYTES).map_err(|fault| origin.error("", fault))?;
    let text = match std::str::from_utf8(bytes) {
        Ok(text) => text.strip_prefix('\u{feff}').unwrap_or(text),
        Err(fault) => {
            let valid = String::from_utf8_lossy(&bytes[..fault.valid_up_to()]).into_owned();
            let position = Position::at(&valid, valid.len());
            let fault = SettingError::new(ConfigErrorKind::Syntax, "expected UTF-8 text");
            return Err(ConfigError::of_text(file, Some(position), fault));
        }
    };
    let root = model_config::descriptor().map_err(|fault| origin.error("", fault))?;
    let prepared = structure::prepare(text, &root)
        .map_err(|fault| ConfigError::of_text(file, Some(Position::at(text, fault.offset)), fault.error))?;

    let message = DynamicMessage::parse_text_format(root, &prepared.text).map_err(|fault| {
        let label = fault.labels().and_then(|mut labels| labels.next()).map(|label| label.offset());
        let offset = label.map_or(text.len(), |offset| prepared.original_offset(offset));
        let hint = fault.help().map(|help| format!("; {help}")).unwrap_or_default();
        let fault = SettingError::new(ConfigErrorKind::Syntax, format!("{fault}{hint}"));
        ConfigError::of_text(file, Some(Position::at(text, offset)), fault)
    })?;
    let config = message.transcode_to().map_err(|fault| origin.error("", fault.to_string()))?;

    let mut placed = Origin::of_text(file, text, prepared.places);
    Ok((parameters::fold(config, policies, &mut placed)?, placed))
}

#[cfg(test)]
pub(crate) mod tests;
