//! Lets `paternoster --version` name the commit that is built. A build of sources without a history gets it in
//! `PATERNOSTER_COMMIT`, or has none. Only release builds ask git, so that a commit does not make others compile again.

use std::{env, fs, process::Command};

fn main() {
    const VARIABLE: &str = "PATERNOSTER_COMMIT";

    println!("cargo:rerun-if-env-changed={VARIABLE}");
    if env::var_os(VARIABLE).is_some() || env::var("PROFILE").as_deref() != Ok("release") {
        return;
    }
    let here = env::var("CARGO_MANIFEST_DIR").unwrap_or_default();
    // A copy of the sources within another repository has no history of its own.
    if git(&["rev-parse", "--show-toplevel"]).as_deref() != Some(&here) {
        return;
    }
    let (Some(commit), Some(log)) = (git(&["rev-parse", "HEAD"]), git(&["rev-parse", "--git-path", "logs/HEAD"]))
    else {
        return;
    };
    // What git writes whenever HEAD moves.
    if fs::exists(&log).unwrap_or(false) {
        println!("cargo:rerun-if-changed={log}");
    }
    println!("cargo:rustc-env={VARIABLE}={commit}");
}

/// What git prints, where it is installed and has an answer.
fn git(words: &[&str]) -> Option<String> {
    let done = Command::new("git").args(words).output().ok()?;
    let printed = String::from_utf8(done.stdout).ok()?;
    done.status.success().then(|| printed.trim_end().to_owned())
}
