//! What both forms of output draw: spans on rows that never overlap.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::change::Change;

/// The process that holds the lanes; those of models follow.
pub(super) const LANES: u32 = 1;

/// A recording laid out: one process for the lanes and one for each model version, with rows on which spans never
/// overlap.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Picture {
    /// Records that were dropped for newer ones before the picture was taken.
    pub(super) dropped: u64,
    /// In the order of their numbers.
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

/// What a span is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Kind {
    /// A request waits for its first task, or to run again after one that failed.
    Queue,
    /// A request runs in a task.
    Stage,
    /// A request waits at a boundary.
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

/// What is known of a span; what does not belong to its kind is left out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Facts {
    /// The request's place in the order of arrival.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) request: Option<u64>,
    /// Rows of the request that the span is about, or of the task.
    pub(super) rows: u32,
    /// Their places in the batch, as `0-1, 5`.
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
    /// Whether it went on when the picture was taken.
    #[serde(skip_serializing_if = "is_false")]
    pub(super) open: bool,
}

fn is_false(value: &bool) -> bool {
    !value
}

/// A request that ended otherwise than completed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mark {
    pub(super) row: Row,
    pub(super) at_ns: u64,
    pub(super) name: String,
}

/// From a task on its lane to the next one of its rows, or of the batch that newcomers join.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Arrow {
    pub(super) from: (Row, u64),
    pub(super) to: (Row, u64),
    pub(super) name: String,
}

/// A task that ran to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RanTask<'a> {
    /// Its model and version, as the picture names them.
    pub model: &'a str,
    /// The stage, counted from 0.
    pub stage: u16,
    /// Where it ran.
    pub lane: u16,
    /// Rows of the executed batch, padding included.
    pub rows: u32,
    /// Padded lengths, one a symbol of the model.
    pub lengths: &'a [u32],
    /// When its lane and its rows were free for it.
    pub from_ns: u64,
    /// When it had ended.
    pub to_ns: u64,
}

/// A request that ran to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RanRequest {
    /// When it arrived.
    pub arrived_ns: u64,
    /// When its first task began.
    pub began_ns: u64,
    /// When its reply left.
    pub ended_ns: u64,
}

impl Picture {
    /// The requests that ran, in the order of their arrival, as far as that is known. Without those that had not ended.
    pub fn requests(&self) -> Vec<RanRequest> {
        // None: it has not ended.
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

    /// The tasks that ran, lane by lane in the order of time. Without those that failed, that had not ended, or whose
    /// requests are not in the picture.
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

    /// When the requests arrived of which that is known, ascending.
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
