//! NVRTC: compiles kernels for the host. The device's prelude that a program includes is replaced by the host's
//! (`kernels/prelude`), which defines the same words in C++ and exports the table of kernels.

use std::{
    ffi::{CStr, CString, c_char, c_int},
    fs,
    path::Path,
};

use cudarc::nvrtc::sys::nvrtcResult::{self, *};
use parking_lot::Mutex;

use crate::{
    calls::entries_of,
    compiler::{self, Failure, File},
    handles::{Handle, Kind, Table, name},
    image,
};

/// The oldest architecture that CUDA 13 compiles for.
const OLDEST: u32 = 75;
/// The prelude that programs include or are compiled with. An empty file takes its place, because the host's prelude is
/// included before.
const DEVICE_PRELUDE: &str = "device.cuh";

static PROGRAMS: Table<Program> = Table::new(Kind::Program);

struct Program {
    name: String,
    source: Vec<u8>,
    headers: Vec<File>,
    compiled: Mutex<Compiled>,
}

#[derive(Default)]
struct Compiled {
    log: CString,
    cubin: Vec<u8>,
    ptx: Vec<u8>,
}

/// The options, translated for the host's compiler.
struct Options {
    architecture: u32,
    flags: Vec<String>,
}

impl Options {
    /// Reads options; the error says what is wrong with one.
    fn read<'a>(options: impl Iterator<Item = &'a str>, headers: &[File]) -> Result<Self, (nvrtcResult, String)> {
        let mut read = Self { architecture: OLDEST, flags: Vec::new() };
        for option in options {
            let wrong = |result| Err((result, format!("nvrtc: error: invalid value or option: '{option}'\n")));
            let (key, value) = option.split_once('=').unwrap_or((option, ""));
            match key {
                "--gpu-architecture" | "-arch" => {
                    let number = value.strip_prefix("sm_").or(value.strip_prefix("compute_"));
                    match number.and_then(|number| number.trim_end_matches(['a', 'f']).parse().ok()) {
                        Some(number) if number >= OLDEST => read.architecture = number,
                        _ => return wrong(NVRTC_ERROR_INVALID_OPTION),
                    }
                }
                "--pre-include" | "-include" => {
                    if !headers.iter().any(|(name, _)| name == value) {
                        let log = format!("error: could not open source file \"{value}\"\n");
                        return Err((NVRTC_ERROR_COMPILATION, log));
                    }
                    // The main file includes the host's prelude in its place.
                    if value != DEVICE_PRELUDE {
                        read.flags.push(format!("-include{value}"));
                    }
                }
                "--define-macro" => read.flags.push(format!("-D{value}")),
                "--undefine-macro" => read.flags.push(format!("-U{value}")),
                "--include-path" => read.flags.push(format!("-I{value}")),
                // Options of device code that have no meaning on the host.
                "-default-device"
                | "--device-as-default-execution-space"
                | "--use_fast_math"
                | "-use_fast_math"
                | "--ptxas-options"
                | "-Xptxas"
                | "--std"
                | "-std"
                | "--fmad"
                | "-fmad"
                | "--ftz"
                | "-ftz"
                | "--prec-div"
                | "--prec-sqrt"
                | "--maxrregcount"
                | "--restrict"
                | "-restrict"
                | "--generate-line-info"
                | "-lineinfo"
                | "--extra-device-vectorization"
                | "--split-compile"
                | "--no-cache"
                | "-no-cache"
                | "--relocatable-device-code"
                | "-w"
                | "--disable-warnings" => {}
                _ if ["-D", "-U", "-I"].iter().any(|prefix| option.starts_with(prefix) && option.len() > 2) => {
                    read.flags.push(option.to_owned());
                }
                _ => return wrong(NVRTC_ERROR_INVALID_OPTION),
            }
        }
        Ok(read)
    }
}

