//! Nodes of several versions in one task.

use std::{sync::mpsc, time::Duration};

use paternoster_batching::{CellularKnobs, Knobs, Policy};
use paternoster_observe::trace::{TraceLevel, TraceOptions, TraceSettings, TracedRequest, Tracer, Transport};
use paternoster_testing::program::{FakeProgram, until_stopped};
use tokio::runtime::Builder;

use super::*;
use crate::{InferRequest, ModelHandle, Pool, PoolOptions};

/// Creates a version that reads its digits in this order and whose cell has this program.
fn version(reversed: bool, program: Arc<dyn Program>) -> (ModelSpec, CellPrograms) {
    let unfolding = Unfolding {
        cells: vec![digit_cell()],
        segments: vec![segment("chain", chain(reversed), vec![emit("last", 0, EmitRange::Last)])],
        outputs: vec![emitted(0, 0)],
        limits: Vec::new(),
    };
    let spec = model(&[("tokens", &[-1])], 1);
    let programs = CellPrograms::new(&spec, unfolding, vec![program]).expect("it fits");
    (spec, programs)
}

fn rows(row: super::Row) -> Arc<Rows> {
    Arc::new(Rows { row, runs: Mutex::default() })
}

#[test]
fn a_run_has_rows_of_several_versions_each_of_which_keeps_its_own() {
    let program = rows(digits);
    let forth = Tried { rows: vec![Arc::clone(&program)], ..digit_chain(false) };
    let (spec, programs) = version(true, rows(digits));
    let back = Tried { spec, programs: Arc::new(programs), rows: Vec::new(), buffers: BufferPool::new(0) };
    let (one, two) = (forth.unfolded_state(&[(&[2], &[1, 2])]), back.unfolded_state(&[(&[2], &[3, 4])]));
    forth.task(0, &[(&one, 0), (&two, 0)]).expect("it runs");
    back.task(0, &[(&two, 1), (&one, 1)]).expect("it runs");
    let last = |unfolded_state: &UnfoldedState| values(&unfolded_state.reply().expect("it has run").outputs[0].data);
    assert_eq!((last(&one), last(&two)), (vec![12], vec![43]));
}

#[test]
fn nodes_of_other_programs_or_shapes_are_refused() {
    let forth = digit_chain(false);
    let (spec, programs) = version(false, rows(|inputs| vec![inputs[1].clone()]));
    let other = Tried { spec, programs: Arc::new(programs), rows: Vec::new(), buffers: BufferPool::new(0) };
    let unfolded_state = other.unfolded_state(&[(&[2], &[3, 4])]);
    assert_eq!(forth.task(0, &[(&unfolded_state, 0)]), Err("cell 'step': node 0 of a request is of cell 0".to_owned()));
    let kind = |tried: &Tried| tried.programs.knobs().0[0].kind;
    assert!(kind(&forth).is_some() && kind(&other).is_some());
    assert_ne!(kind(&forth), kind(&other), "of another origin");
    assert_eq!(kind(&forth), kind(&digit_chain(true)), "how requests unfold is of no account");
    let mut wide = forth.programs.unfolding().clone();
    wide.cells[0].max_rows = 3;
    let same = CellPrograms::new(&forth.spec, wide.clone(), vec![rows(digits)]).expect("it fits");
    assert_eq!(same.knobs().0[0].kind, kind(&forth), "nor how many run together");
    wide.cells[0].outputs.push(tensor("more", &[1]));
    let more = CellPrograms::new(&forth.spec, wide, vec![rows(digits)]).expect("it fits");
    assert_ne!(more.knobs().0[0].kind, kind(&forth), "it gives something else");
}

/// Returns a program whose first run waits.
fn held(rows: Arc<Rows>, until: mpsc::Receiver<()>) -> Arc<dyn Program> {
    let (origin, until) = (rows.origin(), Mutex::new(Some(until)));
    let program = FakeProgram::new(move |batch| {
        let first = until.lock().take();
        first.into_iter().for_each(|until| until.recv().expect("the test goes on"));
        rows.run(batch)
    });
    Arc::new(program.with_origin(origin))
}

fn up(pool: &Arc<Pool>, reversed: bool, program: Arc<dyn Program>) -> Arc<ModelHandle> {
    let (spec, programs) = version(reversed, program);
    let (cells, segments) = programs.knobs();
    let policy = Policy::Cellular(CellularKnobs { cells, segments, ..CellularKnobs::default() });
    Arc::new(pool.bring_up(spec, Knobs { policy, ..Knobs::default() }, programs).expect("the CPU has room"))
}

