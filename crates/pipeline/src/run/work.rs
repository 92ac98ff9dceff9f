//! Steps that the server computes itself: on the calling thread where that is short, else on worker threads.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use futures_util::future::{Either, ready};
use paternoster_executor::InferError;
use paternoster_observe::{RequestTimings, StepTimings};

use super::{Run, State, StepResponse, located};
use crate::{BuiltInFault, Progress, Runs, Stop, TensorRows};

impl Run {
    /// Lets built-in steps that run later, whatever earlier ones give, check what comes with the request before models
    /// run.
    pub(super) fn check_built_in(&self, state: &State) -> Result<(), InferError> {
        let pipeline = &self.pipeline;
        for (step, described) in pipeline.graph.steps.iter().enumerate() {
            let Runs::BuiltIn(built_in) = &described.runs else { continue };
            if !self.demand.steps[step] || described.when.is_some() || !state.waits(step) {
                continue;
            }
            let inputs = &pipeline.known_binding(step).inputs;
            let given = inputs.iter().map(|tensor| tensor.and_then(|tensor| Some(state.value(tensor)?.value.clone())));
            let given: Vec<Option<TensorRows>> = given.collect();
            let dims = inputs.iter().map(|tensor| tensor.map_or(&[][..], |tensor| &pipeline.kinds[tensor].dims));
            let checked = built_in.check(&given, &dims.collect::<Vec<_>>(), self.rows);
            checked.map_err(|fault| located(pipeline, step, InferError::Invalid(fault.to_string())))?;
        }
        Ok(())
    }

    /// Runs a built-in step: here if that is short, else on a worker thread.
    pub(super) fn built_in(
        &self,
        step: usize,
        mut inputs: Vec<Option<TensorRows>>,
        mask: Option<Vec<bool>>,
        timings: &Arc<StepTimings>,
    ) -> Result<impl Future<Output = StepResponse> + Send + use<>, InferError> {
        let Runs::BuiltIn(built_in) = &self.pipeline.graph.steps[step].runs else {
            return Err(located(&self.pipeline, step, InferError::Engine("it is no built-in step".to_owned())));
        };
        if let Some(mask) = mask {
            let binding = self.pipeline.known_binding(step);
            for (number, value) in inputs.iter_mut().enumerate() {
                let Some(known) = value else { continue };
                let rows = known.by_row(binding.spec.inputs[number].datatype, self.rows);
                let rows = rows.map_err(|fault| {
                    located(&self.pipeline, step, InferError::Invalid(format!("input {number}: {fault}")))
                })?;
                *value = Some(TensorRows::Rows(
                    rows.into_iter().zip(&mask).map(|(row, &runs)| row.filter(|_| runs)).collect(),
                ));
            }
        }
        // Kept until the work has ended, which may be after the request.
        let mut room = self.charge.bytes();
        self.grow(step, &mut room, built_in.built_bytes(&inputs))?;
        let (pipeline, rows) = (Arc::clone(&self.pipeline), self.rows);
        let fail = move |fault: BuiltInFault| match fault {
            BuiltInFault::Invalid(text) => located(&pipeline, step, InferError::Invalid(text)),
            BuiltInFault::Failed(text) => located(&pipeline, step, InferError::Engine(text)),
            BuiltInFault::Stopped => InferError::Expired,
        };
        let (binding, stop) = (self.pipeline.known_binding(step), Stop::new(self.deadline));
        let is_short = built_in.is_short(&inputs);
        let mut work = Arc::clone(built_in).begin(inputs, rows).map_err(&fail)?;
        let effort = if rows > 0 { work.effort(0) } else { Duration::ZERO };
        let leaving = stop.when_dropped();
        let timings = Arc::clone(timings);
        let tensors = &self.pipeline.graph.steps[step].outputs;
        let is_read: Vec<bool> = tensors.iter().map(|&(_, tensor)| self.demand.reads(tensor)).collect();
        let (mut next, mut spent) = (0, Duration::ZERO);
        let mut piece = move || {
            let began = Instant::now();
            let ran = stop.check().and_then(|()| if next < rows { work.run(next, &stop) } else { Ok(()) });
            next += 1;
            spent += began.elapsed();
            if ran.is_ok() && next < rows {
                return Progress::Next(work.effort(next));
            }
            let outputs = ran.map(|()| work.outputs()).map_err(&fail);
            timings.add(&RequestTimings::of_work(spent));
            room.shrink_to(0);
            Progress::Done(outputs.map(|outputs| {
                let used = binding.outputs.iter().zip(&is_read);
                used.map(|(&output, is_read)| is_read.then(|| outputs[output].clone())).collect()
            }))
        };
        if is_short {
            let result = loop {
                if let Progress::Done(result) = piece() {
                    break result;
                }
            };
            return Ok(Either::Left(ready(StepResponse { step, part: 0, room: self.charge.bytes(), result })));
        }
        let workers = built_in.workers(&self.pipeline.options.workers).clone();
        let (deadline, pipeline) = (self.deadline, Arc::clone(&self.pipeline));
        let room = self.charge.bytes();
        Ok(Either::Right(async move {
            let _leaving = leaving;
            let result = workers.run(effort, deadline, piece).await.map_err(|error| located(&pipeline, step, error));
            StepResponse { step, part: 0, room, result: result.and_then(|outputs| outputs) }
        }))
    }
}
