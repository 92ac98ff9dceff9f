//! What requests keep, compared with what they board with.

use paternoster_observe::budget::{Budget, Reservation};

use super::{grow::growing, *};
use crate::cells::memory::StateBytes;

fn tokens(count: i64) -> Vec<i64> {
    (0..count).map(|token| token % 10).collect()
}

/// Returns what a request of so many tokens boards with.
fn planned(tried: &Tried, count: i64) -> StateBytes {
    let inputs = tried.inputs(&[(&[count], &tokens(count))]);
    let graph = unfold(&tried.programs, &tried.spec, 1, &inputs, None).expect("it unfolds");
    tried.programs.state_bytes(&graph, |_| count as usize)
}

/// Runs a request of so many tokens, and returns the bytes that it has kept.
fn kept(tried: &Tried, count: i64) -> usize {
    let states = StateBudget::new(&Budget::of(1 << 30));
    let bytes = planned(tried, count);
    let memory = states.memory(Reservation::none(states.pending()), bytes).expect("it can fit");
    let unfolded_state = tried.unfolded_state(&[(&[count], &tokens(count))]).with_memory(Some(Arc::clone(&memory)));
    for node in 0..count as u32 {
        tried.task(0, &[(&unfolded_state, node)]).expect("it runs");
        assert!(memory.kept() <= bytes.kept, "{} of {bytes:?} after step {node}", memory.kept());
    }
    assert_eq!(states.pending().used(), 0, "nothing beyond the plan");
    memory.kept()
}

#[test]
fn a_request_keeps_what_it_boards_with_and_no_more() {
    for count in [1, 2, 3, 100, 129] {
        // The digits, what was read and the tokens of all steps.
        assert_eq!(kept(&growing(true, false), count), 3 * 8 * count as usize);
        assert_eq!(planned(&growing(true, false), count).kept, 3 * 8 * count as usize);
        // Those of a reversed chain are put into order at the end.
        assert_eq!(planned(&growing(true, true), count).kept, 2 * 3 * 8 * count as usize);
        assert!(planned(&growing(true, false), count).run >= 8 * count as usize, "a step reads all before it");
    }
    assert_eq!(planned(&digit_chain(false), 7).kept, 7 * 8);
}

#[test]
fn a_value_without_memory_fails_its_request() {
    let tried = growing(true, false);
    let states = StateBudget::new(&Budget::of(100));
    let none = StateBytes { kept: 0, run: 0 };
    let memory = states.memory(Reservation::none(states.pending()), none).expect("it can fit");
    let unfolded_state = tried.unfolded_state(&[(&[3], &tokens(3))]).with_memory(Some(memory));
    // Three values of eight bytes a step, each with room for two from the first on.
    for node in [0, 1] {
        assert_eq!(tried.task(0, &[(&unfolded_state, node)]), Ok(vec![Next::On]));
    }
    assert_eq!(unfolded_state.lacking(), None);
    assert_eq!(tried.task(0, &[(&unfolded_state, 2)]), Ok(vec![Next::Failed]));
    assert_eq!(unfolded_state.lacking().map(|full| full.capacity), Some(50));
}
