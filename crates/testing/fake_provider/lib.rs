//! ONNX Runtime with a stand-in for its CUDA execution provider, for tests only.
//!
//! It takes the place of ONNX Runtime's library and passes calls on to the real one. It has the provider, accepts its
//! options, and records the sessions that have it; the real library runs these on the CPU. It shows which programs the
//! provider compiles and runs, and what it is told. It shows nothing about the provider's own work.
//!
//! | environment | meaning | default |
//! |---|---|---|
//! | `FAKE_PROVIDER_RUNTIME` | the real library | required |
//! | `FAKE_PROVIDER_LOG` | file that receives a line for each session on the provider and for each of its runs | none |
//! | `FAKE_PROVIDER_REFUSES` | the error with which the provider cannot be loaded | none |

// Names follow the C interface.
#![allow(non_snake_case)]

use std::{
    collections::HashMap,
    env,
    ffi::{CStr, CString, c_char, c_int, c_void},
    fs::OpenOptions,
    io::Write,
    ptr,
    sync::OnceLock,
};

use libloading::Library;
use ort::sys::{
    OrtApi, OrtApiBase, OrtCUDAProviderOptionsV2, OrtEnv, OrtErrorCode, OrtRunOptions, OrtSession, OrtSessionOptions,
    OrtStatusPtr, OrtValue,
};
use parking_lot::Mutex;

/// What sessions have the provider.
#[derive(Default)]
struct OnProvider {
    /// The provider's settings, by the address of the options of a session that is yet to be created.
    wanted: HashMap<usize, String>,
    /// Numbers of sessions, by their addresses.
    sessions: HashMap<usize, usize>,
    created: usize,
}

static ON_PROVIDER: OnceLock<Mutex<OnProvider>> = OnceLock::new();

fn on_provider() -> &'static Mutex<OnProvider> {
    ON_PROVIDER.get_or_init(Mutex::default)
}

/// The real library.
struct Real {
    base: OrtApiBase,
    _library: Library,
}

fn real() -> &'static Real {
    static REAL: OnceLock<Real> = OnceLock::new();
    REAL.get_or_init(|| {
        let path = env::var_os("FAKE_PROVIDER_RUNTIME").expect("FAKE_PROVIDER_RUNTIME names the real library");
        // SAFETY: its initializers need nothing.
        let library = unsafe { Library::new(&path) }.expect("FAKE_PROVIDER_RUNTIME is a library");
        // SAFETY: every version of the C API has this function with this type, and its result is never freed.
        let base = unsafe { *library.get::<unsafe extern "C" fn() -> *const OrtApiBase>("OrtGetApiBase").unwrap()() };
        Real { base, _library: library }
    })
}

/// The real functions, for the version that the server asks for.
fn functions() -> &'static OrtApi {
    static FUNCTIONS: OnceLock<OrtApi> = OnceLock::new();
    FUNCTIONS.get_or_init(|| {
        // SAFETY: the table of this version is at least as long as the type that is read, and is never freed.
        unsafe { ptr::read((real().base.GetApi)(ort::sys::ORT_API_VERSION)) }
    })
}

fn note(line: &str) {
    let Some(path) = env::var_os("FAKE_PROVIDER_LOG") else { return };
    let mut file = OpenOptions::new().create(true).append(true).open(path).expect("FAKE_PROVIDER_LOG can be written");
    file.write_all(format!("{line}\n").as_bytes()).expect("FAKE_PROVIDER_LOG can be written");
}

/// Returns the library's functions.
#[unsafe(no_mangle)]
pub extern "C" fn OrtGetApiBase() -> *const OrtApiBase {
    static BASE: OnceLock<OrtApiBase> = OnceLock::new();
    BASE.get_or_init(|| OrtApiBase { GetApi: get_api, ..real().base })
}

unsafe extern "system" fn get_api(version: u32) -> *const OrtApi {
    static PATCHED: OnceLock<OrtApi> = OnceLock::new();
    if version != ort::sys::ORT_API_VERSION {
        return ptr::null();
    }
    PATCHED.get_or_init(|| OrtApi {
        GetAvailableProviders: providers,
        ReleaseAvailableProviders: release_providers,
        CreateCUDAProviderOptions: create_options,
        UpdateCUDAProviderOptions: update_options,
        ReleaseCUDAProviderOptions: release_options,
        SessionOptionsAppendExecutionProvider_CUDA_V2: append,
        CreateSessionFromArray: create_session,
        ReleaseSession: release_session,
        Run: run,
        ..*functions()
    })
}

