//! Tasks on several streams wait for what they must. What was issued to a card is issued again to the simulated device,
//! which finds any two accesses that nothing orders. It also finds some if any one wait is left out, unless other waits
//! imply that wait.

use std::{
    collections::{BTreeMap, HashSet},
    sync::Arc,
    thread,
    time::Instant,
};

use cudarc::driver::sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY;
use paternoster_batching::{Policy, SequenceKnobs, Task, TaskId};
use paternoster_device::{Access, AccessKind, BufferId, Device, DeviceError, Region, StreamId};
use paternoster_executor::{Journal, JournalEntry, StreamOrder, Tickets, issue};
use paternoster_testing::{
    fake_control::{fail_calls, fail_none, hold, release},
    fake_cuda::{is_on_card, with_card, with_fake_cuda},
    sim::{RowSource, Sim, Work},
};

use crate::{
    models::{Asked, FORMS, Form, MOST_TOKENS},
    rng::Rng,
    running::{self, MAX_ROWS, PATIENCE, journaled},
    sequences,
    staged::{STAGED, Staged},
    stages::{self, knobs, policies},
};

const LANES: u16 = 3;

/// Rows of a buffer in the simulator, at least as many as any buffer here has.
const ROWS: u32 = 1 << 10;

/// The simulated card.
struct Replay {
    sim: Sim,
    tickets: Tickets,
    buffers: BTreeMap<BufferId, BufferId>,
}

impl Replay {
    /// Issues the entries of a journal, leaving out one wait: that of a task for another.
    fn run(journal: &[JournalEntry], without: Option<(TaskId, TaskId)>) -> Result<(), DeviceError> {
        let mut replay = Self { sim: Sim::new(LANES), tickets: Tickets::default(), buffers: BTreeMap::new() };
        let refused: HashSet<TaskId> = journal.iter().filter_map(refused).collect();
        let mut streams = BTreeMap::new();
        for noted in journal {
            match noted {
                JournalEntry::Issued { task, accesses } if !refused.contains(&task.id) => {
                    streams.insert(task.id, task.lane);
                    let mut task = Task::clone(task);
                    task.after.retain(|after| without != Some((task.id, *after)));
                    replay.issue(&task, accesses)?;
                }
                JournalEntry::Issued { .. } | JournalEntry::Refused(_) => {}
                JournalEntry::Ended(task) => {
                    let told = replay.sim.poll(StreamId(streams[task].0))?;
                    assert!(told.is_some(), "{task:?} takes no time");
                    replay.tickets.landed(*task);
                }
            }
        }
        Ok(())
    }

    fn issue(&mut self, task: &Task, accesses: &[Access]) -> Result<(), DeviceError> {
        let mut own = Vec::with_capacity(accesses.len());
        let mut work = Work::new(0, 0, 1);
        for access in accesses {
            let buffer = match self.buffers.get(&access.region.buffer) {
                Some(buffer) => *buffer,
                None => *self.buffers.entry(access.region.buffer).or_insert(self.sim.allocate(ROWS, 8)?),
            };
            if access.kind != AccessKind::Read {
                work.sources.extend(access.region.rows.iter().map(|row| RowSource::External(u64::from(row))));
            }
            own.push(Access { region: Region { buffer, rows: access.region.rows.clone() }, kind: access.kind });
        }
        issue(&mut self.sim, &mut self.tickets, &StreamOrder::from(task), &own, work).map(drop)
    }
}

fn refused(noted: &JournalEntry) -> Option<TaskId> {
    match noted {
        JournalEntry::Refused(task) => Some(*task),
        JournalEntry::Issued { .. } | JournalEntry::Ended(_) => None,
    }
}

/// Returns the waits in a journal for tasks that had not ended by then.
fn waits(journal: &[JournalEntry]) -> Vec<(TaskId, TaskId)> {
    let refused: HashSet<TaskId> = journal.iter().filter_map(refused).collect();
    let (mut ended, mut waits) = (HashSet::new(), Vec::new());
    for noted in journal {
        match noted {
            JournalEntry::Issued { task, .. } if !refused.contains(&task.id) => {
                let open = task.after.iter().filter(|after| !ended.contains(*after) && !refused.contains(*after));
                waits.extend(open.map(|after| (task.id, *after)));
            }
            JournalEntry::Issued { .. } | JournalEntry::Refused(_) => {}
            JournalEntry::Ended(task) => _ = ended.insert(*task),
        }
    }
    waits
}

/// Checks that nothing that was issued races. Returns how many waits are needed, and how many are implied by others.
fn check(journal: &Journal, what: &str) -> (usize, usize) {
    let journal = journal.take();
    assert_eq!(Replay::run(&journal, None), Ok(()), "{what}");
    let waits = waits(&journal);
    let is_needed = |wait: &&(TaskId, TaskId)| match Replay::run(&journal, Some(**wait)) {
        Ok(()) => false,
        Err(DeviceError::Violation(_)) => true,
        Err(error) => panic!("{what}: {error}"),
    };
    let needed = waits.iter().filter(is_needed).count();
    (needed, waits.len() - needed)
}

