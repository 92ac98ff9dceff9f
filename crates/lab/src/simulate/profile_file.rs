//! Device tables from the files that `paternoster profile` stores or prints.

use paternoster_batching::{CostPoint, CostTable, Ns};
use serde::Deserialize;

use super::{
    cell_file::{CellEntry, ChunkEntry, SegmentEntry, Wrong, graph},
    file_error::FileError,
    table::{DeviceTable, ModelTable},
};

/// Number of intervals between the quantiles of a scatter.
const QUANTILES: usize = 100;

/// The parts of a profile's file that are needed for a table.
#[derive(Deserialize)]
pub(super) struct ProfileFile {
    key: Key,
    profile: Profile,
}

#[derive(Deserialize)]
struct Key {
    device: String,
}

#[derive(Deserialize)]
struct Profile {
    model: String,
    /// 0 for a model without a batch axis.
    max_rows: u32,
    cuts: Vec<Cut>,
    by_operators: Option<Cut>,
    #[serde(default)]
    cells: Vec<Cell>,
    #[serde(default)]
    unfold: Vec<SegmentEntry>,
}

/// A cell of a model of cells.
#[derive(Deserialize)]
struct Cell {
    name: String,
    priority: u32,
    /// As configured.
    max_rows: Option<u32>,
    chunk: Option<ChunkEntry>,
    /// The length whose times count, unless lengths are steps.
    length: u64,
    /// As suggested.
    batch_sizes: Vec<u32>,
    times: Cut,
}

#[derive(Deserialize)]
struct Cut {
    stages: Vec<Vec<Point>>,
    /// In thousandths.
    #[serde(default)]
    scatter: Vec<u32>,
}

#[derive(Deserialize)]
struct Point {
    rows: u32,
    length: u64,
    median_ns: Ns,
}

impl ProfileFile {
    /// Returns a table with one model per cut in the profile: `minilm` is whole, `minilm/4` has four stages, and
    /// `minilm/operators` is cut where the preferred batches of operators change. A model of cells is one model.
    pub(super) fn table(self) -> Result<DeviceTable, FileError> {
        let Self { key, profile } = self;
        let Profile { model, max_rows, cuts, by_operators, cells, unfold } = profile;
        let refused = |(expected, found)| FileError::Value { model: model.clone(), expected, found };
        let mut models = Vec::with_capacity(cuts.len() + 1);
        let named = |cut: &Cut| match cut.stages.len() {
            1 => model.clone(),
            stages => format!("{model}/{stages}"),
        };
        let all = cuts.iter().map(|cut| (named(cut), cut));
        for (name, cut) in all.chain(by_operators.iter().map(|cut| (format!("{model}/operators"), cut))) {
            cut.check().map_err(refused)?;
            let stages = cut.stages.iter().map(|points| points.iter().map(Point::cost).collect()).collect();
            let (max_batch_rows, latencies) = (max_rows.max(1), CostTable { stages });
            models.push(ModelTable {
                name,
                max_batch_rows,
                latencies,
                steps: None,
                cells: None,
                scatter: cut.scatter(),
            });
        }
        if !cells.is_empty() {
            models.push(of_cells(model.clone(), cells, &unfold).map_err(refused)?);
        }
        if models.is_empty() {
            return Err(FileError::NoModels);
        }
        Ok(DeviceTable { name: key.device, idle_watts: 0.0, busy_watts: 0.0, models })
    }
}

/// Returns a model of cells, with the largest batches that the server runs.
fn of_cells(name: String, cells: Vec<Cell>, unfold: &[SegmentEntry]) -> Result<ModelTable, Wrong> {
    let mut stages = Vec::with_capacity(cells.len());
    let mut scatter = Vec::new();
    for cell in &cells {
        cell.times.check()?;
        stages.push(cell.costs());
        scatter.extend(cell.times.scatter());
        if stages.last().is_none_or(Vec::is_empty) {
            return Err((
                format!("a latency of the cell '{}' at length {}", cell.name, cell.length),
                "none".to_owned(),
            ));
        }
    }
    let known: Vec<u32> =
        stages.iter().map(|points| points.iter().map(|point| point.rows).max().unwrap_or(1)).collect();
    let entry = |cell: Cell| {
        let max_rows = cell.max_rows.or_else(|| cell.batch_sizes.last().copied());
        CellEntry { name: cell.name, max_rows, min_followup: None, priority: cell.priority, chunk: cell.chunk }
    };
    let graph = graph(cells.into_iter().map(entry).collect(), unfold, &known)?;
    // Batches of padded graphs run in all cells.
    let max_batch_rows = graph.cells.iter().map(|cell| cell.max_rows).min().unwrap_or(1);
    let (latencies, scatter) = (CostTable { stages }, quantiles(scatter));
    Ok(ModelTable { name, max_batch_rows, latencies, steps: None, cells: Some(graph), scatter })
}

