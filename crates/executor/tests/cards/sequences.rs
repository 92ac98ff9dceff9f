//! Sequences on a card: the state after a request's last step is the state before the next request's first. In between
//! it stays in the card's memory, in as many slots as there may be sequences.

use std::sync::Arc;

use cudarc::driver::sys::CUresult::CUDA_ERROR_ILLEGAL_ADDRESS;
use paternoster_batching::SequenceKnobs;
use paternoster_executor::{CardsOptions, InferError, InferRequest, ModelHandle, Pool, PoolOptions};
use paternoster_model::{CorrelationId, InSequence};
use paternoster_testing::{
    fake_control::{fail_calls, fail_none, traced},
    fake_cuda::{with_card, with_fake_cuda},
};

use crate::{
    models::{Asked, Form},
    rng::Rng,
    running::{MAX_ROWS, PATIENCE, block_on, functions_called, on_cards, pool, values},
};

const SEQUENCES: u64 = 7;
const REQUESTS: usize = 9;

/// Forms whose first chain keeps its state: it is also the response, or the card alone reads it.
pub(crate) const KEPT: [Form; 2] = [Form::Chain, Form::TwoChains];

pub(crate) const LIMITS: SequenceKnobs = SequenceKnobs { max_sequences: 16, max_idle_ns: 60_000_000_000 };

pub(crate) fn request(form: Form, asked: &Asked, id: u64, starts: bool, ends: bool) -> InferRequest {
    let sequence = InSequence { id: CorrelationId::Number(id), starts, ends };
    InferRequest { sequence: Some(sequence), ..form.request(asked) }
}

pub(crate) fn bring_up(pool: &Arc<Pool>, form: Form, limits: SequenceKnobs) -> Arc<ModelHandle> {
    Arc::new(on_cards(pool, form.kept(MAX_ROWS, 16, limits)).expect("the card has room"))
}

/// All requests of all sequences are submitted at the start, so that each is launched as early as it may be. Some have
/// an index beyond their table, and leave no state.
#[test]
fn each_request_goes_on_from_what_the_last_that_completed_left() {
    with_card(|| {
        let mut rng = Rng::new(41);
        for (form, lanes, depth) in KEPT.iter().flat_map(|form| [(form, 1, 1), (form, 2, 1), (form, 2, 3)]) {
            let pool = pool(lanes, depth);
            let handle = bring_up(&pool, *form, LIMITS);
            let mut answers = Vec::new();
            let mut states = vec![None; SEQUENCES as usize];
            for number in 0..REQUESTS {
                for id in 0..SEQUENCES {
                    let mut asked = form.ask(&mut rng, 6);
                    let starts = number == 0 || rng.permille(100);
                    let state = &mut states[id as usize];
                    // A sequence ends if its first request fails.
                    let is_bad = !starts && rng.permille(150);
                    let before = if starts { None } else { *state };
                    let expected = (!is_bad).then(|| form.kept_answer(before, &asked));
                    *state = if is_bad { before } else { Some(Form::chain_from(before, &asked.tokens)) };
                    if is_bad {
                        asked.tokens.push(u64::MAX);
                    }
                    let ends = number + 1 == REQUESTS;
                    answers.push((expected, handle.submit(request(*form, &asked, id + 1, starts, ends))));
                }
            }
            block_on(async {
                for (expected, answer) in answers {
                    match (expected, answer.await) {
                        (Some(expected), Ok(response)) => assert_eq!(values(&response), expected),
                        (None, Err(error)) => assert!(error.to_string().contains("beyond its table"), "{error}"),
                        (expected, answer) => panic!("{expected:?}: {answer:?}"),
                    }
                }
            });
            drop(handle);
            assert!(pool.stop(PATIENCE));
            assert_eq!(pool.in_flight(), 0);
        }
    });
}

