//! What is printed and kept.

use std::fmt::Write as _;

use paternoster_engine::Precision;
use paternoster_profile::LatencyPoint;
use serde::Serialize;

use crate::{ceilings::Ceilings, staged::StagedTimes, steps::Step};

/// All figures of a card.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    /// Name, compute capability and memory.
    pub(crate) card: String,
    pub(crate) ceilings: Ceilings,
    pub(crate) steps: Vec<Step>,
    /// Networks that were not measured, and why.
    pub(crate) skipped: Vec<(String, String)>,
}

/// A network's times: a line for each number of rows, two columns for each precision.
pub(crate) fn table(network: &str, steps: &[Step]) -> String {
    let mut text = format!("{network}: microseconds of a batch, and how often the floor\n{:>6}", "rows");
    for (name, _) in Precision::NAMES {
        let _ = write!(text, " {name:>11}       ");
    }
    let mut rows: Vec<u32> = steps.iter().map(|step| step.rows).collect();
    rows.dedup();
    rows.sort_unstable();
    rows.dedup();
    for rows in rows {
        let _ = write!(text, "\n{rows:>6}");
        for (name, _) in Precision::NAMES {
            let _ = match steps.iter().find(|step| step.rows == rows && step.precision == name) {
                Some(Step { microseconds, floor_microseconds, .. }) => {
                    write!(text, " {microseconds:>11.1} {:>5.1}x", microseconds / floor_microseconds)
                }
                None => write!(text, " {:>11} {:>6}", "", ""),
            };
        }
    }
    text + "\n"
}

/// A network's times in stages: a line for each number of rows. For each stage, the time of its task, and how much more
/// that is than the time of its program alone.
pub(crate) fn stages(times: &StagedTimes) -> String {
    let StagedTimes { network, precision, length, cut, alone } = times;
    let of_length = if *length > 0 { format!(", {length} tokens") } else { String::new() };
    let mut text = format!("{network}{of_length}, {precision}: microseconds of each stage\n{:>6}", "rows");
    for stage in 0..cut.stages.len() {
        let _ = write!(text, " {stage:>11}         ");
    }
    for rows in cut.rows() {
        let _ = write!(text, "\n{rows:>6}");
        for stage in 0..cut.stages.len() {
            let [task, program] = [cut, alone].map(|table| table.point(stage, rows, *length));
            let median_us = |point: &LatencyPoint| point.median_ns as f64 / 1e3;
            let task_us = task.map_or(0.0, median_us);
            let _ = write!(text, " {task_us:>11.1}");
            let _ = match program {
                Some(program) => write!(text, " {:>+8.1}", task_us - median_us(program)),
                None => write!(text, " {:>8}", ""),
            };
        }
    }
    text + "\n"
}