fn request(digits: &[i64]) -> InferRequest {
    let shape = Dims::from_slice(&[1, digits.len() as i64]);
    InferRequest::new(1, vec![Some(InputTensor { shape, data: bytes(digits) })])
}

#[test]
fn versions_on_a_pool_share_tasks_and_count_their_own_rows() {
    // The first task of each version would be limited to one row, since its time is unknown.
    let options = PoolOptions { cpu_lanes: 1, last_lane_limit: Duration::ZERO, ..PoolOptions::default() };
    let pool = Pool::start(&options).expect("threads start");
    let (go_on, until) = mpsc::channel();
    let (first, second) = (rows(digits), rows(digits));
    let (one, two) = (up(&pool, false, held(Arc::clone(&first), until)), up(&pool, true, Arc::clone(&second) as _));
    let futures = [one.submit(request(&[1, 2, 3])), two.submit(request(&[4, 5])), two.submit(request(&[6, 7]))];
    go_on.send(()).expect("the first run waits");
    let runtime = Builder::new_current_thread().build().expect("a runtime");
    let answers = futures.map(|future| {
        let response = runtime.block_on(future).expect("it runs");
        values(&response.outputs[0].data)
    });
    assert_eq!(answers, [[123], [54], [76]]);
    // The first request alone, then all three together twice.
    let runs: Vec<u32> = [&first, &second].iter().flat_map(|rows| rows.runs.lock().clone()).collect();
    assert_eq!(runs.iter().sum::<u32>(), 7);
    assert_eq!(runs.len(), 3, "{runs:?}");
    let counted = |handle: &ModelHandle| {
        let stats = handle.stats().snapshot();
        (stats.inference_count, stats.execution_count, stats.batch_stats.iter().map(|own| own.batch_size).max())
    };
    assert_eq!(counted(&one), (1, 3, Some(1)));
    assert_eq!(counted(&two), (2, 2, Some(2)));
}

/// Creates a version whose requests run their digits through one cell, then through another one with the same program.
fn twice(program: &Arc<dyn Program>) -> (ModelSpec, CellPrograms) {
    let emit_last = || vec![emit("last", 0, EmitRange::Last)];
    let again = CellSpec { name: "again".to_owned(), ..digit_cell() };
    let mut over_again = chain(false);
    over_again.0[0].cell = 1;
    let unfolding = Unfolding {
        cells: vec![digit_cell(), again],
        segments: vec![segment("once", chain(false), emit_last()), segment("again", over_again, emit_last())],
        outputs: vec![emitted(1, 0)],
        limits: Vec::new(),
    };
    let spec = model(&[("tokens", &[-1])], 1);
    let programs = CellPrograms::new(&spec, unfolding, vec![Arc::clone(program), Arc::clone(program)]);
    (spec, programs.expect("it fits"))
}

#[test]
fn two_cells_of_one_kind_of_one_version_share_tasks_although_it_runs_one_at_a_time() {
    let pool = Pool::start(&PoolOptions { cpu_lanes: 1, ..PoolOptions::default() }).expect("threads start");
    let (go_on, until) = mpsc::channel();
    let ran = rows(digits);
    let (spec, programs) = twice(&held(Arc::clone(&ran), until));
    let (cells, segments) = programs.knobs();
    let policy = Policy::Cellular(CellularKnobs { cells, segments, ..CellularKnobs::default() });
    let knobs = Knobs { policy, ..Knobs::default() };
    assert_eq!(knobs.max_in_flight, 1, "as on every CPU");
    let handle = Arc::new(pool.bring_up(spec, knobs, programs).expect("the CPU has room"));
    let futures = [handle.submit(request(&[1])), handle.submit(request(&[2, 3]))];
    go_on.send(()).expect("the first run waits");
    let runtime = Builder::new_current_thread().build().expect("a runtime");
    let answers = futures.map(|future| {
        let response = runtime.block_on(future).expect("it runs");
        values(&response.outputs[0].data)
    });
    assert_eq!(answers, [[1], [23]]);
    // The first request's only step in the second cell runs together with the other's first step in the first cell.
    assert_eq!(*ran.runs.lock(), [1, 2, 1, 1, 1]);
    let stats = handle.stats().snapshot();
    assert_eq!((stats.inference_count, stats.execution_count), (2, 5));
    assert_eq!(stats.batch_stats.iter().map(|own| own.batch_size).max(), Some(2));
    let rows_of = |cell: u16| handle.stats().stage(cell).expect("it has two").reading().rows;
    assert_eq!((rows_of(0), rows_of(1)), (3, 3), "each cell's own");
}

