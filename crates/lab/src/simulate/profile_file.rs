//! Device tables from the files that `paternoster profile` stores or prints.

use paternoster_batching::{CostPoint, CostTable, Ns};
use serde::Deserialize;

use super::{
    file_error::FileError,
    table::{DeviceTable, ModelTable},
};

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
    /// Returns a table with one model per cut in the profile: `minilm` is whole, `minilm/4` has four stages.
    pub(super) fn table(self) -> Result<DeviceTable, FileError> {
        let Self { key, profile } = self;
        let refuse = |expected: &str, found: &str| {
            let (expected, found) = (expected.to_owned(), found.to_owned());
            Err(FileError::Value { model: profile.model.clone(), expected, found })
        };
        let mut models = Vec::with_capacity(profile.cuts.len());
        for cut in &profile.cuts {
            let points = || cut.stages.iter().flatten();
            if cut.stages.is_empty() || cut.stages.iter().any(Vec::is_empty) {
                return refuse("a latency for each stage", "none");
            }
            if points().any(|point| point.rows == 0 || point.median_ns == 0) {
                return refuse("rows and times from 1", "0");
            }
            let name = match cut.stages.len() {
                1 => profile.model.clone(),
                stages => format!("{}/{stages}", profile.model),
            };
            let stages = cut.stages.iter().map(|points| points.iter().map(Point::cost).collect()).collect();
            let max_batch_rows = profile.max_rows.max(1);
            let scatter = cut.scatter.iter().map(|part| f64::from(*part) / 1e3).collect();
            models.push(ModelTable {
                name,
                max_batch_rows,
                latencies: CostTable { stages },
                steps: None,
                cells: None,
                scatter,
            });
        }
        if models.is_empty() {
            return Err(FileError::NoModels);
        }
        Ok(DeviceTable { name: key.device, idle_watts: 0.0, busy_watts: 0.0, models })
    }
}

impl Point {
    fn cost(&self) -> CostPoint {
        CostPoint { rows: self.rows, length: self.length, took_ns: self.median_ns }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let table = of_cuts(&format!("{whole}, {halves}")).expect("it is a profile");
        assert_eq!(table.name, "two cores");
        let stages = |name: &str| table.model(name).map(|model| (model.latencies.stages.clone(), model.max_batch_rows));
        let point = CostPoint { rows: 8, length: 32, took_ns: 410 };
        assert_eq!(stages("minilm"), Ok((vec![vec![point]], 16)));
        assert_eq!(table.model("minilm").map(|model| model.scatter.clone()), Ok(vec![0.9, 1.0, 1.5]));
        assert_eq!(stages("minilm/2"), Ok((vec![vec![point], vec![point]], 16)));
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
}
