//! Stages that are captured for measurements are those of a pool.

use std::sync::Arc;

use paternoster_batching::Policy;
use paternoster_device::{
    Device, Operation, StreamId,
    cuda::{Compiler, CompletionListener, Cuda, CudaOptions, CudaWork},
};
use paternoster_engine::RunSize;
use paternoster_executor::{CapturedStages, StageLaunch};
use paternoster_testing::{
    fake_control::traced,
    fake_cuda::{with_card, with_fake_cuda},
};

use crate::{
    running::{MAX_ROWS, PATIENCE, pool},
    staged::{STAGED, Staged},
    stages::{bring_up, knobs},
};

/// Rows of the batch that is captured, fewer than those of a buffer pair.
const ROWS: u32 = 3;

/// Pairs of each boundary.
const PAIRS: u16 = 2;

struct Unheard;

impl CompletionListener for Unheard {
    fn ended(&self, _: Operation) {}

    fn lost(&self, reason: &str) {
        panic!("the card is lost: {reason}");
    }
}

fn card() -> Cuda {
    let options = CudaOptions { ordinal: 0, streams: 1, depth: 8, parameter_bytes: 4 << 10, memory_bytes: None };
    Cuda::open(&options, &Compiler::default(), Arc::new(Unheard)).expect("there is a card")
}

/// Returns the kernels of each graph that `body` captures, with their grids and blocks.
fn graphs(body: impl FnOnce()) -> Vec<Vec<String>> {
    let mut graphs: Vec<Vec<String>> = Vec::new();
    for line in traced(body).lines() {
        let call = line.split_once(' ').map_or("", |(_, call)| call);
        if call.starts_with("cuStreamBeginCapture") {
            graphs.push(Vec::new());
        } else if let (Some(kernel), Some(graph)) = (call.strip_prefix("cuLaunchKernel "), graphs.last_mut()) {
            graph.push(kernel.split(" stream").next().unwrap_or(kernel).to_owned());
        }
    }
    graphs
}

fn is_move(kernel: &str) -> bool {
    kernel.starts_with("gather_") || kernel.starts_with("scatter_")
}

/// Returns the 32-bit numbers in the parameters of a launch.
fn numbers(work: &CudaWork) -> Vec<i32> {
    work.parameters.chunks_exact(4).map(|number| i32::from_ne_bytes(number.try_into().expect("4 bytes"))).collect()
}

#[test]
fn stages_are_captured_as_those_of_a_pool() {
    with_fake_cuda(&[], || {
        for staged in STAGED {
            let pool = pool(1, 1);
            let knobs = knobs(Policy::Window(Default::default()), PAIRS, 1);
            let of_pool = graphs(|| drop(bring_up(&pool, staged, knobs)));
            assert!(pool.stop(PATIENCE));
            let mut card = card();
            let programs = staged.programs(MAX_ROWS);
            let loaded = CapturedStages::load(&mut card, staged.spec(MAX_ROWS), &programs, MAX_ROWS);
            let mut stages = loaded.expect("the card has room");
            let captured = graphs(|| {
                stages.capture(&mut card, RunSize { rows: MAX_ROWS, lengths: 0 }).expect("it fits");
            });
            let (tasks, alone): (Vec<_>, Vec<_>) = captured.chunks(2).map(|pair| (&pair[0], &pair[1])).unzip();
            let last_of_each = of_pool.chunks(of_pool.len() / tasks.len()).filter_map(|buckets| buckets.last());
            assert_eq!(tasks, last_of_each.collect::<Vec<_>>(), "{staged:?}");
            for (task, alone) in tasks.into_iter().zip(alone) {
                assert!(task.iter().any(|kernel| kernel.starts_with("gather_")), "{staged:?}: {task:?}");
                assert!(task.iter().any(|kernel| kernel.starts_with("scatter_")), "{staged:?}: {task:?}");
                let program: Vec<&String> = task.iter().filter(|kernel| !is_move(kernel)).collect();
                // Alone it needs a kernel that fetches its parameters.
                assert!(alone[0].starts_with("fetch_parameters"), "{staged:?}: {alone:?}");
                assert_eq!(alone[1..].iter().collect::<Vec<_>>(), program, "{staged:?}");
            }
            stages.free(&mut card).expect("the card is there");
        }
    });
}

#[test]
fn rows_of_captured_stages_are_not_consecutive_in_their_buffers() {
    with_card(|| {
        let mut card = card();
        let programs = Staged::Chain.programs(MAX_ROWS);
        let loaded = CapturedStages::load(&mut card, Staged::Chain.spec(MAX_ROWS), &programs, MAX_ROWS);
        let mut stages = loaded.expect("the card has room");
        let launches = stages.capture(&mut card, RunSize { rows: ROWS, lengths: 0 }).expect("it fits");
        // Every second row of the second pair.
        let first = MAX_ROWS as i32;
        let places = [first, first + 2, first + 4];
        for (stage, moves) in [1, 2, 1].into_iter().enumerate() {
            let numbers = numbers(&launches[stage].task);
            assert_eq!(numbers[0], ROWS as i32, "live rows");
            let lists = numbers.windows(places.len()).filter(|list| **list == places).count();
            assert_eq!(lists, moves, "stage {stage} reads and writes at its places: {numbers:?}");
        }
        let works = |of: fn(&StageLaunch) -> &CudaWork| launches.iter().map(of).cloned().collect::<Vec<_>>();
        for works in [works(|launch| &launch.task), works(|launch| &launch.program)] {
            let tickets = works.into_iter().map(|work| {
                card.launch(StreamId(0), &[], work).expect("the card takes it");
                card.record(StreamId(0)).expect("it has a ticket")
            });
            let last = tickets.last().expect("there are stages");
            card.drain(StreamId(0)).expect("all of it runs");
            assert!(card.is_complete(last));
        }
        let refused = stages.capture(&mut card, RunSize { rows: MAX_ROWS + 1, lengths: 0 });
        let refused = refused.expect_err("a pair has fewer rows");
        assert!(refused.contains(&format!("expected 1 to {MAX_ROWS}")), "{refused}");
        drop(launches);
        stages.free(&mut card).expect("the card is there");
    });
}
