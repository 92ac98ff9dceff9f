//! What the server sends to the process that opens a model: one line of JSON, then the graph and the files beside it.

use std::{
    collections::BTreeMap,
    io::{self, BufRead, Read, Write},
    path::{Path, PathBuf},
    process,
};

use bytes::Bytes;
use paternoster_config::stages::{StageCuts, StageRequest};
use paternoster_engine::{OnnxEngine, Precision};
use paternoster_onnx::ExternalFiles;
use serde::{Deserialize, Serialize};

use super::Isolation;
use crate::{CellProgram, LoadError, staging};

/// Exit status of a process that rejects a model and writes the reason.
pub(super) const REFUSED: u8 = 3;
/// Exit status of a process whose engine has too little memory for a model, and which writes the reason.
pub(super) const SHORT_OF_MEMORY: u8 = 4;
/// Most bytes of a reason.
pub(super) const REASON_MAX_BYTES: u64 = 64 << 10;
/// Most bytes of the line, which holds names of files and tensors.
const LINE_MAX_BYTES: u64 = 64 << 20;

/// The memory that opening a model took, in bytes. What the process has without the model does not count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct MemoryReport {
    /// Most of it at once.
    pub peak_bytes: usize,
    /// What the compiled model keeps.
    pub kept_bytes: usize,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Trial {
    /// The model's file, as errors name it.
    pub label: String,
    /// The engine's library; `None` if it is found on the system's search path, which the child searches as the server
    /// did.
    pub library: Option<PathBuf>,
    /// Names of the engine and of its precision.
    engine: String,
    precision: String,
    /// Process id of the server.
    pub parent: u32,
    pub memory_bytes: u64,
    pub seconds: u64,
    pub cuts: StageCuts,
    /// Tensors that stages output in addition to those that later stages read.
    pub extra: Vec<String>,
    /// Libraries of custom operators.
    pub operators: Vec<PathBuf>,
    graph_bytes: u64,
    external: External,
}

#[derive(Debug, Serialize, Deserialize)]
enum External {
    None,
    Beside {
        directory: PathBuf,
        within: PathBuf,
    },
    /// Locations and lengths in bytes, in the order in which the files follow the graph.
    Given(Vec<(String, u64)>),
}

impl Trial {
    /// Returns the trial of a program, and the byte strings to send after its line.
    pub(super) fn new<'a>(
        isolation: &Isolation,
        library: &Path,
        program: &'a CellProgram,
        graph: &'a [u8],
        stages: &StageRequest,
    ) -> io::Result<(Self, Vec<&'a [u8]>)> {
        let mut parts = vec![graph];
        let external = match &program.external {
            ExternalFiles::None => External::None,
            ExternalFiles::Beside { directory, within } => {
                External::Beside { directory: directory.canonicalize()?, within: within.canonicalize()? }
            }
            ExternalFiles::Given(files) => {
                parts.extend(files.values().map(|file| &file[..]));
                External::Given(files.iter().map(|(name, file)| (name.clone(), file.len() as u64)).collect())
            }
        };
        let is_bare = library.parent().is_none_or(|parent| parent.as_os_str().is_empty());
        let trial = Self {
            label: program.file.display().to_string(),
            library: if is_bare { None } else { Some(library.canonicalize()?) },
            engine: program.engine.to_string(),
            precision: program.precision.to_string(),
            parent: process::id(),
            memory_bytes: isolation.memory_bytes,
            seconds: isolation.time.as_secs(),
            cuts: stages.cuts.clone(),
            extra: staging::exit_tensors(stages),
            operators: program.operators.to_vec(),
            graph_bytes: graph.len() as u64,
            external,
        };
        Ok((trial, parts))
    }

    /// Returns the engine and precision with which to open the model.
    pub(super) fn engine(&self) -> Result<(OnnxEngine, Precision), LoadError> {
        let unknown = |fault: String| LoadError::internal(fault);
        Ok((self.engine.parse().map_err(unknown)?, self.precision.parse().map_err(unknown)?))
    }

    pub(super) fn write(&self, out: &mut impl Write) -> io::Result<()> {
        let mut line = serde_json::to_vec(self)?;
        line.push(b'\n');
        out.write_all(&line)
    }

    pub(super) fn read(input: &mut impl BufRead) -> io::Result<Self> {
        let mut line = Vec::new();
        input.take(LINE_MAX_BYTES).read_until(b'\n', &mut line)?;
        Ok(serde_json::from_slice(&line)?)
    }

    /// Reads the graph and the files beside it.
    pub(super) fn read_files(&self, input: &mut impl BufRead) -> io::Result<(Bytes, ExternalFiles)> {
        let graph = read_exactly(input, self.graph_bytes)?;
        let files = match &self.external {
            External::None => ExternalFiles::None,
            External::Beside { directory, within } => {
                ExternalFiles::Beside { directory: directory.clone(), within: within.clone() }
            }
            External::Given(files) => {
                let files = files.iter().map(|(name, length)| Ok((name.clone(), read_exactly(input, *length)?)));
                ExternalFiles::Given(files.collect::<io::Result<BTreeMap<_, _>>>()?.into())
            }
        };
        Ok((graph, files))
    }
}

fn read_exactly(input: &mut impl BufRead, length: u64) -> io::Result<Bytes> {
    let mut bytes = Vec::new();
    input.take(length).read_to_end(&mut bytes)?;
    if bytes.len() as u64 == length { Ok(bytes.into()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}
