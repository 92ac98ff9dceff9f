//! The log of calls. For a test in the process each thread has its own lines, so that threads do not wait for each
//! other; they are merged in the order in which calls ended.

use std::{
    cell::OnceCell,
    env,
    fmt::Write as _,
    fs::File,
    io::{self, Write as _},
    path::{Path, PathBuf},
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
    static OWN: OnceCell<(usize, Lines)> = const { OnceCell::new() };
}

/// Returns whether calls are logged, because a test or the environment asks for it.
pub(crate) fn is_on() -> bool {
    file().is_some() || ON.load(Ordering::Relaxed)
}

/// Returns the file that the environment names. Each call is written at once, because a process may end without notice.
fn file() -> Option<&'static Mutex<File>> {
    static FILE: OnceLock<Option<Mutex<File>>> = OnceLock::new();
    let file = FILE.get_or_init(|| {
        let path = PathBuf::from(env::var_os("FAKE_CUDA_TRACE")?);
        let created = File::create(&path);
        created.map(Mutex::new).inspect_err(|error| untraced(&path, error)).ok()
    });
    file.as_ref()
}

fn untraced(path: &Path, error: &io::Error) {
    eprintln!("fake_cuda: the trace cannot be written to {}: {error}", path.display());
}

pub(crate) fn add(line: String) {
    OWN.with(|own| {
        let (thread, lines) = own.get_or_init(|| {
            let mut threads = THREADS.lock();
            threads.push(Lines::default());
            (threads.len(), threads[threads.len() - 1].clone())
        });
        if let Some(file) = file() {
            // In one piece, because the process may end within it. What cannot be written is missing in the file that
            // the test reads.
            let _ = file.lock().write_all(format!("{thread} {line}\n").as_bytes());
        }
        if ON.load(Ordering::Relaxed) {
            lines.lock().push((ENDED.fetch_add(1, Ordering::Relaxed), line));
        }
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
