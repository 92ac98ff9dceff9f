//! Behaviour of the CPU device beyond the contract: threads, panics, and work that runs on the calling thread instead
//! of the stream's.

use std::{
    sync::Arc,
    thread::{self, ThreadId},
    time::Duration,
};

use crossbeam_channel::{Receiver, Sender};
use paternoster_device::{
    Access, AccessKind, BufferPool, Device, Operation, RowError, StreamId, Ticket, WorkFailure,
    cpu::{Cpu, HostWork, Operand},
};

use crate::harness::{Harness, OnCpu, Outcome, PATIENCE, bring, chain, stage, step};

type Closure = Box<dyn FnMut(&mut [Operand]) -> Result<(), String> + Send>;

const STREAM: StreamId = StreamId(0);

#[test]
fn reading_what_another_stream_writes_fails_instead_of_giving_half_a_row() {
    let mut on = OnCpu::start(2);
    let rows = on.buffer(2);
    on.launch(1, &[Access::write(rows, 0..2)], bring(8, 2));
    on.drain(1);
    on.launch_held(0, &[Access::write(rows, 0..1)], bring(1, 1));
    let reads = on.launch(1, &stage(rows, 0..1, rows, 1..2), step(1, 1));
    let (wanted_for, held_by) = (AccessKind::Read, AccessKind::Write);
    let conflict = RowError::Conflict { wanted: 0..1, wanted_for, held: 0..1, held_by };
    assert_eq!(on.outcome(reads), Err(WorkFailure::Rows(conflict)));
    on.release();
    on.drain(0);
    assert_eq!(on.contents(rows, 0..1), [chain(1, [])], "the writer is not disturbed");
    let memory = on.cpu().buffer(rows).expect("a buffer of the device");
    assert_eq!(memory.read(1..2).err(), Some(RowError::NotWritten { row: 1 }), "nothing stale is left to read");
}

#[test]
fn a_panic_fails_its_own_launch_alone() {
    let mut cpu: Cpu<Closure> = Cpu::start(1, BufferPool::new(0)).expect("threads can be started");
    let rows = cpu.allocate(2, 1).expect("a small buffer");
    let panics: Closure = Box::new(|_| panic!("as planted"));
    let writes: Closure = Box::new(|operands| {
        let [own] = operands else { return Err("one operand".to_owned()) };
        own.bytes_mut().ok_or("a range")?.fill(7);
        Ok(())
    });
    cpu.launch(STREAM, &[Access::write(rows, 0..1)], panics).expect("the launch is right");
    cpu.launch(STREAM, &[Access::write(rows, 1..2)], writes).expect("the launch is right");
    let ticket = cpu.record(STREAM).expect("a stream of the device");
    assert!(cpu.synchronize(ticket, PATIENCE));
    let memory = cpu.buffer(rows).expect("a buffer of the device");
    assert_eq!(memory.read(0..1).err(), Some(RowError::NotWritten { row: 0 }));
    assert_eq!(memory.read(1..2).expect("the second launch ran")[..], [7]);
}

/// Records what it sees when it runs and when it ends; can panic in either.
struct Witness {
    panics: bool,
    panics_when_done: bool,
    seen: Sender<(ThreadId, Outcome)>,
    then: Option<Box<dyn FnOnce() + Send>>,
}

impl Witness {
    fn new() -> (Self, Receiver<(ThreadId, Outcome)>) {
        let (seen, sees) = crossbeam_channel::unbounded();
        (Self { panics: false, panics_when_done: false, seen, then: None }, sees)
    }
}

impl HostWork for Witness {
    fn run(&mut self, _: &mut [Operand]) -> Result<(), String> {
        assert!(!self.panics, "as planted");
        Ok(())
    }

    fn done(self, outcome: Outcome) {
        if let Some(then) = self.then {
            then();
        }
        let _ = self.seen.send((thread::current().id(), outcome));
        assert!(!self.panics_when_done, "as planted");
    }
}

fn witnessed(streams: u16) -> Cpu<Witness> {
    Cpu::start(streams, BufferPool::new(0)).expect("threads can be started")
}

