//! What every reader answers over a small committed corpus: whatever the text, it answers, and answers soon.

use std::{fs, path::Path};

use proptest::{prelude::*, sample::Index};

use super::{read_json, read_pbtxt, read_yaml};

fn corpus(kind: &str) -> Vec<(String, Vec<u8>)> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/corpus").join(kind);
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
    for (kind, body) in [("pbtxt", read_pbtxt as Body), ("yaml", read_yaml)] {
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
        read_pbtxt(text.as_bytes());
        read_yaml(text.as_bytes());
        read_json(text.as_bytes());
    }
    let mut tensors: String =
        (0..4_000).map(|number| format!("input {{ name: 't{number}' data_type: TYPE_INT8 dims: 1 }}")).collect();
    tensors.push_str("output { name: 'y' data_type: TYPE_INT8 dims: 1 }");
    assert!(read_pbtxt(tensors.as_bytes()), "many tensors on one line");
    let keys: String = (0..8_000).map(|number| format!("k{number}: 1\n")).collect();
    assert!(!read_yaml(keys.as_bytes()), "many unknown keys");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn mutated_texts_never_panic(
        picks in prop::collection::vec(any::<Index>(), 4..14),
        noise in prop::collection::vec(any::<u8>(), 0..24),
    ) {
        read_pbtxt(&mutate(&corpus("pbtxt"), &picks, &noise));
        read_yaml(&mutate(&corpus("yaml"), &picks, &noise));
    }

    #[test]
    fn any_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..256)) {
        read_pbtxt(&bytes);
        read_yaml(&bytes);
        read_json(&bytes);
    }

    #[test]
    fn brackets_and_marks_never_panic(text in "[\\[\\]{}<>:;,#\"'\\-&*!|>%@ \\na-c0-2.]{0,80}") {
        read_pbtxt(text.as_bytes());
        read_yaml(text.as_bytes());
        read_json(text.as_bytes());
    }
}
