//! The trace settings: their values, their textual form, and how a model's settings fall back to the server's.

/// What is recorded of a traced request (`trace_level`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TraceLevel {
    /// Whether to record when it arrived, waited, ran and ended.
    pub timestamps: bool,
    /// Whether to record its inputs and outputs. Only files contain them.
    pub tensors: bool,
}

impl TraceLevel {
    /// No request is traced.
    pub const OFF: Self = Self { timestamps: false, tensors: false };

    /// Whether no request is traced.
    pub fn is_off(self) -> bool {
        self == Self::OFF
    }

    /// Enables the level with this name.
    ///
    /// # Errors
    /// If there is no such level.
    pub fn add(&mut self, name: &str) -> Result<(), TraceSettingError> {
        match name {
            "OFF" => {}
            "TIMESTAMPS" => self.timestamps = true,
            "TENSORS" => self.tensors = true,
            // Older names of TIMESTAMPS.
            "MIN" | "MAX" => self.timestamps = true,
            _ => return Err(wrong("trace_level", "OFF, TIMESTAMPS or TENSORS", name)),
        }
        Ok(())
    }

    fn names(self) -> Vec<String> {
        let names = [(self.timestamps, "TIMESTAMPS"), (self.tensors, "TENSORS"), (self.is_off(), "OFF")];
        names.into_iter().filter(|(is_on, _)| *is_on).map(|(_, name)| name.to_owned()).collect()
    }
}

/// The destination of traces (`trace_mode`), fixed at startup.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TraceMode {
    /// Triton's JSON in a file.
    #[default]
    Triton,
    /// Spans, exported over OTLP.
    OpenTelemetry,
}

impl TraceMode {
    /// Returns the name in flags and settings.
    pub fn name(self) -> &'static str {
        match self {
            Self::Triton => "triton",
            Self::OpenTelemetry => "opentelemetry",
        }
    }
}

/// The settings that clients can read and change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceSettings {
    /// What is recorded.
    pub level: TraceLevel,
    /// Every `rate`-th request is traced; 0: only requests whose client asks for it.
    pub rate: u32,
    /// Remaining number of traces; `None`: unlimited.
    pub count: Option<u32>,
    /// Number of traces per numbered file; 0: all traces in one file.
    pub log_frequency: u32,
}

impl Default for TraceSettings {
    /// Triton's defaults: off, every thousandth request, unlimited, one file.
    fn default() -> Self {
        Self { level: TraceLevel::OFF, rate: 1000, count: None, log_frequency: 0 }
    }
}

/// An invalid setting.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TraceSettingError {
    /// Unknown setting.
    #[error("unknown trace setting '{0}', expected trace_level, trace_rate, trace_count or log_frequency")]
    Unknown(String),
    /// Invalid value.
    #[error("invalid value for '{setting}': expected {expected}, got '{given}'")]
    Value {
        /// The setting.
        setting: &'static str,
        /// Expected values.
        expected: &'static str,
        /// The given value.
        given: String,
    },
    /// Clients cannot change which files the server writes, or where it sends spans.
    #[error("{0} can not be updated through network protocol")]
    Fixed(&'static str),
    /// The settings are on but would trace nothing.
    #[error("attempting to set invalid trace setting: {0}")]
    Inconsistent(&'static str),
    /// Too many models have their own settings.
    #[error("{0} models have trace settings of their own, the limit")]
    TooMany(usize),
}

fn wrong(setting: &'static str, expected: &'static str, given: &str) -> TraceSettingError {
    TraceSettingError::Value { setting, expected, given: given.chars().take(64).collect() }
}

/// Explicit settings of a model or of the server; others fall back.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Specified {
    level: Option<TraceLevel>,
    rate: Option<u32>,
    pub(super) count: Option<Option<u32>>,
}

impl Specified {
    /// Whether nothing is set.
    pub(super) fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Returns the effective settings, given those that unset values fall back to.
    pub(super) fn over(&self, fallback: &TraceSettings) -> TraceSettings {
        TraceSettings {
            level: self.level.unwrap_or(fallback.level),
            rate: self.rate.unwrap_or(fallback.rate),
            count: self.count.unwrap_or(fallback.count),
            log_frequency: fallback.log_frequency,
        }
    }

    /// Changes one setting; an empty list of values clears it. `operators` are the settings of the command line, which
    /// alone decide what files there are.
    ///
    /// # Errors
    /// If there is no such setting, if clients cannot change it, or if the value is invalid.
    pub(super) fn change(
        &mut self,
        name: &str,
        values: &[String],
        (mode, operators): (TraceMode, &TraceSettings),
    ) -> Result<(), TraceSettingError> {
        match name {
            "trace_level" => self.level = level_of(values)?,
            "trace_rate" => self.rate = number("trace_rate", values)?,
            "trace_count" => self.count = count_of(values)?,
            "log_frequency"
                if number("log_frequency", values)?.is_none_or(|given| given == operators.log_frequency) => {}
            "log_frequency" => return Err(TraceSettingError::Fixed("log frequency")),
            "trace_file" => return Err(TraceSettingError::Fixed("trace file location")),
            "trace_mode" if values == [mode.name()] => {}
            "trace_mode" => return Err(TraceSettingError::Fixed("trace mode")),
            _ => return Err(TraceSettingError::Unknown(name.chars().take(64).collect())),
        }
        Ok(())
    }
}

