//! `cells` and `unfold`: the cell types of a recurrent model, and how each request unfolds into them (BatchMaker
//! sections 3.1 and 4.2).
//!
//! [`read`] checks the configuration and creates an [`UnfoldRequest`]. Its tensors are numbers already, but inputs and
//! outputs of programs are still names. Once the loader has read the programs, [`UnfoldRequest::resolve`] replaces
//! those too and returns an [`Unfolding`](paternoster_model::unfold::Unfolding).

use std::collections::BTreeMap;

use bytes::Bytes;
use paternoster_engine::TensorBatch;
use paternoster_model::{
    Dims, TensorSpec,
    unfold::{CellInputSource, Emit, Emitted, Expression, Limit, Nodes, Tensor},
};
use smallvec::SmallVec;

use crate::{
    ConfigError, Origin, SettingError,
    knobs::LengthList,
    model::{Cell, SegmentSettings},
    nearest::suggestion,
    settings::{OwnSettings, REPEAT, Settings},
    values::{NonEmptyText, PartName, is_file_name},
};

mod resolve;
mod scope;
mod segment;

use scope::Scope;

/// Maximum number of cell types of a model, and of segments of a request.
pub const MAX_PARTS: usize = 64;

/// Largest batch of a cell without `batch_sizes`, in rows.
pub const DEFAULT_MAX_ROWS: u32 = 64;

/// How the requests of a version unfold, according to its configuration.
#[derive(Clone, Debug, PartialEq)]
pub struct UnfoldRequest {
    /// The cell types, in the order in which segments first name them; at least one.
    pub cells: Vec<CellRequest>,
    /// The segments that each request runs, in order; at least one.
    pub segments: Vec<SegmentRequest>,
    /// The lengths that cards are prepared for, by axis of the cells.
    pub lengths: BTreeMap<String, LengthList>,
    /// What bounds a request, beyond its cells.
    pub limits: Vec<Limit>,
}

impl UnfoldRequest {
    /// Returns the largest batch of any cell, in rows.
    pub fn max_rows(&self) -> u32 {
        self.batches().into_iter().max().unwrap_or(1)
    }

    /// Returns the largest batch of each cell, in rows.
    pub fn batches(&self) -> Vec<u32> {
        self.cells.iter().map(CellRequest::max_rows).collect()
    }
}

/// A cell type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CellRequest {
    /// Its name.
    pub name: String,
    /// File of its program, in the version's directory.
    pub program: String,
    /// Sizes of its batches in rows, ascending from 1, at least one; `None`: those that its profile suggests, or else
    /// up to [`DEFAULT_MAX_ROWS`].
    pub batch_sizes: Option<Vec<u32>>,
    /// Minimum rows of a follow-up task in a round; `None`: a quarter of the largest batch.
    pub min_followup: Option<u32>,
    /// Priority among the cell types; 1 is the highest.
    pub priority: u32,
    /// What the configuration says of the program's tensors, by name. The batch of others is axis 0.
    pub tensors: BTreeMap<String, CellTensor>,
}

/// What the configuration says of a tensor of a cell's program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CellTensor {
    /// Where the graph has the batch.
    pub batch: TensorBatch,
    /// The dims of a row; `None` for those of the graph.
    pub dims: Option<Dims>,
}

impl CellRequest {
    /// Returns its largest batch in rows.
    pub fn max_rows(&self) -> u32 {
        self.batch_sizes.as_ref().and_then(|sizes| sizes.last().copied()).unwrap_or(DEFAULT_MAX_ROWS)
    }

    /// Returns the minimum rows of a follow-up task in a round, at most the largest batch.
    pub fn min_followup(&self) -> u32 {
        let most = self.max_rows();
        self.min_followup.unwrap_or(most / 4).clamp(1, most)
    }
}

/// Inputs and outputs of a cell's program, with dims without the batch.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CellPorts {
    /// Its inputs, in the program's order.
    pub inputs: Vec<TensorSpec>,
    /// Its outputs, likewise.
    pub outputs: Vec<TensorSpec>,
}

