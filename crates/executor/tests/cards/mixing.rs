//! The program of most of these tests. Its output is a hash of its inputs; a second output decides by that hash.

use paternoster_device::{
    DeviceError, StreamId,
    cuda::{Address, Argument, Capture, Cuda, Function, KernelElement, KernelSource, LaunchShape, Memory},
};
use paternoster_engine::{
    Batch, CardProgram, CardWeights, CardWorkspace, EngineError, Execution, Program, RunParameters, RunSize,
};

const KERNELS: KernelSource = KernelSource { name: "mixing.cu", text: include_str!("mixing.cu") };

/// Computes the result of the kernel.
pub(crate) fn mixing(one: u64, two: u64, modulus: u64) -> u64 {
    let mixed = one.wrapping_mul(6_364_136_223_846_793_005);
    let mixed = mixed.wrapping_add(two.wrapping_mul(1_442_695_040_888_963_407)).wrapping_add(1);
    (mixed ^ (mixed >> 29)) % modulus
}

/// Returns whether rows with this value leave at an exit.
pub(crate) fn leaves(value: u64) -> bool {
    value.is_multiple_of(4)
}

/// A program with one or two inputs of one 64-bit number each.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mixing {
    pub inputs: usize,
    pub modulus: u64,
}

impl Program for Mixing {
    fn run(&self, _: &Batch<'_>) -> Result<Execution, EngineError> {
        Err(EngineError::new("it runs on cards alone"))
    }

    fn on_card(&self) -> Option<&dyn CardProgram> {
        Some(self)
    }
}

impl CardProgram for Mixing {
    fn load(&self, card: &mut Cuda) -> Result<Box<dyn CardWeights>, DeviceError> {
        let kernel = card.kernels(KERNELS, KernelElement::F32)?.function("mixing")?;
        Ok(Box::new(OnCard { of: *self, kernel }))
    }
}

struct OnCard {
    of: Mixing,
    kernel: Function,
}

impl CardWeights for OnCard {
    fn reserve(&self, card: &mut Cuda, _: StreamId, max_rows: u32) -> Result<Box<dyn CardWorkspace>, DeviceError> {
        let column = |bytes: usize| card.memory(max_rows as usize * bytes);
        let inputs = (0..self.of.inputs).map(|_| column(8)).collect::<Result<_, _>>()?;
        let outputs = [column(8)?, column(4)?];
        let faults = column(4)?;
        Ok(Box::new(Workspace { of: self.of, kernel: self.kernel.clone(), inputs, outputs, faults }))
    }
}

struct Workspace {
    of: Mixing,
    kernel: Function,
    inputs: Vec<Memory>,
    outputs: [Memory; 2],
    faults: Memory,
}

impl CardWorkspace for Workspace {
    fn input(&self, _: usize, index: usize) -> Address {
        self.inputs[index].address()
    }

    fn output(&self, _: usize, index: usize) -> Address {
        self.outputs[index].address()
    }

    fn faults(&self, _: usize) -> Option<Address> {
        Some(self.faults.address())
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
        let rows = size.rows;
        let input = |index: usize| {
            self.inputs.get(index).map_or(Argument::U64(0), |memory| Argument::Address(memory.address()))
        };
        let arguments = [
            Argument::Address(live),
            Argument::I32(rows as i32),
            input(0),
            input(1),
            Argument::Address(self.outputs[0].address()),
            Argument::Address(self.outputs[1].address()),
            Argument::U64(self.of.modulus),
            Argument::Address(self.faults.address()),
        ];
        capture.kernel(&self.kernel, LaunchShape { grid: [rows, 1, 1], threads: 32, shared_bytes: 0 }, &arguments)
    }
}