fn level_of(values: &[String]) -> Result<Option<TraceLevel>, TraceSettingError> {
    if values.is_empty() {
        return Ok(None);
    }
    let mut level = TraceLevel::OFF;
    values.iter().try_for_each(|name| level.add(name))?;
    if values.len() > 1 && values.iter().any(|name| name == "OFF") {
        return Err(wrong("trace_level", "OFF alone, or levels without it", &values.join(",")));
    }
    Ok(Some(level))
}

fn only<'a>(setting: &'static str, values: &'a [String]) -> Result<Option<&'a str>, TraceSettingError> {
    match values {
        [] => Ok(None),
        [value] => Ok(Some(value)),
        _ => Err(wrong(setting, "only 1 value", &values.join(","))),
    }
}

fn number(setting: &'static str, values: &[String]) -> Result<Option<u32>, TraceSettingError> {
    let Some(given) = only(setting, values)? else { return Ok(None) };
    parse_number(setting, given).map(Some)
}

fn count_of(values: &[String]) -> Result<Option<Option<u32>>, TraceSettingError> {
    let Some(given) = only("trace_count", values)? else { return Ok(None) };
    parse_count(given).map(Some)
}

/// Parses a number of requests or traces.
///
/// # Errors
/// If it is not a number.
pub fn parse_number(setting: &'static str, given: &str) -> Result<u32, TraceSettingError> {
    given.parse().map_err(|_| wrong(setting, "a number from 0 to 4294967295", given))
}

/// Parses a number of traces; −1 means unlimited.
///
/// # Errors
/// If it is not a number.
pub fn parse_count(given: &str) -> Result<Option<u32>, TraceSettingError> {
    let number = given.parse::<i32>().ok().filter(|&count| count >= -1);
    let number = number.ok_or_else(|| wrong("trace_count", "a number from -1 to 2147483647", given))?;
    Ok(u32::try_from(number).ok())
}

impl TraceSettings {
    /// Returns all settings with their values, as the protocol represents them.
    pub(super) fn shown(&self, mode: TraceMode, file: &str) -> Vec<(&'static str, Vec<String>)> {
        let count = self.count.map_or_else(|| "-1".to_owned(), |count| count.to_string());
        vec![
            ("trace_file", vec![file.to_owned()]),
            ("trace_level", self.level.names()),
            ("trace_rate", vec![self.rate.to_string()]),
            ("trace_count", vec![count]),
            ("log_frequency", vec![self.log_frequency.to_string()]),
            ("trace_mode", vec![mode.name().to_owned()]),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn changed(name: &str, values: &[&str]) -> Result<TraceSettings, TraceSettingError> {
        let values: Vec<String> = values.iter().map(|&value| value.to_owned()).collect();
        let mut specified = Specified::default();
        specified.change(name, &values, (TraceMode::Triton, &TraceSettings::default()))?;
        Ok(specified.over(&TraceSettings::default()))
    }

    #[test]
    fn each_setting_is_read_and_nothing_clears_it() {
        let level = TraceLevel { timestamps: true, tensors: true };
        assert_eq!(changed("trace_level", &["TIMESTAMPS", "TENSORS"]).map(|settings| settings.level), Ok(level));
        assert_eq!(changed("trace_rate", &["7"]).map(|settings| settings.rate), Ok(7));
        assert_eq!(changed("trace_count", &["3"]).map(|settings| settings.count), Ok(Some(3)));
        assert_eq!(changed("trace_count", &["-1"]).map(|settings| settings.count), Ok(None));
        for name in ["trace_level", "trace_rate", "trace_count", "log_frequency"] {
            assert_eq!(changed(name, &[]), Ok(TraceSettings::default()), "{name} falls back");
        }
        for (name, value) in [("trace_mode", "triton"), ("log_frequency", "0")] {
            assert_eq!(changed(name, &[value]), Ok(TraceSettings::default()), "{name} is that already");
        }
    }

    #[test]
    fn values_that_do_not_belong_are_refused_by_name() {
        let cases: [(&str, &[&str]); 9] = [
            ("trace_level", &["LOUD"]),
            ("trace_level", &["OFF", "TENSORS"]),
            ("trace_rate", &["-1"]),
            ("trace_rate", &["1", "2"]),
            ("trace_rate", &["4294967296"]),
            ("trace_count", &["-2"]),
            ("trace_count", &["2147483648"]),
            ("log_frequency", &["often"]),
            ("colour", &["red"]),
        ];
        for (name, values) in cases {
            let error = changed(name, values).expect_err(name).to_string();
            assert!(error.contains(name) && error.contains("expected"), "{error}");
        }
        let fixed = [("trace_file", "x", "trace file location"), ("trace_mode", "x", "trace mode")];
        for (name, value, fixed) in fixed.into_iter().chain([("log_frequency", "9", "log frequency")]) {
            assert_eq!(changed(name, &[value]), Err(TraceSettingError::Fixed(fixed)));
        }
        let long = changed("trace_rate", &["9".repeat(60_000).as_str()]).expect_err("too large").to_string();
        assert!(long.len() < 256, "what a client sends is not echoed whole");
    }
}
