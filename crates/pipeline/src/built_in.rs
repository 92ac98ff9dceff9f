//! Steps that the server computes itself.

use std::{
    any::Any,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use paternoster_model::{InputTensor, TensorSpec};

use super::{TensorRows, WorkerGroup, Workers};

/// A step that is no model: it computes its outputs on a worker thread, or at once where that takes well below a
/// millisecond.
pub trait BuiltIn: Any + fmt::Debug + Send + Sync {
    /// Returns its kind, as configurations name it.
    fn kind(&self) -> &'static str;

    /// Returns its inputs. Each has the batch axis in front of its dimensions.
    fn inputs(&self) -> &[TensorSpec];

    /// Returns its outputs.
    fn outputs(&self) -> &[TensorSpec];

    /// Whether it takes well below a millisecond for these inputs, and so may run on the calling thread.
    fn is_short(&self, inputs: &[Option<TensorRows>]) -> bool;

    /// Returns the worker threads that it uses.
    fn workers<'a>(&self, all: &'a Workers) -> &'a WorkerGroup;

    /// Returns an upper limit of the bytes that its work builds for these inputs.
    fn built_bytes(&self, inputs: &[Option<TensorRows>]) -> usize;

    /// Checks the inputs that come with the request, before any step runs; those that other steps give are `None`.
    /// `dims` are the declared dimensions of each input with its batch axis, -1 where they vary.
    ///
    /// # Errors
    /// If an input is not what the step expects.
    fn check(&self, _given: &[Option<TensorRows>], _dims: &[&[i64]], _rows: usize) -> Result<(), BuiltInFault> {
        Ok(())
    }

    /// Begins to compute the outputs of `rows` rows. `inputs` are in the order of [`Self::inputs`]; those that are
    /// optional may be absent.
    ///
    /// # Errors
    /// If an input is not what the step expects.
    fn begin(self: Arc<Self>, inputs: Vec<Option<TensorRows>>, rows: usize) -> Result<Box<dyn StepWork>, BuiltInFault>;
}

/// What a built-in step does for a request, row by row.
pub trait StepWork: Send {
    /// Returns about how long a row keeps its thread. Shorter rows of others go first, and long ones leave threads to
    /// them.
    fn effort(&self, row: usize) -> Duration;

    /// Computes the outputs of a row. Rows come in order. Looks at `stop` from time to time.
    ///
    /// # Errors
    /// If the content of an input is not what the step expects, or the outputs are no longer wanted.
    fn run(&mut self, row: usize, stop: &Stop) -> Result<(), BuiltInFault>;

    /// Returns the outputs of all rows, in the order of [`BuiltIn::outputs`].
    fn outputs(&mut self) -> Vec<TensorRows>;
}

/// Runs a step on the calling thread.
///
/// # Errors
/// As [`BuiltIn::begin`] and [`StepWork::run`].
pub fn run_here(
    step: Arc<dyn BuiltIn>,
    inputs: Vec<Option<TensorRows>>,
    rows: usize,
    stop: &Stop,
) -> Result<Vec<TensorRows>, BuiltInFault> {
    let mut work = step.begin(inputs, rows)?;
    (0..rows).try_for_each(|row| work.run(row, stop))?;
    Ok(work.outputs())
}

/// The inputs of a step, taken apart: by input and row.
#[derive(Debug)]
pub struct InputRows(Vec<Option<Vec<Option<InputTensor>>>>);

impl InputRows {
    /// Takes the inputs of `rows` rows apart.
    ///
    /// # Errors
    /// If an input does not have as many rows.
    pub fn new(inputs: &[Option<TensorRows>], specs: &[TensorSpec], rows: usize) -> Result<Self, BuiltInFault> {
        let by_row = inputs.iter().zip(specs).map(|(value, spec)| {
            let by_row = value.as_ref().map(|value| value.by_row(spec.datatype, rows)).transpose();
            by_row.map_err(|fault| BuiltInFault::Invalid(format!("{}: {fault}", spec.name)))
        });
        Ok(Self(by_row.collect::<Result<_, _>>()?))
    }

    /// Returns an input, by its number, of one row; `None` if the row or the request does not have it.
    pub fn get(&self, input: usize, row: usize) -> Option<&InputTensor> {
        self.0[input].as_ref()?[row].as_ref()
    }
}

/// Whether the outputs of a step are still wanted.
#[derive(Clone, Debug)]
pub struct Stop {
    deadline: Option<Instant>,
    is_dropped: Arc<AtomicBool>,
}

impl Stop {
    pub(crate) fn new(deadline: Option<Instant>) -> Self {
        Self { deadline, is_dropped: Arc::default() }
    }

    /// Returns a value that never stops a step.
    pub fn never() -> Self {
        Self::new(None)
    }

    /// Returns a value whose drop stops the step.
    pub(crate) fn when_dropped(&self) -> StopOnDrop {
        StopOnDrop(Arc::clone(&self.is_dropped))
    }

    /// Checks that the outputs are still wanted.
    ///
    /// # Errors
    /// If the deadline has passed, or the client has left.
    pub fn check(&self) -> Result<(), BuiltInFault> {
        let is_late = self.deadline.is_some_and(|deadline| deadline <= Instant::now());
        if is_late || self.is_dropped.load(Ordering::Relaxed) { Err(BuiltInFault::Stopped) } else { Ok(()) }
    }
}

/// Stops a step when it is dropped.
#[derive(Debug)]
pub(crate) struct StopOnDrop(Arc<AtomicBool>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Why a built-in step has no outputs.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum BuiltInFault {
    /// The request is at fault.
    #[error("{0}")]
    Invalid(String),
    /// The step is.
    #[error("{0}")]
    Failed(String),
    /// The deadline has passed, or the client has left.
    #[error("its outputs are no longer wanted")]
    Stopped,
}