/// One part of what each request runs.
#[derive(Clone, Debug, PartialEq)]
pub struct SegmentRequest {
    /// Its name, which no other segment has.
    pub name: String,
    /// The types of its nodes, as indices of [`UnfoldRequest::cells`]: one, or for a tree the type of the leaves and
    /// then that of the inner nodes.
    pub cells: SmallVec<[usize; 2]>,
    /// Its nodes, with outputs by name.
    pub nodes: NodesRequest,
    /// The source of each input that the configuration names. A stage without `over` reads other inputs from the
    /// model's inputs of the same name.
    pub sources: BTreeMap<String, SourceRequest>,
    /// The tensors that it emits.
    pub emits: Vec<Emit<String>>,
    /// Whether it is a stage without `emit`, which may emit every output of its cell under the output's own name.
    /// [`Self::emits`] then contains those that later segments name.
    pub emits_all: bool,
    /// Whether each step returns a response of its own.
    pub streams: bool,
}

/// The nodes of a segment, with outputs by name.
pub type NodesRequest = Nodes<Expression, usize, String>;

/// The source of a cell's input, with outputs by name.
pub type SourceRequest = CellInputSource<Tensor, String, Constant>;

/// A row that is the same for all requests.
#[derive(Clone, Debug, PartialEq)]
pub enum Constant {
    /// This value in each element.
    Value(f64),
    /// These elements in wire form.
    Elements(Bytes),
}

/// Reads the cells and segments of a completed configuration; `None` if it has neither.
///
/// # Errors
/// Rejects names of what does not exist, and settings that do not go with cells.
pub fn read(settings: &Settings, origin: &Origin) -> Result<Option<UnfoldRequest>, ConfigError> {
    if !settings.names_cells() {
        return Ok(None);
    }
    let reader = Reader { settings, origin };
    reader.has_both()?;
    reader.fits_the_model()?;
    let OwnSettings { cells, unfold, instance, .. } = &settings.own;
    let mut declared = BTreeMap::new();
    for (PartName(name), own) in cells.iter() {
        let cell = cell(name, own).map_err(|fault| reader.refuse(&format!("cells.{name}"), fault))?;
        declared.insert(name.as_str(), cell);
    }
    // Cells are numbered in the order in which segments name them, which is the order in which they run.
    let mut used: Vec<&str> = Vec::new();
    let mut number = |name: &str| {
        let Some((name, _)) = declared.get_key_value(name) else {
            let known: Vec<&str> = declared.keys().copied().collect();
            let hint = suggestion(name, known.iter().copied());
            let message = format!("expected one of the cells {}, but found '{name}'{hint}", known.join(", "));
            return Err(SettingError::unknown(message));
        };
        Ok(used.iter().position(|other| other == name).unwrap_or_else(|| {
            used.push(name);
            used.len() - 1
        }))
    };
    let mut scope = Scope::new(settings.config.input.iter().map(|input| input.name.as_str()));
    for (at, own) in unfold.iter().enumerate() {
        segment::read(own, settings, &mut number, &mut scope).map_err(|fault| reader.refuse_in(at, fault))?;
    }
    let segments = scope.segments;
    if let Some(name) = declared.keys().find(|name| !used.contains(name)) {
        let message = format!("no segment names the cell '{name}': remove it, or let one run it");
        return Err(reader.refuse(&format!("cells.{name}.program"), message));
    }
    let numbered = used.iter().enumerate().filter_map(|(number, name)| {
        let (mut cell, priority) = declared.remove(name)?;
        cell.priority = priority.unwrap_or_else(|| default_priority(&segments, number));
        Some(cell)
    });
    let cells = numbered.collect();
    reader.check_outputs(&segments)?;
    Ok(Some(UnfoldRequest { cells, segments, lengths: instance.lengths.clone(), limits: Vec::new() }))
}

/// The priority of a cell that names none. Types that come later in a request go first, so that requests that are
/// nearly complete finish (BatchMaker section 4.3). The priority is the number of positions from the cell's last one to
/// the end; a segment is one position, and a tree is two, its leaves and its inner nodes.
fn default_priority(segments: &[SegmentRequest], cell: usize) -> u32 {
    let places: Vec<usize> = segments.iter().flat_map(|segment| segment.cells.iter().copied()).collect();
    let last = places.iter().rposition(|own| *own == cell).unwrap_or(0);
    u32::try_from(places.len() - last).unwrap_or(u32::MAX)
}

