//! Flags of `paternoster serve`: those of tritonserver, with their names and forms, and a few of its own.

mod grpc;
mod http;
mod log;
mod rate;
mod settings;
mod start_cache;
mod tls;
mod tracing;

use std::{fmt, path::PathBuf};

use clap::{Args, ValueEnum};
use paternoster_config::CustomPolicies;
use paternoster_frontend::Host;
use paternoster_observe::LatencyMetrics;

pub(super) use self::tracing::TraceChoice;
pub use self::{
    grpc::{Compression, GrpcArgs},
    http::HttpArgs,
    log::LogArgs,
    rate::{RateArgs, RateLimit, ResourceFlag},
    settings::{BackendSetting, CacheSetting, MetricsSetting},
    tracing::TraceArgs,
};
use super::{
    AutoArgs, CudaArgs, LimitArgs, RecordArgs,
    tritonserver::{BACKENDS, Ignored},
};

const EXAMPLES: &str = "\
Examples:
  # Serve every model of a directory, with Triton's ports: gRPC 8001, HTTP 8000, metrics 8002
  paternoster serve --model-repository /models

  # Load and unload models on request
  paternoster serve --model-repository /models --model-control-mode explicit --load-model resnet50

  # Load models when requests need them, and unload those that were not used for an hour
  paternoster serve --model-repository /models --model-control-mode on-demand --idle-unload-secs 3600

  # Keep the arguments of a Triton deployment
  paternoster tritonserver --model-store=/models --log-verbose=1 --strict-readiness=false

Booleans take true, false, 1 or 0; the flag alone means true. Values follow after a space or an equals sign. If a flag
is given twice, the last one counts. All other flags of tritonserver are accepted without effect and named in a
warning.";

/// Most lanes or threads that can be set.
const MOST_THREADS: i64 = 1024;

/// Most bytes that can be set.
const MOST_BYTES: u64 = 1 << 62;

/// Arguments of `paternoster serve`.
#[derive(Clone, Debug, Args)]
#[command(after_help = EXAMPLES, args_override_self = true)]
pub struct ServeArgs {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub repository: RepositoryArgs,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub grpc: GrpcArgs,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub http: HttpArgs,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub limits: LimitArgs,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub device: DeviceArgs,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub cuda: CudaArgs,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub rate: RateArgs,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub auto: AutoArgs,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub log: LogArgs,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub timeline: RecordArgs,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub traces: TraceArgs,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub life: LifeArgs,
    /// Flags of tritonserver that were given but have no effect.
    #[arg(skip)]
    pub ignored: Vec<&'static Ignored>,
    /// Policies of other crates that configurations may name.
    #[arg(skip)]
    pub custom_policies: CustomPolicies,
}

/// How models are loaded and unloaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum ControlModeFlag {
    /// Load all models at startup
    #[default]
    None,
    /// As none, and follow changes of the directories
    Poll,
    /// Load the models of --load-model, and load and unload at clients' requests
    Explicit,
    /// As explicit, and load a model when a request needs it; models that are not used are unloaded again
    OnDemand,
}

/// Which models are opened in a separate process first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum IsolateModelLoad {
    /// Models whose files come with a load request
    #[default]
    Uploaded,
    /// All models
    All,
    /// No models
    Off,
}

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Models")]
#[allow(missing_docs)]
pub struct RepositoryArgs {
    /// Directory of models, or location in an object store: s3://bucket/path, s3://host:port/bucket/path,
    /// s3://https://host:port/bucket/path, gs://bucket/path or as://account/container/path; may be given several times
    #[arg(long = "model-repository", alias = "model-store", value_name = "DIR", required = true)]
    pub directories: Vec<String>,

    /// Directory for copies of models from object stores, so that a restart fetches only what changed; defaults to a
    /// temporary one that is removed at exit
    #[arg(long = "repository-cache-directory", value_name = "DIR")]
    pub cache_directory: Option<PathBuf>,

    /// Limit on the disk space for those copies, in bytes; beyond it, the least recently used copies of models that are
    /// not loaded are removed
    #[arg(long = "repository-cache-max-bytes", value_name = "BYTES")]
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    pub cache_max_bytes: Option<u64>,

