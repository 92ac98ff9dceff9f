//! From a completed configuration to an [`UnfoldRequest`]: cells and segments one by one, then the tensors that they
//! name.

use std::collections::BTreeMap;

use super::{
    CELLS, CellRequest, DEFAULT_MAX_ROWS, Kind, MAX_PARTS, MAX_ROWS, SegmentRequest, UNFOLD, UnfoldRequest, is_given,
    keys, keys::Key, part::Part, scope::Scope, segment, tensor_of,
};
use crate::{
    model::{
        DataType,
        unfold::{Nodes, Source},
    },
    repository::config::{
        ConfigError, Origin, check::stays_inside, complete::REPEAT, convert, knobs, nearest::suggestion, params, pb,
        sequences, stages,
    },
};

/// Reads what a completed configuration says of cells; `None` where it says nothing.
///
/// # Errors
/// For values of a wrong kind, for names of what is not there, and for what does not go with cells.
pub fn read(config: &pb::ModelConfig, origin: &Origin) -> Result<Option<UnfoldRequest>, ConfigError> {
    if !is_given(config) {
        return Ok(None);
    }
    let reader = Reader { config, origin };
    let (cells, segments) = reader.parts()?;
    reader.fits_the_model()?;
    let mut declared = BTreeMap::new();
    for (name, part) in &cells {
        declared.insert(*name, cell(name, part)?);
    }
    // Cells are numbered as segments name them, so that the first to run is the first.
    let mut used: Vec<&str> = Vec::new();
    let mut number = |name: &str| {
        let Some((name, _)) = declared.get_key_value(name) else {
            let known: Vec<&str> = declared.keys().copied().collect();
            let hint = suggestion(name, known.iter().copied());
            return Err(format!("expected one of the cells {}, but found '{name}'{hint}", known.join(", ")));
        };
        Ok(used.iter().position(|other| other == name).unwrap_or_else(|| {
            used.push(name);
            used.len() - 1
        }))
    };
    let requests = segments.iter().map(|part| segment::read(part, &mut number));
    let requests: Vec<SegmentRequest> = requests.collect::<Result<_, _>>()?;
    if let Some((name, part)) = cells.iter().find(|(name, _)| !used.contains(name)) {
        return Err(part.refuse_all(format!("no segment names the cell '{name}': remove it, or let one run it")));
    }
    let numbered = used.iter().enumerate().filter_map(|(number, name)| {
        let (mut cell, priority) = declared.remove(name)?;
        cell.priority = priority.unwrap_or_else(|| default_priority(&requests, number));
        Some(cell)
    });
    let cells = numbered.collect();
    reader.check_segments(&segments, &requests)?;
    Ok(Some(UnfoldRequest { cells, segments: requests }))
}

/// Types that come later in a request go first, so that those that are nearly done are done (BatchMaker section 4.3):
/// the number of places from the last of the cell to the end. A segment is one place, a tree two: its leaves, then its
/// inner nodes.
fn default_priority(segments: &[SegmentRequest], cell: usize) -> u32 {
    let places: Vec<usize> = segments.iter().flat_map(|segment| segment.cells.iter().copied()).collect();
    let last = places.iter().rposition(|own| *own == cell).unwrap_or(0);
    u32::try_from(places.len() - last).unwrap_or(u32::MAX)
}

/// A cell, whose priority counts only where it is given beside it.
fn cell(name: &str, part: &Part<'_>) -> Result<(CellRequest, Option<u32>), ConfigError> {
    let program = part.required(keys::PROGRAM)?;
    if !stays_inside(program) || program.contains(['/', '\\']) {
        let message = format!("expected the name of a file in the version's directory, but found '{program}'");
        return Err(part.refuse(keys::PROGRAM, message));
    }
    let mut batch_sizes = vec![DEFAULT_MAX_ROWS];
    if let Some(text) = part.text(keys::BATCH_SIZES) {
        let sizes: Option<Vec<u32>> = text.split(',').map(|size| size.trim().parse().ok()).collect();
        let fits = |sizes: &Vec<u32>| {
            sizes.is_sorted_by(|less, more| less < more) && sizes.iter().all(|size| (1..=MAX_ROWS).contains(size))
        };
        batch_sizes = sizes.filter(fits).ok_or_else(|| {
            let message = format!("expected ascending sizes from 1 to {MAX_ROWS}, but found '{text}'");
            part.refuse(keys::BATCH_SIZES, message)
        })?;
    }
    let most = batch_sizes.last().copied().unwrap_or(DEFAULT_MAX_ROWS);
    let min_followup = part.whole(keys::MIN_FOLLOWUP, 1..=most)?.unwrap_or((most / 4).max(1));
    let priority = part.whole(keys::PRIORITY, 1..=u32::MAX)?;
    let (name, program) = (name.to_owned(), program.to_owned());
    Ok((CellRequest { name, program, batch_sizes, min_followup, priority: 1 }, priority))
}

/// The keys of cells by name, and those of segments in order.
type Parts<'c> = (BTreeMap<&'c str, Part<'c>>, Vec<Part<'c>>);

