//! Flags that limit what clients may use, and the budgets derived from them and from the machine.

use clap::Args;
use paternoster_frontend::ClientLimit;
use paternoster_observe::budget::{Budget, Budgets, DEFAULT_REQUESTS};

/// Memory of the machine if it is unknown.
const FALLBACK_MEMORY_BYTES: u64 = 4 << 30;

/// Memory of a server without requests, apart from the weights of its models.
const RESTING_BYTES: u64 = 256 << 20;

/// At least this part of the memory is for pending requests, even in a small container.
const LEAST_PART: u64 = 16;

/// Open files if the system's limit is unknown.
const FALLBACK_FILES: u64 = 1024;

/// Upper bounds of the defaults for connections.
const MOST_GRPC_CONNECTIONS: u64 = 16 << 10;
const MOST_HTTP_CONNECTIONS: u64 = 1024;

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Limits")]
#[allow(missing_docs)]
pub struct LimitArgs {
    /// Limit on pending inference requests; further ones are rejected as UNAVAILABLE
    #[arg(long = "max-pending-requests", value_name = "N", default_value_t = DEFAULT_REQUESTS as u64)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=MOST))]
    pub pending_requests: u64,

    /// Limit on the bytes of pending requests: received, decoded, and kept between cells, which may use half. One
    /// connection may use a quarter, and an eighth is reserved for requests of up to 64 KiB. Requests without room wait
    /// for two seconds and are then rejected as RESOURCE_EXHAUSTED. 0 uses half of the memory that this process may use
    /// beyond 256 MiB, and at least a sixteenth of all
    #[arg(long = "max-pending-bytes", value_name = "BYTES", default_value_t = 0)]
    #[arg(value_parser = clap::value_parser!(u64).range(..=MOST))]
    pub pending_bytes: u64,

    /// Limit on the memory of models and configurations that clients send: what opening them takes at most, as measured
    /// in a separate process, and what they keep while they are loaded. A load without room is rejected. 0 uses a
    /// quarter of the memory available to this process
    #[arg(long = "max-sent-model-bytes", value_name = "BYTES", default_value_t = 0)]
    #[arg(value_parser = clap::value_parser!(u64).range(..=MOST))]
    pub sent_model_bytes: u64,

    /// Limit on the calls for inference that one client has in progress; further ones wait before they are read.
    /// Clients are told apart by address=N, certificate=N (the subject) or header:NAME=N (its value). Without this
    /// there is no limit
    #[arg(long = "client-limit", value_name = "KEY=N")]
    pub client: Option<ClientLimit>,

    /// Limit on open gRPC connections; further ones are asked to close (GOAWAY). 0 uses half of the files that this
    /// process may open, at most 16384
    #[arg(long = "grpc-max-connections", value_name = "N", default_value_t = 0)]
    #[arg(value_parser = clap::value_parser!(u64).range(..=MOST))]
    pub grpc_connections: u64,

    /// Limit on open connections of the HTTP port, and of the metrics port; further ones get 503 Service Unavailable. 0
    /// uses an eighth of the files that this process may open, at most 1024
    #[arg(long = "http-max-connections", value_name = "N", default_value_t = 0)]
    #[arg(value_parser = clap::value_parser!(u64).range(..=MOST))]
    pub http_connections: u64,
}

/// Largest value of any limit.
const MOST: u64 = 1 << 62;

/// Returns the budgets of a server with these flags on this machine.
///
/// # Errors
/// Fails if the connections that the flags allow may need more files than this process may open.
pub(super) fn budgets(args: &LimitArgs) -> Result<Budgets, String> {
    let memory = || paternoster_observe::memory_bytes().unwrap_or(FALLBACK_MEMORY_BYTES);
    let (grpc, http) = connections(args, paternoster_observe::open_files_limit().unwrap_or(FALLBACK_FILES))?;
    Ok(Budgets {
        bytes: Budget::of_bytes(or(args.pending_bytes, || pending_bytes(memory()))),
        requests: Budget::of(or(args.pending_requests, || 1)),
        sent_model_bytes: Budget::of(or(args.sent_model_bytes, || memory() / 4)),
        grpc_connections: Budget::of(grpc),
        http_connections: Budget::of(http),
        metrics_connections: Budget::of(http),
    })
}

/// Checks that clients can be told apart. `ports` says of the ports for inference whether they ask for certificates.
///
/// # Errors
/// Fails if certificates tell clients apart and no port asks for them.
pub(super) fn check_client(args: &LimitArgs, ports: [bool; 2]) -> Result<(), String> {
    if args.client.as_ref().is_some_and(ClientLimit::needs_certificates) && !ports.contains(&true) {
        let message = "--client-limit=certificate needs a port that asks for certificates: --grpc-use-ssl-mutual or \
                       --http-use-ssl-mutual";
        return Err(message.to_owned());
    }
    Ok(())
}

