//! The program of Triton's `repeat` backend: one response per element of IN, each after its own delay.

use std::time::Duration;

use paternoster_device::BufferPool;
use paternoster_model::{CellId, DataType, Dims, ModelSpec, Next, RowOutcome, TensorSpec};

use super::MAX_RESPONSES;
use crate::{Batch, BatchInput, BatchOutput, EngineError, Execution, Program, RowDelay, RowFailure};

/// For element i of IN, waits DELAY\[i\] milliseconds and responds with the element as OUT and i as IDX. The request
/// ends no sooner than WAIT milliseconds after it began. Each response is one run, and the row holds no lane between
/// runs. A model that is not decoupled has exactly one response to a request: the first, after its delay.
///
/// Triton's backend starts the next request after WAIT, since an instance runs one request at a time. Here requests
/// wait concurrently, so WAIT only delays the end of its own request.
#[derive(Debug)]
pub struct RepeatElements {
    /// Indices of IN, DELAY and WAIT among the inputs.
    inputs: [usize; 3],
    /// Indices of OUT and IDX among the outputs.
    outputs: [usize; 2],
    /// Whether the model is decoupled.
    decoupled: bool,
}

/// The inputs of a request.
struct Elements<'a> {
    values: &'a [u8],
    delays: &'a [u8],
    wait_ms: u32,
}

/// What one run does for its row.
#[derive(Debug, PartialEq, Eq)]
struct Turn {
    /// The element to respond with, if any.
    responds: Option<u32>,
    /// Delay until the row runs again; `None` if it is done.
    again_ms: Option<u64>,
}

const INPUTS: [(&str, DataType); 3] =
    [("IN", DataType::Int32), ("DELAY", DataType::Uint32), ("WAIT", DataType::Uint32)];
const OUTPUTS: [(&str, DataType); 2] = [("OUT", DataType::Int32), ("IDX", DataType::Uint32)];

impl RepeatElements {
    /// Returns whether a model's inputs have the names of this program's.
    pub fn is_meant(spec: &ModelSpec) -> bool {
        spec.inputs.iter().any(|input| input.name == INPUTS[0].0)
    }

    /// Checks that a model's configuration fits the program.
    ///
    /// # Errors
    /// Fails if the model has other tensors, datatypes or dimensions, or batches.
    pub fn compile(spec: &ModelSpec) -> Result<Self, EngineError> {
        let refused = || {
            EngineError::new(format!(
                "backend 'repeat' of model '{}' expects max_batch_size 0, inputs IN INT32 [-1], DELAY UINT32 of \
                 the same dims and WAIT UINT32 [1], and outputs OUT INT32 [1] and IDX UINT32 [1]",
                spec.name
            ))
        };
        let inputs = INPUTS.map(|port| find(&spec.inputs, port));
        let outputs = OUTPUTS.map(|port| find(&spec.outputs, port));
        let ([Some(values), Some(delays), Some(wait)], [Some(out), Some(idx)]) = (inputs, outputs) else {
            return Err(refused());
        };
        let dims = |at: usize| spec.inputs[at].dims.as_slice();
        let fits = spec.max_batch_size == 0
            && (spec.inputs.len(), spec.outputs.len()) == (INPUTS.len(), OUTPUTS.len())
            && dims(values).len() == 1
            && dims(values) == dims(delays)
            && dims(wait) == [1]
            && [out, idx].iter().all(|&at| spec.outputs[at].dims.as_slice() == [1]);
        let found = Self { inputs: [values, delays, wait], outputs: [out, idx], decoupled: spec.decoupled };
        fits.then_some(found).ok_or_else(refused)
    }

    /// Reads the inputs of a request.
    ///
    /// # Errors
    /// Fails if there are too many elements, or the numbers of elements and delays differ, or there is no element and
    /// the model must give a response.
    fn elements<'a>(&self, batch: &Batch<'a>) -> Result<Elements<'a>, String> {
        let [values, delays, wait] = self.inputs.map(|at| match batch.inputs.get(at) {
            Some(&BatchInput::Dense { data, .. }) => data,
            _ => &[],
        });
        let (count, delay_count) = (values.len() / 4, delays.len() / 4);
        if count != delay_count {
            return Err(format!("expected IN and DELAY shape to match, got [{count}] and [{delay_count}]"));
        }
        if count > MAX_RESPONSES as usize {
            return Err(format!("expected at most {MAX_RESPONSES} elements of IN, got {count}"));
        }
        if count == 0 && !self.decoupled {
            return Err("expected at least 1 element of IN, since the model is not decoupled, got 0".to_owned());
        }
        Ok(Elements { values, delays, wait_ms: four_bytes(wait, 0).map_or(0, u32::from_le_bytes) })
    }
}

