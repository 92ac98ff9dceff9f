//! `paternoster profile`: measures a model and stores the profile for `stages: auto` and `policy: auto`.

#[cfg_attr(not(feature = "tools"), path = "text_alone.rs")]
mod display;
mod engines;

use std::{
    io::{self, Write},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use paternoster_engine::{Engines, onnxruntime::Runtime};
use paternoster_executor::Pool;
use paternoster_model::{ModelSpec, TensorSpec};
use paternoster_profile::{
    CellTable, Choice, CutTable, Findings, Halt, Key, LatencyPoint, MeasuredSize, Profile, Store, StoreError, choose,
    default_directory,
};
use paternoster_repository::{LoadError, OPEN_LENGTH, PoolLoader, ResolvedVersion, Trials, joining_pays, read_model};
use serde::Serialize;

pub use self::display::PlotArgs;
use self::display::{PlotError, Progress};
use super::{
    flags::DeviceArgs,
    model_args::ModelArgs,
    options, ranges,
    table::{Table, terminal_width},
};

/// Measure the latency of a model, whole and cut into stages, for batches of every size
///
/// The profile is stored under the hash of the model's file, the processor and the engine's version. Models with
/// `stages: auto` or `policy: auto` are served by it. Of a model of cells, each cell is measured; cells without
/// `batch_sizes` are served with those that the profile suggests.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Examples:
  paternoster profile /models/minilm
  paternoster profile --model-repository /models --model minilm
  paternoster profile /models/minilm --budget-s 20 --json > minilm.json
  paternoster profile /models/minilm --svg minilm.svg
  paternoster profile /models/lstm            (cells, and their batch_sizes)
  paternoster profile /models/minilm --engines
  paternoster profile /models/minilm --profile-directory /var/lib/profiles")]
pub struct ProfileArgs {
    /// The model.
    #[command(flatten)]
    pub model: ModelArgs,
    /// Seconds for all runs together, without compilation
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..))]
    pub budget_s: u64,
    /// Directory to store the profile in; defaults to $XDG_CACHE_HOME/paternoster or ~/.cache/paternoster
    #[arg(long, value_name = "DIR")]
    pub profile_directory: Option<PathBuf>,
    /// Plots to draw.
    #[command(flatten)]
    pub plots: PlotArgs,
    /// Where a model is cut whose configuration leaves that open: also where its operators prefer other batch sizes, or
    /// into stages of equal time alone
    #[arg(long, value_enum, default_value_t = Cutting::Operators)]
    pub cut: Cutting,
    /// Measure the model with every CPU engine instead and print which is the fastest; nothing is stored
    #[arg(long)]
    pub engines: bool,
    /// Batch sizes at which to compare engines: rows, with the length of padded axes after an x, as in 1,8,8x55;
    /// defaults to powers of two up to 64
    #[arg(long, value_name = "ROWS[xLENGTH],…", value_delimiter = ',', requires = "engines")]
    #[arg(value_parser = engines::size)]
    pub sizes: Vec<MeasuredSize>,
    /// Print everything as JSON
    #[arg(long)]
    pub json: bool,
    /// Settings of the CPU, as for the server.
    #[command(flatten)]
    pub device: DeviceArgs,
}

/// The cuts that are measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Cutting {
    /// Stages of equal time, and cuts where the preferred batch sizes of operators change.
    #[default]
    Operators,
    /// Stages of equal time.
    EqualTime,
}