/// Returns the connections of the gRPC port, and of the HTTP and the metrics port each. A quarter of the files is kept
/// for models, logs and traces.
fn connections(args: &LimitArgs, files: u64) -> Result<(usize, usize), String> {
    let most = files - files / 4;
    let (grpc, http) = (args.grpc_connections, args.http_connections);
    let given = http.saturating_mul(2).saturating_add(grpc);
    if given > most {
        return Err(format!(
            "--grpc-max-connections={grpc} and --http-max-connections={http}, which the metrics port has too, need \
             {given} open files: expected at most {most}, three quarters of those that this process may open (ulimit \
             -n)"
        ));
    }
    // What is not given takes no more than the others leave.
    let grpc = or(grpc, || (files / 2).min(MOST_GRPC_CONNECTIONS).min(most - given));
    let left = most.saturating_sub(grpc as u64);
    Ok((grpc, or(http, || (files / 8).min(MOST_HTTP_CONNECTIONS).min(left / 2))))
}

/// Returns the default of `--max-pending-bytes`. A request that runs is in memory twice, as it was received and in its
/// batch, so pending requests get half of what the server itself does not need.
fn pending_bytes(memory: u64) -> u64 {
    (memory.saturating_sub(RESTING_BYTES) / 2).max(memory / LEAST_PART)
}

/// Returns the given value or, if it is 0, one derived from the machine.
fn or(given: u64, suggested: impl FnOnce() -> u64) -> usize {
    let chosen = if given > 0 { given } else { suggested().max(1) };
    usize::try_from(chosen).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::{super::tests::serve, *};

    #[test]
    fn flags_set_the_budgets() {
        let flags = [
            "--max-pending-requests=7",
            "--max-pending-bytes=4096",
            "--max-sent-model-bytes=8192",
            "--grpc-max-connections=5",
            "--http-max-connections=3",
        ];
        let budgets = budgets(&serve(&flags).limits).expect("so many files may be open");
        let Budgets { bytes, requests, sent_model_bytes, .. } = &budgets;
        assert_eq!([bytes, requests, sent_model_bytes].map(|budget| budget.capacity()), [4096, 7, 8192]);
        let Budgets { grpc_connections, http_connections, metrics_connections, .. } = budgets;
        let connections = [grpc_connections, http_connections, metrics_connections];
        assert_eq!(connections.map(|budget| budget.capacity()), [5, 3, 3]);
    }

    #[test]
    fn a_request_fits_twice_beside_a_server_at_rest() {
        for (memory_mib, expected_mib) in [(128, 8), (256, 16), (512, 128), (1024, 384), (16 << 10, 8064)] {
            let bytes = pending_bytes(memory_mib << 20);
            assert_eq!(bytes >> 20, expected_mib, "{memory_mib} MiB");
        }
    }

    #[test]
    fn without_flags_the_machine_decides() {
        let budgets = budgets(&serve(&[]).limits).expect("there are files for the defaults");
        assert_eq!(budgets.requests.capacity(), DEFAULT_REQUESTS);
        let memory = paternoster_observe::memory_bytes().expect("Linux") as usize;
        assert_eq!(
            (budgets.bytes.capacity(), budgets.sent_model_bytes.capacity()),
            ((memory - (256 << 20)) / 2, memory / 4)
        );
        let files = paternoster_observe::open_files_limit().expect("Linux") as usize;
        let connections = budgets.grpc_connections.capacity() + 2 * budgets.http_connections.capacity();
        assert!(connections < files, "{connections} connections with {files} files leave some for models");
    }

    #[test]
    fn connections_leave_files_whatever_flags_are_given() {
        let of = |flags: &[&str], files| connections(&serve(flags).limits, files);
        assert_eq!(of(&[], 1024), Ok((512, 128)));
        assert_eq!(of(&[], 1 << 20), Ok((16_384, 1024)));
        assert_eq!(of(&["--grpc-max-connections=700"], 1024), Ok((700, 34)), "the others have what is left");
        assert_eq!(of(&["--http-max-connections=300"], 1024), Ok((168, 300)));
        assert_eq!(of(&["--grpc-max-connections=568", "--http-max-connections=100"], 1024), Ok((568, 100)));
        let refused = of(&["--grpc-max-connections=569", "--http-max-connections=100"], 1024).unwrap_err();
        assert!(refused.contains("need 769 open files: expected at most 768"), "{refused}");
    }
}
