//! `paternoster bench`: puts load on a model and compares latencies between policies.

mod args;
mod progress;
mod results;

use std::{io, sync::Arc, time::Duration};

pub use args::BenchArgs;
use paternoster_bench::{
    Meter, Remote, RemoteError, Sizes, Target,
    checked_requests::{CheckedRequests, Unanswered},
    compare::{self, Outcome, Pace, Points, Subject},
    load::{LoadPattern, Timing},
    local::{LoadedVariant, Local, LocalError, Variant, VariantError},
    samples::{Recipe, SampleError},
    sweep,
};
use paternoster_engine::{Engines, onnxruntime::Runtime};
use paternoster_executor::{CardsOptions, PoolOptions};
use paternoster_lab::{
    report::plot::PlotError,
    workload::{Arrivals, LengthDistribution, Trace, TraceError},
};
use paternoster_observe::machine;
use progress::Progress;
use results::Results;

use super::{
    cuda, options,
    recording::{TimelineRecording, UnwritableTimeline},
};

/// Fewest and most requests in flight when a peak is measured.
const PEAK_IN_FLIGHT: (u32, u32) = (16, 256);
/// Longest measurement of a peak; one that takes longer is not usable as the reference for loads.
const LONGEST_PEAK: Duration = Duration::from_secs(60);
/// Most different requests made from a trace, each of which is sent alone beforehand.
const MOST_OF_TRACE: usize = 4096;

