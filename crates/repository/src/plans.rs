//! Plans that run a version's programs on CUDA cards, and what runs a version of which a program cannot have one.

use std::sync::Arc;

use paternoster_config::lengths::PreparedLengths;
use paternoster_engine::{
    BatchAxes, Engines, Precision, Program, ProgramPort, TensorBatch,
    cuda::{OnCard, Plan},
    onnxruntime::OnnxProgram,
};
use paternoster_executor::{Pool, StagePrograms, check_cards};
use paternoster_model::{Lengths, TensorSpec};
use paternoster_onnx::SealedModel;
use tracing::info;

use super::{LoadError, LoadErrorKind, LoadPlace, ResolvedVersion};

/// A program compiled for the CPU, and what it was compiled from.
pub(super) struct Compiled<'a> {
    /// Its part of the version; `None` for a whole model.
    pub(super) place: Option<LoadPlace>,
    pub(super) program: Arc<dyn Program>,
    pub(super) model: &'a SealedModel,
    /// Inputs in the program's order.
    pub(super) inputs: Vec<TensorSpec>,
    pub(super) outputs: Vec<TensorSpec>,
    pub(super) has_batch_axis: bool,
    /// Where the graph has the batch, if that is not axis 0 in all tensors.
    pub(super) batches: Option<Batches>,
    /// For a cell, the lengths that its own axes are prepared for; `None` if it is padded as the version is.
    pub(super) lengths: Option<PreparedLengths>,
}

/// Where the inputs and outputs of a program have the batch.
#[derive(Clone, Default)]
pub(super) struct Batches {
    pub(super) inputs: Vec<TensorBatch>,
    pub(super) outputs: Vec<TensorBatch>,
}

impl Batches {
    /// Returns a program of the graph that has the batch as axis 0 of every tensor.
    pub(super) fn by_rows(
        &self,
        program: Arc<dyn Program>,
        inputs: &[TensorSpec],
        outputs: &[TensorSpec],
    ) -> Arc<dyn Program> {
        Arc::new(BatchAxes::new(program, (inputs, &self.inputs), (outputs, &self.outputs)))
    }
}

/// Combines the programs of a version, in the order in which they were compiled.
pub(super) type Assembly<'a> = &'a dyn Fn(Vec<Arc<dyn Program>>) -> Result<StagePrograms, LoadError>;

