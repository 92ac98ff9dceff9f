//! Flags of tritonserver that have no meaning here. They are accepted, so that the binary can be replaced without
//! changing its arguments, and a warning names each.

use clap::{Arg, ArgAction, ArgMatches, Command, parser::ValueSource};

/// A flag that is accepted without effect.
#[derive(Debug, PartialEq, Eq)]
pub struct Ignored {
    /// Its name without the dashes.
    pub name: &'static str,
    /// Why it has no effect.
    pub why: &'static str,
}

pub(super) const BACKENDS: &str = "there are no loadable backends";
const CARD_MEMORY: &str = "each model reserves its own memory of a card";
const HEADERS: &str = "headers are not forwarded to models";
const OTHER_FRONTS: &str = "there is no such endpoint";
const PINGS: &str = "the HTTP/2 library has its own rule for pings";
const PORTS: &str = "ports are not shared between servers";
const THREADS: &str = "one pool of threads serves everything";

/// All flags of tritonserver on which `serve` does not act.
pub const IGNORED: &[Ignored] = &[
    Ignored { name: "allow-sagemaker", why: OTHER_FRONTS },
    Ignored { name: "allow-vertex-ai", why: OTHER_FRONTS },
    Ignored { name: "backend-directory", why: BACKENDS },
    Ignored { name: "buffer-manager-thread-count", why: THREADS },
    Ignored { name: "cuda-memory-pool-byte-size", why: CARD_MEMORY },
    Ignored { name: "cuda-virtual-address-size", why: CARD_MEMORY },
    Ignored { name: "enable-peer-access", why: "cards do not read each other's memory" },
    Ignored { name: "grpc-header-forward-pattern", why: HEADERS },
    Ignored { name: "grpc-http2-max-ping-strikes", why: PINGS },
    Ignored { name: "grpc-http2-max-pings-without-data", why: PINGS },
    Ignored { name: "grpc-http2-min-recv-ping-interval-without-data", why: PINGS },
    Ignored { name: "grpc-infer-allocation-pool-size", why: "requests are not pooled" },
    Ignored { name: "grpc-infer-thread-count", why: THREADS },
    Ignored { name: "grpc-keepalive-permit-without-calls", why: PINGS },
    Ignored { name: "grpc-max-response-pool-size", why: "responses are not pooled" },
    Ignored { name: "host-policy", why: THREADS },
    Ignored { name: "http-header-forward-pattern", why: HEADERS },
    Ignored { name: "http-thread-count", why: THREADS },
    Ignored { name: "min-supported-compute-capability", why: "--device names the cards that are used" },
    Ignored { name: "model-load-gpu-limit", why: CARD_MEMORY },
    Ignored { name: "model-load-retry-count", why: "a load is not retried" },
    Ignored { name: "model-namespacing", why: "model names are one namespace" },
    Ignored { name: "pinned-memory-pool-byte-size", why: CARD_MEMORY },
    Ignored { name: "repoagent-directory", why: "there are no repository agents" },
    Ignored { name: "reuse-grpc-port", why: PORTS },
    Ignored { name: "reuse-http-port", why: PORTS },
    Ignored { name: "sagemaker-port", why: OTHER_FRONTS },
    Ignored { name: "sagemaker-safe-port-range", why: OTHER_FRONTS },
    Ignored { name: "sagemaker-thread-count", why: OTHER_FRONTS },
    Ignored { name: "vertex-ai-default-model", why: OTHER_FRONTS },
    Ignored { name: "vertex-ai-port", why: OTHER_FRONTS },
    Ignored { name: "vertex-ai-thread-count", why: OTHER_FRONTS },
];

/// Adds the flags to a command; each accepts any value or none.
pub(super) fn accept(command: Command) -> Command {
    command.args(IGNORED.iter().map(|flag| {
        let any = Arg::new(flag.name).long(flag.name).num_args(0..=1).default_missing_value("");
        any.action(ArgAction::Append).allow_negative_numbers(true).hide(true)
    }))
}

/// Returns the flags that were given.
pub(super) fn given(matches: &ArgMatches) -> Vec<&'static Ignored> {
    let on_command_line = |flag: &&Ignored| matches.value_source(flag.name) == Some(ValueSource::CommandLine);
    IGNORED.iter().filter(on_command_line).collect()
}
