//! Builds the stand-in for CUDA's libraries (`crates/testing/fake_cuda`), links it under their names, and runs tests in
//! child processes that find it.

use std::{
    any, env, fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::Command,
    sync::OnceLock,
};

/// Environment variable that marks a child process, which has the stand-in.
const CHILD: &str = "FAKE_CUDA_CHILD";
/// Environment variable that makes tests run on the installed card.
const CARD: &str = "CUDA_TESTS_ON_CARD";
/// Names of the links, with and without versions: a machine may have the real libraries under either.
const NAMES: [&str; 9] = [
    "libcuda.so",
    "libcuda.so.1",
    "libnvrtc.so",
    "libnvrtc.so.13",
    "libcublasLt.so",
    "libcublasLt.so.13",
    "libcudnn.so",
    "libcudnn.so.9",
    "libnvidia-ml.so.1",
];
/// Prefixes of the variables that cargo sets for the tests of a package.
const OF_THE_PACKAGE: [&str; 7] =
    ["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_CRATE_", "CARGO_BIN_", "CARGO_PRIMARY_", "CARGO_TARGET_TMPDIR", "OUT_DIR"];
/// Each kernel library has a few words of static thread-local storage. The loader reserves memory for these at start,
/// and its default is too small for many libraries.
const THREAD_STORAGE: &str = "glibc.rtld.optional_static_tls=65536";

/// Runs `body` with a card: as [`with_fake_cuda`], or with the installed libraries and card, if the environment asks
/// for it.
pub fn with_card<F: FnOnce()>(body: F) {
    if is_on_card() { body() } else { with_fake_cuda(&[], body) }
}

/// Returns whether tests run on the installed card.
pub fn is_on_card() -> bool {
    env::var_os(CARD).is_some()
}

/// Returns whether tests that need the stand-in are left out, and prints why.
pub fn is_left_out() -> bool {
    if is_on_card() {
        eprintln!("skipped: it needs the stand-in for CUDA");
        return true;
    }
    if Command::new("c++").arg("--version").output().is_err() {
        assert!(env::var_os("CI").is_none(), "the stand-in for CUDA needs c++, which is not installed");
        eprintln!("skipped: the stand-in for CUDA compiles kernels with c++, which is not installed");
        return true;
    }
    false
}

/// Runs `body` with the stand-in. The calling test runs again in its own process, with `environment` added, and `body`
/// runs there. Fails if that process fails. Without a C++ compiler nothing runs.
pub fn with_fake_cuda<F: FnOnce()>(environment: &[(&str, &str)], body: F) {
    if env::var_os(CHILD).is_some() {
        return body();
    }
    if is_left_out() {
        return;
    }
    // The closure is named after the test: crate::module::test::{{closure}}.
    let name = any::type_name::<F>();
    let (_, path) = name.split_once("::").expect("a path begins with the crate");
    let test = path.trim_end_matches("::{{closure}}");
    let mut command = command(&env::current_exe().expect("the test's own program"));
    command
        .args(["--exact", test, "--nocapture", "--include-ignored"])
        .env(CHILD, "1")
        .envs(environment.iter().copied());
    let output = command.output().expect("the test's own program runs");
    let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{test} failed with the stand-in for CUDA ({}):\n{text}", output.status);
    assert!(text.contains("1 passed"), "{test} is not the name of the test:\n{text}");
    print!("{text}");
}

/// Returns a command whose process finds the stand-in.
pub fn command(program: &Path) -> Command {
    let mut command = Command::new(program);
    let libraries = env::join_paths(
        [linked().to_owned()].into_iter().chain(env::var_os("LD_LIBRARY_PATH").iter().flat_map(env::split_paths)),
    );
    command
        .env("LD_LIBRARY_PATH", libraries.expect("folders without colons"))
        .env("FAKE_CUDA_CACHE", linked().join("kernels"))
        .env("GLIBC_TUNABLES", THREAD_STORAGE);
    command
}

/// Returns the folder of the links.
fn linked() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let library = built();
        let folder = library.with_file_name("fake_cuda_links");
        fs::create_dir_all(&folder).expect("a folder beside the library");
        for name in NAMES {
            // Another test may create the links at the same time, so each link is renamed into place.
            let new = tempfile::Builder::new().make_in(&folder, |path| symlink(&library, path)).expect("a link");
            fs::rename(new.path(), folder.join(name)).expect("the link gets its name");
            let _ = new.into_temp_path().keep();
        }
        folder
    })
}

/// Builds the library as this program was built. Cargo decides whether there is anything to do, so an outdated library
/// is never used. `cargo test` has released its lock on the target folder by the time tests run.
///
/// It is built in the workspace, whose `cargo test` has compiled it. In this crate alone, its dependencies would have
/// other features, and most of them would be compiled once more.
fn built() -> PathBuf {
    let program = env::current_exe().expect("the test's own program");
    let profile = program.ancestors().nth(2).expect("tests lie in target/<profile>/deps");
    let target = profile.parent().expect("tests lie in target/<profile>/deps");
    let name = match profile.file_name().and_then(|name| name.to_str()) {
        Some("debug") | None => "dev",
        Some(name) => name,
    };
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| env!("CARGO").into()));
    // Variables that cargo sets for tests. Build scripts that depend on such variables would run again with them, and
    // once more at the next build without them.
    for (variable, _) in env::vars_os() {
        let name = variable.to_string_lossy();
        if OF_THE_PACKAGE.iter().any(|prefix| name.starts_with(prefix)) {
            cargo.env_remove(&variable);
        }
    }
    let output = cargo
        .args(["build", "--example", "fake_cuda", "--profile", name, "--target-dir"])
        .arg(target)
        .arg("--manifest-path")
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/../../Cargo.toml"))
        .output()
        .expect("cargo runs");
    assert!(output.status.success(), "the stand-in does not build:\n{}", String::from_utf8_lossy(&output.stderr));
    profile.join("examples").join("libfake_cuda.so")
}
