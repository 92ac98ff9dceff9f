//! Reports the models once loading is over.

use std::{
    collections::HashMap,
    io::{self, Write, stderr},
    path::Path,
    sync::Arc,
};

use paternoster_observe::LogFormat;
use paternoster_repository::{IndexEntry, ModelVersion, Repository, emptiness};
use tracing::{info, warn};

use super::{
    LogArgs,
    table::{Table, terminal_width},
};

/// Letters of the longest reason in the table: with it, the table of usual names fits a terminal of 80 columns.
const REASON_LETTERS: usize = 36;

/// Columns by which the log indents the lines of a record after its first.
const INDENTATION: usize = 2;

/// Logs every model with its version, policy, state and reason: as a table for people, or as one record each if the
/// log's format is JSON.
pub(super) fn models(repository: &Repository, index: &[IndexEntry], directories: &[String], log: &LogArgs) {
    let policy_of = policies(repository);

    if log.format == LogFormat::Json {
        for entry in index {
            let IndexEntry { name: model, version, state, reason } = entry;
            info!(model, version, policy = policy_of(entry), state, reason, "model");
        }
    } else {
        let width = if log.file.is_none() { terminal_width(stderr()) } else { None };
        let width = width.map(|columns| columns.saturating_sub(INDENTATION));
        info!("\n{}", overview(index, policy_of, width));
    }
    if index.is_empty() {
        directories.iter().for_each(|directory| warn!("{}", emptiness(Path::new(directory))));
    }
}

/// Prints the same table to standard output, and how many can be served.
pub(super) fn print(repository: &Repository, index: &[IndexEntry], directories: &[String]) -> io::Result<()> {
    let mut out = io::stdout().lock();
    if index.is_empty() {
        return directories.iter().try_for_each(|directory| writeln!(out, "{}", emptiness(Path::new(directory))));
    }
    let width = terminal_width(&out);
    writeln!(out, "{}", overview(index, policies(repository), width))?;
    let served = index.iter().filter(|entry| entry.state == "READY").count();
    writeln!(out, "{served} of {} can be served", index.len())
}

/// Returns what tells the policy of an entry; an empty text if it is not loaded.
fn policies(repository: &Repository) -> impl Fn(&IndexEntry) -> &'static str {
    let loaded = repository.loaded();
    let key = |name: &str, version: String| (name.to_owned(), version);
    let of_version = |version: &Arc<ModelVersion>| {
        (key(&version.spec().name, version.spec().version.to_string()), version.servable().policy())
    };
    let policies: HashMap<(String, String), &'static str> = loaded.iter().map(of_version).collect();
    move |entry| policies.get(&key(&entry.name, entry.version.clone())).copied().unwrap_or_default()
}

/// Returns the table with lines of at most `width` columns, and below it the reasons that are too long for a column of
/// it, each on a line of its own.
fn overview(index: &[IndexEntry], policy_of: impl Fn(&IndexEntry) -> &'static str, width: Option<usize>) -> String {
    let mut shown = table(index, policy_of).within(width);
    for entry in index.iter().filter(|entry| !has_room(&entry.reason)) {
        let reason = entry.reason.split_whitespace().collect::<Vec<_>>().join(" ");
        shown += &format!("\n{}: {reason}", named(entry));
    }
    shown
}

fn has_room(reason: &str) -> bool {
    reason.chars().count() <= REASON_LETTERS
}

fn table(index: &[IndexEntry], policy_of: impl Fn(&IndexEntry) -> &'static str) -> Table {
    let mut table = Table::new(&["Model", "Version", "Policy", "Status"]).with_text(&["Model", "Status"]);
    for entry in index {
        let status = match (entry.state, entry.reason.as_str()) {
            ("", _) => "not loaded".to_owned(),
            (state, "") => state.to_owned(),
            (state, reason) if !has_room(reason) => format!("{state}: see below"),
            (state, reason) => format!("{state}: {reason}"),
        };
        table.row([entry.name.clone(), entry.version.clone(), policy_of(entry).to_owned(), status]);
    }
    table
}

/// Returns the models that should serve but do not, with their reasons.
pub(super) fn failures(index: &[IndexEntry]) -> Vec<String> {
    let failed = index.iter().filter(|entry| entry.state == "UNAVAILABLE");
    failed.map(|entry| format!("{}: {}", named(entry), entry.reason)).collect()
}

fn named(entry: &IndexEntry) -> String {
    match entry.version.as_str() {
        "" => entry.name.clone(),
        version => format!("{} version {version}", entry.name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(name: &str, version: &str, state: &'static str, reason: &str) -> IndexEntry {
        IndexEntry { name: name.to_owned(), version: version.to_owned(), state, reason: reason.to_owned() }
    }

    #[test]
    fn the_table_shows_policies_states_and_reasons() {
        let index = [
            entry("broken", "1", "UNAVAILABLE", "model.onnx is no protobuf"),
            entry("ident", "3", "READY", ""),
            entry("later", "", "", ""),
        ];
        let policy_of = |entry: &IndexEntry| if entry.name == "ident" { "window" } else { "" };
        let expected = "\
+--------+---------+--------+----------------------------------------+
| Model  | Version | Policy | Status                                 |
+--------+---------+--------+----------------------------------------+
| broken | 1       |        | UNAVAILABLE: model.onnx is no protobuf |
| ident  | 3       | window | READY                                  |
| later  |         |        | not loaded                             |
+--------+---------+--------+----------------------------------------+";
        assert_eq!(table(&index, policy_of).to_string(), expected);
    }

    #[test]
    fn a_long_reason_is_below_the_table_and_whole() {
        let reason = format!("node 'Conv_17' {}", "has an input of the wrong shape ".repeat(15));
        let index = [entry("broken", "1", "UNAVAILABLE", &reason), entry("ident", "3", "READY", "")];
        let shown = overview(&index, |_| "", None);
        let (table, below) = shown.rsplit_once('\n').expect("there are several lines");
        assert!(table.lines().all(|line| line.chars().count() <= 80), "{table}");
        assert!(table.contains("| UNAVAILABLE: see below |"), "{table}");
        assert_eq!(below, format!("broken version 1: {}", reason.trim_end()));
    }

    #[test]
    fn the_table_fits_the_terminal_whatever_the_models_are_called() {
        let name = "sentence-transformers/paraphrase-multilingual-MiniLM-L12-v2/".repeat(3);
        let index = [entry(&name, "12", "UNAVAILABLE", "model.onnx is no protobuf")];
        let shown = overview(&index, |_| "diversity", Some(78));
        assert!(shown.lines().all(|line| line.chars().count() <= 78), "{shown}");
        for cell in [" 12 ", " diversity ", "v2/"] {
            assert!(shown.contains(cell), "{shown}");
        }
    }

    #[test]
    fn failures_are_the_unavailable_ones() {
        let index = [
            entry("broken", "1", "UNAVAILABLE", "no protobuf"),
            entry("ident", "3", "READY", ""),
            entry("nameless", "", "UNAVAILABLE", "no version"),
        ];
        assert_eq!(failures(&index), ["broken version 1: no protobuf", "nameless: no version"]);
    }
}