impl Program {
    /// Returns the files to compile. The main file includes the prelude, the program and the guard; the others follow.
    fn files(&self) -> Result<Vec<File>, String> {
        let prelude = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../kernels").join("prelude");
        let main = format!(
            "#include <setjmp.h>\n#include \"host.h\"\n#include \"{}\"\n#include \"fake_cuda/guard.h\"\n",
            self.name
        );
        let mut files = vec![
            ("fake_cuda/main.cpp".to_owned(), main.into_bytes()),
            ("fake_cuda/guard.h".to_owned(), include_bytes!("guard.h").to_vec()),
            (self.name.clone(), self.source.clone()),
            (DEVICE_PRELUDE.to_owned(), Vec::new()),
        ];
        let read = read_folder(&prelude).map_err(|error| format!("{}: {error}", prelude.display()))?;
        for file in read.into_iter().chain(self.headers.iter().cloned()) {
            if !files.iter().any(|(name, _)| *name == file.0) {
                files.push(file);
            }
        }
        Ok(files)
    }

    fn compile(&self, options: &[&str]) -> (nvrtcResult, Compiled) {
        let failed = |result, log: String| {
            let log = CString::new(log.replace('\0', "")).expect("it has no zero bytes");
            (result, Compiled { log, ..Compiled::default() })
        };
        let options = match Options::read(options.iter().copied(), &self.headers) {
            Ok(options) => options,
            Err((result, log)) => return failed(result, log),
        };
        let files = match self.files() {
            Ok(files) => files,
            Err(log) => return failed(NVRTC_ERROR_BUILTIN_OPERATION_FAILURE, log),
        };
        match compiler::compile(&files, &options.flags) {
            Ok(library) => {
                let cubin = image::cubin(&library, options.architecture);
                let ptx = image::ptx(&library, options.architecture);
                (NVRTC_SUCCESS, Compiled { log: CString::default(), cubin, ptx })
            }
            Err(Failure::Program(log)) => failed(NVRTC_ERROR_COMPILATION, log),
            Err(Failure::System(log)) => failed(NVRTC_ERROR_BUILTIN_OPERATION_FAILURE, log),
        }
    }
}

/// Returns the files of the prelude, sorted.
fn read_folder(folder: &Path) -> std::io::Result<Vec<File>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if let Some(name) = path.file_name().filter(|_| path.is_file()) {
            files.push((name.to_string_lossy().into_owned(), fs::read(&path)?));
        }
    }
    files.sort();
    Ok(files)
}

/// Copies C strings.
///
/// # Safety
/// There are `count` of them.
unsafe fn strings(strings: *const *const c_char, count: c_int) -> Result<Vec<String>, nvrtcResult> {
    let count = usize::try_from(count).map_err(|_| NVRTC_ERROR_INVALID_INPUT)?;
    if count > 0 && strings.is_null() {
        return Err(NVRTC_ERROR_INVALID_INPUT);
    }
    // SAFETY: guaranteed by the caller.
    let string = |place| unsafe { CStr::from_ptr(*strings.add(place)) };
    Ok((0..count).map(|place| string(place).to_string_lossy().into_owned()).collect())
}

/// Returns a program and its results so far.
fn get(program: Handle) -> Result<std::sync::Arc<Program>, nvrtcResult> {
    PROGRAMS.get(program).map_err(|_| NVRTC_ERROR_INVALID_PROGRAM)
}

/// Copies the result of compiling, if there is one.
///
/// # Safety
/// `to` has room for it.
unsafe fn copy_out(made: &[u8], to: *mut c_char) -> Result<(), nvrtcResult> {
    if made.is_empty() {
        return Err(NVRTC_ERROR_INVALID_PROGRAM);
    }
    // SAFETY: guaranteed by the caller.
    unsafe { made.as_ptr().copy_to_nonoverlapping(to.cast(), made.len()) };
    Ok(())
}

