//! The flags, compared with the rules of tritonserver's command line.

use std::path::Path;

use paternoster_frontend::Host;

use super::{tools::Tool, *};

mod documented;
mod moving_from_triton;

fn parse_words(words: &[&str]) -> Result<Command, clap::Error> {
    parse(words.iter().map(OsString::from))
}

/// Parses `serve` with a repository and these flags.
pub(super) fn serve(flags: &[&str]) -> ServeArgs {
    let words = [&["paternoster", "serve", "--model-repository=models"][..], flags].concat();
    match parse_words(&words) {
        Ok(Command::Serve(args)) => *args,
        Ok(other) => panic!("{flags:?} read as {other:?}"),
        Err(error) => panic!("{flags:?} refused: {error}"),
    }
}

/// Returns the message with which `serve` rejects these flags.
fn refusal(flags: &[&str]) -> String {
    let words = [&["paternoster", "serve", "--model-repository=models"][..], flags].concat();
    parse_words(&words).expect_err("the flags cannot work").to_string()
}

/// Every flag in tritonserver's own usage text.
const OF_TRITONSERVER: &[&str] = &[
    "allow-cpu-metrics",
    "allow-gpu-metrics",
    "allow-grpc",
    "allow-http",
    "allow-metrics",
    "allow-sagemaker",
    "allow-vertex-ai",
    "backend-config",
    "backend-directory",
    "buffer-manager-thread-count",
    "cache-config",
    "cache-directory",
    "cuda-memory-pool-byte-size",
    "cuda-virtual-address-size",
    "disable-auto-complete-config",
    "enable-peer-access",
    "exit-on-error",
    "exit-timeout-secs",
    "grpc-address",
    "grpc-header-forward-pattern",
    "grpc-http2-max-ping-strikes",
    "grpc-http2-max-pings-without-data",
    "grpc-http2-min-recv-ping-interval-without-data",
    "grpc-infer-allocation-pool-size",
    "grpc-infer-response-compression-level",
    "grpc-infer-thread-count",
    "grpc-keepalive-permit-without-calls",
    "grpc-keepalive-time",
    "grpc-keepalive-timeout",
    "grpc-max-connection-age",
    "grpc-max-connection-age-grace",
    "grpc-max-response-pool-size",
    "grpc-port",
    "grpc-restricted-protocol",
    "grpc-root-cert",
    "grpc-server-cert",
    "grpc-server-key",
    "grpc-use-ssl",
    "grpc-use-ssl-mutual",
    "host-policy",
    "http-address",
    "http-header-forward-pattern",
    "http-max-input-size",
    "http-port",
    "http-restricted-api",
    "http-thread-count",
    "id",
    "load-model",
    "log-error",
    "log-file",
    "log-format",
    "log-info",
    "log-verbose",
    "log-warning",
    "metrics-address",
    "metrics-config",
    "metrics-interval-ms",
    "metrics-port",
    "min-supported-compute-capability",
    "model-config-name",
    "model-control-mode",
    "model-load-gpu-limit",
    "model-load-retry-count",
    "model-load-thread-count",
    "model-namespacing",
    "model-repository",
    "model-store",
    "pinned-memory-pool-byte-size",
    "rate-limit",
    "rate-limit-resource",
    "repoagent-directory",
    "repository-poll-secs",
    "response-cache-byte-size",
    "reuse-grpc-port",
    "reuse-http-port",
    "sagemaker-port",
    "sagemaker-safe-port-range",
    "sagemaker-thread-count",
    "strict-model-config",
    "strict-readiness",
    "trace-config",
    "trace-count",
    "trace-file",
    "trace-level",
    "trace-log-frequency",
    "trace-rate",
    "vertex-ai-default-model",
    "vertex-ai-port",
    "vertex-ai-thread-count",
];

#[test]
fn every_flag_of_tritonserver_is_known() {
    let mut command = Cli::command().mut_subcommand("serve", tritonserver::accept);
    command.build();
    let serve = command.find_subcommand("serve").expect("there is a serve");
    for flag in OF_TRITONSERVER {
        let known = serve.get_arguments().any(|arg| {
            let aliases = arg.get_all_aliases().unwrap_or_default();
            arg.get_long() == Some(flag) || aliases.contains(flag)
        });
        assert!(known, "--{flag} is not known");
    }
}

