//! Tasks that run several steps of their rows in one graph: requests are answered as by single steps, in fewer tasks.

use std::{sync::Arc, time::Instant};

use paternoster_batching::{Policy, Task};
use paternoster_executor::{Journal, JournalEntry, ModelHandle};
use paternoster_testing::fake_cuda::with_card;

use crate::{
    models::{Asked, Form},
    rng::Rng,
    running::{MAX_ROWS, PATIENCE, block_on, journaled, on_cards, run, values},
};

/// Forms of which a cell runs several steps in a task.
const CHAINS: [Form; 5] = [Form::Chain, Form::AllSteps, Form::TwoChains, Form::TwoLayers, Form::Rows];
/// Steps of a long request.
const STEPS: u64 = 12;

fn tasks(journal: &Journal) -> Vec<Task> {
    let issued = journal.take().into_iter().filter_map(|entry| match entry {
        JournalEntry::Issued { task, .. } => Some(*task),
        JournalEntry::Refused(_) | JournalEntry::Ended(_) => None,
    });
    issued.collect()
}

fn longest(task: &Task) -> u32 {
    task.rows.iter().map(|span| span.count).max().unwrap_or(0)
}

/// Sends long requests one after another, and checks their answers.
fn ask_alone(handle: &Arc<ModelHandle>, form: Form, count: u64) {
    for number in 0..count {
        let asked = Asked { tokens: (0..STEPS).map(|token| 100 * number + token).collect(), children: vec![] };
        let response = block_on(handle.submit(form.request(&asked))).expect("it is answered");
        assert_eq!(values(&response), form.answer(&asked), "{form:?} {asked:?}");
    }
}

#[test]
fn a_lone_request_runs_several_steps_in_a_graph() {
    with_card(|| {
        for form in CHAINS {
            let journal = Arc::new(Journal::default());
            let pool = journaled(1, 1, Some(Arc::clone(&journal)));
            let handle = Arc::new(on_cards(&pool, form.version(MAX_ROWS, 16)).expect("the card has room"));
            ask_alone(&handle, form, 20);
            let tasks = tasks(&journal);
            let steps: u64 = tasks.iter().flat_map(|task| &task.rows).map(|span| u64::from(span.count)).sum();
            assert!((tasks.len() as u64) < steps, "{form:?}: {steps} steps in {} tasks", tasks.len());
            assert!(tasks.iter().all(|task| longest(task) <= 16));
            assert!(pool.stop(PATIENCE));
        }
    });
}

#[test]
fn rows_of_a_task_run_as_many_steps_as_they_have() {
    with_card(|| {
        let mut rng = Rng::new(21);
        for (form, (lanes, depth)) in CHAINS.into_iter().zip([(1, 1), (2, 1), (2, 3), (1, 2), (2, 2)]) {
            let journal = Arc::new(Journal::default());
            let pool = journaled(lanes, depth, Some(Arc::clone(&journal)));
            let handle = Arc::new(on_cards(&pool, form.version(MAX_ROWS, 64)).expect("the card has room"));
            let started = Instant::now();
            // How many steps tasks run depends on the times of earlier ones.
            let is_uneven = |task: &Task| task.rows.iter().any(|span| span.count < longest(task));
            while !tasks(&journal).iter().any(is_uneven) {
                assert!(started.elapsed() < PATIENCE, "{form:?}: all rows of a task run equally many steps");
                run(&handle, form, &mut rng, 40, 100);
            }
            assert!(pool.stop(PATIENCE));
        }
    });
}

#[test]
fn the_paper_runs_single_steps() {
    with_card(|| {
        let journal = Arc::new(Journal::default());
        let pool = journaled(1, 1, Some(Arc::clone(&journal)));
        let (spec, mut knobs, programs) = Form::Chain.version(MAX_ROWS, 16);
        if let Policy::Cellular(cellular) = &mut knobs.policy {
            cellular.paper = true;
        }
        let handle = Arc::new(on_cards(&pool, (spec, knobs, programs)).expect("the card has room"));
        ask_alone(&handle, Form::Chain, 4);
        assert!(tasks(&journal).iter().all(|task| longest(task) == 1));
        assert!(pool.stop(PATIENCE));
    });
}
