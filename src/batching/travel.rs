//! How batches travel from a decision of the policy to a lane: the meta operations on requests of the queue, and launches.

use smallvec::SmallVec;

use super::{
    Action, Bucket, CellId, Ns, RowSpan, ShapeClass, Task, TaskId,
    arbiter::{GroupIx, Lane},
    batch::{BatchIx, Seat, Step, StepState},
    cost::Quantile,
    group::{Around, Group, Turn},
    ledger::{Flight, Ledger, Request},
    pending::LineIx,
    pipeline::Access,
    policy::{Decision, Outlook, Passengers, View},
    table::{Blueprint, lay_out},
};

impl Group {
    /// Asks the policy what to do with a lane.
    pub(super) fn decide(&mut self, turn: &mut Turn<'_>, lane: &Lane, around: Around<'_>) -> Decision {
        let ready = self.table.queued().find(|&batch| self.admits(batch, lane));
        let enterable = self.pending.requests > 0 && self.can_enter(lane);
        let (now, ledger) = (turn.now, &*turn.ledger);
        let Self {
            pending,
            table,
            pipeline,
            policy,
            costs,
            learned,
            max_rows,
            objective_ns,
            max_in_flight,
            running,
            ..
        } = self;
        let (learned, max_rows, objective_ns, most) = (*learned, *max_rows, *objective_ns, *max_in_flight);
        policy.decide(&View {
            now,
            ledger,
            pending,
            table,
            pipeline,
            costs,
            learned,
            max_rows,
            objective_ns,
            neighbours_slack_ns: around.neighbours_slack_ns,
            ready,
            enterable,
            lane_is_idle: lane.is_idle(),
            lanes: around.lanes.min(most).max(1),
            idle_besides: around.idle_besides.min(most.saturating_sub(*running + 1)),
        })
    }

    /// Meta operation *new*.
    pub(super) fn new_batch(
        &mut self,
        turn: &mut Turn<'_>,
        line: LineIx,
        passengers: &Passengers,
        outlook: Outlook,
    ) -> BatchIx {
        // It is the newest now, so that no other is stretched any more.
        if self.pipeline.boundaries() > 0 {
            if let Some((newest, _)) = self.table.newest() {
                self.table.lineages[newest].sealed = true;
            }
            self.release_leases(turn.now);
        }
        let rows = self.board(turn, line, passengers);
        let boarded: u32 = rows.iter().map(|seat| seat.span.count).sum();
        if boarded < self.max_rows && self.others_wait(line) {
            self.totals.batches_parted_by_key += 1;
        }
        self.totals.batches_formed += 1;
        let entry = &self.pending.lines[line as usize];
        let mates = entry.mates.clone();
        let sealed = outlook == Outlook::Split || !self.policy.stretches();
        let class = match self.pipeline.boundaries() {
            0 => ShapeClass::default(),
            _ if !sealed && !mates.class.0.is_empty() => mates.class.clone(),
            _ => longest(&rows, turn.ledger),
        };
        let level = best_level(&rows, turn.ledger);
        match passengers {
            Passengers::Heads(lines) => lines.iter().for_each(|&(line, _)| self.left(turn, line)),
            Passengers::First(_) | Passengers::Named(_) => self.left(turn, line),
        }
        let plan = Blueprint { mates, class, level, turn: None, order: self.policy.part_order(), sealed };
        self.table.new_batch(turn.now, plan, self.pipeline.entry(), rows)
    }

    /// Meta operation *stretch*.
    pub(super) fn stretch(
        &mut self,
        turn: &mut Turn<'_>,
        batch: BatchIx,
        line: LineIx,
        passengers: &Passengers,
        outlook: Outlook,
    ) {
        if self.table.get(batch).foot().is_some_and(Step::is_queued) {
            self.totals.preemptions += 1;
            self.totals.stretches_while_checking += u64::from(self.is_checking(batch));
        }
        let rows = self.board(turn, line, passengers);
        self.totals.stretches += 1;
        let level = best_level(&rows, turn.ledger);
        self.left(turn, line);
        let boarded = rows.iter().map(|seat| seat.span.count).sum();
        self.count_wait(batch, boarded);
        let merged = self.table.stretch(batch, level, self.pipeline.entry(), rows);
        self.totals.merges += u64::from(merged);
        if outlook == Outlook::Split {
            self.table.lineage_of_mut(batch).sealed = true;
        }
    }

    /// The steps of a batch will wait for so many newcomers to catch up.
    fn count_wait(&mut self, batch: BatchIx, rows: u32) {
        let class = self.table.lineage_of(batch).class.clone();
        let entry = self.pipeline.entry();
        for step in &mut self.table.get_mut(batch).steps {
            let meets_at = CellId(step.next.0 + u16::from(!step.is_queued()));
            step.waits_ns += self.costs.between(entry, meets_at, rows, &class, Quantile::Mean).unwrap_or(0);
        }
    }

