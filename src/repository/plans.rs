//! Plans that run a version's programs on CUDA cards, and what happens to programs that cannot have one.

use std::sync::Arc;

use tracing::info;

use super::{LoadRequest, config::lengths::PreparedLengths};
use crate::{
    batching::Lengths,
    engine::{
        Precision, Program,
        cuda::{OnCard, Plan},
    },
    executor::{Pool, StagePrograms, check_cards},
    model::{ModelSpec, TensorSpec},
    onnx::SealedModel,
};

/// A program compiled for the CPU, and what it was compiled from.
pub(super) struct Compiled<'a> {
    /// Its part of the version, such as "cell 'x'"; empty for a whole model.
    pub(super) name: String,
    pub(super) program: Arc<dyn Program>,
    pub(super) model: &'a SealedModel,
    /// Inputs in the program's order.
    pub(super) inputs: Vec<TensorSpec>,
    pub(super) outputs: Vec<TensorSpec>,
    pub(super) has_batch_axis: bool,
    /// For a cell, the lengths that its own axes are prepared for; `None` if it is padded as the version is.
    pub(super) lengths: Option<PreparedLengths>,
}

/// Whether a version's programs have plans for cards.
#[derive(Debug, Default)]
pub(super) struct Plans {
    /// Whether cards may be among the version's devices.
    are_wanted: bool,
    /// Why there are no plans although cards may be used.
    missing: Option<String>,
}

/// Why a version of several programs cannot use the fallback.
const WHOLE_MODELS_ALONE: &str = "ONNX Runtime's CUDA provider is there for whole models alone";

/// Compiles a whole model that has no plan for a card by another engine, or returns why that is impossible.
pub(super) type Fallback<'a> = &'a dyn Fn() -> Result<Arc<dyn Program>, String>;

/// Returns the program of a whole model: with a plan if it may run on cards, else compiled by `fallback`, else for the
/// CPU.
///
/// # Errors
/// Returns both reasons if the model has neither a plan nor a fallback but must run on cards.
pub(super) fn of_whole(
    pool: &Pool,
    request: &LoadRequest,
    compiled: Compiled<'_>,
    fallback: Fallback<'_>,
) -> Result<StagePrograms, String> {
    if !pool.has_cards() || !request.placement.may_need_cards() {
        return Ok(compiled.program.into());
    }
    let compiled = [compiled];
    let missing = match planned(request, &compiled).map(|mut programs| programs.pop().map(StagePrograms::from)) {
        Ok(Some(programs)) => match check_cards(&request.spec, &programs) {
            Ok(()) => return Ok(programs),
            Err(reason) => reason,
        },
        Ok(None) => "it has no program".to_owned(),
        Err(reason) => reason,
    };
    let model = &request.spec.name;
    match fallback() {
        Ok(program) => {
            info!(model, reason = missing, "the model runs on ONNX Runtime's CUDA provider");
            Ok(program.into())
        }
        Err(refusal) => {
            let reason = format!("{missing}; ONNX Runtime's CUDA provider cannot be used: {refusal}");
            if request.placement.needs_cards() {
                return Err(reason);
            }
            info!(model, reason, "the model runs on the CPU");
            let [compiled] = compiled;
            Ok(compiled.program.into())
        }
    }
}

impl Plans {
    /// Plans the programs of stages or cells, all or none, if the version may run on cards.
    ///
    /// # Errors
    /// Names all operators without a plan if the version must run on cards and one program has no plan.
    pub(super) fn of(
        pool: &Pool,
        request: &LoadRequest,
        compiled: Vec<Compiled<'_>>,
    ) -> Result<(Self, Vec<Arc<dyn Program>>), String> {
        if !pool.has_cards() || !request.placement.may_need_cards() {
            return Ok((Self::default(), compiled.into_iter().map(|own| own.program).collect()));
        }
        match planned(request, &compiled) {
            Ok(planned) => Ok((Self { are_wanted: true, missing: None }, planned)),
            Err(reason) if request.placement.needs_cards() => Err(format!("{reason}; {WHOLE_MODELS_ALONE}")),
            Err(reason) => {
                let programs = compiled.into_iter().map(|own| own.program).collect();
                Ok((Self { are_wanted: true, missing: Some(reason) }, programs))
            }
        }
    }

    /// Logs why the version runs on the CPU although there are cards, if it does.
    pub(super) fn explain(self, spec: &ModelSpec, programs: &StagePrograms) {
        let Self { are_wanted, missing } = self;
        let refused = || are_wanted.then(|| check_cards(spec, programs).err()).flatten();
        if let Some(reason) = missing.or_else(refused) {
            let reason = format!("{reason}; {WHOLE_MODELS_ALONE}");
            info!(model = spec.name, reason, "the model runs on the CPU");
        }
    }
}

