//! Several models in stages share a card under one policy: requests join batches in progress, batches are split, and
//! each row is answered with what its own stages make.

use std::{collections::VecDeque, sync::Arc};

use paternoster_batching::Policy;
use paternoster_executor::{ModelHandle, Pool, ResponseFuture};
use paternoster_observe::MetaCounters;
use paternoster_testing::fake_cuda::with_fake_cuda;

use crate::{
    rng::Rng,
    running::{PATIENCE, block_on, pool, values},
    staged::{STAGED, Staged},
    stages::{bring_up, expected, knobs, policies},
};

/// Requests of one run, and the rows of each at most: few, so that batches have room for others.
const REQUESTS: usize = 200;
const MOST_ROWS: u64 = 2;

/// Runs at most, until a policy has done what distinguishes it.
const RUNS: usize = 50;

/// Requests in flight at most.
const IN_FLIGHT: u64 = 24;

/// Of a thousand requests, those that are cancelled.
const CANCELLED: u64 = 100;

/// Submits requests to all models, waiting for the oldest ones at random moments, and compares the answers with the
/// expected ones. Cancelled requests are not checked.
fn run(handles: &[(Staged, Arc<ModelHandle>)], rng: &mut Rng) {
    let mut waiting: VecDeque<(Staged, Vec<u64>, ResponseFuture)> = VecDeque::new();
    let mut answered = 0;
    let mut answer = |(staged, rows, answer): (Staged, Vec<u64>, ResponseFuture)| {
        let response = block_on(answer).unwrap_or_else(|error| panic!("{staged:?} {rows:?}: {error}"));
        assert_eq!(values(&response), expected(staged, &rows), "{staged:?} {rows:?}");
        answered += 1;
    };
    for _ in 0..REQUESTS {
        let (staged, handle) = &handles[rng.below(handles.len() as u64) as usize];
        let rows = Staged::ask(rng, MOST_ROWS);
        let asked = handle.submit(Staged::request(&rows));
        if !rng.permille(CANCELLED) {
            waiting.push_back((*staged, rows, asked));
        }
        let most = rng.below(IN_FLIGHT) as usize;
        while waiting.len() > most {
            waiting.pop_front().into_iter().for_each(&mut answer);
        }
    }
    waiting.into_iter().for_each(&mut answer);
    assert!(answered > REQUESTS / 2, "{answered} requests are answered");
}

/// Returns the batch operations of all models together.
fn operations(pool: &Pool, handles: &[(Staged, Arc<ModelHandle>)]) -> MetaCounters {
    pool.count_meta_operations();
    handles.iter().map(|(_, handle)| handle.stats().reading().meta).sum()
}

/// Returns whether a policy has done what distinguishes it: joined requests to batches in progress, or split batches.
fn is_at_work(policy: &Policy, done: &MetaCounters) -> bool {
    match policy {
        Policy::Diversity(knobs) if knobs.operator.is_some() => done.splits > 0,
        Policy::Lazy(_) | Policy::Diversity(_) => done.stretches > 0,
        _ => true,
    }
}

#[test]
fn models_share_a_card_under_every_policy() {
    with_fake_cuda(&[], || {
        let mut rng = Rng::new(31);
        for policy in policies() {
            let pool = pool(2, 2);
            let up = |staged: &Staged| (*staged, bring_up(&pool, *staged, knobs(policy.clone(), 2, 2)));
            let handles: Vec<_> = STAGED.iter().map(up).collect();
            let mut done = MetaCounters::default();
            for _ in 0..RUNS {
                run(&handles, &mut rng);
                done = operations(&pool, &handles);
                if is_at_work(&policy, &done) {
                    break;
                }
            }
            assert!(is_at_work(&policy, &done) && done.early_exits > 0, "{policy:?}: {done:?}");
            drop(handles);
            assert!(pool.stop(PATIENCE));
            assert_eq!(pool.in_flight(), 0);
        }
    });
}
