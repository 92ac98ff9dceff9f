//! `rollout`: how requests are divided among the versions of a model.

use std::{collections::BTreeMap, fmt};

use http::HeaderName;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    SettingError,
    knobs::{Whole, Within},
    values::NonEmpty,
};

/// Which versions answer requests that name none, and which version answers them too, for comparison.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Rollout {
    /// Shares of the requests that name no version, by version: `{ 1: 95, 2: 5 }`. Default: all go to the latest one.
    #[schemars(with = "Option<BTreeMap<String, Whole<u32, 0, 1_000_000>>>")]
    pub traffic: Option<NonEmpty<BTreeMap<VersionNumber, Whole<u32, 0, 1_000_000>>>>,
    /// Header whose value decides the version: equal values have the same one. Default: each request at random.
    pub header: Option<HeaderText>,
    /// Version that answers requests too. Its answers are compared with those that clients get, and dropped.
    pub shadow: Option<Whole<i64, 1, { i64::MAX as i128 }>>,
    /// Largest difference between two numbers that counts as none, relative to the larger of 1 and the number that the
    /// client gets. Default: 0.0001.
    pub tolerance: Option<Within<0, 1>>,
}

/// A version as the key of a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String")]
pub struct VersionNumber(pub i64);

impl TryFrom<String> for VersionNumber {
    type Error = SettingError;

    fn try_from(text: String) -> Result<Self, SettingError> {
        let number = text.parse::<i64>().ok().filter(|number| *number > 0 && number.to_string() == text);
        number.map(Self).ok_or_else(|| SettingError::expected("a version, a number above 0", format_args!("'{text}'")))
    }
}

/// The name of a header of requests, called metadata in gRPC.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String")]
#[schemars(inline)]
pub struct HeaderText(pub String);

impl HeaderText {
    /// Returns the name as requests have it.
    pub fn name(&self) -> Option<HeaderName> {
        self.0.parse().ok()
    }
}

impl TryFrom<String> for HeaderText {
    type Error = SettingError;

    fn try_from(text: String) -> Result<Self, SettingError> {
        match text.parse::<HeaderName>() {
            // What gRPC sends of them is Base64, of which a value has several forms.
            Ok(name) if name.as_str().ends_with("-bin") => {
                Err(format!("expected a header with a text: that of '{text}' is binary in gRPC").into())
            }
            Ok(_) => Ok(Self(text)),
            Err(_) => Err(format!("expected the name of a header, such as x-user-id, but found '{text}'").into()),
        }
    }
}

impl fmt::Display for HeaderText {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}
