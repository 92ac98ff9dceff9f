//! The picture that all outputs draw: spans on rows that never overlap.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::change::Change;

/// The process of the lanes; those of models follow.
pub(super) const LANES: u32 = 1;

/// A recording after layout: one process for the lanes and one per model version, with rows on which spans never
/// overlap.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Picture {
    /// Number of records that were dropped before the picture was taken.
    pub(super) dropped: u64,
    /// By id.
    pub(super) processes: Vec<Process>,
    pub(super) spans: Vec<Span>,
    pub(super) marks: Vec<Mark>,
    pub(super) arrows: Vec<Arrow>,
}

/// The lanes, or a model version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Process {
    pub(super) id: u32,
    pub(super) name: String,
    /// Rows with their names.
    pub(super) rows: BTreeMap<u32, String>,
}

/// A row of a process, counted from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Row {
    pub(super) process: u32,
    pub(super) row: u32,
}

/// The kind of a span.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Kind {
    /// A request waits for its first task, or to run again after a failed one.
    Queue,
    /// A request runs in a task.
    Stage,
    /// A request waits at a stage boundary.
    Wait,
    /// A lane runs a task.
    Task,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Span {
    pub(super) row: Row,
    pub(super) from_ns: u64,
    pub(super) to_ns: u64,
    pub(super) kind: Kind,
    pub(super) facts: Facts,
}

/// The properties of a span; those that do not apply to its kind are omitted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Facts {
    /// The request's position in arrival order.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) request: Option<u64>,
    /// Rows of the request in the span, or of the task.
    pub(super) rows: u32,
    /// Places of the rows in the batch, as `0-1, 5`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) places: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) stage: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) batch: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) task: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) lane: Option<u16>,
    /// Rows of the task.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) task_rows: Option<u32>,
    /// Rows of the executed batch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) padded_rows: Option<u32>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) padded_lengths: Vec<u32>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) changes: Vec<Change>,
    #[serde(skip_serializing_if = "is_false")]
    pub(super) failed: bool,
    /// Whether it was still running when the picture was taken.
    #[serde(skip_serializing_if = "is_false")]
    pub(super) open: bool,
}

fn is_false(value: &bool) -> bool {
    !value
}

/// A request that did not complete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mark {
    pub(super) row: Row,
    pub(super) at_ns: u64,
    pub(super) name: String,
}

/// An arrow from a task on its lane to the next task of its rows, or of the batch that newcomers join.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Arrow {
    pub(super) from: (Row, u64),
    pub(super) to: (Row, u64),
    pub(super) name: String,
}

/// A completed task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RanTask<'a> {
    /// Its model and version, as named in the picture.
    pub model: &'a str,
    /// The stage, counted from 0.
    pub stage: u16,
    /// The lane that it ran on.
    pub lane: u16,
    /// Rows of the executed batch, padding included.
    pub rows: u32,
    /// Padded lengths, one per symbol of the model.
    pub lengths: &'a [u32],
    /// When its lane and its rows became free for it.
    pub from_ns: u64,
    /// When it ended.
    pub to_ns: u64,
}

/// A completed request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RanRequest {
    /// Arrival time.
    pub arrived_ns: u64,
    /// Start of its first task.
    pub began_ns: u64,
    /// Time at which its response was sent.
    pub ended_ns: u64,
}

impl Picture {
    /// Returns the completed requests in arrival order, as far as it is known. Omits requests that had not ended.
    pub fn requests(&self) -> Vec<RanRequest> {
        // `None`: it has not ended.
        let mut found: BTreeMap<(u64, u32), Option<RanRequest>> = BTreeMap::new();
        let spans = self.spans.iter().filter(|span| span.kind != Kind::Task);
        for Span { row, from_ns, to_ns, kind, facts } in spans {
            let Some(number) = facts.request else { continue };
            let began_ns = if *kind == Kind::Stage { *from_ns } else { u64::MAX };
            let of_span = RanRequest { arrived_ns: *from_ns, began_ns, ended_ns: *to_ns };
            let known = found.entry((number, row.process)).or_insert(Some(of_span));
            *known = known.filter(|_| !facts.open).map(|known| RanRequest {
                arrived_ns: known.arrived_ns.min(of_span.arrived_ns),
                began_ns: known.began_ns.min(of_span.began_ns),
                ended_ns: known.ended_ns.max(of_span.ended_ns),
            });
        }
        found.into_values().flatten().filter(|request| request.began_ns < u64::MAX).collect()
    }

    /// Returns the completed tasks, lane by lane in order of time. Omits tasks that failed, that had not ended, or
    /// whose requests are not in the picture.
    pub fn tasks(&self) -> Vec<RanTask<'_>> {
        let names: BTreeMap<u32, &str> = self.processes.iter().map(|one| (one.id, one.name.as_str())).collect();
        let of_requests = self.spans.iter().filter(|span| span.kind == Kind::Stage);
        let models: BTreeMap<u64, &str> =
            of_requests.filter_map(|span| Some((span.facts.task?, *names.get(&span.row.process)?))).collect();
        let ran = |span: &'_ Span| span.kind == Kind::Task && !span.facts.failed && !span.facts.open;
        let mut tasks: Vec<RanTask<'_>> = self
            .spans
            .iter()
            .filter(|span| ran(span))
            .filter_map(|Span { from_ns, to_ns, facts, .. }| {
                let model = *models.get(&facts.task?)?;
                let (stage, lane) = (facts.stage?, facts.lane?);
                let rows = facts.padded_rows.unwrap_or(facts.rows);
                let (from_ns, to_ns) = (*from_ns, *to_ns);
                Some(RanTask { model, stage, lane, rows, lengths: &facts.padded_lengths, from_ns, to_ns })
            })
            .collect();
        tasks.sort_by_key(|task| (task.lane, task.from_ns));
        tasks
    }

    /// Returns the known arrival times, ascending.
    pub fn arrivals(&self) -> Vec<u64> {
        let mut first: BTreeMap<u64, u64> = BTreeMap::new();
        for span in self.spans.iter().filter(|span| span.kind != Kind::Task) {
            if let Some(request) = span.facts.request {
                first
                    .entry(request)
                    .and_modify(|from_ns| *from_ns = span.from_ns.min(*from_ns))
                    .or_insert(span.from_ns);
            }
        }
        let mut arrivals: Vec<u64> = first.into_values().collect();
        arrivals.sort_unstable();
        arrivals
    }
}

impl Span {
    pub(super) fn name(&self) -> String {
        let Facts { request, stage, batch, task_rows, changes, .. } = &self.facts;
        match self.kind {
            Kind::Queue => {
                let request =
                    request.map_or_else(|| "earlier request".to_owned(), |number| format!("request {number}"));
                format!("{request} · queued")
            }
            Kind::Wait => match stage {
                Some(stage) => format!("waits behind stage {stage}"),
                None => "waits".to_owned(),
            },
            Kind::Stage | Kind::Task => {
                let rows = task_rows.unwrap_or(self.facts.rows);
                let noun = if rows == 1 { "row" } else { "rows" };
                let (stage, batch) = (stage.unwrap_or_default(), batch.unwrap_or_default());
                let mut name = format!("stage {stage} · batch {batch} · {rows} {noun}");
                for change in changes {
                    name.push_str(" · ");
                    name.push_str(change.name());
                }
                name
            }
        }
    }
}
