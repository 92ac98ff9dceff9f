//! Measures the programs of a version with every CPU engine, side by side.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use paternoster_batching::Ns;
use paternoster_config::stages::StageRequest;
use paternoster_device::BufferPool;
use paternoster_engine::{Batch, BatchInput, BatchOutput, OnnxEngine, Precision, Program, ProgramPort, StopSignal};
use paternoster_model::{DataType, InputTensor, ModelSpec};
use paternoster_onnx::{SealedModel, Signature};
use paternoster_profile::{EnginePoint, EngineTable, EngineTimes, Halt, MeasuredSize, row_buckets};

use super::{
    CellProgram, LoadAttempt, LoadError, Opening, PoolLoader, ResolvedVersion, cells::CellGraph, opening::Opener,
    plans::Batches, warmup,
};

/// Largest batch to compare, and the lengths of padded axes.
const MOST_ROWS: u32 = 64;
const LENGTHS: [u32; 2] = [16, 64];

/// One program to compare.
struct Subject {
    /// Name of its cell, for a model of cells.
    cell: Option<String>,
    program: CellProgram,
    model: SealedModel,
    spec: ModelSpec,
    /// Where the graph has the batch, if that is not axis 0 in all tensors.
    batches: Option<Batches>,
    sizes: Vec<MeasuredSize>,
}

/// An engine with its precision, the program that it compiled, and the times of its runs.
struct Candidate {
    engine: OnnxEngine,
    precision: Precision,
    program: Result<Arc<dyn Program>, LoadError>,
    points: Vec<EnginePoint>,
}

impl PoolLoader {
    /// Measures the programs of a version with ONNX Runtime and OpenVINO, and with OpenVINO in BF16 and FP16 where the
    /// processor supports them.
    ///
    /// All candidates run the same requests in alternating rounds, one run at a time, outside the lanes. `sizes`
    /// defaults to powers of two; `budget` is shared by all sizes. `before_size` is called with the cell, or "whole",
    /// before each size.
    ///
    /// # Errors
    /// Fails if a program cannot be read, or if ONNX Runtime, the baseline, cannot run it.
    pub fn compare_engines(
        &self,
        resolved: &ResolvedVersion,
        sizes: &[MeasuredSize],
        budget: Duration,
        before_size: &dyn Fn(&str, MeasuredSize),
    ) -> Result<Vec<EngineTable>, Halt> {
        let attempt = LoadAttempt::of_repository();
        let opener = self.opener(&attempt);
        let mut subjects = subjects(&opener, resolved)?;
        if !sizes.is_empty() {
            subjects.iter_mut().for_each(|subject| sizes.clone_into(&mut subject.sizes));
        }
        let count: usize = subjects.iter().map(|subject| subject.sizes.len()).sum();
        let share = budget / u32::try_from(count.max(1)).unwrap_or(u32::MAX);
        subjects.iter().map(|subject| self.compare(&opener, subject, share, before_size)).collect()
    }

    fn compare(
        &self,
        opener: &Opener<'_>,
        subject: &Subject,
        share: Duration,
        before_size: &dyn Fn(&str, MeasuredSize),
    ) -> Result<EngineTable, Halt> {
        let mut candidates = vec![(OnnxEngine::OnnxRuntime, Precision::Ieee), (OnnxEngine::OpenVino, Precision::Ieee)];
        for (precision, capability) in [(Precision::Bf16, "BF16"), (Precision::Fp16, "FP16")] {
            if self.engines.openvino.computes_in(capability).unwrap_or(false) {
                candidates.push((OnnxEngine::OpenVino, precision));
            }
        }
        let candidate = |(engine, precision)| {
            let by = CellProgram { engine, precision, ..subject.program.clone() };
            let inputs: Vec<_> = subject.spec.inputs.iter().map(ProgramPort::from).collect();
            let outputs: Vec<_> = subject.spec.outputs.iter().map(ProgramPort::from).collect();
            let program = opener.compile(&by, &subject.model, &inputs, &outputs);
            let spec = &subject.spec;
            let program = program.map(|program| match &subject.batches {
                Some(batches) => batches.by_rows(program, &spec.inputs, &spec.outputs),
                None => program,
            });
            Candidate { engine, precision, program, points: Vec::new() }
        };
        let mut candidates: Vec<Candidate> = candidates.into_iter().map(candidate).collect();
        for &size in &subject.sizes {
            before_size(subject.cell.as_deref().unwrap_or("whole"), size);
            let inputs = warmup::random_inputs(&subject.spec, size)?;
            measure(&mut candidates, subject, size, &inputs, share)?;
        }
        let engines = candidates.into_iter().map(|own| EngineTimes {
            engine: own.engine.to_string(),
            precision: own.precision.to_string(),
            refused: own.program.err().map(|error| error.to_string()),
            points: own.points,
        });
        Ok(EngineTable { cell: subject.cell.clone(), engines: engines.collect() })
    }
}

