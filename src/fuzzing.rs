//! Fuzz targets: functions over arbitrary bytes that panic if a guarantee is violated.
//!
//! Each target is defined next to the reader that it tests. The fuzzers in `tests/fuzz` call it with inputs that
//! maximize code coverage, and `cargo test` with the seeds in `tests/corpus`.

pub use crate::{
    frontend::{grpc::frames, http::http},
    onnx::fuzz::onnx,
    repository::config::fuzz::{json, pbtxt, yaml},
    wire::{fuzz::infer, json::fuzz::rest, shared_memory::fuzz::shared_memory},
};

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, fs, path::Path};

    use super::*;

    type Body = fn(&[u8]);

    /// All targets, with the names of their folders in `tests/corpus` and of their files in `tests/fuzz`.
    const TARGETS: [(&str, Body); 9] = [
        ("frames", frames),
        ("http", http),
        ("infer", infer),
        ("json", json),
        ("onnx", onnx),
        ("pbtxt", pbtxt),
        ("rest", rest),
        ("shared_memory", shared_memory),
        ("yaml", yaml),
    ];

    /// Returns the files in a folder of `tests`, by name.
    fn files(folder: &str) -> BTreeMap<String, Vec<u8>> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(folder);
        let entries = fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
        entries
            .map(|entry| {
                let path = entry.expect("it can be listed").path();
                let name = path.file_name().expect("a file").to_string_lossy().into_owned();
                (name, fs::read(&path).expect("it can be read"))
            })
            .collect()
    }

    #[test]
    fn every_seed_keeps_the_promises() {
        for (target, body) in TARGETS {
            let seeds = files(&format!("corpus/{target}"));
            assert!(seeds.len() >= 5, "{target} has {} seeds", seeds.len());
            for (name, bytes) in seeds {
                println!("{target}/{name}");
                body(&bytes);
            }
        }
    }

    #[test]
    fn every_body_has_a_fuzz_target() {
        let targets = files("fuzz/fuzz_targets");
        let expected: Vec<String> = TARGETS.iter().map(|(name, _)| format!("{name}.rs")).collect();
        assert_eq!(targets.keys().cloned().collect::<Vec<_>>(), expected);
        for ((name, source), (target, _)) in targets.iter().zip(TARGETS) {
            let source = String::from_utf8_lossy(source);
            assert!(source.contains(&format!("paternoster::fuzzing::{target}(")), "{name} calls its body");
        }
    }
}