    /// Directory for what is kept across restarts: which models opened in a process of their own, and unless they have
    /// another place, profiles and compiled kernels. Defaults to --profile-directory, or else to
    /// $XDG_CACHE_HOME/paternoster or ~/.cache/paternoster; with 'off', models are opened alone at each start
    #[arg(long = "cache-directory", value_name = "DIR")]
    pub start_cache_directory: Option<PathBuf>,

    /// How models are loaded and unloaded
    #[arg(long = "model-control-mode", value_name = "MODE", value_enum, default_value_t = ControlModeFlag::None)]
    pub control_mode: ControlModeFlag,

    /// Seconds between two polls of the repositories in the modes poll and on-demand
    #[arg(long = "repository-poll-secs", value_name = "SECONDS", default_value_t = 15)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    pub poll_secs: u32,

    /// Model to load at startup in the modes explicit and on-demand; may be given several times; '*' alone means all.
    /// In mode on-demand it is not unloaded again
    #[arg(long = "load-model", value_name = "NAME")]
    pub load_models: Vec<String>,

    /// Limit on the bytes that models take, as estimated from their files or, with --isolate-model-load=all, as
    /// measured. In mode on-demand, models that are not used are unloaded for others, and the default is 80 % of the
    /// memory; in other modes a load without room is rejected, and there is no limit by default
    #[arg(long = "memory-budget-bytes", value_name = "BYTES")]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=MOST_BYTES))]
    pub memory_budget_bytes: Option<u64>,

    /// Seconds that a request waits for its model in mode on-demand, and in which the model must be loaded
    #[arg(long = "load-timeout-secs", alias = "load-timeout", value_name = "SECONDS", default_value_t = 60)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    pub load_timeout_secs: u32,

    /// Seconds without requests after which a model is unloaded in mode on-demand; 0 means never
    #[arg(long = "idle-unload-secs", alias = "idle-unload-seconds", value_name = "SECONDS", default_value_t = 0)]
    pub idle_unload_secs: u32,

    /// Do not complete configurations from the models; every model then needs a complete one
    #[arg(long = "disable-auto-complete-config", value_name = "BOOL", value_parser = boolean)]
    #[arg(num_args = 0..=1, default_missing_value = "true", default_value = "false")]
    pub disable_auto_complete: bool,

    /// Setting of a backend, or of all if none is named; may be given several times. default-max-batch-size=N is the
    /// largest batch of models that can batch and do not configure it (default 4; 0 means no batching); others have no
    /// effect
    #[arg(long = "backend-config", value_name = "[BACKEND,]SETTING=VALUE")]
    pub backend_config: Vec<BackendSetting>,

    /// Keep responses of models whose configuration has response_cache in this many bytes of memory, and give them
    /// again to equal requests. 'local' is the only cache. By default no responses are kept
    #[arg(long = "cache-config", value_name = "local,size=BYTES")]
    pub cache_config: Option<CacheSetting>,

    /// Older form of --cache-config=local,size=BYTES; 0 means no cache
    #[arg(long = "response-cache-byte-size", value_name = "BYTES", hide = true, conflicts_with = "cache_config")]
    pub response_cache_byte_size: Option<u64>,

    /// Use configs/NAME.pbtxt in a model's directory as its configuration, if that file exists
    #[arg(long = "model-config-name", value_name = "NAME", value_parser = config_name)]
    pub config_name: Option<String>,

    /// Older name of --disable-auto-complete-config
    #[arg(long = "strict-model-config", value_name = "BOOL", value_parser = boolean, hide = true)]
    #[arg(num_args = 0..=1, default_missing_value = "true")]
    pub strict_model_config: Option<bool>,

    /// Number of models to load at the same time
    #[arg(long = "model-load-thread-count", value_name = "N", default_value_t = 4)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=MOST_THREADS))]
    pub load_threads: u32,

    /// Models to open in a separate process first, so that a model that crashes, hangs or exhausts memory is rejected
    /// without harm to the server
    #[arg(long = "isolate-model-load", value_name = "MODELS", value_enum, default_value_t = IsolateModelLoad::Uploaded)]
    pub isolate_load: IsolateModelLoad,

