//! Random requests on one card and on several, with cancellations, errors and lost cards.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use cudarc::driver::sys::CUresult::{CUDA_ERROR_ILLEGAL_ADDRESS, CUDA_ERROR_OUT_OF_MEMORY};
use paternoster_batching::Knobs;
use paternoster_executor::{
    BringUp, CardsOptions, InferError, Journal, ModelHandle, Placement, Pool, PoolOptions, Response, Site,
    StagePrograms, check_cards,
};
use paternoster_model::ModelSpec;
use paternoster_testing::{
    fake_control::{fail_calls, fail_none, traced},
    fake_cuda::{with_card, with_fake_cuda},
};

use crate::{
    models::{self, Asked, FORMS, Form},
    rng::Rng,
};

/// Time limit of waits, longer than anything here takes.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) const MAX_ROWS: u32 = 5;
const MOST_TOKENS: u64 = models::MOST_TOKENS as u64;

pub(crate) fn pool(lanes: u16, depth: u16) -> Arc<Pool> {
    journaled(lanes, depth, None)
}

/// Creates a pool whose card keeps the given journal, if any.
pub(crate) fn journaled(lanes: u16, depth: u16, journal: Option<Arc<Journal>>) -> Arc<Pool> {
    let horizon_ns = if depth > 1 { PATIENCE.as_nanos() as u64 } else { 0 };
    let cards = CardsOptions { ordinals: vec![0], lanes, horizon_ns, depth, journal, ..CardsOptions::default() };
    Pool::start(&PoolOptions { cards, cpu_lanes: 1, ..PoolOptions::default() }).expect("there is a card")
}

pub(crate) fn bring_up(pool: &Arc<Pool>, form: Form, slots: u32) -> Arc<ModelHandle> {
    Arc::new(on_cards(pool, form.version(MAX_ROWS, slots)).expect("the card has room"))
}

/// Loads a version on the pool's cards only.
pub(crate) fn on_cards(
    pool: &Arc<Pool>,
    (spec, knobs, programs): (ModelSpec, Knobs, StagePrograms),
) -> Result<ModelHandle, String> {
    let placement = Placement::On(vec![Site::Cards]);
    pool.bring_up_on(spec, knobs, programs, &BringUp { placement, ..BringUp::default() })
}

pub(crate) fn values(response: &Response) -> Vec<u64> {
    let data = &response.outputs[0].data;
    data.chunks_exact(8).map(|value| u64::from_le_bytes(value.try_into().expect("8 bytes"))).collect()
}

pub(crate) fn block_on<F: Future>(future: F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
    runtime.block_on(async { tokio::time::timeout(PATIENCE, future).await.expect("every request is answered") })
}

/// Submits requests at once and compares their answers with the expected ones. Cancelled requests are not checked.
pub(crate) fn run(handle: &Arc<ModelHandle>, form: Form, rng: &mut Rng, count: usize, given_up: u64) {
    let mut waiting = Vec::new();
    for _ in 0..count {
        let asked = form.ask(rng, MOST_TOKENS);
        let answer = handle.submit(form.request(&asked));
        if !rng.permille(given_up) {
            waiting.push((asked, answer));
        }
    }
    block_on(async {
        for (asked, answer) in waiting {
            let response = answer.await.unwrap_or_else(|error| panic!("{form:?} {asked:?}: {error}"));
            assert_eq!(values(&response), form.answer(&asked), "{form:?} {asked:?}");
        }
    });
}

#[test]
fn requests_of_every_form_are_answered_with_what_their_nodes_make() {
    with_card(|| {
        let mut rng = Rng::new(1);
        for (lanes, depth) in [(1, 1), (2, 1), (2, 3)] {
            let pool = pool(lanes, depth);
            for form in FORMS {
                let handle = bring_up(&pool, form, 64);
                run(&handle, form, &mut rng, 60, 0);
                let counted = handle.stats().snapshot();
                let (requests, executions) = (counted.inference_count, counted.execution_count);
                assert_eq!(requests, 60, "{form:?}");
                let batches: u64 = counted.batch_stats.iter().map(|batch| batch.compute_infer.count).sum();
                assert!(executions > 0 && executions == batches, "{executions} executions in {batches} batches");
            }
            assert!(pool.stop(PATIENCE));
        }
    });
}

