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

/// What a timeline held at one instant.
#[derive(Clone, Debug, Default)]
pub struct Recording {
    /// In the order of recording, from the first that does not belong to a launch that was dropped.
    pub records: Vec<Record>,
    /// Records that were dropped for newer ones.
    pub dropped: u64,
    /// By the number that requests and tasks name them by.
    pub names: BTreeMap<u32, VersionName>,
}

impl Recording {
    /// Leaves out records whose launch was dropped before them.
    pub(super) fn new(mut records: Vec<Record>, dropped: u64, names: BTreeMap<u32, VersionName>) -> Self {
        let first = records.iter().position(|record| record.at_ns().is_some()).unwrap_or(records.len());
        records.drain(..first);
        Self { records, dropped: dropped + first as u64, names }
    }
}
