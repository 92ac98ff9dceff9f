//! `paternoster inspect`: shows what a model's recurrent layers become, what its operators become on a CUDA card, and
//! which have no lowering.

mod segments;

use std::{
    io::{self, Write},
    path::{Path, PathBuf},
};

use paternoster_engine::{
    LibraryError, Precision,
    cuda::{Plan, PlanError},
    onnxruntime::{Runtime, RuntimeOptions},
};
use paternoster_model::TensorSpec;
use paternoster_onnx::{Port, PortDim, SealedModel, Signature};

use super::{
    model_args::ModelArgs,
    slice::{latest, program},
    table::{Table, terminal_width},
};

/// Show what a model's recurrent layers become, and its operators on a CUDA card
///
/// Recurrent layers become segments that requests run step by step, or the reason why not is shown. On a card,
/// operators become matrix products, kernels, views, or nothing. Runs nothing and needs no card. Axis 0 is the batch
/// unless the file fixes its length.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Examples:
  paternoster inspect model.onnx
  paternoster inspect /models/bert --length tokens=128
  paternoster inspect --model-repository /models --model lstm")]
pub struct InspectArgs {
    /// The model; all programs of a directory's latest version are shown.
    #[command(flatten)]
    pub model: ModelArgs,
    /// Length of a varying axis, by its name in the file; may be given several times
    #[arg(long = "length", value_name = "NAME=LENGTH", value_parser = length)]
    pub lengths: Vec<(String, i64)>,
    /// ONNX Runtime library; shows whether it can run on cards what has no plan
    #[arg(long = "onnxruntime-library", value_name = "FILE")]
    pub library: Option<PathBuf>,
}