#[test]
fn few_slots_go_round() {
    with_card(|| {
        let mut rng = Rng::new(2);
        let pool = pool(2, 2);
        for form in FORMS {
            let slots = if form == Form::Tree { MOST_TOKENS as u32 } else { 3 };
            let handle = bring_up(&pool, form, slots);
            run(&handle, form, &mut rng, 40, 0);
        }
        assert!(pool.stop(PATIENCE));
    });
}

#[test]
fn requests_that_are_given_up_leave_nothing_behind() {
    with_card(|| {
        let mut rng = Rng::new(3);
        let pool = pool(2, 2);
        for form in FORMS {
            let handle = bring_up(&pool, form, 16);
            for _ in 0..4 {
                run(&handle, form, &mut rng, 20, 400);
            }
        }
        assert!(pool.stop(PATIENCE));
        assert_eq!(pool.in_flight(), 0);
    });
}

#[test]
fn launches_that_are_refused_are_made_again_and_every_answer_is_right() {
    with_fake_cuda(&[], || {
        let mut rng = Rng::new(4);
        let pool = pool(2, 2);
        for form in FORMS {
            let handle = bring_up(&pool, form, 64);
            for nth in 1..12 {
                fail_calls(c"cuGraphLaunch", nth, CUDA_ERROR_OUT_OF_MEMORY);
                // A request that is refused while it runs alone fails, so these errors are accepted below.
                let asked: Vec<Asked> = (0..6).map(|_| form.ask(&mut rng, MOST_TOKENS)).collect();
                let answers: Vec<_> = asked.iter().map(|asked| handle.submit(form.request(asked))).collect();
                block_on(async {
                    for (asked, answer) in asked.iter().zip(answers) {
                        match answer.await {
                            Ok(response) => assert_eq!(values(&response), form.answer(asked), "{form:?} {asked:?}"),
                            Err(error) => {
                                assert!(error.to_string().contains("OUT_OF_MEMORY"), "{form:?} {asked:?}: {error}");
                            }
                        }
                    }
                });
                fail_none();
            }
        }
        assert_eq!(pool.stats().snapshot().tasks_running, 0);
        assert!(pool.stop(PATIENCE));
    });
}

#[test]
fn a_version_that_is_refused_leaves_nothing_on_the_card() {
    const RESERVING: [(&str, &str); 3] = [
        ("cuMemAlloc_v2", "cuMemFree_v2"),
        ("cuMemHostAlloc", "cuMemFreeHost"),
        ("cuGraphInstantiateWithFlags", "cuGraphExecDestroy"),
    ];
    with_fake_cuda(&[], || {
        let pool = pool(2, 2);
        // Versions are freed some time after they are dropped, so none is dropped here.
        let mut loaded = Vec::new();
        for form in [Form::TwoChains, Form::Tree] {
            for (reserve, _) in RESERVING {
                let mut refused = 0;
                for nth in 1.. {
                    let mut handle = None;
                    let name = std::ffi::CString::new(reserve).expect("a name");
                    let calls = functions_called(|| {
                        fail_calls(&name, nth, CUDA_ERROR_OUT_OF_MEMORY);
                        handle = on_cards(&pool, form.version(MAX_ROWS, 64)).ok();
                        fail_none();
                    });
                    if let Some(handle) = handle {
                        loaded.push(handle);
                        break;
                    }
                    refused += 1;
                    let count = |function: &str| calls.iter().filter(|call| *call == function).count();
                    for (own, free) in RESERVING {
                        let reserved = count(own) - usize::from(own == reserve);
                        assert_eq!(reserved, count(free), "{form:?}: {own}, when {reserve} {nth} fails");
                    }
                }
                assert!(refused > 4, "{reserve} fails {refused} times");
            }
        }
        assert!(pool.stop(PATIENCE));
    });
}

#[test]
fn what_the_card_cannot_hold_runs_on_the_cpu_where_that_is_left_to_the_pool() {
    with_fake_cuda(&[], || {
        let mut rng = Rng::new(9);
        let pool = pool(1, 1);
        let form = Form::Chain;
        fail_calls(c"cuMemAlloc_v2", 1, CUDA_ERROR_OUT_OF_MEMORY);
        let (spec, knobs, programs) = form.version(MAX_ROWS, 64);
        let handle = Arc::new(pool.bring_up(spec, knobs, programs).expect("there is the CPU"));
        fail_none();
        let answer = block_on(handle.submit(form.request(&form.ask(&mut rng, 3))));
        let error = answer.expect_err("the program has nothing for the CPU").to_string();
        assert!(error.contains("it runs on cards alone"), "{error}");
        run(&bring_up(&pool, form, 64), form, &mut rng, 10, 0);
        assert!(pool.stop(PATIENCE));
    });
}