/// Many more sequences than may hold state at once, each of which gives up some of its requests. A slot that were not
/// freed exactly once would be missing, or would be held by two.
#[test]
fn slots_go_round_and_what_is_given_up_leaves_the_state_as_it_was_or_as_it_made_it() {
    with_card(|| {
        let mut rng = Rng::new(42);
        for (form, lanes, depth) in [(Form::Chain, 1, 1), (Form::Chain, 3, 3), (Form::TwoChains, 3, 3)] {
            let pool = pool(lanes, depth);
            let handle = bring_up(&pool, form, SequenceKnobs { max_sequences: 3, ..LIMITS });
            let mut sequences = Vec::new();
            for id in 1..=40 {
                let count = rng.within(2, 5);
                let requests = (0..count).map(|number| {
                    let asked = form.ask(&mut rng, 6);
                    let (starts, ends) = (number == 0, number + 1 == count);
                    let answer = handle.submit(request(form, &asked, id, starts, ends));
                    (asked, (starts || ends || !rng.permille(400)).then_some(answer))
                });
                sequences.push(requests.collect::<Vec<_>>());
            }
            block_on(async {
                for requests in sequences {
                    // What may be there: a request that was given up may have completed before.
                    let mut states = vec![None];
                    let is_given_up = requests.iter().any(|(_, answer)| answer.is_none());
                    let mut is_over = false;
                    for (asked, answer) in requests {
                        let Some(answer) = answer else {
                            let next: Vec<_> =
                                states.iter().map(|state| Some(Form::chain_from(*state, &asked.tokens))).collect();
                            states.extend(next);
                            continue;
                        };
                        // A request that is given up before it runs cancels the rest of its sequence, and all of it if
                        // it has no slot yet. What comes later begins none.
                        let found = match answer.await {
                            Ok(response) if !is_over => values(&response),
                            Err(InferError::Cancelled | InferError::Invalid(_)) if is_given_up => {
                                is_over = true;
                                continue;
                            }
                            other => panic!("{form:?}: {other:?}, although the sequence was cancelled: {is_over}"),
                        };
                        states.retain(|state| form.kept_answer(*state, &asked) == found);
                        assert!(!states.is_empty(), "{form:?}: {found:?} follows from no state");
                        states.iter_mut().for_each(|state| *state = Some(Form::chain_from(*state, &asked.tokens)));
                    }
                }
            });
            drop(handle);
            assert!(pool.stop(PATIENCE));
            assert_eq!(pool.in_flight(), 0);
        }
    });
}

#[test]
fn a_sequence_that_rests_too_long_makes_room_and_is_over() {
    with_card(|| {
        let mut rng = Rng::new(43);
        let pool = pool(2, 2);
        let handle = bring_up(&pool, Form::Chain, SequenceKnobs { max_sequences: 1, max_idle_ns: 1 });
        for id in 1..=20 {
            let asked = Form::Chain.ask(&mut rng, 6);
            // None of them ends: the one before holds the only slot until it has rested too long.
            let answer = block_on(handle.submit(request(Form::Chain, &asked, id, true, false)));
            assert_eq!(values(&answer.expect("there is a slot again")), Form::Chain.answer(&asked));
            if id > 1 {
                let late = block_on(handle.submit(request(Form::Chain, &asked, id - 1, false, false)));
                assert!(matches!(late, Err(InferError::Invalid(_))), "{late:?}");
            }
        }
        assert!(pool.stop(PATIENCE));
    });
}

#[test]
fn state_of_sequences_that_does_not_fit_is_refused_with_its_size() {
    with_fake_cuda(&[("FAKE_CUDA_MEMORY", "67108864")], || {
        let pool = pool(1, 1);
        let limits = |max_sequences| SequenceKnobs { max_sequences, ..LIMITS };
        let refused = on_cards(&pool, Form::Chain.kept(MAX_ROWS, 16, limits(1 << 24))).expect_err("it is 256 MiB");
        assert!(refused.contains("1 slots of 8 bytes, and of 16777216 sequences of 16 bytes: "), "{refused}");
        let refused = on_cards(&pool, Form::Chain.kept(MAX_ROWS, 16, limits(u32::MAX))).expect_err("none can be named");
        assert!(refused.contains("at most 4294967295 sequences hold state, expected at most"), "{refused}");
        let mut rng = Rng::new(46);
        let handle = bring_up(&pool, Form::Chain, limits(1 << 20));
        let asked = Form::Chain.ask(&mut rng, 6);
        let answer = block_on(handle.submit(request(Form::Chain, &asked, 1, true, true)));
        assert_eq!(values(&answer.expect("there is room for these")), Form::Chain.answer(&asked));
        assert!(pool.stop(PATIENCE));
    });
}