/// Why a model cannot be inspected.
#[derive(Debug, thiserror::Error)]
pub enum InspectError {
    /// The path is neither a file nor a model directory with a program.
    #[error("there is no model at '{path}': expected an ONNX file, or a model directory whose latest version has one")]
    Missing {
        /// The path given.
        path: String,
    },
    /// The file is not a model.
    #[error(transparent)]
    Model(#[from] paternoster_onnx::Error),
    /// An input or output cannot have a plan.
    #[error("'{tensor}' {reason}")]
    Tensor {
        /// Its name.
        tensor: String,
        /// What is wrong.
        reason: String,
    },
    /// The graph has no plan for a reason other than its operators.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// ONNX Runtime's library cannot be loaded.
    #[error(transparent)]
    Library(#[from] LibraryError),
    /// The table could not be printed.
    #[error("cannot print the operators: {0}")]
    Print(#[from] io::Error),
}

fn length(given: &str) -> Result<(String, i64), String> {
    let (name, length) = given.split_once('=').ok_or("expected NAME=LENGTH, as in tokens=128")?;
    match length.parse() {
        Ok(length @ 1..) => Ok((name.to_owned(), length)),
        _ => Err(format!("'{length}' is no length, expected a number from 1")),
    }
}

/// Runs the subcommand and prints to standard output.
///
/// # Errors
/// Fails if there is no such model, or the length of one of its inputs is not known.
pub fn run(args: &InspectArgs) -> Result<(), InspectError> {
    let mut out = io::stdout().lock();
    let width = terminal_width(&out);
    print(args, &mut out, width)
}

/// As [`run`], printing to `out`.
///
/// # Errors
/// As [`run`].
pub fn run_with(args: &InspectArgs, out: &mut dyn Write) -> Result<(), InspectError> {
    print(args, out, None)
}

fn print(args: &InspectArgs, out: &mut dyn Write, width: Option<usize>) -> Result<(), InspectError> {
    let given = args.model.path();
    let programs = programs(&given);
    if programs.is_empty() {
        return Err(InspectError::Missing { path: given.display().to_string() });
    }
    for path in &programs {
        if programs.len() > 1 {
            writeln!(out, "{}", path.file_name().unwrap_or_default().display())?;
        }
        print_program(args, path, out, width)?;
    }
    Ok(())
}

/// Returns the files to show: a model's only program, or those of its cells or stages by name.
fn programs(model: &Path) -> Vec<PathBuf> {
    if let Some(only) = program(model) {
        return vec![only];
    }
    let files = latest(model).and_then(|version| version.read_dir().ok()).into_iter().flatten().flatten();
    let is_program = |path: &PathBuf| path.is_file() && path.extension().is_some_and(|ending| ending == "onnx");
    let mut programs: Vec<PathBuf> = files.map(|entry| entry.path()).filter(is_program).collect();
    programs.sort();
    programs
}

fn print_program(
    args: &InspectArgs,
    path: &Path,
    out: &mut dyn Write,
    width: Option<usize>,
) -> Result<(), InspectError> {
    let sealed = SealedModel::read(path)?;
    let is_opened = segments::print(&sealed, out, width)?;
    match print_plan(args, path, &sealed, out, width) {
        // The segments do not depend on lengths.
        Err(error @ InspectError::Tensor { .. }) if is_opened => Ok(writeln!(out, "on a card: {error}")?),
        ended => ended,
    }
}

fn print_plan(
    args: &InspectArgs,
    path: &Path,
    sealed: &SealedModel,
    out: &mut dyn Write,
    width: Option<usize>,
) -> Result<(), InspectError> {
    let signature = Signature::from_bytes(&path.display().to_string(), &sealed.to_bytes())?;
    let is_open = |port: &Port| {
        matches!(port.dims.as_deref(), Some([PortDim::Symbol(_) | PortDim::Unknown, ..]))
            && args.fixes(port, 0).is_none()
    };
    let has_batch_axis = !signature.inputs.is_empty() && signature.inputs.iter().all(is_open);
    let inputs = signature.inputs.iter().map(|port| args.spec(port, has_batch_axis, true));
    let inputs: Vec<TensorSpec> = inputs.collect::<Result<_, _>>()?;
    let outputs = signature.outputs.iter().map(|port| args.spec(port, has_batch_axis, false));
    let outputs: Vec<TensorSpec> = outputs.collect::<Result<_, _>>()?;

    let nodes = Plan::nodes(sealed, &inputs, &outputs, has_batch_axis)?;
    let mut table = Table::new(&["Node", "Operator", "On a card"]).with_text(&["Node", "Operator", "On a card"]);
    for node in &nodes {
        let lowered = node.lowered.as_ref().map_or_else(|reason| format!("NO PLAN: {reason}"), String::clone);
        table.row([node.name.clone(), node.operator.clone(), lowered]);
    }
    writeln!(out, "{}", table.within(width))?;
    match Plan::new(sealed, &inputs, &outputs, has_batch_axis, Precision::Ieee) {
        Ok(plan) => writeln!(out, "{} nodes, {} launches for a batch", nodes.len(), plan.launches())?,
        Err(error) => {
            writeln!(out, "{error}")?;
            writeln!(out, "{}", args.fallback()?)?;
        }
    }
    Ok(())
}

/// Card that the fallback is checked for; any card shows whether the library has what it needs.
const ANY_CARD: u16 = 0;

/// What a program without a plan means for its model.
const ON_A_CARD: &str = "on a card, all programs of the model run by ONNX Runtime's CUDA provider";

impl InspectArgs {
    /// Returns what runs a model of which this program is all or a part.
    fn fallback(&self) -> Result<String, InspectError> {
        let Some(library) = &self.library else {
            return Ok(format!("{ON_A_CARD}, if --onnxruntime-library has that; else they run on the CPU"));
        };
        let options = RuntimeOptions { library: Some(library.clone()), ..RuntimeOptions::default() };
        let runtime = Runtime::load(&options)?;
        Ok(match runtime.cuda_provider(ANY_CARD, Precision::Ieee, None) {
            Ok(_) => ON_A_CARD.to_owned(),
            Err(reason) => format!("the model runs on the CPU: ONNX Runtime's CUDA provider cannot be used: {reason}"),
        })
    }

    /// Returns the length given for an axis.
    fn fixes(&self, port: &Port, axis: usize) -> Option<i64> {
        let Some(PortDim::Symbol(symbol)) = port.dims.as_ref()?.get(axis) else { return None };
        self.lengths.iter().find(|(name, _)| name == symbol).map(|(_, length)| *length)
    }

    /// Returns a port with the dims of one row. The graph determines the lengths of outputs.
    fn spec(&self, port: &Port, has_batch_axis: bool, is_input: bool) -> Result<TensorSpec, InspectError> {
        let refused = |reason: String| InspectError::Tensor { tensor: port.name.clone(), reason };
        let datatype = port.datatype.ok_or_else(|| refused(port.refusal()))?;
        let dims = port.dims.as_deref().ok_or_else(|| refused("has a shape that the file does not say".to_owned()))?;
        let length = |(axis, dim): (usize, &PortDim)| match (dim, self.fixes(port, axis)) {
            (PortDim::Fixed(length), _) => Ok(*length),
            (_, Some(length)) => Ok(length),
            _ if !is_input => Ok(-1),
            (PortDim::Symbol(name), None) => Err(refused(format!("varies along '{name}': give --length {name}=128"))),
            (PortDim::Unknown, None) => Err(refused(format!("has an axis {axis} of unknown length"))),
        };
        let skipped = usize::from(has_batch_axis);
        let dims = dims.iter().enumerate().skip(skipped).map(length).collect::<Result<Vec<i64>, _>>()?;
        Ok(TensorSpec::new(port.name.clone(), datatype, &dims))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use paternoster_model::DataType;
    use paternoster_onnx::{
        Model,
        build::Graph,
        zoo::{self, Width, cells},
    };

    use super::*;
    use crate::cli::slice::PROGRAM;

    fn shown(model: &Model, lengths: &[&str]) -> Result<String, String> {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join(PROGRAM);
        model.write(&path).expect("a file");
        let lengths = lengths.iter().map(|given| length(given)).collect::<Result<_, _>>()?;
        let mut out = Vec::new();
        run_with(&InspectArgs { model: ModelArgs::at(path), lengths, library: None }, &mut out)
            .map_err(|error| error.to_string())?;
        Ok(String::from_utf8(out).expect("it is text"))
    }

    /// The rows of a table by operator.
    fn lowered(table: &str) -> Vec<(String, String)> {
        let cells = |line: &str| -> Option<(String, String)> {
            let cells: Vec<&str> = line.split('|').map(str::trim).collect();
            (cells.len() == 5 && cells[1] != "Node").then(|| (cells[2].to_owned(), cells[3].to_owned()))
        };
        table.lines().filter_map(cells).collect()
    }

    #[test]
    fn operators_are_shown_with_what_they_become() {
        let table = shown(&cells::lstm::step(Width::QUARTER).expect("sound"), &[]).expect("it has a plan");
        let pair = |operator: &str, lowered: &str| (operator.to_owned(), lowered.to_owned());
        let rows = lowered(&table);
        let first = [pair("Gather", "lookup"), pair("Concat", "store"), pair("Gemm", "matrix product")];
        assert_eq!(rows[..3], first, "{table}");
        assert_eq!(rows[3..5], [pair("Split", "view"), pair("Sigmoid", "pointwise")], "{table}");
        assert!(table.ends_with("13 nodes, 3 launches for a batch\n"), "{table}");
    }

    #[test]
    fn operators_without_a_lowering_are_marked_and_named() {
        let table = shown(&zoo::slow().expect("sound"), &[]).expect("it is shown anyway");
        let rows = lowered(&table);
        assert!(rows.contains(&("EyeLike".to_owned(), "NO PLAN: the operator has no lowering".to_owned())), "{table}");
        let [.., missing, fallback] = table.lines().collect::<Vec<_>>()[..] else { panic!("{table}") };
        assert!(missing.starts_with("operators without a plan: EyeLike (node "), "{table}");
        assert!(
            fallback.contains("ONNX Runtime's CUDA provider") && fallback.ends_with("else they run on the CPU"),
            "{table}"
        );
    }

    #[test]
    fn all_programs_of_the_latest_version_are_shown_under_their_names() {
        let folder = tempfile::tempdir().expect("a folder");
        let show = || {
            let args = InspectArgs { model: ModelArgs::at(folder.path()), lengths: vec![], library: None };
            let mut out = Vec::new();
            let ended = run_with(&args, &mut out).map_err(|error| error.to_string());
            ended.map(|()| String::from_utf8(out).expect("it is text"))
        };
        let refused = show().expect_err("it has no version");
        assert!(
            refused.ends_with("expected an ONNX file, or a model directory whose latest version has one"),
            "{refused}"
        );
        for version in ["2", "10"] {
            fs::create_dir(folder.path().join(version)).expect("a folder");
        }
        assert_eq!(show(), Err(refused), "the version has no program");
        let write = |model: Result<Model, _>, name: &str| {
            model.expect("sound").write(&folder.path().join(name)).expect("a file");
        };
        write(cells::tree_lstm::leaf(Width::QUARTER), "10/leaf.onnx");
        write(cells::tree_lstm::node(Width::QUARTER), "10/inner.onnx");
        write(cells::lstm::step(Width::QUARTER), "2/old.onnx");
        fs::write(folder.path().join("10/labels.txt"), "").expect("a file");
        let shown = show().expect("both have plans");
        let headings: Vec<&str> = shown.lines().filter(|line| line.ends_with(".onnx")).collect();
        assert_eq!(headings, ["inner.onnx", "leaf.onnx"], "{shown}");
        assert_eq!(shown.matches("launches for a batch").count(), 2, "{shown}");
    }

    /// A layer over the steps of `x`, whose last state goes through `node` to the output.
    fn recurrent(starts: bool) -> Model {
        let mut graph = Graph::new("recurrent");
        let x = graph.input("x", DataType::Fp32, &["batch".into(), "time".into(), 3.into()]);
        let x = graph.op("Transpose", &[&x]).attr("perm", [1, 0, 2]).value();
        let w = graph.constant("W", &[1, 6, 3], &[0.5_f32; 18]);
        let r = graph.constant("R", &[1, 6, 2], &[0.5_f32; 12]);
        let start = graph.input("start", DataType::Fp32, &["batch".into(), 1.into(), 2.into()]);
        let start = graph.op("Transpose", &[&start]).attr("perm", [1, 0, 2]).value();
        let layer = graph.op("GRU", &[&x, &w, &r]).skip().skip();
        let layer = if starts { layer.with(&start) } else { layer };
        let [_, last] = layer.attr("hidden_size", 2_i64).named("gru").values();
        let last = graph.op("Add", &[&last, &start]).value();
        let y = graph.op("Transpose", &[&last]).attr("perm", [1, 0, 2]).named("y").value();
        graph.output(&y, DataType::Fp32, &["batch".into(), 1.into(), 2.into()]);
        graph.finish().expect("sound")
    }

    #[test]
    fn recurrent_layers_are_shown_with_their_segments_or_the_reason_why_not() {
        let table = shown(&recurrent(false), &[]).expect("it is shown without lengths");
        let mut lines = table.lines();
        assert_eq!(lines.next(), Some("recurrent layers: 1, over axis 1 of 'x', served by cells:"), "{table}");
        let row = table.lines().find(|line| line.contains("chain1")).expect("a segment");
        let cells: Vec<&str> = row.split('|').map(str::trim).filter(|cell| !cell.is_empty()).collect();
        assert_eq!(cells, ["chain1", "over the steps", "GRU 'gru'", "x, start", "1", "last y"], "{table}");
        assert!(table.ends_with("on a card: 'x' varies along 'time': give --length time=128\n"), "{table}");

        let reason = "recurrent layers: the model stays whole: GRU 'gru' takes an initial state from the request";
        let table = shown(&recurrent(true), &["time=4"]).expect("it is shown");
        assert!(table.starts_with(reason), "{table}");
    }

    #[test]
    fn a_length_that_varies_has_to_be_given() {
        let model = cells::transformer::encoder(Width::QUARTER).expect("sound");
        let refused = shown(&model, &[]).expect_err("the source has any length");
        assert_eq!(refused, "'source' varies along 'source': give --length source=128");
        assert!(shown(&model, &["source=6"]).expect("it has a plan").contains("launches for a batch"));
        assert_eq!(shown(&model, &["source=0"]), Err("'0' is no length, expected a number from 1".to_owned()));
    }
}