#[test]
fn a_request_of_more_steps_than_the_card_has_entries_for_is_refused_at_once() {
    with_card(|| {
        let mut rng = Rng::new(10);
        let pool = pool(1, 2);
        let longest = Asked { tokens: (1..=MOST_TOKENS).collect(), children: vec![] };
        let longer = Asked { tokens: (0..=MOST_TOKENS).collect(), children: vec![] };
        let cases = [
            (Form::Growing, "segment 'grow' would have 13 entries of 'v', expected at most 12"),
            (Form::Held, "segment 'memory' would have 13 entries of 'v', expected at most 12"),
            (Form::TwoLayers, "segment 'lower' would have 13 entries of 'v', expected at most 12"),
            (Form::Rows, "segment 'each' would have 13 entries of 'x', expected at most 12"),
            (Form::Marked, "segment 'mark' would have 13 entries of 'entries', expected at most 12"),
        ];
        for (form, said) in cases {
            let handle = bring_up(&pool, form, 16);
            block_on(async {
                let refused = handle.submit(form.request(&longer)).await.expect_err("there is no room for it");
                assert!(
                    matches!(&refused, InferError::Invalid(reason) if reason.contains(said)),
                    "{form:?}: {refused}"
                );
                let response = handle.submit(form.request(&longest)).await.expect("there is for this");
                assert_eq!(values(&response), form.answer(&longest), "{form:?}");
            });
            run(&handle, form, &mut rng, 10, 0);
        }
        assert!(pool.stop(PATIENCE));
    });
}

#[test]
fn a_cell_that_is_not_told_how_long_its_input_is_is_refused_by_name() {
    let (spec, programs) = Form::untold();
    let refused = check_cards(&spec, &programs).expect_err("its rows cannot be padded");
    let expected = "cell 'mark': input 'entries' varies in its length, which the cell is not told ('length')";
    assert_eq!(refused, expected);
}

#[test]
fn a_program_that_runs_several_steps_at_a_time_is_refused_by_name() {
    let (spec, programs) = Form::chunked();
    let refused = check_cards(&spec, &programs).expect_err("plans run one step");
    let expected = "cell 'step': runs several steps at a time in the segment 'only' ('chunk'), which plans do not";
    assert_eq!(refused, expected);
}

#[test]
fn state_that_does_not_fit_is_refused_by_name() {
    with_fake_cuda(&[("FAKE_CUDA_MEMORY", "67108864")], || {
        let pool = pool(1, 1);
        // Fails the first allocation of slots.
        fail_calls(c"cuMemAlloc_v2", 1, CUDA_ERROR_OUT_OF_MEMORY);
        let refused = on_cards(&pool, Form::Growing.version(MAX_ROWS, 64)).expect_err("nothing is reserved");
        fail_none();
        assert!(refused.contains("the state of its requests, 64 slots of 96 bytes"), "{refused}");
        let mut rng = Rng::new(11);
        // The slots are limited to those that fit, whatever is asked for.
        run(&bring_up(&pool, Form::Growing, u32::MAX), Form::Growing, &mut rng, 20, 0);
        assert!(pool.stop(PATIENCE));
    });
}

#[test]
fn an_index_beyond_its_table_fails_its_request_alone() {
    with_card(|| {
        let mut rng = Rng::new(5);
        let pool = pool(1, 2);
        let handle = bring_up(&pool, Form::Chain, 64);
        let mut bad = Form::Chain.ask(&mut rng, MOST_TOKENS);
        bad.tokens[0] = u64::MAX;
        let good: Vec<Asked> = (0..8).map(|_| Form::Chain.ask(&mut rng, MOST_TOKENS)).collect();
        let refused = handle.submit(Form::Chain.request(&bad));
        let answers: Vec<_> = good.iter().map(|asked| handle.submit(Form::Chain.request(asked))).collect();
        block_on(async {
            let error = refused.await.expect_err("no table has such a row").to_string();
            assert!(error.contains("beyond its table"), "{error}");
            for (asked, answer) in good.iter().zip(answers) {
                let response = answer.await.expect("the others go on");
                assert_eq!(values(&response), Form::Chain.answer(asked));
            }
        });
        assert!(pool.stop(PATIENCE));
    });
}