#[test]
fn a_flag_without_meaning_is_accepted_in_every_form_and_named() {
    for flag in IGNORED {
        let long = format!("--{}", flag.name);
        let with_value = format!("{long}=a,b=c:1");
        for flags in
            [&[long.as_str()][..], &[&with_value], &[&long, "a,b=c:1"], &[&long, "-1"], &[&long, "x", &long, "y"]]
        {
            let args = serve(flags);
            assert_eq!(args.ignored, [flag], "{flags:?} shall be named once");
        }
    }
    assert_eq!(serve(&[]).ignored, Vec::<&Ignored>::new());
}

#[test]
fn flags_without_meaning_are_listed_in_order_and_not_as_meaningful_ones() {
    assert!(IGNORED.is_sorted_by_key(|flag| flag.name), "the list is in alphabetical order");
    for flag in IGNORED {
        assert!(OF_TRITONSERVER.contains(&flag.name), "--{} is none of tritonserver's", flag.name);
    }
}

#[test]
fn booleans_take_words_digits_or_nothing() {
    let cases: [(&[&str], bool); 9] = [
        (&[], true),
        (&["--strict-readiness"], true),
        (&["--strict-readiness=true"], true),
        (&["--strict-readiness", "true"], true),
        (&["--strict-readiness=1"], true),
        (&["--strict-readiness=false"], false),
        (&["--strict-readiness", "False"], false),
        (&["--strict-readiness", "0"], false),
        (&["--strict-readiness=true", "--strict-readiness=false"], false),
    ];
    for (flags, expected) in cases {
        assert_eq!(serve(flags).repository.strict_readiness, expected, "{flags:?}");
    }
    let alone = serve(&["--exit-on-error", "--http-port", "9000"]);
    assert_eq!(alone.repository.exit_on_error, Some(true), "the flag alone means true");
    assert_eq!(alone.http.http_port, 9000, "the next flag is not its value");
    assert_eq!(serve(&[]).repository.exit_on_error, None, "unlike tritonserver, a bad model does not end the server");
}

#[test]
fn a_wrong_value_is_refused_with_what_was_expected() {
    let cases: [(&[&str], &str); 11] = [
        (&["--strict-readiness=maybe"], "expected true, false, 1 or 0"),
        (&["--http-port=70000"], "70000 is not in 0..=65535"),
        (&["--http-port=http"], "invalid digit"),
        (&["--grpc-address=1.2.3.400"], "expected an IP address such as 0.0.0.0, 127.0.0.1 or [::1], the name of a"),
        (&["--http-address=unix:"], "the name of a host, or unix:/path/of/a/socket"),
        (&["--metrics-address=127.0.0.1:8002"], "expected an IP address"),
        (&["--model-control-mode=manual"], "[possible values: none, poll, explicit, on-demand]"),
        (&["--grpc-infer-response-compression-level=max"], "[possible values: none, low, medium, high]"),
        (&["--log-verbose=much"], "expected a level of 0 or more"),
        (&["--log-format=xml"], "expected default, ISO8601 or json, got 'xml'"),
        (&["--cpu-lanes=0"], "0 is not in 1..=1024"),
    ];
    for (flags, expected) in cases {
        let message = refusal(flags);
        assert!(message.contains(expected), "{flags:?} says:\n{message}");
        let name = flags[0].split('=').next().expect("a flag has a name");
        assert!(message.contains(name), "{flags:?} is not named:\n{message}");
    }
}

#[test]
fn an_unknown_flag_suggests_the_nearest() {
    let cases = [
        ("--modle-repository=x", "'--model-repository'"),
        ("--grpc-prot=1", "'--grpc-port'"),
        ("--log-verbos=1", "'--log-verbose'"),
        ("--backend-confg=x", "'--backend-config'"),
        ("--cpu-lane=1", "'--cpu-lanes'"),
    ];
    for (flag, nearest) in cases {
        let message = refusal(&[flag]);
        assert!(message.contains(nearest), "{flag} does not suggest {nearest}:\n{message}");
    }
}

