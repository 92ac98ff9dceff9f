//! Sequences on a card: the state after a request's last step is the state before the next request's first.

use paternoster::{
    executor::InferRequest,
    model::{CorrelationId, InSequence},
};

use crate::{
    fake_cuda::with_card,
    models::{Asked, Form},
    rng::Rng,
    running::{MAX_ROWS, PATIENCE, block_on, on_cards, pool, values},
};

const SEQUENCES: u64 = 7;
const REQUESTS: usize = 9;

fn request(asked: &Asked, id: u64, starts: bool, ends: bool) -> InferRequest {
    let sequence = InSequence { id: CorrelationId::Number(id), starts, ends };
    InferRequest { sequence: Some(sequence), ..Form::Chain.request(asked) }
}

/// All requests of all sequences are submitted at the start, so that each is launched as early as it may be. Some have
/// an index beyond their table, and leave no state.
#[test]
fn each_request_goes_on_from_what_the_last_that_completed_left() {
    with_card(|| {
        let mut rng = Rng::new(41);
        for (lanes, depth) in [(1, 1), (2, 1), (2, 3)] {
            let pool = pool(lanes, depth);
            let handle = on_cards(&pool, Form::kept_chain(MAX_ROWS, 16)).expect("the card has room");
            let handle = std::sync::Arc::new(handle);
            let mut answers = Vec::new();
            let mut states = vec![None; SEQUENCES as usize];
            for number in 0..REQUESTS {
                for id in 0..SEQUENCES {
                    let mut asked = Form::Chain.ask(&mut rng, 6);
                    let starts = number == 0 || rng.permille(100);
                    let state = &mut states[id as usize];
                    // A sequence ends if its first request fails.
                    let is_bad = !starts && rng.permille(150);
                    let before = if starts { None } else { *state };
                    let expected = (!is_bad).then(|| Form::chain_from(before, &asked.tokens));
                    if is_bad {
                        asked.tokens.push(u64::MAX);
                    }
                    *state = expected.or(before);
                    let ends = number + 1 == REQUESTS;
                    answers.push((expected, handle.submit(request(&asked, id + 1, starts, ends))));
                }
            }
            block_on(async {
                for (expected, answer) in answers {
                    match (expected, answer.await) {
                        (Some(expected), Ok(response)) => assert_eq!(values(&response), [expected]),
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