#[test]
fn work_is_told_that_it_panicked() {
    let mut cpu = witnessed(1);
    let (mut work, sees) = Witness::new();
    work.panics = true;
    cpu.launch(STREAM, &[], work).expect("the launch is right");
    let (_, outcome) = sees.recv_timeout(PATIENCE).expect("every launch reports its end");
    assert_eq!(outcome, Err(WorkFailure::Panicked("as planted".to_owned())));
}

#[test]
fn a_panic_of_work_that_is_told_its_end_leaves_the_stream_running() {
    let mut cpu = witnessed(1);
    let (mut work, sees) = Witness::new();
    work.panics_when_done = true;
    cpu.launch(STREAM, &[], work).expect("the launch is right");
    assert!(sees.recv_timeout(PATIENCE).is_ok());
    let (work, sees) = Witness::new();
    cpu.launch(STREAM, &[], work).expect("the launch is right");
    assert!(sees.recv_timeout(PATIENCE).is_ok(), "the stream goes on");
}

#[test]
fn when_work_is_told_its_end_its_ticket_is_complete_and_its_rows_are_free() {
    let mut cpu = witnessed(1);
    let rows = cpu.allocate(1, 8).expect("a small buffer");
    let memory = cpu.buffer(rows).expect("a buffer of the device");
    let (tickets, ticket) = crossbeam_channel::bounded::<Ticket>(1);
    let (tells, told) = crossbeam_channel::bounded(1);
    let (mut work, _sees) = Witness::new();
    let mut handle = cpu.clone();
    work.then = Some(Box::new(move || {
        let complete = ticket.recv_timeout(PATIENCE).is_ok_and(|ticket| handle.is_complete(ticket));
        let _ = tells.send((complete, memory.read(0..1).is_ok()));
    }));
    cpu.launch(STREAM, &[Access::write(rows, 0..1)], work).expect("the launch is right");
    let after = cpu.record(STREAM).expect("a stream of the device");
    tickets.send(after).expect("the work waits for it");
    assert_eq!(told.recv_timeout(PATIENCE), Ok((true, true)));
}

#[test]
fn work_that_is_done_issues_its_streams_next() {
    let mut cpu = witnessed(1);
    let (mut first, _sees) = Witness::new();
    let (second, sees) = Witness::new();
    let mut handle = cpu.clone();
    first.then = Some(Box::new(move || {
        handle.launch(STREAM, &[], second).expect("the launch is right");
    }));
    cpu.launch(STREAM, &[], first).expect("the launch is right");
    assert!(sees.recv_timeout(PATIENCE).is_ok());
}

#[test]
fn on_an_idle_stream_the_calling_thread_runs_its_own_launch() {
    let cpu = witnessed(1);
    let (work, sees) = Witness::new();
    let operation = cpu.launch_here(STREAM, &[], work).expect("the launch is right");
    assert_eq!(operation, Operation { stream: STREAM, position: 1 });
    assert_eq!(sees.try_recv(), Ok((thread::current().id(), Ok(()))), "it has run when the call returns");
}

#[test]
fn on_a_busy_stream_the_calling_threads_launch_queues() {
    let mut on = OnCpu::start(1);
    let rows = on.buffer(1);
    on.launch_held(0, &[Access::write(rows, 0..1)], bring(1, 1));
    let job = on.job(step(2, 1));
    let tag = job.tag();
    let queued = on.cpu().launch_here(STREAM, &[Access::update(rows, 0..1)], job).expect("the launch is right");
    on.note(queued, tag);
    let ticket = on.record(0);
    assert!(!on.device().is_complete(ticket));
    on.release();
    assert_eq!(on.outcome(queued), Ok(()));
    assert_eq!(on.contents(rows, 0..1), [chain(1, [2])]);
}

#[test]
fn after_a_launch_in_the_calling_thread_the_streams_thread_takes_over() {
    let cpu = witnessed(1);
    // After the first turn the stream's thread may be asleep, which is the case that most turns test. It may also still
    // be reporting the end of the previous turn, and then takes the launch as well.
    for turn in 0..50 {
        let (mut here, saw) = Witness::new();
        let (next, sees) = Witness::new();
        let (mut handle, early) = (cpu.clone(), sees.clone());
        let (tells, told) = crossbeam_channel::bounded(1);
        here.then = Some(Box::new(move || {
            handle.launch(STREAM, &[], next).expect("the launch is right");
            let _ = tells.send(early.is_empty());
        }));
        cpu.launch_here(STREAM, &[], here).expect("the launch is right");
        assert_eq!(told.recv_timeout(PATIENCE), Ok(true), "the next waits until this one is done");
        let (thread, outcome) = saw.recv_timeout(PATIENCE).expect("every launch reports its end");
        assert_eq!(outcome, Ok(()));
        assert!(turn > 0 || thread == thread::current().id(), "a stream that never ran is idle");
        let (thread, outcome) = sees.recv_timeout(PATIENCE).expect("the stream's thread runs it");
        assert_eq!(outcome, Ok(()));
        assert_ne!(thread, thread::current().id());
    }
}