/// Returns a version's programs. If it may run on cards, they have plans. If one of them has none, all are compiled by
/// ONNX Runtime's CUDA provider, since a version runs in one place. If that is impossible too, they are those of the
/// CPU.
///
/// # Errors
/// Returns both reasons, with all operators that have no plan, if the version must run on cards. Also fails if
/// `assemble` does.
pub(super) fn of_version(
    pool: &Pool,
    engines: &Engines,
    resolved: &ResolvedVersion,
    compiled: &[Compiled<'_>],
    assemble: Assembly<'_>,
) -> Result<StagePrograms, LoadError> {
    let of_the_cpu = || assemble(compiled.iter().map(|own| own.by_rows(Arc::clone(&own.program))).collect());
    if !pool.has_cards() || !resolved.placement.may_need_cards() {
        return of_the_cpu();
    }
    let missing = match planned(resolved, compiled) {
        Ok(programs) => {
            let programs = assemble(programs)?;
            match check_cards(&resolved.spec, &programs) {
                Ok(()) => return Ok(programs),
                Err(reason) => LoadError::new(LoadErrorKind::Cards, reason),
            }
        }
        Err(reason) => reason,
    };
    let model = &resolved.spec.name;
    match by_provider(pool, engines, resolved, compiled) {
        Ok(programs) => {
            info!(model, reason = missing.to_string(), "the model runs on ONNX Runtime's CUDA provider");
            assemble(programs)
        }
        Err(refusal) => {
            let reason = format!("{missing}; ONNX Runtime's CUDA provider cannot be used: {refusal}");
            if resolved.placement.needs_cards() {
                return Err(LoadError::new(LoadErrorKind::Cards, reason));
            }
            info!(model, reason, "the model runs on the CPU");
            of_the_cpu()
        }
    }
}

/// Returns the program of a built-in model, which runs on the CPU alone.
///
/// # Errors
/// Fails if the version must run on cards.
pub(super) fn of_built_in(
    pool: &Pool,
    resolved: &ResolvedVersion,
    program: Arc<dyn Program>,
) -> Result<StagePrograms, LoadError> {
    if pool.has_cards() && resolved.placement.may_need_cards() {
        let (model, backend) = (&resolved.spec.name, resolved.engine.name());
        let reason = format!(
            "the backend '{backend}' has no graph: it has no plan for cards, and ONNX Runtime's CUDA provider cannot \
             run it"
        );
        if resolved.placement.needs_cards() {
            let reason = format!("{reason}; expected KIND_CPU or KIND_AUTO");
            return Err(LoadError::new(LoadErrorKind::Cards, reason));
        }
        info!(model, reason, "the model runs on the CPU");
    }
    Ok(program.into())
}

/// Compiles all programs by ONNX Runtime's CUDA provider, for the first card that the version names, else the first of
/// the pool. Engines that the configuration names are those of the CPU and do not matter here.
///
/// # Errors
/// Fails if the provider cannot be used or rejects a program; the message names the program.
fn by_provider(
    pool: &Pool,
    engines: &Engines,
    resolved: &ResolvedVersion,
    compiled: &[Compiled<'_>],
) -> Result<Vec<Arc<dyn Program>>, LoadError> {
    let card = resolved.placement.card().or_else(|| pool.cards().next());
    let card = card.ok_or_else(|| LoadError::new(LoadErrorKind::Cards, "there is no CUDA card"))?;
    let runtime = engines.runtime()?;
    let provider = runtime.cuda_provider(card, resolved.program.precision, pool.card_memory_bytes())?;
    let programs = compiled.iter().map(|own| {
        let [inputs, outputs] =
            [&own.inputs, &own.outputs].map(|tensors| tensors.iter().map(ProgramPort::from).collect::<Vec<_>>());
        let program = OnnxProgram::compile_on_card(runtime, own.model, &inputs, &outputs, provider);
        program.map(|program| own.by_rows(Arc::new(program))).map_err(|error| own.named(error))
    });
    programs.collect()
}

/// Returns the programs with one plan for each of the lengths that padded axes are prepared for. Each cell has axes of
/// its own, so cells are planned one by one.
///
/// # Errors
/// Names all operators without a plan if a program has none.
fn planned(resolved: &ResolvedVersion, compiled: &[Compiled<'_>]) -> Result<Vec<Arc<dyn Program>>, LoadError> {
    let of_cells = compiled.iter().all(|own| own.lengths.is_some()).then_some(compiled);
    let Some(cells) = of_cells.filter(|cells| !cells.is_empty()) else {
        return planned_for(resolved, compiled, &resolved.lengths);
    };
    let mut programs = Vec::with_capacity(cells.len());
    let mut missing = Vec::new();
    for own in cells {
        let lengths = own.lengths.as_ref().unwrap_or(&resolved.lengths);
        match planned_for(resolved, std::slice::from_ref(own), lengths) {
            Ok(planned) => programs.extend(planned),
            Err(reason) => missing.push(reason),
        }
    }
    joined(missing).map_or(Ok(programs), Err)
}

/// Returns programs with one plan for each combination of `lengths`.
///
/// # Errors
/// As [`planned`].
fn planned_for(
    resolved: &ResolvedVersion,
    compiled: &[Compiled<'_>],
    lengths: &PreparedLengths,
) -> Result<Vec<Arc<dyn Program>>, LoadError> {
    let mut plans: Vec<Vec<(Lengths, Plan)>> = vec![Vec::new(); compiled.len()];
    let mut skipped = None;
    for lengths_of_rows in lengths.combinations()? {
        match at(compiled, &lengths_of_rows, resolved.program.precision) {
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
            Err(reason) => return Err(reason.within(LoadPlace::Lengths(lengths_of_rows.to_vec()))),
        }
    }
    if let Some((lengths, reason)) = skipped {
        let lengths = lengths.as_slice();
        let model = &resolved.spec.name;
        info!(
            model,
            ?lengths,
            reason = reason.to_string(),
            "requests of these lengths and longer are refused on cards"
        );
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
fn at(compiled: &[Compiled<'_>], lengths: &[u32], precision: Precision) -> Result<Vec<Plan>, LoadError> {
    let (made, missing): (Vec<_>, Vec<_>) =
        compiled.iter().map(|own| own.at(lengths, precision)).partition(Result::is_ok);
    let plans = made.into_iter().filter_map(Result::ok).collect();
    joined(missing.into_iter().filter_map(Result::err).collect()).map_or(Ok(plans), Err)
}

/// Returns the errors of several programs as one, if there are any.
fn joined(mut errors: Vec<LoadError>) -> Option<LoadError> {
    if errors.len() < 2 {
        return errors.pop();
    }
    let texts: Vec<String> = errors.iter().map(LoadError::to_string).collect();
    Some(LoadError::new(errors[0].kind(), texts.join("; ")))
}

impl Compiled<'_> {
    fn at(&self, lengths: &[u32], precision: Precision) -> Result<Plan, LoadError> {
        let Self { model, inputs, outputs, has_batch_axis, batches, .. } = self;
        if batches.is_some() {
            let message = "plans have the batch as axis 0 of every tensor, but the graph has not";
            return Err(self.named(LoadError::new(LoadErrorKind::Cards, message)));
        }
        let [inputs, outputs] = [inputs, outputs].map(|tensors| in_the_graph(tensors, lengths));
        let plan = Plan::new(*model, &inputs, &outputs, *has_batch_axis, precision);
        plan.map_err(|reason| self.named(LoadError::new(LoadErrorKind::Cards, reason)))
    }

    /// Returns a program of the graph that has the batch as axis 0 of every tensor.
    fn by_rows(&self, program: Arc<dyn Program>) -> Arc<dyn Program> {
        match &self.batches {
            Some(batches) => batches.by_rows(program, &self.inputs, &self.outputs),
            None => program,
        }
    }

    /// Returns an error as that of the program, if it is a part of the version.
    fn named(&self, error: impl Into<LoadError>) -> LoadError {
        match &self.place {
            Some(place) => error.into().within(place.clone()),
            None => error.into(),
        }
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
