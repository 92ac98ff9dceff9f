//! Memory for batches: inputs, outputs and what lies between them.

use std::rc::Rc;

use super::{
    fuse::Step,
    geometry::geometry,
    ir::Holder,
    load::Loaded,
    memory::{self, ALIGNMENT, Places},
};
use crate::device::{
    DeviceError, StreamId,
    cuda::{Address, Cuda, Memory, products},
};

/// Inputs, outputs and what lies between them, for one stream. Nothing in it outlasts a run: whatever else runs on the
/// stream may use the same memory.
#[derive(Debug)]
pub struct Workspace {
    memory: Rc<Memory>,
    max_rows: u32,
    /// By buffer.
    offsets: Vec<Option<usize>>,
    inputs: Vec<Address>,
    outputs: Vec<Address>,
    counts: Address,
    faults: Option<Address>,
    /// What products and convolutions use beside their matrices and images, one after another.
    beside: Address,
    beside_bytes: usize,
}

/// What a workspace needs.
struct Need {
    places: Places,
    counts: usize,
    faults: usize,
    beside: usize,
    beside_bytes: usize,
}

/// What a buffer is for the caller.
#[derive(Clone, Copy)]
enum Holding {
    Input,
    Output,
}

impl Loaded {
    /// Takes memory for inputs, outputs and what lies between, for up to `max_rows` rows. Only that stream may use it.
    ///
    /// # Errors
    /// When there is not as much memory, a library that the plan needs is missing, or the device is lost.
    pub fn reserve(&self, card: &mut Cuda, stream: StreamId, max_rows: u32) -> Result<Workspace, DeviceError> {
        let mut workspaces = Self::reserve_together(&[self], card, stream, max_rows)?;
        workspaces.pop().ok_or(DeviceError::MalformedWork("no plan has no workspace"))
    }

    /// As [`Self::reserve`] for several plans, in the same memory.
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
    fn new(loaded: &Loaded, card: &mut Cuda, max_rows: u32) -> Result<Self, DeviceError> {
        let plan = &loaded.plan;
        let rows = max_rows.max(1) as usize;
        let too_large = || DeviceError::Driver(format!("a plan for {rows} rows needs more memory than can be counted"));
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
    fn new(loaded: &Loaded, need: Need, memory: Rc<Memory>, max_rows: u32) -> Self {
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

    /// Where the rows of an input are to lie, row-major from row 0 on and without gaps. The address does not depend on
    /// the number of rows, and is aligned to 256 bytes.
    ///
    /// # Panics
    /// When there is no such input.
    pub fn input(&self, index: usize) -> Address {
        self.inputs[index]
    }

    /// Where the rows of an output lie, as [`Self::input`].
    ///
    /// # Panics
    /// When there is no such output.
    pub fn output(&self, index: usize) -> Address {
        self.outputs[index]
    }

    /// Where a word for each row lies. It is not 0 after a launch if the row had an index that its table does not have.
    /// None where nothing is looked up.
    pub fn faults(&self) -> Option<Address> {
        self.faults
    }

    /// The rows that it has room for.
    pub fn max_rows(&self) -> u32 {
        self.max_rows
    }

    /// Where a buffer that is no constant lies.
    pub(super) fn address(&self, buffer: usize) -> Address {
        self.memory.address().offset(self.offsets[buffer].unwrap_or(0))
    }

    /// Where the counts of rows lie that kernels over rows are told.
    pub(super) fn counts(&self) -> Address {
        self.counts
    }

    /// What libraries may use beside what they compute: where, and how many bytes.
    pub(super) fn beside(&self) -> (Address, usize) {
        (self.beside, self.beside_bytes)
    }
}
