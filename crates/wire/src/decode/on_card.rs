//! Which tensors of a request stay on a card, in memory that its client shares.
//!
//! A request runs on one card: the first that such a tensor lies on. Tensors on others, and those that a card does not
//! read or write in place, are copied through the host.

use paternoster_device::cuda::ImportedSlice;
use paternoster_executor::{CardPorts, CardTensors};
use paternoster_model::{ModelSpec, TensorSpec, element_count};
use smallvec::SmallVec;

use super::super::{
    plan::{OutputForm, OutputPlan, SelectedOutputs},
    shared_memory::RegionSlice,
};

/// Cards move rows in words of this many bytes.
const WORD_BYTES: u64 = 4;

/// The tensors of one request that stay.
#[derive(Debug)]
pub(super) struct Staying<'a> {
    ports: &'a CardPorts,
    tensors: Option<Box<CardTensors>>,
}

impl<'a> Staying<'a> {
    pub(super) fn new(ports: &'a CardPorts) -> Self {
        Self { ports, tensors: None }
    }

    /// Whether an input stays where it is.
    pub(super) fn keep_input(&mut self, number: usize, region: &RegionSlice) -> bool {
        let stays = self.ports.inputs.get(number) == Some(&true);
        let Some((card, slice)) = region.on_card().filter(|_| stays) else { return false };
        let Some(tensors) = self.on(card, &slice) else { return false };
        tensors.inputs.push((number, slice));
        true
    }

    /// Lets outputs be written where the request wants them, as far as they have room there. Each goes where no other
    /// tensor of the request lies, since a task that fails is run again.
    pub(super) fn keep_outputs(
        mut self,
        selection: &mut SelectedOutputs,
        spec: &ModelSpec,
        rows: u32,
    ) -> Option<Box<CardTensors>> {
        if let SelectedOutputs::Some(plans) = selection {
            plans.iter_mut().for_each(|plan| self.keep_output(plan, &spec.outputs[plan.index], rows));
        }
        self.tensors.filter(|tensors| !tensors.inputs.is_empty() || !tensors.outputs.is_empty())
    }

    fn keep_output(&mut self, plan: &mut OutputPlan, output: &TensorSpec, rows: u32) {
        let OutputForm::SharedMemory(region) = &plan.form else { return };
        let stays = self.ports.outputs.get(plan.index) == Some(&true);
        let found = region.on_card().filter(|_| stays);
        let first = |slice: &ImportedSlice| slice.first(bytes_of(output, rows)?);
        let Some((card, slice)) = found.and_then(|(card, slice)| Some((card, first(&slice)?))) else { return };
        let Some(tensors) = self.on(card, &slice) else { return };
        let mut others = tensors.inputs.iter().chain(&tensors.outputs);
        if others.all(|(_, other)| !other.overlaps(&slice)) {
            tensors.outputs.push((plan.index, slice));
            plan.form = OutputForm::Placed(region.clone());
        }
    }

    /// The tensors of the card that the request runs on, if that is this one, and it moves what lies there.
    fn on(&mut self, card: u16, slice: &ImportedSlice) -> Option<&mut CardTensors> {
        if !self.ports.cards.contains(&card) || !slice.address().to_bits().is_multiple_of(WORD_BYTES) {
            return None;
        }
        let none = || Box::new(CardTensors { card, inputs: SmallVec::new(), outputs: SmallVec::new() });
        let tensors = self.tensors.get_or_insert_with(none);
        (tensors.card == card).then_some(tensors)
    }
}

/// Bytes of so many rows of a tensor whose dimensions do not vary.
fn bytes_of(tensor: &TensorSpec, rows: u32) -> Option<usize> {
    let row_bytes = element_count(&tensor.dims)?.checked_mul(tensor.datatype.size_bytes()?)?;
    row_bytes.checked_mul(rows as usize)
}