/// Reads a cell, and its priority if it names one.
fn cell(name: &str, own: &Cell) -> Result<(CellRequest, Option<u32>), SettingError> {
    let Cell { program: NonEmptyText(program), batch_sizes, min_followup, priority, batch_axes, .. } = own;
    let refuse = |key: &str, message: String| Err(SettingError::from(message).at(key));
    if !is_file_name(program) {
        let message = format!("expected the name of a file in the version's directory, but found '{program}'");
        return refuse("program", message);
    }
    let batch_sizes = batch_sizes.as_ref().map(|sizes| sizes.iter().map(|size| size.0).collect::<Vec<u32>>());
    if let Some(sizes) = &batch_sizes
        && (sizes.is_empty() || !sizes.is_sorted_by(|less, more| less < more))
    {
        let found = sizes.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
        return refuse("batch_sizes", format!("expected ascending sizes from 1 to 65536, but found '{found}'"));
    }
    let min_followup = min_followup.map(|least| least.0);
    let (name, program) = (name.to_owned(), program.clone());
    let axes = batch_axes.iter().flat_map(|axes| &axes.0);
    let tensors = axes.map(|(NonEmptyText(tensor), axis)| {
        (tensor.clone(), CellTensor { batch: TensorBatch::Axis(usize::from(axis.0)), dims: None })
    });
    let tensors = tensors.collect();
    let request = CellRequest { name, program, batch_sizes, min_followup, priority: 1, tensors };
    if let Some(least) = min_followup.filter(|least| *least > request.max_rows()) {
        let message = format!("expected a whole number from 1 to {}, but found {least}", request.max_rows());
        return refuse("min_followup", message);
    }
    Ok((request, priority.map(|priority| priority.0)))
}

#[derive(Clone, Copy)]
struct Reader<'c> {
    settings: &'c Settings,
    origin: &'c Origin,
}