impl Elements<'_> {
    fn count(&self) -> u32 {
        (self.values.len() / 4) as u32
    }

    fn delay_ms(&self, element: u32) -> u64 {
        four_bytes(self.delays, element).map_or(0, |bytes| u64::from(u32::from_le_bytes(bytes)))
    }

    /// Returns what is left of WAIT after the delays of all elements.
    fn rest_ms(&self) -> u64 {
        let delayed_ms = (0..self.count()).map(|element| self.delay_ms(element)).sum();
        u64::from(self.wait_ms).saturating_sub(delayed_ms)
    }

    /// Returns what the run with this number, from 0, does. If the first response has a delay, run 0 only starts it.
    fn turn(&self, run: u32) -> Turn {
        let first_ms = if self.count() > 0 { self.delay_ms(0) } else { self.rest_ms() };
        let responds = match run.checked_sub(u32::from(first_ms > 0)) {
            None => return Turn { responds: None, again_ms: Some(first_ms) },
            Some(element) if element >= self.count() => return Turn { responds: None, again_ms: None },
            Some(element) => element,
        };
        let next = responds + 1;
        let again_ms = match self.rest_ms_after(next) {
            0 if next == self.count() => None,
            wait_ms => Some(wait_ms),
        };
        Turn { responds: Some(responds), again_ms }
    }

    /// Returns the delay between the first `done` elements and what follows.
    fn rest_ms_after(&self, done: u32) -> u64 {
        if done < self.count() { self.delay_ms(done) } else { self.rest_ms() }
    }
}

impl Program for RepeatElements {
    fn run(&self, batch: &Batch<'_>) -> Result<Execution, EngineError> {
        let run = batch.steps.first().copied().unwrap_or(0);
        let mut execution = Execution::default();
        let (mut out, mut idx) = ([0; 4], 0_u32);
        let outcome = match self.elements(batch) {
            Err(reason) => {
                execution.failures.push(RowFailure { row: 0, reason });
                RowOutcome { next: Next::Failed, emitted: false }
            }
            Ok(elements) => {
                let mut turn = elements.turn(run);
                if !self.decoupled && turn.responds.is_some() {
                    turn.again_ms = None;
                }
                if let Some(element) = turn.responds {
                    (out, idx) = (four_bytes(elements.values, element).unwrap_or(out), element);
                }
                if let Some(delay_ms) = turn.again_ms.filter(|&delay_ms| delay_ms > 0) {
                    execution.delays.push(RowDelay { row: 0, delay: Duration::from_millis(delay_ms) });
                }
                let next = turn.again_ms.map_or(Next::Done, |_| Next::Skip(CellId(0)));
                RowOutcome { next, emitted: self.decoupled && turn.responds.is_some() }
            }
        };
        execution.outcomes.push(outcome);
        let mut outputs = [(self.outputs[0], out), (self.outputs[1], idx.to_le_bytes())];
        outputs.sort_unstable_by_key(|&(at, _)| at);
        for (_, bytes) in outputs {
            let mut memory = BufferPool::take(batch.buffers, bytes.len())?;
            memory.as_mut_slice().copy_from_slice(&bytes);
            execution.outputs.push(BatchOutput { shape: Dims::from_slice(&[1]), data: memory.freeze() });
        }
        Ok(execution)
    }
}

fn find(tensors: &[TensorSpec], (name, datatype): (&str, DataType)) -> Option<usize> {
    tensors.iter().position(|tensor| tensor.name == name && tensor.datatype == datatype)
}

