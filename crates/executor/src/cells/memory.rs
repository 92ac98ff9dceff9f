//! Memory for what requests keep between their tasks in host memory, and for their rows while they run. A request
//! boards only with it, so that it exists only after it was counted.

use std::sync::Arc;

use parking_lot::Mutex;
use paternoster_batching::StateMemory;
use paternoster_model::{
    TensorSpec,
    unfold::{CellInputSource, EmitRange, Segment, Tensor, Unfolded},
};
use paternoster_observe::budget::{Budget, Exhausted, Reservation};
use smallvec::SmallVec;

use super::{
    CellPrograms, Row,
    plan::{MAX_CHUNK_BYTES, is_of_steps},
};

/// How often a row that a run reads is in memory: gathered, and moved and joined by the program.
const RUN_COPIES: usize = 3;

/// Estimated bytes of an element of strings.
const STRING_BYTES: usize = 16;

/// The bytes that the state of all requests of a pool may take.
#[derive(Debug)]
pub(crate) struct StateBudget {
    /// The bytes of all pending requests, of which state is a part.
    pending: Arc<Budget>,
    /// Half of them, so that decoders leave room for others.
    states: Arc<Budget>,
}

/// The bytes of one request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct StateBytes {
    /// Those that it keeps between its tasks.
    pub(crate) kept: usize,
    /// Those of its rows in a task.
    pub(crate) run: usize,
}

/// The memory of one request. It is given back when nothing of the request is left.
#[derive(Debug)]
pub(crate) struct UnfoldedMemory {
    budget: Arc<StateBudget>,
    boards_with: usize,
    held: Mutex<Held>,
}

#[derive(Debug)]
struct Held {
    /// Of pending requests.
    pending: Reservation,
    /// The same bytes, of those for state.
    states: Reservation,
    /// Bytes that may be kept without more memory.
    planned: usize,
    /// Bytes that are kept.
    kept: usize,
}

impl StateBudget {
    pub(crate) fn new(pending: &Arc<Budget>) -> Arc<Self> {
        let states = Budget::of(pending.capacity() / 2);
        Arc::new(Self { pending: Arc::clone(pending), states })
    }

    /// Returns the bytes of pending requests that state is a part of.
    pub(crate) fn pending(&self) -> &Arc<Budget> {
        &self.pending
    }

    /// Returns the memory of a request, which is taken from `pending`, but only as it boards.
    ///
    /// # Errors
    /// If the request can never have so much.
    pub(crate) fn memory(
        self: &Arc<Self>,
        pending: Reservation,
        bytes: StateBytes,
    ) -> Result<Arc<UnfoldedMemory>, Exhausted> {
        let boards_with = bytes.kept.saturating_add(bytes.run);
        let (capacity, held) = (self.states.capacity(), self.states.used());
        if boards_with > capacity {
            self.pending.count_refusal();
            return Err(Exhausted { wanted: boards_with, held, capacity, largest: capacity });
        }
        if let Some(full) = pending.refusal(boards_with) {
            return Err(full);
        }
        let states = Reservation::none(&self.states);
        let held = Mutex::new(Held { pending, states, planned: bytes.kept, kept: 0 });
        Ok(Arc::new(UnfoldedMemory { budget: Arc::clone(self), boards_with, held }))
    }

    /// Whether a request may take `more` although pending requests have no room for it. Requests that wait for their
    /// turn may hold all of that, and would wait for ever.
    fn goes_first(&self, more: usize) -> bool {
        let (held, half) = (self.states.used(), self.states.capacity() / 2);
        held == 0 || held.saturating_add(more) <= half
    }
}

impl UnfoldedMemory {
    /// Returns bytes of pending requests, none yet, for padding that a run of the request adds.
    pub(crate) fn for_padding(&self) -> Reservation {
        Reservation::none(&self.budget.pending)
    }

    /// Counts that `after` bytes are kept in place of `before`, and takes what that exceeds the plan by.
    ///
    /// # Errors
    /// If there is no room for it.
    pub(super) fn keep(&self, before: usize, after: usize) -> Result<(), Exhausted> {
        let held = &mut *self.held.lock();
        let kept = (held.kept + after).saturating_sub(before);
        if let Some(more) = kept.checked_sub(held.planned).filter(|more| *more > 0) {
            held.pending.grow_now(more)?;
            if let Err(full) = held.states.grow_now(more) {
                held.pending.shrink_to(held.pending.amount() - more);
                return Err(full);
            }
            held.planned = kept;
        }
        held.kept = kept;
        Ok(())
    }

