//! The ModelInfer outcomes measured on Triton 2.51, as far as the request alone determines them.

use std::{fs, path::PathBuf};

use paternoster_model::ModelSpec;
use prost::Message;

use super::models;
use crate::{Kind, RequestError, SharedMemory, decode::decode, pb::ModelInferRequest};

/// Measured outcomes that are the same here but are decided elsewhere, because they concern which model serves the
/// request.
const RESOLVED_BEFORE: [&str; 6] = [
    "explicit.infer_after_unload",
    "explicit.infer_during_unload",
    "explicit.infer_not_loaded",
    "infer.nonnumeric_version",
    "infer.unknown_model",
    "infer.unknown_version",
];

/// Whether a request may continue its sequence is decided after decoding.
const SEQUENCES: [&str; 2] = ["infer.seq.after_end", "infer.seq.empty_string"];

/// Intended difference: Triton's multiplication of dimensions overflows, so the request reaches the engine, which fails
/// it (INTERNAL). Here the request is rejected.
const REFUSED_INSTEAD_OF_FAILED: &str = "infer.huge_dim_overflow";

/// Triton refuses it from 2.73 on.
const REFUSED_SINCE: &str = "infer.dup_output";

struct Case {
    name: String,
    spec: ModelSpec,
    code: String,
    message: String,
    request: ModelInferRequest,
}

impl Case {
    fn refusal(&self) -> Option<RequestError> {
        decode(self.request.clone(), &self.spec, &SharedMemory::new(true)).err()
    }
}

/// Returns the files of the corpus: name and content.
pub(crate) fn corpus() -> Vec<(String, Vec<u8>)> {
    let directory = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/corpus/infer");
    let entries = fs::read_dir(directory).expect("the corpus is part of the sources");
    let files = entries.map(|entry| entry.expect("a readable directory").path());
    files
        .filter(|path| path.extension().is_some_and(|extension| extension == "pb"))
        .map(|path| {
            let name = path.file_stem().expect("a name before .pb").to_string_lossy().into_owned();
            (name, fs::read(&path).expect("a readable file"))
        })
        .collect()
}

fn cases() -> Vec<Case> {
    let outcomes = include_str!("../../../../tests/corpus/infer/outcomes.tsv");
    let corpus = corpus();
    let mut cases = Vec::new();
    for line in outcomes.lines() {
        let mut fields = line.split('\t');
        let mut field = || fields.next().expect("name, model, code and message").to_owned();
        let (name, model, code, message) = (field(), field(), field(), field());
        if RESOLVED_BEFORE.contains(&name.as_str()) || SEQUENCES.contains(&name.as_str()) {
            continue;
        }
        let mut spec = models::measured(&model).unwrap_or_else(|| panic!("{name}: no model {model}"));
        if name == "explicit.infer_batch3_after_override2" {
            spec.max_batch_size = 2;
        }
        let (_, bytes) = corpus.iter().find(|(file, _)| *file == name).expect("a request for every outcome");
        let request = ModelInferRequest::decode(bytes.as_slice()).expect("a request of a real client");
        cases.push(Case { name, spec, code, message, request });
    }
    cases
}

/// Returns the names and types in quotes: the facts of a message.
fn facts(message: &str) -> impl Iterator<Item = &str> {
    message.split('\'').skip(1).step_by(2)
}

#[test]
fn every_outcome_has_the_measured_status_code() {
    let cases = cases();
    assert_eq!(cases.len(), 51, "all measured requests but those decided elsewhere");
    for case in cases {
        let expected = match case.name.as_str() {
            REFUSED_INSTEAD_OF_FAILED | REFUSED_SINCE => "INVALID_ARGUMENT",
            _ => &case.code,
        };
        let refusal = case.refusal();
        let got = match &refusal {
            None => "OK",
            Some(error) => match error.kind() {
                Kind::InvalidArgument => "INVALID_ARGUMENT",
                Kind::NotFound => "NOT_FOUND",
                _ => "another",
            },
        };
        assert_eq!(got, expected, "{}: {refusal:?}", case.name);
    }
}

#[test]
fn messages_name_the_request_where_triton_names_it() {
    for case in cases() {
        let Some(refusal) = case.refusal() else { continue };
        let prefix = |message: &str| message.starts_with("[request id: ");
        if case.name != REFUSED_INSTEAD_OF_FAILED && case.name != REFUSED_SINCE {
            assert_eq!(prefix(refusal.message()), prefix(&case.message), "{}: {refusal}", case.name);
        }
        assert_eq!(refusal.id(), case.request.id, "{}", case.name);
    }
}

#[test]
fn messages_name_the_facts_that_triton_names() {
    for case in cases() {
        let Some(refusal) = case.refusal() else { continue };
        if case.name == REFUSED_INSTEAD_OF_FAILED {
            continue;
        }
        for fact in facts(&case.message) {
            let named = match fact {
                // Here the message quotes the text that was sent.
                "<invalid>" => "FOO",
                other => other,
            };
            assert!(refusal.message().contains(named), "{}: '{named}' is missing from {refusal}", case.name);
        }
    }
}
