use std::sync::Arc;

use bytes::Bytes;

use super::*;
use crate::{
    engine::{OnnxEngine, Precision},
    onnx::ExternalFiles,
};

/// Tries a model with a shell script as the separate process.
fn opened(script: &str, time: Duration) -> Result<(), String> {
    let isolation = Isolation {
        program: "/bin/sh".into(),
        arguments: vec!["-c".to_owned(), script.to_owned()],
        scope: IsolationScope::All,
        memory_bytes: 1 << 30,
        time,
    };
    let program = CellProgram {
        file: "m/1/model.onnx".into(),
        bytes: None,
        external: ExternalFiles::None,
        operators: Arc::default(),
        engine: OnnxEngine::OnnxRuntime,
        precision: Precision::Ieee,
    };
    // Larger than a pipe's buffer, so that a child that stops reading blocks the writer.
    let graph = vec![0; 1 << 20];
    isolation.try_open(Path::new("lib.so"), &program, &graph, &StageRequest::default())
}

const LONG: Duration = Duration::from_secs(600);

#[test]
fn a_process_that_ends_well_lets_the_model_through() {
    assert_eq!(opened("cat > /dev/null", LONG), Ok(()));
    assert_eq!(opened("exit 0", LONG), Ok(()), "whether it has read everything or not");
}

#[test]
fn a_reason_is_passed_on() {
    assert_eq!(opened("printf 'no such operator'; exit 3", LONG), Err("no such operator".to_owned()));
    let short = opened("printf 'std::bad_alloc'; exit 3", LONG).expect_err("it had too little memory");
    assert_eq!(short, "std::bad_alloc; it had 1073741824 bytes (--isolate-model-load-memory-bytes)");
}

#[test]
fn a_crash_is_named_with_the_limits_and_their_flags() {
    let refused = opened("kill -SEGV $$", LONG).expect_err("it crashed");
    assert_eq!(
        refused,
        "the separate process that opened it was ended by signal 11 (SIGSEGV); its limits are 1073741824 bytes \
         (--isolate-model-load-memory-bytes) and 600 s (--isolate-model-load-timeout-secs)"
    );
    let refused = opened("exit 1", LONG).expect_err("it failed");
    assert!(refused.contains("ended with exit status: 1"), "{refused}");
}

#[test]
fn a_process_that_does_not_end_is_killed() {
    for script in ["exec sleep 600", "exec sleep 600 >&-"] {
        let refused = opened(script, Duration::from_millis(100)).expect_err("it does not end");
        assert!(refused.ends_with("longer than 0 s (--isolate-model-load-timeout-secs)"), "{refused}");
    }
}

#[test]
fn uploaded_models_are_tried_and_others_where_all_are() {
    let program = |bytes| CellProgram {
        file: "m".into(),
        bytes,
        external: ExternalFiles::None,
        operators: Arc::default(),
        engine: OnnxEngine::OnnxRuntime,
        precision: Precision::Ieee,
    };
    let covers = |scope, bytes| {
        let time = LONG;
        let isolation = Isolation { program: "p".into(), arguments: Vec::new(), scope, memory_bytes: 0, time };
        isolation.covers(&program(bytes))
    };
    assert!(covers(IsolationScope::Uploaded, Some(Bytes::new())) && !covers(IsolationScope::Uploaded, None));
    assert!(covers(IsolationScope::All, Some(Bytes::new())) && covers(IsolationScope::All, None));
}