    #[cfg(test)]
    pub(crate) fn kept(&self) -> usize {
        self.held.lock().kept
    }
}

impl StateMemory for UnfoldedMemory {
    fn fits(&self) -> bool {
        let held = self.held.lock();
        let more = self.boards_with.saturating_sub(held.states.amount());
        held.states.fits(more) && (held.pending.fits(more) || self.budget.goes_first(more))
    }

    fn take(&self) -> bool {
        let held = &mut *self.held.lock();
        let more = self.boards_with.saturating_sub(held.states.amount());
        let goes_first = self.budget.goes_first(more);
        if !held.states.try_grow(more) {
            return false;
        }
        if !held.pending.try_grow(more) {
            if !goes_first {
                held.states.shrink_to(held.states.amount() - more);
                return false;
            }
            held.pending.grow_anyway(more);
        }
        true
    }
}

impl CellPrograms {
    /// Returns the bytes of host memory that a request takes at most which unfolds into `graph`, and whose inputs have
    /// these lengths along their first axis. A length that only a run shows counts as that of the longest tensor that
    /// the segment reads.
    pub(crate) fn state_bytes(&self, graph: &[Unfolded], input_length: impl Fn(usize) -> usize) -> StateBytes {
        let mut all = StateBytes::default();
        let segments = &self.unfolding.segments;
        // By segment: the longest tensor that it reads.
        let mut longest: SmallVec<[usize; 4]> = SmallVec::new();
        for ((segment, unfolded), keeps) in segments.iter().zip(graph).zip(&self.keeps) {
            let length = |tensor: Tensor| match tensor {
                Tensor::Input(input) => input_length(input),
                Tensor::Emitted(own) => match segments[own.segment].emits[own.emit].which {
                    EmitRange::All => graph[own.segment].nodes() as usize,
                    EmitRange::Last => longest[own.segment],
                },
            };
            let read = segment.sources().filter_map(whole_tensor).map(length).max().unwrap_or(1).max(1);
            let nodes = unfolded.nodes() as usize;
            let is_tree = matches!(unfolded, Unfolded::Tree(_));
            let rows = if segment.types[0].goes_over_rows() { read } else { 1 };
            let outputs = &self.unfolding.cells[segment.types[0].cell].outputs;
            for keep in keeps {
                let spec = &outputs[keep.outputs[0]];
                let skipped = usize::from(is_of_steps(segment, keep.outputs[0]));
                let row = row_bytes(spec, skipped, read).saturating_mul(rows);
                let nodes = if is_tree || keep.all { nodes } else { 1 };
                // What is put into another order is there twice.
                let copies = 1 + usize::from(keep.all && (is_tree || segment.runs_backwards()));
                let place = if is_tree { size_of::<Option<Row>>() } else { 0 };
                all.kept =
                    all.kept.saturating_add(row.saturating_mul(copies).saturating_add(place).saturating_mul(nodes));
            }
            all.run = all.run.max(self.run_bytes(segment, nodes, read, is_tree));
            longest.push(read);
        }
        all
    }

    /// Returns the bytes of a request's rows in a task of a segment, whose tensors are at most so long.
    fn run_bytes(&self, segment: &Segment, nodes: usize, longest: usize, is_tree: bool) -> usize {
        let of_type = segment.types.iter().map(|own| {
            let cell = &self.unfolding.cells[own.cell];
            let input = |(spec, source): (&TensorSpec, &CellInputSource)| {
                let length = if matches!(source, CellInputSource::Grown { .. }) { nodes } else { longest };
                row_bytes(spec, 0, length)
            };
            let inputs = cell.inputs.iter().zip(&own.inputs).map(input).fold(0, usize::saturating_add);
            let outputs = cell.outputs.iter().map(|spec| row_bytes(spec, 0, longest)).fold(0, usize::saturating_add);
            let row = inputs.saturating_mul(RUN_COPIES).saturating_add(outputs);
            let rows = match (is_tree, own.goes_over_rows()) {
                (true, _) => nodes.min(cell.max_rows as usize),
                (false, true) => longest,
                (false, false) => 1,
            };
            row.saturating_mul(rows)
        });
        let most = of_type.max().unwrap_or(0);
        if segment.runs_chunks() { most.min(RUN_COPIES * MAX_CHUNK_BYTES) } else { most }
    }
}

