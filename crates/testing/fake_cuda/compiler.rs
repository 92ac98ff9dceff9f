//! The host's C++ compiler. Its results are cached by the contents of the files.

use std::{fs, io, path::Path, process, process::Command, sync::OnceLock};

use sha2::{Digest, Sha256};

use crate::settings::settings;

/// A file of a program: its name and its contents.
pub(crate) type File = (String, Vec<u8>);

/// The flags of the kernels' numerical tests, with more optimisation.
const FLAGS: [&str; 9] = [
    "-std=c++17",
    "-O2",
    "-fPIC",
    "-shared",
    "-fvisibility=hidden",
    "-fno-strict-aliasing",
    "-fno-gnu-unique",
    "-fno-diagnostics-color",
    "-Wno-unknown-pragmas",
];

pub(crate) enum Failure {
    /// The program is wrong: the compiler's messages.
    Program(String),
    /// There is no compiler, or it could not run.
    System(String),
}

fn system(what: &str) -> impl FnOnce(io::Error) -> Failure + '_ {
    move |error| Failure::System(format!("{what}: {error}"))
}

/// Compiles the first file, which may include the others by name, into a shared library.
pub(crate) fn compile(files: &[File], flags: &[String]) -> Result<Vec<u8>, Failure> {
    let cache = &settings().cache;
    let key = key(files, flags).map_err(Failure::System)?;
    let library = cache.join(format!("{key}.so"));
    if let Ok(compiled) = fs::read(&library) {
        return Ok(compiled);
    }
    fs::create_dir_all(cache).map_err(system("the cache cannot be made"))?;
    let folder = tempfile::tempdir_in(cache).map_err(system("a folder cannot be made"))?;
    for (name, contents) in files {
        let path = folder.path().join(name);
        let parent = path.parent().unwrap_or(folder.path());
        fs::create_dir_all(parent).and_then(|()| fs::write(&path, contents)).map_err(system(name))?;
    }
    let compiled = run(folder.path(), &files[0].0, flags)?;
    // The file is renamed into place, so that other processes never read half of it.
    let finished = folder.path().join("finished");
    fs::write(&finished, &compiled).and_then(|()| fs::rename(&finished, &library)).map_err(system("the cache"))?;
    Ok(compiled)
}

fn run(folder: &Path, main: &str, flags: &[String]) -> Result<Vec<u8>, Failure> {
    let output = Command::new("c++")
        .current_dir(folder)
        .args(FLAGS)
        .args(flags)
        .args(["-I.", "-o", "library", main])
        .stdin(process::Stdio::null())
        .output()
        .map_err(|error| Failure::System(format!("c++ cannot be run: {error}")))?;
    if !output.status.success() {
        return Err(Failure::Program(String::from_utf8_lossy(&output.stderr).into_owned()));
    }
    fs::read(folder.join("library")).map_err(|error| Failure::System(format!("c++ made nothing: {error}")))
}

/// Returns the cache key: a hash of everything that the library depends on.
fn key(files: &[File], flags: &[String]) -> Result<String, String> {
    let mut hash = Sha256::new();
    let mut add = |bytes: &[u8]| {
        hash.update((bytes.len() as u64).to_le_bytes());
        hash.update(bytes);
    };
    add(version()?.as_bytes());
    FLAGS.iter().for_each(|flag| add(flag.as_bytes()));
    flags.iter().for_each(|flag| add(flag.as_bytes()));
    for (name, contents) in files {
        add(name.as_bytes());
        add(contents);
    }
    Ok(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

fn version() -> Result<&'static str, String> {
    static VERSION: OnceLock<Result<String, String>> = OnceLock::new();
    let version = VERSION.get_or_init(|| {
        let output = Command::new("c++").arg("--version").output();
        let output = output.map_err(|error| format!("c++ cannot be run: {error}"))?;
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    });
    version.as_deref().map_err(Clone::clone)
}
