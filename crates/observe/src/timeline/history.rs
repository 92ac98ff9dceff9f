//! A recording as a history: requests with the tasks of their rows, and tasks with their predecessors in the batch.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    ops::Range,
};

use super::{
    change::Change,
    record::{Record, TaskRows},
    recording::{Recording, VersionName},
};
use crate::end::RequestEnd;

/// A request, as far as it was recorded.
#[derive(Debug)]
pub(super) struct Request {
    /// Its position in arrival order; `None` if it arrived before the first record.
    pub(super) number: Option<u64>,
    pub(super) model: u32,
    pub(super) rows: u32,
    pub(super) arrived_ns: u64,
    /// `None` if it was still in flight.
    pub(super) end: Option<RequestEnd>,
    /// Its end, or the time of the last record.
    pub(super) ended_ns: u64,
    /// In the order in which their tasks started.
    pub(super) runs: Vec<Run>,
}

/// Consecutive rows of a request in a task.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run {
    pub(super) task: usize,
    pub(super) rows: TaskRows,
}

/// A launched task.
#[derive(Debug, Default)]
pub(super) struct Task {
    pub(super) id: u64,
    pub(super) model: u32,
    pub(super) stage: u16,
    pub(super) lane: u16,
    pub(super) batch: u64,
    pub(super) bucket_rows: u32,
    pub(super) lengths: Vec<u32>,
    /// Rows with the index of their request in [`History::requests`].
    pub(super) rows: Vec<(usize, TaskRows)>,
    launched_ns: u64,
    completed_ns: Option<u64>,
    /// When its lane and its rows became free for it.
    pub(super) began_ns: u64,
    /// Its completion, or the time of the last record.
    pub(super) ended_ns: u64,
    pub(super) failed: bool,
    pub(super) changes: BTreeSet<Change>,
}

impl Task {
    /// Whether it was still running at the last record.
    pub(super) fn is_open(&self) -> bool {
        self.completed_ns.is_none()
    }

    pub(super) fn row_count(&self) -> u32 {
        self.rows.iter().map(|(_, rows)| rows.count).sum()
    }
}

/// A dependency: a task's rows, or its batch, ran in another task before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Link {
    pub(super) from: usize,
    pub(super) to: usize,
    /// Whether they are newcomers, which had not run before, in a batch that had.
    pub(super) boards: bool,
}

/// The whole recording, by request and by task.
#[derive(Debug, Default)]
pub(super) struct History {
    pub(super) dropped: u64,
    pub(super) names: BTreeMap<u32, VersionName>,
    pub(super) requests: Vec<Request>,
    pub(super) tasks: Vec<Task>,
    pub(super) links: Vec<Link>,
    started_ns: u64,
    ended_ns: u64,
}

impl History {
    pub(super) fn of(recording: &Recording) -> Self {
        let times = || recording.records.iter().filter_map(Record::at_ns);
        let mut history = Self {
            dropped: recording.dropped,
            names: recording.names.clone(),
            started_ns: times().min().unwrap_or(0),
            ended_ns: times().max().unwrap_or(0),
            ..Self::default()
        };
        history.collect(&recording.records);
        history.replay();
        history.mark_splits();
        history
    }

    fn collect(&mut self, records: &[Record]) {
        let (mut requests, mut tasks) = (HashMap::new(), HashMap::new());
        for record in records {
            match *record {
                Record::Arrived { at_ns, req, number, model, rows } => {
                    requests.insert(req, self.requests.len());
                    self.requests.push(self.request(Some(number), model, rows, at_ns));
                }
                Record::Launched { at_ns, task, batch, model, bucket_rows, stage, lane } => {
                    tasks.insert(task, self.tasks.len());
                    let launched = Task { id: task, model, stage, lane, batch, bucket_rows, ..Task::default() };
                    self.tasks.push(Task { launched_ns: at_ns, ..launched });
                }
                Record::Length(length) => self.tasks.last_mut().into_iter().for_each(|task| task.lengths.push(length)),
                Record::Rows(rows) => {
                    let Some(model) = self.tasks.last().map(|task| task.model) else { continue };
                    // The arrival of this request is no longer in the ring of events.
                    let request = *requests.entry(rows.req).or_insert_with(|| {
                        self.requests.push(self.request(None, model, 0, self.started_ns));
                        self.requests.len() - 1
                    });
                    let known = &mut self.requests[request];
                    known.rows = known.rows.max(rows.start.saturating_add(rows.count));
                    self.tasks.last_mut().into_iter().for_each(|task| task.rows.push((request, rows)));
                }
                Record::Completed { at_ns, task, failed } => {
                    if let Some(task) = tasks.get(&task).and_then(|&task: &usize| self.tasks.get_mut(task)) {
                        (task.completed_ns, task.failed) = (Some(at_ns), failed);
                    }
                }
                Record::Ended { at_ns, req, how } => {
                    if let Some(request) =
                        requests.get(&req).and_then(|&request: &usize| self.requests.get_mut(request))
                    {
                        request.end = Some(how);
                        request.ended_ns = at_ns.max(request.arrived_ns);
                    }
                }
            }
        }
    }

