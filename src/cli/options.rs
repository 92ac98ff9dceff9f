//! Turns flags into the settings of each part of the server.

use std::{path::PathBuf, sync::Arc, time::Duration};

use paternoster_engine::{
    onnxruntime::RuntimeOptions,
    openvino::{OpenVino, OpenVinoOptions},
};
use paternoster_executor::{BacklogLimits, PoolOptions};
use paternoster_frontend::{
    RestrictedProtocol, RestrictionError,
    grpc::{CompressionLevel, ConnectionLimits, GrpcConfig, MessageLimits},
    http::HttpConfig,
};
use paternoster_observe::{LogOptions, RequestBudgets, budget::Budgets, memory_bytes};
use paternoster_pipeline::ResponseCache;
use paternoster_repository::{Isolation, IsolationScope, ResidencyOptions, StartCache};

use super::{
    OPEN_ALONE,
    flags::{
        Compression, ControlModeFlag, DeviceArgs, GrpcArgs, HttpArgs, IsolateModelLoad, LogArgs, RepositoryArgs,
        ServeArgs,
    },
};

/// Returns the settings of the log.
pub(super) fn log(args: &LogArgs) -> LogOptions {
    let LogArgs { verbose_level, info, warning, error, format, file } = args.clone();
    LogOptions { file, error, warning, info, verbose_level, format }
}

/// Returns the settings of the repository.
pub(super) fn repository(args: &ServeArgs, has_cards: bool, budgets: &Budgets) -> paternoster_repository::Options {
    let models = &args.repository;
    let (startup, period) = (models.load_models.clone(), Duration::from_secs(u64::from(models.poll_secs)));
    let mode = match models.control_mode {
        ControlModeFlag::None => paternoster_repository::ControlMode::None,
        ControlModeFlag::Poll => paternoster_repository::ControlMode::Poll { period },
        ControlModeFlag::Explicit => paternoster_repository::ControlMode::Explicit { startup },
        ControlModeFlag::OnDemand => paternoster_repository::ControlMode::OnDemand { startup, period },
    };
    paternoster_repository::Options {
        repositories: models.directories.iter().map(PathBuf::from).collect(),
        cache_directory: models.cache_directory.clone(),
        cache_max_bytes: models.cache_max_bytes,
        mode,
        strict_readiness: models.strict_readiness,
        auto_complete: args.auto_complete(),
        default_max_batch_size: args.default_max_batch_size(),
        has_cards,
        config_name: models.config_name.clone(),
        start_unreadable: models.exit_on_error == Some(false),
        load_threads: models.load_threads as usize,
        sent_model_bytes: Arc::clone(&budgets.sent_model_bytes),
        request_budgets: RequestBudgets { bytes: Arc::clone(&budgets.bytes), requests: Arc::clone(&budgets.requests) },
        response_cache: args.cache_bytes().map(|bytes| Arc::new(ResponseCache::new(bytes))),
        residency: residency(models),
        custom_policies: args.custom_policies.clone(),
    }
}

/// Returns what bounds the models that are loaded.
fn residency(models: &RepositoryArgs) -> ResidencyOptions {
    // Four fifths of the memory.
    let default =
        || memory_bytes().map(|bytes| bytes / 5 * 4).filter(|_| models.control_mode == ControlModeFlag::OnDemand);
    let idle_secs = models.idle_unload_secs;
    ResidencyOptions {
        memory_budget: models.memory_budget_bytes.or_else(default).map(|bytes| bytes.try_into().unwrap_or(usize::MAX)),
        load_timeout: Duration::from_secs(u64::from(models.load_timeout_secs)),
        idle_unload: (idle_secs > 0).then(|| Duration::from_secs(u64::from(idle_secs))),
    }
}

/// Default limit on the outputs of a batch in bytes, on a machine with enough memory.
const MAX_OUTPUT_BYTES: u64 = 8 << 30;

/// Returns the settings of the pool.
pub(super) fn pool(args: &DeviceArgs) -> PoolOptions {
    let quarter = || memory_bytes().map_or(u64::MAX, |bytes| bytes / 4);
    let max_output_bytes = args.max_output_bytes.unwrap_or_else(|| MAX_OUTPUT_BYTES.min(quarter()));
    PoolOptions {
        cpu_lanes: args.cpu_lanes,
        cpu_shards: args.cpu_shards,
        max_output_bytes: usize::try_from(max_output_bytes).unwrap_or(usize::MAX),
        max_sequence_state_bytes: usize::try_from(args.max_sequence_state_bytes.unwrap_or_else(quarter))
            .unwrap_or(usize::MAX),
        task_time_limit: Duration::from_secs(u64::from(args.task_time_limit_secs)),
        last_lane_limit: Duration::from_millis(u64::from(args.last_lane_limit_ms)),
        ..PoolOptions::default()
    }
}

