//! What a timeline held at one instant, which histories are made of.

use std::collections::BTreeMap;

use super::record::Record;

/// Name and version of a loaded version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VersionName {
    /// The model's name.
    pub name: String,
    /// The version's number.
    pub version: i64,
}

/// A snapshot of a timeline.
#[derive(Clone, Debug, Default)]
pub struct Recording {
    /// In the order of recording, starting with the first record that does not belong to a dropped launch.
    pub records: Vec<Record>,
    /// Number of dropped records.
    pub dropped: u64,
    /// By the number that requests and tasks refer to.
    pub names: BTreeMap<u32, VersionName>,
}

impl Recording {
    /// Drops leading records whose launch has been dropped.
    pub(super) fn new(mut records: Vec<Record>, dropped: u64, names: BTreeMap<u32, VersionName>) -> Self {
        let first = records.iter().position(|record| record.at_ns().is_some()).unwrap_or(records.len());
        records.drain(..first);
        Self { records, dropped: dropped + first as u64, names }
    }
}
