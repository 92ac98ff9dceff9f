//! One cell or segment of a configuration: its keys, and refusals that stand at them.

use std::{collections::BTreeMap, ops::RangeInclusive};

use crate::repository::config::{ConfigError, Origin};

/// The keys of one cell or segment, without what they have in common.
#[derive(Clone, Debug)]
pub(super) struct Part<'c> {
    /// What they have in common: `cells.step` or `unfold.0`.
    name: String,
    given: BTreeMap<&'c str, &'c str>,
    origin: &'c Origin,
}

impl<'c> Part<'c> {
    pub(super) fn new(name: String, origin: &'c Origin) -> Self {
        Self { name, given: BTreeMap::new(), origin }
    }

    pub(super) fn insert(&mut self, key: &'c str, text: &'c str) {
        self.given.insert(key, text);
    }

    /// Refuses the value of a key.
    pub(super) fn refuse(&self, key: &str, message: impl Into<String>) -> ConfigError {
        self.origin.error(&format!("parameters[{}.{key}]", self.name), message)
    }

    /// Refuses the whole, at the first of its keys.
    pub(super) fn refuse_all(&self, message: impl Into<String>) -> ConfigError {
        self.refuse(self.given.keys().next().copied().unwrap_or_default(), message)
    }

    pub(super) fn text(&self, key: &str) -> Option<&'c str> {
        self.given.get(key).map(|text| text.trim())
    }

    /// A text that has to be there and must say something.
    pub(super) fn required(&self, key: &str) -> Result<&'c str, ConfigError> {
        match self.text(key) {
            None => Err(self.refuse_all(format!("expected {}.{key} too", self.name))),
            Some("") => Err(self.refuse(key, "expected a value, but found nothing")),
            Some(text) => Ok(text),
        }
    }

    pub(super) fn whole(&self, key: &str, range: RangeInclusive<u32>) -> Result<Option<u32>, ConfigError> {
        let Some(text) = self.text(key) else { return Ok(None) };
        let number = text.parse().ok().filter(|number| range.contains(number));
        number.map(Some).ok_or_else(|| {
            let (least, most) = range.into_inner();
            self.refuse(key, format!("expected a whole number from {least} to {most}, but found '{text}'"))
        })
    }

    /// A switch that is off unless it is given.
    pub(super) fn flag(&self, key: &str) -> Result<bool, ConfigError> {
        let text = self.text(key).unwrap_or("false");
        text.parse().map_err(|_| self.refuse(key, format!("expected true or false, but found '{text}'")))
    }

    /// All keys with what mappings are from, ascending.
    pub(super) fn keys(&self) -> impl Iterator<Item = &'c str> {
        self.given.keys().copied()
    }

    /// The entries of a mapping, ascending; none of them is empty.
    ///
    /// # Errors
    /// For one that is.
    pub(super) fn mapping(&self, map: &str) -> Result<Vec<(&'c str, &'c str)>, ConfigError> {
        let mut entries = Vec::new();
        for (key, text) in &self.given {
            let Some(from) = key.strip_prefix(map).and_then(|rest| rest.strip_prefix('.')) else { continue };
            if text.trim().is_empty() {
                return Err(self.refuse(key, "expected a value, but found nothing"));
            }
            entries.push((from, text.trim()));
        }
        Ok(entries)
    }

    /// The entries of a mapping that has to have some.
    pub(super) fn required_mapping(&self, map: &str) -> Result<Vec<(&'c str, &'c str)>, ConfigError> {
        let entries = self.mapping(map)?;
        if entries.is_empty() {
            return Err(self.refuse_all(format!("expected {}.{map}.<name> too", self.name)));
        }
        Ok(entries)
    }
}