#[test]
fn a_stream_with_a_new_thread_goes_on_without_what_runs() {
    let mut on = OnCpu::start(1);
    let (held, rows, others) = (on.buffer(1), on.buffer(1), on.buffer(1));
    let stuck = on.launch_held(0, &[Access::write(held, 0..1)], bring(1, 1));
    let next = on.launch(0, &[Access::write(rows, 0..1)], bring(2, 1));
    let reads = on.launch(0, &stage(held, 0..1, others, 0..1), step(3, 1));
    let ticket = on.record(0);
    on.cpu().replace_thread(STREAM).expect("a thread can be started");
    assert_eq!(on.outcome(next), Ok(()), "what is queued behind it runs");
    assert!(on.outcome(reads).is_err(), "its rows are still its own");
    assert!(on.cpu().synchronize(ticket, PATIENCE), "it counts as complete");
    on.release();
    assert_eq!(on.outcome(stuck), Ok(()), "it is told its end when it returns");
    let last = on.launch(0, &stage(rows, 0..1, others, 0..1), step(4, 1));
    assert_eq!(on.outcome(last), Ok(()), "the new thread serves the stream");
    on.cpu().replace_thread(STREAM).expect("nothing runs, so nothing changes");
    assert!(on.device().stop(PATIENCE), "all threads end");
}

#[test]
fn many_threads_issue_and_nothing_is_lost() {
    let cpu = witnessed(2);
    let (tells, told) = crossbeam_channel::unbounded();
    thread::scope(|scope| {
        for caller in 0..4_u16 {
            let (mut cpu, tells) = (cpu.clone(), tells.clone());
            scope.spawn(move || {
                for turn in 0..500 {
                    let work = Witness { panics: false, panics_when_done: false, seen: tells.clone(), then: None };
                    let (own, other) = (StreamId(caller % 2), StreamId((caller + 1) % 2));
                    let ticket = cpu.record(other).expect("a stream of the device");
                    cpu.wait(own, ticket).expect("a ticket of the device");
                    let issued =
                        if turn % 3 == 0 { cpu.launch_here(own, &[], work) } else { cpu.launch(own, &[], work) };
                    issued.expect("the launch is right");
                }
            });
        }
    });
    for _ in 0..2_000 {
        assert!(told.recv_timeout(PATIENCE).is_ok_and(|(_, outcome)| outcome.is_ok()));
    }
}

#[test]
fn the_last_handle_ends_the_streams() {
    let mut on = OnCpu::start(1);
    let (ends, pool) = (on.ends(), BufferPool::new(0));
    on.launch_held(0, &[], bring(1, 0));
    on.launch(0, &[], bring(2, 0));
    drop(on);
    let outcomes = [ends.recv_timeout(PATIENCE), ends.recv_timeout(PATIENCE)];
    assert_eq!(outcomes.map(|end| end.map(|(_, outcome)| outcome)), [Ok(Ok(())), Ok(Err(WorkFailure::Stopped))]);
    let weak = Arc::downgrade(&pool);
    let mut cpu = Cpu::<Closure>::start(1, pool).expect("threads can be started");
    assert!(cpu.stop(PATIENCE));
    drop(cpu);
    assert!(weak.upgrade().is_none(), "no thread keeps anything");
}

#[test]
fn waiting_for_a_ticket_that_is_held_up_ends_with_patience() {
    let mut on = OnCpu::start(1);
    on.launch_held(0, &[], bring(1, 0));
    let ticket = on.record(0);
    assert!(!on.cpu().synchronize(ticket, Duration::ZERO));
    on.release();
    assert!(on.cpu().synchronize(ticket, PATIENCE));
}
