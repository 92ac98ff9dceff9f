//! The process that opens a model alone.

use std::{
    fs,
    io::{self, BufReader, Write},
    process::ExitCode,
};

use rustix::process::{Resource, Rlimit, Signal, getppid, set_parent_process_death_signal, setrlimit};

use super::trial::{REASON_MAX_BYTES, REFUSED, Trial};
use crate::{
    engine::{
        Engines, OnnxEngine,
        onnxruntime::{Runtime, RuntimeOptions},
        openvino::{OpenVino, OpenVinoOptions},
    },
    onnx::SealedModel,
    repository::{StageCuts, staging},
};

/// Opens the model that comes on standard input, within the limits that come with it, and ends: with status 0, or with
/// the reason on standard output.
pub fn open_alone() -> ExitCode {
    match open(&mut BufReader::new(io::stdin().lock())) {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            let shown = reason.as_bytes();
            let shown = &shown[..shown.len().min(REASON_MAX_BYTES as usize)];
            // The status says enough where nothing can be written.
            let _ = io::stdout().write_all(shown);
            ExitCode::from(REFUSED as u8)
        }
    }
}

fn open(input: &mut impl io::BufRead) -> Result<(), String> {
    let incomplete = |error: io::Error| format!("the model did not arrive: {error}");
    let trial = Trial::read(input).map_err(incomplete)?;
    limit(&trial).map_err(|error| format!("cannot limit the process that opens it: {error}"))?;
    let (graph, files) = trial.read_files(input).map_err(incomplete)?;
    let model = SealedModel::new(&trial.label, graph, &files).map_err(|error| error.to_string())?;
    let (engine, precision) = trial.engine()?;
    // The limit on the process's address space bounds the engine too.
    let library = trial.library.clone();
    let engines = match engine {
        OnnxEngine::OnnxRuntime => {
            let options = RuntimeOptions { library, threads: 1, max_memory_bytes: 0 };
            Engines::from(Runtime::load(&options))
        }
        OnnxEngine::OpenVino => Engines::from(OpenVino::new(OpenVinoOptions { library, threads: 1 })),
    };
    let compile = |model: &SealedModel| {
        let refused = |error| format!("cannot load '{}': {error}", trial.label);
        engines.compile((engine, precision), model, &[], &[]).map(drop).map_err(refused)
    };
    if trial.cuts == StageCuts::Whole {
        return compile(&model);
    }
    let stages = staging::stage_graphs(model.model(), &trial.cuts, &trial.extra)?;
    stages.into_iter().try_for_each(|stage| compile(&model.part(stage.model)))
}

fn limit(trial: &Trial) -> io::Result<()> {
    let at_most = |limit| Rlimit { current: Some(limit), maximum: Some(limit) };
    set_parent_process_death_signal(Some(Signal::KILL))?;
    let parent = getppid().map(|parent| parent.as_raw_nonzero().get().unsigned_abs());
    // A server that ended before the line above sends no signal.
    if parent != Some(trial.parent) {
        return Err(io::Error::other("the server has ended"));
    }
    setrlimit(Resource::As, at_most(trial.memory_bytes))?;
    // Only where the server's own clock fails: it runs on one thread.
    setrlimit(Resource::Cpu, at_most(trial.seconds.saturating_add(1)))?;
    setrlimit(Resource::Core, at_most(0))?;
    // When memory is short, this process goes first; where that cannot be said, the limit above still holds.
    let _ = fs::write("/proc/self/oom_score_adj", "1000");
    Ok(())
}
