//! Limits on the requests of a version of cells on cards, checked before a request is admitted.

use std::sync::Arc;

use paternoster_model::{InputTensor, ModelSpec, unfold::Unfolded};

use super::{layout::Layout, lengths::Submission};
use crate::cells::CellPrograms;

/// The limits of a version's requests.
#[derive(Debug)]
pub(crate) struct CellLimits {
    programs: Arc<CellPrograms>,
    layout: Layout,
}

impl CellLimits {
    /// Returns the limits of a version; `None` if its cells do not run on cards.
    pub(crate) fn new(programs: &Arc<CellPrograms>) -> Option<Self> {
        let layout = Layout::new(programs).ok()?;
        Some(Self { programs: Arc::clone(programs), layout })
    }

    /// Checks that a card can hold a request that unfolds into `graph`.
    ///
    /// # Errors
    /// If it cannot; the text has the segment, what is too long there, and the limit.
    pub(crate) fn check(
        &self,
        spec: &ModelSpec,
        inputs: &[Option<InputTensor>],
        graph: &[Unfolded],
    ) -> Result<(), String> {
        let axis = usize::from(spec.has_batch_axis());
        let length = |input: &Option<InputTensor>| {
            let length = input.as_ref()?.shape.get(axis).copied().unwrap_or(1);
            Some(u32::try_from(length).unwrap_or(u32::MAX))
        };
        let lengths: Vec<Option<u32>> = inputs.iter().map(length).collect();
        let asked = Submission { lengths: &lengths, graph };
        let fits = self.layout.check_request(&self.programs, &asked);
        fits.map_err(|fault| format!("model '{}': {fault}", spec.name))
    }
}
