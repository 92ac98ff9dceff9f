//! Lays out a history: assigns rows to requests, and decides what is drawn on them.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap},
};

use super::{
    change::Change,
    history::{History, Request, Task},
    picture::{Arrow, Facts, Kind, LANES, Mark, Picture, Process, Row, Span},
    recording::Recording,
};
use crate::end::RequestEnd;

impl Recording {
    /// Lays the recording out. Takes about a second for a million events.
    pub fn picture(&self) -> Picture {
        Picture::of(&History::of(self))
    }
}

impl Picture {
    pub(super) fn of(history: &History) -> Self {
        let mut picture = Self { dropped: history.dropped, ..Self::default() };
        picture.draw_lanes(history);
        let mut by_model: BTreeMap<u32, Vec<&Request>> = BTreeMap::new();
        for request in &history.requests {
            by_model.entry(request.model).or_default().push(request);
        }
        for (position, (model, mut requests)) in by_model.into_iter().enumerate() {
            requests.sort_by_key(|request| request.arrived_ns);
            let name = match history.names.get(&model) {
                Some(named) => format!("{} · version {}", named.name, named.version),
                None => format!("model {model}"),
            };
            picture.draw_model(LANES + 1 + position as u32, name, &requests, history);
        }
        picture
    }

    fn draw_lanes(&mut self, history: &History) {
        let row_of = |task: &Task| Row { process: LANES, row: u32::from(task.lane) + 1 };
        let rows = history.tasks.iter().map(|task| (u32::from(task.lane) + 1, format!("lane {}", task.lane)));
        self.processes.push(Process { id: LANES, name: "lanes".to_owned(), rows: rows.collect() });
        for task in &history.tasks {
            let spans = task.rows.iter().map(|(_, rows)| (rows.at, rows.count));
            let facts = Facts { rows: task.row_count(), places: places(spans), ..facts_of(task) };
            let (from_ns, to_ns) = (task.began_ns, task.ended_ns);
            self.spans.push(Span { row: row_of(task), from_ns, to_ns, kind: Kind::Task, facts });
        }
        for link in &history.links {
            let (from, to) = (&history.tasks[link.from], &history.tasks[link.to]);
            // Within the span that it leaves. An arrow from its exact end would start at the next span.
            let leaves_ns = from.ended_ns.saturating_sub(1).clamp(from.began_ns, to.began_ns.max(from.began_ns));
            let name = match (link.boards, to.changes.first()) {
                (true, _) => Change::Stretch.name().to_owned(),
                (false, Some(change)) if *change != Change::Stretch => change.name().to_owned(),
                (false, _) => format!("batch {}", to.batch),
            };
            self.arrows.push(Arrow { from: (row_of(from), leaves_ns), to: (row_of(to), to.began_ns), name });
        }
    }

    fn draw_model(&mut self, process: u32, name: String, requests: &[&Request], history: &History) {
        let mut rows = FreeRows::default();
        for request in requests {
            let strands = strands(request, &history.tasks);
            let taken = rows.take(strands.len().max(1), request.arrived_ns, request.ended_ns);
            for (position, &row) in taken.iter().enumerate() {
                let row = Row { process, row };
                let blocks = strands.get(position).map_or(&[][..], |strand| &strand.blocks);
                self.draw_strand(row, request, blocks, position == 0, &history.tasks);
            }
            if let (Some(end), Some(&row)) = (request.end.filter(|end| *end != RequestEnd::Completed), taken.first()) {
                let row = Row { process, row };
                self.marks.push(Mark { row, at_ns: request.ended_ns, name: end.to_string() });
            }
        }
        let rows = (1..=rows.count).map(|row| (row, format!("row {row}"))).collect();
        self.processes.push(Process { id: process, name, rows });
    }

    /// Draws the runs of a request on one row, and the waits between them; on the request's first row, also the waits
    /// before and after.
    fn draw_strand(&mut self, row: Row, request: &Request, blocks: &[Block], first: bool, tasks: &[Task]) {
        let mut free_ns = if first { Some(request.arrived_ns) } else { None };
        let mut last: Option<&Task> = None;
        let wait = |from_ns: u64, to_ns: u64, last: Option<&Task>, open: bool| {
            let asks_anew = last.map_or(request.number.is_some(), |task| task.failed);
            let kind = if asks_anew { Kind::Queue } else { Kind::Wait };
            let stage = last.filter(|_| !asks_anew).map(|task| task.stage);
            let facts = Facts { request: request.number, rows: request.rows, stage, open, ..Facts::default() };
            Span { row, from_ns, to_ns, kind, facts }
        };
        for block in blocks {
            if let Some(from_ns) = free_ns.filter(|&from_ns| from_ns < block.from_ns) {
                self.spans.push(wait(from_ns, block.from_ns, last, false));
            }
            let task = &tasks[block.task];
            let facts = Facts {
                request: request.number,
                rows: block.spans.iter().map(|&(_, count)| count).sum(),
                places: places(block.spans.iter().copied()),
                ..facts_of(task)
            };
            self.spans.push(Span { row, from_ns: block.from_ns, to_ns: block.to_ns, kind: Kind::Stage, facts });
            free_ns = Some(block.to_ns);
            last = Some(task);
        }
        if let Some(from_ns) = free_ns.filter(|&from_ns| first && from_ns < request.ended_ns) {
            self.spans.push(wait(from_ns, request.ended_ns, last, request.end.is_none()));
        }
    }
}

