//! Fuzzing of the readers over a small committed corpus: whatever the text, they answer, and answer soon.

use std::{fs, path::Path};

use proptest::{prelude::*, sample::Index};

use super::{Origin, check, complete, convert, json, latencies, pb, pbtxt, yaml};

/// The body for `config.pbtxt`: reads, and takes the result as far as the conversion.
fn pbtxt_body(bytes: &[u8]) -> bool {
    pbtxt::parse("config.pbtxt", bytes).map(|(config, origin)| onwards(config, &origin)).is_ok()
}

/// The body for `model.yaml`.
fn yaml_body(bytes: &[u8]) -> bool {
    yaml::parse("model.yaml", bytes).map(|(config, origin)| onwards(config, &origin)).is_ok()
}

/// The body for JSON overrides.
fn json_body(bytes: &[u8]) -> bool {
    let text = String::from_utf8_lossy(bytes);
    json::parse(&text).map(|(config, origin)| onwards(config, &origin)).is_ok()
}

fn onwards(mut config: pb::ModelConfig, origin: &Origin) {
    let accepted = check::supported(&config, &config.name, origin).is_ok();
    let hints = check::hints(&config);
    if let Some(latencies::Place::Here(table)) = latencies::place(&config) {
        let stages = latencies::parse(table, 2).map(|table| table.stages.len());
        assert!(matches!(stages, Ok(2) | Err(_)), "one list for each stage");
    }
    complete::defaults(&mut config, "m");
    complete::scheduler(&mut config);
    if accepted && check::consistent(&config, None, origin).is_ok() {
        let converted = convert::model(&config, 1, &std::collections::BTreeMap::new(), origin);
        assert!(converted.is_ok(), "what was checked converts: {converted:?} with hints {hints:?}");
    }
}

fn corpus(kind: &str) -> Vec<(String, Vec<u8>)> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus").join(kind);
    let entries = fs::read_dir(&directory).expect("the corpus is committed");
    let mut files: Vec<_> = entries
        .map(|entry| {
            let path = entry.unwrap().path();
            (path.file_name().unwrap().to_string_lossy().into_owned(), fs::read(&path).unwrap())
        })
        .collect();
    files.sort();
    files
}

/// One change to a text: cut, doubled, overwritten or grafted from another file.
fn mutate(files: &[(String, Vec<u8>)], picks: &[Index], noise: &[u8]) -> Vec<u8> {
    let mut bytes = picks[0].get(files).1.clone();
    for pair in picks[1..].chunks_exact(3) {
        let (from, to) = (pair[0].index(bytes.len() + 1), pair[1].index(bytes.len() + 1));
        let range = from.min(to)..from.max(to).min(from.min(to) + 64);
        match pair[2].index(5) {
            0 => drop(bytes.drain(range)),
            1 => {
                let copy = bytes[range.clone()].to_vec();
                bytes.splice(range.end..range.end, copy);
            }
            2 => drop(bytes.splice(range, noise.iter().copied())),
            3 => bytes.truncate(from),
            _ => {
                let other = &pair[2].get(files).1;
                let start = pair[0].index(other.len() + 1);
                let graft = other[start..].iter().copied().take(64);
                bytes.splice(range, graft);
            }
        }
    }
    bytes
}

#[test]
fn the_corpus_reads_as_its_names_say() {
    type Body = fn(&[u8]) -> bool;
    for (kind, body) in [("pbtxt", pbtxt_body as Body), ("yaml", yaml_body)] {
        let files = corpus(kind);
        assert!(files.len() >= 10, "{kind} has a corpus");
        for (name, bytes) in files {
            assert_eq!(body(&bytes), name.starts_with("ok_"), "{kind}/{name}");
        }
    }
}

#[test]
fn large_texts_are_answered_too() {
    const SIZE: usize = 1 << 16;
    for piece in
        ["[", "{", "<", "input{", "input {}\n", "input[{}]", "- ", "? ", "a:\n", "&a ", "*", "\"", "#", "'", "a: {b: "]
    {
        let text = piece.repeat(SIZE / piece.len());
        pbtxt_body(text.as_bytes());
        yaml_body(text.as_bytes());
        json_body(text.as_bytes());
    }
    let mut tensors: String =
        (0..4_000).map(|number| format!("input {{ name: 't{number}' data_type: TYPE_INT8 dims: 1 }}")).collect();
    tensors.push_str("output { name: 'y' data_type: TYPE_INT8 dims: 1 }");
    assert!(pbtxt_body(tensors.as_bytes()), "many tensors on one line");
    let keys: String = (0..8_000).map(|number| format!("k{number}: 1\n")).collect();
    assert!(!yaml_body(keys.as_bytes()), "many keys that nobody knows");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn mutated_texts_never_panic(
        picks in prop::collection::vec(any::<Index>(), 4..14),
        noise in prop::collection::vec(any::<u8>(), 0..24),
    ) {
        pbtxt_body(&mutate(&corpus("pbtxt"), &picks, &noise));
        yaml_body(&mutate(&corpus("yaml"), &picks, &noise));
    }

    #[test]
    fn any_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..256)) {
        pbtxt_body(&bytes);
        yaml_body(&bytes);
        json_body(&bytes);
    }

    #[test]
    fn brackets_and_marks_never_panic(text in "[\\[\\]{}<>:;,#\"'\\-&*!|>%@ \\na-c0-2.]{0,80}") {
        pbtxt_body(text.as_bytes());
        yaml_body(text.as_bytes());
        json_body(text.as_bytes());
    }
}
