use std::sync::Arc;

use bytes::Bytes;
use paternoster_engine::{OnnxEngine, Precision};
use paternoster_observe::budget::Budget;
use paternoster_onnx::ExternalFiles;

use super::*;

/// What a process reports that took 3 MB at most and keeps 2 MB.
const REPORT: &str = r#"{"peak_bytes":3000000,"kept_bytes":2000000}"#;

/// Tries a model with a shell script as the separate process.
fn opened(script: &str, time: Duration) -> Result<MemoryReport, LoadError> {
    let attempt = LoadAttempt::of_repository();
    opened_by(&mut Trying { attempt: &attempt, memory: None }, script, time)
}

fn opened_by(trying: &mut Trying<'_>, script: &str, time: Duration) -> Result<MemoryReport, LoadError> {
    let isolation = Isolation {
        program: "/bin/sh".into(),
        arguments: vec!["-c".to_owned(), script.to_owned()],
        scope: IsolationScope::All,
        memory_bytes: 1 << 30,
        time,
        cache: None,
    };
    let program = CellProgram {
        file: "m/1/model.onnx".into(),
        bytes: None,
        external: ExternalFiles::None,
        operators: Arc::default(),
        engine: OnnxEngine::OnnxRuntime,
        precision: Precision::Ieee,
        takes_texts: false,
    };
    // Larger than a pipe's buffer, so that a child that stops reading blocks the writer.
    let graph = vec![0; 1 << 20];
    isolation.try_open(Path::new("lib.so"), &program, &graph, &StageRequest::default(), trying)
}

const LONG: Duration = Duration::from_secs(600);

#[test]
fn a_process_that_ends_well_lets_the_model_through() {
    let took = MemoryReport { peak_bytes: 3_000_000, kept_bytes: 2_000_000 };
    assert_eq!(opened(&format!("cat > /dev/null; echo '{REPORT}'"), LONG), Ok(took));
    assert_eq!(opened(&format!("echo '{REPORT}'"), LONG), Ok(took), "whether it has read everything or not");
    let silent = opened("exit 0", LONG).expect_err("nothing is known of its memory").to_string();
    assert!(silent.starts_with("the separate process that opened it reported no memory"), "{silent}");
}

#[test]
fn a_reason_is_passed_on() {
    assert_eq!(opened("printf 'no such operator'; exit 3", LONG), Err(LoadError::engine("no such operator")));
    let short = opened("printf 'std::bad_alloc'; exit 4", LONG).expect_err("it had too little memory").to_string();
    assert_eq!(short, "std::bad_alloc; it had 1073741824 bytes (--isolate-model-load-memory-bytes)");
}

#[test]
fn a_crash_is_named_with_the_limits_and_their_flags() {
    let refused = opened("kill -SEGV $$", LONG).expect_err("it crashed").to_string();
    assert_eq!(
        refused,
        "the separate process that opened it was ended by signal 11 (SIGSEGV); its limits are 1073741824 bytes \
         (--isolate-model-load-memory-bytes) and 600 s (--isolate-model-load-timeout-secs)"
    );
    let refused = opened("exit 1", LONG).expect_err("it failed").to_string();
    assert!(refused.contains("ended with exit status: 1"), "{refused}");
}

#[test]
fn a_process_that_does_not_end_is_killed() {
    for script in ["exec sleep 600", "exec sleep 600 >&-"] {
        let refused = opened(script, Duration::from_millis(100)).expect_err("it does not end").to_string();
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
        takes_texts: false,
    };
    let covers = |scope, bytes| {
        let time = LONG;
        let isolation =
            Isolation { program: "p".into(), arguments: Vec::new(), scope, memory_bytes: 0, time, cache: None };
        isolation.covers(&program(bytes))
    };
    assert!(covers(IsolationScope::Uploaded, Some(Bytes::new())) && !covers(IsolationScope::Uploaded, None));
    assert!(covers(IsolationScope::All, Some(Bytes::new())) && covers(IsolationScope::All, None));
}

#[test]
fn a_load_that_is_ended_early_ends_the_process() {
    let attempt = LoadAttempt::of_repository();
    let mut trying = Trying { attempt: &attempt, memory: None };
    thread::scope(|scope| {
        let opening = scope.spawn(|| opened_by(&mut trying, "exec sleep 600", LONG));
        attempt.stop("its client left");
        assert_eq!(opening.join().expect("no panic"), Err(LoadError::new(LoadErrorKind::Stopped, "its client left")));
    });
}

#[test]
fn a_process_without_room_in_the_budget_is_ended() {
    let budget = Budget::of(64 << 20);
    let attempt = LoadAttempt::of_client(&budget);
    let mut trying = Trying { attempt: &attempt, memory: attempt.reservation() };
    // A shell that makes a string longer by 10 MB at a time, as a model does whose constants are folded.
    let greedy = "y=0123456789; i=0; while [ $i -lt 20 ]; do y=$y$y; i=$((i+1)); done; while :; do x=$x$y; done";
    let refused = opened_by(&mut trying, greedy, LONG).expect_err("it has 64 MiB").to_string();
    assert!(refused.starts_with("no memory for the model (--max-sent-model-bytes): "), "{refused}");
    drop(trying);
    assert_eq!((budget.used(), budget.refused()), (0, 1));
}

#[test]
fn memory_that_was_reserved_stays_until_the_peak_is_known() {
    let budget = Budget::of(100);
    let attempt = LoadAttempt::of_client(&budget);
    let mut trying = Trying { attempt: &attempt, memory: attempt.reservation() };
    trying.hold(60).expect("there is room");
    trying.look(u32::MAX).expect("a process that has ended needs nothing more");
    assert_eq!(budget.used(), 60);
    trying.hold(40).expect("less than before");
    assert_eq!(budget.used(), 40);
    trying.hold(101).expect_err("more than there is").to_string();
}
