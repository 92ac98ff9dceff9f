//! The constants of plans on a card.

use std::{collections::HashMap, fmt};

use bytes::Bytes;
use paternoster_device::{
    DeviceError,
    cuda::{Address, Cuda, Memory},
};

use super::{
    ir::{Buffer, Half, Holder},
    memory::ALIGNMENT,
    plan::{Parts, Plan},
};

/// The constants of several plans in one allocation. Constants that plans share, such as the weights of their graph,
/// are stored once.
pub struct Weights {
    memory: Memory,
    /// Offset of each constant in bytes.
    offsets: HashMap<Place, usize>,
}

impl Weights {
    /// Copies the constants of plans to a card, on the card's thread.
    ///
    /// # Errors
    /// Fails if memory is short, or the device is lost.
    pub fn upload<'p>(card: &mut Cuda, plans: impl Iterator<Item = &'p Plan> + Clone) -> Result<Self, DeviceError> {
        let mut offsets = HashMap::new();
        let mut bytes: usize = 0;
        for (_, constant) in plans.clone().flat_map(|plan| constants(&plan.0)) {
            offsets.entry(constant.place()).or_insert_with(|| {
                let offset = bytes;
                bytes = (bytes + constant.bytes_on_card()).next_multiple_of(ALIGNMENT);
                offset
            });
        }
        let memory = card.memory(bytes)?;
        let mut uploaded = offsets.clone();
        for (_, constant) in plans.flat_map(|plan| constants(&plan.0)) {
            if let Some(offset) = uploaded.remove(&constant.place()) {
                memory.upload(offset, &constant.on_card())?;
            }
        }
        Ok(Self { memory, offsets })
    }

    /// Returns the addresses of one plan's constants, by buffer.
    pub(super) fn places(&self, plan: &Parts) -> HashMap<usize, Address> {
        let found = constants(plan).filter_map(|(buffer, own)| Some((buffer, *self.offsets.get(&own.place())?)));
        found.map(|(buffer, offset)| (buffer, self.memory.address().offset(offset))).collect()
    }
}

/// Identifies a constant: the address and length of its bytes on the host, and the type to which elements are rounded.
type Place = (usize, usize, Option<Half>);

/// A constant of a plan.
#[derive(Clone, Copy)]
struct Constant<'p> {
    data: &'p Bytes,
    half: Option<Half>,
}

impl Constant<'_> {
    fn place(self) -> Place {
        (self.data.as_ptr().addr(), self.data.len(), self.half)
    }

    fn bytes_on_card(self) -> usize {
        if self.half.is_some() { self.data.len() / 2 } else { self.data.len() }
    }

    /// Returns its elements as they are stored on the card.
    fn on_card(self) -> Bytes {
        match self.half {
            None => self.data.clone(),
            Some(Half::F16) => self.converted(|number| half::f16::from_f32(number).to_le_bytes()),
            Some(Half::Bf16) => self.converted(|number| half::bf16::from_f32(number).to_le_bytes()),
        }
    }

    fn converted(&self, two: impl Fn(f32) -> [u8; 2]) -> Bytes {
        let numbers = self.data.as_chunks().0.iter();
        numbers.map(|four| two(f32::from_le_bytes(*four))).collect::<Vec<_>>().into_flattened().into()
    }
}

/// Returns the constants that a plan's steps read, some of them repeatedly.
fn constants(plan: &Parts) -> impl Iterator<Item = (usize, Constant<'_>)> {
    let used = plan.steps.iter().flat_map(|step| step.reads(&plan.work.expressions));
    used.filter_map(|buffer| {
        let Buffer { half, holder, .. } = &plan.work.buffers[buffer];
        match holder {
            Holder::Constant(data) => Some((buffer, Constant { data, half: *half })),
            Holder::Input(_) | Holder::Output(_) | Holder::Scratch => None,
        }
    })
}

impl fmt::Debug for Weights {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Weights").field("constants", &self.offsets.len()).finish_non_exhaustive()
    }
}