/// Submits requests at once and returns how many end because the card is lost. The others are compared with the
/// expected answers.
fn count_lost(handle: &Arc<ModelHandle>, asked: &[Asked]) -> usize {
    let answers: Vec<_> = asked.iter().map(|asked| handle.submit(Form::Chain.request(asked))).collect();
    let mut lost = 0;
    block_on(async {
        for (asked, answer) in asked.iter().zip(answers) {
            match answer.await {
                Ok(response) => assert_eq!(values(&response), Form::Chain.answer(asked)),
                Err(InferError::DeviceLost) => lost += 1,
                Err(error) => panic!("{error}"),
            }
        }
    });
    lost
}

#[test]
fn a_lost_card_ends_its_requests_and_takes_no_more() {
    with_fake_cuda(&[], || {
        let mut rng = Rng::new(6);
        let pool = pool(2, 2);
        let handle = bring_up(&pool, Form::Chain, 64);
        run(&handle, Form::Chain, &mut rng, 10, 0);
        fail_calls(c"cuGraphLaunch", 9, CUDA_ERROR_ILLEGAL_ADDRESS);
        let asked: Vec<Asked> = (0..40).map(|_| Form::Chain.ask(&mut rng, MOST_TOKENS)).collect();
        assert!(count_lost(&handle, &asked) > 0);
        let late = block_on(handle.submit(Form::Chain.request(&asked[0])));
        assert!(matches!(late, Err(InferError::DeviceLost)), "{late:?}");
        assert_eq!(pool.responsiveness().borrow().lost_devices, 1);
        pool.stop(PATIENCE);
        assert_eq!(pool.stats().snapshot().tasks_running, 0);
    });
}

#[test]
fn a_card_with_no_ticket_for_what_runs_is_lost() {
    with_fake_cuda(&[], || {
        let mut rng = Rng::new(8);
        let pool = pool(2, 2);
        let handle = bring_up(&pool, Form::Chain, 64);
        fail_calls(c"cuEventRecord", 9, CUDA_ERROR_OUT_OF_MEMORY);
        let started = Instant::now();
        let mut lost = 0;
        // An event is recorded only for what is not complete yet, so how many rounds it takes depends on the host.
        while lost == 0 {
            assert!(started.elapsed() < PATIENCE, "no event is ever recorded");
            let asked: Vec<Asked> = (0..40).map(|_| Form::Chain.ask(&mut rng, MOST_TOKENS)).collect();
            lost += count_lost(&handle, &asked);
        }
        assert_eq!(pool.responsiveness().borrow().lost_devices, 1);
        pool.stop(PATIENCE);
        assert_eq!(pool.stats().snapshot().tasks_running, 0);
    });
}

/// Returns the driver's functions that are called while `body` runs, except the poller's checks of the streams.
pub(crate) fn functions_called(body: impl FnOnce()) -> Vec<String> {
    let function = |line: &str| line.split_whitespace().nth(1)?.split('(').next().map(str::to_owned);
    let calls = traced(body);
    calls.lines().filter_map(function).filter(|call| call != "cuStreamQuery").collect()
}

#[test]
fn a_task_is_one_call_on_a_card_of_one_stream_and_never_more_than_two() {
    with_fake_cuda(&[], || {
        let mut rng = Rng::new(7);
        for (lanes, depth, allowed) in [(1, 2, &["cuGraphLaunch"][..]), (2, 2, &["cuGraphLaunch", "cuEventRecord"])] {
            let pool = pool(lanes, depth);
            let handles: Vec<_> = FORMS.iter().map(|form| bring_up(&pool, *form, 64)).collect();
            let calls = functions_called(|| {
                for (form, handle) in FORMS.iter().zip(&handles) {
                    run(handle, *form, &mut rng, 30, 0);
                }
            });
            let launches = calls.iter().filter(|call| *call == "cuGraphLaunch").count();
            let others: Vec<&String> = calls.iter().filter(|call| !allowed.contains(&call.as_str())).collect();
            assert!(launches > 100 && calls.len() <= 2 * launches, "{launches} launches in {} calls", calls.len());
            assert!(others.is_empty(), "nothing allocates, synchronises or waits: {others:?}");
            assert!(pool.stop(PATIENCE));
        }
    });
}
