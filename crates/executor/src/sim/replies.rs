//! The responses of a run: each is compared with the oracle.

use std::task::Poll;

use paternoster_testing::runs::Counts as _;

use super::{client::Waiting, counts::Counts, oracle, planted::Planted, run::Run};
use crate::InferError;

impl Run {
    /// Takes the available responses; skips streams if their clients are late.
    pub(super) fn hear(&mut self, are_late: bool) -> Result<(), String> {
        let mut heard = Vec::new();
        for (&number, waiting) in &mut self.open {
            let is_forgotten = self.planted == Some(Planted::LostAnswer) && number % 50 == 7;
            if is_forgotten || are_late && matches!(waiting, Waiting::ForAll(..)) {
                continue;
            }
            if let Poll::Ready(answer) = waiting.hear() {
                heard.push((number, answer));
            }
        }
        if self.planted == Some(Planted::TwoAnswers) {
            let again: Vec<_> = heard.iter().filter(|(number, _)| number % 50 == 7).cloned().collect();
            heard.extend(again);
        }
        for (number, answer) in heard {
            if self.open.remove(&number).is_none() {
                return Err(format!("request {number} ends twice"));
            }
            let model = self.world.requests[number as usize].model;
            let in_order =
                self.world.scenario.models.get(model).is_some_and(|own| own.knobs.queueing.preserve_ordering);
            let is_before = |other: &u64| *other < number && self.world.requests[*other as usize].model == model;
            let is_exempt = matches!(answer, Err(InferError::Expired | InferError::DeviceLost));
            if in_order && !is_exempt && self.open.keys().any(is_before) {
                return Err(format!(
                    "request {number} of model {model} is answered {answer:?} at {:?} before one that came before it",
                    self.now
                ));
            }
            self.judge(number, answer)?;
        }
        Ok(())
    }

    fn judge(&mut self, number: u64, answer: Result<Vec<u64>, InferError>) -> Result<(), String> {
        let request = &self.world.requests[number as usize];
        let noted = &mut *self.noted.lock();
        let ran = noted.ran.contains_key(&number);
        noted.ended.insert(number);
        noted.tracker.ended(number, false, &mut self.counts);
        let (counted, is_right) = match &answer {
            Ok(found) => (&mut self.counts.completed, Some(found) == oracle::reply(&self.world, number).as_ref()),
            Err(InferError::Engine(_)) => {
                let model = self.world.scenario.models.get(request.model);
                let is_too_large = model.is_some_and(|model| request.rows > model.knobs.max_batch_rows);
                let fails = oracle::reply(&self.world, number).is_none();
                let may_fail = noted.failed_alone.contains(&number) || noted.outputs_lost.contains(&number);
                (&mut self.counts.failed, is_too_large || fails || may_fail)
            }
            Err(InferError::QueueFull | InferError::QueueTimeout | InferError::Late | InferError::NoMemory) => {
                (&mut self.counts.rejected, !ran)
            }
            Err(InferError::Expired) => {
                self.counts.expired_aboard += u64::from(ran);
                (&mut self.counts.expired, request.deadline.is_some_and(|deadline| deadline <= self.now))
            }
            Err(InferError::DeviceLost) => {
                // Requests that waited there moved to other devices, if there were any.
                let may_be = self.lost.contains(&true) && !self.waited.contains(&number);
                (&mut self.counts.device_lost, may_be || self.lost.iter().all(|lost| *lost))
            }
            Err(_) => return Err(format!("request {number} is answered {answer:?}")),
        };
        *counted += 1;
        if !is_right {
            let right = oracle::reply(&self.world, number);
            return Err(format!(
                "request {number} of model {} may not be answered {answer:?} at {:?}: expected {right:?}, ran: {ran}",
                request.model, self.now
            ));
        }
        Ok(())
    }

    /// Checks the end of the run: nothing is left, and devices hold nothing after the versions are unloaded.
    pub(super) fn end(mut self) -> Result<Counts, String> {
        if !self.open.is_empty() {
            let waiting: Vec<&u64> = self.open.keys().collect();
            return Err(format!("deadlock: requests {waiting:?} wait for nothing"));
        }
        let in_flight = self.pool.in_flight();
        if in_flight > 0 {
            return Err(format!("{in_flight} requests are left"));
        }
        for (shard, floor) in self.floors.iter().enumerate() {
            if !self.lost[shard] && !floor.lock().is_idle() {
                return Err(format!("device {shard} is not idle"));
            }
        }
        for shard in &self.pool.shards {
            for (_, counters) in shard.state.lock().core().counters() {
                self.counts.retries += counters.retries;
                self.counts.stretches += counters.stretches;
                self.counts.stretches_while_checking += counters.stretches_while_checking;
                self.counts.merges += counters.merges;
                self.counts.splits += counters.splits;
            }
        }
        let units = self.pool.resources();
        self.counts.units_awaited = units.iter().map(|resource| u64::from(resource.waited_ns > 0)).sum();
        if let Some(resource) = units.iter().find(|resource| resource.in_use > 0) {
            return Err(format!("{resource:?} is in use without a task"));
        }
        self.handles.clear();
        if let Some(resource) = self.pool.resources().first() {
            return Err(format!("{resource:?} is left without a version"));
        }
        for (shard, floor) in self.floors.iter().enumerate() {
            let floor = floor.lock();
            if let Some(broken) = &floor.broken
                && !self.lost[shard]
            {
                return Err(broken.clone());
            }
            if !self.lost[shard] && floor.used_rows() > 0 {
                return Err(format!("{} rows of device {shard} are reserved without a request", floor.used_rows()));
            }
            self.counts.add(&floor.behaviour.counts);
        }
        let stats = self.pool.stats().snapshot();
        (self.counts.moved, self.counts.paused) = (stats.moved, stats.responses_paused);
        Ok(self.counts)
    }
}
