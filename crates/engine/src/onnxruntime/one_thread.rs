//! The second session of a graph, whose runs use the calling thread.
//!
//! It has a copy of the weights, which a server that runs one request at a time does not need. A graph that was read
//! from a file is therefore compiled for one thread when its runs share the cores for the first time, in the
//! background. Until that is done, they use all threads.

use std::{
    fs::{self, File},
    io::Read,
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
    thread::{self, JoinHandle},
};

use ort::{environment::Environment, session::Session};
use parking_lot::Mutex;
use tracing::{debug, warn};

use super::{
    session::{Form, SharedSession, builder, commit, origin_of, refused},
    weights::Weights,
};
use crate::{EngineError, sessions::Origin};

/// The session, as soon as it has been compiled.
pub(super) struct OneThread {
    /// `None` inside if it cannot be compiled.
    session: Arc<OnceLock<Option<SharedSession>>>,
    /// What it is compiled from; `None` once that has begun.
    source: Mutex<Option<Source>>,
    background: Arc<Background>,
}

/// What a session for one thread is compiled from.
pub(super) struct Source {
    pub(super) environment: Environment,
    pub(super) form: Form,
    /// The file that the graph is the content of.
    pub(super) file: Arc<Path>,
    pub(super) file_bytes: usize,
    /// What the file, weights and operators were when the first session was compiled.
    pub(super) origin: Origin,
    pub(super) weights: Arc<Weights>,
    pub(super) operators: Vec<PathBuf>,
}

impl OneThread {
    /// A session that is compiled when it is first needed.
    pub(super) fn later(source: Source, background: &Arc<Background>) -> Self {
        Self { session: Arc::default(), source: Mutex::new(Some(source)), background: Arc::clone(background) }
    }

    /// A session that has been compiled.
    pub(super) fn compiled(session: SharedSession, background: &Arc<Background>) -> Self {
        let session = Arc::new(OnceLock::from(Some(session)));
        Self { session, source: Mutex::default(), background: Arc::clone(background) }
    }

    /// Returns the session. If it has not been compiled yet, begins that, unless the background is busy.
    pub(super) fn get(&self) -> Option<&Session> {
        match self.session.get() {
            Some(session) => session.as_ref().map(SharedSession::session),
            None => {
                self.begin();
                None
            }
        }
    }

    /// Returns whether the session has been compiled.
    pub(super) fn is_compiled(&self) -> bool {
        self.session.get().is_some_and(Option::is_some)
    }

    fn begin(&self) {
        // Another run begins it at this moment.
        let Some(mut source) = self.source.try_lock() else { return };
        if source.is_none() {
            return;
        }
        let session = Arc::clone(&self.session);
        self.background.start(|| {
            let source = source.take()?;
            Some(move || {
                let file = Arc::clone(&source.file);
                let compiled = source.compile();
                match &compiled {
                    Ok(_) => debug!(file = %file.display(), "compiled for one thread"),
                    Err(error) => {
                        let file = file.display();
                        warn!(%file, %error, "cannot compile a graph for one thread; all its runs use all threads");
                    }
                }
                let _ = session.set(compiled.ok());
            })
        });
    }
}

impl Source {
    fn compile(self) -> Result<SharedSession, EngineError> {
        let Self { environment, form, file, file_bytes, origin, weights, operators } = self;
        let graph = read(&file, file_bytes)?;
        // The weights are those of the first session, and so must the rest be.
        if origin_of(&graph, &weights, &operators, None)? != origin {
            return Err(changed(&file));
        }
        commit(single_threaded(&environment, form)?, &graph, &weights, &operators)
    }
}

/// Reads a file that has `len_bytes`.
fn read(file: &Path, len_bytes: usize) -> Result<Vec<u8>, EngineError> {
    let fail = |error: std::io::Error| EngineError::new(format!("cannot read '{}': {error}", file.display()));
    // Reading a device or a pipe might never end.
    if !fs::metadata(file).map_err(fail)?.is_file() {
        return Err(changed(file));
    }
    let mut graph = Vec::with_capacity(len_bytes);
    File::open(file).map_err(fail)?.take(len_bytes as u64).read_to_end(&mut graph).map_err(fail)?;
    Ok(graph)
}

fn changed(file: &Path) -> EngineError {
    EngineError::new(format!("'{}' has changed since it was loaded", file.display()))
}

/// A session with one thread of its own is one that runs on the calling thread.
pub(super) fn single_threaded(
    environment: &Environment,
    form: Form,
) -> Result<ort::session::builder::SessionBuilder, EngineError> {
    let builder = builder(environment, form)?.with_independent_thread_pool().map_err(ort::Error::from);
    builder.and_then(|builder| builder.with_intra_threads(1).map_err(ort::Error::from)).map_err(refused)
}

/// A thread on which graphs are compiled, one at a time. It ends before the library's environment does.
#[derive(Debug, Default)]
pub(super) struct Background(Mutex<Option<JoinHandle<()>>>);

impl Background {
    /// Starts the work that `take` returns, unless other work is still going on.
    fn start<W: FnOnce() + Send + 'static>(&self, take: impl FnOnce() -> Option<W>) {
        let Some(mut thread) = self.0.try_lock() else { return };
        if thread.as_ref().is_some_and(|thread| !thread.is_finished()) {
            return;
        }
        let Some(work) = take() else { return };
        // If there is no thread to be had, runs keep using the first session.
        *thread = thread::Builder::new().name("compile".to_owned()).spawn(work).ok();
    }

    /// Waits for the end of the work that has begun.
    pub(super) fn finish(&self) {
        if let Some(thread) = self.0.lock().take() {
            // A panic has been reported by its hook.
            let _ = thread.join();
        }
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        self.finish();
    }
}
