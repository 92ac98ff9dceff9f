//! Opens a model in a separate process before the server does. A model that crashes, hangs or exhausts memory there is
//! rejected with the reason and never reaches the server.
//!
//! The process runs the server's own executable, with [`open_alone`] as its main function. It limits its own resources,
//! reads a [`Trial`] and the files from standard input, compiles every graph as the server would, reports the memory
//! that this took, and exits. While it runs, its memory is taken from the budget of the load.

mod alone;
mod memory;
mod trial;

use std::{
    io::{self, Read, Write},
    os::unix::process::ExitStatusExt,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::mpsc::{self, RecvTimeoutError},
    thread,
    time::{Duration, Instant},
};

use paternoster_config::stages::StageRequest;
use paternoster_observe::budget::Reservation;

pub use self::alone::open_alone;
pub(super) use self::trial::MemoryReport;
use self::trial::{REASON_MAX_BYTES, REFUSED, SHORT_OF_MEMORY, Trial};
use super::{CellProgram, LoadAttempt, LoadError, LoadErrorKind, StartCache, attempt::grow};

/// Time between two looks at the memory of the process, and at whether the load has been ended.
const TICK: Duration = Duration::from_millis(20);

/// Which models are opened in a separate process first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IsolationScope {
    /// Models whose files came with a load request.
    Uploaded,
    /// All models.
    All,
}

/// How models are tried in a separate process.
#[derive(Clone, Debug)]
pub struct Isolation {
    /// The executable; run with `arguments`, its main function is [`open_alone`].
    pub program: PathBuf,
    /// Its arguments.
    pub arguments: Vec<String>,
    /// Which models are tried.
    pub scope: IsolationScope,
    /// Limit on the address space of the process.
    pub memory_bytes: u64,
    /// Time limit for opening one model.
    pub time: Duration,
    /// Where it is kept which models of the repository opened, so that they are not tried again.
    pub cache: Option<StartCache>,
}

/// One model that is being tried.
pub(super) struct Trying<'a> {
    pub(super) attempt: &'a LoadAttempt,
    /// What is reserved for it. `None` if nothing is.
    pub(super) memory: Option<Reservation>,
}

impl Trying<'_> {
    /// Reserves memory up to `bytes` in all.
    ///
    /// # Errors
    /// Returns the reason if there is no room.
    pub(super) fn hold(&mut self, bytes: usize) -> Result<(), LoadError> {
        let Some(memory) = &mut self.memory else { return Ok(()) };
        match bytes.checked_sub(memory.amount()) {
            Some(more) => grow(memory, more),
            None => {
                memory.shrink_to(bytes);
                Ok(())
            }
        }
    }

    /// Checks that the process may go on, and reserves the memory that it has now.
    fn look(&mut self, process: u32) -> Result<(), LoadError> {
        self.attempt.check()?;
        let now = memory::of_process(process).map_or(0, |memory| memory.anonymous_bytes);
        let held = self.memory.as_ref().map_or(0, Reservation::amount);
        // Never less than before, since the peak counts.
        self.hold(now.max(held))
    }
}

