//! How far a request is: which tensors are complete, and which steps may start.

use std::{collections::VecDeque, sync::Arc};

use paternoster_model::{DataType, InputTensor};
use paternoster_observe::budget::Reservation;
use smallvec::SmallVec;

use crate::{Pipeline, TensorRows, ValueFault, demand::Demand, graph::TensorIx, shape::enter};

/// A tensor's value, with the reservations of its bytes; none for what came with the request.
#[derive(Clone, Debug)]
pub(super) struct TensorValue {
    pub(super) value: TensorRows,
    pub(super) rooms: SmallVec<[Arc<Reservation>; 1]>,
}

/// How far a request is.
#[derive(Clone, Debug)]
pub(super) struct State {
    tensors: Vec<TensorState>,
    /// By step: the number of tensors that it waits for.
    missing: Vec<usize>,
    pub(super) ready: VecDeque<usize>,
    /// Decoupled steps that are ready.
    pub(super) streams: Vec<usize>,
}

#[derive(Clone, Debug)]
struct TensorState {
    /// Steps that may still give it.
    producers: usize,
    /// Steps that have yet to read it; the response counts as one.
    readers: usize,
    /// What steps gave, with their numbers; one value once all have ended, or none.
    given: SmallVec<[(usize, TensorValue); 1]>,
}

impl State {
    /// Returns about the bytes that the state of a request takes.
    pub(super) fn bytes(pipeline: &Pipeline) -> usize {
        let tensors = pipeline.graph.tensors.len() * size_of::<TensorState>();
        tensors + pipeline.graph.steps.len() * 3 * size_of::<usize>()
    }

    pub(super) fn new(pipeline: &Pipeline, demand: &Demand, inputs: Vec<Option<InputTensor>>) -> Self {
        let counts = pipeline.graph.producers.iter().zip(&demand.readers);
        let tensors = counts.map(|(producers, &readers)| TensorState {
            producers: producers.len(),
            readers,
            given: SmallVec::new(),
        });
        let missing: Vec<usize> = pipeline.graph.reads.iter().map(Vec::len).collect();
        let ready = (0..missing.len()).filter(|&step| missing[step] == 0 && demand.steps[step]).collect();
        let mut state = Self { tensors: tensors.collect(), missing, ready, streams: Vec::new() };
        let count = inputs.len();
        for (tensor, input) in inputs.into_iter().enumerate() {
            if let Some(input) = input {
                let value = TensorRows::Joint(enter(input, &pipeline.spec, tensor));
                state.keep(tensor, 0, TensorValue { value, rooms: SmallVec::new() });
            }
        }
        (0..count).for_each(|tensor| state.completed(pipeline, demand, tensor));
        state
    }

    /// Returns the value of a complete tensor; `None` if no step gave it, or the request left it out.
    pub(super) fn value(&self, tensor: TensorIx) -> Option<&TensorValue> {
        self.tensors[tensor].given.first().map(|(_, value)| value)
    }

    /// Whether a step waits for what others give.
    pub(super) fn waits(&self, step: usize) -> bool {
        self.missing[step] > 0
    }

    fn keep(&mut self, tensor: TensorIx, step: usize, value: TensorValue) {
        let state = &mut self.tensors[tensor];
        if state.readers > 0 {
            state.given.push((step, value));
        }
    }

    fn completed(&mut self, pipeline: &Pipeline, demand: &Demand, tensor: TensorIx) {
        for &reader in &pipeline.graph.readers[tensor] {
            self.missing[reader] -= 1;
            if self.missing[reader] == 0 && demand.steps[reader] {
                self.ready.push_back(reader);
            }
        }
    }

    /// Records that a step has its inputs. Tensors that were read for the last time are dropped.
    pub(super) fn read_by(&mut self, pipeline: &Pipeline, step: usize) {
        for &tensor in &pipeline.graph.reads[step] {
            let state = &mut self.tensors[tensor];
            state.readers = state.readers.saturating_sub(1);
            if state.readers == 0 {
                state.given.clear();
            }
        }
    }

    /// Stores the outputs of a step, in their order; none if it did not run. Each row of a tensor is what the first
    /// step, in the order of the configuration, gave for it.
    ///
    /// # Errors
    /// With the tensor, if the rows of its values do not fit together.
    pub(super) fn give(
        &mut self,
        pipeline: &Pipeline,
        demand: &Demand,
        step: usize,
        rows: usize,
        outputs: Vec<Option<TensorValue>>,
    ) -> Result<(), (TensorIx, ValueFault)> {
        let mut outputs = outputs.into_iter();
        for &(_, tensor) in &pipeline.graph.steps[step].outputs {
            if let Some(value) = outputs.next().flatten() {
                self.keep(tensor, step, value);
            }
            let state = &mut self.tensors[tensor];
            state.producers -= 1;
            if state.producers == 0 {
                if state.given.len() > 1 {
                    let datatype = pipeline.kinds[tensor].datatype;
                    let merged = merge(std::mem::take(&mut state.given), datatype, rows);
                    state.given.push((step, merged.map_err(|fault| (tensor, fault))?));
                }
                self.completed(pipeline, demand, tensor);
            }
        }
        Ok(())
    }
}

/// Returns the value that has each row as the first step gave it.
fn merge(
    mut given: SmallVec<[(usize, TensorValue); 1]>,
    datatype: DataType,
    rows: usize,
) -> Result<TensorValue, ValueFault> {
    given.sort_unstable_by_key(|&(step, _)| step);
    let mut merged = vec![None; rows];
    let mut rooms = SmallVec::new();
    for (_, value) in given {
        if merged.iter().all(Option::is_some) {
            break;
        }
        let more = value.value.by_row(datatype, rows)?;
        merged.iter_mut().zip(more).for_each(|(row, more)| *row = row.take().or(more));
        rooms.extend(value.rooms);
    }
    Ok(TensorValue { value: TensorRows::Rows(merged), rooms })
}
