//! Tables of time, event and expected actions, which make a test read like a timetable.
//!
//! Requests are letters, tasks `#0`, `#1`, … in launch order, models and lanes numbers. An event is one of
//! - `a rows=2 priority=1 key=7 len=5 timeout=100 deadline=50 model=1`: request a arrives (defaults: 1 row, no options,
//!   model 0; `timeout` and `deadline` are instants);
//! - `cancel a`; `resume a`; `wake`; `drain 0`;
//! - `#0 done`, `#0 fails`, or `#0 on+ again failed …`: outcomes row by row, with `+` if the row produced a response.

use paternoster_model::{CellId, Next, RowOutcome};

use super::{
    at,
    pool::{Pool, arrival},
};
use crate::{Action, Arrival, End, ModelId, Ns, Rejection, ReqId, RequestKey, Task, TaskId};

/// Plays a table. Every line must result in exactly the actions that it lists.
pub(super) fn play(pool: &mut Pool, table: &[(Ns, &str, &str)]) {
    for &(now, event, expected) in table {
        let due = pool.wake.filter(|&wake| wake < at(now));
        assert_eq!(due, None, "the table sleeps through a wake before {now} {event}");
        pool.now = at(now);
        let said = say(pool, event);
        assert_eq!(said, expected, "at {now}: {event}");
    }
}

fn say(pool: &mut Pool, event: &str) -> String {
    let mut words = event.split_whitespace();
    let first = words.next().expect("an event has a word");
    let rest: Vec<&str> = words.collect();
    let actions = match (first, rest.as_slice()) {
        ("wake", []) => pool.wake(),
        ("cancel", [name]) => pool.cancel(req(name)),
        ("resume", [name]) => pool.resume(req(name)),
        ("drain", [model]) => pool.drain(ModelId(number(model))),
        (task, outcomes) if task.starts_with('#') => {
            let id = TaskId(number(&task[1..]));
            match outcomes {
                ["done"] => pool.complete(id, &[]),
                ["fails"] => pool.fail(id),
                rows => pool.complete(id, &rows.iter().map(|word| outcome(word)).collect::<Vec<_>>()),
            }
        }
        (name, wishes) => pool.arrive(request(name, wishes)),
    };
    actions.iter().map(name_action).collect::<Vec<_>>().join("; ")
}

fn number<N: std::str::FromStr>(word: &str) -> N {
    word.parse().unwrap_or_else(|_| panic!("{word} is no number"))
}

fn req(name: &str) -> ReqId {
    let letter = name.bytes().next().expect("a request has a name");
    ReqId(u64::from(letter - b'a'))
}

fn letter(req: ReqId) -> char {
    char::from(b'a' + u8::try_from(req.0).expect("a table has few requests"))
}

fn request(name: &str, wishes: &[&str]) -> Arrival {
    let mut request = arrival(req(name).0);
    for wish in wishes {
        match wish.split_once('=').expect("a wish has a value") {
            ("rows", rows) => request.rows = number(rows),
            ("priority", priority) => request.priority = number(priority),
            ("key", key) => request.key = RequestKey([number(key)].into_iter().collect()),
            ("len", length) => request.lengths = [number(length)].into_iter().collect(),
            ("timeout", ns) => request.queue_deadline = Some(at(number(ns))),
            ("deadline", ns) => request.deadline = Some(at(number(ns))),
            ("after", ns) => request.needed_after_ns = number(ns),
            ("model", model) => request.model = ModelId(number(model)),
            (other, _) => panic!("{other} is no wish"),
        }
    }
    request
}

fn outcome(word: &str) -> RowOutcome {
    let next = match word.trim_end_matches('+') {
        "on" => Next::On,
        "done" => Next::Done,
        "again" => Next::Skip(CellId(0)),
        "astray" => Next::Skip(CellId(9)),
        "pause" => Next::Pause,
        "failed" => Next::Failed,
        other => panic!("{other} is no outcome"),
    };
    RowOutcome { next, emitted: word.ends_with('+') }
}

fn name_action(action: &Action) -> String {
    match action {
        Action::Launch(task) => name_task(task),
        Action::Emit { req, step } => format!("response {step} of {}", letter(*req)),
        Action::Finish { req, end } => format!("{} {}", letter(*req), name_end(*end)),
        Action::Recalled(arrival) => format!("{:?} recalled", arrival.req),
        Action::Drained(model) => format!("model {} drained", model.0),
        Action::Joined { req, sequence } => format!("{} joins sequence {}", letter(*req), sequence.0),
        Action::SequenceOver { sequence, .. } => format!("sequence {} is over", sequence.0),
        Action::UnitsFreed { core } => format!("core {core} has units"),
        Action::WakeAt(at) => format!("wake at {}", at.as_ns()),
    }
}

fn name_task(task: &Task) -> String {
    let mut name = format!("#{} runs", task.id.0);
    for span in &task.rows {
        let whole = if span.start == 0 && span.count == 1 {
            String::new()
        } else {
            format!("[{}..{}]", span.start, span.start + span.count)
        };
        name += &format!(" {}{whole}", letter(span.req));
    }
    if let Some(length) = task.bucket.class.0.first() {
        name += &format!(" padded to {length}");
    }
    if task.lane.0 > 0 {
        name += &format!(" on lane {}", task.lane.0);
    }
    name
}

fn name_end(end: End) -> &'static str {
    match end {
        End::Completed => "completed",
        End::Failed => "failed",
        End::Rejected(Rejection::QueueFull) => "rejected: queue full",
        End::Rejected(Rejection::QueueTimeout) => "rejected: queue timeout",
        End::Rejected(Rejection::Late) => "rejected: late",
        End::Rejected(Rejection::NoMemory) => "rejected: no memory",
        End::Rejected(Rejection::NotStarted) => "rejected: not started",
        End::Expired => "expired",
        End::Cancelled => "cancelled",
    }
}
