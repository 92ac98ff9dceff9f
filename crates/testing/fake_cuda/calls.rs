//! The entry of every call: it is counted, fails if a test asks for it, and is traced.

use std::{
    env,
    fmt::Debug,
    sync::{
        Once,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use cudarc::{cublaslt::sys::cublasStatus_t, driver::sys::CUresult, nvrtc::sys::nvrtcResult};
use parking_lot::Mutex;

use crate::{context, errors, stream, trace};

static COUNT: AtomicU64 = AtomicU64::new(0);
static RULES: Mutex<Vec<Rule>> = Mutex::new(Vec::new());
/// Whether any rules exist.
static ARMED: AtomicBool = AtomicBool::new(false);

/// Which calls fail, and how.
struct Rule {
    /// The function whose calls fail; `None` for any function.
    function: Option<String>,
    /// Which of its calls fails, from 1; 0 for each call.
    nth: u64,
    seen: u64,
    code: CUresult,
}

/// The status type of one library.
pub(crate) trait Status: Copy + Debug {
    const SUCCESS: Self;

    /// Returns the status of a call that fails with the driver's code.
    fn of(code: CUresult) -> Self;
}

impl Status for CUresult {
    const SUCCESS: Self = Self::CUDA_SUCCESS;

    fn of(code: CUresult) -> Self {
        code
    }
}

impl Status for nvrtcResult {
    const SUCCESS: Self = Self::NVRTC_SUCCESS;

    fn of(_: CUresult) -> Self {
        Self::NVRTC_ERROR_INTERNAL_ERROR
    }
}

impl Status for cublasStatus_t {
    const SUCCESS: Self = Self::CUBLAS_STATUS_SUCCESS;

    fn of(code: CUresult) -> Self {
        match code {
            CUresult::CUDA_ERROR_INVALID_VALUE | CUresult::CUDA_ERROR_INVALID_HANDLE => {
                Self::CUBLAS_STATUS_INVALID_VALUE
            }
            CUresult::CUDA_ERROR_OUT_OF_MEMORY => Self::CUBLAS_STATUS_ALLOC_FAILED,
            CUresult::CUDA_ERROR_NOT_SUPPORTED => Self::CUBLAS_STATUS_NOT_SUPPORTED,
            _ => Self::CUBLAS_STATUS_INTERNAL_ERROR,
        }
    }
}

/// A call in progress.
pub(crate) struct Call {
    notes: Option<String>,
}

impl Call {
    /// Appends to the call's line in the trace.
    pub(crate) fn note(&mut self, note: impl FnOnce() -> String) {
        if let Some(notes) = &mut self.notes {
            notes.push(' ');
            notes.push_str(&note());
        }
    }
}

/// Runs a call.
pub(crate) fn run<S: Status>(function: &str, body: impl FnOnce(&mut Call) -> Result<(), S>) -> S {
    from_environment();
    COUNT.fetch_add(1, Ordering::Relaxed);
    let mut call = Call { notes: trace::is_on().then(String::new) };
    let result = match injected(function) {
        Some(code) => Err(S::of(code)),
        None if stream::is_worker() => Err(S::of(CUresult::CUDA_ERROR_NOT_PERMITTED)),
        None => body(&mut call),
    };
    if let Some(notes) = call.notes {
        let failure = result.map_or_else(|status| format!(" -> {status:?}"), |()| String::new());
        trace::add(format!("{function}{notes}{failure}"));
    }
    result.err().unwrap_or(S::SUCCESS)
}

/// Returns the code that the call must fail with, if any. A code that ruins contexts does so.
fn injected(function: &str) -> Option<CUresult> {
    if !ARMED.load(Ordering::Acquire) {
        return None;
    }
    let mut due = None;
    for rule in RULES.lock().iter_mut() {
        if rule.function.as_ref().is_none_or(|name| name == function) {
            rule.seen += 1;
            if rule.nth == 0 || rule.nth == rule.seen {
                due = Some(rule.code);
            }
        }
    }
    let code = due?;
    if errors::is_sticky(code)
        && let Ok(context) = context::current()
    {
        context.poison(code);
    }
    Some(code)
}

/// Adds the failures that the environment asks for.
fn from_environment() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        for rule in env::var("FAKE_CUDA_FAIL").iter().flat_map(|rules| rules.split(',')) {
            let parts: Vec<&str> = rule.split(':').collect();
            let parsed = match parts[..] {
                [function, nth, code] => nth.parse().ok().zip(code.parse().ok()).map(|rest| (function, rest)),
                _ => None,
            };
            let known = parsed.and_then(|(function, (nth, code))| Some((function, nth, errors::known(code)?)));
            let (function, nth, code) =
                known.unwrap_or_else(|| panic!("FAKE_CUDA_FAIL has '{rule}': not name:nth:code"));
            fail(Some(function.to_owned()).filter(|name| !name.is_empty()), nth, code);
        }
    });
}

/// Makes calls of one function or of any fail: the nth from now on or, with 0, each.
pub(crate) fn fail(function: Option<String>, nth: u64, code: CUresult) {
    RULES.lock().push(Rule { function, nth, seen: 0, code });
    ARMED.store(true, Ordering::Release);
}

pub(crate) fn forget_failures() {
    RULES.lock().clear();
    ARMED.store(false, Ordering::Release);
}

/// Returns the number of calls so far.
pub(crate) fn count() -> u64 {
    COUNT.load(Ordering::Relaxed)
}

/// Defines functions of the driver's C interface. The name of the [`Call`] follows the arguments.
macro_rules! entries {
    ($(fn $name:ident($($arg:ident: $type:ty),* $(,)?) |$call:ident| $body:block)*) => {
        $crate::calls::entries_of! { cudarc::driver::sys::CUresult, $(fn $name($($arg: $type),*) |$call| $body)* }
    };
}

/// Defines functions of a C interface that return a status.
macro_rules! entries_of {
    ($status:ty, $(fn $name:ident($($arg:ident: $type:ty),* $(,)?) |$call:ident| $body:block)*) => {$(
        #[unsafe(no_mangle)]
        pub(crate) unsafe extern "C" fn $name($($arg: $type),*) -> $status {
            $crate::calls::run(stringify!($name), |$call| {
                // SAFETY: as CUDA requires, each pointer is valid for what the function reads or writes there.
                // Functions check the pointers that programs get wrong in practice.
                #[allow(unused_unsafe)]
                unsafe { $body }
            })
        }
    )*};
}

pub(crate) use {entries, entries_of};
