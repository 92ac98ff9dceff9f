//! Reads and checks a program's model, and compiles it by the program's engine.

use std::{cell::RefCell, sync::Arc};

use bytes::Bytes;
use paternoster_config::stages::StageRequest;
use paternoster_engine::{Engines, OnnxEngine, Program, ProgramPort, onnxruntime::OnnxProgram};
use paternoster_observe::{budget::Reservation, instructions, machine};
use paternoster_onnx::{ExternalFiles, Port, SealedModel, Signature, decoder};
use paternoster_profile::hexadecimal;
use sha2::{Digest, Sha256};

use super::{
    CellProgram, Isolation, LoadAttempt, LoadError, LoadPlace, StartCache,
    isolation::{MemoryReport, Trying},
    staging,
};

/// Opens and compiles the programs of one load. Where isolation is configured, a separate process opens each program
/// first.
pub(super) struct Opener<'a> {
    engines: &'a Engines,
    isolation: Option<&'a Isolation>,
    attempt: &'a LoadAttempt,
    /// What is reserved for programs that clients sent, and how much of it is needed once they are compiled.
    reserved: RefCell<Vec<(Reservation, usize)>>,
}

impl<'a> Opener<'a> {
    pub(super) fn new(engines: &'a Engines, isolation: Option<&'a Isolation>, attempt: &'a LoadAttempt) -> Self {
        Self { engines, isolation, attempt, reserved: RefCell::default() }
    }

    pub(super) fn engines(&self) -> &'a Engines {
        self.engines
    }

    pub(super) fn attempt(&self) -> &'a LoadAttempt {
        self.attempt
    }

    /// Checks a program's model and finds the files of its weights. `graph` is the content of the program's own file.
    /// For a program that a client sent, reserves the memory that a separate process needed for it, so that the server
    /// never opens what does not fit. A program of the repository that opened in a separate process before, on this
    /// machine and within the same limits, is not opened in one again.
    ///
    /// # Errors
    /// Returns the reason if the engine is missing, the content is not an ONNX model or exceeds a limit, a file of its
    /// weights is outside the allowed directory, the separate process fails, or there is no memory for it.
    pub(super) fn open(
        &self,
        program: &CellProgram,
        graph: Bytes,
        stages: &StageRequest,
    ) -> Result<SealedModel, LoadError> {
        self.attempt.check()?;
        let library = self.engines.path(program.engine)?;
        let is_sent = program.bytes.is_some();
        let mut opened = None;
        // First, so that a model that crashes a parser or an engine never reaches this process.
        if let Some(isolation) = self.isolation.filter(|isolation| isolation.covers(program)) {
            let memory = self.attempt.reservation().filter(|_| is_sent);
            let mut trying = Trying { attempt: self.attempt, memory };
            let entry = isolation
                .cache
                .as_ref()
                .and_then(|cache| TrialEntry::of(cache, self.engines, isolation, program, &graph, stages));
            let took = match entry.as_ref().and_then(TrialEntry::memory) {
                Some(took) => took,
                None => {
                    let took = isolation.try_open(library, program, &graph, stages, &mut trying)?;
                    opened = entry.map(|entry| (entry, took));
                    took
                }
            };
            // Both engines compile a graph for one run and for several at once; the first result stays while the second
            // is made.
            trying.hold(took.peak_bytes.saturating_add(took.kept_bytes))?;
            let kept_bytes = took.kept_bytes.saturating_mul(2);
            self.attempt.add_measured(kept_bytes);
            self.reserved.borrow_mut().extend(trying.memory.map(|memory| (memory, kept_bytes)));
        } else if is_sent {
            let bytes = graph.len().saturating_add(sent_beside(&program.external)).saturating_mul(2);
            let memory = self.attempt.reserve(bytes)?;
            self.reserved.borrow_mut().extend(memory.map(|memory| (memory, bytes)));
        }
        let model = SealedModel::new(&program.file.display().to_string(), graph, &program.external)?
            .with_operators(&program.operators);
        if let Some((entry, took)) = opened
            && model.is_one_file()
        {
            entry.keep(took);
        }
        let model = if program.bytes.is_none() { model.with_file(&program.file) } else { model };
        if !program.takes_texts {
            return Ok(model);
        }
        let refused = |reason| LoadError::graph(reason).within(LoadPlace::Program(program.file.clone()));
        decoder::of_states(model).map_err(refused)
    }

    /// Compiles a program's model, or one stage of it, by the program's engine.
    ///
    /// # Errors
    /// Fails if the engine rejects the model, or the model lacks one of the named tensors.
    pub(super) fn compile(
        &self,
        program: &CellProgram,
        model: &SealedModel,
        inputs: &[ProgramPort<'_>],
        outputs: &[ProgramPort<'_>],
    ) -> Result<Arc<dyn Program>, LoadError> {
        self.attempt.check()?;
        Ok(self.engines.compile((program.engine, program.precision), model, inputs, outputs)?)
    }

    /// Fills in the shapes of outputs that the signature lacks, as far as the program's engine knows them. Returns the
    /// compiled program; `None` if nothing is missing, or if the engine cannot be asked.
    ///
    /// # Errors
    /// Fails if the engine rejects the model.
    pub(super) fn infer_shapes(
        &self,
        program: &CellProgram,
        model: &SealedModel,
        signature: &mut Signature,
    ) -> Result<Option<Arc<dyn Program>>, LoadError> {
        self.attempt.check()?;
        let lacks = |port: &&mut Port| port.dims.is_none() && port.datatype.is_some();
        let mut missing = signature.outputs.iter_mut().filter(lacks).peekable();
        if program.engine != OnnxEngine::OnnxRuntime || missing.peek().is_none() {
            return Ok(None);
        }
        let compiled = OnnxProgram::compile_sealed(self.engines.runtime()?, model, &[], &[])?;
        for port in missing {
            port.dims = compiled.output_dims(&port.name);
        }
        Ok(Some(Arc::new(compiled)))
    }

    /// Keeps reserved what the compiled programs need, and gives back the rest.
    pub(super) fn settle(self) {
        let attempt = self.attempt;
        attempt.keep(self.settled());
    }

    /// Returns what is reserved for the compiled programs, and gives back the rest.
    pub(super) fn settled(self) -> Vec<Reservation> {
        let kept = self.reserved.into_inner().into_iter().map(|(mut memory, kept_bytes)| {
            memory.shrink_to(kept_bytes);
            memory
        });
        kept.collect()
    }
}

/// The entry of a program in the cache directory: that it opened in a separate process, and the memory that this took.
struct TrialEntry<'a> {
    cache: &'a StartCache,
    key: String,
}