/// Why there are no figures, or none to rely on.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum BenchError {
    #[error(transparent)]
    Trace(#[from] TraceError),
    #[error(transparent)]
    Variant(#[from] VariantError),
    #[error(transparent)]
    Local(#[from] LocalError),
    #[error("{0}")]
    Cards(String),
    #[error(transparent)]
    Remote(#[from] RemoteError),
    #[error(transparent)]
    Sample(#[from] SampleError),
    #[error("{0}; see --integers-below for indices, and --fill for inputs that must mean something")]
    Unanswered(#[from] Unanswered),
    #[error(transparent)]
    Plot(#[from] PlotError),
    #[error(transparent)]
    Timeline(#[from] UnwritableTimeline),
    #[error("cannot {what}: {source}")]
    Io { what: String, source: io::Error },
    #[error("--sequence-interval-ms is for models with sequences, and '{model}' has none")]
    NoSequences { model: String },
    #[error("the peak could not be measured: {reason}")]
    NoPeak { reason: String },
    #[error("{wrong} wrong answers and {failed} failed requests; the first: {first}")]
    Faults { wrong: u64, failed: u64, first: String },
}

/// Runs the subcommand: measures, prints the figures and writes the files.
///
/// # Errors
/// Fails if nothing can be measured or a file cannot be written and, after all output, if a response was wrong or
/// missing.
pub fn run(args: &BenchArgs) -> Result<(), BenchError> {
    let recording = TimelineRecording::start(&args.timeline)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let measuring = measure(args, &recording);
    let results = runtime.map_err(|source| io_error("start threads", source))?.block_on(measuring)?;
    recording.finish()?;
    results.print(args.json).map_err(|source| io_error("print the figures", source))?;
    if let Some(path) = &args.csv {
        results.write_csv(path).map_err(|source| io_error(&format!("write '{}'", path.display()), source))?;
    }
    if let Some(path) = &args.requests_csv {
        results.write_requests_csv(path).map_err(|source| io_error(&format!("write '{}'", path.display()), source))?;
    }
    if let Some(path) = &args.svg {
        results.write_svg(path)?;
    }
    match results.faults() {
        None => Ok(()),
        Some((wrong, failed, first)) => Err(BenchError::Faults { wrong, failed, first }),
    }
}

fn io_error(what: &str, source: io::Error) -> BenchError {
    BenchError::Io { what: what.to_owned(), source }
}

async fn measure(args: &BenchArgs, recording: &TimelineRecording) -> Result<Results, BenchError> {
    let trace = args.trace.as_deref().map(Trace::read).transpose()?;
    let variants = args.variants()?;
    let bench = if args.urls.is_empty() {
        let cards = args.cuda.cards().map_err(BenchError::Cards)?.unwrap_or_default();
        let energy = meter(&cards.ordinals);
        let local = open(args, recording, cards).await?;
        let mut subjects = Vec::with_capacity(variants.len());
        for variant in &variants {
            let name = variant.as_ref().map_or_else(|| args::AS_CONFIGURED.to_owned(), ToString::to_string);
            let meter = energy.as_ref().and_then(|meter| meter.clone().ok());
            subjects.push(Subject { name, target: local.load(variant.as_ref()).await?.target, meter });
        }
        Bench { energy, ..Bench::of(args, trace, Some(local), subjects) }
    } else {
        Bench::of(args, trace, None, servers(args).await?)
    };
    bench.measure().await
}

/// Connects to the servers; all of them receive the requests that suit the first.
async fn servers(args: &BenchArgs) -> Result<Vec<Subject>, BenchError> {
    let mut servers: Vec<Arc<Remote>> = Vec::with_capacity(args.urls.len());
    for url in &args.urls {
        let server = Remote::connect(url, &args.model).await?;
        let server = match servers.first() {
            Some(first) => server.beside(first)?,
            None => server,
        };
        servers.push(Arc::new(server));
    }
    let subject =
        |(url, server): (&String, _)| Subject { name: url.clone(), target: Target::Remote(server), meter: None };
    Ok(args.urls.iter().zip(servers).map(subject).collect())
}

/// Returns a meter of the energy of these cards, or why there is none; `None` without cards.
fn meter(ordinals: &[u16]) -> Option<Result<Meter, String>> {
    if ordinals.is_empty() {
        return None;
    }
    let watched = match cuda::watch(ordinals) {
        Ok(watched) => watched,
        Err(error) => return Some(Err(format!("NVML does not know the cards: {error}"))),
    };
    Some(match watched.energy() {
        Some(_) => Ok(Meter::new(move || watched.energy())),
        None => Err("a card does not count its energy".to_owned()),
    })
}

async fn open(args: &BenchArgs, recording: &TimelineRecording, cards: CardsOptions) -> Result<Local, BenchError> {
    let device = &args.device;
    let runtime = Runtime::load(&options::runtime(device));
    let engines = Engines { onnxruntime: Some(runtime), openvino: options::openvino(device) };
    let timeline = Arc::clone(&recording.timeline);
    let pool = PoolOptions { timeline, cards, ..options::pool(device) };
    let repository = args.model_repository.clone().unwrap_or_default();
    Ok(Local::open(&repository, &args.model, engines, &pool, args.profiles()).await?)
}

/// One run of the subcommand.
struct Bench<'a> {
    args: &'a BenchArgs,
    local: Option<Local>,
    subjects: Vec<Subject>,
    arrivals: Arrivals,
    sizes: Option<Sizes>,
    /// Number of requests in the trace, if there is one.
    traced: Option<usize>,
    /// Meter of the energy of the cards, or why there is none; `None` without cards.
    energy: Option<Result<Meter, String>>,
}

impl<'a> Bench<'a> {
    fn of(args: &'a BenchArgs, trace: Option<Trace>, local: Option<Local>, subjects: Vec<Subject>) -> Self {
        let shape = || Arrivals::named(&args.arrivals).unwrap_or(Arrivals::Poisson { rate: 1.0 });
        let arrivals = trace.as_ref().map_or_else(shape, Trace::arrivals);
        let shapes = args.shapes.iter().cloned().collect();
        let shaped = subjects.first().map(|subject| subject.target.ports().with_shapes(&shapes));
        // Shapes that do not fit are reported when requests are made.
        let varies = shaped.and_then(Result::ok).is_some_and(|ports| ports.vary());
        // The lengths of a trace apply only to models whose requests have lengths.
        let traced = trace.as_ref().filter(|_| varies).map(Trace::lengths).map(Sizes::Lengths);
        let sizes = traced.or_else(|| args.sizes());
        let traced = trace.map(|trace| trace.arrivals_ns.len());
        Self { args, local, subjects, arrivals, sizes, traced, energy: None }
    }

    async fn measure(self) -> Result<Results, BenchError> {
        let reference = self.reference().await?;
        let target = reference.as_ref().map_or_else(|| self.subjects[0].target.clone(), |loaded| loaded.target.clone());
        let work = self.work(&target).await?;
        let timing = self.args.timing(self.traced.is_some());
        let asked = self.args.points(self.traced.is_some());
        let peak = match asked {
            Points::Shares(_) => Some(self.peak(&target, &work).await?),
            _ => None,
        };
        let pace = if self.args.follow_peak { Some(self.pace(target.clone(), &work).await) } else { None };
        let points = asked.resolve(&self.arrivals, peak);

        let windows = self.args.windows(&target)?;
        let rounds = u64::from(self.args.rounds);
        let compared = self.subjects.len() + usize::from(!windows.is_empty());
        let sweep_run = timing.warm_up + Duration::from_secs_f64(self.args.sweep_seconds);
        let of_trace = || self.arrivals.times(0).last().map(Duration::from_nanos).unwrap_or_default();
        let run = timing.measured.map_or_else(of_trace, |measured| timing.warm_up + measured);
        let sweeps = points.len() * windows.len();
        let runs = std::iter::repeat_n(sweep_run, sweeps);
        let progress = Progress::start(runs.chain(std::iter::repeat_n(run, points.len() * rounds as usize * compared)));
        let best = match &self.local {
            Some(local) if !windows.is_empty() => {
                let measured = Some(Duration::from_secs_f64(self.args.sweep_seconds));
                let (seed, sweep) = (self.args.seed, Timing { measured, keeps_each: false, ..timing });
                progress.show("sweep of window");
                sweep::best(local, &windows, &work, &points, sweep, seed, || progress.ran()).await?
            }
            _ => Vec::new(),
        };
        let mut measured = Vec::with_capacity(points.len());
        for (number, point) in points.into_iter().enumerate() {
            progress.show(&point.name);
            let load = async || match &pace {
                Some(pace) => point.load.clone().times(pace.now().await),
                None => point.load.clone(),
            };
            let outcomes = self.at(load, best.get(number), &work, timing, || progress.ran()).await?;
            measured.push((point, outcomes));
        }
        progress.clear();
        Ok(Results {
            machine: machine(),
            setting: self.setting(&target, &work, timing),
            mean_length: self.sizes.as_ref().and_then(|sizes| sizes.mean_length(self.args.seed, work.distinct())),
            peak,
            objective_ms: self.args.objective_ms,
            energy_not_measured: self.energy.as_ref().and_then(|energy| energy.clone().err()),
            points: measured,
        })
    }

    /// Returns the model that gives the expected answers and whose peak is measured, unless it is the first policy.
    async fn reference(&self) -> Result<Option<LoadedVariant>, BenchError> {
        let Some(local) = self.local.as_ref().filter(|_| self.args.sweep_window) else { return Ok(None) };
        Ok(Some(local.load(Some(&Variant::parse("window")?)).await?))
    }

    async fn work(&self, target: &Target) -> Result<Arc<CheckedRequests>, BenchError> {
        if self.args.sequence_interval_ms.is_some() && !target.ports().sequences {
            return Err(BenchError::NoSequences { model: self.args.model.clone() });
        }
        let recipe = Recipe {
            rows: self.args.rows,
            sizes: self.sizes.clone(),
            integers_below: self.args.integers_below,
            fills: self.args.fills.iter().cloned().collect(),
            shapes: self.args.shapes.iter().cloned().collect(),
            seed: self.args.seed,
        };
        let of_trace = self.traced.map(|requests| requests.min(MOST_OF_TRACE));
        let count = of_trace.unwrap_or(self.args.samples as usize);
        let length = if target.ports().sequences { self.args.sequence_length as usize } else { 1 };
        let samples = recipe.samples(target.ports(), count.next_multiple_of(length))?;
        Ok(Arc::new(CheckedRequests::prepare(target, samples, length, self.args.tolerance).await?))
    }

    async fn peak(&self, target: &Target, work: &Arc<CheckedRequests>) -> Result<f64, BenchError> {
        let (fewest, most) = PEAK_IN_FLIGHT;
        // Two batches for each of two lanes, so that a full one is always waiting.
        let in_flight = target.ports().max_rows.saturating_mul(4).clamp(fewest, most);
        let mut timing = self.args.timing(false);
        loop {
            let figures = compare::peak(target, work, in_flight as usize, timing).await;
            if let Some(fault) = figures.first_fault {
                return Err(BenchError::NoPeak { reason: fault });
            }
            // A rate is reliable only if every request in flight was repeated at least twice.
            let measured = timing.measured.unwrap_or_default();
            if figures.latencies.count() >= 2 * u64::from(in_flight) {
                return Ok(figures.throughput());
            }
            if measured > LONGEST_PEAK {
                let reason = format!("{} requests were answered in {measured:?}", figures.latencies.count());
                return Err(BenchError::NoPeak { reason });
            }
            timing.measured = Some(measured * 2);
        }
    }

    /// Starts to follow the machine's speed, with measurements half as long as a round, since they alternate with
    /// rounds.
    async fn pace(&self, target: Target, work: &Arc<CheckedRequests>) -> Pace {
        let timing = self.args.timing(false);
        let measured = timing.measured.map(|measured| measured / 2);
        Pace::start(target, Arc::clone(work), Timing { measured, keeps_each: false, ..timing }).await
    }

    /// Measures all policies at one load, the best window first.
    async fn at(
        &self,
        load: impl AsyncFnMut() -> LoadPattern,
        best: Option<&Variant>,
        work: &Arc<CheckedRequests>,
        timing: Timing,
        done: impl FnMut(),
    ) -> Result<Vec<Outcome>, BenchError> {
        let mut subjects = self.subjects.clone();
        let mut window = None;
        if let (Some(best), Some(local)) = (best, &self.local) {
            let loaded = local.load(Some(best)).await?;
            let (name, meter) = (format!("{best} (best)"), subjects.first().and_then(|subject| subject.meter.clone()));
            subjects.insert(0, Subject { name, target: loaded.target.clone(), meter });
            window = Some((loaded, best));
        }
        let (rounds, seed) = (u64::from(self.args.rounds), self.args.seed);
        let outcomes = compare::measure(&subjects, work, load, timing, rounds, seed, done).await;
        if let Some((loaded, best)) = window {
            let variant = best.to_string();
            loaded.unload().await.map_err(|source| LocalError::Load { variant, source })?;
        }
        Ok(outcomes)
    }

    /// Describes what was measured.
    fn setting(&self, target: &Target, work: &CheckedRequests, timing: Timing) -> String {
        let args = self.args;
        let place = if args.urls.is_empty() {
            format!("in process, {} lanes", args.device.cpu_lanes)
        } else {
            format!("at {}, over gRPC", args.urls.join(" and "))
        };
        let workload = args.workload.as_deref().unwrap_or_default();
        let sizes = match (&self.traced, &self.sizes) {
            (Some(_), _) => "lengths and arrivals of the trace".to_owned(),
            (None, Some(Sizes::Lengths(LengthDistribution::Fixed(length)))) => format!("length {length}"),
            (None, Some(Sizes::Lengths(_))) => format!("lengths {workload}"),
            (None, Some(Sizes::Trees(_))) => format!("trees '{workload}'"),
            (None, None) => "one shape".to_owned(),
        };
        let sequences = match work.per_arrival() {
            _ if !target.ports().sequences => String::new(),
            length => format!(", in sequences of {length}"),
        };
        let load = if args.concurrency.is_empty() && self.traced.is_none() {
            format!(", {} arrivals", args.arrivals)
        } else {
            String::new()
        };
        let seconds =
            timing.measured.map_or_else(|| "the trace".to_owned(), |time| format!("{:.1} s", time.as_secs_f64()));
        format!(
            "model '{}' ({}) {place}; {} different requests of {} row(s), {sizes}{sequences}{load}, seed {}; {} round(s) \
             of {seconds} after {:.1} s that are not counted{}",
            args.model,
            target.ports().precision(),
            work.distinct(),
            args.rows,
            args.seed,
            args.rounds,
            timing.warm_up.as_secs_f64(),
            if args.follow_peak { "; loads follow the peak" } else { "" },
        )
    }
}

#[cfg(test)]
mod tests;
