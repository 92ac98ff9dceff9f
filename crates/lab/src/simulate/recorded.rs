//! Derives properties of a device from a recorded timeline that its table does not have: how task times scatter around
//! the table's times, and how much longer a task takes on an idle lane.

use paternoster_batching::Ns;

use super::{surface::Surface, table::ModelTable};

/// A task that starts within this time after the previous one on its lane counts as back to back, and its time is
/// counted from the end of the previous one.
const AT_ONCE_NS: Ns = 100_000;
/// Minimum number of tasks of a kind for a result.
const ENOUGH: usize = 20;

/// A completed task of a recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordedTask<'a> {
    /// Its model and version, as named in the recording.
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
    pub from_ns: Ns,
    /// When it ended.
    pub to_ns: Ns,
}

/// How a model's tasks ran.
#[derive(Clone, Debug, PartialEq)]
pub struct Recorded {
    /// For [`ModelTable::scatter`]: from tasks that ran back to back.
    pub scatter: Vec<f64>,
    /// Mean additional time of the other tasks, for [`Setup::after_idle_ns`](super::Setup::after_idle_ns).
    pub after_idle_ns: Ns,
}

/// Why a recording cannot be used for a model.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordedError {
    /// The recording has only other models.
    #[error("it has no task of '{model}'; it has {known}")]
    UnknownModel {
        /// The model.
        model: String,
        /// The models that it has.
        known: String,
    },
    /// The recorded model is cut into other stages.
    #[error("it has stage {found} of '{model}', counted from 0, which is simulated in {stages}")]
    Stages {
        /// The model.
        model: String,
        /// The recorded stage.
        found: u16,
        /// Number of stages of the table.
        stages: usize,
    },
    /// There are too few tasks.
    #[error("it has {found} tasks of '{model}' on one of the lanes: expected at least {expected}")]
    TooFew {
        /// The model.
        model: String,
        /// Number of tasks found.
        found: usize,
        /// Number of tasks needed.
        expected: usize,
    },
}

impl RecordedError {
    pub(super) fn stages(model: &ModelTable, found: u16) -> Self {
        Self::Stages { model: model.name.clone(), found, stages: model.latencies.stages.len() }
    }
}

/// Returns the start of a task's turn on the lane, given the end of the previous task there.
pub(super) fn begins_after(task: &RecordedTask<'_>, last_ns: Ns) -> Ns {
    let follows = (last_ns..=last_ns.saturating_add(AT_ONCE_NS)).contains(&task.from_ns);
    if follows { last_ns } else { task.from_ns }
}

/// Returns a task's length as the table defines it.
pub(super) fn length_of(task: &RecordedTask<'_>) -> u64 {
    task.lengths.iter().fold(1, |product: u64, &length| product.saturating_mul(u64::from(length.max(1))))
}