impl<'a> TrialEntry<'a> {
    /// `None` for a program that is opened in a separate process each time: one that a client sent, or one with
    /// libraries of operators, which may do anything.
    fn of(
        cache: &'a StartCache,
        engines: &Engines,
        isolation: &Isolation,
        program: &CellProgram,
        graph: &[u8],
        stages: &StageRequest,
    ) -> Option<Self> {
        if program.bytes.is_some() || !program.operators.is_empty() {
            return None;
        }
        let engine = engines.describe(program.engine, program.precision).ok()?;
        let library = cache.library(engines.path(program.engine).ok()?).ok()?;
        let cuts = (&stages.cuts, staging::exit_tensors(stages));
        let limits = (isolation.memory_bytes, isolation.time.as_secs());
        let content = hexadecimal(&Sha256::digest(graph));
        let on = (env!("CARGO_PKG_VERSION"), engine, library, machine(), instructions());
        Some(Self { cache, key: serde_json::to_string(&(content, cuts, limits, on)).ok()? })
    }

    fn memory(&self) -> Option<MemoryReport> {
        self.cache.opened(&self.key)
    }

    fn keep(&self, took: MemoryReport) {
        self.cache.keep_opened(&self.key, took);
    }
}

/// Returns the bytes of the files that a load request has beside a program.
fn sent_beside(files: &ExternalFiles) -> usize {
    match files {
        ExternalFiles::Given(files) => files.values().map(Bytes::len).sum(),
        ExternalFiles::None | ExternalFiles::Beside { .. } => 0,
    }
}
