//! The constants of plans on a card.

use std::{collections::HashMap, fmt};

use bytes::Bytes;

use super::{
    ir::Holder,
    memory::ALIGNMENT,
    plan::{Parts, Plan},
};
use crate::device::{
    DeviceError,
    cuda::{Address, Cuda, Memory},
};

/// The constants of some plans, one behind another. What the plans share, such as the weights of their graph, is there
/// once.
pub struct Weights {
    memory: Memory,
    /// By where the host has a constant, and its bytes.
    offsets: HashMap<(usize, usize), usize>,
}

impl Weights {
    /// Puts what plans read onto a card, on the card's thread.
    ///
    /// # Errors
    /// When there is not as much memory, or the device is lost.
    pub fn upload<'p>(card: &mut Cuda, plans: impl Iterator<Item = &'p Plan> + Clone) -> Result<Self, DeviceError> {
        let mut offsets = HashMap::new();
        let mut bytes: usize = 0;
        for (_, data) in plans.clone().flat_map(|plan| constants(&plan.0)) {
            offsets.entry(place(data)).or_insert_with(|| {
                let offset = bytes;
                bytes = (bytes + data.len()).next_multiple_of(ALIGNMENT);
                offset
            });
        }
        let memory = card.memory(bytes)?;
        let mut uploaded = offsets.clone();
        for (_, data) in plans.flat_map(|plan| constants(&plan.0)) {
            if let Some(offset) = uploaded.remove(&place(data)) {
                memory.upload(offset, data)?;
            }
        }
        Ok(Self { memory, offsets })
    }

    /// Where the constants of one of the plans lie, by buffer.
    pub(super) fn places(&self, plan: &Parts) -> HashMap<usize, Address> {
        let found = constants(plan).filter_map(|(buffer, data)| Some((buffer, *self.offsets.get(&place(data))?)));
        found.map(|(buffer, offset)| (buffer, self.memory.address().offset(offset))).collect()
    }
}

/// The constants that a plan's steps read, some more than once.
fn constants(plan: &Parts) -> impl Iterator<Item = (usize, &Bytes)> {
    let used = plan.steps.iter().flat_map(|step| step.reads(&plan.work.expressions));
    used.filter_map(|buffer| match &plan.work.buffers[buffer].holder {
        Holder::Constant(data) => Some((buffer, data)),
        Holder::Input(_) | Holder::Output(_) | Holder::Scratch => None,
    })
}

fn place(data: &Bytes) -> (usize, usize) {
    (data.as_ptr().addr(), data.len())
}

impl fmt::Debug for Weights {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Weights").field("constants", &self.offsets.len()).finish_non_exhaustive()
    }
}
