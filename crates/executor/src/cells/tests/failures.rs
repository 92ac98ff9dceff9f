//! Failed tasks have no effect, so that their nodes can run again.

use super::*;

#[test]
fn nodes_of_a_failed_task_run_again_from_what_was_there_before() {
    // Steps with different numbers run separately: the first run of the second task succeeds.
    let tried = grow::growing(false, false);
    let (good, bad) = (tried.unfolded_state(&[(&[3], &[1, 2, 3])]), tried.unfolded_state(&[(&[1], &[NO_TOKEN])]));
    tried.task(0, &[(&good, 0)]).expect("it runs");
    let failure = tried.task(0, &[(&good, 1), (&bad, 0)]).expect_err("one is bad");
    assert_eq!(failure, "cell 'step': there is no token 1000000000");
    assert_eq!(*tried.rows[0].runs.lock(), [1, 1, 1], "the good one ran");
    for step in [1, 2] {
        assert_eq!(tried.task(0, &[(&good, step)]), Ok(vec![Next::On]), "step {step} finds what it reads");
    }
    assert_eq!(grow::left(&good)[..2], [vec![1, 12, 123], vec![0, 1, 2]]);
}