/// Returns as many quantiles of some values as a scatter has; none of none.
fn quantiles(mut values: Vec<f64>) -> Vec<f64> {
    values.sort_by(f64::total_cmp);
    let Some(last) = values.len().checked_sub(1) else { return Vec::new() };
    (0..=QUANTILES).map(|part| values[last * part / QUANTILES]).collect()
}

impl Cut {
    /// Checks that every stage has times.
    fn check(&self) -> Result<(), Wrong> {
        let refuse = |expected: &str, found: &str| Err((expected.to_owned(), found.to_owned()));
        if self.stages.is_empty() || self.stages.iter().any(Vec::is_empty) {
            return refuse("a latency for each stage", "none");
        }
        if self.stages.iter().flatten().any(|point| point.rows == 0 || point.median_ns == 0) {
            return refuse("rows and times from 1", "0");
        }
        Ok(())
    }

    fn scatter(&self) -> Vec<f64> {
        self.scatter.iter().map(|part| f64::from(*part) / 1e3).collect()
    }
}

impl Cell {
    /// Returns the times of its tasks: by steps if they run several, else at the length that counts.
    fn costs(&self) -> Vec<CostPoint> {
        let points = self.times.stages.iter().flatten().map(Point::cost);
        match self.chunk {
            Some(_) => points.collect(),
            None => {
                let points = points.filter(|point| point.length == self.length);
                points.map(|point| CostPoint { length: 0, ..point }).collect()
            }
        }
    }
}

impl Point {
    fn cost(&self) -> CostPoint {
        CostPoint { rows: self.rows, length: self.length, took_ns: self.median_ns }
    }
}

#[cfg(test)]
mod tests {
    use paternoster_model::CellId;

    use super::*;
    use crate::simulate::cells::{SimulatedSegment, any_steps};

    const POINT: &str = r#"{ "rows": 8, "length": 32, "median_ns": 410, "p99_ns": 500, "runs": 9 }"#;

