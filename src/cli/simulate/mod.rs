//! `paternoster simulate`: simulates policies on a device, in virtual time.

mod ask;
mod line;
mod output;
mod plots;
mod policies;
mod tables;

#[cfg(test)]
mod tests;

use std::{io, path::PathBuf, time::Duration};

use indicatif::{ProgressBar, ProgressStyle};
use paternoster_config::knobs::DAY_MS;
use paternoster_lab::{
    report::plot::PlotError,
    simulate::{Setup, SimulatedFigures, SimulatedLoad, TableError, cores, fewest_devices, on_all_cores, run as play},
    workload::TraceError,
};

use self::{ask::Ask, line::Line, output::Sizing, policies::Asked};

const NS_PER_MS: f64 = 1e6;

/// Most requests of a run.
const MOST_REQUESTS: u64 = 1_000_000_000;

/// Default loads: low, medium and high (DVABatch section 8.1).
const LOADS: [f64; 3] = [0.25, 0.6, 0.9];

/// Run the server's own batching on a table of a device's latencies, in virtual time
///
/// A policy is a name, a name with its knobs, or the keys of the 'batching' section of a model.yaml; 'oracle' is 'lazy'
/// with exact knowledge of how long everything takes. All policies see the same requests.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Examples:
  paternoster simulate --table npu --model resnet --policy window --policy lazy --objective-ms 100
  paternoster simulate --table titan-rtx --model bert-base --stages 4 --workload glue-pair \\
      --policy 'window: { max_queue_delay_us: 5000 }' --policy diversity --load 0.25,0.6,0.9 --svg bert.svg
  paternoster simulate --table npu --model resnet:0.7 --model gnmt:0.3 --policy lazy --rate 200,400
  paternoster simulate --table v100 --model lstm --policy cellular --policy 'window, queueing: { bucket_width: 10 }'
  paternoster simulate --table card.json --model minilm --trace requests.csv --csv out.csv
  paternoster profile --model-repository /models --model minilm --json > minilm.json
  paternoster simulate --table minilm.json --model minilm/4 --capacity 2000 --p99-ms 50

