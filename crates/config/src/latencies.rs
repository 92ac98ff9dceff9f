//! The latency table: measured times of a model's stages, in the configuration or in a file beside it. Latencies that
//! the table does not contain are learned while the model runs.

use std::{collections::BTreeMap, marker::PhantomData};

use paternoster_batching::{CostPoint, CostTable, Ns};
use serde::{Serialize, Serializer};

use super::{
    SettingError,
    knobs::Whole,
    model::{Latency, LatencySettings, WrittenLatencies},
    tree::{self, Node, Value},
};

/// Maximum bytes of a table.
pub const MAX_BYTES: u64 = 1 << 20;

/// First line of a table.
pub const HEADER: &str = "stage,rows,length,latency_us";

impl Serialize for LatencySettings {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let lines = match self {
            Self::File(name) => return serializer.serialize_str(name),
            Self::Here(lines) => lines,
        };
        let line = |Latency { stage, rows, length, latency_us }: &Latency| {
            format!("{},{},{},{}\n", stage.0, rows.0, length.map_or(0, |length| length.0), latency_us.0)
        };
        serializer.serialize_str(&format!("{HEADER}\n{}", lines.iter().map(line).collect::<String>()))
    }
}

impl TryFrom<WrittenLatencies> for LatencySettings {
    type Error = SettingError;

    fn try_from(written: WrittenLatencies) -> Result<Self, SettingError> {
        match written {
            WrittenLatencies::List(lines) => Ok(Self::Here(lines)),
            WrittenLatencies::Text(text) if text.trim().starts_with(HEADER) => lines(text.trim()).map(Self::Here),
            WrittenLatencies::Text(name) => Ok(Self::File(name.trim().to_owned())),
        }
    }
}

/// Reads the table of a model with `stages` stages.
///
/// # Errors
/// Names the line and what was expected.
pub fn parse(text: &str, stages: u16) -> Result<CostTable, SettingError> {
    table(&lines(text)?, stages)
}

fn lines(text: &str) -> Result<Vec<Latency>, SettingError> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut lines = text.lines().enumerate().map(|(number, line)| (number + 1, line.trim()));
    match lines.by_ref().find(|(_, line)| !line.is_empty()) {
        Some((_, HEADER)) => {}
        Some((number, line)) => {
            return Err(format!("line {number}: expected '{HEADER}', but found '{}'", start(line)).into());
        }
        None => return Err(format!("expected '{HEADER}' and a line for each latency, but found nothing").into()),
    }
    let lines = lines.filter(|(_, line)| !line.is_empty()).map(|(number, line)| {
        let cells: Vec<&str> = line.split(',').map(str::trim).collect();
        let names: Vec<&str> = HEADER.split(',').collect();
        if cells.len() != names.len() {
            return Err(format!("line {number}: expected four numbers, {HEADER}, but found '{}'", start(line)).into());
        }
        let cell = |(name, text): (&&str, &&str)| ((*name).to_owned(), Node { at: 0, value: Value::Raw(start(text)) });
        let row = Node { at: 0, value: Value::Map(names.iter().zip(&cells).map(cell).collect()) };
        tree::typed(PhantomData::<Latency>, &row).map_err(|fault| format!("line {number}: {fault}").into())
    });
    lines.collect()
}

/// Collects the latencies of a model with `stages` stages.
///
/// # Errors
/// Rejects an empty table, two latencies of the same size, and a stage that the model does not have.
pub fn table(lines: &[Latency], stages: u16) -> Result<CostTable, SettingError> {
    let mut points: Vec<BTreeMap<(u32, u64), Ns>> = vec![BTreeMap::new(); usize::from(stages)];
    for Latency { stage: Whole(stage), rows: Whole(rows), length, latency_us } in lines {
        let length = length.map_or(0, |length| length.0);
        let refuse = |fault: &str| Err(format!("stage {stage}, rows {rows}, length {length}{fault}").into());
        let Some(points) = points.get_mut(usize::from(*stage)) else {
            return refuse(&format!(": expected a stage from 0 to {}", stages - 1));
        };
        if points.insert((*rows, length), nanoseconds(latency_us.0)).is_some() {
            return refuse(" is given twice");
        }
    }
    if points.iter().all(BTreeMap::is_empty) {
        return Err("expected a line for each latency, but found none".into());
    }
    let point = |((rows, length), took_ns)| CostPoint { rows, length, took_ns };
    Ok(CostTable { stages: points.into_iter().map(|points| points.into_iter().map(point).collect()).collect() })
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
fn nanoseconds(microseconds: f64) -> Ns {
    ((microseconds * 1e3).round() as Ns).max(1)
}

/// Returns the beginning of a line, for messages.
fn start(line: &str) -> String {
    let mut start: String = line.escape_debug().take(40).collect();
    if line.chars().nth(40).is_some() {
        start.push('…');
    }
    start
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::{
        ConfigErrorKind::Value,
        tests::refusals::{Refusals, part},
    };

    fn table(lines: &str) -> Result<CostTable, SettingError> {
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
    fn a_parameter_is_a_table_or_the_name_of_its_file() {
        let of_text = |text: &str| LatencySettings::try_from(WrittenLatencies::Text(text.to_owned()));
        assert_eq!(of_text(" latencies.csv"), Ok(LatencySettings::File("latencies.csv".to_owned())));
        let here = of_text(&format!("\n{HEADER}\n0,1,0,5.5\n")).expect("it is a table");
        let shown = serde_json::to_value(&here).expect("it is a text");
        assert_eq!(shown, format!("{HEADER}\n0,1,0,5.5\n"), "it is printed as it is read");
        assert!(matches!(&here, LatencySettings::Here(lines) if lines.len() == 1));
    }

    pub(crate) fn refusals(all: &mut Refusals) {
        part(all, "latencies of two stages", table).refuses(&[
            (Value, "", ""),
            (Value, "", "0,1,5"),
            (Value, "", "0,1,0,5,6"),
            (Value, "", "0,1,0,1\n2,1,0,5"),
            (Value, "", "0,0,0,5"),
            (Value, "", "0,1,-1,5"),
            (Value, "", "0,1,0,0"),
            (Value, "", "0,1,0,-1"),
            (Value, "", "0,1,0,1e12"),
            (Value, "", "0,1,0,NaN"),
            (Value, "", "0,1,0,inf"),
            (Value, "", "0,1,0,"),
            (Value, "", "0,1,0,5\n0,1,0,6"),
        ]);
        all.add(Value, "", "a line of 1 MB", table(&"9".repeat(1 << 20)));
        let latency = Latency { stage: Whole(2), rows: Whole(1), length: None, latency_us: crate::knobs::Real(5.0) };
        all.add(Value, "", "a latency of a third stage", super::table(&[latency], 2));
        let of_text = LatencySettings::try_from(WrittenLatencies::Text(format!("{HEADER}\n0,0,0,5")));
        all.add(Value, "", "a parameter with a latency of no rows", of_text);
        part(all, "latencies without a header", |text| parse(text, 1))
            .refuses(&[(Value, "", "0,1,0,5\n"), (Value, "", "\n")]);
    }
}