/// Returns the programs of a version: one, or those of its cells.
fn subjects(opener: &Opener<'_>, resolved: &ResolvedVersion) -> Result<Vec<Subject>, LoadError> {
    if matches!(resolved.opening, Opening::Decoder(_)) {
        let reason = "a decoder runs in parts, a stage for the prompt and a loop for the tokens, which onnxruntime \
                      alone can run: there is nothing to compare";
        return Err(LoadError::settings(reason));
    }
    let open = |program: &CellProgram| opener.open(program, program.read()?, &StageRequest::default());
    let Some(unfold) = &resolved.unfold else {
        let (program, spec) = (resolved.program.clone(), resolved.spec.clone());
        let lengths = if spec.symbols.is_empty() { &[0][..] } else { &LENGTHS };
        let sizes = sizes(spec.max_batch_size, lengths);
        return Ok(vec![Subject { cell: None, model: open(&program)?, program, spec, batches: None, sizes }]);
    };
    let cells = unfold.cells.iter().zip(&resolved.cells).map(|(cell, program)| {
        let signature = Signature::from_bytes(&program.file.display().to_string(), &program.read()?);
        let graph = CellGraph::new(&signature?, &cell.tensors)?;
        let (batches, ports) = (graph.batches(), graph.ports);
        let (inputs, outputs) = (ports.inputs, ports.outputs);
        let (max_batch_size, symbols) = (cell.max_rows(), Vec::new());
        let spec = ModelSpec { max_batch_size, inputs, outputs, symbols, ..resolved.spec.clone() };
        let (sizes, cell) = (sizes(max_batch_size, &[0]), Some(cell.name.clone()));
        Ok(Subject { cell, model: open(program)?, program: program.clone(), spec, batches, sizes })
    });
    cells.collect()
}

fn sizes(max_rows: u32, lengths: &[u32]) -> Vec<MeasuredSize> {
    let rows = row_buckets(max_rows.min(MOST_ROWS));
    rows.iter().flat_map(|&rows| lengths.iter().map(move |&length| MeasuredSize { rows, length })).collect()
}

/// Runs one size with every candidate in turn until `share` is used up, at least three times. A candidate that fails is
/// excluded.
fn measure(
    candidates: &mut [Candidate],
    subject: &Subject,
    size: MeasuredSize,
    inputs: &[Option<InputTensor>],
    share: Duration,
) -> Result<(), Halt> {
    const LEAST_ROUNDS: usize = 3;
    let mut expected: Option<Vec<BatchOutput>> = None;
    let mut deviations = vec![0.0; candidates.len()];
    for (own, deviation) in candidates.iter_mut().zip(&mut deviations) {
        let Ok(program) = &own.program else { continue };
        // The first run of a size allocates and tunes; it is not timed, and its outputs give the deviation.
        match run(&**program, subject, size, inputs) {
            Ok(outputs) => match &expected {
                None => expected = Some(outputs),
                Some(expected) => *deviation = deviation_of(subject, &outputs, expected),
            },
            Err(reason) => own.program = Err(reason),
        }
        if let (None, Err(reason)) = (&expected, &own.program) {
            return Err(reason.clone().into());
        }
    }
    let mut took: Vec<Vec<Ns>> = vec![Vec::new(); candidates.len()];
    let began = Instant::now();
    // In turn rather than one after another, so that a change of the machine's speed affects all candidates alike.
    while began.elapsed() < share || took[0].len() < LEAST_ROUNDS {
        for (own, took) in candidates.iter_mut().zip(&mut took) {
            let Ok(program) = &own.program else { continue };
            let begins = Instant::now();
            match run(&**program, subject, size, inputs) {
                Ok(_) => took.push(Ns::try_from(begins.elapsed().as_nanos()).unwrap_or(Ns::MAX)),
                Err(reason) => own.program = Err(reason),
            }
        }
        if let Err(reason) = &candidates[0].program {
            return Err(reason.clone().into());
        }
    }
    for ((own, mut took), deviation) in candidates.iter_mut().zip(took).zip(deviations) {
        if own.program.is_err() {
            own.points.clear();
            continue;
        }
        took.sort_unstable();
        let (MeasuredSize { rows, length }, runs) = (size, u32::try_from(took.len()).unwrap_or(u32::MAX));
        let median_ns = took.get(took.len() / 2).copied().unwrap_or_default();
        own.points.push(EnginePoint { rows, length, median_ns, runs, deviation });
    }
    Ok(())
}

fn run(
    program: &dyn Program,
    subject: &Subject,
    size: MeasuredSize,
    inputs: &[Option<InputTensor>],
) -> Result<Vec<BatchOutput>, LoadError> {
    let given = inputs.iter().map(|input| match input {
        Some(InputTensor { shape, data }) => BatchInput::Dense { shape, data },
        None => BatchInput::Absent,
    });
    let given: Vec<BatchInput<'_>> = given.collect();
    let (buffers, stop, steps) = (BufferPool::new(0), StopSignal::default(), vec![0; size.rows as usize]);
    let output_shapes = vec![None; subject.spec.outputs.len()];
    let batch = Batch {
        rows: size.rows,
        inputs: &given,
        steps: &steps,
        output_shapes: &output_shapes,
        buffers: &buffers,
        stop: &stop,
    };
    Ok(program.run(&batch)?.outputs)
}

/// Returns the largest difference between FP32 outputs, as a share of the largest expected value of that output. An
/// output of another datatype or shape counts as 0 if equal and as 1 otherwise.
fn deviation_of(subject: &Subject, given: &[BatchOutput], expected: &[BatchOutput]) -> f64 {
    let numbers = |output: &BatchOutput| -> Vec<f64> {
        output
            .data
            .chunks_exact(4)
            .map(|bytes| f64::from(f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])))
            .collect()
    };
    let outputs = subject.spec.outputs.iter().zip(given.iter().zip(expected));
    let far = outputs.map(|(tensor, (given, expected))| {
        if tensor.datatype != DataType::Fp32 || given.shape != expected.shape {
            return if given.data == expected.data { 0.0 } else { 1.0 };
        }
        let (given, expected) = (numbers(given), numbers(expected));
        let largest = expected.iter().fold(f64::MIN_POSITIVE, |most, number| most.max(number.abs()));
        given.iter().zip(&expected).fold(0.0_f64, |most, (one, other)| most.max((one - other).abs())) / largest
    });
    far.fold(0.0, f64::max)
}