/// A child process that is killed and reaped when dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // Kill fails if the process has already exited; wait reaps it in either case.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Isolation {
    pub(super) fn covers(&self, program: &CellProgram) -> bool {
        self.scope == IsolationScope::All || program.bytes.is_some()
    }

    /// Opens a program in a separate process. `graph` is the content of its file; `library` is the engine's shared
    /// library. Returns the memory that it took.
    ///
    /// # Errors
    /// Returns the reason if the model cannot be opened or exceeds a limit, with the flag that sets the limit, or if
    /// the load is ended early.
    pub(super) fn try_open(
        &self,
        library: &Path,
        program: &CellProgram,
        graph: &[u8],
        stages: &StageRequest,
        trying: &mut Trying<'_>,
    ) -> Result<MemoryReport, LoadError> {
        let failed =
            |error: io::Error| LoadError::internal(format!("cannot open the model in a separate process: {error}"));
        let (trial, parts) = Trial::new(self, library, program, graph, stages).map_err(failed)?;
        let mut command = Command::new(&self.program);
        // The trial has absolute paths only, so the working directory does not matter.
        command.args(&self.arguments).current_dir("/");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let began = Instant::now();
        let mut running = Running(command.spawn().map_err(failed)?);
        let (input, output) = (running.0.stdin.take(), running.0.stdout.take());
        let (Some(mut input), Some(output)) = (input, output) else {
            return Err(failed(io::ErrorKind::BrokenPipe.into()));
        };
        // Two threads, since a child that fills its output before it has read all input would deadlock a single one.
        let (answer, answered) = mpsc::channel();
        thread::scope(|scope| {
            scope.spawn(move || {
                // A write error is ignored: a process that exits before reading everything reports the reason in its
                // status.
                let _ = trial.write(&mut input).and_then(|()| parts.iter().try_for_each(|part| input.write_all(part)));
            });
            scope.spawn(move || {
                let mut reason = Vec::new();
                let read = output.take(REASON_MAX_BYTES).read_to_end(&mut reason).map(|_| reason);
                // The receiver is gone once the time limit has passed.
                let _ = answer.send(read);
            });
            let answer = loop {
                match answered.recv_timeout(TICK.min(self.time)) {
                    Err(RecvTimeoutError::Timeout) if began.elapsed() < self.time => trying.look(running.0.id())?,
                    answer => break answer,
                }
            };
            let ended = match answer {
                // Output closes when the process exits, or shortly before; the exit status may need another moment.
                Ok(reason) => {
                    let status = until(began + self.time, || running.0.try_wait());
                    status.map(|status| status.map(|status| (status, reason)))
                }
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => Ok(None),
            };
            // Killing the process closes both pipes, which ends the threads that the scope waits for.
            drop(running);
            match ended.map_err(failed)? {
                Some((status, reason)) => self.judge(status, &reason.map_err(failed)?),
                None => {
                    let seconds = self.time.as_secs();
                    let message = format!(
                        "opening it in a separate process took longer than {seconds} s \
                         (--isolate-model-load-timeout-secs)"
                    );
                    Err(LoadError::new(LoadErrorKind::TimedOut, message))
                }
            }
        })
    }

    /// Returns the memory that a process reported, or why it ended otherwise.
    fn judge(&self, status: ExitStatus, answer: &[u8]) -> Result<MemoryReport, LoadError> {
        if status.success() {
            let unread =
                |error| LoadError::internal(format!("the separate process that opened it reported no memory: {error}"));
            return serde_json::from_slice(answer).map_err(unread);
        }
        let code = status.code().and_then(|code| u8::try_from(code).ok());
        if code == Some(REFUSED) || code == Some(SHORT_OF_MEMORY) {
            let reason = String::from_utf8_lossy(answer).into_owned();
            if code == Some(REFUSED) {
                return Err(LoadError::engine(reason));
            }
            let limit = format!("; it had {} bytes (--isolate-model-load-memory-bytes)", self.memory_bytes);
            return Err(LoadError::new(LoadErrorKind::Limit, reason + &limit));
        }
        let ended = match status.signal() {
            Some(signal) => format!("was ended by signal {signal}{}", signal_name(signal)),
            None => format!("ended with {status}"),
        };
        let (memory, seconds) = (self.memory_bytes, self.time.as_secs());
        Err(LoadError::engine(format!(
            "the separate process that opened it {ended}; its limits are {memory} bytes \
             (--isolate-model-load-memory-bytes) and {seconds} s (--isolate-model-load-timeout-secs)"
        )))
    }
}

/// Calls `ask` until it returns a value or the deadline passes.
#[expect(clippy::disallowed_methods, reason = "whether a process has ended is asked for, since no signals are handled")]
fn until<T>(deadline: Instant, mut ask: impl FnMut() -> io::Result<Option<T>>) -> io::Result<Option<T>> {
    loop {
        match ask()? {
            None if Instant::now() < deadline => thread::sleep(Duration::from_millis(1)),
            answer => return Ok(answer),
        }
    }
}

fn signal_name(signal: i32) -> &'static str {
    match signal {
        libc::SIGABRT => " (SIGABRT)",
        libc::SIGBUS => " (SIGBUS)",
        libc::SIGFPE => " (SIGFPE)",
        libc::SIGILL => " (SIGILL)",
        libc::SIGKILL => " (SIGKILL)",
        libc::SIGSEGV => " (SIGSEGV)",
        libc::SIGXCPU => " (SIGXCPU)",
        _ => "",
    }
}

#[cfg(test)]
mod tests;
