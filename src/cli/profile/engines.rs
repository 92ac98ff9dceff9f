//! `paternoster profile --engines`: compares the CPU engines.

use std::io::{self, Write};

use paternoster_profile::{EngineTable, EngineTimes, MeasuredSize};
use paternoster_repository::{PoolLoader, ResolvedVersion};

use super::{super::table::Table, ProfileArgs, ProfileError, Progress};

/// Measures a model's programs with every engine, and prints the times and what to write into `model.yaml`.
///
/// # Errors
/// Fails if ONNX Runtime cannot run the model.
pub(super) fn run(
    args: &ProfileArgs,
    loader: &PoolLoader,
    request: &ResolvedVersion,
    (out, width): (&mut dyn Write, Option<usize>),
) -> Result<(), ProfileError> {
    let progress = Progress::start();
    let budget = std::time::Duration::from_secs(args.budget_s);
    let measured = loader.compare_engines(request, &args.sizes, budget, &|what, size| {
        progress.show(format!("{what}: {} rows of length {}", size.rows, size.length));
    });
    progress.clear();
    let tables = measured.map_err(|reason| ProfileError::Run { model: request.spec.name.clone(), reason })?;
    if args.json {
        serde_json::to_writer_pretty(&mut *out, &tables).map_err(io::Error::from)?;
        writeln!(out)?;
        return Ok(());
    }
    tables.iter().try_for_each(|table| describe(table, out, width))?;
    Ok(())
}

/// Parses a batch size: rows, with the length of padded axes after an `x`.
///
/// # Errors
/// Fails if the text is not such a size.
pub(super) fn size(text: &str) -> Result<MeasuredSize, String> {
    let (rows, length) = text.split_once('x').unwrap_or((text, "0"));
    let number = |text: &str| text.trim().parse::<u32>().ok();
    match (number(rows).filter(|rows| *rows > 0), number(length)) {
        (Some(rows), Some(length)) => Ok(MeasuredSize { rows, length }),
        _ => Err("expected rows, or rows and a length, as in 8 or 8x55".to_owned()),
    }
}

fn describe(table: &EngineTable, out: &mut dyn Write, width: Option<usize>) -> io::Result<()> {
    match &table.cell {
        Some(cell) => writeln!(out, "\ncell '{cell}'")?,
        None => writeln!(out, "\nwhole")?,
    }
    let mut shown = Table::new(&["Engine", "Precision", "Length", "Rows", "Median µs", "Ratio", "Deviation", "Runs"]);
    shown = shown.with_keys(4).with_text(&["Engine"]);
    for times in &table.engines {
        for (point, base) in times.points.iter().zip(&table.engines[0].points) {
            shown.row([
                times.engine.clone(),
                times.precision.clone(),
                if point.length == 0 { "-".to_owned() } else { point.length.to_string() },
                point.rows.to_string(),
                format!("{:.1}", point.median_ns as f64 / 1e3),
                format!("{:.2}", point.median_ns as f64 / base.median_ns.max(1) as f64),
                format!("{:.1e}", point.deviation),
                point.runs.to_string(),
            ]);
        }
    }
    writeln!(out, "{}", shown.within(width))?;
    for times in &table.engines {
        if let Some(reason) = &times.refused {
            writeln!(out, "{} in {} does not run it: {reason}", times.engine, times.precision)?;
        }
    }
    let [in_fp32, any] = table.fastest();
    advise(table, "in fp32", in_fp32, out)?;
    if any.0 != in_fp32.0 {
        advise(table, "in any precision", any, out)?;
    }
    Ok(())
}

fn advise(table: &EngineTable, among: &str, (at, ratio): (usize, f64), out: &mut dyn Write) -> io::Result<()> {
    let Some(fastest) = table.engines.get(at) else { return Ok(()) };
    let cell = table.cell.as_deref();
    let (engine, lines) = (&fastest.engine, lines(cell, fastest));
    if ratio < 1.0 {
        writeln!(out, "fastest {among}: {engine}, {ratio:.2} of the time; in model.yaml:\n{lines}")
    } else {
        writeln!(out, "fastest {among}: {engine}, which is the default")
    }
}

/// Returns the settings that make a program run like this.
fn lines(cell: Option<&str>, times: &EngineTimes) -> String {
    let EngineTimes { engine, precision, .. } = times;
    match cell {
        Some(cell) => format!("  cells: {{ {cell}: {{ engine: {engine}, precision: {precision} }} }}"),
        None => format!("  engine: {engine}\n  instance: {{ precision: {precision} }}"),
    }
}

#[cfg(test)]
mod tests {
    use paternoster_profile::EnginePoint;

    use super::*;

    fn times(engine: &str, precision: &str, median_ns: u64) -> EngineTimes {
        let points = vec![EnginePoint { rows: 8, length: 0, median_ns, runs: 5, deviation: 0.004 }];
        EngineTimes { engine: engine.to_owned(), precision: precision.to_owned(), refused: None, points }
    }

    fn described(cell: Option<&str>, engines: Vec<EngineTimes>) -> String {
        let mut out = Vec::new();
        describe(&EngineTable { cell: cell.map(str::to_owned), engines }, &mut out, None).expect("memory takes it");
        String::from_utf8(out).expect("it is text")
    }

    #[test]
    fn the_fastest_is_named_with_its_lines() {
        let of = |openvino, bf16| {
            vec![
                times("onnxruntime", "ieee", 1000),
                times("openvino", "ieee", openvino),
                times("openvino", "bf16", bf16),
            ]
        };
        let shown = described(None, of(990, 400));
        assert!(shown.contains("fastest in fp32: onnxruntime, which is the default\n"), "{shown}");
        let lines = "0.40 of the time; in model.yaml:\n  engine: openvino\n  instance: { precision: bf16 }\n";
        assert!(shown.ends_with(&format!("fastest in any precision: openvino, {lines}")), "{shown}");
        let shown = described(Some("step"), of(500, 499));
        let lines = "in model.yaml:\n  cells: { step: { engine: openvino, precision: ieee } }\n";
        assert!(shown.contains(&format!("fastest in fp32: openvino, 0.50 of the time; {lines}")), "{shown}");
    }

    #[test]
    fn sizes_are_rows_and_may_have_a_length() {
        assert_eq!(size("8"), Ok(MeasuredSize { rows: 8, length: 0 }));
        assert_eq!(size("8x55"), Ok(MeasuredSize { rows: 8, length: 55 }));
        for wrong in ["", "0", "x5", "8x", "8x5x5", "-1"] {
            assert!(size(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn an_engine_that_does_not_run_it_says_why() {
        let refused = Some("input 'x' holds strings".to_owned());
        let other = EngineTimes { refused, points: Vec::new(), ..times("openvino", "ieee", 1) };
        let shown = described(None, vec![times("onnxruntime", "ieee", 1000), other]);
        assert!(shown.contains("openvino in ieee does not run it: input 'x' holds strings\n"), "{shown}");
        assert!(shown.ends_with("fastest in fp32: onnxruntime, which is the default\n"), "{shown}");
    }
}
