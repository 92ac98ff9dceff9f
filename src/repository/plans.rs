//! Plans for CUDA cards of a version's programs.

use std::sync::Arc;

use tracing::info;

use super::LoadRequest;
use crate::{
    engine::{
        Program,
        cuda::{OnCard, Plan, Precision},
    },
    executor::{Pool, StagePrograms, check_cards},
    model::{ModelSpec, TensorSpec},
    onnx::Model,
};

/// A program of the CPU, and what it was compiled of.
pub(super) struct Compiled<'a> {
    /// What it is of the version: "cell 'x'"; empty where it is all of it.
    pub(super) name: String,
    pub(super) program: Arc<dyn Program>,
    pub(super) model: &'a Model,
    /// In the program's order.
    pub(super) inputs: Vec<TensorSpec>,
    pub(super) outputs: Vec<TensorSpec>,
    pub(super) has_batch_axis: bool,
}

/// Whether a version's programs have plans for cards.
#[derive(Debug, Default)]
pub(super) struct Plans {
    /// Cards may be among the version's devices.
    are_wanted: bool,
    /// Why there are none, though cards may.
    missing: Option<String>,
}

impl Plans {
    /// Gives programs plans, all or none, if cards may be among the version's devices.
    ///
    /// # Errors
    /// When one has none, and the version must have cards; with all operators that are missing.
    pub(super) fn of(
        pool: &Pool,
        request: &LoadRequest,
        compiled: Vec<Compiled<'_>>,
    ) -> Result<(Self, Vec<Arc<dyn Program>>), String> {
        if !pool.has_cards() || !request.placement.may_need_cards() {
            return Ok((Self::default(), compiled.into_iter().map(|own| own.program).collect()));
        }
        match planned(&compiled) {
            Ok(planned) => Ok((Self { are_wanted: true, missing: None }, planned)),
            Err(reason) if request.placement.needs_cards() => Err(reason),
            Err(reason) => {
                let programs = compiled.into_iter().map(|own| own.program).collect();
                Ok((Self { are_wanted: true, missing: Some(reason) }, programs))
            }
        }
    }

    /// Says why the version runs on the CPU though there are cards, if it does.
    pub(super) fn explain(self, spec: &ModelSpec, programs: &StagePrograms) {
        let Self { are_wanted, missing } = self;
        let refused = || are_wanted.then(|| check_cards(spec, programs).err()).flatten();
        if let Some(reason) = missing.or_else(refused) {
            info!(model = %spec.name, "the model runs on the CPU: {reason}");
        }
    }
}

/// The programs with their plans.
///
/// # Errors
/// When one has none; with all operators that are missing.
fn planned(compiled: &[Compiled<'_>]) -> Result<Vec<Arc<dyn Program>>, String> {
    let (planned, missing): (Vec<_>, Vec<_>) = compiled.iter().map(Compiled::planned).partition(Result::is_ok);
    if missing.is_empty() {
        return Ok(planned.into_iter().filter_map(Result::ok).collect());
    }
    Err(missing.into_iter().filter_map(Result::err).collect::<Vec<String>>().join("; "))
}

impl Compiled<'_> {
    fn planned(&self) -> Result<Arc<dyn Program>, String> {
        let Self { name, program, model, inputs, outputs, has_batch_axis } = self;
        match Plan::new(model, &in_the_graph(inputs), &in_the_graph(outputs), *has_batch_axis) {
            Ok(plan) => Ok(Arc::new(OnCard::new(Arc::clone(program), plan, Precision::Ieee))),
            Err(reason) if name.is_empty() => Err(reason.to_string()),
            Err(reason) => Err(format!("{name}: {reason}")),
        }
    }
}

/// Tensors with the dims that the graph has where clients have others.
fn in_the_graph(tensors: &[TensorSpec]) -> Vec<TensorSpec> {
    let reshaped = |tensor: &TensorSpec| {
        let dims = tensor.reshape.clone().unwrap_or_else(|| tensor.dims.clone());
        TensorSpec { dims, reshape: None, ..tensor.clone() }
    };
    tensors.iter().map(reshaped).collect()
}