    fn request(&self, number: Option<u64>, model: u32, rows: u32, arrived_ns: u64) -> Request {
        Request { number, model, rows, arrived_ns, end: None, ended_ns: self.ended_ns, runs: Vec::new() }
    }

    /// Replays the tasks in launch order. A task starts when it has been launched, the previous task on its lane has
    /// ended, and earlier tasks of its rows have ended; a lane may be given work ahead.
    fn replay(&mut self) {
        let mut order: Vec<usize> = (0..self.tasks.len()).collect();
        order.sort_by_key(|&task| self.tasks[task].launched_ns);
        let mut lanes_free: HashMap<u16, u64> = HashMap::new();
        let mut batches: HashMap<(u32, u64), usize> = HashMap::new();
        for index in order {
            let task = &self.tasks[index];
            let batch = (task.model, task.batch);
            let lane_free = lanes_free.entry(task.lane).or_default();
            let mut began_ns = task.launched_ns.max(*lane_free);
            let mut before = BTreeSet::new();
            let mut boards = false;
            for (request, rows) in &task.rows {
                for earlier in last_runs(&self.requests[*request].runs, *rows) {
                    let same_batch = earlier.filter(|&earlier| {
                        let earlier = &self.tasks[earlier];
                        began_ns = began_ns.max(earlier.ended_ns);
                        (earlier.model, earlier.batch) == batch
                    });
                    before.extend(same_batch);
                    boards |= same_batch.is_none();
                }
            }
            self.links.extend(before.iter().map(|&from| Link { from, to: index, boards: false }));
            let running = batches.insert(batch, index);
            let mut changes = BTreeSet::new();
            // Rows that have not run in this batch before join it: a stretch.
            if let Some(from) = running.filter(|_| boards) {
                changes.insert(Change::Stretch);
                self.links.push(Link { from, to: index, boards: true });
            }
            if before.len() > 1 {
                changes.insert(Change::Merge);
            }

            let task = &mut self.tasks[index];
            task.began_ns = began_ns;
            task.ended_ns = task.completed_ns.unwrap_or(self.ended_ns).max(began_ns);
            task.changes = changes;
            *lane_free = task.ended_ns;
            for &(request, rows) in &task.rows {
                self.requests[request].runs.push(Run { task: index, rows });
            }
        }
    }

    /// Marks tasks whose rows continue in several tasks as split.
    fn mark_splits(&mut self) {
        let mut followers = vec![0_u32; self.tasks.len()];
        let onward = || self.links.iter().filter(|link| !link.boards);
        for link in onward() {
            followers[link.from] += 1;
        }
        let parts: Vec<usize> = onward().filter(|link| followers[link.from] > 1).map(|link| link.to).collect();
        for part in parts {
            self.tasks[part].changes.insert(Change::Split);
        }
    }
}

/// Returns the tasks in which these rows of a request ran last; `None` represents rows that have not run.
fn last_runs(runs: &[Run], rows: TaskRows) -> BTreeSet<Option<usize>> {
    let mut found = BTreeSet::new();
    let wanted = range(rows);
    let mut left = vec![wanted];
    for run in runs.iter().rev() {
        if left.is_empty() {
            break;
        }
        let ran = range(run.rows);
        let mut missed = Vec::new();
        for part in left {
            if part.start.max(ran.start) < part.end.min(ran.end) {
                found.insert(Some(run.task));
                missed.extend([part.start..part.end.min(ran.start), part.start.max(ran.end)..part.end]);
            } else {
                missed.push(part);
            }
        }
        missed.retain(|part| !part.is_empty());
        left = missed;
    }
    if !left.is_empty() {
        found.insert(None);
    }
    found
}

/// Returns the rows within their request.
fn range(rows: TaskRows) -> Range<u32> {
    rows.start..rows.start.saturating_add(rows.count)
}
