//! The files that a version is loaded from: programs, libraries of operators, tables, states and labels.

use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use bytes::Bytes;
use paternoster_batching::CostTable;
use paternoster_config::{
    SettingError, latencies,
    model::LatencySettings,
    pb, placement, sequences,
    settings::ONNX_FILENAME,
    unfold::{CellRequest, UnfoldRequest},
};
use paternoster_engine::{OnnxEngine, Precision};
use paternoster_onnx::ExternalFiles;

use super::{
    super::{CellProgram, LoadError, bounded_file::read_up_to, configuration},
    FoundModel,
};

/// The key that names libraries of custom operators.
pub(super) const OPERATORS: &str = "model_operations.op_library_filename";

/// Most labels of one output.
const MAX_LABELS: usize = 1_000_000;

impl FoundModel {
    /// Returns the programs of a version's cells.
    pub(super) fn cells(&self, version: i64, unfold: &UnfoldRequest) -> Result<Vec<CellProgram>, LoadError> {
        let program = |cell: &CellRequest| {
            let by = placement::engine_of_cell(&self.settings, &cell.name, &self.origin)?;
            self.existing_program(version, &cell.program, by)
        };
        unfold.cells.iter().map(program).collect()
    }

    /// Returns a program from the load request, or else from disk, with the place of its weights.
    pub(super) fn existing_program(
        &self,
        version: i64,
        filename: &str,
        (engine, precision): (OnnxEngine, Precision),
    ) -> Result<CellProgram, LoadError> {
        let file = self.program(version, filename);
        let (operators, takes_texts) = (self.operators(engine)?, self.text.is_some());
        if let Some((bytes, external)) = self.overrides.program(version, filename)? {
            return Ok(CellProgram { file, bytes: Some(bytes), external, operators, engine, precision, takes_texts });
        }
        if !file.is_file() {
            let found = configuration::other_program(&self.version_directory(version)).unwrap_or_default();
            return Err(LoadError::files(format!("no program {}{found}", file.display())));
        }
        let within = self.version_directory(version);
        let directory = file.parent().unwrap_or(&within).to_owned();
        let external = ExternalFiles::Beside { directory, within };
        Ok(CellProgram { file, bytes: None, external, operators, engine, precision, takes_texts })
    }

    /// Returns the libraries of custom operators, which must be in the model's directory.
    fn operators(&self, engine: OnnxEngine) -> Result<Arc<[PathBuf]>, LoadError> {
        let names = operator_names(&self.settings.config);
        let (false, Some(directory)) = (names.is_empty(), &self.directory) else { return Ok(Arc::default()) };
        let refuse = |fault: String| LoadError::from(self.origin.error(OPERATORS, fault));
        if engine != OnnxEngine::OnnxRuntime {
            return Err(refuse(format!("the engine {engine} has no custom operators")));
        }
        let fail = |path: &Path, fault: io::Error| refuse(format!("cannot read {}: {fault}", path.display()));
        let inside = directory.canonicalize().map_err(|fault| fail(directory, fault))?;
        let library = |name: &String| {
            let path = directory.join(name);
            let library = path.canonicalize().map_err(|fault| fail(&path, fault))?;
            if !library.starts_with(&inside) || !library.is_file() {
                return Err(refuse(format!("expected a file in the model's directory, but found '{name}'")));
            }
            Ok(library)
        };
        names.iter().map(library).collect()
    }

    pub(super) fn version_directory(&self, version: i64) -> PathBuf {
        if let (Some(_), Some(directory)) = (&self.laid_out, &self.directory) {
            return directory.clone();
        }
        self.directory.clone().unwrap_or_else(|| PathBuf::from(&self.name)).join(version.to_string())
    }

    pub(super) fn program(&self, version: i64, filename: &str) -> PathBuf {
        if let (Some(program), Some(directory)) = (&self.laid_out, &self.directory) {
            return directory.join(program);
        }
        let program = self.version_directory(version).join(filename);
        // A model with external weights may be a directory that holds the program as `model.onnx`.
        let inner = program.join(ONNX_FILENAME);
        if inner.is_file() { inner } else { program }
    }

    /// Reads the latency table of a checked configuration, for a model of `stages` stages.
    pub(super) fn latencies(&self, given: &LatencySettings, stages: u16) -> Result<CostTable, LoadError> {
        let refuse = |fault: SettingError| LoadError::from(self.origin.error("batching.latencies", fault));
        match given {
            LatencySettings::Here(lines) => latencies::table(lines, stages).map_err(refuse),
            LatencySettings::File(name) => {
                let Some(directory) = &self.directory else {
                    return Err(refuse("a model without a directory has no latency table".into()));
                };
                let bytes = read_up_to(&directory.join(name), latencies::MAX_BYTES)
                    .map_err(|fault| refuse(fault.to_string().into()))?;
                latencies::parse(&configuration::text_of(bytes), stages)
                    .map_err(|fault| refuse(format!("{name}: {fault}").into()))
            }
        }
    }

    /// Reads the initial states of sequences that are given as files, by input.
    pub(super) fn initial_states(&self, config: &pb::ModelConfig) -> Result<BTreeMap<String, Bytes>, LoadError> {
        let states = sequences::files(config).map(|(input, name)| {
            let refuse = |fault: String| LoadError::from(self.origin.error("sequence_batching.state", fault));
            let Some(directory) = &self.directory else {
                return Err(refuse("a model without a directory has no file of an initial state".to_owned()));
            };
            let path = directory.join(sequences::INITIAL_STATE).join(name);
            let bytes = configuration::read_limited(&path).map_err(|fault| refuse(fault.to_string()))?;
            Ok((input.to_owned(), Bytes::from(bytes)))
        });
        states.collect()
    }

    pub(super) fn labels(&self, config: &pb::ModelConfig) -> Result<BTreeMap<String, Vec<String>>, LoadError> {
        let mut labels = BTreeMap::new();
        let outputs = config.output.iter().enumerate().filter(|(_, output)| !output.label_filename.is_empty());
        for (number, output) in outputs {
            let key = format!("output[{number}].label_filename");
            let refuse = |fault: String| LoadError::from(self.origin.error(&key, fault));
            let Some(directory) = &self.directory else {
                return Err(refuse("a model without a directory has no label file".to_owned()));
            };
            let path = directory.join(&output.label_filename);
            let bytes = configuration::read_limited(&path).map_err(|fault| refuse(fault.to_string()))?;
            let text = configuration::text_of(bytes);
            if text.lines().nth(MAX_LABELS).is_some() {
                return Err(refuse(format!("{} has more than {MAX_LABELS} labels", output.label_filename)));
            }
            labels.insert(output.name.clone(), text.lines().map(str::to_owned).collect());
        }
        Ok(labels)
    }
}

/// Returns the names of a configuration's libraries of custom operators.
pub(super) fn operator_names(config: &pb::ModelConfig) -> &[String] {
    config.model_operations.as_ref().map_or(&[], |operations| &operations.op_library_filename)
}