impl Recorded {
    /// Derives the properties of a model from a timeline's tasks, given lane by lane in order of time. A timeline with
    /// a single model matches any model name.
    ///
    /// # Errors
    /// If the tasks belong to other models or stages, or are too few.
    pub fn of(table: &ModelTable, tasks: &[RecordedTask<'_>]) -> Result<Self, RecordedError> {
        let surfaces: Vec<Surface> = table.latencies.stages.iter().map(|points| Surface::new(points)).collect();
        let (mut at_once, mut after_idle) = (Vec::new(), Vec::new());
        let named = its_name(&table.name, tasks)?;
        for (at, task) in tasks.iter().enumerate().filter(|(_, task)| task.model == named) {
            let Some(surface) = surfaces.get(usize::from(task.stage)) else {
                return Err(RecordedError::stages(table, task.stage));
            };
            let last = at.checked_sub(1).map(|last| tasks[last]).filter(|last| last.lane == task.lane);
            let began_ns = last.map_or(task.from_ns, |last| begins_after(task, last.to_ns));
            let follows = last.is_some_and(|last| last.to_ns == began_ns);
            let took = ((task.to_ns - began_ns) as f64, surface.ns(task.rows, length_of(task)));
            if follows { at_once.push(took) } else { after_idle.push(took) }
        }
        // If lanes are rarely busy twice in a row, all tasks count alike.
        if at_once.len() < ENOUGH {
            at_once.append(&mut after_idle);
        }
        if at_once.len() < ENOUGH {
            let (model, found) = (table.name.clone(), at_once.len());
            return Err(RecordedError::TooFew { model, found, expected: ENOUGH });
        }
        let mut parts: Vec<f64> = at_once.iter().map(|(took_ns, table_ns)| took_ns / table_ns).collect();
        parts.sort_by(f64::total_cmp);
        let mean = parts.iter().sum::<f64>() / parts.len() as f64;
        let later: f64 = after_idle.iter().map(|(took_ns, table_ns)| took_ns - table_ns * mean).sum();
        let after_idle_ns = (later / after_idle.len().max(1) as f64).max(0.0).round() as Ns;
        Ok(Self { scatter: parts, after_idle_ns })
    }
}

/// Returns the name under which the recording has a model: the only one, or the one with its name in any version.
pub(super) fn its_name<'a>(model: &str, tasks: &[RecordedTask<'a>]) -> Result<&'a str, RecordedError> {
    let mut names: Vec<&str> = tasks.iter().map(|task| task.model).collect();
    names.sort_unstable();
    names.dedup();
    let whole = model.split('/').next().unwrap_or(model);
    match names.as_slice() {
        [] => Err(RecordedError::TooFew { model: whole.to_owned(), found: 0, expected: ENOUGH }),
        [only] => Ok(*only),
        names => {
            let is_it = |name: &&&str| name.split(" · ").next() == Some(whole);
            let unknown =
                || RecordedError::UnknownModel { model: whole.to_owned(), known: format!("'{}'", names.join("', '")) };
            names.iter().find(is_it).copied().ok_or_else(unknown)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use paternoster_batching::{CostPoint, CostTable};

    fn table() -> ModelTable {
        let points = [(1, 100_000), (2, 150_000)].map(|(rows, took_ns)| CostPoint { rows, length: 1, took_ns });
        let latencies = CostTable { stages: vec![points.to_vec()] };
        ModelTable { name: "m".to_owned(), max_batch_rows: 2, latencies, steps: None, cells: None, scatter: Vec::new() }
    }

    fn task(model: &str, rows: u32, from_ns: Ns, took_ns: Ns) -> RecordedTask<'_> {
        RecordedTask { model, stage: 0, lane: 0, rows, lengths: &[], from_ns, to_ns: from_ns + took_ns }
    }

    /// In each pair the first task starts after an idle period and takes 40 µs more than the second.
    fn pairs(model: &str, count: u64) -> Vec<RecordedTask<'_>> {
        let pair = |number: u64| {
            let from_ns = number * 10_000_000;
            // The table's time, plus or minus a tenth.
            let took_ns = 135_000 + 30_000 * (number % 2);
            [task(model, 1, from_ns, 140_000), task(model, 2, from_ns + 141_000, took_ns - 1_000)]
        };
        (0..count).flat_map(pair).collect()
    }

    #[test]
    fn tasks_that_follow_at_once_scatter_and_the_others_are_later() {
        let recorded = Recorded::of(&table(), &pairs("m · version 1", 40)).expect("enough");
        assert_eq!((recorded.scatter[0], recorded.scatter[39], recorded.scatter.len()), (0.9, 1.1, 40));
        assert_eq!(recorded.after_idle_ns, 40_000);
    }

    #[test]
    fn where_hardly_any_follow_all_count_alike() {
        let alone: Vec<RecordedTask<'_>> = (0..30).map(|number| task("m", 1, number * 1_000_000, 120_000)).collect();
        let recorded = Recorded::of(&table(), &alone).expect("enough");
        assert_eq!((recorded.scatter[15], recorded.after_idle_ns), (1.2, 0));
    }

    #[test]
    fn of_several_models_the_one_of_the_name_counts() {
        let mut tasks = pairs("m · version 3", 40);
        tasks.extend(pairs("other · version 1", 1));
        assert_eq!(Recorded::of(&table(), &tasks).map(|recorded| recorded.after_idle_ns), Ok(40_000));
        let halves = ModelTable { name: "m/2".to_owned(), ..table() };
        assert_eq!(Recorded::of(&halves, &tasks).map(|recorded| recorded.after_idle_ns), Ok(40_000));
    }

    #[test]
    fn what_tells_nothing_is_refused() {
        let refusal =
            |tasks: &[RecordedTask<'_>]| Recorded::of(&table(), tasks).expect_err("it has no information").to_string();
        assert_eq!(refusal(&pairs("m", 5)), "it has 10 tasks of 'm' on one of the lanes: expected at least 20");
        let others = [pairs("a · version 1", 20), pairs("b · version 1", 20)].concat();
        assert_eq!(refusal(&others), "it has no task of 'm'; it has 'a · version 1', 'b · version 1'");
        assert_eq!(refusal(&[]), "it has 0 tasks of 'm' on one of the lanes: expected at least 20");
        let staged = [RecordedTask { stage: 2, ..task("m", 1, 0, 1) }];
        assert_eq!(refusal(&staged), "it has stage 2 of 'm', counted from 0, which is simulated in 1");
    }
}
