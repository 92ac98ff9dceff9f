//! How long the example networks take on a CUDA card, as plans run them: one captured graph after another on one
//! stream, for each number of rows and each precision, beside what the card itself can do.
//!
//! `cargo bench --bench cards`; `-- --stages` measures networks in stages instead, from which splitting is judged and
//! policies are simulated. `-- --json FILE` keeps the figures, and `-- --quick` takes small networks, to see that all
//! of it runs: on the stand-in for CUDA's libraries too, where times mean nothing. Without a card it says so and ends.

mod ceilings;
mod cuts;
mod networks;
mod programs;
mod report;
mod staged;
mod steps;
mod timing;

use std::{
    error::Error,
    fs,
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use clap::Parser;
use paternoster_device::{
    Operation, StreamId,
    cuda::{
        Compiler, CompletionListener, Cuda, CudaOptions, cards,
        libraries::{self, LoadedLibrary},
    },
};

use self::{ceilings::Ceilings, report::Report};

/// The stream that everything runs on.
const STREAM: StreamId = StreamId(0);
/// Room for the row numbers of a task of a stage.
const PARAMETER_BYTES: usize = 4 << 10;

#[derive(Debug, Parser)]
struct Args {
    /// Small networks, few rows and short runs
    #[arg(long)]
    quick: bool,
    /// File for the figures
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Networks in stages, for the time of --budget-s
    #[arg(long)]
    stages: bool,
    /// Seconds that networks in stages may take together
    #[arg(long, value_name = "S", default_value_t = 120)]
    budget_s: u64,
    /// Networks to measure, by parts of their names, separated by semicolons; all by default
    #[arg(long, value_name = "NAMES", value_delimiter = ';')]
    only: Vec<String>,
    /// Seconds that networks may take together; those that are left then are named
    #[arg(long, value_name = "S")]
    seconds: Option<u64>,
    /// Folder of compiled kernels, which later runs read
    #[arg(long, value_name = "DIR")]
    cuda_kernel_directory: Option<PathBuf>,
    /// Which card: its number among those of the driver
    #[arg(long, value_name = "N", default_value_t = 0)]
    card: u16,
    /// What cargo adds
    #[arg(long, hide = true)]
    bench: bool,
}

/// What runs is known by its tickets alone.
struct Unheard;

impl CompletionListener for Unheard {
    fn ended(&self, _operation: Operation) {}

    fn lost(&self, reason: &str) {
        eprintln!("the card is lost: {reason}");
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let args = Args::parse();
    let there = match cards::cards() {
        Ok(there) => there,
        Err(reason) => {
            println!("nothing is measured: {reason}");
            return Ok(());
        }
    };
    let card = there.into_iter().find(|card| card.ordinal == args.card).ok_or("there is no such card")?;
    for LoadedLibrary { library, version, path, .. } in libraries::open(None)?.libraries.into_iter().flatten() {
        println!("{library} {version}, {}", path.display());
    }
    let (depth, parameter_bytes) = (timing::DEPTH, PARAMETER_BYTES);
    let options = CudaOptions { ordinal: card.ordinal, streams: 1, depth, parameter_bytes, memory_bytes: None };
    let mut cuda = Cuda::open(&options, &Compiler::new(args.cuda_kernel_directory.clone()), Arc::new(Unheard))?;
    println!("{card}\n");
    if args.stages {
        return in_stages(&mut cuda, card.to_string(), &args);
    }
    of_networks(&mut cuda, card.to_string(), &args)
}

/// Measures the card and networks as a whole. The file is written after each network, so that it has what was measured
/// if the program is ended.
fn of_networks(cuda: &mut Cuda, card: String, args: &Args) -> Result<(), Box<dyn Error>> {
    let ending = args.seconds.map(|seconds| Instant::now() + Duration::from_secs(seconds));
    let lasting = if args.quick { Duration::from_millis(1) } else { Duration::from_millis(40) };
    let ceilings = Ceilings::measure(cuda, args.quick, lasting)?;
    println!("{ceilings}");
    let mut report = Report { card, ceilings, steps: Vec::new(), skipped: Vec::new() };
    let is_chosen = |name: &str| args.only.is_empty() || args.only.iter().any(|part| name.contains(part));
    for (name, build) in networks::all(args.quick).into_iter().filter(|(name, _)| is_chosen(name)) {
        let is_late = ending.is_some_and(|ending| Instant::now() >= ending);
        let known = (report.steps.len(), report.skipped.len());
        match if is_late { Err("no time was left".into()) } else { build() } {
            Ok(network) => {
                let skipped = steps::measure(cuda, &network, &report.ceilings, lasting, &mut report.steps);
                report.skipped.extend(skipped);
                println!("{}", report::table(&name, &report.steps[known.0..]));
            }
            Err(reason) => report.skipped.push((name, reason.to_string())),
        }
        for (name, reason) in &report.skipped[known.1..] {
            println!("{name} is left out: {reason}\n");
        }
        if let Some(path) = &args.json {
            fs::write(path, serde_json::to_string_pretty(&report)? + "\n")?;
        }
        cuda.check_health()?;
    }
    Ok(())
}

/// Measures networks in stages. The file is written after each of them, so that it has what was measured if the program
/// is ended.
fn in_stages(cuda: &mut Cuda, card: String, args: &Args) -> Result<(), Box<dyn Error>> {
    let mut printed = 0;
    staged::all(cuda, card, args.quick, Duration::from_secs(args.budget_s), |staged| {
        if let Some(path) = &args.json {
            fs::write(path, serde_json::to_string_pretty(staged)? + "\n")?;
        }
        for times in &staged.times[printed..] {
            println!("{}", report::stages(times));
        }
        printed = staged.times.len();
        Ok(())
    })
}