/// Checks that tasks were in flight when others were issued behind them. A card may be too fast for that, so there it
/// is only reported.
fn check_waits(is_enough: bool, found: &str) {
    if is_on_card() {
        println!("waits on this card: {found}");
    } else {
        assert!(is_enough, "{found}");
    }
}

/// Each batch has the maximum rows, so that it accesses all rows of its pairs.
#[test]
fn stages_race_without_any_one_of_their_waits() {
    with_card(|| {
        let mut rng = Rng::new(21);
        let (mut needed, mut not_needed) = (0, 0);
        for staged in [Staged::Chain, Staged::Exits, Staged::Skips] {
            for pairs in [1, 2, 3] {
                let journal = Arc::new(Journal::default());
                let pool = journaled(LANES, 3, Some(Arc::clone(&journal)));
                let handle = stages::bring_up(&pool, staged, knobs(Policy::Window(Default::default()), pairs, 3));
                let full = |rng: &mut Rng| (0..MAX_ROWS).map(|_| rng.below(1 << 40)).collect::<Vec<u64>>();
                let answers: Vec<_> = (0..40).map(|_| handle.submit(Staged::request(&full(&mut rng)))).collect();
                running::block_on(async {
                    for answer in answers {
                        answer.await.expect("nothing fails");
                    }
                });
                assert!(pool.stop(PATIENCE));
                let (own, others) = check(&journal, &format!("{staged:?} {pairs} pairs"));
                (needed, not_needed) = (needed + own, not_needed + others);
            }
        }
        // Occasionally one of a task's waits is implied by another.
        check_waits(needed > 20 + 3 * not_needed, &format!("{needed} waits are needed, {not_needed} are not"));
    });
}

#[test]
fn nothing_races_in_stages_under_any_policy() {
    with_card(|| {
        let mut rng = Rng::new(22);
        let mut needed = 0;
        for policy in policies() {
            for staged in STAGED {
                for pairs in [1, 2] {
                    let journal = Arc::new(Journal::default());
                    let pool = journaled(LANES, 3, Some(Arc::clone(&journal)));
                    let handle = stages::bring_up(&pool, staged, knobs(policy.clone(), pairs, 3));
                    stages::run(&handle, staged, &mut rng, 40, 100);
                    assert!(pool.stop(PATIENCE));
                    needed += check(&journal, &format!("{staged:?} {policy:?} {pairs} pairs")).0;
                }
            }
        }
        check_waits(needed > 50, &format!("{needed} waits"));
    });
}

/// Nodes wait for earlier ones on the host, so that there are no waits on the card.
#[test]
fn nothing_races_in_cells() {
    with_card(|| {
        let mut rng = Rng::new(23);
        for form in FORMS {
            let journal = Arc::new(Journal::default());
            let pool = journaled(LANES, 3, Some(Arc::clone(&journal)));
            let handle = running::bring_up(&pool, form, if form == Form::Tree { 64 } else { 8 });
            running::run(&handle, form, &mut rng, 60, 100);
            assert!(pool.stop(PATIENCE));
            assert_eq!(check(&journal, &format!("{form:?}")), (0, 0));
        }
    });
}

/// BatchMaker pins a subgraph to a worker while tasks of it are in flight (algorithm 1), so that its next nodes can be
/// launched behind them.
#[test]
fn a_chain_stays_on_its_stream_while_its_tasks_are_in_flight() {
    with_fake_cuda(&[], || {
        let mut rng = Rng::new(25);
        let journal = Arc::new(Journal::default());
        let pool = journaled(LANES, 3, Some(Arc::clone(&journal)));
        let handle = running::bring_up(&pool, Form::Chain, 8);
        running::run(&handle, Form::Chain, &mut rng, 200, 100);
        assert!(pool.stop(PATIENCE));
        let (mut in_flight, mut behind, mut streams) = (BTreeMap::<TaskId, Task>::new(), 0, HashSet::new());
        for noted in journal.take() {
            match noted {
                JournalEntry::Issued { task, .. } => {
                    for span in &task.rows {
                        let mut before = in_flight.values().filter(|before| {
                            before.rows.iter().any(|own| own.req == span.req && own.start < span.start)
                        });
                        behind += usize::from(before.clone().next().is_some());
                        assert!(before.all(|before| before.lane == task.lane), "{task:?} leaves its stream");
                    }
                    streams.insert(task.lane);
                    in_flight.insert(task.id, *task);
                }
                JournalEntry::Refused(task) | JournalEntry::Ended(task) => _ = in_flight.remove(&task),
            }
        }
        assert!(streams.len() > 1, "chains run on several streams");
        // How many depends on how busy the machine is.
        assert!(behind > 0, "no node was launched behind another of its chain");
    });
}

