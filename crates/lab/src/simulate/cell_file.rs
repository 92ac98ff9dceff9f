//! Models of cells in a device table's JSON.

use paternoster_model::CellId;
use serde::Deserialize;

use super::cells::{CellGraph, SimulatedSegment, any_steps, cell_knobs};

/// A cell type.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CellEntry {
    pub(super) name: String,
    pub(super) max_rows: Option<u32>,
    pub(super) min_followup: Option<u32>,
    #[serde(default = "highest")]
    pub(super) priority: u32,
    pub(super) chunk: Option<ChunkEntry>,
}

/// That a task of the cell may run several steps of each row.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ChunkEntry {
    /// Whether rows with different numbers of steps share a task.
    #[serde(default)]
    lengths: bool,
}

fn highest() -> u32 {
    1
}

/// A segment that requests unfold into, with the names of its cells.
#[derive(Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum SegmentEntry {
    Stage(String),
    Chain(String),
    Decode(String),
    Tree { leaf: String, inner: String },
}

/// A fault: what was expected, and what was found.
pub(super) type Wrong = (String, String);

/// Builds the graph of a model. `known` gives, for each cell, the largest number of rows with a known latency.
///
/// # Errors
/// If a cell's number of rows is out of range, or a segment names an unknown cell.
pub(super) fn graph(cells: Vec<CellEntry>, segments: &[SegmentEntry], known: &[u32]) -> Result<CellGraph, Wrong> {
    let expected = |what: &str, found: String| Err((what.to_owned(), found));
    if cells.len() != known.len() {
        let what = format!("a list of latencies for each of {} cells", cells.len());
        return expected(&what, known.len().to_string());
    }
    let twice = |(at, cell): &(usize, &CellEntry)| cells[..*at].iter().any(|other| other.name == cell.name);
    if let Some((_, cell)) = cells.iter().enumerate().find(twice) {
        return expected("another name for each cell", format!("'{}' twice", cell.name));
    }
    let mut knobs = Vec::with_capacity(cells.len());
    for (cell, known) in cells.iter().zip(known) {
        let max_rows = cell.max_rows.unwrap_or(*known);
        let wrong = |what: String, found: u32| Err((what, format!("{found} in the cell '{}'", cell.name)));
        if max_rows == 0 {
            return wrong("max_rows from 1".to_owned(), max_rows);
        }
        let mut own = cell_knobs(max_rows, cell.priority);
        own.min_followup = cell.min_followup.unwrap_or(own.min_followup);
        if !(1..=max_rows).contains(&own.min_followup) {
            return wrong(format!("min_followup from 1 to {max_rows}"), own.min_followup);
        }
        if cell.priority == 0 {
            return wrong("a priority from 1".to_owned(), cell.priority);
        }
        own.chunks = cell.chunk.as_ref().map(|chunk| any_steps(chunk.lengths));
        knobs.push(own);
    }
    if segments.is_empty() {
        return expected("what requests unfold into, as [{ \"chain\": \"step\" }]", "none".to_owned());
    }
    if segments.iter().filter(|segment| matches!(segment, SegmentEntry::Decode(_))).count() > 1 {
        return expected("at most one decoder", "more".to_owned());
    }
    let find = |name: &String| {
        let names = || cells.iter().map(|cell| cell.name.as_str()).collect::<Vec<_>>().join(", ");
        let at = cells.iter().position(|cell| cell.name == *name);
        at.map(|at| CellId(at as u16)).ok_or_else(|| (format!("one of the cells {}", names()), format!("'{name}'")))
    };
    let read = |segment: &SegmentEntry| {
        Ok(match segment {
            SegmentEntry::Stage(cell) => SimulatedSegment::Stage(find(cell)?),
            SegmentEntry::Chain(cell) => SimulatedSegment::Chain(find(cell)?),
            SegmentEntry::Decode(cell) => SimulatedSegment::Decode(find(cell)?),
            SegmentEntry::Tree { leaf, inner } => SimulatedSegment::Tree { leaf: find(leaf)?, inner: find(inner)? },
        })
    };
    let segments: Vec<SimulatedSegment> = segments.iter().map(read).collect::<Result<_, Wrong>>()?;
    let chunked = |cell: &CellId| knobs[usize::from(cell.0)].chunks.is_some();
    if let Some(cell) = segments.iter().flat_map(SimulatedSegment::of_single_steps).find(chunked) {
        return expected(
            "chunk only for a cell of chains",
            format!("it in the cell '{}'", cells[usize::from(cell.0)].name),
        );
    }
    Ok(CellGraph { cells: knobs, segments, boundary_ns: 0 })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulate::DeviceTable;

    const SEQ2SEQ: &str = r#""cells": [{ "name": "encoder", "priority": 2 },
                  { "name": "decoder", "max_rows": 8, "min_followup": 3 }],
        "unfold": [{ "chain": "encoder" }, { "decode": "decoder" }]"#;

    fn read(of_model: &str) -> Result<CellGraph, String> {
        let points = r#"[{ "rows": 1, "latency_us": 5 }, { "rows": 16, "latency_us": 9 }]"#;
        let text = format!(
            r#"{{ "name": "card", "models": [{{ "name": "m", "stages": [{points}, {points}], {of_model} }}] }}"#
        );
        let table = DeviceTable::from_json(&text).map_err(|fault| fault.to_string())?;
        let model = &table.models[0];
        let graph = model.cells.clone().ok_or("no cells")?;
        let least = graph.cells.iter().map(|cell| cell.max_rows).min();
        assert_eq!(Some(model.max_batch_rows), least, "graphs have the least of their cells' batches");
        Ok(graph)
    }

    #[test]
    fn cells_and_what_requests_unfold_into_are_read() {
        let graph = read(SEQ2SEQ).expect("it is a model of cells");
        let sizes: Vec<_> = graph.cells.iter().map(|cell| (cell.max_rows, cell.min_followup, cell.priority)).collect();
        assert_eq!(sizes, [(16, 4, 2), (8, 3, 1)]);
        assert_eq!(graph.segments, [SimulatedSegment::Chain(CellId(0)), SimulatedSegment::Decode(CellId(1))]);
        let chunks = |entry: &str| {
            let text = SEQ2SEQ.replace(r#""encoder", "#, &format!(r#""encoder", "chunk": {entry}, "#));
            read(&text).expect("it is a model of cells").cells[0].chunks
        };
        assert_eq!(chunks("{}"), Some(any_steps(false)));
        assert_eq!(chunks(r#"{ "lengths": true }"#), Some(any_steps(true)));
        let tree =
            SEQ2SEQ.replace(r#"{ "decode": "decoder" }"#, r#"{ "tree": { "leaf": "decoder", "inner": "encoder" } }"#);
        let tree = read(&tree).expect("it is a model of cells");
        assert_eq!(tree.segments[1], SimulatedSegment::Tree { leaf: CellId(1), inner: CellId(0) });
    }

    #[test]
    fn what_is_no_graph_of_cells_is_refused_with_what_was_expected() {
        let refusals = [
            (
                r#"{ "chain": "encoder" }"#,
                r#"{ "chain": "coder" }"#,
                "one of the cells encoder, decoder, but found 'coder'",
            ),
            (r#"{ "chain": "encoder" }"#, r#"{ "decode": "encoder" }"#, "at most one decoder, but found more"),
            (
                r#"{ "chain": "encoder" }, { "decode": "decoder" }"#,
                "",
                r#"what requests unfold into, as [{ "chain": "step" }], but found none"#,
            ),
            (r#""max_rows": 8"#, r#""max_rows": 0"#, "max_rows from 1, but found 0 in the cell 'decoder'"),
            (
                r#""min_followup": 3"#,
                r#""min_followup": 9"#,
                "min_followup from 1 to 8, but found 9 in the cell 'decoder'",
            ),
            (
                r#""max_rows": 8"#,
                r#""chunk": {}, "max_rows": 8"#,
                "chunk only for a cell of chains, but found it in the cell 'decoder'",
            ),
            (r#""priority": 2"#, r#""priority": 0"#, "a priority from 1, but found 0 in the cell 'encoder'"),
            (r#""name": "encoder""#, r#""name": "decoder""#, "another name for each cell, but found 'decoder' twice"),
            (r#"{ "name": "encoder", "priority": 2 },"#, "", "a list of latencies for each of 1 cells, but found 2"),
        ];
        for (found, wrong, expected) in refusals {
            let text = SEQ2SEQ.replacen(found, wrong, 1);
            assert_eq!(read(&text), Err(format!("model 'm': expected {expected}")), "{wrong}");
        }
        let steps = read(&format!(r#""steps_from": 1, {SEQ2SEQ}"#));
        assert_eq!(steps, Err("model 'm': expected no steps_from where there are cells, but found 1".to_owned()));
        let form = read(r#""unfold": [{ "loop": "x" }]"#).expect_err("there is no such segment");
        assert!(form.starts_with("unknown variant `loop`, expected one of `stage`, `chain`"), "{form}");
    }
}
