//! Orders that a card's thread has yet to execute. A task that waits for memory or outputs holds up its own lane, and
//! tasks that come after it, but no other lane or model.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    sync::Arc,
};

use paternoster_batching::{ModelId, TaskId};

use crate::{
    backend::{Order, Reports},
    job::Job,
};

/// The place of an order among all that the core has issued.
pub(super) type Number = u64;

/// A task, with the pool that it is reported to.
pub(super) type WaitingTask = (Arc<dyn Reports>, Number, Job);

/// Orders that wait: tasks by lane, and what follows all tasks of its model that were issued before it.
#[derive(Default)]
pub(super) struct Waiting {
    lanes: Vec<VecDeque<WaitingTask>>,
    others: VecDeque<(Number, ModelId, Order)>,
    /// Tasks in `lanes`.
    tasks: HashSet<TaskId>,
    /// Numbers of the tasks in `lanes`, by model, ascending.
    of_models: HashMap<ModelId, VecDeque<Number>>,
    issued: Number,
}

impl Waiting {
    pub(super) fn push(&mut self, pool: Arc<dyn Reports>, order: Order) {
        let number = self.issued;
        self.issued += 1;
        match order {
            Order::Run(job) => {
                let lane = usize::from(job.task.lane.0);
                if lane >= self.lanes.len() {
                    self.lanes.resize_with(lane + 1, VecDeque::new);
                }
                self.tasks.insert(job.task.id);
                self.of_models.entry(job.task.model).or_default().push_back(number);
                self.lanes[lane].push_back((pool, number, job));
            }
            Order::SequenceOver(model, _) | Order::Unload(model) => self.others.push_back((number, model, order)),
            Order::Rest(_) => {}
        }
    }

    pub(super) fn lanes(&self) -> usize {
        self.lanes.len()
    }

    /// Removes the next task of a lane, unless it comes after one that waits on another lane. `keeps_order`: whether
    /// tasks of a model come after all orders of it that were issued before them.
    pub(super) fn next(&mut self, lane: usize, keeps_order: impl Fn(ModelId) -> bool) -> Option<WaitingTask> {
        let (_, number, job) = self.lanes.get(lane)?.front()?;
        let is_behind = job.task.after.iter().any(|after| self.tasks.contains(after));
        let model = job.task.model;
        let is_first = || {
            let is_before = |(own, of, _): &(Number, ModelId, Order)| *of == model && own < number;
            self.of_models.get(&model).and_then(VecDeque::front) == Some(number) && !self.others.iter().any(is_before)
        };
        if is_behind || (keeps_order(model) && !is_first()) {
            return None;
        }
        let (pool, number, job) = self.lanes[lane].pop_front()?;
        self.tasks.remove(&job.task.id);
        if let Some(numbers) = self.of_models.get_mut(&job.task.model) {
            numbers.retain(|own| *own != number);
            if numbers.is_empty() {
                self.of_models.remove(&job.task.model);
            }
        }
        Some((pool, number, job))
    }

    /// Puts back what [`Self::next`] has returned: it has to wait.
    pub(super) fn put_back(&mut self, lane: usize, pool: Arc<dyn Reports>, number: Number, job: Job) {
        self.tasks.insert(job.task.id);
        let numbers = self.of_models.entry(job.task.model).or_default();
        numbers.insert(numbers.partition_point(|own| *own < number), number);
        self.lanes[lane].push_front((pool, number, job));
    }

    /// Removes the next order that is no task, once all tasks of its model that were issued before it are launched.
    pub(super) fn next_other(&mut self) -> Option<Order> {
        let is_next = |(number, model, _): &(Number, ModelId, Order)| {
            self.of_models.get(model).and_then(VecDeque::front).is_none_or(|first| first > number)
        };
        let place = self.others.iter().position(is_next)?;
        self.others.remove(place).map(|(.., order)| order)
    }

    pub(super) fn clear(&mut self) {
        *self = Self { issued: self.issued, ..Self::default() };
    }
}