    /// Limit on the address space of that process, in bytes. Defaults to half of the memory, at least 1 GiB and at most
    /// 16 GiB
    #[arg(long = "isolate-model-load-memory-bytes", value_name = "BYTES")]
    #[arg(value_parser = clap::value_parser!(u64).range(64 << 20..))]
    pub isolate_load_memory_bytes: Option<u64>,

    /// Limit on the seconds in which it must open a model
    #[arg(long = "isolate-model-load-timeout-secs", value_name = "SECONDS", default_value_t = 60)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    pub isolate_load_timeout_secs: u32,

    /// Seconds in which all trial runs of a load must end: warm-up requests, and the example request of a model of
    /// cells; 0 means no limit. Each run also has the time limit of a task
    #[arg(long = "warmup-time-limit-secs", value_name = "SECONDS", default_value_t = 300)]
    pub warmup_time_limit_secs: u32,

    /// Report readiness only when every model that the server loads by itself is ready; models that only clients load
    /// do not count
    #[arg(long = "strict-readiness", value_name = "BOOL", value_parser = boolean)]
    #[arg(num_args = 0..=1, default_missing_value = "true", default_value = "true")]
    pub strict_readiness: bool,

    /// True: exit at startup if a model fails to load or a repository cannot be read. False: exit for neither; the
    /// server is not live while a repository cannot be read. By default, exit only if a repository cannot be read
    /// (tritonserver defaults to true)
    #[arg(long = "exit-on-error", value_name = "BOOL", value_parser = boolean)]
    #[arg(num_args = 0..=1, default_missing_value = "true")]
    pub exit_on_error: Option<bool>,
}

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "CPU")]
#[allow(missing_docs)]
pub struct DeviceArgs {
    /// Batches that run on the CPU at the same time, across all models
    #[arg(long = "cpu-lanes", value_name = "N", default_value_t = 2)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=MOST_THREADS))]
    pub cpu_lanes: u16,

    /// Devices into which the CPU is split, each with a share of the lanes and its own scheduler; at most as many as
    /// there are lanes
    #[arg(long = "cpu-shards", value_name = "N", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=MOST_THREADS))]
    pub cpu_shards: u16,

    /// Seconds after which a batch is asked to stop; 0 means no limit. A model's batching.task_time_limit_ms takes
    /// precedence
    #[arg(long = "task-time-limit-secs", value_name = "SECONDS", default_value_t = 60)]
    pub task_time_limit_secs: u32,

    /// Limit on the predicted milliseconds of a batch on the last free lane of a device, while other models were used
    /// there in the last minute: a longer batch is cut to fewer rows. 0 means no limit
    #[arg(long = "last-lane-limit-ms", value_name = "MILLISECONDS", default_value_t = 50)]
    pub last_lane_limit_ms: u32,

    /// Threads that ONNX Runtime shares among all batches, and threads of each batch on OpenVINO; 0 uses one per core
    #[arg(long = "cpu-threads", value_name = "N", default_value_t = 0)]
    #[arg(value_parser = clap::value_parser!(u32).range(..=MOST_THREADS))]
    pub cpu_threads: u32,

    /// Limit on the bytes of all outputs of one batch; a batch that exceeds it fails. Defaults to a quarter of the
    /// memory, and at most 8 GiB
    #[arg(long = "max-output-bytes", value_name = "BYTES")]
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    pub max_output_bytes: Option<u64>,

    /// Limit on the bytes of host memory that sequences keep between their requests. A request whose state has no room
    /// is rejected as RESOURCE_EXHAUSTED, and its sequence ends. Defaults to a quarter of the memory
    #[arg(long = "max-sequence-state-bytes", value_name = "BYTES")]
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    pub max_sequence_state_bytes: Option<u64>,

    /// Limit on the bytes of tensors that runs compute in ONNX Runtime, without weights; a run that exceeds it fails. 0
    /// means no limit. Defaults to three quarters of the memory
    #[arg(long = "onnxruntime-memory-bytes", value_name = "BYTES")]
    pub max_memory_bytes: Option<u64>,

