//! Steps that the server computes itself: on the calling thread where that is short, else on worker threads.

use std::{sync::Arc, time::Instant};

use paternoster_executor::InferError;
use paternoster_observe::{RequestTimings, StepTimings, budget::Reservation};
use tokio::{sync::Semaphore, task::spawn_blocking, time::timeout_at};

use super::{Done, InFlight, Run, located};
use crate::{BuiltInFault, Effort, Runs, Stop, Value};

impl Run {
    /// Runs a built-in step: here if that is short, else on a worker thread. Returns the place for its result.
    pub(super) fn built_in(
        &mut self,
        step: usize,
        mut inputs: Vec<Option<Value>>,
        mask: Option<Vec<bool>>,
        timings: &Arc<StepTimings>,
        in_flight: &InFlight,
    ) -> Result<Vec<Option<Vec<Value>>>, InferError> {
        let Runs::BuiltIn(built_in) = &self.pipeline.graph.steps[step].runs else { return Ok(Vec::new()) };
        if let Some(mask) = mask {
            let binding = self.pipeline.known_binding(step);
            for (number, value) in inputs.iter_mut().enumerate() {
                let Some(known) = value else { continue };
                let rows = known.by_row(binding.spec.inputs[number].datatype, self.rows);
                let rows = rows.map_err(|fault| {
                    located(&self.pipeline, step, InferError::Invalid(format!("input {number}: {fault}")))
                })?;
                *value =
                    Some(Value::Rows(rows.into_iter().zip(&mask).map(|(row, &runs)| row.filter(|_| runs)).collect()));
            }
        }
        // Kept until the work has ended, which may be after the request.
        let mut room = Reservation::none(&self.pipeline.options.room);
        let built = built_in.built_bytes(&inputs);
        room.grow_now(built).map_err(|full| located(&self.pipeline, step, InferError::NoRoom(full)))?;
        let (built_in, pipeline, rows) = (Arc::clone(built_in), Arc::clone(&self.pipeline), self.rows);
        let fail = move |fault: BuiltInFault| match fault {
            BuiltInFault::Invalid(text) => located(&pipeline, step, InferError::Invalid(text)),
            BuiltInFault::Failed(text) => located(&pipeline, step, InferError::Engine(text)),
            BuiltInFault::Stopped => InferError::Expired,
        };
        let (binding, stop) = (self.pipeline.known_binding(step), Stop::new(self.deadline));
        let effort = built_in.effort(&inputs);
        let leaving = stop.when_dropped();
        let timings = Arc::clone(timings);
        let work = move || {
            let began = Instant::now();
            let outputs = built_in.run(&inputs, rows, &stop).map_err(fail);
            timings.add(&RequestTimings::of_work(began.elapsed()));
            drop(room);
            outputs.map(|outputs| binding.outputs.iter().map(|&output| outputs[output].clone()).collect())
        };
        let options = &self.pipeline.options;
        let places = match effort {
            Effort::Short => {
                let result = work();
                in_flight.push(Box::pin(std::future::ready(Done { step, part: 0, result })));
                return Ok(vec![None]);
            }
            Effort::Usual => Arc::clone(&options.workers),
            Effort::Long => Arc::clone(&options.long_workers),
        };
        let (deadline, pipeline) = (self.deadline, Arc::clone(&self.pipeline));
        in_flight.push(Box::pin(async move {
            let _leaving = leaving;
            let result = on_worker(places, deadline, work).await.map_err(|error| located(&pipeline, step, error));
            Done { step, part: 0, result: result.and_then(|outputs| outputs) }
        }));
        Ok(vec![None])
    }
}

async fn on_worker<T: Send + 'static>(
    workers: Arc<Semaphore>,
    deadline: Option<Instant>,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, InferError> {
    let place = match deadline {
        None => workers.acquire_owned().await,
        Some(deadline) => {
            timeout_at(deadline.into(), workers.acquire_owned()).await.map_err(|_| InferError::Expired)?
        }
    };
    let place = place.map_err(|_| InferError::ShuttingDown)?;
    let done = spawn_blocking(move || {
        let _place = place;
        work()
    });
    done.await.map_err(|error| InferError::Engine(format!("a built-in step failed: {error}")))
}
