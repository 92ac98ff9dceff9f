//! A kernel that accesses memory that is not allocated ends its launch with an error, as on a GPU. Elsewhere such an
//! access ends the process, as it would without the stand-in.

use std::{cell::Cell, mem, ptr, sync::Once};

type Handler = extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void);

/// Leaves the launch in progress and returns to where it began (`guard.h`).
pub(crate) type Leave = unsafe extern "C" fn();

thread_local! {
    static LEAVE: Cell<Option<Leave>> = const { Cell::new(None) };
}

/// Runs a launch that `leave` can end.
pub(crate) fn guarded<T>(leave: Leave, launch: impl FnOnce() -> T) -> T {
    install();
    LEAVE.set(Some(leave));
    let result = launch();
    LEAVE.set(None);
    result
}

/// The previous signal handlers.
static mut BEFORE: [mem::MaybeUninit<libc::sigaction>; 2] = [mem::MaybeUninit::uninit(); 2];
const SIGNALS: [i32; 2] = [libc::SIGSEGV, libc::SIGBUS];

fn install() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        for (place, signal) in SIGNALS.into_iter().enumerate() {
            // SAFETY: a struct of integers and of a pointer that may be null.
            let mut action: libc::sigaction = unsafe { mem::zeroed() };
            action.sa_sigaction = handle as Handler as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
            // SAFETY: the handler does only what signal handlers may do. BEFORE is written only here, and read only by
            // the handler.
            unsafe { libc::sigaction(signal, &action, ptr::addr_of_mut!(BEFORE[place]).cast()) };
        }
    });
}

extern "C" fn handle(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    if let Some(leave) = LEAVE.get() {
        // SAFETY: this thread is within the launch that the function belongs to.
        unsafe { leave() };
    }
    let place = usize::from(signal == libc::SIGBUS);
    // SAFETY: it was filled when this handler was installed.
    let before = unsafe { ptr::addr_of!(BEFORE[place]).read().assume_init() };
    if before.sa_sigaction == libc::SIG_DFL || before.sa_sigaction == libc::SIG_IGN {
        // The instruction runs again, and the signal then ends the process.
        // SAFETY: the default is a valid handler.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
        return;
    }
    // SAFETY: the previous handler takes these arguments, or fewer.
    unsafe { mem::transmute::<usize, Handler>(before.sa_sigaction)(signal, info, context) }
}
