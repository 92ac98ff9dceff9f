//! `--table`: a built-in device table, or one from a file.

use std::{fs, path::Path};

use paternoster_config::latencies;
use paternoster_lab::simulate::{BUILT_IN, DeviceTable, ModelTable, built_in};
use paternoster_observe::timeline::Picture;

/// Most stages of a latency table.
const MAX_STAGES: u16 = 256;

/// Reads a table: a built-in one by name, a device table in JSON, or one model's latencies in CSV, in the format of
/// `model.yaml`; the model is then named after the file.
///
/// # Errors
/// Fails if there is no such table, or the file is invalid; names the line where possible.
pub(super) fn read(given: &str, dec_timesteps: u16) -> Result<DeviceTable, String> {
    if let Some(table) = built_in(given, dec_timesteps) {
        return Ok(table);
    }
    let path = Path::new(given);
    let text = fs::read_to_string(path).map_err(|fault| {
        format!("'{given}' is neither a built-in table ({}) nor a file that can be read: {fault}", BUILT_IN.join(", "))
    })?;
    let foreign = |fault: String| format!("'{given}' is no device table: {fault}");
    if text.trim_start().starts_with('{') {
        return DeviceTable::from_json(&text).map_err(|fault| foreign(fault.to_string()));
    }
    let mut latencies = latencies::parse(&text, MAX_STAGES).map_err(|fault| foreign(fault.to_string()))?;
    let stages = latencies.stages.iter().rposition(|points| !points.is_empty()).map_or(0, |last| last + 1);
    latencies.stages.truncate(stages);
    if let Some(stage) = latencies.stages.iter().position(Vec::is_empty) {
        return Err(foreign(format!("expected a latency for each stage, but found none for stage {stage}")));
    }
    let name = path.file_stem().map_or_else(|| given.to_owned(), |stem| stem.to_string_lossy().into_owned());
    let max_batch_rows = latencies.stages.iter().flatten().map(|point| point.rows).max().unwrap_or(1);
    let model =
        ModelTable { name: name.clone(), max_batch_rows, latencies, steps: None, cells: None, scatter: Vec::new() };
    Ok(DeviceTable { name, idle_watts: 0.0, busy_watts: 0.0, models: vec![model] })
}

/// Reads the recorded timeline of an option.
///
/// # Errors
/// Fails if it cannot be read, or is not a timeline.
pub(super) fn timeline(option: &str, path: &Path) -> Result<Picture, String> {
    let json = fs::read(path).map_err(|fault| format!("--{option}: cannot read '{}': {fault}", path.display()))?;
    Picture::read_chrome(&json).map_err(|fault| format!("--{option}: '{}': {fault}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_latency_table_is_a_device_with_one_model() {
        let directory = tempfile::tempdir().expect("a directory for the test");
        let file = directory.path().join("minilm.csv");
        let read_text = |text: &str| {
            fs::write(&file, text).expect("a file for the test");
            read(&file.display().to_string(), 1)
        };
        let table = read_text("stage,rows,length,latency_us\n0,1,0,10\n1,4,0,30\n").expect("it is a table");
        let model = table.model("minilm").expect("it is named after the file");
        assert_eq!((model.latencies.stages.len(), model.max_batch_rows), (2, 4));
        let gap = read_text("stage,rows,length,latency_us\n1,1,0,10\n").expect_err("stage 0 has no latency");
        assert!(gap.ends_with("expected a latency for each stage, but found none for stage 0"), "{gap}");
        let foreign = read_text("{ \"models\": 5 }").expect_err("it is no table");
        assert!(foreign.contains("minilm.csv' is no device table: ") && foreign.contains("line 1"), "{foreign}");
    }

    #[test]
    fn what_is_no_table_is_refused_with_those_there_are() {
        let refusal = read("titan", 1).expect_err("there is no such table");
        assert!(
            refusal.starts_with("'titan' is neither a built-in table (npu, titan-rtx, v100, published) nor a file"),
            "{refusal}"
        );
    }
}