/// BatchMaker gives a worker at most MaxTasksToSubmit tasks of one type in a row, and then chooses a type again
/// (algorithm 1). Here a long request has more nodes of the first type than a lane has room for. A node of the second
/// type becomes ready when the first task ends, and waits until the lane's round is over.
#[test]
fn a_round_ends_after_max_tasks_and_the_other_type_goes_next() {
    const DEPTH: u16 = 4;
    with_fake_cuda(&[], || {
        for max_tasks in [1, 2, 3, 5, 7] {
            let journal = Arc::new(Journal::default());
            let pool = journaled(1, DEPTH, Some(Arc::clone(&journal)));
            let (spec, mut knobs, programs) = Form::TwoLayers.version(MAX_ROWS, 8);
            match &mut knobs.policy {
                Policy::Cellular(cellular) => (cellular.paper, cellular.max_tasks) = (true, max_tasks),
                other => panic!("{other:?} has no rounds"),
            }
            let handle = Arc::new(running::on_cards(&pool, (spec, knobs, programs)).expect("the card has room"));
            // Tasks are launched ahead only once the times of both types are known, in this bucket.
            for seed in 0..8 {
                running::run(&handle, Form::TwoLayers, &mut Rng::new(seed), 1, 0);
            }
            journal.take();
            let mut cells = Vec::new();
            let mut issued = |count: usize| {
                let deadline = Instant::now() + PATIENCE;
                while cells.len() < count {
                    assert!(Instant::now() < deadline, "at most {max_tasks}: {count} tasks, only {cells:?}");
                    cells.extend(journal.take().iter().filter_map(|noted| match noted {
                        JournalEntry::Issued { task, .. } => Some(task.cell.0),
                        JournalEntry::Refused(_) | JournalEntry::Ended(_) => None,
                    }));
                    thread::yield_now();
                }
                cells.clone()
            };
            hold();
            let asked =
                [1, u64::from(MOST_TOKENS)].map(|tokens| Asked { tokens: (1..=tokens).collect(), children: vec![] });
            let submit = |asked| handle.submit(Form::TwoLayers.request(asked));
            let short = submit(&asked[0]);
            issued(1);
            let long = submit(&asked[1]);
            issued(usize::from(DEPTH));
            let first_choice = usize::from(DEPTH.next_multiple_of(max_tasks));
            for count in usize::from(DEPTH)..=first_choice {
                release(1);
                issued(count + 1);
            }
            let expected = [vec![0; first_choice], vec![1]].concat();
            assert_eq!(issued(first_choice + 1), expected, "at most {max_tasks} in a row");
            release(u64::MAX);
            running::block_on(async {
                for (asked, answer) in asked.iter().zip([short, long]) {
                    let response = answer.await.expect("nothing fails");
                    assert_eq!(running::values(&response), Form::TwoLayers.answer(asked));
                }
            });
            assert!(pool.stop(PATIENCE));
        }
    });
}

/// Requests that were given up may still be on the card when the next of their sequences is launched on another stream.
#[test]
fn nothing_races_in_sequences() {
    with_card(|| {
        let mut rng = Rng::new(24);
        let mut needed = 0;
        for (round, form) in sequences::KEPT.iter().cycle().take(8).enumerate() {
            let journal = Arc::new(Journal::default());
            let pool = journaled(LANES, 3, Some(Arc::clone(&journal)));
            let limits = SequenceKnobs { max_sequences: 2, ..sequences::LIMITS };
            let handle = sequences::bring_up(&pool, *form, limits);
            for id in 1..=30 {
                for number in 0..4 {
                    let asked = form.ask(&mut rng, 1);
                    let answer = handle.submit(sequences::request(*form, &asked, id, number == 0, number == 3));
                    if number == 0 || rng.permille(300) {
                        // It did not get through if one before it was given up too early.
                        let _ = running::block_on(answer);
                    }
                }
            }
            assert!(pool.stop(PATIENCE));
            needed += check(&journal, &format!("{form:?}, round {round}")).0;
        }
        check_waits(needed > 0, "no request was launched beside one that was given up");
    });
}

#[test]
fn what_runs_behind_a_refused_launch_waits_for_what_it_must() {
    with_fake_cuda(&[], || {
        let mut rng = Rng::new(23);
        for staged in STAGED {
            let journal = Arc::new(Journal::default());
            let pool = journaled(LANES, 3, Some(Arc::clone(&journal)));
            let handle = stages::bring_up(&pool, staged, knobs(Policy::Window(Default::default()), 2, 3));
            for nth in 1..20 {
                fail_calls(c"cuGraphLaunch", nth, CUDA_ERROR_OUT_OF_MEMORY);
                // A request that is refused while it runs alone fails, so the answers are not checked.
                let asked: Vec<_> = (0..6).map(|_| stages::submit(&handle, &mut rng)).collect();
                running::block_on(async {
                    for answer in asked {
                        let _ = answer.await;
                    }
                });
                fail_none();
            }
            assert!(pool.stop(PATIENCE));
            check(&journal, &format!("{staged:?}"));
        }
    });
}