/// Returns the settings of ONNX Runtime.
pub(super) fn runtime(args: &DeviceArgs) -> RuntimeOptions {
    let most = args.max_memory_bytes.unwrap_or_else(|| memory_bytes().map_or(0, |bytes| bytes / 4 * 3));
    RuntimeOptions {
        library: args.onnxruntime_library.clone(),
        threads: args.cpu_threads as usize,
        lanes: usize::from(args.cpu_lanes),
        max_memory_bytes: usize::try_from(most).unwrap_or(usize::MAX),
    }
}

/// Returns OpenVINO, which is loaded when it is needed.
pub(super) fn openvino(args: &DeviceArgs) -> OpenVino {
    OpenVino::new(OpenVinoOptions {
        library: args.openvino_library.clone(),
        threads: args.cpu_threads as usize,
        lanes: usize::from(args.cpu_lanes),
    })
}

/// Returns how models are opened in a separate process first, if they are.
pub(super) fn isolation(models: &RepositoryArgs, cache: Option<StartCache>) -> Option<Isolation> {
    let scope = match models.isolate_load {
        IsolateModelLoad::Uploaded => IsolationScope::Uploaded,
        IsolateModelLoad::All => IsolationScope::All,
        IsolateModelLoad::Off => return None,
    };
    Some(Isolation {
        // The running executable, even if its file has been replaced since the start.
        program: PathBuf::from("/proc/self/exe"),
        arguments: vec![OPEN_ALONE.to_owned()],
        scope,
        memory_bytes: models.isolate_load_memory_bytes.unwrap_or_else(default_isolation_bytes),
        time: Duration::from_secs(u64::from(models.isolate_load_timeout_secs)),
        cache: cache.filter(|_| scope == IsolationScope::All),
    })
}

/// Returns the time limit of all trial runs of a load together.
pub(super) fn trial_time(models: &RepositoryArgs) -> Option<Duration> {
    let seconds = models.warmup_time_limit_secs;
    (seconds > 0).then(|| Duration::from_secs(u64::from(seconds)))
}

/// Largest default of the memory of the process that opens a model.
const MAX_ISOLATION_BYTES: u64 = 16 << 30;

/// Smallest, since libraries alone take some of the address space.
const MIN_ISOLATION_BYTES: u64 = 1 << 30;

/// Returns the default of the address space of the process that opens a model: half of the memory.
fn default_isolation_bytes() -> u64 {
    memory_bytes().map_or(MIN_ISOLATION_BYTES, |bytes| (bytes / 2).clamp(MIN_ISOLATION_BYTES, MAX_ISOLATION_BYTES))
}

/// Returns the limits on responses that wait for their clients.
pub(super) fn backlog(args: &GrpcArgs) -> BacklogLimits {
    let bytes = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
    BacklogLimits {
        stream_bytes: bytes(args.stream_backlog_bytes),
        connection_bytes: bytes(args.connection_backlog_bytes),
        total_bytes: bytes(args.backlog_bytes),
    }
}

/// Returns the settings of the HTTP front end.
///
/// # Errors
/// Fails if a restriction is malformed.
pub(super) fn http(args: &HttpArgs) -> Result<HttpConfig, RestrictionError> {
    let restricted = args.restricted_api.iter().map(|given| RestrictedProtocol::of_http(given));
    Ok(HttpConfig {
        max_input_bytes: args.max_input_bytes as usize,
        // That the required files are given was checked with the flags.
        tls: args.tls().unwrap_or_default(),
        allow_web: args.allow_web,
        restricted: restricted.collect::<Result<_, _>>()?,
        metrics: None,
    })
}

/// Returns the settings of the gRPC front end.
///
/// # Errors
/// Fails if a restriction is malformed.
pub(super) fn grpc(args: &GrpcArgs) -> Result<GrpcConfig, RestrictionError> {
    let restricted =
        args.restricted.iter().map(|given| RestrictedProtocol::of_grpc(given)).collect::<Result<Vec<_>, _>>()?;
    Ok(GrpcConfig {
        endpoint: args.grpc_address.at(args.grpc_port),
        // That the required files are given was checked with the flags.
        tls: args.tls().unwrap_or_default(),
        connection: ConnectionLimits {
            keepalive_time: some_ms(args.keepalive_time_ms),
            keepalive_timeout: Duration::from_millis(args.keepalive_timeout_ms),
            max_age: some_ms(args.max_age_ms),
            max_age_grace: some_ms(args.max_age_grace_ms),
            max_idle: some_ms(args.max_idle_ms),
            ..ConnectionLimits::default()
        },
        messages: MessageLimits {
            max_receive_bytes: args.max_receive_bytes as usize,
            max_send_bytes: args.max_send_bytes as usize,
        },
        compression: match args.compression {
            Compression::None => CompressionLevel::None,
            Compression::Low => CompressionLevel::Low,
            Compression::Medium => CompressionLevel::Medium,
            Compression::High => CompressionLevel::High,
        },
        restricted,
    })
}

fn some_ms(ms: u64) -> Option<Duration> {
    (ms > 0).then(|| Duration::from_millis(ms))
}

#[cfg(test)]
mod tests {
    use super::{super::tests::serve, *};

