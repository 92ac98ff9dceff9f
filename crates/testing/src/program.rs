//! Programs for tests, each made of a function that runs a batch, and what such functions have in common.

use std::thread;

use crossbeam_channel::{Receiver, Sender, unbounded};
use paternoster_device::BufferPool;
use paternoster_engine::{Batch, BatchInput, BatchOutput, EngineError, Execution, Program};
use paternoster_model::Dims;

/// The result of a run.
pub type RunResult = Result<Execution, EngineError>;

type Run = dyn Fn(&Batch<'_>) -> RunResult + Send + Sync;

/// A program that runs a function.
pub struct FakeProgram {
    run: Box<Run>,
    is_steady: bool,
    origin: Option<[u8; 32]>,
}

impl FakeProgram {
    /// Creates a program that runs this function.
    pub fn new(run: impl Fn(&Batch<'_>) -> RunResult + Send + Sync + 'static) -> Self {
        Self { run: Box::new(run), is_steady: false, origin: None }
    }

    /// Creates a program that returns its first input.
    pub fn identity() -> Self {
        Self::new(identity)
    }

    /// Creates a program whose runs all fail.
    pub fn failing(reason: &'static str) -> Self {
        Self::new(move |_| Err(EngineError::new(reason)))
    }

    /// Makes the program say that the work of a run depends only on the shapes of its inputs.
    pub fn steady(self) -> Self {
        Self { is_steady: true, ..self }
    }

    /// Gives the program the hash of what it was compiled from.
    pub fn with_origin(self, origin: Option<[u8; 32]>) -> Self {
        Self { origin, ..self }
    }

    /// Puts the program behind a gate, at which every run waits.
    pub fn gated(self) -> (Self, Gate) {
        self.gated_if(|_| true)
    }

    /// Puts the program behind a gate that reports every run, and at which those wait for which `waits` holds.
    pub fn gated_if(self, waits: impl Fn(&Batch<'_>) -> bool + Send + Sync + 'static) -> (Self, Gate) {
        let (began, begun) = unbounded();
        let (release, go_on) = unbounded();
        let behind = self.run;
        let run: Box<Run> = Box::new(move |batch| {
            // The test may have ended.
            let _ = began.send(batch.rows);
            if waits(batch) {
                let _ = go_on.recv();
            }
            behind(batch)
        });
        (Self { run, ..self }, Gate { begun, release })
    }
}

impl Program for FakeProgram {
    fn run(&self, batch: &Batch<'_>) -> RunResult {
        (self.run)(batch)
    }

    fn is_steady(&self) -> bool {
        self.is_steady
    }

    fn origin(&self) -> Option<[u8; 32]> {
        self.origin
    }
}

/// A test's ends of the gate before a program. Dropping it opens the gate.
#[derive(Debug)]
pub struct Gate {
    begun: Receiver<u32>,
    release: Sender<()>,
}

impl Gate {
    /// Waits for a run to begin, and returns its rows.
    ///
    /// # Panics
    /// If the program is gone.
    pub fn await_run(&self) -> u32 {
        self.begun.recv().expect("a run begins")
    }

    /// Returns the rows of the runs that have begun, except those that the test has waited for.
    pub fn begun(&self) -> Vec<u32> {
        self.begun.try_iter().collect()
    }

    /// Lets that many runs pass the gate, at once or as they arrive.
    ///
    /// # Panics
    /// If the program is gone.
    pub fn let_pass(&self, runs: usize) {
        for _ in 0..runs {
            self.release.send(()).expect("the program lives");
        }
    }
}

/// Returns the shape and the bytes of an input.
///
/// # Panics
/// If it is absent or has strings.
pub fn dense<'a>(input: &BatchInput<'a>) -> (&'a [i64], &'a [u8]) {
    match *input {
        BatchInput::Dense { shape, data } => (shape, data),
        _ => panic!("expected a dense input"),
    }
}

/// Returns the values of an FP32 input.
///
/// # Panics
/// If it is absent or has strings.
pub fn floats(input: &BatchInput<'_>) -> Vec<f32> {
    dense(input).1.as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect()
}

/// Returns outputs of these shapes and bytes, in memory of the pool.
///
/// # Errors
/// Fails if there is no memory.
pub fn execution(batch: &Batch<'_>, outputs: &[(&[i64], &[u8])]) -> RunResult {
    let outputs = outputs.iter().map(|(shape, data)| {
        let mut memory = BufferPool::take(batch.buffers, data.len())?;
        memory.as_mut_slice().copy_from_slice(data);
        Ok(BatchOutput { shape: Dims::from_slice(shape), data: memory.freeze() })
    });
    Ok(Execution { outputs: outputs.collect::<Result<_, EngineError>>()?, ..Execution::default() })
}

/// Returns one FP32 output in the shape of the first input.
///
/// # Errors
/// As [`execution`].
pub fn like_input(batch: &Batch<'_>, values: impl IntoIterator<Item = f32>) -> RunResult {
    let data: Vec<u8> = values.into_iter().flat_map(f32::to_le_bytes).collect();
    execution(batch, &[(dense(&batch.inputs[0]).0, &data)])
}

/// Returns the first input.
///
/// # Errors
/// As [`execution`].
pub fn identity(batch: &Batch<'_>) -> RunResult {
    execution(batch, &[dense(&batch.inputs[0])])
}

/// Runs until the run is asked to stop.
///
/// # Errors
/// Fails always.
pub fn until_stopped(batch: &Batch<'_>) -> RunResult {
    while !batch.stop.is_raised() {
        thread::yield_now();
    }
    Err(EngineError::new("stopped"))
}
