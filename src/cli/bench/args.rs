//! Arguments of `paternoster bench`.

use std::{path::PathBuf, time::Duration};

use clap::{ArgGroup, Args, builder::PossibleValuesParser};
use paternoster_bench::{
    Sizes, Target,
    compare::Points,
    load::Timing,
    local::{Variant, VariantError},
    sweep,
};
use paternoster_lab::workload::{Arrivals, LengthDistribution};
use paternoster_model::Dims;
use paternoster_profile::{Store, default_directory};

use crate::cli::{CudaArgs, DeviceArgs, RecordArgs};

/// Name of the model's own policy.
pub(super) const AS_CONFIGURED: &str = "as configured";
const DEFAULT_SECONDS: f64 = 10.0;
const DEFAULT_LOADS: [f64; 3] = [0.25, 0.6, 0.9];

const EXAMPLES: &str = "\
Examples:
  # A model in this process, as it is configured, at a quarter, three fifths and nine tenths of its peak
  paternoster bench --model-repository model_repository --model minilm --workload glue-short

  # Two policies side by side, with the model cut into three stages for both
  paternoster bench --model-repository model_repository --model minilm --workload glue-short \\
      --policy 'window: { max_queue_delay_us: 0 }' --policy diversity --stages 3 --svg latency.svg

  # A policy and the best window of a sweep over batch sizes, delays and length buckets
  paternoster bench --model-repository models --model minilm --workload wmt15 --policy diversity --sweep-window

  # A server, with 1, 8 and 64 requests in flight; then at 200 requests a second in bursts
  paternoster bench --url localhost:8001 --model resnet50 --concurrency 1,8,64
  paternoster bench --url localhost:8001 --model resnet50 --rate 200 --arrivals bursts --objective-ms 50

  # Two servers side by side, such as Triton and this one: the same requests in alternating order
  paternoster bench --url localhost:9001 --url localhost:8001 --model minilm --workload glue-short --concurrency 8,32

  # Sequences of 20 requests to a stateful model, 8 at a time; and inputs of given dims
  paternoster bench --url localhost:8001 --model total --sequence-length 20 --concurrency 8
  paternoster bench --url localhost:8001 --model yolo --shape images:3,640,640 --concurrency 1

  # A model that takes texts, of 1 to 32 words; and pairs of texts
  paternoster bench --url localhost:8001 --model sentences --workload glue-short
  paternoster bench --url localhost:8001 --model reranker --length 20 --shape TEXT:1 --shape PAIR:1

  # A pipeline that takes images
  paternoster bench --url localhost:8001 --model photos --fill IMAGE=@photo.jpg --concurrency 8

  # Recorded arrivals and lengths
  paternoster bench --url localhost:8001 --model minilm --trace trace.csv

Every answer is compared with one to the same request sent alone beforehand. The exit status is 1 if an answer is wrong
or missing.";

/// Put load on a model and measure latencies: in this process or on a server, in open or closed loops, with several
/// policies side by side
#[derive(Clone, Debug, Args)]
#[command(after_help = EXAMPLES)]
#[command(group(ArgGroup::new("place").required(true).args(["urls", "model_repository"])))]
#[command(group(ArgGroup::new("length_of").args(["workload", "length", "trace"])))]
#[command(group(ArgGroup::new("loads").args(["load", "rate", "concurrency"])))]
pub struct BenchArgs {
    /// Server to measure, over gRPC. Several are compared with the first, whose answers to requests sent alone are
    /// expected from all of them
    #[arg(long = "url", value_name = "HOST:PORT")]
    #[arg(conflicts_with_all = ["policies", "stages", "sweep_window", "timeline-file"])]
    pub urls: Vec<String>,
    /// Directory of models, to measure one of them in this process
    #[arg(long, value_name = "DIR")]
    pub model_repository: Option<PathBuf>,
    /// Model to measure
    #[arg(long, value_name = "NAME")]
    pub model: String,
    /// Policy in place of the model's own, as in the section 'batching' of model.yaml, with max_batch_size and stages
    /// allowed too. Several are compared with the first; 'as configured' is the model's own
    #[arg(long = "policy", value_name = "POLICY")]
    pub policies: Vec<String>,
    /// Stages into which the model is cut, for policies that do not set it themselves
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    pub stages: Option<u16>,
    /// Compare with the best window for each load, found among largest batches of 1 to 64, delays of 0 to 10 ms, and
    /// length buckets
    #[arg(long)]
    pub sweep_window: bool,
    /// Measured seconds for each window of the sweep
    #[arg(long, value_name = "S", default_value_t = 2.0, value_parser = positive)]
    pub sweep_seconds: f64,

