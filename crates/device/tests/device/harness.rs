//! What the conformance suite needs of a device beyond its contract: work, notifications of ends, and contents of rows.

use std::{collections::HashMap, ops::Range, sync::Arc, time::Duration};

use crossbeam_channel::{Receiver, Sender};
use paternoster_device::{
    Access, BufferId, BufferPool, Device, DeviceError, Operation, StreamId, Ticket, WorkFailure,
    cpu::{Cpu, HostWork, Operand},
};
use paternoster_testing::sim::{RowSource, Sim, Work, content};

/// Time limit of waits, longer than anything here takes: a test that reaches it has failed.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

pub(crate) type Outcome = Result<(), WorkFailure>;

/// The job that ended, and how.
pub(crate) type End = (u64, Outcome);

/// A device under test. Buffers have rows of 8 bytes. Work is symbolic on every device; the CPU computes its hashes.
pub(crate) trait Harness {
    type Device: Device;

    fn start(streams: u16) -> Self;

    fn device(&mut self) -> &mut Self::Device;

    fn try_launch(&mut self, stream: u16, accesses: &[Access], work: Work) -> Result<Operation, DeviceError>;

    /// Launches work that begins at once on a free stream, and does not end before [`Self::release`].
    fn launch_held(&mut self, stream: u16, accesses: &[Access], work: Work) -> Operation;

    /// Releases held work.
    fn release(&mut self);

    /// Runs until the ticket is complete.
    fn until(&mut self, ticket: Ticket);

    /// Runs until a launch has ended, and returns how.
    fn outcome(&mut self, operation: Operation) -> Outcome;

    /// Returns the contents of rows, whose writers must be complete.
    fn contents(&mut self, buffer: BufferId, rows: Range<u32>) -> Vec<u64>;

    fn launch(&mut self, stream: u16, accesses: &[Access], work: Work) -> Operation {
        self.try_launch(stream, accesses, work).expect("the launch is right")
    }

    fn buffer(&mut self, rows: u32) -> BufferId {
        self.device().allocate(rows, 8).expect("a small buffer")
    }

    fn record(&mut self, stream: u16) -> Ticket {
        self.device().record(StreamId(stream)).expect("a stream of the device")
    }

    fn wait(&mut self, stream: u16, ticket: Ticket) {
        self.device().wait(StreamId(stream), ticket).expect("a ticket of the device");
    }

    /// Runs until a stream has no more work.
    fn drain(&mut self, stream: u16) {
        let ticket = self.record(stream);
        self.until(ticket);
    }
}

/// Returns work of program 0 that writes `value + row` to each of `rows` rows.
pub(crate) fn bring(value: u64, rows: u32) -> Work {
    let mut work = Work::new(0, 10, 1);
    work.sources.extend((0..u64::from(rows)).map(|row| RowSource::External(value + row)));
    work
}

/// Returns the value of a row that [`bring`] wrote, after `programs` were applied one by one.
pub(crate) fn chain(brought: u64, programs: impl IntoIterator<Item = u64>) -> u64 {
    programs.into_iter().fold(content(0, 0, &[brought]), |held, program| content(program, 0, &[held]))
}

/// Returns work that replaces each of `rows` rows by `program`'s result for it.
pub(crate) fn step(program: u64, rows: u32) -> Work {
    Work::row_by_row(program, 10, 1, 1, rows)
}

/// Returns the accesses of a [`step`] from one buffer to another.
pub(crate) fn stage(from: BufferId, rows: Range<u32>, to: BufferId, to_rows: Range<u32>) -> [Access; 2] {
    [Access::read(from, rows), Access::write(to, to_rows)]
}

pub(crate) struct OnSim {
    sim: Sim,
    ended: HashMap<Operation, Outcome>,
}

impl OnSim {
    fn go_on(&mut self) {
        let completion = self.sim.advance().expect("something is still to end");
        self.ended.insert(completion.operation, completion.outcome);
    }
}

impl Harness for OnSim {
    type Device = Sim;

    fn start(streams: u16) -> Self {
        Self { sim: Sim::new(streams), ended: HashMap::new() }
    }

    fn device(&mut self) -> &mut Sim {
        &mut self.sim
    }

    fn try_launch(&mut self, stream: u16, accesses: &[Access], work: Work) -> Result<Operation, DeviceError> {
        self.sim.launch(StreamId(stream), accesses, work)
    }

    fn launch_held(&mut self, stream: u16, accesses: &[Access], mut work: Work) -> Operation {
        work.duration_ns = 1_000_000;
        self.launch(stream, accesses, work)
    }

    fn release(&mut self) {}

    fn until(&mut self, ticket: Ticket) {
        while !self.sim.is_complete(ticket) {
            match self.sim.next_end_ns() {
                // The next end may be that of a copy, which is not reported.
                Some(at_ns) => {
                    while let Some(completion) = self.sim.advance_to(at_ns) {
                        self.ended.insert(completion.operation, completion.outcome);
                    }
                }
                None => panic!("the ticket will never be complete"),
            }
        }
    }

    fn outcome(&mut self, operation: Operation) -> Outcome {
        loop {
            if let Some(outcome) = self.ended.get(&operation) {
                return outcome.clone();
            }
            self.go_on();
        }
    }

