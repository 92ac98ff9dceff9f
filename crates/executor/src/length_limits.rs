//! The longest requests that a version's cards are prepared for. Checked before a request is admitted.

use paternoster_model::{InputTensor, Lengths, ModelSpec, unfold::Unfolded};

use super::{StagePrograms, cuda::CellLimits};

/// Maximum length of padded axes, by symbol, and limits of what requests unfold into; empty if unlimited.
#[derive(Debug, Default)]
pub(super) struct LengthLimits {
    axes: Lengths,
    cells: Option<CellLimits>,
}

impl LengthLimits {
    /// Returns the longest lengths for which programs on cards are compiled.
    pub(super) fn on_cards(programs: &StagePrograms) -> Self {
        if let Some(cells) = programs.cells() {
            return Self { axes: Lengths::new(), cells: CellLimits::new(cells) };
        }
        let Some(program) = programs.iter().find_map(|program| program.on_card()) else { return Self::default() };
        let all = program.lengths();
        let symbols = all.first().map_or(0, |lengths| lengths.len());
        let longest = |symbol: usize| all.iter().map(|lengths| lengths[symbol]).max().unwrap_or(u32::MAX);
        Self { axes: (0..symbols).map(longest).collect(), cells: None }
    }

    /// Rejects requests with longer axes, and requests that unfold into more than cards hold.
    ///
    /// # Errors
    /// Names the axis or the segment, and its limit.
    pub(super) fn check(
        &self,
        spec: &ModelSpec,
        inputs: &[Option<InputTensor>],
        graph: &[Unfolded],
    ) -> Result<(), String> {
        if let Some(cells) = &self.cells {
            return cells.check(spec, inputs, graph);
        }
        if self.axes.is_empty() {
            return Ok(());
        }
        let offset = usize::from(spec.has_batch_axis());
        for (tensor, given) in spec.inputs.iter().zip(inputs) {
            let Some(given) = given else { continue };
            for (symbol, &length) in tensor.symbols.iter().zip(given.shape.iter().skip(offset)) {
                let Some((symbol, longest)) =
                    symbol.and_then(|symbol| Some((symbol, *self.axes.get(usize::from(symbol.0))?)))
                else {
                    continue;
                };
                if length > i64::from(longest) {
                    let (name, model, axis) = (&tensor.name, &spec.name, &spec.symbols[usize::from(symbol.0)]);
                    return Err(format!(
                        "input '{name}' of model '{model}': the axis '{axis}' has {length} entries, expected at most \
                         {longest}, the longest that the model is prepared for on cards (instance.lengths)"
                    ));
                }
            }
        }
        Ok(())
    }
}
