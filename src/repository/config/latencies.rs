//! The latency table: measured times of a model's stages, in a file beside its configuration or in the configuration
//! itself. Until a stage has been measured its latency is learned while it runs.

use std::collections::BTreeMap;

use super::{knobs, pb};
use crate::batching::{CostPoint, CostTable, Ns};

/// Most bytes of a table.
pub const MAX_BYTES: u64 = 1 << 20;

/// First line of a table.
pub const HEADER: &str = "stage,rows,length,latency_us";

/// Longest latency: a day.
const MAX_LATENCY_US: f64 = 86_400_000_000.0;

/// Where a table is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place<'c> {
    /// In the file of this name, in the model's directory.
    File(&'c str),
    /// Here.
    Here(&'c str),
}

/// Where the configuration's latency table is, if it has one.
pub fn place(config: &pb::ModelConfig) -> Option<Place<'_>> {
    let text = config.parameters.get(knobs::LATENCIES.key)?.string_value.trim();
    Some(if text.starts_with(HEADER) { Place::Here(text) } else { Place::File(text) })
}

/// Reads a table of a model with this many stages.
///
/// # Errors
/// With the line and what was expected.
pub fn parse(text: &str, stages: u16) -> Result<CostTable, String> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut lines = text.lines().enumerate().map(|(number, line)| (number + 1, line.trim()));
    match lines.by_ref().find(|(_, line)| !line.is_empty()) {
        Some((_, HEADER)) => {}
        Some((number, line)) => return Err(format!("line {number}: expected '{HEADER}', but found '{}'", start(line))),
        None => return Err(format!("expected '{HEADER}' and a line for each latency, but found nothing")),
    }
    let mut points: Vec<BTreeMap<(u32, u64), Ns>> = vec![BTreeMap::new(); usize::from(stages)];
    for (number, line) in lines.filter(|(_, line)| !line.is_empty()) {
        let refuse = |expected: &str| Err(format!("line {number}: expected {expected}, but found '{}'", start(line)));
        let mut cells = line.split(',').map(str::trim);
        let cells = [cells.next(), cells.next(), cells.next(), cells.next(), cells.next()];
        let [Some(stage), Some(rows), Some(length), Some(latency), None] = cells else {
            return refuse("four numbers: stage, rows, length and latency");
        };
        let Some(stage) = stage.parse().ok().filter(|stage: &usize| *stage < points.len()) else {
            return refuse(&format!("a stage from 0 to {}", points.len() - 1));
        };
        let Some(rows) = rows.parse().ok().filter(|rows| *rows > 0) else {
            return refuse(&format!("rows from 1 to {}", u32::MAX));
        };
        let Ok(length) = length.parse() else { return refuse(&format!("a length from 0 to {}", u64::MAX)) };
        let latency = latency.parse().ok().filter(|latency| *latency > 0.0 && *latency <= MAX_LATENCY_US);
        let Some(latency_us) = latency else {
            return refuse(&format!("a latency above 0 µs, at most {MAX_LATENCY_US}"));
        };
        if points[stage].insert((rows, length), nanoseconds(latency_us)).is_some() {
            return Err(format!("line {number}: stage {stage}, rows {rows}, length {length} is there twice"));
        }
    }
    if points.iter().all(BTreeMap::is_empty) {
        return Err("expected a line for each latency, but found none".to_owned());
    }
    let point = |((rows, length), took_ns)| CostPoint { rows, length, took_ns };
    Ok(CostTable { stages: points.into_iter().map(|points| points.into_iter().map(point).collect()).collect() })
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
fn nanoseconds(microseconds: f64) -> Ns {
    ((microseconds * 1e3).round() as Ns).max(1)
}

/// The beginning of a line, for messages.
fn start(line: &str) -> String {
    let mut start: String = line.escape_debug().take(40).collect();
    if line.chars().nth(40).is_some() {
        start.push('…');
    }
    start
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(lines: &str) -> Result<CostTable, String> {
        parse(&format!("{HEADER}\n{lines}"), 2)
    }

    #[test]
    fn a_table_is_sorted_by_stage_rows_and_length() {
        let read = table("1,8,0,90\n\n0,8,128,45.5\r\n0, 1, 64, 0.0004\n0,8,64,40\n");
        let point = |rows, length, took_ns| CostPoint { rows, length, took_ns };
        let stages =
            vec![vec![point(1, 64, 1), point(8, 64, 40_000), point(8, 128, 45_500)], vec![point(8, 0, 90_000)]];
        assert_eq!(read, Ok(CostTable { stages }));
        let first = parse(&format!("\u{feff}\n{HEADER}\n0,1,0,1"), 3).unwrap();
        assert_eq!(
            first.stages,
            [vec![CostPoint { rows: 1, length: 0, took_ns: 1_000 }], vec![], vec![]],
            "stages without a line were not measured"
        );
    }

    #[test]
    fn what_is_no_latency_is_refused_with_its_line() {
        let refusal = |lines: &str| table(lines).expect_err("it should be refused");
        let four = "line 2: expected four numbers: stage, rows, length and latency, but found";
        assert_eq!(refusal("0,1,5"), format!("{four} '0,1,5'"));
        assert_eq!(refusal("0,1,0,5,6"), format!("{four} '0,1,0,5,6'"));
        assert_eq!(refusal("0,1,0,1\n2,1,0,5"), "line 3: expected a stage from 0 to 1, but found '2,1,0,5'");
        assert_eq!(refusal("0,0,0,5"), "line 2: expected rows from 1 to 4294967295, but found '0,0,0,5'");
        assert_eq!(
            refusal("0,1,-1,5"),
            "line 2: expected a length from 0 to 18446744073709551615, but found '0,1,-1,5'"
        );
        for latency in ["0", "-1", "NaN", "inf", "1e12", ""] {
            let expected = "line 2: expected a latency above 0 µs, at most 86400000000, but found";
            assert_eq!(refusal(&format!("0,1,0,{latency}")), format!("{expected} '0,1,0,{latency}'"));
        }
        assert_eq!(refusal("0,1,0,5\n0,1,0,6"), "line 3: stage 0, rows 1, length 0 is there twice");
        assert_eq!(refusal(""), "expected a line for each latency, but found none");
        let long = refusal(&"9".repeat(1 << 20));
        assert!(long.len() < 200, "a long line is cut: {long}");
    }

    #[test]
    fn the_header_is_required() {
        let refusal = |text: &str| parse(text, 1).expect_err("it should be refused");
        assert_eq!(refusal("0,1,0,5\n"), format!("line 1: expected '{HEADER}', but found '0,1,0,5'"));
        assert_eq!(refusal("\n"), format!("expected '{HEADER}' and a line for each latency, but found nothing"));
    }

    #[test]
    fn a_parameter_is_a_table_or_the_name_of_its_file() {
        let at = |text: &str| {
            let mut config = pb::ModelConfig::default();
            let string_value = text.to_owned();
            config.parameters.insert(knobs::LATENCIES.key.to_owned(), pb::ModelParameter { string_value });
            place(&config).map(|place| matches!(place, Place::Here(_)))
        };
        assert_eq!(at("latencies.csv"), Some(false));
        assert_eq!(at(&format!("\n{HEADER}\n0,1,0,5\n")), Some(true));
        assert_eq!(place(&pb::ModelConfig::default()), None);
    }
}