fn facts_of(task: &Task) -> Facts {
    Facts {
        stage: Some(task.stage),
        batch: Some(task.batch),
        task: Some(task.id),
        lane: Some(task.lane),
        task_rows: Some(task.row_count()),
        padded_rows: Some(task.bucket_rows),
        padded_lengths: task.lengths.clone(),
        changes: task.changes.iter().copied().collect(),
        failed: task.failed,
        open: task.is_open(),
        ..Facts::default()
    }
}

/// Formats places as `0-1, 5`, with adjacent ones joined.
fn places(spans: impl Iterator<Item = (u32, u32)>) -> String {
    let mut joined: Vec<(u32, u32)> = Vec::new();
    for (at, count) in spans.filter(|&(_, count)| count > 0) {
        let last = at.saturating_add(count - 1);
        match joined.last_mut() {
            Some((_, end)) if end.checked_add(1) == Some(at) => *end = last,
            _ => joined.push((at, last)),
        }
    }
    let written =
        joined.iter().map(|(first, last)| if first == last { first.to_string() } else { format!("{first}-{last}") });
    written.collect::<Vec<_>>().join(", ")
}

/// All rows of a request in one task, clamped to the request's own time.
struct Block {
    task: usize,
    from_ns: u64,
    to_ns: u64,
    /// Place and number of consecutive rows.
    spans: Vec<(u32, u32)>,
    first_row: u32,
}

/// Consecutive blocks of a request.
struct Strand {
    blocks: Vec<Block>,
}

/// Returns the strands of a request: parts of a split request that run at the same time are on separate strands.
fn strands(request: &Request, tasks: &[Task]) -> Vec<Strand> {
    let within = |at_ns: u64| at_ns.clamp(request.arrived_ns, request.ended_ns);
    let mut blocks: Vec<Block> = Vec::new();
    for run in &request.runs {
        let span = (run.rows.at, run.rows.count);
        match blocks.last_mut() {
            Some(block) if block.task == run.task => block.spans.push(span),
            _ => {
                let task = &tasks[run.task];
                let (from_ns, to_ns) = (within(task.began_ns), within(task.ended_ns));
                blocks.push(Block { task: run.task, from_ns, to_ns, spans: vec![span], first_row: run.rows.start });
            }
        }
    }
    blocks.sort_by_key(|block| (block.from_ns, block.to_ns));

    let mut strands: Vec<Strand> = Vec::new();
    for block in blocks {
        let fits = |strand: &Strand| strand.blocks.last().is_none_or(|last| last.to_ns <= block.from_ns);
        let continues = |strand: &Strand| strand.blocks.last().is_some_and(|last| last.first_row == block.first_row);
        let same_rows = strands.iter().position(|strand| fits(strand) && continues(strand));
        match same_rows.or_else(|| strands.iter().position(fits)) {
            Some(position) => strands[position].blocks.push(block),
            None => strands.push(Strand { blocks: vec![block] }),
        }
    }
    strands
}

/// Assigns the lowest free rows to each request, so that the picture stays compact.
#[derive(Default)]
struct FreeRows {
    count: u32,
    free: BinaryHeap<Reverse<u32>>,
    /// Rows in use, with the time at which they become free.
    taken: BinaryHeap<Reverse<(u64, u32)>>,
}

impl FreeRows {
    /// Takes rows for a period that starts no earlier than that of the previous call.
    fn take(&mut self, rows: usize, from_ns: u64, to_ns: u64) -> Vec<u32> {
        while let Some(&Reverse((free_ns, row))) = self.taken.peek()
            && free_ns <= from_ns
        {
            self.taken.pop();
            self.free.push(Reverse(row));
        }
        let mut taken: Vec<u32> = Vec::with_capacity(rows);
        for _ in 0..rows {
            let Reverse(row) = self.free.pop().unwrap_or_else(|| {
                self.count += 1;
                Reverse(self.count)
            });
            taken.push(row);
        }
        self.taken.extend(taken.iter().map(|&row| Reverse((to_ns, row))));
        taken
    }
}