/// Returns the programs with one plan for each of the lengths that padded axes are prepared for. Each cell has axes of
/// its own, so cells are planned one by one.
///
/// # Errors
/// Names all operators without a plan if a program has none.
fn planned(request: &LoadRequest, compiled: &[Compiled<'_>]) -> Result<Vec<Arc<dyn Program>>, String> {
    let of_cells = compiled.iter().all(|own| own.lengths.is_some()).then_some(compiled);
    let Some(cells) = of_cells.filter(|cells| !cells.is_empty()) else {
        return planned_for(request, compiled, &request.lengths);
    };
    let mut programs = Vec::with_capacity(cells.len());
    let mut missing = Vec::new();
    for own in cells {
        let lengths = own.lengths.as_ref().unwrap_or(&request.lengths);
        match planned_for(request, std::slice::from_ref(own), lengths) {
            Ok(planned) => programs.extend(planned),
            Err(reason) => missing.push(reason),
        }
    }
    if missing.is_empty() { Ok(programs) } else { Err(missing.join("; ")) }
}

/// Returns programs with one plan for each combination of `lengths`.
///
/// # Errors
/// As [`planned`].
fn planned_for(
    request: &LoadRequest,
    compiled: &[Compiled<'_>],
    lengths: &PreparedLengths,
) -> Result<Vec<Arc<dyn Program>>, String> {
    let mut plans: Vec<Vec<(Lengths, Plan)>> = vec![Vec::new(); compiled.len()];
    let mut skipped = None;
    for lengths_of_rows in lengths.combinations()? {
        match at(compiled, &lengths_of_rows, request.precision) {
            Ok(made) => {
                for (plans, plan) in plans.iter_mut().zip(made) {
                    plans.push((lengths_of_rows.clone(), plan));
                }
            }
            // Some graphs have a limit, such as the number of positions. Lengths that the configuration names must
            // work; of the default ones, those beyond the limit are skipped.
            Err(reason) if plans.iter().all(|plans| !plans.is_empty()) && !lengths.are_given() => {
                skipped.get_or_insert((lengths_of_rows, reason));
            }
            Err(reason) if lengths_of_rows.is_empty() => return Err(reason),
            Err(reason) => return Err(format!("with lengths {:?}: {reason}", lengths_of_rows.as_slice())),
        }
    }
    if let Some((lengths, reason)) = skipped {
        let lengths = lengths.as_slice();
        let model = &request.spec.name;
        info!(model, ?lengths, reason, "requests of these lengths and longer are refused on cards");
    }
    let programs = compiled.iter().zip(plans).map(|(own, plans)| {
        let program = OnCard::new(Arc::clone(&own.program), plans);
        Arc::new(program) as Arc<dyn Program>
    });
    Ok(programs.collect())
}

/// Plans all programs for rows of these lengths.
///
/// # Errors
/// As [`planned`].
fn at(compiled: &[Compiled<'_>], lengths: &[u32], precision: Precision) -> Result<Vec<Plan>, String> {
    let (made, missing): (Vec<_>, Vec<_>) =
        compiled.iter().map(|own| own.at(lengths, precision)).partition(Result::is_ok);
    if missing.is_empty() {
        return Ok(made.into_iter().filter_map(Result::ok).collect());
    }
    Err(missing.into_iter().filter_map(Result::err).collect::<Vec<String>>().join("; "))
}

impl Compiled<'_> {
    fn at(&self, lengths: &[u32], precision: Precision) -> Result<Plan, String> {
        let Self { name, model, inputs, outputs, has_batch_axis, .. } = self;
        let [inputs, outputs] = [inputs, outputs].map(|tensors| in_the_graph(tensors, lengths));
        let plan = Plan::new(*model, &inputs, &outputs, *has_batch_axis, precision);
        plan.map_err(|reason| if name.is_empty() { reason.to_string() } else { format!("{name}: {reason}") })
    }
}

/// Returns tensors with the dims that the graph has for rows of these lengths, where a reshape is undone.
fn in_the_graph(tensors: &[TensorSpec], lengths: &[u32]) -> Vec<TensorSpec> {
    let own = |tensor: &TensorSpec| {
        let dims = tensor.reshape.clone().unwrap_or_else(|| tensor.dims_at(lengths));
        TensorSpec { dims, reshape: None, ..tensor.clone() }
    };
    tensors.iter().map(own).collect()
}