    /// ONNX Runtime library, version 1.17 or later. By default it is searched in ORT_DYLIB_PATH, beside the executable,
    /// in ../lib/paternoster, in the onnxruntime wheel of the executable's Python environment, and in the system's
    /// paths
    #[arg(long = "onnxruntime-library", value_name = "FILE")]
    pub onnxruntime_library: Option<PathBuf>,

    /// OpenVINO library (libopenvino_c.so), version 2025.1 or later, or its directory, for models with engine openvino.
    /// By default it is searched in OPENVINO_DYLIB_PATH, beside the executable, in ../lib/paternoster, in the openvino
    /// wheel of the executable's Python environment, and in the system's paths
    #[arg(long = "openvino-library", value_name = "FILE")]
    pub openvino_library: Option<PathBuf>,
}

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Life")]
#[allow(missing_docs)]
pub struct LifeArgs {
    /// Name of this server in its log, and in its metadata unless --server-name is given; the log's default is
    /// 'paternoster'
    #[arg(long = "id", value_name = "NAME")]
    pub id: Option<String>,

    /// Name of this server in its metadata, which Triton clients may compare; defaults to that of --id, or else
    /// 'triton'
    #[arg(long = "server-name", value_name = "NAME")]
    pub server_name: Option<String>,

    /// Let environment variables change how requests run, for tests: with TRITONSERVER_DELAY_SCHEDULER=N, models with a
    /// dynamic or sequence batcher run nothing until N requests wait for the first time, in sequences N of those with a
    /// slot; TRITONSERVER_BACKLOG_DELAY_SCHEDULER=M asks for M more of those without
    #[arg(long = "allow-test-hooks", value_name = "BOOL", value_parser = boolean)]
    #[arg(num_args = 0..=1, default_missing_value = "true", default_value = "false")]
    pub allow_test_hooks: bool,

    /// Seconds that requests in flight have to finish after SIGTERM
    #[arg(long = "exit-timeout-secs", value_name = "SECONDS", default_value_t = 30)]
    pub exit_timeout_secs: u32,

    /// Seconds to keep serving after SIGTERM while not ready, so that load balancers notice
    #[arg(long = "drain-delay-secs", value_name = "SECONDS", default_value_t = 0)]
    pub drain_delay_secs: u32,
}

/// A combination of flags that cannot work.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Conflict(String);

impl ServeArgs {
    /// Returns whether configurations are completed from the models.
    pub fn auto_complete(&self) -> bool {
        !(self.repository.disable_auto_complete || self.repository.strict_model_config == Some(true))
    }

    /// Returns the largest batch of models that can batch and do not configure it.
    pub fn default_max_batch_size(&self) -> i32 {
        settings::default_max_batch_size(&self.repository.backend_config)
    }

    /// Returns the size of the response cache in bytes, if there is one.
    pub fn cache_bytes(&self) -> Option<u64> {
        let models = &self.repository;
        let older = models.response_cache_byte_size.filter(|&bytes| bytes > 0);
        models.cache_config.map(|CacheSetting(bytes)| bytes).or(older)
    }

    /// Returns which latencies the metrics include.
    pub fn latency_metrics(&self) -> LatencyMetrics {
        settings::latency_metrics(&self.http.metrics_config)
    }

    /// Returns the settings that have no effect, each as its flag with the reason.
    pub fn idle_settings(&self) -> Vec<(String, &'static str)> {
        let backends = self.repository.backend_config.iter().filter_map(|setting| match setting {
            BackendSetting::Other(given) => Some((format!("--backend-config={given}"), BACKENDS)),
            BackendSetting::DefaultMaxBatchSize { .. } => None,
        });
        let metrics = self.http.metrics_config.iter().filter_map(|setting| match setting {
            MetricsSetting::Other(given) => Some((format!("--metrics-config={given}"), "there is no such setting")),
            _ => None,
        });
        backends.chain(metrics).chain(self.rate.idle()).chain(self.traces.idle()).collect()
    }

    /// Returns the server's name in its log.
    pub fn log_name(&self) -> &str {
        self.life.id.as_deref().unwrap_or("paternoster")
    }