entries_of! {
    nvrtcResult,

    fn nvrtcVersion(major: *mut c_int, minor: *mut c_int) |_call| {
        (*major, *minor) = (13, 0);
        Ok(())
    }

    fn nvrtcCreateProgram(
        program: *mut Handle,
        source: *const c_char,
        file: *const c_char,
        count: c_int,
        headers: *const *const c_char,
        names: *const *const c_char
    ) |call| {
        if program.is_null() || source.is_null() {
            return Err(NVRTC_ERROR_INVALID_INPUT);
        }
        let headers: Vec<File> = strings(names, count)?
            .into_iter()
            .zip(strings(headers, count)?)
            .map(|(name, text)| (name, text.into_bytes()))
            .collect();
        let file = if file.is_null() { c"default_program" } else { CStr::from_ptr(file) }.to_string_lossy();
        // All files of a program lie in one folder, and names must not lead out of it.
        let inside = |name: &str| !name.is_empty() && Path::new(name).components().all(|part| {
            matches!(part, std::path::Component::Normal(_))
        });
        if !headers.iter().all(|(name, _)| inside(name)) || !inside(&file) {
            return Err(NVRTC_ERROR_INVALID_INPUT);
        }
        let source = CStr::from_ptr(source).to_bytes().to_vec();
        let created = Program { name: file.clone().into_owned(), source, headers, compiled: Mutex::default() };
        *program = PROGRAMS.insert(created);
        call.note(|| format!("{file} -> {}", name(*program)));
        Ok(())
    }

    fn nvrtcCompileProgram(program: Handle, count: c_int, options: *const *const c_char) |call| {
        let options = strings(options, count)?;
        call.note(|| format!("{} {}", name(program), options.join(" ")));
        let program = get(program)?;
        let options: Vec<&str> = options.iter().map(String::as_str).collect();
        let (result, compiled) = program.compile(&options);
        *program.compiled.lock() = compiled;
        if result == NVRTC_SUCCESS { Ok(()) } else { Err(result) }
    }

    fn nvrtcGetCUBINSize(program: Handle, bytes: *mut usize) |call| {
        call.note(|| name(program));
        *bytes = get(program)?.compiled.lock().cubin.len();
        Ok(())
    }

    fn nvrtcGetCUBIN(program: Handle, cubin: *mut c_char) |call| {
        call.note(|| name(program));
        copy_out(&get(program)?.compiled.lock().cubin, cubin)
    }

    fn nvrtcGetPTXSize(program: Handle, bytes: *mut usize) |call| {
        call.note(|| name(program));
        *bytes = get(program)?.compiled.lock().ptx.len();
        Ok(())
    }

    fn nvrtcGetPTX(program: Handle, ptx: *mut c_char) |call| {
        call.note(|| name(program));
        copy_out(&get(program)?.compiled.lock().ptx, ptx)
    }

    fn nvrtcGetProgramLogSize(program: Handle, bytes: *mut usize) |call| {
        call.note(|| name(program));
        *bytes = get(program)?.compiled.lock().log.as_bytes_with_nul().len();
        Ok(())
    }

    fn nvrtcGetProgramLog(program: Handle, log: *mut c_char) |call| {
        call.note(|| name(program));
        copy_out(get(program)?.compiled.lock().log.as_bytes_with_nul(), log)
    }

    fn nvrtcDestroyProgram(program: *mut Handle) |call| {
        let program = program.as_mut().ok_or(NVRTC_ERROR_INVALID_PROGRAM)?;
        call.note(|| name(*program));
        PROGRAMS.remove(*program).map_err(|_| NVRTC_ERROR_INVALID_PROGRAM)?;
        // cudarc passes a pointer to its own copy of the handle, so the handle there is left as it is.
        Ok(())
    }
}

/// Returns the name of a result.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvrtcGetErrorString(result: u32) -> *const c_char {
    let names = [
        c"NVRTC_SUCCESS",
        c"NVRTC_ERROR_OUT_OF_MEMORY",
        c"NVRTC_ERROR_PROGRAM_CREATION_FAILURE",
        c"NVRTC_ERROR_INVALID_INPUT",
        c"NVRTC_ERROR_INVALID_PROGRAM",
        c"NVRTC_ERROR_INVALID_OPTION",
        c"NVRTC_ERROR_COMPILATION",
        c"NVRTC_ERROR_BUILTIN_OPERATION_FAILURE",
    ];
    let unknown = c"NVRTC_ERROR unknown";
    names.get(result as usize).map_or(unknown.as_ptr(), |name| name.as_ptr())
}
