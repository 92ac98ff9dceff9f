//! The ranges of a model's operators in a profile: which batches they prefer, and where that cuts the model.

use std::io::{self, Write};

use paternoster_profile::{OperatorCuts, Profile, WeighedCut};

use super::table::Table;

/// Most sizes that the table has columns for.
const COLUMNS: usize = 4;
/// Length of the longest bar.
const BAR: f64 = 16.0;

/// Prints the ranges of a profile, and the boundaries between those that prefer other batches. Returns whether it has
/// ranges.
pub(super) fn print(profile: &Profile, out: &mut dyn Write, width: Option<usize>) -> io::Result<bool> {
    let (Some(whole), Some(ranges)) = (profile.whole(), &profile.ranges) else { return Ok(false) };
    let length = whole.middle_length().unwrap_or(0);
    let Some(weighed) = OperatorCuts::of(whole, ranges, length) else { return Ok(false) };
    let rows = ranges.rows();
    // The first and the last, and evenly between.
    let shown: Vec<u32> = match rows.len() {
        0..=COLUMNS => rows,
        count => (0..COLUMNS).map(|at| rows[at * (count - 1) / (COLUMNS - 1)]).collect(),
    };
    let at = if length == 0 { String::new() } else { format!(", at length {length}") };
    writeln!(out, "\nranges of operators of about equal time{at}")?;
    let columns = shown.iter().map(|rows| format!("µs a row of {rows}"));
    let columns: Vec<String> = ["Range", "Ends with", "Prefers"]
        .map(str::to_owned)
        .into_iter()
        .chain(columns)
        .chain(["".to_owned()])
        .collect();
    let columns: Vec<&str> = columns.iter().map(String::as_str).collect();
    let mut table = Table::new(&columns).with_keys(1).with_text(&["Ends with", ""]);
    let most = f64::from(weighed.preferred_rows.iter().max().copied().unwrap_or(1)).log2();
    for (range, &preferred) in weighed.preferred_rows.iter().enumerate() {
        let us = |&rows: &u32| match ranges.point(range, rows, length) {
            Some(point) => format!("{:.1}", point.median_ns as f64 / 1e3 / f64::from(rows)),
            None => "-".to_owned(),
        };
        let end = ranges.at.get(range).map_or("the outputs", String::as_str).to_owned();
        let share = if most > 0.0 { f64::from(preferred).log2() / most } else { 0.0 };
        let bar = "#".repeat(1 + (share * (BAR - 1.0)).round() as usize);
        let cells = [range.to_string(), end, preferred.to_string()].into_iter();
        table.row(cells.chain(shown.iter().map(us)).chain([bar]));
    }
    writeln!(out, "{}", table.within(width))?;
    let OperatorCuts { rows, boundary_ns, .. } = weighed;
    writeln!(out, "a boundary adds {:.0} µs to a batch of {rows}, measured", boundary_ns / 1e3)?;
    if weighed.weighed.is_empty() {
        writeln!(out, "no cut: all ranges prefer the same batch")?;
    }
    for WeighedCut { tensor, gain_ns, cost_ns, accepted, .. } in &weighed.weighed {
        let verdict = if *accepted { "cut" } else { "no cut" };
        let (gain_us, cost_us) = (gain_ns / 1e3, cost_ns / 1e3);
        writeln!(
            out,
            "{verdict} at {tensor}: a row is done {gain_us:.0} µs earlier, less {cost_us:.0} for the boundary"
        )?;
    }
    Ok(true)
}
