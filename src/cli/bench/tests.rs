//! Invalid arguments, and models that cannot be measured; `tests/server/bench.rs` covers the rest.

use std::{ffi::OsString, fs, path::Path};

use tempfile::TempDir;

use super::*;
use crate::cli::{Command, parse, tools::Tool};

fn parsed(words: &[&str]) -> Result<BenchArgs, String> {
    match parse(["paternoster", "bench"].iter().chain(words).map(OsString::from)) {
        Ok(Command::Tool(Tool::Bench(args))) => Ok(*args),
        Ok(other) => panic!("{words:?} read as {other:?}"),
        Err(error) => Err(error.to_string()),
    }
}

/// Creates a repository with a model of the built-in engine, which needs no library.
fn repository() -> TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    fs::create_dir_all(folder.path().join("echo/1")).expect("a folder");
    fs::write(folder.path().join("echo/model.yaml"), CONFIG).expect("a file");
    folder
}

const CONFIG: &str = "backend: repeat
max_batch_size: 8
inputs:
  - { name: x, dtype: FP32, dims: [-1] }
outputs:
  - { name: y, dtype: FP32, dims: [-1] }
";

/// Returns the arguments for that model, and more.
fn on(repository: &Path, more: &[&str]) -> BenchArgs {
    let words = ["--model-repository", repository.to_str().expect("text"), "--model", "echo"];
    let words = [&words[..], more].concat();
    parsed(&words).unwrap_or_else(|refusal| panic!("{more:?}: {refusal}"))
}

#[test]
fn a_fill_is_what_follows_the_first_equals_sign() {
    let args = parsed(&["--url", "a:1", "--model", "m", "--fill", "TEXT=a = b", "--fill", "mask=1"]);
    let fills = args.expect("texts are fine").fills;
    assert_eq!(fills, [("TEXT".to_owned(), b"a = b".to_vec()), ("mask".to_owned(), b"1".to_vec())]);
}

#[test]
fn words_that_do_not_go_together_are_refused() {
    let refusal = |words: &[&str]| parsed(words).expect_err("they do not go together");
    let place = ["--url", "localhost:8001", "--model", "m"];
    assert!(parsed(&place).is_ok());
    assert!(refusal(&["--model", "m"]).contains("--url <HOST:PORT>"), "a place is needed");
    assert!(refusal(&["--url", "a:1"]).contains("--model"));
    let several = parsed(&["--url", "a:1", "--url", "b:2", "--model", "m"]).expect("they go together");
    assert_eq!(several.urls, ["a:1", "b:2"]);
    for more in [
        &["--policy", "lazy"][..],
        &["--sweep-window"],
        &["--model-repository", "r"],
        &["--load", "0.5", "--rate", "3"],
        &["--workload", "wmt15", "--length", "3"],
        &["--trace", "t.csv", "--concurrency", "3"],
        &["--arrivals", "bursts", "--concurrency", "3"],
    ] {
        assert!(refusal(&[&place[..], more].concat()).contains("cannot be used with"), "{more:?}");
    }
    for (more, expected) in [
        (["--workload", "wmt14"], "trees-16"),
        (["--arrivals", "often"], "poisson"),
        (["--load", "0"], "expected a number above 0"),
        (["--seconds", "NaN"], "expected a number above 0"),
        (["--fill", "mask"], "expected INPUT=VALUE"),
    ] {
        let message = refusal(&[&place[..], &more].concat());
        assert!(message.contains(expected), "{message}");
    }
}

#[test]
fn loads_are_what_the_words_say() {
    let points = |more: &[&str]| {
        let words = [&["--url", "a:1", "--model", "m"][..], more].concat();
        parsed(&words).expect("they go together").points(false)
    };
    assert_eq!(points(&[]), Points::Shares(vec![0.25, 0.6, 0.9]));
    assert_eq!(points(&["--load", "0.5,1.1"]), Points::Shares(vec![0.5, 1.1]));
    assert_eq!(points(&["--rate", "20"]), Points::Rates(vec![20.0]));
    assert_eq!(points(&["--concurrency", "1,8"]), Points::Concurrencies(vec![1, 8]));
    assert_eq!(points(&["--arrivals", "stepped"]), Points::AsTheyAre);
    assert_eq!(points(&["--arrivals", "ramp", "--rate", "9"]), Points::Rates(vec![9.0]));
}

#[test]
fn what_cannot_be_measured_is_said() {
    let folder = repository();
    let refusal = |more: &[&str]| run(&on(folder.path(), more)).expect_err("it cannot be measured").to_string();
    assert!(refusal(&[]).contains("input 'x' has a varying dimension"), "{}", refusal(&[]));
    let unknown = refusal(&["--policy", "windwo", "--length", "3"]);
    assert!(unknown.contains("windwo"), "{unknown}");
    let knob = refusal(&["--policy", "lazy: { depth: 4 }", "--length", "3"]);
    assert!(knob.contains("unknown key 'depth'"), "{knob}");
    let missing = parsed(&["--model-repository", folder.path().to_str().expect("text"), "--model", "ech"]);
    let missing = run(&missing.expect("they go together")).expect_err("there is no such model").to_string();
    assert!(missing.contains("there is no model 'ech'") && missing.contains("it has 'echo'"), "{missing}");
    let absent = parsed(&["--url", "127.0.0.1:1", "--model", "m"]).expect("they go together");
    let absent = run(&absent).expect_err("no server answers there").to_string();
    assert!(absent.contains("cannot connect to '127.0.0.1:1'"), "{absent}");
    let address = parsed(&["--url", "localhost", "--model", "m"]).expect("they go together");
    assert!(run(&address).expect_err("the port is missing").to_string().contains("expected host:port"));
}