/// Those on other cards go on; those of the lost one are unknown there, and may start again.
#[test]
fn a_lost_card_ends_exactly_the_sequences_that_it_had() {
    with_fake_cuda(&[("FAKE_CUDA_DEVICES", "3")], || {
        let mut rng = Rng::new(44);
        let cards = CardsOptions { ordinals: vec![0, 1, 2], lanes: 2, depth: 1, ..CardsOptions::default() };
        let options = PoolOptions { cards, cpu_lanes: 1, ..PoolOptions::default() };
        let pool = Pool::start(&options).expect("there are three cards");
        let handle = bring_up(&pool, Form::Chain, LIMITS);
        let mut states = [None; 12];
        let mut ask = |id: usize, state: Option<u64>, starts: bool| {
            let asked = Form::Chain.ask(&mut rng, 6);
            let next = Form::chain_from(state, &asked.tokens);
            (next, block_on(handle.submit(request(Form::Chain, &asked, id as u64 + 1, starts, false))))
        };
        for (id, state) in states.iter_mut().enumerate() {
            let (next, answer) = ask(id, None, true);
            assert_eq!(values(&answer.expect("there is room")), [next]);
            *state = Some(next);
        }
        fail_calls(c"cuGraphLaunch", 1, CUDA_ERROR_ILLEGAL_ADDRESS);
        let (_, answer) = ask(0, states[0], false);
        assert!(matches!(answer, Err(InferError::DeviceLost)), "{answer:?}");
        fail_none();
        let mut over = Vec::new();
        for (id, state) in states.iter_mut().enumerate() {
            match ask(id, *state, false) {
                (next, Ok(response)) => {
                    assert_eq!(values(&response), [next], "sequence {id}");
                    *state = Some(next);
                }
                (_, Err(InferError::Invalid(reason))) => {
                    assert!(reason.contains("must specify the START flag"), "{reason}");
                    over.push(id);
                }
                (_, Err(error)) => panic!("sequence {id}: {error}"),
            }
        }
        assert!(over.contains(&0) && over.len() < states.len(), "{over:?}");
        for (id, state) in states.into_iter().enumerate() {
            let starts = over.contains(&id);
            let (next, answer) = ask(id, state.filter(|_| !starts), starts);
            assert_eq!(values(&answer.expect("it goes on, or has started again")), [next], "sequence {id}");
        }
        pool.stop(PATIENCE);
        assert_eq!(pool.stats().snapshot().tasks_running, 0);
    });
}

/// The calls that reserve host memory, with their sizes.
fn host_memory(calls: &str) -> Vec<String> {
    let reserved = calls.lines().filter(|line| line.contains("cuMemHostAlloc"));
    reserved.filter_map(|line| Some(line.split_once("->")?.0.split_once(' ')?.1.to_owned())).collect()
}

/// No host memory is set aside for it, and each task of a sequence is one call.
#[test]
fn the_state_of_a_sequence_is_not_copied_to_the_host() {
    with_fake_cuda(&[], || {
        let mut rng = Rng::new(45);
        let pool = pool(1, 2);
        let form = Form::TwoChains;
        let mut handles = Vec::new();
        let mut loaded = |kept: bool| {
            traced(|| {
                let version = if kept { form.kept(MAX_ROWS, 16, LIMITS) } else { form.version(MAX_ROWS, 16) };
                handles.push(Arc::new(on_cards(&pool, version).expect("the card has room")));
            })
        };
        let (plain, kept) = (host_memory(&loaded(false)), host_memory(&loaded(true)));
        assert!(!plain.is_empty());
        assert_eq!(plain, kept);
        let handle = handles.pop().expect("it is loaded");
        let asked: Vec<Asked> = (0..6).map(|_| form.ask(&mut rng, 6)).collect();
        let calls = functions_called(|| {
            let mut state = None;
            for (number, asked) in asked.iter().enumerate() {
                let ends = number == 5;
                let answer = block_on(handle.submit(request(form, asked, 5, number == 0, ends)));
                assert_eq!(values(&answer.expect("nothing fails")), form.kept_answer(state, asked));
                state = Some(Form::chain_from(state, &asked.tokens));
            }
        });
        let others: Vec<&String> = calls.iter().filter(|call| *call != "cuGraphLaunch").collect();
        assert!(!calls.is_empty() && others.is_empty(), "{others:?}");
        assert!(pool.stop(PATIENCE));
    });
}
