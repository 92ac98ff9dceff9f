//! A complete driver of the core: one thread that sends numbers, one that drives, and one that squares batches of them.
//!
//! Run it with `cargo run -p paternoster-batching --example driver`. Numbers that arrive while a batch runs, or
//! within a millisecond, share the next one.

use std::{
    collections::HashMap,
    sync::mpsc::{self, RecvTimeoutError},
    thread,
    time::{self, Duration},
};

use paternoster_batching::{
    Action, Arrival, Core, Event, Instant, Knobs, LaneId, LaneKnobs, ModelId, Policy, ReqId, Task, TaskId, WindowKnobs,
};

const MODEL: ModelId = ModelId(0);

/// What wakes the driver.
enum Message {
    /// A number to square.
    Number(u64),
    /// A batch has run, with its squares.
    Squared(TaskId, Vec<(ReqId, u64)>),
    /// No further numbers come.
    End,
}

fn main() {
    let (messages, received) = mpsc::channel();
    let (batches, lane) = mpsc::channel::<(TaskId, Vec<(ReqId, u64)>)>();

    let done = messages.clone();
    let device = thread::spawn(move || {
        for (task, batch) in lane {
            println!("a batch of {}", batch.len());
            let squares = batch.into_iter().map(|(req, number)| (req, number * number)).collect();
            if done.send(Message::Squared(task, squares)).is_err() {
                return;
            }
        }
    });
    let client = thread::spawn(move || {
        for message in (1..=20).map(Message::Number).chain([Message::End]) {
            if messages.send(message).is_err() {
                return;
            }
        }
    });

    let epoch = time::Instant::now();
    let now = || Instant::from_ns(epoch.elapsed().as_nanos() as u64);
    let mut core = Core::new();
    let policy = Policy::Window(WindowKnobs { max_queue_delay_ns: 1_000_000, ..WindowKnobs::default() });
    let knobs = Knobs { max_batch_rows: 8, policy, ..Knobs::default() };
    let mut events = vec![Event::ModelUp(MODEL, Box::new(knobs)), Event::LaneUp(LaneId(0), LaneKnobs::default())];
    let (mut numbers, mut squares) = (HashMap::new(), HashMap::new());
    let (mut next, mut is_ending, mut wake) = (0, false, None::<Instant>);
    loop {
        for event in std::mem::take(&mut events) {
            for action in core.step(now(), event) {
                match action {
                    Action::Launch(task) => {
                        let Task { id, rows, .. } = *task;
                        let batch = rows.iter().map(|row| (row.req, numbers[&row.req])).collect();
                        batches.send((id, batch)).expect("the device waits for batches");
                    }
                    Action::Finish { req, end } => {
                        println!("{:?}: {end:?}, {:?}", numbers.remove(&req), squares.remove(&req));
                    }
                    Action::WakeAt(at) => wake = Some(at),
                    other => println!("not needed here: {other:?}"),
                }
            }
        }
        if is_ending && numbers.is_empty() {
            break;
        }
        let patience = wake.map_or(Duration::MAX, |at| Duration::from_nanos(at.since(now())));
        match received.recv_timeout(patience) {
            Ok(Message::Number(number)) => {
                let req = ReqId(next);
                next += 1;
                numbers.insert(req, number);
                events.push(Event::Arrived(Arrival::new(req, MODEL, 1)));
            }
            Ok(Message::Squared(task, batch)) => {
                squares.extend(batch);
                events.push(Event::Completed { task, rows: &[] });
            }
            Ok(Message::End) => is_ending = true,
            Err(RecvTimeoutError::Timeout) => {
                wake = None;
                events.push(Event::Wake);
            }
            Err(RecvTimeoutError::Disconnected) => break,
        }
    }
    drop(batches);
    device.join().expect("the device did not panic");
    client.join().expect("the client did not panic");
}