    /// Lengths of requests; 'trees' and 'trees-16' are for models whose requests carry binary trees
    #[arg(long, value_name = "NAME", value_parser = workloads(), help_heading = "Requests")]
    pub workload: Option<String>,
    /// Length of all requests
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), help_heading = "Requests")]
    pub length: Option<u32>,
    /// CSV file of arrival times in seconds and lengths
    #[arg(long, value_name = "FILE", conflicts_with_all = ["arrivals", "concurrency"], help_heading = "Requests")]
    pub trace: Option<PathBuf>,
    /// Dims of an input without the batch, for inputs whose dims vary, as tokens:128 or image:3,224,224
    #[arg(long = "shape", value_name = "NAME:DIMS", value_parser = shape, help_heading = "Requests")]
    pub shapes: Vec<(String, Dims)>,
    /// Requests of each sequence, for models with sequences: arrivals are sequences, and each request of one is sent
    /// when the one before it is answered
    #[arg(long, value_name = "N", default_value_t = 10, help_heading = "Requests")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub sequence_length: u32,
    /// Time between the requests of a sequence, as of a live stream; by default, each follows the response before it.
    /// Latencies count from a request's turn, also where the response before it comes later
    #[arg(long, value_name = "MS", value_parser = positive, help_heading = "Requests")]
    pub sequence_interval_ms: Option<f64>,
    /// Rows of each request
    #[arg(long, value_name = "N", default_value_t = 1, help_heading = "Requests")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    pub rows: u32,
    /// Number of different requests, each sent alone beforehand
    #[arg(long, value_name = "N", default_value_t = 256, help_heading = "Requests")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub samples: u32,
    /// Upper bound, exclusive, of integers in requests; they start at 1
    #[arg(long, value_name = "N", default_value_t = 1000, help_heading = "Requests")]
    #[arg(value_parser = clap::value_parser!(u32).range(2..))]
    pub integers_below: u32,
    /// Tolerance for answers under load, as a share of the output's root mean square; defaults to 0.0001, and more for
    /// 16-bit outputs. A model that computes in half precision needs more
    #[arg(long, value_name = "SHARE", value_parser = positive, help_heading = "Requests")]
    pub tolerance: Option<f64>,
    /// Value of all elements of an input: a number, or for BYTES a text, or the content of a file as @FILE. By default,
    /// integer masks are 1, token types are 0, texts have a word for each unit of length, and other inputs are random.
    /// Inputs that may be left out are, unless this or --shape names them
    #[arg(long = "fill", value_name = "INPUT=VALUE", value_parser = fill, help_heading = "Requests")]
    pub fills: Vec<(String, Vec<u8>)>,

    /// Mean rates as shares of the first policy's measured peak [default: 0.25,0.6,0.9]
    #[arg(long, value_name = "SHARE,…", value_delimiter = ',', value_parser = positive, help_heading = "Load")]
    pub load: Vec<f64>,
    /// Measure the machine's speed before each round and keep the loads at the same share of it, for a machine whose
    /// speed varies
    #[arg(long, requires = "load", help_heading = "Load")]
    pub follow_peak: bool,
    /// Mean rates in requests per second
    #[arg(long, value_name = "RATE,…", value_delimiter = ',', value_parser = positive, help_heading = "Load")]
    pub rate: Vec<f64>,
    /// Numbers of requests in flight; each response is followed by the next request
    #[arg(long, value_name = "N,…", value_delimiter = ',', help_heading = "Load")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub concurrency: Vec<u32>,
    /// Arrivals in open loops; 'stepped' and 'ramp' have default rates of their own
    #[arg(long, value_name = "NAME", default_value = "poisson", value_parser = Arrivals::NAMES, help_heading = "Load")]
    #[arg(conflicts_with = "concurrency")]
    pub arrivals: String,
    /// Measured seconds of each run [default: 10, or the whole trace]
    #[arg(long, value_name = "S", value_parser = positive, help_heading = "Load")]
    pub seconds: Option<f64>,
    /// Seconds before that are not counted
    #[arg(long, value_name = "S", default_value_t = 2.0, value_parser = not_negative, help_heading = "Load")]
    pub warm_up_seconds: f64,
    /// Runs of each policy at each load, in alternating order
    #[arg(long, value_name = "N", default_value_t = 3, help_heading = "Load")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    pub rounds: u32,
    /// Seed of requests and arrivals
    #[arg(long, value_name = "N", default_value_t = 1, help_heading = "Load")]
    pub seed: u64,
    /// Latency up to which a response counts as goodput
    #[arg(long, value_name = "MS", value_parser = positive, help_heading = "Load")]
    pub objective_ms: Option<f64>,

    /// File for the figures of every round
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub csv: Option<PathBuf>,
    /// File for the latency of every request
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub requests_csv: Option<PathBuf>,
    /// File for a plot of the latencies
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub svg: Option<PathBuf>,
    /// Print JSON instead of tables
    #[arg(long, help_heading = "Output")]
    pub json: bool,

    #[command(flatten)]
    #[allow(missing_docs)]
    pub timeline: RecordArgs,

    /// Directory of the profiles for 'auto'; defaults to $XDG_CACHE_HOME/paternoster or ~/.cache/paternoster
    #[arg(long, value_name = "DIR", help_heading = "CPU")]
    pub profile_directory: Option<PathBuf>,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub device: DeviceArgs,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub cuda: CudaArgs,
}