/// Why a model was not profiled.
#[derive(Debug, thiserror::Error)]
pub enum ProfileError {
    /// The model does not exist or cannot be loaded, or its engine is missing.
    #[error("{0}")]
    Load(#[from] LoadError),
    /// The arguments name no model.
    #[error("{0}")]
    Model(String),
    /// Threads could not be started.
    #[error("cannot start threads: {0}")]
    Threads(io::Error),
    /// The model fails when it runs.
    #[error("model '{model}' cannot be measured: {reason}")]
    Run {
        /// The model.
        model: String,
        /// The error of the engine.
        reason: Halt,
    },
    /// There is no directory for the profile.
    #[error("there is no home directory to keep the profile in: name a directory with --profile-directory")]
    NoDirectory,
    /// The profile could not be written.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A plot could not be drawn.
    #[error(transparent)]
    Plot(#[from] PlotError),
    /// The table could not be printed.
    #[error("cannot print the profile: {0}")]
    Print(#[from] io::Error),
}

/// What `--json` prints.
#[derive(Serialize)]
struct Report<'a> {
    file: &'a Path,
    key: &'a Key,
    profile: &'a Profile,
    findings: Option<Findings>,
    choice: Option<Choice>,
    /// Why a server does not use the profile.
    #[serde(skip_serializing_if = "Option::is_none")]
    not_used: Option<String>,
}

/// Runs the subcommand: measures, stores the profile and prints to standard output.
///
/// # Errors
/// Fails if the model cannot be found, compiled or run, or if the profile cannot be stored.
pub fn run(args: &ProfileArgs) -> Result<(), ProfileError> {
    let runtime = Runtime::load(&options::runtime(&args.device));
    let engines = Engines { onnxruntime: Some(runtime), openvino: options::openvino(&args.device) };
    let mut out = io::stdout().lock();
    let width = terminal_width(&out);
    print(args, engines, &mut out, width)
}

/// As [`run`], with these engines, and printing to `out`.
///
/// # Errors
/// As [`run`].
pub fn run_with(args: &ProfileArgs, engines: impl Into<Engines>, out: &mut dyn Write) -> Result<(), ProfileError> {
    print(args, engines.into(), out, None)
}

fn print(args: &ProfileArgs, engines: Engines, out: &mut dyn Write, width: Option<usize>) -> Result<(), ProfileError> {
    let directory = args.profile_directory.clone().or_else(default_directory).ok_or(ProfileError::NoDirectory)?;
    let store = Store::new(directory);
    let pool = Pool::start(&options::pool(&args.device)).map_err(ProfileError::Threads)?;
    let loader = PoolLoader::new(Arc::clone(&pool), engines);
    let (repository, name) = args.model.place().map_err(ProfileError::Model)?;
    let request = read_model(&repository, &name, &loader)?;
    if args.engines {
        return engines::run(args, &loader, &request, (out, width));
    }
    let request = loader.as_served(request);
    let key = loader.profile_key(&request)?;
    let progress = Progress::start();
    let trials = Trials {
        budget: Duration::from_secs(args.budget_s),
        before_run: &|what, size| {
            progress.show(format!("{what}: {} rows of length {}", size.rows, size.length));
            true
        },
        wants_stages: &joining_pays,
        by_operators: args.cut == Cutting::Operators,
    };
    let measured = loader.measure(&request, trials);
    progress.clear();
    let profile = measured.map_err(|reason| ProfileError::Run { model: name.clone(), reason })?;
    let file = store.write(&key, &profile)?;
    let (findings, choice) = (Findings::of(&profile), choose(&profile, request.fixed_stages()));
    if args.json {
        let report = Report { file: &file, key: &key, profile: &profile, findings, choice, not_used: profile.doubt() };
        serde_json::to_writer_pretty(&mut *out, &report).map_err(io::Error::from)?;
        writeln!(out)?;
    } else {
        describe(&profile, &key, out, width)?;
        if profile.cells.is_empty() {
            describe_open_axes(&request.spec, out)?;
        } else {
            describe_batch_sizes(&profile.cells, &request, out)?;
        }
        if let (Some(found), Some(choice)) = (findings, choice) {
            describe_choice(&profile, &found, &choice, out)?;
        }
        writeln!(out, "kept in '{}'", file.display())?;
        if let Some(doubt) = profile.doubt() {
            writeln!(out, "{}", not_used(&doubt))?;
        }
    }
    args.plots.write(&profile)?;
    Ok(())
}

/// For a model in stages, one length is enough; `--json` prints all of them.
fn shown_lengths(cut: &CutTable) -> Vec<u32> {
    if cut.stages.len() == 1 { cut.lengths() } else { cut.middle_length().into_iter().collect() }
}

fn describe(profile: &Profile, key: &Key, out: &mut dyn Write, width: Option<usize>) -> io::Result<()> {
    writeln!(out, "model '{}' on {}", profile.model, key.device)?;
    for cut in &profile.cuts {
        writeln!(out, "\n{}", title(cut))?;
        writeln!(out, "{}", latencies("Length", &cut.stages, &shown_lengths(cut)).within(width))?;
    }
    if let Some(cut) = &profile.by_operators {
        writeln!(out, "\n{}", title(cut))?;
        writeln!(out, "{}", latencies("Length", &cut.stages, &shown_lengths(cut)).within(width))?;
    }
    ranges::print(profile, out, width)?;
    for cell in &profile.cells {
        writeln!(out, "\ncell '{}'", cell.name)?;
        let lengths = if cell.chunk.is_some() { "Steps" } else { "Length" };
        writeln!(out, "{}", latencies(lengths, &cell.times.stages, &cell.times.lengths()).within(width))?;
    }
    if !profile.side_by_side.is_empty() {
        writeln!(out, "\nwhole, on every lane at once")?;
        writeln!(out, "{}", latencies("Length", std::slice::from_ref(&profile.side_by_side), &[0]).within(width))?;
    }
    Ok(())
}

/// Prints the batch sizes that the times of cells suggest, and how to get them.
fn describe_batch_sizes(cells: &[CellTable], request: &ResolvedVersion, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "\nbatch_sizes, of which the last is the smallest within 5 % of the best throughput")?;
    for cell in cells {
        let at = match (cell.length, cell.chunk) {
            (0, _) => String::new(),
            (steps, Some(_)) => format!(", in tasks of {steps} steps"),
            (length, None) => format!(", at length {length}"),
        };
        let set = cell.max_rows.map_or_else(String::new, |rows| format!("; the configuration sets {rows}"));
        writeln!(out, "  {}: {:?}{at}{set}", cell.name, cell.batch_sizes)?;
    }
    let configured = cells.iter().filter(|cell| cell.max_rows.is_some()).count();
    if configured < cells.len() {
        writeln!(out, "a server with this profile uses them where the configuration sets none")?;
    }
    if configured > 0 && request.has_configured_cells() {
        let lines = cells.iter().map(|cell| format!("    {}: {{ batch_sizes: {:?} }}", cell.name, cell.batch_sizes));
        writeln!(out, "in model.yaml:\n  cells:\n{}", lines.collect::<Vec<_>>().join("\n"))?;
    }
    Ok(())
}

/// Says at which length axes were measured that vary and are not padded.
fn describe_open_axes(spec: &ModelSpec, out: &mut dyn Write) -> io::Result<()> {
    let open = |tensor: &&TensorSpec| (0..tensor.dims.len()).any(|axis| tensor.is_open(axis));
    let names: Vec<&str> = spec.inputs.iter().filter(open).map(|tensor| tensor.name.as_str()).collect();
    if names.is_empty() {
        return Ok(());
    }
    writeln!(
        out,
        "\nthe inputs '{}' vary in length and are not padded: measured at length {OPEN_LENGTH} alone; other lengths take \
         other times, and 'pad' in model.yaml would measure them and let them share batches",
        names.join("', '")
    )
}

fn describe_choice(profile: &Profile, found: &Findings, choice: &Choice, out: &mut dyn Write) -> io::Result<()> {
    let yes = |there| if there { "yes" } else { "no" };
    let at = if found.length == 0 { String::new() } else { format!(", at length {}", found.length) };
    writeln!(out, "\nfound{at}")?;
    writeln!(out, "  input diversity: {}", yes(found.input_diversity))?;
    writeln!(out, "  operator diversity: {}", yes(found.operator_diversity))?;
    writeln!(out, "  load diversity (joining pays): {}", yes(found.load_diversity))?;
    for (cut, rows) in profile.cuts.iter().zip(&found.preferred_rows) {
        writeln!(out, "  preferred rows, {}: {rows:?}", title(cut))?;
    }
    if let Some(rows) = found.preferred_side_by_side {
        writeln!(out, "  preferred rows, on every lane at once: [{rows}]")?;
    }
    writeln!(out, "\nchosen: stages {}, policy {}", choice.stages, choice.policy.name())?;
    choice.reasons.iter().try_for_each(|reason| writeln!(out, "  {reason}"))
}

/// Says why a server does not use a profile.
fn not_used(doubt: &str) -> String {
    format!(
        "a server does not use it: {doubt}. Measure again with a longer --budget-s, or while nothing else uses the \
         machine"
    )
}

fn title(cut: &CutTable) -> String {
    match (cut.stages.len(), cut.at.as_slice()) {
        (1, _) => "whole".to_owned(),
        (count, []) => format!("{count} stages of even time"),
        (count, tensors) => format!("{count} stages, cut at {}", tensors.join(", ")),
    }
}

/// Returns a table of times. `named` is what lengths are.
fn latencies(named: &str, stages: &[Vec<LatencyPoint>], lengths: &[u32]) -> Table {
    let mut table = Table::new(&["Stage", named, "Rows", "Median µs", "p99 µs", "µs a row", "Runs"]).with_keys(3);
    for (stage, points) in stages.iter().enumerate() {
        for &length in lengths {
            for point in points.iter().filter(|point| point.length == length) {
                let (median_us, p99_us) = (point.median_ns as f64 / 1e3, point.p99_ns as f64 / 1e3);
                table.row([
                    stage.to_string(),
                    if length == 0 { "-".to_owned() } else { length.to_string() },
                    point.rows.to_string(),
                    format!("{median_us:.1}"),
                    format!("{p99_us:.1}"),
                    format!("{:.1}", median_us / f64::from(point.rows)),
                    point.runs.to_string(),
                ]);
            }
        }
    }
    table
}

#[cfg(test)]
mod tests {
    use paternoster_onnx::zoo;