#[derive(Clone, Copy)]
struct Reader<'c> {
    config: &'c pb::ModelConfig,
    origin: &'c Origin,
}

impl<'c> Reader<'c> {
    fn refuse(self, key: &str, message: impl Into<String>) -> ConfigError {
        self.origin.error(&format!("parameters[{key}]"), message)
    }

    fn parts(self) -> Result<Parts<'c>, ConfigError> {
        let mut cells: BTreeMap<&str, Part<'_>> = BTreeMap::new();
        let mut segments: BTreeMap<u16, Part<'_>> = BTreeMap::new();
        for (key, parameter) in &self.config.parameters {
            let (part, name) = match Key::of(key) {
                None => continue,
                Some(Key::Cell(cell, name)) => {
                    let part = || Part::new(format!("{CELLS}.{cell}"), self.origin);
                    (cells.entry(cell).or_insert_with(part), name)
                }
                Some(Key::Segment(number, name)) => {
                    let part = || Part::new(format!("{UNFOLD}.{number}"), self.origin);
                    (segments.entry(number).or_insert_with(part), name)
                }
            };
            part.insert(name, &parameter.string_value);
        }
        for (expected, (number, part)) in segments.iter().enumerate() {
            if usize::from(*number) != expected {
                let message =
                    format!("segments count from 0 without gaps: expected {UNFOLD}.{expected}.{} too", keys::KIND);
                return Err(part.refuse_all(message));
            }
        }
        let segments: Vec<Part<'_>> = segments.into_values().collect();
        let many = |what: &str, found: usize| format!("expected at most {MAX_PARTS} {what}, but found {found}");
        match (cells.values().next(), segments.first()) {
            (Some(_), Some(_)) if segments.len() > MAX_PARTS => {
                Err(segments[MAX_PARTS].refuse_all(many("segments", segments.len())))
            }
            (Some(first), Some(_)) if cells.len() > MAX_PARTS => Err(first.refuse_all(many("cells", cells.len()))),
            (Some(_), Some(_)) => Ok((cells, segments)),
            (Some(first), None) => Err(first.refuse_all("cells need 'unfold', which says what each request runs")),
            (None, Some(first)) => Err(first.refuse_all("'unfold' needs 'cells', which say what is run")),
            (None, None) => Err(self.refuse(CELLS, "expected cells.<cell>.program and unfold.0.kind")),
        }
    }

    /// Refuses what has no meaning for a model of cells.
    fn fits_the_model(self) -> Result<(), ConfigError> {
        let Self { config, origin } = self;
        if config.max_batch_size > 1 {
            let message = format!(
                "expected 0 or 1, because each request unfolds by itself, but found {}; each cell's batch_sizes say how \
                 many nodes run together",
                config.max_batch_size
            );
            return Err(origin.error("max_batch_size", message));
        }
        if config.backend == REPEAT {
            return Err(origin.error("backend", format!("the backend '{REPEAT}' has no cells")));
        }
        if !config.default_model_filename.is_empty() {
            return Err(origin.error("default_model_filename", "each cell has a program of its own: remove this"));
        }
        let refused =
            |key: &&String| stages::is_ours(key) || key.starts_with(params::PAD) || *key == knobs::BUCKET_WIDTH.key;
        // The first in order, so that the same text is always refused for the same key.
        if let Some(key) = config.parameters.keys().filter(refused).min() {
            let reason = match key {
                key if stages::is_ours(key) => "a model of cells is not cut into stages",
                key if key.starts_with(params::PAD) => "cells that are told lengths are padded as they need it",
                _ => "nodes of requests of any length run together",
            };
            return Err(self.refuse(key, format!("{reason}: remove this")));
        }
        for (number, input) in config.input.iter().enumerate() {
            if input.optional {
                let message = format!("cells need their inputs, but '{}' may be left out", input.name);
                return Err(origin.error(&format!("input[{number}].optional"), message));
            }
            if input.reshape.is_some() {
                return Err(
                    origin.error(&format!("input[{number}].reshape"), "cells take inputs as they come: remove this")
                );
            }
        }
        let reshaped = config.output.iter().position(|output| output.reshape.is_some());
        if let Some(number) = reshaped {
            return Err(
                origin.error(&format!("output[{number}].reshape"), "outputs go as cells give them: remove this")
            );
        }
        Ok(())
    }

    /// Checks the tensors that segments name, how many steps they have, and that all outputs are answered.
    fn check_segments(self, parts: &[Part<'_>], segments: &[SegmentRequest]) -> Result<(), ConfigError> {
        let mut scope = Scope::new(self.config.input.iter().map(|input| input.name.as_str()));
        for (number, (part, segment)) in parts.iter().zip(segments).enumerate() {
            if let Some(other) = segments[..number].iter().position(|other| other.name == segment.name) {
                let own = [keys::NAME, keys::CELL, keys::LEAF].into_iter().find(|key| part.text(key).is_some());
                let key = own.unwrap_or(keys::KIND);
                let message = format!(
                    "the segment {other} is called '{}' too: expected a name of its own (the key 'name')",
                    segment.name
                );
                return Err(part.refuse(key, message));
            }
            if let Nodes::Tree { children, .. } = &segment.nodes {
                self.check_tree(part, children, segment)?;
            }
            for (input, source) in &segment.sources {
                let of_sequences = match source {
                    Source::Carried { is_kept: true, .. } => Some(keys::KEEP),
                    Source::Control { .. } | Source::CorrelationId => Some(keys::CONTROL),
                    _ => None,
                };
                if let (Some(map), None) = (of_sequences, sequences::given(self.config)) {
                    let message = "requests belong to no sequences: expected 'sequence_batching' too";
                    return Err(part.refuse(&format!("{map}.{input}"), message));
                }
                if *source == Source::GrownLength {
                    let key = format!("{}.{input}", keys::LENGTH);
                    let free = scope.is_free(part.text(&key).unwrap_or_default());
                    free.map_err(|fault| part.refuse(&key, fault))?;
                }
                let Some(tensor) = tensor_of(source) else { continue };
                let (map, found) = match source {
                    Source::Step { .. } | Source::Rows(_) => (keys::OVER, scope.steps_of(tensor)),
                    Source::Length(_) => (keys::LENGTH, scope.length_of(segment, tensor)),
                    Source::Carried { .. } => (keys::START, scope.tensor(tensor)),
                    _ if segment.kind() == Kind::Stage => (keys::INPUTS, scope.tensor(tensor)),
                    _ => (keys::HOLD, scope.tensor(tensor)),
                };
                found.map_err(|fault| part.refuse(&format!("{map}.{input}"), fault))?;
            }
            let rows = scope.count(segment).map_err(|(key, fault)| part.refuse(&key, fault))?;
            // The steps of a loop are at most so many: what it leaves has a length that nobody knows.
            let rows = rows.filter(|_| segment.kind() != Kind::Decode);
            let is_open = segment.emits.is_empty();
            scope.leave(segment, (!is_open).then(|| segment.emits.clone()), rows);
        }
        self.check_outputs(parts, segments, &scope)
    }

    fn check_tree(self, part: &Part<'_>, children: &str, segment: &SegmentRequest) -> Result<(), ConfigError> {
        let Some(input) = self.config.input.iter().find(|input| input.name == children) else {
            let hint = suggestion(children, self.config.input.iter().map(|input| input.name.as_str()));
            let message = format!("expected an input of the model, but found '{children}'{hint}");
            return Err(part.refuse(keys::CHILDREN, message));
        };
        let datatype = convert::datatype(input.data_type);
        let width = match input.dims[..] {
            [_, width] => usize::try_from(width).ok().filter(|width| *width > 0),
            _ => None,
        };
        let (Some(DataType::Int32 | DataType::Int64), Some(width)) = (datatype, width) else {
            let found = datatype.map_or("none", DataType::as_str);
            let message = format!(
                "expected an input of INT32 or INT64 with dims [nodes, children of a node], but '{children}' is {found} {:?}",
                input.dims
            );
            return Err(part.refuse(keys::CHILDREN, message));
        };
        for (input, source) in &segment.sources {
            if let Source::Child { child, .. } = source
                && *child >= width
            {
                let message = format!("expected a child from 0 to {}, but found {child}", width - 1);
                return Err(part.refuse(&format!("{}.{input}", keys::CHILD), message));
            }
        }
        Ok(())
    }

    fn check_outputs(
        self,
        parts: &[Part<'_>],
        segments: &[SegmentRequest],
        scope: &Scope<'_>,
    ) -> Result<(), ConfigError> {
        let Self { config, origin } = self;
        let is_decoupled = config.model_transaction_policy.as_ref().is_some_and(|policy| policy.decoupled);
        let mut streaming = segments.iter().zip(parts).filter(|(segment, _)| segment.streams);
        let stream = streaming.next();
        match (stream, streaming.next()) {
            (Some((_, part)), _) if !is_decoupled => {
                let message = "a response for each step needs 'decoupled: true'";
                return Err(part.refuse(keys::STREAM, message));
            }
            (Some((first, _)), Some((_, part))) => {
                let message = format!("expected one segment that streams, but '{}' does too", first.name);
                return Err(part.refuse(keys::STREAM, message));
            }
            (None, _) if is_decoupled => {
                let message = "a decoupled model of cells answers step by step: expected a segment with 'stream: true'";
                return Err(origin.error("model_transaction_policy", message));
            }
            _ => {}
        }
        for (number, output) in config.output.iter().enumerate() {
            let refuse = |message: String| origin.error(&format!("output[{number}].name"), message);
            let answer = scope.answer(&output.name).map_err(refuse)?;
            let (Some(emitted), Some((streaming, _))) = (answer, stream) else { continue };
            if segments[emitted.segment].name != streaming.name {
                let (name, other) = (&streaming.name, &segments[emitted.segment].name);
                return Err(refuse(format!(
                    "the model answers step by step: expected '{name}', which streams, to emit '{}', but '{other}' does",
                    output.name
                )));
            }
        }
        Ok(())
    }
}