impl BenchArgs {
    /// Returns where profiles are; `None` on a machine without a home directory, if no directory was given.
    pub(super) fn profiles(&self) -> Option<Store> {
        self.profile_directory.clone().or_else(default_directory).map(Store::new)
    }

    /// Returns the policies to compare; `None` is the model's own.
    pub(super) fn variants(&self) -> Result<Vec<Option<Variant>>, VariantError> {
        let cut = |variant: Variant| match self.stages {
            Some(stages) => variant.in_stages(stages),
            None => variant,
        };
        if self.policies.is_empty() && self.stages.is_none() {
            return Ok(vec![None]);
        }
        if self.policies.is_empty() {
            return Ok(vec![Some(cut(Variant::parse("auto")?))]);
        }
        let named = |text: &String| match text.trim() {
            AS_CONFIGURED => Ok(None),
            text => Variant::parse(text).map(|variant| Some(cut(variant))),
        };
        self.policies.iter().map(named).collect()
    }

    /// Returns the windows of the sweep; none without a sweep.
    pub(super) fn windows(&self, target: &Target) -> Result<Vec<Variant>, VariantError> {
        if self.sweep_window { sweep::windows(target.ports().vary()) } else { Ok(Vec::new()) }
    }

    pub(super) fn sizes(&self) -> Option<Sizes> {
        let named = self.workload.as_deref().and_then(Sizes::named);
        named.or_else(|| self.length.map(LengthDistribution::Fixed).map(Sizes::Lengths))
    }

    pub(super) fn points(&self, traced: bool) -> Points {
        let has_own_rates = traced || matches!(self.arrivals.as_str(), "stepped" | "ramp");
        if !self.concurrency.is_empty() {
            Points::Concurrencies(self.concurrency.iter().map(|&count| count as usize).collect())
        } else if !self.rate.is_empty() {
            Points::Rates(self.rate.clone())
        } else if !self.load.is_empty() {
            Points::Shares(self.load.clone())
        } else if has_own_rates {
            Points::AsTheyAre
        } else {
            Points::Shares(DEFAULT_LOADS.to_vec())
        }
    }

    pub(super) fn timing(&self, traced: bool) -> Timing {
        let seconds = self.seconds.or((!traced).then_some(DEFAULT_SECONDS));
        Timing {
            warm_up: Duration::from_secs_f64(self.warm_up_seconds),
            measured: seconds.map(Duration::from_secs_f64),
            patience: Duration::from_secs(120),
            keeps_each: self.requests_csv.is_some(),
            interval: Duration::from_secs_f64(self.sequence_interval_ms.unwrap_or(0.0) / 1e3),
        }
    }
}

fn workloads() -> PossibleValuesParser {
    PossibleValuesParser::new(Sizes::names())
}

fn positive(text: &str) -> Result<f64, String> {
    // Limited by what a `Duration` can hold.
    let value: Option<f64> = text.parse().ok().filter(|value| *value > 0.0 && *value <= 1e9);
    value.ok_or_else(|| "expected a number above 0".to_owned())
}

fn not_negative(text: &str) -> Result<f64, String> {
    let value: Option<f64> = text.parse().ok().filter(|value| *value >= 0.0 && *value <= 1e9);
    value.ok_or_else(|| "expected a number of at least 0".to_owned())
}

fn shape(text: &str) -> Result<(String, Dims), String> {
    let expected = || "expected NAME:DIMS, as 'tokens:128' or 'image:3,224,224'".to_owned();
    let (name, dims) = text.rsplit_once(':').ok_or_else(expected)?;
    let dim = |dim: &str| dim.trim().parse().ok().filter(|dim| *dim >= 0).ok_or_else(expected);
    Ok((name.to_owned(), dims.split(',').map(dim).collect::<Result<_, _>>()?))
}

fn fill(text: &str) -> Result<(String, Vec<u8>), String> {
    let expected = || "expected INPUT=VALUE, as 'attention_mask=1'".to_owned();
    let (name, value) = text.split_once('=').ok_or_else(expected)?;
    let content = match value.strip_prefix('@') {
        Some(file) => std::fs::read(file).map_err(|fault| format!("cannot read '{file}': {fault}"))?,
        None => value.into(),
    };
    Ok((name.to_owned(), content))
}