unsafe extern "system" fn providers(names: *mut *mut *mut c_char, count: *mut c_int) -> OrtStatusPtr {
    let own = [c"CUDAExecutionProvider", c"CPUExecutionProvider"].map(|name| name.as_ptr().cast_mut());
    // SAFETY: the caller passes memory for both; `release_providers` frees the array.
    unsafe {
        *count = own.len() as c_int;
        *names = Box::into_raw(Box::new(own)).cast();
    }
    OrtStatusPtr::default()
}

unsafe extern "system" fn release_providers(names: *mut *mut c_char, _: c_int) -> OrtStatusPtr {
    // SAFETY: `providers` made the array.
    drop(unsafe { Box::from_raw(names.cast::<[*mut c_char; 2]>()) });
    OrtStatusPtr::default()
}

unsafe extern "system" fn create_options(out: *mut *mut OrtCUDAProviderOptionsV2) -> OrtStatusPtr {
    // SAFETY: the caller passes memory for it; `release_options` frees it.
    unsafe { *out = Box::into_raw(Box::<String>::default()).cast() };
    OrtStatusPtr::default()
}

unsafe extern "system" fn update_options(
    options: *mut OrtCUDAProviderOptionsV2,
    keys: *const *const c_char,
    values: *const *const c_char,
    count: usize,
) -> OrtStatusPtr {
    // SAFETY: `create_options` made the settings; both arrays have `count` C strings.
    unsafe {
        let settings = &mut *options.cast::<String>();
        for number in 0..count {
            let [key, value] = [keys, values].map(|texts| CStr::from_ptr(*texts.add(number)).to_string_lossy());
            settings.push_str(&format!(" {key}={value}"));
        }
    }
    OrtStatusPtr::default()
}

unsafe extern "system" fn release_options(options: *mut OrtCUDAProviderOptionsV2) {
    // SAFETY: `create_options` made it.
    drop(unsafe { Box::from_raw(options.cast::<String>()) });
}

unsafe extern "system" fn append(
    session: *mut OrtSessionOptions,
    options: *const OrtCUDAProviderOptionsV2,
) -> OrtStatusPtr {
    if let Ok(refusal) = env::var("FAKE_PROVIDER_REFUSES") {
        let refusal = CString::new(refusal).expect("an environment variable has no zero byte");
        // SAFETY: the call copies the text.
        return unsafe { (functions().CreateStatus)(OrtErrorCode::ORT_FAIL, refusal.as_ptr()) };
    }
    // SAFETY: `create_options` made the settings.
    let settings = unsafe { &*options.cast::<String>() };
    on_provider().lock().wanted.insert(session as usize, settings.clone());
    OrtStatusPtr::default()
}

unsafe extern "system" fn create_session(
    env: *const OrtEnv,
    model: *const c_void,
    length: usize,
    options: *const OrtSessionOptions,
    out: *mut *mut OrtSession,
) -> OrtStatusPtr {
    // SAFETY: the arguments are the caller's.
    let status = unsafe { (functions().CreateSessionFromArray)(env, model, length, options, out) };
    let mut known = on_provider().lock();
    if let Some(settings) = known.wanted.remove(&(options as usize)).filter(|_| status.0.is_null()) {
        let number = known.created;
        known.created += 1;
        // SAFETY: the call succeeded, so it has written the session.
        known.sessions.insert(unsafe { *out } as usize, number);
        note(&format!("session {number}{settings}"));
    }
    status
}

unsafe extern "system" fn release_session(session: *mut OrtSession) {
    on_provider().lock().sessions.remove(&(session as usize));
    // SAFETY: the argument is the caller's.
    unsafe { (functions().ReleaseSession)(session) };
}

unsafe extern "system" fn run(
    session: *mut OrtSession,
    options: *const OrtRunOptions,
    input_names: *const *const c_char,
    inputs: *const *const OrtValue,
    input_count: usize,
    output_names: *const *const c_char,
    output_count: usize,
    outputs: *mut *mut OrtValue,
) -> OrtStatusPtr {
    if let Some(number) = on_provider().lock().sessions.get(&(session as usize)) {
        note(&format!("run {number}"));
    }
    // SAFETY: the arguments are the caller's.
    unsafe {
        let run = functions().Run;
        run(session, options, input_names, inputs, input_count, output_names, output_count, outputs)
    }
}
