//! Several cards. A version is loaded on all of them, and each has its own core. A card that is lost fails its own
//! requests and no others.

use std::{collections::HashSet, sync::Arc};

use cudarc::driver::sys::CUresult::CUDA_ERROR_ILLEGAL_ADDRESS;
use paternoster_batching::{Knobs, Policy};
use paternoster_executor::{BringUp, CardsOptions, InferError, ModelHandle, Placement, Pool, PoolOptions, Site};
use paternoster_testing::{
    fake_control::{fail_calls, fail_none, traced},
    fake_cuda::with_fake_cuda,
};

use crate::{
    models::{FORMS, Form},
    rng::Rng,
    running::{self, PATIENCE, block_on, values},
    staged::{STAGED, Staged},
    stages::{self, knobs},
};

const CARDS: &[(&str, &str)] = &[("FAKE_CUDA_DEVICES", "3")];

fn pool() -> Arc<Pool> {
    let cards = CardsOptions { ordinals: vec![0, 1, 2], lanes: 2, horizon_ns: 0, depth: 1, ..CardsOptions::default() };
    Pool::start(&PoolOptions { cards, cpu_lanes: 1, ..PoolOptions::default() }).expect("there are three cards")
}

fn window() -> Knobs {
    knobs(Policy::Window(Default::default()), 2, 2)
}

/// Returns how many cards, each with its own thread, launched something while `body` ran.
fn cards_in_use(body: impl FnOnce()) -> usize {
    let calls = traced(body);
    let threads: HashSet<&str> = calls
        .lines()
        .filter(|line| line.contains("cuGraphLaunch"))
        .filter_map(|line| line.split_whitespace().next())
        .collect();
    threads.len()
}

#[test]
fn requests_are_answered_by_whichever_card_takes_them() {
    with_fake_cuda(CARDS, || {
        let mut rng = Rng::new(31);
        let pool = pool();
        for form in FORMS {
            let handle = running::bring_up(&pool, form, 64);
            running::run(&handle, form, &mut rng, 90, 100);
        }
        for staged in STAGED {
            let handle = stages::bring_up(&pool, staged, window());
            stages::run(&handle, staged, &mut rng, 90, 100);
        }
        assert!(pool.stop(PATIENCE));
        assert_eq!(pool.in_flight(), 0);
        assert_eq!(pool.stats().snapshot().tasks_running, 0);
    });
}

#[test]
fn a_model_that_names_one_card_is_on_that_one_alone() {
    with_fake_cuda(CARDS, || {
        let mut rng = Rng::new(32);
        let pool = pool();
        let on = |site: Site| {
            let (spec, knobs, programs) = Form::Chain.version(5, 64);
            let options = BringUp { placement: Placement::On(vec![site]), ..BringUp::default() };
            let handle = pool.bring_up_on(spec, knobs, programs, &options);
            handle.map(Arc::new)
        };
        let handle = on(Site::Card(1)).expect("there is such a card");
        let used = cards_in_use(|| running::run(&handle, Form::Chain, &mut rng, 60, 0));
        assert_eq!(used, 1);
        let (spec, knobs, programs) = Form::Chain.version(5, 64);
        let everywhere = Arc::new(pool.bring_up(spec, knobs, programs).expect("there is room"));
        let used = cards_in_use(|| running::run(&everywhere, Form::Chain, &mut rng, 60, 0));
        assert_eq!(used, 3);
        let refused = on(Site::Card(7)).expect_err("there are three");
        assert_eq!(refused, "there is no CUDA card 7");
        assert!(pool.stop(PATIENCE));
    });
}

#[test]
fn a_card_that_is_lost_takes_its_own_requests_with_it_and_no_others() {
    with_fake_cuda(CARDS, || {
        let mut rng = Rng::new(33);
        let pool = pool();
        let handle: Arc<ModelHandle> = stages::bring_up(&pool, Staged::Exits, window());
        stages::run(&handle, Staged::Exits, &mut rng, 30, 0);
        let mut lost = 0;
        for round in 1..=2 {
            fail_calls(c"cuGraphLaunch", 11, CUDA_ERROR_ILLEGAL_ADDRESS);
            let asked: Vec<Vec<u64>> = (0..90).map(|_| Staged::ask(&mut rng, 3)).collect();
            let answers: Vec<_> = asked.iter().map(|rows| handle.submit(Staged::request(rows))).collect();
            let before = lost;
            block_on(async {
                for (rows, answer) in asked.iter().zip(answers) {
                    match answer.await {
                        Ok(response) => assert_eq!(values(&response), stages::expected(Staged::Exits, rows)),
                        Err(InferError::DeviceLost) => lost += 1,
                        Err(error) => panic!("{error}"),
                    }
                }
            });
            fail_none();
            // Waiting requests move to other cards; those that had begun on this one fail with it.
            assert!(lost > before && lost - before < 90, "{} of 90 end with the card", lost - before);
            assert_eq!(pool.responsiveness().borrow().lost_devices, round);
            stages::run(&handle, Staged::Exits, &mut rng, 30, 0);
        }
        pool.stop(PATIENCE);
        assert_eq!(pool.stats().snapshot().tasks_running, 0);
    });
}
