//! Where traces go.

use std::{
    io,
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use rustix::time::{ClockId, clock_gettime};

use super::{
    export::{ExportedTrace, TraceExport},
    file::TraceFiles,
    record::TraceRecord,
    stats::TraceStats,
    triton,
};

/// The destination of a server's traces.
#[derive(Debug)]
pub(super) enum Sink {
    /// Triton's JSON.
    Files {
        /// The writer of the files.
        files: TraceFiles,
        /// An instant, and the monotonic clock at that instant.
        clock: (Instant, u64),
    },
    /// Spans, which an exporter makes.
    Export(Arc<dyn TraceExport>),
}

impl Sink {
    /// Starts writing files.
    ///
    /// # Errors
    /// If the thread that writes cannot be started.
    pub(super) fn files(file: PathBuf, stats: &Arc<TraceStats>) -> io::Result<Self> {
        let files = TraceFiles::start(file, Arc::clone(stats))?;
        Ok(Self::Files { files, clock: (Instant::now(), monotonic_ns()) })
    }

    /// Starts the root span of a request, if spans are exported.
    pub(super) fn begin(&self, record: &TraceRecord) -> Option<Box<dyn ExportedTrace>> {
        match self {
            Self::Files { .. } => None,
            Self::Export(export) => Some(export.begin(&record.head, record.transport)),
        }
    }

    /// Takes the record of a request that has ended, with its root span.
    pub(super) fn take(&self, record: &TraceRecord, root: Option<Box<dyn ExportedTrace>>) {
        let mut progress = record.progress.lock();
        match self {
            Self::Files { files, clock } => {
                let mut objects = triton::objects(record, &progress, |at| monotonic(*clock, at));
                objects.append(&mut progress.ended_steps);
                files.write(objects, record.log_frequency);
            }
            Self::Export(_) => {
                if let Some(root) = root {
                    root.end(record, &progress);
                }
            }
        }
    }

    /// Takes the record of a request that has ended and is a step of a client's. Both are written together.
    pub(super) fn take_step(&self, record: &TraceRecord, whole: &TraceRecord) {
        if let Self::Files { clock, .. } = self {
            let objects = triton::objects(record, &record.progress.lock(), |at| monotonic(*clock, at));
            whole.progress.lock().step_ended(&objects);
        }
    }

    /// Counts a trace that is not written.
    pub(super) fn lose(&self) {
        if let Self::Files { files, .. } = self {
            files.lose();
        }
    }

    /// Returns once all previous traces are delivered or lost.
    pub(super) fn flush(&self) {
        match self {
            Self::Files { files, .. } => files.flush(),
            Self::Export(export) => export.flush(),
        }
    }
}

/// Converts an instant to the monotonic clock, given an instant and what that clock showed then.
fn monotonic((instant, ns): (Instant, u64), at: Instant) -> u64 {
    match at.checked_duration_since(instant) {
        Some(since) => ns.saturating_add(nanos(since)),
        None => ns.saturating_sub(nanos(instant.duration_since(at))),
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Returns the clock that Triton's timestamps use.
fn monotonic_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    let (seconds, rest) = (u64::try_from(now.tv_sec).unwrap_or(0), u64::try_from(now.tv_nsec).unwrap_or(0));
    seconds.saturating_mul(1_000_000_000).saturating_add(rest)
}
