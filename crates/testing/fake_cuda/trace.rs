//! The log of calls. Each thread has its own lines, so that threads do not wait for each other. They are merged in the
//! order in which calls ended.

use std::{
    cell::OnceCell,
    env,
    fmt::Write,
    fs,
    path::PathBuf,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use parking_lot::Mutex;

type Lines = Arc<Mutex<Vec<(u64, String)>>>;

static ON: AtomicBool = AtomicBool::new(false);
static ENDED: AtomicU64 = AtomicU64::new(0);
/// The lines of each thread, in the order of the threads' first calls.
static THREADS: Mutex<Vec<Lines>> = Mutex::new(Vec::new());

thread_local! {
    static OWN: OnceCell<Lines> = const { OnceCell::new() };
}

/// Returns whether calls are logged, because a test or the environment asks for it.
pub(crate) fn is_on() -> bool {
    file().is_some() || ON.load(Ordering::Relaxed)
}

/// Returns the file that the environment names. It is written when the process ends.
fn file() -> Option<&'static PathBuf> {
    static FILE: OnceLock<Option<PathBuf>> = OnceLock::new();
    let file = FILE.get_or_init(|| {
        let file = env::var_os("FAKE_CUDA_TRACE").map(PathBuf::from);
        if file.is_some() {
            // SAFETY: the function stays loaded, because users of CUDA's libraries never close them.
            unsafe { libc::atexit(write_file) };
        }
        file
    });
    file.as_ref()
}

extern "C" fn write_file() {
    if let Some(file) = file()
        && let Err(error) = fs::write(file, take())
    {
        eprintln!("fake_cuda: the trace cannot be written to {}: {error}", file.display());
    }
}

pub(crate) fn add(line: String) {
    OWN.with(|own| {
        let lines = own.get_or_init(|| {
            let lines = Lines::default();
            THREADS.lock().push(lines.clone());
            lines
        });
        lines.lock().push((ENDED.fetch_add(1, Ordering::Relaxed), line));
    });
}

/// Starts a new log.
pub(crate) fn begin() {
    take();
    ON.store(true, Ordering::Relaxed);
}

pub(crate) fn end() {
    ON.store(false, Ordering::Relaxed);
}

/// Returns the log, with one line for each call: the thread's number and the call.
pub(crate) fn take() -> String {
    let mut lines: Vec<(u64, usize, String)> = Vec::new();
    for (thread, own) in THREADS.lock().iter().enumerate() {
        lines.extend(own.lock().drain(..).map(|(ended, line)| (ended, thread + 1, line)));
    }
    lines.sort_unstable_by_key(|(ended, ..)| *ended);
    let mut text = String::new();
    for (_, thread, line) in lines {
        writeln!(text, "{thread} {line}").expect("a string takes all");
    }
    text
}
