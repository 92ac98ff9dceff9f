//! Measures ranges of a model's operators, and the model cut where their preferred batches change (DVABatch sections 3
//! and 7.1).

use std::time::Duration;

use paternoster_config::stages::{StageCuts, StageRequest};
use paternoster_onnx::cut::{between_ranges, legal_cuts};
use paternoster_profile::{CutTable, Halt, MeasuredSize, OperatorCuts, Profile};

use super::{LoadAttempt, LoadError, PoolLoader, ResolvedVersion, profiling::Trials};

/// Number of ranges, or fewer where the graph has fewer places to cut: the largest number of stages in DVABatch.
const RANGES: usize = 8;

impl PoolLoader {
    /// Adds the ranges of a version to its profile, and the cut that they lead to. Each takes up to `budget`. What
    /// cannot be cut or run is left out.
    ///
    /// # Errors
    /// [`Halt::GivenUp`] if the measurement was stopped; the reason if the program cannot be read.
    pub(super) fn measure_operators(
        &self,
        resolved: &ResolvedVersion,
        profile: &mut Profile,
        sizes: &[MeasuredSize],
        budget: Duration,
        trials: Trials<'_>,
    ) -> Result<(), Halt> {
        let measure = |tensors: Vec<String>| {
            if tensors.is_empty() {
                return Ok(None);
            }
            let measured = self
                .compile_cut(resolved, StageCuts::At(tensors.clone()))
                .and_then(|programs| self.measure_cut(resolved, &programs, sizes, budget, 1, trials));
            match measured {
                Ok(table) => Ok(Some(CutTable { at: tensors, ..table })),
                Err(Halt::Failed(reason)) => {
                    tracing::debug!(reason, "operators are not measured");
                    Ok(None)
                }
                Err(halt) => Err(halt),
            }
        };
        profile.ranges = measure(self.tensors_between_ranges(resolved)?)?;
        let weighed = profile
            .whole()
            .zip(profile.ranges.as_ref())
            .and_then(|(whole, ranges)| OperatorCuts::of(whole, ranges, whole.middle_length()?));
        profile.by_operators = measure(weighed.map(|weighed| weighed.tensors()).unwrap_or_default())?;
        Ok(())
    }

    fn tensors_between_ranges(&self, resolved: &ResolvedVersion) -> Result<Vec<String>, LoadError> {
        let attempt = LoadAttempt::of_repository();
        let program = &resolved.program;
        let model = self.opener(&attempt).open(program, program.read()?, &StageRequest::default())?;
        let places = legal_cuts(model.model());
        Ok(between_ranges(&places, RANGES).into_iter().map(|place| place.tensor.clone()).collect())
    }
}