    fn contents(&mut self, buffer: BufferId, rows: Range<u32>) -> Vec<u64> {
        rows.map(|row| self.sim.read(buffer, row).expect("the row holds a result")).collect()
    }
}

pub(crate) struct OnCpu {
    cpu: Cpu<Job>,
    launched: u64,
    tags: HashMap<Operation, u64>,
    ended: HashMap<u64, Outcome>,
    ends: (Sender<End>, Receiver<End>),
    begun: (Sender<()>, Receiver<()>),
    gate: Option<Sender<()>>,
    gated: Receiver<()>,
}

/// Symbolic work on rows of 8 bytes.
pub(crate) struct Job {
    tag: u64,
    work: Work,
    /// Reports that it began, and waits until the other end is dropped.
    gate: Option<(Sender<()>, Receiver<()>)>,
    ends: Sender<End>,
}

impl HostWork for Job {
    fn run(&mut self, operands: &mut [Operand]) -> Result<(), String> {
        if let Some((begun, gate)) = &self.gate {
            begun.send(()).map_err(|_| "the test is over")?;
            let _ = gate.recv();
        }
        if self.work.fails {
            return Err("a planted fault".to_owned());
        }
        compute(&self.work, operands);
        Ok(())
    }

    fn done(self, outcome: Outcome) {
        let _ = self.ends.send((self.tag, outcome));
    }
}

fn compute(work: &Work, operands: &mut [Operand]) {
    let values: Vec<u64> = work
        .sources
        .iter()
        .map(|source| match *source {
            RowSource::External(value) => value,
            RowSource::Row { access, row } => {
                let row = operands[usize::from(access)].row(row as usize).expect("a row of the access");
                u64::from_ne_bytes(row.try_into().expect("rows of 8 bytes"))
            }
        })
        .collect();
    let mut sources = values.chunks_exact(work.fan_in as usize);
    let mut output = 0;
    for operand in operands {
        let mut place = 0;
        while let Some(row) = operand.row_mut(place) {
            let own = sources.next().expect("sources for every written row");
            row.copy_from_slice(&content(work.program, output, own).to_ne_bytes());
            place += 1;
        }
        output += u16::from(place > 0);
    }
}

impl OnCpu {
    pub(crate) fn cpu(&self) -> &Cpu<Job> {
        &self.cpu
    }

    pub(crate) fn job(&mut self, work: Work) -> Job {
        self.launched += 1;
        Job { tag: self.launched, work, gate: None, ends: self.ends.0.clone() }
    }

    pub(crate) fn note(&mut self, operation: Operation, tag: u64) {
        self.tags.insert(operation, tag);
    }

    /// Returns a receiver of ends that outlives the device.
    pub(crate) fn ends(&self) -> Receiver<End> {
        self.ends.1.clone()
    }
}

impl Job {
    pub(crate) fn tag(&self) -> u64 {
        self.tag
    }
}

impl Harness for OnCpu {
    type Device = Cpu<Job>;

    fn start(streams: u16) -> Self {
        let (gate, gated) = crossbeam_channel::bounded(0);
        Self {
            cpu: Cpu::start(streams, BufferPool::new(1 << 20)).expect("threads can be started"),
            launched: 0,
            tags: HashMap::new(),
            ended: HashMap::new(),
            ends: crossbeam_channel::unbounded(),
            begun: crossbeam_channel::unbounded(),
            gate: Some(gate),
            gated,
        }
    }

    fn device(&mut self) -> &mut Cpu<Job> {
        &mut self.cpu
    }

    fn try_launch(&mut self, stream: u16, accesses: &[Access], work: Work) -> Result<Operation, DeviceError> {
        let job = self.job(work);
        let tag = job.tag;
        let operation = self.cpu.launch(StreamId(stream), accesses, job)?;
        self.note(operation, tag);
        Ok(operation)
    }

    fn launch_held(&mut self, stream: u16, accesses: &[Access], work: Work) -> Operation {
        let mut job = self.job(work);
        job.gate = Some((self.begun.0.clone(), self.gated.clone()));
        let tag = job.tag;
        let operation = self.cpu.launch(StreamId(stream), accesses, job).expect("the launch is right");
        self.note(operation, tag);
        self.begun.1.recv_timeout(PATIENCE).expect("held work begins at once");
        operation
    }

    fn release(&mut self) {
        self.gate = None;
    }

    fn until(&mut self, ticket: Ticket) {
        assert!(self.cpu.synchronize(ticket, PATIENCE), "the ticket becomes complete");
    }

    fn outcome(&mut self, operation: Operation) -> Outcome {
        let tag = self.tags[&operation];
        loop {
            if let Some(outcome) = self.ended.get(&tag) {
                return outcome.clone();
            }
            let (tag, outcome) = self.ends.1.recv_timeout(PATIENCE).expect("every launch reports its end");
            assert!(self.ended.insert(tag, outcome).is_none(), "a launch is told its end once");
        }
    }

    fn contents(&mut self, buffer: BufferId, rows: Range<u32>) -> Vec<u64> {
        let buffer = self.cpu.buffer(buffer).expect("a buffer of the device");
        let bytes = Arc::clone(&buffer).read(rows).expect("the rows hold results");
        bytes.chunks_exact(8).map(|row| u64::from_ne_bytes(row.try_into().expect("8 bytes"))).collect()
    }
}