    /// Returns the server's name in its metadata. The default is Triton's, since clients compare it.
    pub fn server_name(&self) -> &str {
        self.life.server_name.as_deref().or(self.life.id.as_deref()).unwrap_or("triton")
    }

    /// Returns the address of the metrics endpoint.
    pub fn metrics_address(&self) -> &Host {
        match (&self.http.metrics_address, &self.http.http_address) {
            (Some(given), _) => given,
            // A socket is shared with no other port, and was chosen so that other machines do not reach the server.
            (None, Host::Unix(_)) => &Host::LOOPBACK,
            (None, address) => address,
        }
    }

    /// Checks for combinations of flags that cannot work.
    ///
    /// # Errors
    /// Returns the first one found, with its flags.
    pub fn check(&self) -> Result<(), Conflict> {
        let models = &self.repository;
        let is_on_demand = models.control_mode == ControlModeFlag::OnDemand;
        if !models.load_models.is_empty() && models.control_mode != ControlModeFlag::Explicit && !is_on_demand {
            return Err(Conflict("--load-model needs --model-control-mode=explicit or on-demand".to_owned()));
        }
        if models.idle_unload_secs > 0 && !is_on_demand {
            return Err(Conflict("--idle-unload-secs needs --model-control-mode=on-demand".to_owned()));
        }
        if models.load_models.len() > 1 && models.load_models.iter().any(|name| name == "*") {
            return Err(Conflict("--load-model=* cannot stand beside another --load-model".to_owned()));
        }
        self.device.check()?;
        self.grpc.tls()?;
        self.http.tls()?;
        self.check_ports()
    }

    fn check_ports(&self) -> Result<(), Conflict> {
        let ports = [
            ("grpc", self.grpc.allow_grpc, &self.grpc.grpc_address, self.grpc.grpc_port),
            ("http", self.http.allow_http, &self.http.http_address, self.http.http_port),
            ("metrics", self.http.allow_metrics, self.metrics_address(), self.http.metrics_port),
        ];
        let open: Vec<_> = ports.into_iter().filter(|(_, allowed, ..)| *allowed).collect();
        if !self.grpc.allow_grpc && !self.http.allow_http {
            return Err(Conflict("one of --allow-grpc and --allow-http must be true".to_owned()));
        }
        for (index, (one, _, address, port)) in open.iter().enumerate() {
            for (other, _, other_address, other_port) in &open[index + 1..] {
                if address != other_address {
                    continue;
                }
                if matches!(address, Host::Unix(_)) {
                    return Err(Conflict(format!("--{one}-address and --{other}-address are both {address}")));
                }
                if port == other_port && *port != 0 {
                    return Err(Conflict(format!("--{one}-port and --{other}-port are both {port} on {address}")));
                }
            }
        }
        Ok(())
    }
}

impl DeviceArgs {
    /// Checks for combinations of flags that cannot work.
    ///
    /// # Errors
    /// Returns the first one found, with its flags.
    pub fn check(&self) -> Result<(), Conflict> {
        let (shards, lanes) = (self.cpu_shards, self.cpu_lanes);
        if shards > lanes {
            return Err(Conflict(format!("--cpu-shards is {shards}, expected at most --cpu-lanes, which is {lanes}")));
        }
        Ok(())
    }
}

pub(super) fn boolean(given: &str) -> Result<bool, String> {
    match given.to_ascii_lowercase().as_str() {
        "true" | "1" => Ok(true),
        "false" | "0" => Ok(false),
        _ => Err("expected true, false, 1 or 0".to_owned()),
    }
}

/// Parses the name of a file without its extension.
fn config_name(given: &str) -> Result<String, String> {
    let is_plain = !given.is_empty() && !given.contains(['/', '\\', ' ', '\0']) && given != "." && given != "..";
    is_plain.then(|| given.to_owned()).ok_or_else(|| "expected a file name without '.pbtxt'".to_owned())
}

impl fmt::Display for ControlModeFlag {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self {
            Self::None => "none",
            Self::Poll => "poll",
            Self::Explicit => "explicit",
            Self::OnDemand => "on-demand",
        };
        formatter.write_str(name)
    }
}
