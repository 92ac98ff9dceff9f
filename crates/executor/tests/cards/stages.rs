//! Stages on a card under every policy, with cancellations, errors and lost cards.

use std::sync::Arc;

use cudarc::driver::sys::CUresult::{CUDA_ERROR_ILLEGAL_ADDRESS, CUDA_ERROR_OUT_OF_MEMORY};
use paternoster_batching::{DiversityKnobs, Knobs, OperatorDiversity, Policy, PolicyKind};
use paternoster_executor::{InferError, ModelHandle, Pool, ResponseFuture};
use paternoster_testing::{
    fake_control::{fail_calls, fail_none},
    fake_cuda::{with_card, with_fake_cuda},
};

use crate::{
    rng::Rng,
    running::{MAX_ROWS, PATIENCE, block_on, functions_called, on_cards, pool, values},
    staged::{STAGED, Staged},
};

/// Returns every policy over batches, and one that splits wherever it may.
pub(crate) fn policies() -> Vec<Policy> {
    let operator = Some(OperatorDiversity { threshold: 0.5, ..OperatorDiversity::default() });
    let splits = Policy::Diversity(DiversityKnobs { input: None, operator, load: None });
    PolicyKind::over_batches().chain([splits]).collect()
}

pub(crate) fn knobs(policy: Policy, buffer_pairs: u16, max_in_flight: u32) -> Knobs {
    // `deferred` waits for as long as this allows.
    let objective_ns = Some(100_000_000);
    Knobs { max_batch_rows: MAX_ROWS, buffer_pairs, max_in_flight, policy, objective_ns, ..Knobs::default() }
}

pub(crate) fn bring_up(pool: &Arc<Pool>, staged: Staged, knobs: Knobs) -> Arc<ModelHandle> {
    let handle = on_cards(pool, (staged.spec(MAX_ROWS), knobs, staged.programs(MAX_ROWS)));
    Arc::new(handle.expect("the card has room"))
}

/// Submits requests at once and compares their answers with the expected ones. Cancelled requests are not checked.
pub(crate) fn run(handle: &Arc<ModelHandle>, staged: Staged, rng: &mut Rng, count: usize, given_up: u64) {
    let mut waiting = Vec::new();
    for _ in 0..count {
        let rows = Staged::ask(rng, u64::from(MAX_ROWS));
        let answer = handle.submit(Staged::request(&rows));
        if !rng.permille(given_up) {
            waiting.push((rows, answer));
        }
    }
    block_on(async {
        for (rows, answer) in waiting {
            let response = answer.await.unwrap_or_else(|error| panic!("{staged:?} {rows:?}: {error}"));
            assert_eq!(values(&response), expected(staged, &rows), "{staged:?} {rows:?}");
            assert_eq!(response.outputs[0].shape.as_slice(), [rows.len() as i64, 1]);
        }
    });
}

/// Submits a request with a random number of rows.
pub(crate) fn submit(handle: &Arc<ModelHandle>, rng: &mut Rng) -> ResponseFuture {
    handle.submit(Staged::request(&Staged::ask(rng, 3)))
}

pub(crate) fn expected(staged: Staged, rows: &[u64]) -> Vec<u64> {
    rows.iter().map(|row| staged.answer(*row)).collect()
}

#[test]
fn rows_are_answered_with_what_their_stages_make_under_every_policy() {
    with_card(|| {
        let mut rng = Rng::new(11);
        for (lanes, depth, pairs, max_in_flight) in [(1, 1, 1, 1), (2, 1, 2, 2), (3, 3, 2, 3), (2, 2, 3, 2)] {
            for policy in policies() {
                let pool = pool(lanes, depth);
                for staged in STAGED {
                    let handle = bring_up(&pool, staged, knobs(policy.clone(), pairs, max_in_flight));
                    run(&handle, staged, &mut rng, 60, 100);
                }
                assert!(pool.stop(PATIENCE));
                assert_eq!(pool.in_flight(), 0);
                assert_eq!(pool.stats().snapshot().tasks_running, 0);
            }
        }
    });
}

#[test]
fn stages_whose_launch_is_refused_fail_no_other_request_and_leave_no_wrong_answer() {
    with_fake_cuda(&[], || {
        let mut rng = Rng::new(12);
        for policy in policies() {
            let pool = pool(2, 2);
            for staged in STAGED {
                let handle = bring_up(&pool, staged, knobs(policy.clone(), 2, 2));
                for nth in 1..10 {
                    fail_calls(c"cuGraphLaunch", nth, CUDA_ERROR_OUT_OF_MEMORY);
                    let asked: Vec<Vec<u64>> = (0..6).map(|_| Staged::ask(&mut rng, 3)).collect();
                    let answers: Vec<_> = asked.iter().map(|rows| handle.submit(Staged::request(rows))).collect();
                    let mut refused = 0;
                    block_on(async {
                        for (rows, answer) in asked.iter().zip(answers) {
                            match answer.await {
                                Ok(response) => assert_eq!(values(&response), expected(staged, rows), "{staged:?}"),
                                Err(error) => {
                                    refused += 1;
                                    assert!(error.to_string().contains("OUT_OF_MEMORY"), "{staged:?}: {error}");
                                }
                            }
                        }
                    });
                    assert!(refused <= 1, "only one that is alone is told: {refused}");
                    fail_none();
                }
            }
            assert!(pool.stop(PATIENCE));
            assert_eq!(pool.stats().snapshot().tasks_running, 0);
        }
    });
}

