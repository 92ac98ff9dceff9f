//! Fuzz targets: functions over arbitrary bytes that panic if a guarantee is violated.
//!
//! Each target is defined next to the reader that it tests. The fuzzers in `tests/fuzz` call it with inputs that
//! maximize code coverage, and `cargo test` with the seeds in `tests/corpus`.

pub use paternoster_config::fuzz::{json, pbtxt, yaml};
pub use paternoster_frontend::{grpc::frames, http::http};
pub use paternoster_onnx::fuzz::onnx;
pub use paternoster_wire::{fuzz::infer, json::fuzz::rest, shared_memory::fuzz::shared_memory};

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, fs, path::Path};

    use rand::RngExt;
    use rand_chacha::{ChaCha8Rng, rand_core::SeedableRng};

    use super::*;

    type Body = fn(&[u8]);

    /// Inputs that each target is called with beside its seeds. The fuzzers go on from there (`make fuzz`).
    const MUTATED: usize = 1000;

    /// The longest of them in bytes.
    const LONGEST: usize = 4096;

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

    /// Returns a seed with a few parts changed, removed, repeated, or taken from another seed.
    fn mutated(seeds: &[Vec<u8>], random: &mut ChaCha8Rng) -> Vec<u8> {
        let mut drawn = |bytes: &[u8]| {
            let (one, other) = (random.random_range(0..=bytes.len()), random.random_range(0..=bytes.len()));
            (one.min(other)..one.max(other), random.random::<u32>())
        };
        let pick = |choice: u32| &seeds[choice as usize % seeds.len()];
        let (_, choice) = drawn(&[]);
        let mut input = pick(choice).clone();
        for _ in 0..=choice % 4 {
            let (range, choice) = drawn(&input);
            match choice % 7 {
                0 => input[range].iter_mut().take(1).for_each(|byte| *byte ^= 1 << (choice / 7 % 8)),
                1 => input[range].iter_mut().take(4).for_each(|byte| *byte = (choice >> 8) as u8),
                // Lengths and counts are where readers go wrong.
                2 => input[range].iter_mut().take(1 + choice as usize / 7 % 10).for_each(|byte| *byte = 0xff),
                3 => drop(input.drain(range)),
                4 => {
                    let repeated = input[range.clone()].to_vec();
                    drop(input.splice(range.end..range.end, repeated));
                }
                5 => {
                    let other = pick(choice / 7);
                    let (taken, _) = drawn(other);
                    drop(input.splice(range, other[taken].iter().copied()));
                }
                _ => input.truncate(range.end),
            }
        }
        input.truncate(LONGEST);
        input
    }

    #[test]
    fn changed_seeds_keep_the_promises() {
        for (target, body) in TARGETS {
            let seeds: Vec<Vec<u8>> = files(&format!("corpus/{target}")).into_values().collect();
            let mut random = ChaCha8Rng::seed_from_u64(1);
            for number in 0..MUTATED {
                let input = mutated(&seeds, &mut random);
                let caught = std::panic::catch_unwind(|| body(&input));
                assert!(caught.is_ok(), "{target}, input {number}: {:?}", String::from_utf8_lossy(&input));
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
