//! A CUDA card under the suite: a kernel computes the same rows as the simulated device.

use std::{collections::HashMap, ops::Range, rc::Rc, sync::Arc, thread, time::Instant};

use crossbeam_channel::{Receiver, Sender};
use paternoster_device::{
    Access, AccessKind, BufferId, Device, DeviceError, Operation, StreamId, Ticket,
    cuda::{
        Argument, Compiler, CompletionListener, Cuda, CudaOptions, CudaWork, Function, KernelElement, KernelSource,
        LaunchShape,
    },
};
use paternoster_testing::sim::{RowSource as Symbol, Work};

use crate::harness::{Harness, Outcome, PATIENCE};

const KERNELS: KernelSource = KernelSource { name: "symbolic.cu", text: include_str!("symbolic.cu") };

/// Maximum operations of a stream in flight, and maximum bytes of an operation's parameters.
pub(crate) const DEPTH: u32 = 512;
const PARAMETER_BYTES: usize = 2048;

const ONE_BLOCK: LaunchShape = LaunchShape { grid: [1; 3], threads: 32, shared_bytes: 0 };

struct Ends(Sender<Result<Operation, String>>);

impl CompletionListener for Ends {
    fn ended(&self, operation: Operation) {
        let _ = self.0.send(Ok(operation));
    }

    fn lost(&self, reason: &str) {
        let _ = self.0.send(Err(reason.to_owned()));
    }
}

pub(crate) struct OnCuda {
    cuda: Cuda,
    symbolic: Function,
    hold: Function,
    /// A word that becomes nonzero to release held work.
    gate: BufferId,
    ends: Receiver<Result<Operation, String>>,
    ended: HashMap<Operation, Outcome>,
}

/// The options of devices under test.
#[derive(Default)]
pub(crate) struct Opening {
    compiler: Compiler,
}

/// A graph with its parameters.
pub(crate) struct Prepared(CudaWork);

impl Opening {
    pub(crate) fn open(&self, streams: u16) -> Result<OnCuda, DeviceError> {
        let (sender, ends) = crossbeam_channel::unbounded();
        let options =
            CudaOptions { ordinal: 0, streams, depth: DEPTH, parameter_bytes: PARAMETER_BYTES, memory_bytes: None };
        let mut cuda = Cuda::open(&options, &self.compiler, Arc::new(Ends(sender)))?;
        let kernels = cuda.kernels(KERNELS, KernelElement::F32)?;
        let (symbolic, hold) = (kernels.function("symbolic")?, kernels.function("hold")?);
        let gate = cuda.allocate(1, 8)?;
        Ok(OnCuda { cuda, symbolic, hold, gate, ends, ended: HashMap::new() })
    }
}

impl OnCuda {
    /// Captures what a launch needs.
    pub(crate) fn prepare(&mut self, stream: u16, accesses: &[Access], work: &Work) -> Prepared {
        Prepared(self.work(StreamId(stream), accesses, work, false).expect("it can be captured"))
    }

    pub(crate) fn again(&mut self, stream: u16, accesses: &[Access], prepared: &Prepared) {
        self.try_again(stream, accesses, prepared).expect("the launch is right");
    }

    pub(crate) fn try_again(
        &mut self,
        stream: u16,
        accesses: &[Access],
        prepared: &Prepared,
    ) -> Result<Operation, DeviceError> {
        self.cuda.launch(StreamId(stream), accesses, prepared.0.clone())
    }

    /// Waits until the device is lost, and returns the reason.
    pub(crate) fn loss(&mut self) -> String {
        loop {
            match self.ends.recv_timeout(PATIENCE).expect("a loss is reported") {
                Ok(operation) => drop(self.ended.insert(operation, Ok(()))),
                Err(reason) => return reason,
            }
        }
    }

    pub(crate) fn try_until(&mut self, ticket: Ticket) -> Result<(), DeviceError> {
        let deadline = Instant::now() + PATIENCE;
        while !self.cuda.is_complete(ticket) {
            match self.ends.try_recv() {
                Ok(Ok(operation)) => drop(self.ended.insert(operation, Ok(()))),
                Ok(Err(reason)) => return Err(DeviceError::Lost(reason)),
                Err(_) => {}
            }
            assert!(Instant::now() < deadline, "the ticket becomes complete");
            thread::yield_now();
        }
        Ok(())
    }

    pub(crate) fn try_contents(&mut self, buffer: BufferId, rows: Range<u32>) -> Result<Vec<u64>, DeviceError> {
        let mut bytes = vec![0; rows.len() * 8];
        self.cuda.download(buffer, rows.start, &mut bytes)?;
        Ok(bytes.chunks_exact(8).map(|row| u64::from_ne_bytes(row.try_into().expect("8 bytes"))).collect())
    }