Tables, traces and plots are explained in docs/simulator.md.")]
pub struct SimulateArgs {
    /// Device table: 'npu' (LazyBatching), 'titan-rtx' (DVABatch), 'v100' (BatchMaker), 'published', or a file
    #[arg(long, value_name = "NAME|FILE")]
    pub table: String,
    /// Model of the table, its share of the requests, and its lengths; several models share the device
    #[arg(long = "model", value_name = "NAME[:SHARE[:WORKLOAD]]")]
    pub models: Vec<String>,
    /// Policy to simulate, with an optional name for it; several are compared
    #[arg(long = "policy", value_name = "[NAME=]POLICY", default_values = ["window", "diversity"])]
    pub policies: Vec<String>,
    /// Merge the parts of a model into this many stages of equal time
    #[arg(long, value_name = "N")]
    pub stages: Option<usize>,
    /// Microseconds that each task takes in addition to the table's time
    #[arg(long, value_name = "US", default_value_t = 0.0, value_parser = microseconds)]
    pub boundary_us: f64,
    /// Microseconds that a task takes longer on a lane that was idle
    #[arg(long, value_name = "US", default_value_t = 0.0, value_parser = microseconds)]
    pub after_idle_us: f64,
    /// Timeline recorded on the device ('--timeline-file' of serve or bench); task times vary, and idle lanes cost, as
    /// in that recording
    #[arg(long, value_name = "FILE", conflicts_with = "after_idle_us")]
    pub recorded: Option<PathBuf>,
    /// Timeline recorded while 'bench' played the trace; the device is as fast at each moment as it was then
    #[arg(long, value_name = "FILE", requires = "trace")]
    #[arg(conflicts_with_all = ["after_idle_us", "recorded", "devices", "capacity"])]
    pub replay: Option<PathBuf>,
    /// Microseconds that a request spends outside queue and device, half of them before; several are quantiles in equal
    /// steps
    #[arg(long, value_name = "US,…", value_delimiter = ',', value_parser = microseconds)]
    pub front_us: Vec<f64>,
    /// Largest batch; defaults to that of the table
    #[arg(long, value_name = "ROWS", value_parser = clap::value_parser!(u32).range(1..))]
    pub max_batch: Option<u32>,
    /// Steps to which decoders are unrolled and that predictions assume; longer sentences repeat the last step
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub dec_timesteps: u16,
    /// Lengths of the requests: wmt15, wmt19, glue-short, glue-pair, …; or trees: trees, trees-16
    #[arg(long, value_name = "NAME")]
    pub workload: Option<String>,
    /// Arrivals of the requests: poisson, stepped, ramp or bursts
    #[arg(long, value_name = "NAME", default_value = "poisson")]
    pub arrivals: String,
    /// Rates as shares of the peak that 'window' reaches while requests always wait and are padded to the longest in a
    /// batch ('cellular' for models of cells)
    /// [default: 0.25,0.6,0.9]
    #[arg(long, value_name = "PART,…", value_delimiter = ',', value_parser = share_of_peak, conflicts_with = "rate")]
    pub load: Vec<f64>,
    /// Rates in requests per second
    #[arg(long, value_name = "RATE,…", value_delimiter = ',', value_parser = rate)]
    pub rate: Vec<f64>,
    /// CSV file of arrival times in seconds and lengths
    #[arg(long, value_name = "FILE", conflicts_with_all = ["arrivals", "load", "rate", "capacity"])]
    pub trace: Option<PathBuf>,
    /// Requests of each run
    #[arg(long, value_name = "N", default_value_t = 20_000)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=MOST_REQUESTS))]
    pub requests: u64,
    /// Requests at the beginning of each run that are not counted [default: one in 20]
    #[arg(long, value_name = "N")]
    pub warm_up: Option<u64>,
    /// Requests that wait when a run begins and are not counted; shows whether a policy works off a queue
    #[arg(long, value_name = "N", default_value_t = 0, conflicts_with_all = ["trace", "capacity"])]
    #[arg(value_parser = clap::value_parser!(u64).range(..=1_000_000))]
    pub backlog: u64,
    /// Runs of each policy and load, with different seeds
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    pub seeds: u64,
    /// First seed
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Lanes of each device
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub lanes: u16,
    /// Microseconds of work that a lane accepts ahead, in up to five tasks; 0 launches a task when the last one has
    /// ended
    #[arg(long, value_name = "US", default_value_t = 0.0, value_parser = microseconds)]
    pub horizon_us: f64,
    /// Number of devices
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=4096))]
    pub devices: u16,
    /// Latency objective, at which policies aim and whose misses are counted; each of several is a run of its own
    #[arg(long, value_name = "MS,…", value_delimiter = ',', value_parser = milliseconds)]
    pub objective_ms: Vec<f64>,
    /// Find out how many devices carry this many requests per second
    #[arg(long, value_name = "RATE", value_parser = rate, requires = "p99_ms")]
    #[arg(conflicts_with_all = ["load", "rate", "devices"])]
    pub capacity: Option<f64>,
    /// Milliseconds within which 99 of 100 requests must stay, for --capacity
    #[arg(long, value_name = "MS", value_parser = milliseconds, requires = "capacity")]
    pub p99_ms: Option<f64>,
    /// Most devices that --capacity tries
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u16).range(1..=4096))]
    pub max_devices: u16,
    /// Runs at the same time; defaults to all cores and does not change the figures
    #[arg(long, value_name = "N")]
    pub threads: Option<usize>,
    /// Write the figures as CSV
    #[arg(long, value_name = "FILE")]
    pub csv: Option<PathBuf>,
    /// Plot the figures: for out.svg, out-mean.svg, out-p90.svg, out-p99.svg, out-throughput.svg, out-goodput.svg,
    /// out-quantiles.svg, out-queued.svg and out-computing.svg; also out-missed.svg for several objectives, and
    /// out-time.svg if the rate changes
    #[arg(long, value_name = "FILE", conflicts_with = "capacity")]
    pub svg: Option<PathBuf>,
    /// Print the figures as JSON instead of a table
    #[arg(long)]
    pub json: bool,
}