#[test]
fn combinations_that_cannot_work_name_their_flags() {
    let cases: [(&[&str], &str); 14] = [
        (&["--timeline-events=9"], "--timeline-file <FILE>"),
        (&["--idle-unload-secs=5"], "--idle-unload-secs needs --model-control-mode=on-demand"),
        (&["--load-model=a"], "--load-model needs --model-control-mode=explicit"),
        (
            &["--model-control-mode=explicit", "--load-model=*", "--load-model=a"],
            "--load-model=* cannot stand beside another --load-model",
        ),
        (&["--grpc-use-ssl"], "--grpc-use-ssl needs --grpc-server-cert"),
        (&["--grpc-use-ssl", "--grpc-server-cert=c"], "--grpc-use-ssl needs --grpc-server-key"),
        (
            &["--grpc-use-ssl-mutual", "--grpc-server-cert=c", "--grpc-server-key=k"],
            "--grpc-use-ssl-mutual needs --grpc-root-cert",
        ),
        (&["--http-use-ssl", "--http-server-cert=c"], "--http-use-ssl needs --http-server-key"),
        (
            &["--http-use-ssl-mutual", "--http-server-cert=c", "--http-server-key=k"],
            "--http-use-ssl-mutual needs --http-root-cert",
        ),
        (&["--http-port=8001"], "--grpc-port and --http-port are both 8001 on 0.0.0.0"),
        (&["--metrics-port=8000"], "--http-port and --metrics-port are both 8000 on 0.0.0.0"),
        (&["--grpc-address=unix:/a", "--http-address=unix:/a"], "--grpc-address and --http-address are both unix:/a"),
        (&["--allow-grpc=0", "--allow-http=0"], "one of --allow-grpc and --allow-http must be true"),
        (
            &["--http-address=localhost", "--metrics-port=8000"],
            "--http-port and --metrics-port are both 8000 on 127.0.0.1",
        ),
    ];
    for (flags, expected) in cases {
        let message = refusal(flags);
        assert!(message.contains(expected), "{flags:?} says:\n{message}");
    }
    serve(&["--grpc-port=0", "--http-port=0", "--metrics-port=0"]);
    serve(&["--http-port=8001", "--allow-grpc=false"]);
    serve(&["--http-port=8001", "--grpc-address=127.0.0.1"]);
    serve(&["--http-address=unix:/a", "--grpc-address=unix:/b", "--grpc-port=8000"]);
    let socket = serve(&["--http-address=unix:/a"]);
    assert_eq!(socket.metrics_address(), &Host::LOOPBACK, "metrics stay on this machine");
}

#[test]
fn serve_is_meant_where_the_first_word_is_a_flag_or_tritonserver() {
    for words in [
        &["paternoster", "--model-repository", "m"][..],
        &["paternoster", "serve", "--model-repository", "m"],
        &["paternoster", "tritonserver", "--model-store=m"],
        &["paternoster", "tritonserver", "--model-repository=m"],
    ] {
        let parsed = parse_words(words).unwrap_or_else(|error| panic!("{words:?} refused: {error}"));
        let Command::Serve(args) = parsed else { panic!("{words:?} read as another subcommand") };
        assert_eq!(args.repository.directories, ["m"], "{words:?}");
    }
}

#[test]
fn other_subcommands_are_reached_by_their_word() {
    let parsed = parse_words(&["paternoster", "models", "--list"]).expect("models takes --list");
    assert!(matches!(parsed, Command::Tool(Tool::Models(args)) if args.list));
    let words = ["paternoster", "timeline", "trace.json", "--svg=out.svg", "--from", "1.5"];
    let parsed = parse_words(&words).expect("timeline takes a file and where to draw it");
    assert!(matches!(parsed, Command::Tool(Tool::Timeline(args)) if args.from == Some(1.5) && args.to.is_none()));
    let message = parse_words(&["paternoster", "--list"]).expect_err("a flag alone belongs to serve").to_string();
    assert!(message.contains("paternoster serve"), "{message}");
}

#[test]
fn help_shows_examples_and_not_the_flags_without_meaning() {
    let help = |words: &[&str]| {
        let shown = parse_words(words).expect_err("help is not a command");
        assert_eq!(shown.kind(), ErrorKind::DisplayHelp, "{words:?}");
        shown.to_string()
    };
    let serve = help(&["paternoster", "serve", "--help"]);
    assert!(serve.contains("Examples:"), "{serve}");
    assert!(serve.contains("--model-repository"), "{serve}");
    assert!(!serve.contains("--backend-directory"), "{serve}");
    assert_eq!(help(&["paternoster", "tritonserver", "--help"]), serve);
    assert!(help(&["paternoster", "--help"]).contains("Commands:"), "help of the program lists its commands");
}

#[test]
fn without_a_repository_its_flag_is_asked_for() {
    for words in [&["paternoster", "serve"][..], &["paternoster", "tritonserver"]] {
        let message = parse_words(words).expect_err("a repository is needed").to_string();
        assert!(message.contains("--model-repository"), "{message}");
    }
}

