//! What the requests of a step gave, put together, with the room that it takes.

use std::sync::Arc;

use paternoster_executor::InferError;
use paternoster_model::InputTensor;
use paternoster_observe::budget::Reservation;
use smallvec::smallvec;

use super::{Run, flight::Running, joint, spread::Parts, state::TensorValue};
use crate::{TensorRows, binding::Binding, value::join};

impl Run {
    /// Puts the outputs of a step's requests together. Each keeps the room of its bytes.
    pub(super) async fn collect(
        &mut self,
        step: usize,
        running: Running,
    ) -> Result<Vec<Option<TensorValue>>, InferError> {
        let Running { binding, parts, results, mut room, .. } = running;
        let mut results: Vec<Vec<Option<TensorRows>>> = results.into_iter().flatten().collect();
        let outputs = match (parts, results.len()) {
            (Parts::Joint, 1) => results.pop().unwrap_or_default(),
            (Parts::Joint, _) => self.joined(step, &binding, &results, &mut room).await?,
            (Parts::Rows(rows), _) => (0..binding.outputs.len())
                .map(|output| {
                    let mut by_row: Vec<Option<InputTensor>> = vec![None; self.rows];
                    let mut is_read = false;
                    for (&row, result) in rows.iter().zip(&results) {
                        by_row[row] = result[output].as_ref().and_then(joint);
                        is_read |= by_row[row].is_some();
                    }
                    is_read.then_some(TensorRows::Rows(by_row))
                })
                .collect(),
        };
        Ok(with_rooms(outputs, room))
    }

    /// Joins the outputs of consecutive rows.
    async fn joined(
        &mut self,
        step: usize,
        binding: &Binding,
        results: &[Vec<Option<TensorRows>>],
        room: &mut Reservation,
    ) -> Result<Vec<Option<TensorRows>>, InferError> {
        let mut outputs = Vec::with_capacity(binding.outputs.len());
        for (number, &output) in binding.outputs.iter().enumerate() {
            let tensor = self.pipeline.graph.steps[step].outputs[number].1;
            if !self.demand.reads(tensor) {
                outputs.push(None);
                continue;
            }
            let parts: Vec<Option<InputTensor>> =
                results.iter().map(|result| result[number].as_ref().and_then(joint)).collect();
            let joins = &self.pipeline.options.workers.joins;
            let joined = join(parts, &binding.spec.outputs[output], room, joins).await;
            outputs.push(Some(TensorRows::Joint(joined.map_err(|fault| self.fault(step, tensor, fault))?)));
        }
        Ok(outputs)
    }
}

/// Gives each value the part of the room that its bytes take.
pub(super) fn with_rooms(values: Vec<Option<TensorRows>>, mut room: Reservation) -> Vec<Option<TensorValue>> {
    let with_room = |value: Option<TensorRows>| {
        let value = value?;
        let own = Arc::new(room.split_off(value.bytes()));
        Some(TensorValue { value, rooms: smallvec![own] })
    };
    values.into_iter().map(with_room).collect()
}