    /// Returns the parameters of `symbolic`: the addresses and sources of its rows.
    fn parameters(&self, accesses: &[Access], work: &Work) -> Result<Box<[u8]>, DeviceError> {
        let at = |access: &Access, place: u32| {
            let row = access.region.rows.get(place).expect("a row of the access");
            self.cuda.address(access.region.buffer).map(|address| address.offset(row as usize * 8).to_bits())
        };
        let written = accesses.iter().filter(|access| access.kind != AccessKind::Read);
        let rows = written.enumerate().flat_map(|(output, access)| {
            (0..access.region.rows.len()).map(move |place| (output as u64, access, place))
        });
        let mut sources = work.sources.iter();
        let mut words = Vec::new();
        let mut count = 0;
        for (output, access, place) in rows {
            count += 1;
            words.extend([at(access, place)?, output]);
            for source in sources.by_ref().take(work.fan_in as usize) {
                words.extend(match *source {
                    Symbol::External(value) => [0, value],
                    Symbol::Row { access, row } => [1, at(&accesses[usize::from(access)], row)?],
                });
            }
        }
        let head = [count, work.program, u64::from(work.fan_in)];
        Ok(head.into_iter().chain(words).flat_map(u64::to_ne_bytes).collect())
    }

    /// Releases held work after the device is lost. The stand-in's device memory is host memory.
    pub(crate) fn open_gate_from_the_host(&self) {
        let gate = self.cuda.address(self.gate).expect("the gate is there").to_bits() as *mut u64;
        // SAFETY: the word is there as long as the device is, and the kernel that reads it expects it to change.
        unsafe { gate.write_volatile(1) };
    }

    fn work(
        &mut self,
        stream: StreamId,
        accesses: &[Access],
        work: &Work,
        is_held: bool,
    ) -> Result<CudaWork, DeviceError> {
        assert!(!work.fails, "a kernel cannot fail by itself");
        let gate = self.cuda.address(self.gate)?;
        let (hold, symbolic) = (self.hold.clone(), self.symbolic.clone());
        let graph = self.cuda.capture(stream, PARAMETER_BYTES, |capture| {
            if is_held {
                capture.kernel(&hold, ONE_BLOCK, &[Argument::Address(gate)])?;
            }
            let parameters = capture.parameters();
            capture.kernel(&symbolic, ONE_BLOCK, &[Argument::Address(parameters)])
        })?;
        // Invalid accesses are left for the device to reject.
        let has_rows = work.sources.len() as u32 == work.fan_in * written_rows(accesses);
        let parameters = if has_rows { self.parameters(accesses, work).unwrap_or_default() } else { Box::default() };
        Ok(CudaWork { graph: Rc::new(graph), parameters })
    }

    fn issue(
        &mut self,
        stream: u16,
        accesses: &[Access],
        work: &Work,
        is_held: bool,
    ) -> Result<Operation, DeviceError> {
        let stream = StreamId(stream);
        let work = self.work(stream, accesses, work, is_held)?;
        self.cuda.launch(stream, accesses, work)
    }
}

fn written_rows(accesses: &[Access]) -> u32 {
    accesses.iter().filter(|access| access.kind != AccessKind::Read).map(|access| access.region.rows.len()).sum()
}

impl Harness for OnCuda {
    type Device = Cuda;

    fn start(streams: u16) -> Self {
        Opening::default().open(streams).expect("there is a card")
    }

    fn device(&mut self) -> &mut Cuda {
        &mut self.cuda
    }

    fn try_launch(&mut self, stream: u16, accesses: &[Access], work: Work) -> Result<Operation, DeviceError> {
        self.issue(stream, accesses, &work, false)
    }

    fn launch_held(&mut self, stream: u16, accesses: &[Access], work: Work) -> Operation {
        self.issue(stream, accesses, &work, true).expect("the launch is right")
    }

    fn release(&mut self) {
        let gate = self.gate;
        self.cuda.upload(gate, 0, &1_u64.to_ne_bytes()).expect("the gate is there");
    }

    fn until(&mut self, ticket: Ticket) {
        self.try_until(ticket).expect("the device is there");
    }

    fn outcome(&mut self, operation: Operation) -> Outcome {
        loop {
            if let Some(outcome) = self.ended.get(&operation) {
                return outcome.clone();
            }
            let ended = self.ends.recv_timeout(PATIENCE).expect("every launch reports its end");
            let ended = ended.expect("the device is there");
            assert!(self.ended.insert(ended, Ok(())).is_none(), "a launch is told its end once");
        }
    }

    fn contents(&mut self, buffer: BufferId, rows: Range<u32>) -> Vec<u64> {
        self.try_contents(buffer, rows).expect("the rows are there")
    }
}

impl Drop for OnCuda {
    fn drop(&mut self) {
        // Work that a failed test still holds must end before the device is dropped.
        let _ = self.cuda.upload(self.gate, 0, &1_u64.to_ne_bytes());
        self.cuda.stop(PATIENCE);
    }
}