#[test]
fn values_reach_their_fields() {
    let args = serve(&[
        "--model-store=more",
        "--model-control-mode=explicit",
        "--load-model",
        "a",
        "--load-model=b",
        "--grpc-address",
        "::1",
        "--http-address=localhost",
        "--metrics-port=9",
        "--log-verbose=true",
        "--log-format=iso8601",
        "--exit-timeout-secs",
        "5",
        "--drain-delay-secs=2",
        "--cpu-lanes=3",
        "--task-time-limit-secs=600",
        "--last-lane-limit-ms=20",
        "--cpu-threads",
        "4",
        "--onnxruntime-library=lib.so",
        "--timeline-file=trace.json",
        "--timeline-events=500",
        "--id=west",
        "--strict-model-config=true",
    ]);
    assert_eq!(args.repository.directories, ["models", "more"], "both names of the flag fill one list, in order");
    assert_eq!(args.repository.control_mode, ControlModeFlag::Explicit);
    assert_eq!(args.repository.load_models, ["a", "b"]);
    assert_eq!(args.grpc.grpc_address, Host::Ip("::1".parse().expect("an address")));
    assert_eq!(args.metrics_address(), &Host::LOOPBACK, "metrics listen where HTTP does");
    assert_eq!(args.http.metrics_port, 9);
    assert_eq!(args.log.verbose_level, 1);
    assert_eq!(serve(&["--log-verbose=10"]).log.verbose_level, 3, "as much as there is");
    assert_eq!(args.log.format, paternoster_observe::LogFormat::Iso8601);
    assert_eq!((args.life.exit_timeout_secs, args.life.drain_delay_secs), (5, 2));
    assert_eq!((args.device.cpu_lanes, args.device.cpu_threads), (3, 4));
    assert_eq!((args.device.task_time_limit_secs, args.device.last_lane_limit_ms), (600, 20));
    assert_eq!(args.device.onnxruntime_library.as_deref(), Some(Path::new("lib.so")));
    assert_eq!((args.timeline.file.as_deref(), args.timeline.events), (Some(Path::new("trace.json")), 500));
    assert_eq!((args.log_name(), args.server_name()), ("west", "west"));
    assert!(!args.auto_complete(), "a strict configuration is not completed");
    assert!(serve(&["--strict-model-config=false"]).auto_complete());
    assert!(!serve(&["--disable-auto-complete-config"]).auto_complete());
}

#[test]
fn settings_without_effect_are_told_from_those_that_have_one() {
    let flags = [
        "--backend-config=onnxruntime,default-max-batch-size=16",
        "--backend-config=python,shm-default-byte-size=1",
        "--metrics-config",
        "summary_latencies=true",
        "--metrics-config=colour=red",
        "--server-name=edge",
    ];
    let args = serve(&flags);
    assert_eq!((args.default_max_batch_size(), args.server_name(), args.log_name()), (16, "edge", "paternoster"));
    assert!(args.latency_metrics().summaries);
    let idle: Vec<String> = args.idle_settings().into_iter().map(|(setting, _)| setting).collect();
    assert_eq!(idle, ["--backend-config=python,shm-default-byte-size=1", "--metrics-config=colour=red"]);
    let refused = parse_words(&["paternoster", "--model-repository=m", "--metrics-config=summary_quantiles=0.5"]);
    assert!(refused.is_err_and(|error| error.to_string().contains("QUANTILE:ERROR")));
}

#[test]
fn defaults_are_tritons_but_for_exit_on_error() {
    let args = serve(&[]);
    assert_eq!((args.grpc.grpc_port, args.http.http_port, args.http.metrics_port), (8001, 8000, 8002));
    assert!(args.grpc.allow_grpc && args.http.allow_http && args.http.allow_metrics);
    assert_eq!(args.grpc.grpc_address.to_string(), "0.0.0.0");
    assert_eq!(args.life.exit_timeout_secs, 30);
    assert_eq!((args.server_name(), args.default_max_batch_size()), ("triton", 4));
    assert_eq!(args.latency_metrics(), paternoster_observe::LatencyMetrics::default());
    assert!(!args.life.allow_test_hooks);
    assert_eq!(args.repository.poll_secs, 15);
    assert!(args.auto_complete() && args.repository.strict_readiness && !args.grpc.allow_client_shm);
    assert!(args.log.info && args.log.warning && args.log.error);
    assert_eq!(args.timeline.file, None, "nothing is recorded unless it is asked for");
}
