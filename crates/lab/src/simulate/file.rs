//! Device tables from a file: JSON as described in `docs/simulator.md`, or a profile.

use paternoster_batching::{CostPoint, CostTable, Ns};
use serde::{Deserialize, de::IgnoredAny};

use super::{
    cell_file::{CellEntry, SegmentEntry, graph},
    file_error::FileError,
    profile_file::ProfileFile,
    table::{DeviceTable, ModelTable, UnrolledLoop},
};

/// Maximum number of stages of a model.
const MAX_STAGES: usize = 4096;
/// Maximum latency, one day.
const MAX_LATENCY_US: f64 = 86_400_000_000.0;

/// Distinguishes a profile from a table.
#[derive(Deserialize)]
struct Kind {
    profile: Option<IgnoredAny>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Device {
    name: String,
    #[serde(default)]
    idle_watts: f64,
    #[serde(default)]
    busy_watts: f64,
    models: Vec<Model>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Model {
    name: String,
    max_batch_rows: Option<u32>,
    steps_from: Option<u16>,
    stages: Vec<Vec<Point>>,
    #[serde(default)]
    cells: Vec<CellEntry>,
    #[serde(default)]
    unfold: Vec<SegmentEntry>,
    #[serde(default)]
    scatter: Vec<f64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Point {
    rows: u32,
    #[serde(default)]
    length: u64,
    latency_us: f64,
}

impl DeviceTable {
    /// Reads a table or a profile from JSON.
    ///
    /// # Errors
    /// Names the line of a syntax error, or the model with an invalid value and what was expected.
    pub fn from_json(text: &str) -> Result<Self, FileError> {
        let form = |fault: serde_json::Error| FileError::Form(fault.to_string());
        if serde_json::from_str::<Kind>(text).map_err(form)?.profile.is_some() {
            return serde_json::from_str::<ProfileFile>(text).map_err(form)?.table();
        }
        let Device { name, idle_watts, busy_watts, models } = serde_json::from_str(text).map_err(form)?;
        if !(idle_watts >= 0.0 && busy_watts >= idle_watts) {
            return Err(FileError::Watts { busy: busy_watts.to_string(), idle: idle_watts.to_string() });
        }
        if models.is_empty() {
            return Err(FileError::NoModels);
        }
        let models = models.into_iter().map(Model::check).collect::<Result<Vec<_>, _>>()?;
        let is_twice =
            |(index, model): &(usize, &ModelTable)| models[..*index].iter().any(|one| one.name == model.name);
        match models.iter().enumerate().find(is_twice) {
            Some((_, model)) => Err(FileError::Twice(model.name.clone())),
            None => Ok(Self { name, idle_watts, busy_watts, models }),
        }
    }
}

impl Model {
    fn check(self) -> Result<ModelTable, FileError> {
        let Self { name, max_batch_rows, steps_from, stages, cells, unfold, scatter } = self;
        let refuse = |expected: &str, found: String| {
            Err(FileError::Value { model: name.clone(), expected: expected.to_owned(), found })
        };
        if stages.is_empty() || stages.len() > MAX_STAGES {
            return refuse(&format!("from 1 to {MAX_STAGES} stages"), stages.len().to_string());
        }
        if let Some(stage) = stages.iter().position(Vec::is_empty) {
            return refuse("a latency for each stage", format!("none for stage {stage}"));
        }
        for (stage, point) in
            stages.iter().enumerate().flat_map(|(stage, points)| points.iter().map(move |p| (stage, p)))
        {
            if point.rows == 0 {
                return refuse("rows from 1", format!("0 in stage {stage}"));
            }
            if !(point.latency_us > 0.0 && point.latency_us <= MAX_LATENCY_US) {
                let expected = format!("a latency above 0 µs, at most {MAX_LATENCY_US}");
                return refuse(&expected, format!("{} in stage {stage}", point.latency_us));
            }
        }
        let largest = stages.iter().flatten().map(|point| point.rows).max().unwrap_or(1);
        if max_batch_rows == Some(0) {
            return refuse("max_batch_rows from 1", "0".to_owned());
        }
        if let Some(first) = steps_from.filter(|first| usize::from(*first) >= stages.len()) {
            return refuse(&format!("steps_from below {}, the number of stages", stages.len()), first.to_string());
        }
        let latencies =
            CostTable { stages: stages.iter().map(|points| points.iter().map(Point::cost).collect()).collect() };
        if !scatter.is_sorted() || scatter.iter().any(|part| !part.is_finite() || *part < 0.0) {
            return refuse("parts in scatter that ascend from 0", format!("{scatter:?}"));
        }
        let known = |points: &Vec<Point>| points.iter().map(|point| point.rows).max().unwrap_or(1);
        let cells = match (cells.is_empty() && unfold.is_empty(), steps_from) {
            (true, _) => None,
            (false, None) => {
                let known: Vec<u32> = stages.iter().map(known).collect();
                match graph(cells, &unfold, &known) {
                    Ok(graph) => Some(graph),
                    Err((expected, found)) => return refuse(&expected, found),
                }
            }
            (false, Some(first)) => return refuse("no steps_from where there are cells", first.to_string()),
        };
        let least = cells.iter().flat_map(|graph| &graph.cells).map(|cell| cell.max_rows).min();
        let max_batch_rows = max_batch_rows.or(least).unwrap_or(largest);
        let steps = steps_from.map(|first| UnrolledLoop { first });
        Ok(ModelTable { name, max_batch_rows, latencies, steps, cells, scatter })
    }
}

impl Point {
    fn cost(&self) -> CostPoint {
        let took_ns = ((self.latency_us * 1e3).round() as Ns).max(1);
        CostPoint { rows: self.rows, length: self.length, took_ns }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_models(models: &str) -> Result<DeviceTable, FileError> {
        DeviceTable::from_json(&format!(
            r#"{{ "name": "card", "idle_watts": 10, "busy_watts": 90, "models": [{models}] }}"#
        ))
    }

    #[test]
    fn a_table_is_read_with_the_largest_measured_batch_as_the_largest() {
        let table = with_models(r#"{ "name": "m", "stages": [[{ "rows": 4, "length": 64, "latency_us": 1.5 }]] }"#);
        let table = table.expect("it is a table");
        let latencies = CostTable { stages: vec![vec![CostPoint { rows: 4, length: 64, took_ns: 1500 }]] };
        let model = ModelTable {
            name: "m".to_owned(),
            max_batch_rows: 4,
            latencies,
            steps: None,
            cells: None,
            scatter: Vec::new(),
        };
        assert_eq!(table.models, [model]);
        assert_eq!((table.idle_watts, table.busy_watts), (10.0, 90.0));
    }

    #[test]
    fn what_is_no_table_is_refused_with_what_was_expected() {
        let refusal = |models: &str| with_models(models).expect_err("it is no table").to_string();
        let model = |rest: &str| format!(r#"{{ "name": "m", {rest} }}"#);
        let point = r#"{ "rows": 1, "latency_us": 5 }"#;
        assert_eq!(refusal(""), "expected at least one model, but found none");
        assert_eq!(refusal(&model(r#""stages": []"#)), "model 'm': expected from 1 to 4096 stages, but found 0");
        let found = refusal(&model(&format!(r#""stages": [[{point}], []]"#)));
        assert_eq!(found, "model 'm': expected a latency for each stage, but found none for stage 1");
        let found = refusal(&model(r#""stages": [[{ "rows": 0, "latency_us": 5 }]]"#));
        assert_eq!(found, "model 'm': expected rows from 1, but found 0 in stage 0");
        let found = refusal(&model(r#""stages": [[{ "rows": 1, "latency_us": -5 }]]"#));
        assert!(found.contains("a latency above 0 µs, at most 86400000000, but found -5 in stage 0"), "{found}");
        let found = refusal(&model(&format!(r#""steps_from": 1, "stages": [[{point}]]"#)));
        assert_eq!(found, "model 'm': expected steps_from below 1, the number of stages, but found 1");
        let found = refusal(&model(&format!(r#""max_batch_rows": 0, "stages": [[{point}]]"#)));
        assert_eq!(found, "model 'm': expected max_batch_rows from 1, but found 0");
        let found = refusal(&model(&format!(r#""scatter": [0.9, 0.8], "stages": [[{point}]]"#)));
        assert_eq!(found, "model 'm': expected parts in scatter that ascend from 0, but found [0.9, 0.8]");
        let twice = model(&format!(r#""stages": [[{point}]]"#));
        assert_eq!(refusal(&format!("{twice}, {twice}")), "duplicate model 'm'");
        let found = refusal(&model(r#""stage": []"#));
        assert!(found.starts_with("unknown field `stage`") && found.contains("line 1"), "{found}");
        let watts = DeviceTable::from_json(r#"{ "name": "c", "idle_watts": 9, "busy_watts": 1, "models": [] }"#);
        let watts = watts.expect_err("no device is like that").to_string();
        assert_eq!(watts, "expected busy_watts of at least idle_watts and neither below 0, but found 1 and 9");
    }
}