    fn left(&mut self, turn: &Turn<'_>, line: LineIx) {
        self.touched(turn.ledger, line);
        self.pending.retire(line);
    }

    // ## queued => running
    pub(super) fn launch(
        &mut self,
        turn: &mut Turn<'_>,
        group: GroupIx,
        lane: &Lane,
        id: TaskId,
        batch: BatchIx,
    ) -> Option<Ns> {
        let staged = self.pipeline.boundaries() > 0;
        let lineage = self.table.get(batch).lineage;
        let foot_at = self.table.get(batch).foot_at()?;
        let step = &mut self.table.get_mut(batch).steps[foot_at];
        let cell = step.next;
        if !staged {
            lay_out(&mut step.rows);
        }
        let (mut rows, mut requests) = (0, 0);
        let mut previous = None;
        let spans: Vec<RowSpan> = step
            .rows
            .iter()
            .map(|seat| {
                rows += seat.span.count;
                if previous.replace(seat.span.req) != Some(seat.span.req) {
                    requests += 1;
                }
                seat.span
            })
            .collect();
        let (from, to) = hull(&step.rows);
        let class = if staged { self.table.lineages[lineage].class.clone() } else { longest(&step.rows, turn.ledger) };
        let access = self.pipeline.access(&self.table.lineages[lineage], cell, from, to).unwrap_or_default();
        let after = if lane.looks_ahead() { self.pipeline.hazards(&access, lane.id) } else { SmallVec::new() };
        let entry = &mut self.table.lineages[lineage];
        self.pipeline.take_off(id, lane.id, &access, entry);
        entry.passed[usize::from(cell.0)].launched += rows;
        let number = entry.number;
        let ahead = lane.looks_ahead() && !self.pipeline.decides(cell) && !self.pipeline.is_last(cell);
        let ahead = self.pass_on(batch, foot_at, id, ahead);
        self.running += 1;
        self.totals.tasks_launched += 1;
        self.totals.rows_launched += u64::from(rows);
        turn.ledger.take_off(Flight {
            task: id,
            lane: lane.id,
            group,
            batch,
            lineage: number,
            cell,
            requests,
            rows,
            launched: turn.now,
            class: class.clone(),
            ahead,
            nodes: Vec::new(),
            is_retry: false,
            is_followed: false,
        });
        let predicted_ns =
            if lane.looks_ahead() { self.costs.predict(cell, rows, &class, Quantile::Mean) } else { None };
        let Access { reads, writes, .. } = access;
        let bucket = Bucket { rows, class };
        let task = Task {
            id,
            model: self.model,
            cell,
            bucket,
            lane: lane.id,
            batch: number,
            rows: spans,
            reads,
            writes,
            after,
        };
        turn.actions.push(Action::Launch(task));
        self.release_leases(turn.now);
        predicted_ns
    }

    /// The foot of a batch is on its lane: it waits for the task's end, or goes on to the next stage `ahead` of it. Then its seats
    /// are given back, as they are in the task.
    fn pass_on(&mut self, batch: BatchIx, foot_at: usize, id: TaskId, ahead: bool) -> Vec<Seat> {
        let steps = &mut self.table.get_mut(batch).steps;
        let mut seats = Vec::new();
        if !ahead {
            steps[foot_at].state = StepState::Running(id);
        } else {
            let Step { next, rows, waits_ns, .. } = steps.remove(foot_at);
            seats.clone_from(&rows);
            self.table.insert_step(batch, CellId(next.0 + 1), rows, waits_ns);
        }
        self.totals.merges += u64::from(self.table.merge(batch));
        self.table.enqueue(batch);
        seats
    }
}

/// Places of rows, from the first to behind the last.
pub(super) fn hull(rows: &[Seat]) -> (u32, u32) {
    let from = rows.first().map_or(0, |seat| seat.span.at);
    let to = rows.last().map_or(0, |seat| seat.span.at + seat.span.count);
    (from, to)
}

/// The padded shape that holds all these rows.
pub(super) fn longest(rows: &[Seat], ledger: &Ledger) -> ShapeClass {
    let mut class = ShapeClass::default();
    for seat in rows {
        lengthen(&mut class, &ledger[seat.slot]);
    }
    class
}

/// Stretches a padded shape to hold a request's own lengths.
pub(super) fn lengthen(class: &mut ShapeClass, request: &Request) {
    let lengths = &mut class.0;
    if lengths.len() < request.lengths.len() {
        lengths.resize(request.lengths.len(), 0);
    }
    for (longest, &own) in lengths.iter_mut().zip(&request.lengths) {
        *longest = own.max(*longest);
    }
}

/// The highest level of the requests that these rows belong to; ended ones do not count.
pub(super) fn best_level(rows: &[Seat], ledger: &Ledger) -> u64 {
    let aboard = rows.iter().filter(|seat| ledger.is_aboard(seat));
    aboard.map(|seat| ledger[seat.slot].level).min().unwrap_or(u64::MAX)
}
