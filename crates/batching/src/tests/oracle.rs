//! Predicts the outcomes of events in the simplest way.

use std::collections::{BTreeMap, BTreeSet};

use paternoster_model::{Lengths, Next, RowOutcome};

use super::triton::{self, Verdict};
use crate::{
    Arrival, End, Instant, Knobs, ModelId, Policy, QueueKnobs, Rejection, ReqId, RequestKey, Task, TaskId,
    TimeoutAction,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Row {
    /// To be run (again).
    Waiting,
    Running(TaskId),
    /// Waiting for its client.
    Paused,
    Done,
}

/// A request as the oracle sees it.
#[derive(Debug)]
pub(super) struct Sent {
    pub(super) arrival: Arrival,
    seq: usize,
    arrived: Instant,
    /// Whether it was accepted on arrival.
    entered: bool,
    level: u64,
    queue_deadline: Instant,
    /// Position among the delayed requests, once its timeout has passed under DELAY.
    late: Option<usize>,
    pub(super) rows: Vec<Row>,
    /// Whether it has been in a task.
    boarded: bool,
    /// After a failed task of several requests: the requests that its next task must contain, except those that end
    /// before.
    pub(super) again: Option<BTreeSet<ReqId>>,
    /// How it must end, once that is decided.
    verdict: Option<End>,
    /// A verdict that was decided and held for ordering before the deadline passed. What held it may have ended at the
    /// same instant.
    held_verdict: Option<End>,
    pub(super) ended: bool,
    /// Number of responses produced, and of those announced.
    made: u32,
    announced: u32,
}

/// The expected state of requests, models and tasks.
#[derive(Debug, Default)]
pub(super) struct Oracle {
    pub(super) models: BTreeMap<ModelId, Knobs>,
    pub(super) sent: BTreeMap<ReqId, Sent>,
    pub(super) running: BTreeMap<TaskId, Task>,
    arrivals: usize,
    delays: usize,
}

fn queue_of(knobs: &Knobs, level: u64) -> QueueKnobs {
    let queueing = &knobs.queueing;
    queueing.level_queues.iter().find(|&&(own, _)| own == level).map_or(queueing.default_queue, |&(_, queue)| queue)
}

/// Returns what two requests must have in common to share a batch.
fn batch_key(knobs: &Knobs, arrival: &Arrival) -> (RequestKey, Lengths) {
    let merges = knobs.mergeable && knobs.policy != Policy::Serial;
    if !merges {
        return Default::default();
    }
    let width = knobs.queueing.bucket_width.unwrap_or(0);
    let classes = arrival.lengths.iter().filter(|_| width > 0).map(|length| length.div_ceil(width));
    (arrival.key.clone(), classes.collect())
}

impl Oracle {
    fn knobs(&self, sent: &Sent) -> &Knobs {
        &self.models[&sent.arrival.model]
    }

    fn live(&self, model: ModelId) -> impl Iterator<Item = &Sent> {
        self.sent.values().filter(move |sent| !sent.ended && sent.arrival.model == model)
    }

    /// Returns the requests in the queue, in boarding order, regardless of their keys.
    fn queue(&self, model: ModelId) -> Vec<&Sent> {
        let mut queue: Vec<_> = self.live(model).filter(|sent| !sent.boarded && sent.verdict.is_none()).collect();
        queue.sort_by_key(|sent| (sent.level, sent.late.is_some(), sent.late.unwrap_or(sent.seq)));
        queue
    }

    fn sub_queue_of(&self, sent: &Sent) -> Vec<&Sent> {
        let knobs = self.knobs(sent);
        let own = batch_key(knobs, &sent.arrival);
        let mut queue = self.queue(sent.arrival.model);
        queue.retain(|other| batch_key(knobs, &other.arrival) == own);
        queue
    }

    /// Stops holding requests of a model until others wait with them.
    pub(super) fn release(&mut self, model: ModelId) {
        if let Some(knobs) = self.models.get_mut(&model) {
            knobs.queueing.hold_until_waiting = 0;
        }
    }

    /// Returns the pending batch of a model: the part that Triton considers, and its requests in boarding order.
    fn pending_batch(&self, model: ModelId) -> Option<(triton::Queue, Vec<ReqId>)> {
        if self.models[&model].queueing.hold_until_waiting > 0 {
            return None;
        }
        let waiting = self.queue(model);
        // Compares the first requests of the sub-queues. Within a sub-queue, requests past their timeout are ordered by
        // that.
        let mut sub_queues = BTreeSet::new();
        let heads = waiting.iter().filter(|sent| sub_queues.insert(batch_key(self.knobs(sent), &sent.arrival)));
        let first = heads.min_by_key(|sent| (sent.level, sent.late.is_some(), sent.seq))?;
        let (sub_queue, knobs) = (self.sub_queue_of(first), self.knobs(first));
        let head = sub_queue.first()?;
        let own = batch_key(knobs, &head.arrival);
        let cannot_join = |other: &Sent| batch_key(knobs, &other.arrival) != own;
        let others_wait = waiting.len() > sub_queue.len();
        let came_behind = |other: &&Sent| other.entered && other.arrival.model == model && other.seq > head.seq;
        let is_closed = others_wait || self.sent.values().filter(came_behind).any(cannot_join);
        let rows = sub_queue.iter().map(|sent| (sent.arrival.rows, sent.arrived)).collect();
        Some((triton::Queue { sub_queue: rows, is_closed }, sub_queue.iter().map(|sent| sent.arrival.req).collect()))
    }

    /// Advances time: timeouts and deadlines take effect.
    pub(super) fn pass(&mut self, now: Instant) {
        let mut due: Vec<ReqId> = self
            .sent
            .values()
            .filter(|sent| !sent.ended && !sent.boarded && sent.verdict.is_none() && sent.late.is_none())
            .filter(|sent| sent.queue_deadline <= now)
            .filter(|sent| sent.arrival.deadline.is_none_or(|deadline| sent.queue_deadline < deadline))
            .map(|sent| sent.arrival.req)
            .collect();
        due.sort_by_key(|req| (self.sent[req].queue_deadline, *req));
        for req in due {
            let sent = &self.sent[&req];
            let action = queue_of(self.knobs(sent), sent.level).timeout_action;
            let late = self.delays;
            if let Some(sent) = self.sent.get_mut(&req) {
                match action {
                    TimeoutAction::Reject => sent.verdict = Some(End::Rejected(Rejection::QueueTimeout)),
                    TimeoutAction::Delay => {
                        sent.late = Some(late);
                        self.delays += 1;
                    }
                }
            }
        }
        for sent in self.sent.values_mut().filter(|sent| !sent.ended) {
            if sent.arrival.deadline.is_some_and(|deadline| deadline <= now) && sent.verdict != Some(End::Expired) {
                sent.held_verdict = sent.verdict.replace(End::Expired);
            }
        }
    }

    pub(super) fn arrive(&mut self, arrival: Arrival, now: Instant) {
        let Some(knobs) = self.models.get(&arrival.model) else {
            let sent = self.entry(arrival, now, 1, Instant::NEVER, Some(End::Failed));
            self.sent.insert(sent.arrival.req, sent);
            return;
        };
        let window = &knobs.queueing;
        let level = if (1..=window.priority_levels.max(1)).contains(&arrival.priority) {
            arrival.priority
        } else {
            window.default_priority_level.max(1)
        };
        let queue = queue_of(knobs, level);
        let mut queue_deadline = match queue.default_timeout_ns {
            0 => Instant::NEVER,
            timeout_ns => now + timeout_ns,
        };
        if queue.allow_timeout_override {
            queue_deadline = queue_deadline.min(arrival.queue_deadline.unwrap_or(Instant::NEVER));
        }
        let waiting = self.queue(arrival.model).iter().filter(|sent| sent.level == level).count();
        let verdict = if arrival.deadline.is_some_and(|deadline| deadline <= now) {
            Some(End::Expired)
        } else if !(1..=knobs.max_batch_rows).contains(&arrival.rows) {
            Some(End::Failed)
        } else if queue.max_queue_size > 0 && waiting >= queue.max_queue_size as usize {
            Some(End::Rejected(Rejection::QueueFull))
        } else {
            None
        };
        let sent = self.entry(arrival, now, level, queue_deadline, verdict);
        let model = sent.arrival.model;
        self.sent.insert(sent.arrival.req, sent);
        if self.queue(model).len() >= self.models[&model].queueing.hold_until_waiting as usize {
            self.release(model);
        }
        self.pass(now);
    }

    fn entry(
        &mut self,
        arrival: Arrival,
        now: Instant,
        level: u64,
        queue_deadline: Instant,
        verdict: Option<End>,
    ) -> Sent {
        let seq = self.arrivals;
        self.arrivals += 1;
        let rows = vec![Row::Waiting; arrival.rows as usize];
        Sent {
            arrival,
            seq,
            arrived: now,
            entered: verdict.is_none(),
            level,
            queue_deadline,
            late: None,
            rows,
            boarded: false,
            again: None,
            verdict,
            held_verdict: None,
            ended: false,
            made: 0,
            announced: 0,
        }
    }

    pub(super) fn cancel(&mut self, req: ReqId) {
        if let Some(sent) = self.sent.get_mut(&req).filter(|sent| !sent.ended) {
            sent.verdict = Some(End::Cancelled);
        }
    }

    pub(super) fn resume(&mut self, req: ReqId) {
        if let Some(sent) = self.sent.get_mut(&req) {
            sent.rows.iter_mut().filter(|row| **row == Row::Paused).for_each(|row| *row = Row::Waiting);
        }
    }

    /// Applies a task's outcomes; `None` if the engine failed it.
    pub(super) fn land(&mut self, id: TaskId, outcomes: Option<&[RowOutcome]>) {
        let Some(task) = self.running.remove(&id) else { return };
        let mut reqs: Vec<ReqId> = task.rows.iter().map(|span| span.req).collect();
        reqs.dedup();
        let mut outcomes_left = outcomes.unwrap_or_default().iter();
        let mut made = Vec::new();
        for span in &task.rows {
            let Some(sent) = self.sent.get_mut(&span.req) else { continue };
            for row in span.start..span.start + span.count {
                let outcome = match outcomes {
                    None => None,
                    Some([]) => Some(RowOutcome { next: Next::On, emitted: false }),
                    Some(_) => {
                        outcomes_left.next().copied().or(Some(RowOutcome { next: Next::Failed, emitted: false }))
                    }
                };
                if sent.verdict.is_some() {
                    continue;
                }
                if outcome.is_some_and(|outcome| outcome.emitted) {
                    made.push(span.req);
                }
                sent.rows[row as usize] = match outcome.map(|outcome| outcome.next) {
                    Some(Next::On | Next::Done) => Row::Done,
                    Some(Next::Skip(cell)) if cell.0 == 0 => Row::Waiting,
                    None if reqs.len() > 1 => Row::Waiting,
                    Some(Next::Pause) => Row::Paused,
                    Some(Next::Failed | Next::Skip(_)) | None => Row::Running(id),
                };
            }
        }
        made.dedup();
        for req in made {
            self.sent.entry(req).and_modify(|sent| sent.made += 1);
        }
        if outcomes.is_none() && reqs.len() > 1 {
            self.halve(&reqs);
        }
        for req in reqs {
            let Some(sent) = self.sent.get_mut(&req).filter(|sent| sent.verdict.is_none()) else { continue };
            if sent.rows.contains(&Row::Running(id)) {
                sent.verdict = Some(End::Failed);
            } else if sent.rows.iter().all(|row| *row == Row::Done) {
                sent.verdict = Some(End::Completed);
            }
        }
    }

    /// Marks the requests of a failed task to run again, in two tasks of equal size.
    fn halve(&mut self, reqs: &[ReqId]) {
        let live: Vec<ReqId> = reqs.iter().copied().filter(|req| self.sent[req].verdict.is_none()).collect();
        for half in live.chunks(live.len().div_ceil(2).max(1)) {
            for req in half {
                self.sent.entry(*req).and_modify(|sent| sent.again = Some(half.iter().copied().collect()));
            }
        }
    }

    /// Checks that a launch contains only requests that may share a batch, and that they are next.
    pub(super) fn launch(&mut self, task: &Task, now: Instant) {
        let knobs = self.models[&task.model].clone();
        let rows: u32 = task.rows.iter().map(|span| span.count).sum();
        assert!(rows > 0, "{:?} is empty", task.id);
        assert!(rows <= knobs.max_batch_rows, "{:?} has {rows} rows of at most {}", task.id, knobs.max_batch_rows);
        assert_eq!(task.bucket.rows, rows, "the bucket of {:?} is exact", task.id);
        let in_flight = self.running.values().filter(|other| other.model == task.model).count();
        assert!(in_flight < knobs.max_in_flight as usize, "{:?} is one too many in flight", task.id);

        let mut reqs: Vec<ReqId> = task.rows.iter().map(|span| span.req).collect();
        reqs.dedup();
        let members: Vec<&Sent> = reqs.iter().map(|req| &self.sent[req]).collect();
        let longest = members.iter().map(|sent| sent.arrival.lengths.clone()).reduce(|mut longest, lengths| {
            longest.iter_mut().zip(lengths).for_each(|(longest, own)| *longest = own.max(*longest));
            longest
        });
        assert_eq!(Some(&task.bucket.class.0), longest.as_ref(), "{:?} is padded to its longest rows", task.id);
        for sent in &members {
            let req = sent.arrival.req;
            assert_eq!(sent.verdict, None, "{req:?} is over and yet runs");
            assert_eq!(
                batch_key(&knobs, &sent.arrival),
                batch_key(&knobs, &members[0].arrival),
                "{req:?} is of another shape"
            );
            if let Some(again) = &sent.again {
                let live = again.iter().filter(|req| self.sent[req].verdict.is_none());
                assert!(live.eq(reqs.iter().collect::<BTreeSet<_>>()), "{req:?} runs again with {again:?}");
            }
        }
        let begun = members.iter().filter(|sent| sent.boarded).count();
        assert!(begun == 0 || begun == members.len(), "nobody joins a begun batch");
        if begun == 0 {
            self.launch_of_new(task, &knobs, &reqs, now);
        }
        for span in &task.rows {
            let Some(sent) = self.sent.get_mut(&span.req) else { continue };
            sent.boarded = true;
            for row in span.start..span.start + span.count {
                let state = &mut sent.rows[row as usize];
                assert_eq!(*state, Row::Waiting, "row {row} of {:?} runs twice", span.req);
                *state = Row::Running(task.id);
            }
            sent.again = None;
        }
        for req in reqs {
            let parted = self.sent[&req].rows.contains(&Row::Waiting);
            assert!(!parted, "{req:?} is parted");
        }
        self.running.insert(task.id, task.clone());
    }

    /// Checks that a batch from the queue is the one that Triton would run, taken from the front, and that no started
    /// batch waits.
    fn launch_of_new(&self, task: &Task, knobs: &Knobs, reqs: &[ReqId], now: Instant) {
        let level = self.sent[&reqs[0]].level;
        let outranked = self.begun(task.model).find(|sent| sent.level <= level);
        let outranked = outranked.map(|sent| sent.arrival.req);
        assert_eq!(outranked, None, "a begun batch goes on before another of its level is formed");
        let Some((queue, order)) = self.pending_batch(task.model) else { panic!("{reqs:?} run, and nothing waits") };
        let verdict = triton::verdict(knobs, &queue, now);
        assert_eq!(verdict, Verdict::Run(reqs.len()), "of {queue:?} {reqs:?} run at {now:?}");
        assert_eq!(&order[..reqs.len()], reqs, "requests board in order, from the first of all");
    }

    /// Iterates over requests whose batch has started and is waiting.
    fn begun(&self, model: ModelId) -> impl Iterator<Item = &Sent> {
        let begun = self.live(model).filter(|sent| sent.boarded && sent.verdict.is_none());
        begun.filter(|sent| sent.rows.contains(&Row::Waiting))
    }

    pub(super) fn emit(&mut self, req: ReqId, step: u32) {
        self.must_be_first(req);
        let Some(sent) = self.sent.get_mut(&req) else { panic!("{req:?} is unknown") };
        assert!(!sent.ended, "{req:?} sends a response after its end");
        assert_eq!(step, sent.announced, "responses of {req:?} are counted");
        sent.announced += 1;
        assert!(sent.announced <= sent.made, "{req:?} sends a response that was not made");
    }

    pub(super) fn finish(&mut self, req: ReqId, end: End) {
        if !matches!(end, End::Expired | End::Cancelled) {
            self.must_be_first(req);
        }
        let Some(sent) = self.sent.get_mut(&req) else { panic!("{req:?} is unknown") };
        assert!(!sent.ended, "{req:?} ends twice");
        let right = sent.verdict == Some(end) || sent.held_verdict == Some(end);
        assert!(right, "{req:?} ends {end:?} instead of {:?}", sent.verdict);
        assert!(end != End::Completed || sent.announced == sent.made, "{req:?} ends before its responses");
        sent.ended = true;
    }

    fn must_be_first(&self, req: ReqId) {
        let first = self.before(&self.sent[&req]);
        assert_eq!(first, None, "the reply of {req:?} overtakes another");
    }

    /// Returns an unended request before this one, if responses keep the order of arrival.
    fn before(&self, sent: &Sent) -> Option<ReqId> {
        let knobs = self.models.get(&sent.arrival.model)?;
        if !knobs.queueing.preserve_ordering {
            return None;
        }
        self.live(sent.arrival.model).filter(|other| other.seq < sent.seq).map(|other| other.arrival.req).next()
    }

    /// Checks between steps that only ordering holds back decided requests, and that no lane is idle while Triton would
    /// use it.
    pub(super) fn check_quiet(&self, now: Instant, idle_lanes: usize) {
        for sent in self.sent.values().filter(|sent| !sent.ended) {
            let kept = sent.verdict.is_some() || sent.announced < sent.made;
            let hurried = matches!(sent.verdict, Some(End::Expired | End::Cancelled));
            let may_be_kept = !hurried && self.before(sent).is_some();
            assert!(!kept || may_be_kept, "the reply of {:?} is kept back", sent.arrival.req);
        }
        for (&model, knobs) in &self.models {
            let in_flight = self.running.values().filter(|task| task.model == model).count();
            if idle_lanes == 0 || in_flight >= knobs.max_in_flight as usize {
                continue;
            }
            assert!(self.begun(model).next().is_none(), "a begun batch waits while a lane idles");
            if let Some((queue, _)) = self.pending_batch(model) {
                let verdict = triton::verdict(knobs, &queue, now);
                assert!(matches!(verdict, Verdict::Wait(due) if due > now), "{queue:?} idle at {now:?}: {verdict:?}");
            }
        }
    }

    /// Returns whether the model has requests or tasks left.
    pub(super) fn is_busy(&self, model: ModelId) -> bool {
        self.live(model).next().is_some() || self.running.values().any(|task| task.model == model)
    }

    pub(super) fn unended(&self) -> impl Iterator<Item = ReqId> {
        self.sent.values().filter(|sent| !sent.ended).map(|sent| sent.arrival.req)
    }
}
