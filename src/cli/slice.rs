//! `paternoster slice`: shows where a model would be cut into stages, and which tensors cross the cuts.

use std::{
    io::{self, Write},
    path::{Path, PathBuf},
};

use paternoster_onnx::{
    SealedModel,
    cut::{CutError, Cuts, LegalCut, StageGraph, cut, legal_cuts, obstacle},
};
use paternoster_profile::{Profile, ProfileFileError};

use super::{
    model_args::ModelArgs,
    ranges,
    table::{Table, terminal_width},
};

/// File name of the program in a version directory.
pub(super) const PROGRAM: &str = "model.onnx";

/// Show the stages of a model: where it would be cut, each stage's share of the time, and which tensors cross the cuts
///
/// Runs nothing and does not need ONNX Runtime: times are estimated from shapes. `paternoster profile` measures them.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(after_help = "Examples:
  paternoster slice model.onnx --stages 4
  paternoster slice /models/resnet50 --stages 8
  paternoster slice /models/resnet50          (all places where one may cut)
  paternoster slice /models/linknet --profile linknet.json   (what its operators prefer)
  paternoster slice --model-repository /models --model resnet50")]
pub struct SliceArgs {
    /// The model.
    #[command(flatten)]
    pub model: ModelArgs,
    /// Number of stages of equal time; by default, every possible cut is shown
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub stages: Option<u16>,
    /// Profile of the model, as `paternoster profile` stores or prints it (--json): shows which batch sizes its ranges
    /// of operators prefer, and where that cuts it
    #[arg(long, value_name = "FILE", conflicts_with_all = ["stages", "json"])]
    pub profile: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Why a model's stages cannot be shown.
#[derive(Debug, thiserror::Error)]
pub enum SliceError {
    /// The path is neither a file nor a model directory.
    #[error(
        "there is no model at '{path}': expected an ONNX file, or a directory with a version such as '1/{PROGRAM}'"
    )]
    Missing {
        /// The path given.
        path: String,
    },
    /// The file is not a model.
    #[error(transparent)]
    Model(#[from] paternoster_onnx::Error),
    /// It cannot be cut as requested.
    #[error("cannot cut '{path}': {source}")]
    Cut {
        /// The file.
        path: String,
        /// The reason, and what would work.
        source: CutError,
    },
    /// The profile cannot be read.
    #[error(transparent)]
    Profile(#[from] ProfileFileError),
    /// The profile does not show where the model may be cut.
    #[error("the profile '{path}' {reason}")]
    Ranges {
        /// The profile's file.
        path: String,
        /// What it lacks.
        reason: String,
    },
    /// The table could not be printed.
    #[error("cannot print the stages: {0}")]
    Print(#[from] io::Error),
}

/// Runs the subcommand and prints to standard output.
///
/// # Errors
/// Fails if there is no such model, or it cannot be cut as requested.
pub fn run(args: &SliceArgs) -> Result<(), SliceError> {
    let mut out = io::stdout().lock();
    let width = terminal_width(&out);
    print(args, &mut out, width)
}

/// As [`run`], printing to `out`.
///
/// # Errors
/// As [`run`].
pub fn run_with(args: &SliceArgs, out: &mut dyn Write) -> Result<(), SliceError> {
    print(args, out, None)
}

fn print(args: &SliceArgs, out: &mut dyn Write, width: Option<usize>) -> Result<(), SliceError> {
    let given = args.model.path();
    let missing = || SliceError::Missing { path: given.display().to_string() };
    let path = program(&given).ok_or_else(missing)?;
    let sealed = SealedModel::read(&path)?;
    let model = sealed.model();
    if let Some(file) = &args.profile {
        return print_ranges(file, &legal_cuts(model), out, width);
    }
    let Some(count) = args.stages else {
        let places = legal_cuts(model);
        if places.is_empty() && !args.json {
            return Ok(writeln!(out, "0 places: {}", obstacle(model))?);
        }
        return Ok(if args.json { places_json(&places, out) } else { places_table(&places, out, width) }?);
    };
    let cuts = Cuts::Parts(usize::from(count));
    let refused = |source| SliceError::Cut { path: path.display().to_string(), source };
    let stages = cut(model, cuts, &[]).map_err(refused)?;
    let stages: Vec<Stage> = stages.iter().enumerate().map(|(number, stage)| Stage::new(number, stage)).collect();
    if args.json {
        serde_json::to_writer_pretty(&mut *out, &stages).map_err(io::Error::from)?;
        return Ok(writeln!(out)?);
    }
    let mut table = Table::new(&["Stage", "Share of time", "Nodes", "Crosses behind it", "Bytes a row"]);
    table = table.with_text(&["Crosses behind it"]);
    for stage in &stages {
        let share = format!("{:.1} %", stage.share_of_time * 100.0);
        let crossing = if stage.crossing.is_empty() { "-".to_owned() } else { stage.crossing.join(", ") };
        let bytes = stage.crossing_bytes.map_or_else(|| "-".to_owned(), |bytes| format!("{bytes:.0}"));
        table.row([stage.stage.to_string(), share, stage.nodes.to_string(), crossing, bytes]);
    }
    writeln!(out, "{}", table.within(width))?;
    Ok(writeln!(out, "shares are estimated; dimensions that vary count as {OPEN_LENGTH}")?)
}

/// Prints the ranges in a profile of a model that can be cut at these places.
fn print_ranges(file: &Path, places: &[LegalCut], out: &mut dyn Write, width: Option<usize>) -> Result<(), SliceError> {
    let profile = Profile::read(file)?;
    let refuse = |reason: String| Err(SliceError::Ranges { path: file.display().to_string(), reason });
    let mut named = profile.ranges.iter().flat_map(|ranges| &ranges.at);
    if let Some(tensor) = named.find(|tensor| places.iter().all(|place| place.tensor != **tensor)) {
        return refuse(format!("is of another model: this one cannot be cut at '{tensor}'"));
    }
    if ranges::print(&profile, out, width)? {
        return Ok(());
    }
    refuse("has no ranges of operators: measure without --cut equal-time, where batching gains".to_owned())
}

/// Length that a varying dimension counts as in sizes.
const OPEN_LENGTH: i64 = 64;

/// A stage, as it is shown.
#[derive(serde::Serialize)]
struct Stage {
    stage: usize,
    /// From 0 to 1.
    share_of_time: f64,
    nodes: usize,
    /// Tensors that this stage computes for later ones.
    crossing: Vec<String>,
    /// Their size in bytes per row; absent after the last stage.
    crossing_bytes: Option<f64>,
}

impl Stage {
    fn new(number: usize, graph: &StageGraph) -> Self {
        let leaves = graph.outputs.iter().filter(|port| port.last_read_in.is_some_and(|reader| reader > number));
        let leaves: Vec<_> = leaves.collect();
        let bytes = |port: &&paternoster_onnx::cut::StagePort| {
            let dims = port.dims.as_deref().unwrap_or_default().iter().skip(1);
            let lengths = dims.map(|dim| if dim.size() < 0 { OPEN_LENGTH } else { dim.size() } as f64);
            lengths.product::<f64>() * port.datatype.size_bytes().unwrap_or(0) as f64
        };
        Self {
            stage: number,
            share_of_time: graph.cost,
            nodes: graph.model.0.graph.as_ref().map_or(0, |graph| graph.node.len()),
            crossing: leaves.iter().map(|port| port.name.clone()).collect(),
            crossing_bytes: (!leaves.is_empty()).then(|| leaves.iter().map(bytes).sum()),
        }
    }
}

fn places_table(places: &[LegalCut], out: &mut dyn Write, width: Option<usize>) -> io::Result<()> {
    let mut table = Table::new(&["Cut at", "Time before", "Crosses", "Bytes a row"]).with_text(&["Cut at", "Crosses"]);
    for place in places {
        let before = format!("{:.1} %", place.cost_before * 100.0);
        table.row([place.tensor.clone(), before, place.crossing.join(", "), format!("{:.0}", place.crossing_bytes)]);
    }
    writeln!(out, "{}", table.within(width))?;
    writeln!(out, "{} places; shares are estimated; dimensions that vary count as {OPEN_LENGTH}", places.len())
}

fn places_json(places: &[LegalCut], out: &mut dyn Write) -> io::Result<()> {
    let place = |place: &LegalCut| {
        serde_json::json!({
            "tensor": place.tensor,
            "share_of_time_before": place.cost_before,
            "crossing": place.crossing,
            "crossing_bytes": place.crossing_bytes,
        })
    };
    serde_json::to_writer_pretty(&mut *out, &places.iter().map(place).collect::<Vec<_>>())?;
    writeln!(out)
}

/// Returns the file to read: the path itself, or that of a model directory's latest version; `None` if there is
/// neither.
pub(super) fn program(given: &Path) -> Option<PathBuf> {
    if given.is_file() {
        return Some(given.to_owned());
    }
    // A model with external weights may be a directory that holds the program under its own name.
    let places = latest(given).map(|version| [version.join(PROGRAM), version.join(PROGRAM).join(PROGRAM)]);
    places.into_iter().flatten().find(|path| path.is_file())
}

/// Returns the latest version of a model directory.
pub(super) fn latest(model: &Path) -> Option<PathBuf> {
    let versions = model.read_dir().into_iter().flatten().flatten();
    let number = |name: std::ffi::OsString| name.to_str()?.parse::<u64>().ok();
    let numbered = versions.filter_map(|entry| Some((number(entry.file_name())?, entry.path())));
    numbered.max().map(|(_, version)| version)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use paternoster_onnx::{
        Model,
        zoo::{self, Width},
    };

    use super::*;

    fn shown(model: &Path, stages: Option<u16>, json: bool) -> Result<String, String> {
        let mut out = Vec::new();
        let args = SliceArgs { model: ModelArgs::at(model), stages, profile: None, json };
        run_with(&args, &mut out).map_err(|error| error.to_string())?;
        Ok(String::from_utf8(out).expect("it is text"))
    }

    /// A model directory with versions 2 and 10, of which only 10 can be cut.
    fn directory() -> tempfile::TempDir {
        let directory = tempfile::tempdir().expect("a directory");
        for (version, model) in [("2", zoo::identity()), ("10", zoo::mobilenet(Width::QUARTER))] {
            fs::create_dir(directory.path().join(version)).expect("a directory");
            model.expect("it is sound").write(&directory.path().join(version).join(PROGRAM)).expect("a file");
        }
        directory
    }

    #[test]
    fn stages_are_shown_with_their_shares_and_what_crosses() {
        let directory = directory();
        let table = shown(directory.path(), Some(4), false).expect("it can be cut");
        assert!(table.contains("| Stage | Share of time | Nodes |"), "{table}");
        let stages: serde_json::Value =
            serde_json::from_str(&shown(directory.path(), Some(4), true).expect("it can be cut")).expect("JSON");
        let stages = stages.as_array().expect("a list");
        assert_eq!(stages.len(), 4);
        let shares: f64 = stages.iter().filter_map(|stage| stage["share_of_time"].as_f64()).sum();
        assert!((shares - 1.0).abs() < 1e-9, "{shares}");
        let bytes: Vec<Option<f64>> = stages.iter().map(|stage| stage["crossing_bytes"].as_f64()).collect();
        assert!(bytes[..3].iter().all(|bytes| bytes.is_some_and(|bytes| bytes >= 4.0)), "{bytes:?}");
        assert_eq!(bytes[3], None, "nothing crosses behind the last stage");
    }

    #[test]
    fn without_a_number_every_place_is_shown() {
        let file = directory();
        let file = file.path().join("10").join(PROGRAM);
        let table = shown(&file, None, false).expect("a file will do");
        let model = Model::read(&file).expect("it is a model");
        for place in legal_cuts(&model) {
            assert!(table.contains(&format!("| {} ", place.tensor)), "{table}");
        }
        assert!(shown(&file, None, true).expect("a file will do").starts_with("[\n"));
    }

    #[test]
    fn a_model_without_a_place_says_why() {
        let directory = directory();
        let whole = directory.path().join("2").join(PROGRAM);
        assert_eq!(shown(&whole, None, false), Ok("0 places: no tensor is between two nodes\n".to_owned()));
        assert_eq!(shown(&whole, None, true), Ok("[]\n".to_owned()));
    }

    #[test]
    fn the_ranges_of_a_profile_are_shown_with_what_they_prefer() {
        let directory = directory();
        let program = directory.path().join("10").join(PROGRAM);
        let places = legal_cuts(&Model::read(&program).expect("it is a model"));
        // The first half takes as long for any batch, the second as long for each row.
        let of = |us_of: &dyn Fn(u64) -> u64| {
            [1, 2, 4, 8].map(|rows| {
                let ns = 1000 * us_of(rows);
                serde_json::json!({ "rows": rows, "length": 0, "median_ns": ns, "p99_ns": ns, "runs": 20 })
            })
        };
        let table = |at: &[&str], stages: &[&dyn Fn(u64) -> u64]| {
            let stages: Vec<_> = stages.iter().map(|us_of| of(*us_of)).collect();
            serde_json::json!({ "at": at, "stages": stages, "scatter": [] })
        };
        let profile = |tensor: &str, cut: bool| {
            let mut profile = serde_json::json!({
                "model": "m", "max_rows": 8, "padded_axes": 0, "side_by_side": [],
                "cuts": [table(&[], &[&|rows| 990 + 500 * rows])],
            });
            if cut {
                profile["ranges"] = table(&[tensor], &[&|_| 1000, &|rows| 500 * rows]);
            }
            let file = directory.path().join("profile.json");
            fs::write(&file, serde_json::json!({ "key": {}, "profile": profile }).to_string()).expect("a file");
            let args = SliceArgs { model: ModelArgs::at(&program), profile: Some(file), ..SliceArgs::default() };
            let mut out = Vec::new();
            let done = run_with(&args, &mut out).map_err(|error| error.to_string());
            done.map(|()| String::from_utf8(out).expect("it is text"))
        };
        let tensor = &places[places.len() / 2].tensor;
        let shown = profile(tensor, true).expect("it is of this model");
        assert!(shown.contains(&format!("| 0     | {tensor} ")) && shown.contains(" ################ |"), "{shown}");
        assert!(shown.contains("\na boundary adds 10 µs to a batch of 8, measured\n"), "{shown}");
        assert!(shown.contains(&format!("\ncut at {tensor}: a row is done ")), "{shown}");
        let refused = profile("elsewhere", true).expect_err("there is no such tensor");
        assert!(refused.ends_with("is of another model: this one cannot be cut at 'elsewhere'"), "{refused}");
        let refused = profile(tensor, false).expect_err("it has no ranges");
        assert!(refused.contains("has no ranges of operators: measure without --cut equal-time"), "{refused}");
    }

    #[test]
    fn what_cannot_be_cut_is_refused_with_what_is_possible() {
        let missing = shown(Path::new("/no/such"), None, false).expect_err("there is nothing");
        assert!(missing.starts_with("there is no model at '/no/such': expected an ONNX file"), "{missing}");
        let directory = directory();
        let whole = directory.path().join("2").join(PROGRAM);
        let refused = shown(&whole, Some(8), false).expect_err("it is one node");
        assert!(refused.starts_with(&format!("cannot cut '{}': ", whole.display())), "{refused}");
    }
}