fn four_bytes(data: &[u8], element: u32) -> Option<[u8; 4]> {
    let start = element as usize * 4;
    data.get(start..start + 4)?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::StopSignal;

    fn spec() -> ModelSpec {
        ModelSpec {
            name: "repeat_int32".to_owned(),
            version: 1,
            max_batch_size: 0,
            inputs: vec![
                TensorSpec::new("IN", DataType::Int32, &[-1]),
                TensorSpec::new("DELAY", DataType::Uint32, &[-1]),
                TensorSpec::new("WAIT", DataType::Uint32, &[1]),
            ],
            outputs: vec![
                TensorSpec::new("OUT", DataType::Int32, &[1]),
                TensorSpec::new("IDX", DataType::Uint32, &[1]),
            ],
            symbols: Vec::new(),
            decoupled: true,
        }
    }

    fn little_endian(values: &[u32]) -> Vec<u8> {
        values.iter().flat_map(|value| value.to_le_bytes()).collect()
    }

    /// Returns the response of each run of a request and the delay after it in milliseconds.
    fn runs(values: &[i32], delays_ms: &[u32], wait_ms: u32) -> Vec<(Option<(i32, u32)>, u64)> {
        let program = RepeatElements::compile(&spec()).expect("it fits");
        let values = little_endian(&values.iter().map(|value| value.cast_unsigned()).collect::<Vec<_>>());
        let (delays, wait) = (little_endian(delays_ms), little_endian(&[wait_ms]));
        let (counts, buffers) = ([values.len() as i64 / 4], BufferPool::new(0));
        let inputs = [
            BatchInput::Dense { shape: &counts, data: &values },
            BatchInput::Dense { shape: &counts, data: &delays },
            BatchInput::Dense { shape: &[1], data: &wait },
        ];
        let mut runs = Vec::new();
        loop {
            let (steps, stop) = ([runs.len() as u32], StopSignal::default());
            let batch =
                Batch { rows: 1, inputs: &inputs, steps: &steps, output_shapes: &[], buffers: &buffers, stop: &stop };
            let execution = program.run(&batch).expect("it runs");
            let of = |output: usize| execution.outputs[output].data[..].try_into().expect("four bytes");
            let RowOutcome { next, emitted } = execution.outcomes[0];
            let response = emitted.then(|| (i32::from_le_bytes(of(0)), u32::from_le_bytes(of(1))));
            runs.push((response, execution.delays.iter().map(|delay| delay.delay.as_millis() as u64).sum()));
            if next == Next::Done {
                return runs;
            }
        }
    }

    #[test]
    fn each_element_is_a_response_after_its_own_delay() {
        assert_eq!(
            runs(&[4, -2, 7], &[10, 0, 30], 0),
            [(None, 10), (Some((4, 0)), 0), (Some((-2, 1)), 30), (Some((7, 2)), 0)]
        );
        assert_eq!(runs(&[5], &[0], 0), [(Some((5, 0)), 0)]);
    }

    #[test]
    fn a_request_ends_no_sooner_than_its_wait() {
        assert_eq!(runs(&[1, 2], &[10, 20], 25), [(None, 10), (Some((1, 0)), 20), (Some((2, 1)), 0)]);
        assert_eq!(runs(&[1, 2], &[10, 20], 100), [(None, 10), (Some((1, 0)), 20), (Some((2, 1)), 70), (None, 0)]);
        assert_eq!(runs(&[1], &[0], 5), [(Some((1, 0)), 5), (None, 0)]);
    }

    #[test]
    fn no_element_means_no_response() {
        assert_eq!(runs(&[], &[], 0), [(None, 0)]);
        assert_eq!(runs(&[], &[], 40), [(None, 40), (None, 0)]);
    }

    #[test]
    fn delays_of_any_size_do_not_overflow() {
        let longest = u64::from(u32::MAX);
        let delays = [u32::MAX; 3];
        let reported: Vec<u64> = runs(&[0; 3], &delays, u32::MAX).into_iter().map(|(_, delay)| delay).collect();
        assert_eq!(reported, [longest, longest, longest, 0]);
    }

    fn refusal(values: usize, delays: usize) -> String {
        let program = RepeatElements::compile(&spec()).expect("it fits");
        let (values, delays, wait) = (vec![0; values * 4], vec![0; delays * 4], vec![0; 4]);
        let inputs = [&values, &delays, &wait].map(|data| BatchInput::Dense { shape: &[], data });
        let (buffers, stop) = (BufferPool::new(0), StopSignal::default());
        let batch = Batch { rows: 1, inputs: &inputs, steps: &[0], output_shapes: &[], buffers: &buffers, stop: &stop };
        let execution = program.run(&batch).expect("the row fails, not the task");
        assert_eq!(execution.outcomes, [RowOutcome { next: Next::Failed, emitted: false }]);
        execution.failures[0].reason.clone()
    }

    #[test]
    fn a_request_needs_a_delay_for_each_element_and_not_too_many_of_them() {
        assert_eq!(refusal(4, 3), "expected IN and DELAY shape to match, got [4] and [3]");
        let many = MAX_RESPONSES as usize + 1;
        assert_eq!(refusal(many, many), format!("expected at most {MAX_RESPONSES} elements of IN, got {many}"));
    }

    #[test]
    fn other_tensors_and_batches_are_refused() {
        let changes: [fn(&mut ModelSpec); 5] = [
            |spec| spec.max_batch_size = 1,
            |spec| spec.inputs[1].datatype = DataType::Int32,
            |spec| spec.inputs[1].dims = Dims::from_slice(&[4]),
            |spec| spec.outputs[1].name = "INDEX".to_owned(),
            |spec| spec.inputs.push(TensorSpec::new("MORE", DataType::Int32, &[1])),
        ];
        for (number, change) in changes.into_iter().enumerate() {
            let mut changed = spec();
            change(&mut changed);
            let refused = RepeatElements::compile(&changed).err();
            assert!(refused.is_some_and(|error| error.message.contains("'repeat_int32'")), "change {number}");
        }
        let mut reordered = spec();
        reordered.inputs.reverse();
        reordered.outputs.reverse();
        assert!(RepeatElements::compile(&reordered).is_ok(), "the order is the configuration's");
    }
}
