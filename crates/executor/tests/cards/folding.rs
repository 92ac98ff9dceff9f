//! Programs of these tests that read tensors of any length. One folds all entries into its output, the other marks each
//! entry.

use paternoster_device::{
    DeviceError, StreamId,
    cuda::{Address, Argument, Capture, Cuda, Function, KernelElement, KernelSource, LaunchShape, Memory},
};
use paternoster_engine::{
    Batch, CardProgram, CardWeights, CardWorkspace, EngineError, Execution, Program, RunParameters, RunSize,
};
use paternoster_model::Lengths;

use crate::mixing::mixing;

const KERNELS: KernelSource = KernelSource { name: "folding.cu", text: include_str!("folding.cu") };

/// The lengths that cells are prepared for. The longest is that of the longest request here.
pub(crate) const ENTRIES: [u32; 3] = [3, 7, 12];

const MANY: u64 = 1_000_000_007;

/// Computes the result of a folding program.
pub(crate) fn folding(one: u64, entries: &[u64], modulus: u64) -> u64 {
    let folded = entries.iter().fold(0, |folded, &entry| mixing(folded, entry, MANY));
    mixing(one, folded, modulus)
}

/// Computes the result of a marking program.
pub(crate) fn marking(entries: &[u64]) -> Vec<u64> {
    entries.iter().zip(0..).map(|(&entry, at)| mixing(entry, at, MANY)).collect()
}

/// A program that reads entries and their number.
#[derive(Clone, Copy, Debug)]
pub(crate) enum OverEntries {
    /// Reads one number, the entries and their number; returns one number below this.
    Folding(u64),
    /// Reads the entries and their number; returns as many.
    Marking,
}

impl Program for OverEntries {
    fn run(&self, _: &Batch<'_>) -> Result<Execution, EngineError> {
        Err(EngineError::new("it runs on cards alone"))
    }

    fn on_card(&self) -> Option<&dyn CardProgram> {
        Some(self)
    }
}

impl CardProgram for OverEntries {
    fn lengths(&self) -> Vec<Lengths> {
        ENTRIES.iter().map(|&length| Lengths::from_slice(&[length])).collect()
    }

    fn load(&self, card: &mut Cuda) -> Result<Box<dyn CardWeights>, DeviceError> {
        let name = match self {
            Self::Folding(_) => "folding",
            Self::Marking => "marking",
        };
        let kernel = card.kernels(KERNELS, KernelElement::F32)?.function(name)?;
        Ok(Box::new(OnCard { of: *self, kernel }))
    }
}

struct OnCard {
    of: OverEntries,
    kernel: Function,
}

impl CardWeights for OnCard {
    fn reserve(&self, card: &mut Cuda, _: StreamId, max_rows: u32) -> Result<Box<dyn CardWorkspace>, DeviceError> {
        let most = ENTRIES.iter().copied().max().unwrap_or_default() as usize;
        let rows = |entries: usize| card.memory(max_rows as usize * entries * 8);
        let [numbers, entries, lengths, out] = match self.of {
            OverEntries::Folding(_) => [1, most, 1, 1],
            OverEntries::Marking => [1, most, 1, most],
        }
        .map(rows);
        let memory = [numbers?, entries?, lengths?, out?];
        Ok(Box::new(Workspace { of: self.of, kernel: self.kernel.clone(), memory }))
    }
}

struct Workspace {
    of: OverEntries,
    kernel: Function,
    /// The one number, the entries, their number, and the output.
    memory: [Memory; 4],
}

impl CardWorkspace for Workspace {
    fn input(&self, _: usize, index: usize) -> Address {
        let first = match self.of {
            OverEntries::Folding(_) => 0,
            OverEntries::Marking => 1,
        };
        self.memory[first + index].address()
    }

    fn output(&self, _: usize, _: usize) -> Address {
        self.memory[3].address()
    }

    fn faults(&self, _: usize) -> Option<Address> {
        None
    }

    fn prepare(&mut self, _: &mut Cuda, _: RunSize) -> Result<(), DeviceError> {
        Ok(())
    }

    fn issue(
        &self,
        capture: &mut Capture<'_>,
        size: RunSize,
        RunParameters { live, .. }: RunParameters<'_>,
    ) -> Result<(), DeviceError> {
        let [one, entries, lengths, out] = [0, 1, 2, 3].map(|at| Argument::Address(self.memory[at].address()));
        let (rows, most) = (Argument::I32(size.rows as i32), Argument::I32(ENTRIES[size.lengths] as i32));
        let live = Argument::Address(live);
        let shape = LaunchShape { grid: [size.rows, 1, 1], threads: 32, shared_bytes: 0 };
        match self.of {
            OverEntries::Folding(modulus) => {
                let arguments = [live, rows, most, one, entries, lengths, out, Argument::U64(modulus)];
                capture.kernel(&self.kernel, shape, &arguments)
            }
            OverEntries::Marking => capture.kernel(&self.kernel, shape, &[live, rows, most, entries, lengths, out]),
        }
    }
}