/// Why nothing was simulated, or its figures could not be printed.
#[derive(Debug, thiserror::Error)]
pub enum SimulateError {
    /// An argument is unknown or invalid.
    #[error("{0}")]
    Word(String),
    /// The table cannot be used as requested.
    #[error(transparent)]
    Table(#[from] TableError),
    /// The trace cannot be read.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// A file could not be written.
    #[error("cannot write '{file}': {error}")]
    Unwritable {
        /// The file.
        file: String,
        /// The operating system's reason.
        error: io::Error,
    },
    /// A plot could not be drawn.
    #[error(transparent)]
    Plot(#[from] PlotError),
}

impl SimulateError {
    /// A name is not among the known ones.
    fn unknown(option: &str, found: &str, names: &[&str]) -> Self {
        Self::Word(format!("--{option}: expected {}, but found '{found}'", names.join(", ")))
    }
}

/// Runs the subcommand.
///
/// # Errors
/// Fails if an argument is invalid, a file cannot be read, or the figures cannot be written.
pub fn run(args: &SimulateArgs) -> Result<(), SimulateError> {
    let ask = Ask::new(args)?;
    match (args.capacity, args.p99_ms) {
        (Some(rate), Some(p99_ms)) => output::sizings(args, &ask, rate, p99_ms, &size(args, &ask, rate, p99_ms)?),
        _ => {
            let (peak, lines) = compare(args, &ask)?;
            output::figures(args, &ask, peak, &lines)
        }
    }
}

/// Runs every policy for every objective under every load. Also finds the peak if loads are shares of it.
fn compare(args: &SimulateArgs, ask: &Ask<'_>) -> Result<(Option<f64>, Vec<Line>), SimulateError> {
    let (peak, offers) = offers(args, ask)?;
    let loads: Vec<SimulatedLoad> = offers.iter().map(|offer| ask.load(offer.rate)).collect();
    let mut lines = Vec::new();
    let mut setups = Vec::new();
    for policy in asked(args)? {
        for objective_ms in objectives(args) {
            setups.push(ask.setup(&policy, objective_ms, args.devices)?);
            let line = |offer: &Offer| Line {
                policy: policy.name.clone(),
                objective_ms,
                part: offer.part,
                rate: offer.rate,
                figures: SimulatedFigures::default(),
            };
            lines.extend(offers.iter().map(line));
        }
    }
    let seeds = args.seed..args.seed.saturating_add(args.seeds);
    let mut jobs: Vec<(&Setup, &SimulatedLoad, u64)> = Vec::new();
    for setup in &setups {
        for load in &loads {
            jobs.extend(seeds.clone().map(|seed| (setup, load, seed)));
        }
    }
    let bar = progress(jobs.len() as u64);
    let one =
        |&(setup, load, seed): &(&Setup, &SimulatedLoad, u64)| play(setup, seed, load.requests(seed, ask.requests));
    let runs = on_all_cores(args.threads.unwrap_or_else(cores), &jobs, one, || bar.inc(1));
    bar.finish_and_clear();
    let of_a_line = runs.chunks(usize::try_from(args.seeds).unwrap_or(1));
    lines.iter_mut().zip(of_a_line).for_each(|(line, runs)| line.figures = sum(runs));
    Ok((peak, lines))
}

fn asked(args: &SimulateArgs) -> Result<Vec<Asked>, SimulateError> {
    args.policies.iter().map(|text| Asked::read(text)).collect::<Result<_, _>>().map_err(SimulateError::Word)
}

/// Returns the objectives to simulate; a single `None` without objectives.
fn objectives(args: &SimulateArgs) -> Vec<Option<f64>> {
    if args.objective_ms.is_empty() { vec![None] } else { args.objective_ms.iter().copied().map(Some).collect() }
}

/// The offered load.
#[derive(Clone, Copy, Debug)]
struct Offer {
    /// Share of the peak, if it was given as one.
    part: Option<f64>,
    /// Mean requests per second; `None` uses the rate of the arrivals.
    rate: Option<f64>,
}

/// Finds the peak if it is needed, and returns it with the loads.
fn offers(args: &SimulateArgs, ask: &Ask<'_>) -> Result<(Option<f64>, Vec<Offer>), SimulateError> {
    if !args.rate.is_empty() {
        return Ok((None, args.rate.iter().map(|rate| Offer { part: None, rate: Some(*rate) }).collect()));
    }
    let has_own = args.trace.is_some() || !matches!(args.arrivals.as_str(), "poisson" | "bursts");
    if args.load.is_empty() && has_own {
        return Ok((None, vec![Offer { part: None, rate: None }]));
    }
    let parts = if args.load.is_empty() { &LOADS[..] } else { &args.load };
    let policy = Asked::read(ask.peak_policy()).map_err(SimulateError::Word)?;
    let peak = ask.peak(&ask.setup(&policy, None, args.devices)?);
    Ok((Some(peak), parts.iter().map(|part| Offer { part: Some(*part), rate: Some(part * peak) }).collect()))
}

/// Finds out how many devices each policy needs.
fn size(args: &SimulateArgs, ask: &Ask<'_>, rate: f64, p99_ms: f64) -> Result<Vec<Sizing>, SimulateError> {
    if args.objective_ms.len() > 1 {
        let message = "--objective-ms: expected one objective with --capacity, but found several";
        return Err(SimulateError::Word(message.to_owned()));
    }
    let policies = asked(args)?;
    let objective_ms = args.objective_ms.first().copied();
    let setups =
        policies.iter().map(|policy| ask.setup(policy, objective_ms, 1)).collect::<Result<Vec<_>, SimulateError>>()?;
    let load = ask.load(Some(rate));
    let seeds: Vec<u64> = (args.seed..args.seed.saturating_add(args.seeds)).collect();
    let bar = progress(setups.len() as u64);
    let threads = args.threads.unwrap_or_else(cores);
    let allowed_ns = (p99_ms * NS_PER_MS) as u64;
    let answers = policies.iter().zip(&setups).map(|(policy, setup)| {
        let mut figures = SimulatedFigures::default();
        let devices = fewest_devices(args.max_devices, |devices| {
            let setup = Setup { devices, ..setup.clone() };
            let runs =
                on_all_cores(threads, &seeds, |seed| play(&setup, *seed, load.requests(*seed, ask.requests)), || {});
            let found = sum(&runs);
            let all = found.all();
            let is_enough =
                all.refused == 0 && found.keeps_up(allowed_ns) && all.latencies.quantile_ns(0.99) <= allowed_ns;
            if is_enough || devices == args.max_devices {
                figures = found;
            }
            is_enough
        });
        bar.inc(1);
        Sizing { policy: policy.name.clone(), devices, figures }
    });
    let answers = answers.collect();
    bar.finish_and_clear();
    Ok(answers)
}

fn sum(runs: &[SimulatedFigures]) -> SimulatedFigures {
    let mut sum = SimulatedFigures::default();
    runs.iter().for_each(|run| sum.add(run));
    sum
}

/// Returns a progress bar if there is a terminal.
fn progress(steps: u64) -> ProgressBar {
    let bar = ProgressBar::new(steps);
    if let Ok(style) = ProgressStyle::with_template("{spinner} {wide_bar} {pos}/{len} runs {elapsed}") {
        bar.set_style(style);
    }
    bar.enable_steady_tick(Duration::from_millis(100));
    bar
}

/// Longest time that flags add to a task or a request, a minute. Sums of longer times could exceed the clock.
const MOST_US: f64 = 60e6;

/// Bounds of rates, in requests per second; of shares of the peak; and of times, in milliseconds. Gaps between requests
/// are whole nanoseconds, and a run ends before the clock does.
const RATES: [f64; 2] = [1e-3, 1e9];
const LOADS_OF_PEAK: [f64; 2] = [1e-6, 1e3];
const TIMES_MS: [f64; 2] = [1e-6, DAY_MS as f64];

fn microseconds(given: &str) -> Result<f64, String> {
    within(given, [0.0, MOST_US])
}

fn milliseconds(given: &str) -> Result<f64, String> {
    within(given, TIMES_MS)
}

fn rate(given: &str) -> Result<f64, String> {
    within(given, RATES)
}

fn share_of_peak(given: &str) -> Result<f64, String> {
    within(given, LOADS_OF_PEAK)
}

/// Parses a number between two bounds.
fn within(given: &str, [least, most]: [f64; 2]) -> Result<f64, String> {
    let number = given.parse::<f64>().ok().filter(|number| (least..=most).contains(number));
    number.ok_or_else(|| format!("expected a number from {least} to {most}"))
}