impl Reader<'_> {
    fn refuse(self, key: &str, fault: impl Into<SettingError>) -> ConfigError {
        self.origin.error(key, fault)
    }

    /// Creates an error about a key of a segment.
    fn refuse_in(self, number: usize, fault: SettingError) -> ConfigError {
        let kind = self.settings.own.unfold.get(number).map_or("", SegmentSettings::kind);
        self.refuse(&format!("unfold[{number}].{kind}"), fault)
    }

    /// Checks that there are both cells and segments, and not too many of either.
    fn has_both(self) -> Result<(), ConfigError> {
        let OwnSettings { cells, unfold: segments, .. } = &self.settings.own;
        let first = cells.keys().next().map(|cell| format!("cells.{}.program", cell.0)).unwrap_or_default();
        let segment = |number: usize| {
            let kind = segments.get(number).map_or("", SegmentSettings::kind);
            format!("unfold[{number}].{kind}")
        };
        let many = |what: &str, found: usize| format!("expected at most {MAX_PARTS} {what}, but found {found}");
        match (cells.len(), segments.len()) {
            (0, _) => Err(self.refuse(&segment(0), "'unfold' needs 'cells', which say what is run")),
            (_, 0) => Err(self.refuse(&first, "cells need 'unfold', which says what each request runs")),
            (_, found) if found > MAX_PARTS => Err(self.refuse(&segment(MAX_PARTS), many("segments", found))),
            (found, _) if found > MAX_PARTS => Err(self.refuse(&first, many("cells", found))),
            _ => Ok(()),
        }
    }

    /// Rejects settings that have no meaning for a model of cells.
    fn fits_the_model(self) -> Result<(), ConfigError> {
        let Self { settings: Settings { config, own }, origin } = self;
        let batch = format!(
            "expected 0 or 1, because each request unfolds by itself, but found {}; each cell's batch_sizes say how \
             many nodes run together",
            config.max_batch_size
        );
        origin.refuse_if(config.max_batch_size > 1, "max_batch_size", batch)?;
        let repeat = format!("the backend '{REPEAT}' has no cells");
        origin.refuse_if(config.backend == REPEAT, "backend", repeat)?;
        let program = "each cell has a program of its own: remove this";
        origin.refuse_if(!config.default_model_filename.is_empty(), "default_model_filename", program)?;
        let width = own.batching.bucket_width.map(|_| "batching.bucket_width".to_owned());
        let refused = [
            (width, "nodes of requests of any length run together"),
            (own.stages_key().map(str::to_owned), "a model of cells is not cut into stages"),
            (
                own.pad.keys().next().map(|input| format!("pad.{input}")),
                "cells with an input for lengths are padded as they need",
            ),
        ];
        if let Some((key, reason)) = refused.into_iter().find_map(|(key, reason)| Some((key?, reason))) {
            return Err(self.refuse(&key, format!("{reason}: remove this")));
        }
        for (number, input) in config.input.iter().enumerate() {
            let optional = format!("cells need their inputs, but '{}' may be left out", input.name);
            origin.refuse_if(input.optional, &format!("input[{number}].optional"), optional)?;
            let reshape = "cells read inputs in the shape of 'dims': remove this";
            origin.refuse_if(input.reshape.is_some(), &format!("input[{number}].reshape"), reshape)?;
        }
        for (number, output) in config.output.iter().enumerate() {
            let reshape = "outputs have the shape that cells give them: remove this";
            origin.refuse_if(output.reshape.is_some(), &format!("output[{number}].reshape"), reshape)?;
        }
        Ok(())
    }

    /// Checks that each output of the model has a segment that answers it, which streams if the model is decoupled.
    fn check_outputs(self, segments: &[SegmentRequest]) -> Result<(), ConfigError> {
        let Self { settings, origin } = self;
        let is_decoupled = settings.is_decoupled();
        let mut streaming = segments.iter().enumerate().filter(|(_, segment)| segment.streams);
        let stream = streaming.next();
        match (stream, streaming.next()) {
            (Some((number, _)), _) if !is_decoupled => {
                let fault = SettingError::from("a response for each step needs 'decoupled: true'");
                return Err(self.refuse_in(number, fault.at("stream")));
            }
            (Some((_, first)), Some((number, _))) => {
                let message = format!("expected one segment that streams, but '{}' does too", first.name);
                return Err(self.refuse_in(number, SettingError::from(message).at("stream")));
            }
            (None, _) if is_decoupled => {
                let message = "a decoupled model of cells answers step by step: expected a segment with 'stream: true'";
                return Err(origin.error("model_transaction_policy", message));
            }
            _ => {}
        }
        for (number, output) in settings.config.output.iter().enumerate() {
            let refuse = |fault: SettingError| origin.error(&format!("output[{number}].name"), fault);
            let answer = answer(segments, &output.name).map_err(refuse)?;
            let (Some(emitted), Some((_, streaming))) = (answer, stream) else { continue };
            if segments[emitted.segment].name != streaming.name {
                let (name, other) = (&streaming.name, &segments[emitted.segment].name);
                let message = format!(
                    "the model answers step by step: expected '{name}', which streams, to emit '{}', but '{other}' \
                     does",
                    output.name
                );
                return Err(refuse(message.into()));
            }
        }
        Ok(())
    }
}

/// Finds the emit that answers an output of the model; `None` if a stage may emit it that emits all outputs of its
/// cell.
///
/// # Errors
/// Rejects an output that no segment emits, or more than one.
fn answer(segments: &[SegmentRequest], output: &str) -> Result<Option<Emitted>, SettingError> {
    let found = segments.iter().enumerate().filter_map(|(number, segment)| {
        let emit = segment.emits.iter().position(|emit| emit.name == output)?;
        Some((Emitted { segment: number, emit }, segment))
    });
    let found: Vec<(Emitted, &SegmentRequest)> = found.collect();
    match found[..] {
        [(emitted, _)] => Ok(Some(emitted)),
        [(_, one), (_, two), ..] => {
            Err(format!("expected one segment to emit '{output}', but found '{}' and '{}'", one.name, two.name).into())
        }
        [] if segments.iter().any(|segment| segment.emits_all) => Ok(None),
        [] => {
            let names = segments.iter().flat_map(|segment| &segment.emits).map(|emit| emit.name.as_str());
            let hint = suggestion(output, names);
            Err(SettingError::unknown(format!("expected a segment to emit '{output}', but none does{hint}")))
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
