//! The fuzz bodies of model configurations. No text makes a reader panic, and a configuration that is accepted means
//! the same in every form.

use std::collections::BTreeMap;

use paternoster_batching::{CostTable, Knobs};
use paternoster_model::ModelSpec;

use super::{
    ConfigError, ConfigErrorKind, Origin, Settings, check, complete, convert, json, latencies,
    model::LatencySettings,
    model_config, pbtxt,
    stages::StageRequest,
    unfold::{self, UnfoldRequest},
    yaml,
};

/// The fuzz body of `config.pbtxt`.
pub fn pbtxt(bytes: &[u8]) {
    read_pbtxt(bytes);
}

/// The fuzz body of `model.yaml`.
pub fn yaml(bytes: &[u8]) {
    read_yaml(bytes);
}

/// The fuzz body of the configuration in a load request.
pub fn json(bytes: &[u8]) {
    read_json(bytes);
}

/// Whether a `config.pbtxt` can be read.
pub(super) fn read_pbtxt(bytes: &[u8]) -> bool {
    pbtxt::parse("config.pbtxt", bytes).map(|(config, origin)| check_config(config, &origin)).is_ok()
}

/// Whether a `model.yaml` can be read.
pub(super) fn read_yaml(bytes: &[u8]) -> bool {
    yaml::parse("model.yaml", bytes).map(|(config, origin)| check_config(config, &origin)).is_ok()
}

/// Whether an override can be read.
pub(super) fn read_json(bytes: &[u8]) -> bool {
    let text = String::from_utf8_lossy(bytes);
    json::parse(&text).map(|(config, origin)| check_config(config, &origin)).is_ok()
}

/// Processes a configuration as far as a loader does.
fn check_config(mut settings: Settings, origin: &Origin) {
    check::hints(&settings.config);
    if let Some(LatencySettings::Here(lines)) = &settings.own.batching.latencies {
        let stages = latencies::table(lines, 2).map(|table| table.stages.len());
        assert!(matches!(stages, Ok(2) | Err(_)), "one list for each stage");
    }
    let loaded = load(&mut settings, origin);
    if loaded.is_ok() {
        check_forms(&settings, &loaded);
    }
}

/// Everything that a loader gets from a configuration.
type Loaded = (ModelSpec, Knobs, StageRequest, Option<UnfoldRequest>, Option<CostTable>);

/// Completes, checks and converts a configuration.
///
/// # Errors
/// Returns why it is rejected.
pub(super) fn load(settings: &mut Settings, origin: &Origin) -> Result<Loaded, ConfigError> {
    let name = settings.config.name.clone();
    let name = if name.is_empty() { "m".to_owned() } else { name };
    check::supported(&settings.config, &name, origin)?;
    complete::defaults(settings, &name);
    complete::scheduler(settings);
    check::consistent(settings, None, origin)?;
    let converted = convert::model(settings, 1, &BTreeMap::new(), origin);
    let (spec, knobs, stages) = converted.expect("what was checked converts");
    let unfold = unfold::read(settings, origin)?;
    let table = match &settings.own.batching.latencies {
        Some(LatencySettings::Here(lines)) => {
            let table = latencies::table(lines, stages.count());
            Some(table.map_err(|fault| origin.error("batching.latencies", fault))?)
        }
        Some(LatencySettings::File(_)) | None => None,
    };
    Ok((spec, knobs, stages, unfold, table))
}

/// Prints a completed configuration as `config.pbtxt` and as JSON, reads both, and asserts that they mean the same.
/// Completion may lengthen a configuration beyond the limits; such a form is skipped.
pub(super) fn check_forms(settings: &Settings, loaded: &Result<Loaded, ConfigError>) {
    let config = settings.shown();
    let shown = model_config::message(&config).expect("the descriptors are sound").to_text_format();
    if let Some((mut from_pbtxt, origin)) = unless_too_long(pbtxt::parse("config.pbtxt", shown.as_bytes()), &shown) {
        assert_eq!(&load(&mut from_pbtxt, &origin), loaded, "{shown}");
        assert_eq!(from_pbtxt.shown(), config, "nothing is completed twice");
    }
    let shown = json::write(&config).expect("the schema is the message's").to_string();
    if let Some((mut from_json, origin)) = unless_too_long(json::parse(&shown), &shown) {
        assert_eq!(&load(&mut from_json, &origin), loaded, "{shown}");
    }
}

fn unless_too_long<T>(parsed: Result<T, ConfigError>, shown: &str) -> Option<T> {
    match parsed {
        Err(refused) if refused.kind == ConfigErrorKind::TooLarge => None,
        parsed => Some(parsed.expect(shown)),
    }
}

#[cfg(test)]
mod tests;