/// Returns the tensor that decides how long a node's input is.
fn whole_tensor(source: &CellInputSource) -> Option<Tensor> {
    match source {
        CellInputSource::Step { of, .. } | CellInputSource::Whole(of) | CellInputSource::Rows(of) => Some(*of),
        _ => None,
    }
}

/// Returns the bytes of a row of a tensor without its first axes. The first length that is not known is `unknown`.
fn row_bytes(spec: &TensorSpec, skipped: usize, unknown: usize) -> usize {
    let dims = spec.dims.get(skipped..).unwrap_or_default();
    let mut unknown = Some(unknown);
    let length = |dim: &i64| usize::try_from(*dim).ok().or_else(|| unknown.take()).unwrap_or(1);
    let elements = dims.iter().map(length).fold(1, usize::saturating_mul);
    elements.saturating_mul(spec.datatype.size_bytes().unwrap_or(STRING_BYTES))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MB: usize = 1 << 20;

    fn memory(states: &Arc<StateBudget>, kept: usize, run: usize) -> Arc<UnfoldedMemory> {
        let pending = Reservation::none(states.pending());
        states.memory(pending, StateBytes { kept, run }).expect("it can fit")
    }

    #[test]
    fn states_take_at_most_half_and_leave_it_with_their_requests() {
        let budget = Budget::of(16 * MB);
        let states = StateBudget::new(&budget);
        let (one, two) = (memory(&states, 3 * MB, 2 * MB), memory(&states, 2 * MB, 2 * MB));
        assert!(one.fits() && one.take() && one.take(), "it is taken once");
        assert_eq!(budget.used(), 5 * MB);
        assert!(!two.fits() && !two.take(), "nine of sixteen");
        assert_eq!(budget.used(), 5 * MB);
        drop(one);
        assert!(two.fits() && two.take());
        assert_eq!(budget.used(), 4 * MB);
    }

    #[test]
    fn what_can_never_fit_is_refused() {
        let budget = Budget::of(16 * MB);
        let states = StateBudget::new(&budget);
        let of = |pending, kept| states.memory(pending, StateBytes { kept, run: MB }).map(|_| ());
        assert!(of(Reservation::none(&budget), 7 * MB).is_ok());
        assert!(of(Reservation::none(&budget), 7 * MB + 1).is_err_and(|full| full.never_fits()), "more than half");
        assert!(of(Reservation::none(&budget), usize::MAX).is_err_and(|full| full.never_fits()));
        let share = Budget::share_of(&budget);
        let refused = of(Reservation::none(&share), 4 * MB);
        assert!(refused.is_err_and(|full| full.never_fits()), "a connection has a quarter");
    }

    #[test]
    fn requests_that_wait_and_hold_all_bytes_do_not_keep_others_from_boarding() {
        let budget = Budget::of(16 * MB);
        let mut messages = Reservation::none(&budget);
        assert!(messages.try_grow(16 * MB));
        let states = StateBudget::new(&budget);
        let [one, two, three] = [3, 1, 1].map(|mb| memory(&states, mb * MB, 0));
        assert!(one.take() && two.fits() && two.take(), "a quarter");
        assert!(!three.fits() && !three.take());
        assert_eq!(budget.used(), 20 * MB);
        messages.shrink_to(11 * MB);
        assert!(three.fits() && three.take(), "there is room for it");
        drop((one, two, three));
        let large = memory(&states, 8 * MB, 0);
        assert!(large.take(), "nothing else is kept");
    }

    #[test]
    fn what_exceeds_the_plan_is_taken_as_it_is_kept() {
        let budget = Budget::of(16 * MB);
        let states = StateBudget::new(&budget);
        let one = memory(&states, 2 * MB, MB);
        assert!(one.take());
        assert_eq!((one.keep(0, 2 * MB), budget.used()), (Ok(()), 3 * MB));
        assert_eq!((one.keep(2 * MB, 4 * MB), budget.used()), (Ok(()), 5 * MB));
        assert_eq!((one.keep(4 * MB, 3 * MB), one.keep(0, MB), budget.used()), (Ok(()), Ok(()), 5 * MB));
        assert!(one.keep(0, 4 * MB).is_err(), "nine of eight");
        assert_eq!((one.kept(), budget.used()), (4 * MB, 5 * MB));
    }
}
