//! Memory for batches: inputs, outputs and intermediate tensors.

use std::rc::Rc;

use paternoster_device::{
    DeviceError, StreamId,
    cuda::{Address, Cuda, Memory, products},
};

use super::{
    fuse::Step,
    geometry::geometry,
    ir::Holder,
    load::LoadedPlan,
    memory::{self, ALIGNMENT, Places},
};

/// Inputs, outputs and intermediate tensors for one stream. Nothing in it outlasts a run, so other work on the stream
/// may use the same memory.
#[derive(Debug)]
pub struct Workspace {
    memory: Rc<Memory>,
    max_rows: u32,
    /// Offset of each buffer in bytes.
    offsets: Vec<Option<usize>>,
    inputs: Vec<Address>,
    outputs: Vec<Address>,
    counts: Address,
    faults: Option<Address>,
    /// Scratch memory of the libraries for products and convolutions, which use it one after another.
    beside: Address,
    beside_bytes: usize,
}

/// Sizes and offsets of a workspace.
struct Need {
    places: Places,
    counts: usize,
    faults: usize,
    beside: usize,
    beside_bytes: usize,
}

/// Role of a buffer for the caller.
#[derive(Clone, Copy)]
enum Holding {
    Input,
    Output,
}

impl LoadedPlan {
    /// Allocates memory for inputs, outputs and intermediate tensors of up to `max_rows` rows. Only this stream may use
    /// it.
    ///
    /// # Errors
    /// Fails if memory is short, a library that the plan needs is missing, or the device is lost.
    pub fn reserve(&self, card: &mut Cuda, stream: StreamId, max_rows: u32) -> Result<Workspace, DeviceError> {
        let mut workspaces = Self::reserve_together(&[self], card, stream, max_rows)?;
        workspaces.pop().ok_or(DeviceError::MalformedWork("there is no plan to reserve a workspace for"))
    }

    /// As [`Self::reserve`] for several plans, which share the memory.
    ///
    /// # Errors
    /// As [`Self::reserve`].
    pub fn reserve_together(
        plans: &[&Self],
        card: &mut Cuda,
        stream: StreamId,
        max_rows: u32,
    ) -> Result<Vec<Workspace>, DeviceError> {
        let needs = plans.iter().map(|loaded| Need::new(loaded, card, max_rows));
        let needs: Vec<Need> = needs.collect::<Result<_, _>>()?;
        let bytes = needs.iter().map(|need| need.beside + need.beside_bytes).max().unwrap_or(0);
        let memory = card.stream_memory(stream, bytes)?;
        let pairs = plans.iter().zip(needs);
        Ok(pairs.map(|(loaded, need)| Workspace::new(loaded, need, Rc::clone(&memory), max_rows)).collect())
    }
}

impl Need {
    fn new(loaded: &LoadedPlan, card: &mut Cuda, max_rows: u32) -> Result<Self, DeviceError> {
        let plan = &loaded.plan;
        let rows = max_rows.max(1) as usize;
        let too_large = || DeviceError::Driver(format!("a plan for {rows} rows needs more memory than can be counted"));
        // Kernels count rows in 32 bits.
        let most = plan.counts.iter().map(|count| count.factor).max().unwrap_or(1);
        most.checked_mul(rows).filter(|&count| i32::try_from(count).is_ok()).ok_or_else(too_large)?;
        let places = memory::places(&plan.work, &plan.steps, rows).ok_or_else(too_large)?;
        let counts = places.bytes;
        let faults = counts + (plan.counts.len() * size_of::<i32>()).next_multiple_of(ALIGNMENT);
        let beside = faults + (rows * size_of::<u32>()).next_multiple_of(ALIGNMENT);
        let mut beside_bytes = 0;
        for step in &plan.steps {
            let bytes = match step {
                Step::Product(_) => products::WORKSPACE_BYTES,
                Step::Convolution(convolution) => {
                    card.convolution_workspace_bytes(&geometry(plan, convolution, rows))?
                }
                _ => 0,
            };
            beside_bytes = beside_bytes.max(bytes);
        }
        Ok(Self { places, counts, faults, beside, beside_bytes })
    }
}

impl Workspace {
    fn new(loaded: &LoadedPlan, need: Need, memory: Rc<Memory>, max_rows: u32) -> Self {
        let plan = &loaded.plan;
        let Need { places, counts, faults, beside, beside_bytes } = need;
        let at = |offset: usize| memory.address().offset(offset);
        let placed = |wanted: Holding, count: usize| -> Vec<Address> {
            let find = |index| {
                let is_it = |holder: &Holder| match (wanted, holder) {
                    (Holding::Input, Holder::Input(own)) | (Holding::Output, Holder::Output(own)) => *own == index,
                    _ => false,
                };
                plan.work.buffers.iter().position(|buffer| is_it(&buffer.holder))
            };
            (0..count).map(|index| at(find(index).and_then(|buffer| places.offsets[buffer]).unwrap_or(0))).collect()
        };
        Self {
            inputs: placed(Holding::Input, plan.input_count()),
            outputs: placed(Holding::Output, plan.output_count()),
            counts: at(counts),
            faults: plan.notes_faults().then(|| at(faults)),
            beside: at(beside),
            beside_bytes,
            max_rows,
            offsets: places.offsets,
            memory,
        }
    }

    /// Returns the address of an input, whose rows are row-major and contiguous from row 0 on. The address does not
    /// depend on the number of rows, and is aligned to 256 bytes.
    ///
    /// # Panics
    /// If there is no such input.
    pub fn input(&self, index: usize) -> Address {
        self.inputs[index]
    }

    /// Returns the address of an output, laid out as [`Self::input`].
    ///
    /// # Panics
    /// If there is no such output.
    pub fn output(&self, index: usize) -> Address {
        self.outputs[index]
    }

    /// Returns the address of one 32-bit word per row, which is nonzero after a launch if the row had an index that is
    /// out of range of its table. `None` if the plan looks nothing up.
    pub fn faults(&self) -> Option<Address> {
        self.faults
    }

    /// Returns the number of rows for which it has room.
    pub fn max_rows(&self) -> u32 {
        self.max_rows
    }

    /// Returns the address of a buffer that is not a constant.
    pub(super) fn address(&self, buffer: usize) -> Address {
        self.memory.address().offset(self.offsets[buffer].unwrap_or(0))
    }

    /// Returns the address of the row counts that row kernels read.
    pub(super) fn counts(&self) -> Address {
        self.counts
    }

    /// Returns address and size in bytes of the libraries' scratch memory.
    pub(super) fn beside(&self) -> (Address, usize) {
        (self.beside, self.beside_bytes)
    }
}