#[test]
fn the_trace_of_a_request_has_one_spell_for_the_steps_of_each_cell() {
    let folder = tempfile::TempDir::new().expect("a folder");
    let level = TraceLevel { timestamps: true, tensors: false };
    let settings = TraceSettings { level, rate: 1, ..TraceSettings::default() };
    let file = Some(folder.path().join("trace.json"));
    let tracer = Tracer::start(TraceOptions { settings, file, ..TraceOptions::default() }).expect("a thread");
    let head = tracer.head(&http::HeaderMap::new()).expect("it is on");
    let (transport, received) = (Transport::Grpc, head.came);
    let of = TracedRequest { transport, head, received, model: "twice", version: 1, id: "" };
    let trace = tracer.begin(&of).expect("every request is traced");

    let pool = Pool::start(&PoolOptions { cpu_lanes: 1, ..PoolOptions::default() }).expect("threads start");
    let program: Arc<dyn Program> = rows(digits);
    let (spec, programs) = twice(&program);
    let (cells, segments) = programs.knobs();
    let policy = Policy::Cellular(CellularKnobs { cells, segments, ..CellularKnobs::default() });
    let knobs = Knobs { policy, ..Knobs::default() };
    let handle = Arc::new(pool.bring_up(spec, knobs, programs).expect("the CPU has room"));
    let runtime = Builder::new_current_thread().build().expect("a runtime");
    let asked = InferRequest { trace: Some(Arc::clone(&trace)), ..request(&[1, 2, 3]) };
    runtime.block_on(handle.submit(asked)).expect("it runs");

    assert_eq!(trace.intervals(), [("step".to_owned(), 3), ("again".to_owned(), 3)], "three digits, through each cell");
}

/// Returns a program whose first run waits, and whose later runs report their rows and continue until they are stopped.
fn endless(rows: Arc<Rows>, until: mpsc::Receiver<()>, began: mpsc::Sender<u32>) -> Arc<dyn Program> {
    let (origin, until) = (rows.origin(), Mutex::new(Some(until)));
    let program = FakeProgram::new(move |batch| {
        let first = until.lock().take();
        if let Some(until) = first {
            until.recv().expect("the test goes on");
            return rows.run(batch);
        }
        // The receiver may be gone when the test has ended.
        let _ = began.send(batch.rows);
        until_stopped(batch)
    });
    Arc::new(program.with_origin(origin))
}

#[test]
fn a_shared_task_stops_when_the_last_of_its_requests_is_gone() {
    // The first task of each version would be limited to one row, since its time is unknown.
    let options = PoolOptions {
        cpu_lanes: 1,
        last_lane_limit: Duration::ZERO,
        task_time_limit: Duration::ZERO,
        ..PoolOptions::default()
    };
    let pool = Pool::start(&options).expect("threads start");
    let ((go_on, until), (began, begun)) = (mpsc::channel(), mpsc::channel());
    let program = endless(rows(digits), until, began);
    let (one, two) = (up(&pool, false, Arc::clone(&program)), up(&pool, true, program));
    let first = one.submit(request(&[1]));
    let futures = [one.submit(request(&[2, 3])), two.submit(request(&[4, 5]))];
    go_on.send(()).expect("the first run waits");
    let runtime = Builder::new_current_thread().build().expect("a runtime");
    runtime.block_on(first).expect("its only node ran");
    assert_eq!(begun.recv(), Ok(2), "both versions have a node in it");
    let [leaves, stays] = futures;
    drop(leaves);
    assert_eq!(pool.stats().snapshot().lanes.unwanted, 0, "a request waits for it");
    drop(stays);
    assert_eq!(pool.stats().snapshot().lanes.unwanted, 1);
    let response = runtime.block_on(up(&pool, false, rows(digits)).submit(request(&[7]))).expect("the lane is free");
    assert_eq!(values(&response.outputs[0].data), [7]);
    let ended = |handle: &ModelHandle| {
        let read = handle.stats().reading();
        (read.failures.backend, read.failures.canceled)
    };
    assert_eq!((ended(&one), ended(&two)), ((0, 1), (0, 1)));
}