    #[test]
    fn control_modes_take_what_belongs_to_them() {
        let mode = |flags: &[&str]| repository(&serve(flags), false, &Budgets::default()).mode;
        assert_eq!(mode(&[]), paternoster_repository::ControlMode::None);
        let period = Duration::from_secs(3);
        assert_eq!(
            mode(&["--model-control-mode=poll", "--repository-poll-secs=3"]),
            paternoster_repository::ControlMode::Poll { period }
        );
        assert_eq!(
            mode(&["--model-control-mode=explicit", "--load-model=a"]),
            paternoster_repository::ControlMode::Explicit { startup: vec!["a".to_owned()] }
        );
        assert_eq!(
            mode(&["--model-control-mode=on-demand", "--load-model=a", "--repository-poll-secs=3"]),
            paternoster_repository::ControlMode::OnDemand { startup: vec!["a".to_owned()], period }
        );
    }

    #[test]
    fn the_memory_of_models_is_limited_by_a_flag_and_on_demand_by_the_machine() {
        let residency = |flags: &[&str]| repository(&serve(flags), false, &Budgets::default()).residency;
        assert_eq!(residency(&[]).memory_budget, None);
        assert_eq!(residency(&["--memory-budget-bytes=5"]).memory_budget, Some(5));
        let on_demand = residency(&["--model-control-mode=on-demand"]);
        let memory = memory_bytes().expect("a machine with memory");
        assert_eq!(on_demand.memory_budget, Some((memory / 5 * 4) as usize));
        assert_eq!((on_demand.load_timeout, on_demand.idle_unload), (Duration::from_secs(60), None));
        let flags = ["--model-control-mode=on-demand", "--load-timeout=5", "--idle-unload-seconds=7"];
        let given = residency(&flags);
        assert_eq!(given.load_timeout, Duration::from_secs(5));
        assert_eq!(given.idle_unload, Some(Duration::from_secs(7)));
    }

    #[test]
    fn outputs_are_bounded_by_a_flag_or_by_the_memory() {
        let most = |flags: &[&str]| pool(&serve(flags).device).max_output_bytes as u64;
        assert_eq!(most(&["--max-output-bytes=1000"]), 1000);
        let quarter = memory_bytes().expect("a machine with memory") / 4;
        assert_eq!(most(&[]), quarter.min(8 << 30));
        let all = |flags: &[&str]| runtime(&serve(flags).device).max_memory_bytes as u64;
        assert_eq!((all(&["--onnxruntime-memory-bytes=0"]), all(&[])), (0, 3 * quarter));
    }

    #[test]
    fn the_process_that_opens_a_model_is_bounded_by_a_flag_or_by_the_memory() {
        let most = |flags: &[&str]| isolation(&serve(flags).repository, None).expect("it is on").memory_bytes;
        assert_eq!(most(&["--isolate-model-load-memory-bytes=100000000"]), 100_000_000);
        let half = memory_bytes().expect("a machine with memory") / 2;
        assert_eq!(most(&[]), half.clamp(1 << 30, 16 << 30));
    }

    #[test]
    fn times_of_zero_mean_never_and_sizes_pass_through() {
        let flags = [
            "--grpc-max-connection-age=1500",
            "--grpc-max-connection-idle=0",
            "--grpc-keepalive-time=0",
            "--grpc-max-receive-message-bytes=9",
        ];
        let config = grpc(&serve(&flags).grpc).expect("no restrictions");
        assert_eq!(config.connection.max_age, Some(Duration::from_millis(1500)));
        assert_eq!(config.connection.max_age_grace, None);
        assert_eq!(config.connection.keepalive_time, None);
        assert_eq!(config.connection.max_idle, None);
        assert_eq!(config.messages.max_receive_bytes, 9);
        assert_eq!(config.messages.max_send_bytes, i32::MAX as usize);
    }

    #[test]
    fn replies_that_wait_are_bounded_unless_it_is_said_otherwise() {
        assert_eq!(backlog(&serve(&[]).grpc), BacklogLimits::default());
        let flags = ["--grpc-stream-backlog-bytes=1", "--grpc-connection-backlog-bytes=2", "--grpc-backlog-bytes=3"];
        let given = BacklogLimits { stream_bytes: 1, connection_bytes: 2, total_bytes: 3 };
        assert_eq!(backlog(&serve(&flags).grpc), given);
    }

    #[test]
    fn a_restriction_that_is_not_well_formed_is_refused() {
        assert!(grpc(&serve(&["--grpc-restricted-protocol=health:k=v"]).grpc).is_ok());
        assert!(grpc(&serve(&["--grpc-restricted-protocol=health"]).grpc).is_err());
        assert!(grpc(&serve(&["--grpc-restricted-protocol=health:k="]).grpc).is_err());
        assert!(http(&serve(&["--http-restricted-api=health:k=v"]).http).is_ok());
        assert!(http(&serve(&["--http-restricted-api=health"]).http).is_err());
        assert!(http(&serve(&["--http-restricted-api=health:k="]).http).is_err());
    }
}