#[test]
fn batches_with_too_many_parameters_are_the_cpus_where_that_is_left_to_the_pool() {
    with_fake_cuda(&[], || {
        const ROWS: u32 = 20_000;
        let pool = pool(1, 1);
        let version = || {
            let knobs = Knobs { max_batch_rows: ROWS, ..knobs(Policy::Window(Default::default()), 1, 1) };
            (Staged::Whole.spec(ROWS), knobs, Staged::Whole.programs(ROWS))
        };
        let refused = on_cards(&pool, version()).expect_err("a card takes no such task");
        assert!(
            refused.contains("tasks of 20000 rows take") && refused.contains("expected at most 65536"),
            "{refused}"
        );
        let (spec, knobs, programs) = version();
        let handle = Arc::new(pool.bring_up(spec, knobs, programs).expect("there is the CPU"));
        let error = block_on(handle.submit(Staged::request(&[1]))).expect_err("the program has nothing for the CPU");
        assert!(error.to_string().contains("it runs on cards alone"), "{error}");
        assert!(pool.stop(PATIENCE));
    });
}

#[test]
fn a_row_with_a_bad_index_fails_its_request_alone() {
    with_card(|| {
        let mut rng = Rng::new(13);
        for staged in STAGED {
            let pool = pool(2, 2);
            let handle = bring_up(&pool, staged, knobs(Policy::Window(Default::default()), 2, 2));
            let good: Vec<Vec<u64>> = (0..8).map(|_| Staged::ask(&mut rng, 3)).collect();
            let bad = handle.submit(Staged::request(&[1, u64::MAX, 2]));
            let answers: Vec<_> = good.iter().map(|rows| handle.submit(Staged::request(rows))).collect();
            block_on(async {
                let error = bad.await.expect_err("no table has such a row").to_string();
                assert!(error.contains("beyond its table"), "{error}");
                for (rows, answer) in good.iter().zip(answers) {
                    assert_eq!(values(&answer.await.expect("the others go on")), expected(staged, rows));
                }
            });
            assert!(pool.stop(PATIENCE));
        }
    });
}

#[test]
fn a_card_that_is_lost_amid_stages_ends_its_requests() {
    with_fake_cuda(&[], || {
        let mut rng = Rng::new(14);
        let pool = pool(2, 2);
        let handle = bring_up(&pool, Staged::Exits, knobs(Policy::Window(Default::default()), 2, 2));
        run(&handle, Staged::Exits, &mut rng, 10, 0);
        fail_calls(c"cuGraphLaunch", 7, CUDA_ERROR_ILLEGAL_ADDRESS);
        let asked: Vec<Vec<u64>> = (0..40).map(|_| Staged::ask(&mut rng, 3)).collect();
        let answers: Vec<_> = asked.iter().map(|rows| handle.submit(Staged::request(rows))).collect();
        let mut lost = 0;
        block_on(async {
            for (rows, answer) in asked.iter().zip(answers) {
                match answer.await {
                    Ok(response) => assert_eq!(values(&response), expected(Staged::Exits, rows)),
                    Err(InferError::DeviceLost) => lost += 1,
                    Err(error) => panic!("{error}"),
                }
            }
        });
        assert!(lost > 0);
        assert_eq!(pool.in_flight(), 0);
        pool.stop(PATIENCE);
        assert_eq!(pool.stats().snapshot().tasks_running, 0);
    });
}

#[test]
fn a_stage_is_a_launch_a_ticket_and_the_waits_that_order_needs() {
    with_fake_cuda(&[], || {
        let mut rng = Rng::new(15);
        for (lanes, depth, allowed) in
            [(1, 2, &["cuGraphLaunch"][..]), (3, 3, &["cuGraphLaunch", "cuEventRecord", "cuStreamWaitEvent"])]
        {
            let pool = pool(lanes, depth);
            let policy = Policy::Window(Default::default());
            let handles: Vec<_> =
                STAGED.iter().map(|staged| bring_up(&pool, *staged, knobs(policy.clone(), 2, 3))).collect();
            let calls = functions_called(|| {
                for (staged, handle) in STAGED.iter().zip(&handles) {
                    run(handle, *staged, &mut rng, 40, 0);
                }
            });
            let count = |function: &str| calls.iter().filter(|call| *call == function).count();
            let launches = count("cuGraphLaunch");
            assert!(launches > 60 && count("cuEventRecord") <= launches, "{launches} launches");
            let others: Vec<&String> = calls.iter().filter(|call| !allowed.contains(&call.as_str())).collect();
            assert!(others.is_empty(), "nothing allocates or synchronises: {others:?}");
            assert!(pool.stop(PATIENCE));
        }
    });
}
