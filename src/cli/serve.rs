//! `paternoster serve`: a process that serves until a signal stops it.

use std::{io, num::NonZero, sync::Arc, thread};

use parking_lot::Mutex;
use paternoster_executor::Pool;
use paternoster_frontend::Certificates;
use paternoster_observe::{LogStartError, Logging, budget::Budgets};
use paternoster_repository::Startup;
use tokio::{
    runtime,
    signal::unix::{Signal, SignalKind, signal},
};
use tracing::{error, info, warn};

use super::{
    FAILURE, LifeArgs, SUCCESS, ServeArgs,
    hooks::{self, InvalidHook},
    limits, options,
    pool::start_pool,
    recording::{TimelineRecording, UnwritableTimeline},
    server::{Ending, Server, StartError, StartedPool},
};

/// Why the process ends without having served.
#[derive(Debug, thiserror::Error)]
enum ServeError {
    #[error(transparent)]
    Log(#[from] LogStartError),
    #[error(transparent)]
    Timeline(#[from] UnwritableTimeline),
    #[error(transparent)]
    Hook(#[from] InvalidHook),
    #[error("cannot start the devices: {0}")]
    Devices(io::Error),
    #[error("cannot start threads: {0}")]
    Threads(io::Error),
    #[error("cannot listen for signals: {0}")]
    Signals(io::Error),
    #[error(transparent)]
    Start(#[from] StartError),
}

/// Exit status after a panic of the scheduler: EX_SOFTWARE of sysexits.h.
pub(super) const EXIT_FAULT: u8 = 70;

/// Bytes of the stack of a thread of the runtime, by default.
const STACK_BYTES: usize = 2 << 20;

/// Threads for blocking work without which nothing can be loaded.
const BLOCKING_THREADS: usize = 1;

/// Runs the server until a signal or a failure of the scheduler ends it.
///
/// The exit status is 0 if everything in flight ended in time, or if the signal came before the ports were open; 1 if
/// the server could not start, exceeded the exit timeout, or got a second signal; 70 if the scheduler panicked.
pub(super) fn run(args: ServeArgs) -> u8 {
    started(&args, until_ended)
}

/// Loads the models and prints which can be served. The exit status is 0 if all can, and there are any.
pub(super) fn check(args: &ServeArgs) -> u8 {
    started(args, until_checked)
}

/// Calls `then` with a pool of devices; returns its exit status, or 1 if it or the pool cannot start.
fn started(
    args: &ServeArgs,
    then: impl AsyncFnOnce(&ServeArgs, Logging, Budgets, StartedPool) -> Result<u8, ServeError>,
) -> u8 {
    let log_goes_elsewhere = args.log.file.is_some() || !args.log.error;
    match start(args, then) {
        Ok(code) => code,
        Err(failure) => {
            error!(error = %failure, "the server cannot start");
            let unlogged = log_goes_elsewhere || matches!(failure, ServeError::Log(_));
            if unlogged {
                eprintln!("error: {failure}");
            }
            FAILURE
        }
    }
}

fn start(
    args: &ServeArgs,
    then: impl AsyncFnOnce(&ServeArgs, Logging, Budgets, StartedPool) -> Result<u8, ServeError>,
) -> Result<u8, ServeError> {
    let log = Logging::start(options::log(&args.log))?;
    info!(id = args.log_name(), version = env!("CARGO_PKG_VERSION"), "paternoster starts");
    for flag in &args.ignored {
        warn!(flag = flag.name, reason = flag.why, "flag has no effect");
    }

    for (setting, reason) in args.idle_settings() {
        warn!(setting, reason, "setting has no effect");
    }
    let hold = hooks::HeldSchedulers::read(args.life.allow_test_hooks)?;

    let recording = TimelineRecording::start(&args.timeline)?;
    let (isolation, backlog) = (options::isolation(&args.repository, args.start_cache()), options::backlog(&args.grpc));
    let trial_time = options::trial_time(&args.repository);
    let budgets = limits::budgets(&args.limits).map_err(StartError::Limits)?;
    let shared = (Arc::clone(&budgets.bytes), backlog, args.rate.amounts());
    let pool = start_pool((&args.device, &args.cuda()), shared, recording, |loader| {
        let loader = loader.with_isolation(isolation).with_trial_time(trial_time);
        let loader =
            loader.with_latencies(args.latency_metrics()).with_held_schedulers(hold.until_waiting, hold.until_backlog);
        args.auto.apply(loader, args.profile_directory())
    });
    let pool = pool.map_err(ServeError::Devices)?;
    let workers = thread::available_parallelism().map_or(1, NonZero::get);
    check_threads(workers + BLOCKING_THREADS, STACK_BYTES).map_err(ServeError::Threads)?;
    let runtime = runtime::Builder::new_multi_thread().enable_all().thread_name("paternoster-io").build();
    let runtime = runtime.map_err(ServeError::Threads)?;
    let ended = runtime.block_on(then(args, log, budgets, pool));
    // A model that is still being compiled must not delay the exit.
    runtime.shutdown_background();
    ended
}

/// Checks that threads can be started: the runtime panics if its own cannot, and never ends.
fn check_threads(threads: usize, stack_bytes: usize) -> io::Result<()> {
    let gate = Mutex::new(());
    thread::scope(|scope| {
        // All exist at the same time, since none ends before the gate opens.
        let closed = gate.lock();
        let started = (0..threads).try_for_each(|_| {
            let thread = thread::Builder::new().stack_size(stack_bytes);
            thread.spawn_scoped(scope, || drop(gate.lock())).map(drop)
        });
        drop(closed);
        started
    })
}

async fn until_ended(args: &ServeArgs, log: Logging, budgets: Budgets, pool: StartedPool) -> Result<u8, ServeError> {
    let executor = Arc::clone(&pool.pool);
    let mut signals = Signals::listen().map_err(ServeError::Signals)?;
    // From here on, so that a request to reload does not end a server that starts.
    let hangups = signal(SignalKind::hangup()).map_err(ServeError::Signals)?;
    let (server, startup) = tokio::select! {
        opened = Server::open(args, log, budgets, pool) => opened?,
        name = signals.next() => {
            info!(signal = name, "the signal came before the ports were open");
            return Ok(SUCCESS);
        }
        () = executor.failed() => return Ok(EXIT_FAULT),
    };
    tokio::spawn(reload_at(hangups, server.certificates()));
    Ok(load_and_serve(server, startup, &executor, args, async || signals.next().await).await?)
}

async fn until_checked(args: &ServeArgs, log: Logging, budgets: Budgets, pool: StartedPool) -> Result<u8, ServeError> {
    let (server, startup) = Server::open(args, log, budgets, pool).await?;
    let are_all_served = server.check_models(args, startup).await?;
    server.shutdown().await;
    Ok(if are_all_served { SUCCESS } else { FAILURE })
}

/// Reads certificates again at each SIGHUP.
async fn reload_at(mut hangups: Signal, certificates: Vec<Arc<Certificates>>) {
    while hangups.recv().await.is_some() {
        info!(signal = "SIGHUP", ports = certificates.len(), "certificates of ports with TLS are read again");
        for one in &certificates {
            one.reload().await;
        }
    }
}

/// Loads the models of a server whose ports are open, and serves until a signal or a failure of the scheduler ends it.
///
/// # Errors
/// Fails if a model fails that must load.
pub(super) async fn load_and_serve(
    server: Server,
    startup: Startup,
    executor: &Pool,
    args: &ServeArgs,
    mut next_signal: impl AsyncFnMut() -> &'static str,
) -> Result<u8, StartError> {
    tokio::select! {
        loaded = server.load_models(args, startup) => loaded?,
        () = executor.failed() => {}
        name = next_signal() => {
            let exit_timeout_secs = args.life.exit_timeout_secs;
            info!(signal = name, exit_timeout_secs, "the signal came while models were loading; requests are finished");
            return Ok(finish(server.shutdown_early(), executor, next_signal).await);
        }
    }
    Ok(serve_until_ended(server, executor, &args.life, next_signal).await)
}

/// Serves until a signal or a failure of the scheduler ends the server.
pub(super) async fn serve_until_ended(
    server: Server,
    executor: &Pool,
    life: &LifeArgs,
    mut next_signal: impl AsyncFnMut() -> &'static str,
) -> u8 {
    let name = tokio::select! {
        name = next_signal() => name,
        () = executor.failed() => {
            error!("the scheduler has failed: all requests are answered, the server ends");
            server.end_failed().await;
            return EXIT_FAULT;
        }
    };
    let LifeArgs { drain_delay_secs, exit_timeout_secs, .. } = *life;
    info!(signal = name, drain_delay_secs, exit_timeout_secs, "readiness is off; requests are served, then finished");
    finish(server.shutdown(), executor, next_signal).await
}

/// Waits for the end of a shutdown, or for a second signal.
async fn finish(
    shutdown: impl Future<Output = Ending>,
    executor: &Pool,
    mut next_signal: impl AsyncFnMut() -> &'static str,
) -> u8 {
    tokio::select! {
        ending = shutdown => if executor.has_failed() { EXIT_FAULT } else { ended(ending) },
        name = next_signal() => {
            warn!(signal = name, "a second signal ends the server at once");
            FAILURE
        }
    }
}

fn ended(Ending { in_time, is_recorded }: Ending) -> u8 {
    if in_time {
        info!("all requests in flight ended");
    } else {
        warn!("requests still in flight at the exit timeout were cut off");
    }
    if in_time && is_recorded { SUCCESS } else { FAILURE }
}

/// The signals that stop the server.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn listen() -> io::Result<Self> {
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    /// Waits for the next signal and returns its name.
    async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_that_cannot_be_started_are_an_error() {
        assert!(check_threads(3, STACK_BYTES).is_ok());
        let fault = check_threads(3, 1 << 50).map_err(|fault| ServeError::Threads(fault).to_string());
        assert!(fault.as_ref().is_err_and(|text| text.starts_with("cannot start threads: ")), "{fault:?}");
    }
}