    use super::*;

    #[test]
    fn a_machine_without_the_engine_is_told_what_is_missing() {
        let models = tempfile::tempdir().expect("a folder");
        let version = models.path().join("minilm/1");
        std::fs::create_dir_all(&version).expect("the folder can be made");
        let model = zoo::identity().expect("the graph is sound");
        model.write(&version.join("model.onnx")).expect("the folder takes it");
        let args = ProfileArgs {
            model: ModelArgs::of(models.path(), "minilm"),
            budget_s: 1,
            profile_directory: Some("/profiles".into()),
            plots: PlotArgs::default(),
            cut: Cutting::default(),
            engines: false,
            sizes: Vec::new(),
            json: false,
            device: DeviceArgs {
                cpu_lanes: 2,
                cpu_shards: 1,
                task_time_limit_secs: 60,
                last_lane_limit_ms: 50,
                cpu_threads: 1,
                max_output_bytes: None,
                max_sequence_state_bytes: None,
                max_memory_bytes: None,
                onnxruntime_library: Some("/no/such.so".into()),
                openvino_library: None,
            },
        };
        let refused = run(&args).expect_err("there is no library").to_string();
        assert_eq!(refused, "ONNX Runtime library '/no/such.so' (from --onnxruntime-library) does not exist");
    }
}
