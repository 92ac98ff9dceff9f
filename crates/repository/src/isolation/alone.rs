//! The main function of the process that opens an isolated model.

use std::{
    fs,
    io::{self, BufReader, Write},
    sync::Arc,
};

use bytes::Bytes;
use paternoster_config::stages::StageCuts;
use paternoster_engine::{
    Engines, OnnxEngine, Precision, Program,
    onnxruntime::{Runtime, RuntimeOptions},
    openvino::{OpenVino, OpenVinoOptions},
};
use paternoster_onnx::{ExternalFiles, SealedModel};
use rustix::process::{Resource, Rlimit, Signal, getppid, set_parent_process_death_signal, setrlimit};

use super::{
    memory,
    trial::{MemoryReport, REASON_MAX_BYTES, REFUSED, SHORT_OF_MEMORY, Trial},
};
use crate::{LoadError, LoadErrorKind, LoadPlace, staging};

/// Reads a model from standard input, opens it within the limits that come with it, and exits: with status 0 and the
/// memory that it took on standard output, or with a nonzero status and the reason.
pub fn open_alone() -> u8 {
    match open(&mut BufReader::new(io::stdin().lock())) {
        Ok(took) => match serde_json::to_writer(io::stdout(), &took) {
            Ok(()) => 0,
            Err(_) => 1,
        },
        Err(error) => {
            let reason = error.to_string();
            let shown = reason.as_bytes();
            let shown = &shown[..shown.len().min(REASON_MAX_BYTES as usize)];
            // If the write fails, the exit status is still enough for the server.
            let _ = io::stdout().write_all(shown);
            if error.kind() == LoadErrorKind::Limit { SHORT_OF_MEMORY } else { REFUSED }
        }
    }
}

fn open(input: &mut impl io::BufRead) -> Result<MemoryReport, LoadError> {
    let incomplete = |error: io::Error| LoadError::internal(format!("the model could not be received: {error}"));
    let trial = Trial::read(input).map_err(incomplete)?;
    limit(&trial).map_err(|error| LoadError::internal(format!("cannot limit the process that opens it: {error}")))?;
    let (engine, precision) = trial.engine()?;
    // The limit on the address space bounds the engine's memory too.
    let library = trial.library.clone();
    let engines = match engine {
        OnnxEngine::OnnxRuntime => {
            let options = RuntimeOptions { library, threads: 1, lanes: 1, max_memory_bytes: 0 };
            Engines::from(Runtime::load(&options))
        }
        OnnxEngine::OpenVino => Engines::from(OpenVino::new(OpenVinoOptions { library, threads: 1, lanes: 1 })),
    };
    // Loaded before memory is measured.
    engines.path(engine)?;
    let unmeasured = || LoadError::internal("the memory of the process that opens it cannot be read");
    let before = memory::own().ok_or_else(unmeasured)?;
    let programs = compile(&trial, &engines, (engine, precision), trial.read_files(input).map_err(incomplete)?)?;
    // An allocator may still hold some of what was freed, which then counts as kept.
    let after = memory::own().ok_or_else(unmeasured)?;
    drop(programs);
    Ok(MemoryReport {
        peak_bytes: after.peak_bytes.saturating_sub(before.resident_bytes),
        kept_bytes: after.anonymous_bytes.saturating_sub(before.anonymous_bytes),
    })
}

/// Compiles a model, or all its stages, as the server would: the server keeps all of them.
fn compile(
    trial: &Trial,
    engines: &Engines,
    by: (OnnxEngine, Precision),
    (graph, files): (Bytes, ExternalFiles),
) -> Result<Vec<Arc<dyn Program>>, LoadError> {
    let model = SealedModel::new(&trial.label, graph, &files)?;
    let model = model.with_operators(&trial.operators);
    let compile = |model: &SealedModel| {
        let place = LoadPlace::Program(trial.label.clone().into());
        engines.compile(by, model, &[], &[]).map_err(|error| LoadError::from(error).within(place))
    };
    if trial.cuts == StageCuts::Whole {
        return Ok(vec![compile(&model)?]);
    }
    let stages = staging::stage_graphs(model.model(), &trial.cuts, &trial.extra)?;
    stages.into_iter().map(|stage| compile(&model.part(stage.model))).collect()
}

fn limit(trial: &Trial) -> io::Result<()> {
    let at_most = |limit| Rlimit { current: Some(limit), maximum: Some(limit) };
    set_parent_process_death_signal(Some(Signal::KILL))?;
    let parent = getppid().map(|parent| parent.as_raw_nonzero().get().unsigned_abs());
    // If the server ended before the death signal was set, none will come.
    if parent != Some(trial.parent) {
        return Err(io::Error::other("the server has ended"));
    }
    setrlimit(Resource::As, at_most(trial.memory_bytes))?;
    // A second bound in case the server's timer fails. With one thread, CPU time never exceeds the server's wall time.
    setrlimit(Resource::Cpu, at_most(trial.seconds.saturating_add(1)))?;
    setrlimit(Resource::Core, at_most(0))?;
    // Makes this process the OOM killer's first choice. If that fails, the limit on the address space still holds.
    let _ = fs::write("/proc/self/oom_score_adj", "1000");
    Ok(())
}
