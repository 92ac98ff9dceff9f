//! Opens a model in a process of its own before the server does: what crashes, hangs or takes all memory there is
//! refused with the reason, and never reaches the server.
//!
//! The process is the server's own program, run again: [`open_alone`] is its main function then. It limits itself,
//! reads a [`Trial`] and the files from its standard input, compiles every graph as the server would, and ends.

mod alone;
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

pub use self::alone::open_alone;
use self::trial::{REASON_MAX_BYTES, REFUSED, Trial};
use super::{CellProgram, StageRequest};

/// Which models are opened in a process of their own first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IsolationScope {
    /// Those whose files came with a load request.
    Uploaded,
    /// All.
    All,
}

/// How models are tried in a process of their own.
#[derive(Clone, Debug)]
pub struct Isolation {
    /// The program to run; with `arguments`, its main function is [`open_alone`].
    pub program: PathBuf,
    /// Its arguments.
    pub arguments: Vec<String>,
    /// Which models.
    pub scope: IsolationScope,
    /// Address space of the process.
    pub memory_bytes: u64,
    /// Time for opening one model.
    pub time: Duration,
}

/// A process that ends with this value.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended; either way nothing of it is left.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Isolation {
    pub(super) fn covers(&self, program: &CellProgram) -> bool {
        self.scope == IsolationScope::All || program.bytes.is_some()
    }

    /// Opens a program in a process of its own; `graph` is its file's content, `library` its
    /// engine's.
    ///
    /// # Errors
    /// When it cannot be opened, or not within the limits; with the reason, and the flag of the limit.
    pub(super) fn try_open(
        &self,
        library: &Path,
        program: &CellProgram,
        graph: &[u8],
        stages: &StageRequest,
    ) -> Result<(), String> {
        let failed = |error: io::Error| format!("cannot open the model in a process of its own: {error}");
        let (trial, parts) = Trial::new(self, library, program, graph, stages).map_err(failed)?;
        let mut command = Command::new(&self.program);
        command.args(&self.arguments).current_dir("/");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let began = Instant::now();
        let mut running = Running(command.spawn().map_err(failed)?);
        let (input, output) = (running.0.stdin.take(), running.0.stdout.take());
        let (Some(mut input), Some(output)) = (input, output) else {
            return Err(failed(io::ErrorKind::BrokenPipe.into()));
        };
        let (answer, answered) = mpsc::channel();
        thread::scope(|scope| {
            scope.spawn(move || {
                // A process that ends before it has read everything says why in its status.
                let _ = trial.write(&mut input).and_then(|()| parts.iter().try_for_each(|part| input.write_all(part)));
            });
            scope.spawn(move || {
                let mut reason = Vec::new();
                let read = output.take(REASON_MAX_BYTES).read_to_end(&mut reason).map(|_| reason);
                // The other end waits no longer than the time limit.
                let _ = answer.send(read);
            });
            let ended = match answered.recv_timeout(self.time) {
                // It closes its output when it ends, and has a moment left to be gone.
                Ok(reason) => {
                    let status = until(began + self.time, || running.0.try_wait());
                    status.map(|status| status.map(|status| (status, reason)))
                }
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => Ok(None),
            };
            // Ends the threads, too, which wait for it.
            drop(running);
            match ended.map_err(failed)? {
                Some((status, reason)) => self.judge(status, &reason.map_err(failed)?),
                None => {
                    let seconds = self.time.as_secs();
                    Err(format!(
                        "opening it in a process of its own took longer than {seconds} s (--isolate-model-load-timeout-secs)"
                    ))
                }
            }
        })
    }

    fn judge(&self, status: ExitStatus, reason: &[u8]) -> Result<(), String> {
        if status.success() {
            return Ok(());
        }
        if status.code() == Some(REFUSED) {
            let reason = String::from_utf8_lossy(reason).into_owned();
            // The engines' ways to say so.
            let was_short = reason.contains("bad_alloc") || reason.contains("Failed to allocate");
            let limit = format!("; it had {} bytes (--isolate-model-load-memory-bytes)", self.memory_bytes);
            return Err(if was_short { reason + &limit } else { reason });
        }
        let ended = match status.signal() {
            Some(signal) => format!("was ended by signal {signal}{}", signal_name(signal)),
            None => format!("ended with {status}"),
        };
        let (memory, seconds) = (self.memory_bytes, self.time.as_secs());
        Err(format!(
            "a process of its own, which opened it, {ended}; its limits are {memory} bytes \
             (--isolate-model-load-memory-bytes) and {seconds} s (--isolate-model-load-timeout-secs)"
        ))
    }
}

/// Asks until there is an answer or the time has come.
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