    fn of_cuts(cuts: &str) -> Result<DeviceTable, FileError> {
        DeviceTable::from_json(&format!(
            r#"{{ "format": 1,
            "key": {{ "model_sha256": "ab", "device": "two cores", "engine": "e", "configuration": "" }},
                 "profile": {{ "model": "minilm", "max_rows": 16, "padded_axes": 1, "cuts": [{cuts}] }} }}"#
        ))
    }

    #[test]
    fn each_cut_of_a_profile_is_a_model_of_the_table() {
        let whole = format!(r#"{{ "at": [], "stages": [[{POINT}]], "scatter": [900, 1000, 1500] }}"#);
        let halves = format!(r#"{{ "at": [], "stages": [[{POINT}], [{POINT}]] }}"#);
        let thirds = format!(
            r#"{halves}], "by_operators": {{ "at": ["a", "b"], "stages": [[{POINT}], [{POINT}], [{POINT}]] }}"#
        );
        let table = of_cuts(&format!("{whole}, {thirds}, \"side_by_side\": [")).expect("it is a profile");
        assert_eq!(table.name, "two cores");
        let stages = |name: &str| table.model(name).map(|model| (model.latencies.stages.clone(), model.max_batch_rows));
        let point = CostPoint { rows: 8, length: 32, took_ns: 410 };
        assert_eq!(stages("minilm"), Ok((vec![vec![point]], 16)));
        assert_eq!(table.model("minilm").map(|model| model.scatter.clone()), Ok(vec![0.9, 1.0, 1.5]));
        assert_eq!(stages("minilm/2"), Ok((vec![vec![point], vec![point]], 16)));
        assert_eq!(stages("minilm/operators"), Ok((vec![vec![point]; 3], 16)));
    }

    #[test]
    fn a_profile_without_times_is_refused() {
        let refusal = |cuts: &str| of_cuts(cuts).expect_err("it is no profile").to_string();
        assert_eq!(refusal(""), "expected at least one model, but found none");
        let none = "model 'minilm': expected a latency for each stage, but found none";
        assert_eq!(refusal(r#"{ "stages": [[]] }"#), none);
        let zero = POINT.replace("410", "0");
        let found = refusal(&format!(r#"{{ "stages": [[{zero}]] }}"#));
        assert_eq!(found, "model 'minilm': expected rows and times from 1, but found 0");
    }

    const CELLS: &str = r#""cells": [
        { "name": "encoder", "priority": 2, "max_rows": null, "chunk": { "lengths": true }, "length": 4,
          "batch_sizes": [1, 2, 4], "times": { "at": [], "scatter": [900, 1000, 1400], "stages": [[
            { "rows": 1, "length": 1, "median_ns": 10 }, { "rows": 8, "length": 4, "median_ns": 60 }]] } },
        { "name": "decoder", "priority": 1, "max_rows": 32, "chunk": null, "length": 64, "batch_sizes": [1, 2],
          "times": { "at": [], "scatter": [800, 1000, 1100], "stages": [[
            { "rows": 1, "length": 16, "median_ns": 20 }, { "rows": 1, "length": 64, "median_ns": 30 }]] } }],
        "unfold": [{ "chain": "encoder" }, { "decode": "decoder" }]"#;

    fn of_cells(cells: &str) -> Result<DeviceTable, FileError> {
        DeviceTable::from_json(&format!(
            r#"{{ "key": {{ "device": "two cores" }},
                 "profile": {{ "model": "seq2seq", "max_rows": 32, "cuts": [], {cells} }} }}"#
        ))
    }

    #[test]
    fn the_cells_of_a_profile_are_one_model_of_the_table() {
        let table = of_cells(CELLS).expect("it is a profile");
        let model = table.model("seq2seq").expect("it is there");
        let graph = model.cells.as_ref().expect("it is a model of cells");
        let sizes: Vec<_> = graph.cells.iter().map(|cell| (cell.max_rows, cell.priority)).collect();
        assert_eq!(sizes, [(4, 2), (32, 1)], "as suggested, and as configured");
        assert_eq!(model.max_batch_rows, 4, "padded graphs have the least of their cells' batches");
        assert_eq!(graph.cells[0].chunks, Some(any_steps(true)));
        assert_eq!(graph.segments, [SimulatedSegment::Chain(CellId(0)), SimulatedSegment::Decode(CellId(1))]);
        let point = |rows, length, took_ns| CostPoint { rows, length, took_ns };
        let by_steps = vec![point(1, 1, 10), point(8, 4, 60)];
        assert_eq!(model.latencies.stages, [by_steps, vec![point(1, 0, 30)]], "steps, and the length that counts");
        assert_eq!((model.scatter.len(), model.scatter[0], model.scatter[100]), (101, 0.8, 1.4));
    }

    #[test]
    fn cells_without_what_a_simulation_needs_are_refused() {
        let refusal = |found: &str, wrong: &str| {
            let text = CELLS.replacen(found, wrong, 1);
            assert_ne!(text, CELLS, "{found}");
            of_cells(&text).expect_err("it is no profile").to_string()
        };
        let expected = refusal(r#""length": 64, "batch"#, r#""length": 32, "batch"#);
        assert_eq!(expected, "model 'seq2seq': expected a latency of the cell 'decoder' at length 32, but found none");
        let expected = refusal(r#"{ "decode": "decoder" }"#, r#"{ "decode": "speller" }"#);
        assert_eq!(expected, "model 'seq2seq': expected one of the cells encoder, decoder, but found 'speller'");
        let expected = refusal(r#""median_ns": 20"#, r#""median_ns": 0"#);
        assert_eq!(expected, "model 'seq2seq': expected rows and times from 1, but found 0");
    }
}
