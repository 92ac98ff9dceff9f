//! Compiles the cells of a version whose requests unfold, and runs one small example request through them.

use std::{collections::BTreeMap, fmt};

use bytes::Bytes;
use paternoster_batching::{Knobs, Policy};
use paternoster_config::{
    lengths::CellLengths,
    nearest::suggestion,
    stages::StageRequest,
    unfold::{CellPorts, CellTensor, UnfoldRequest},
};
use paternoster_engine::TensorBatch;
use paternoster_executor::{CellPrograms, Pool, StagePrograms, WarmUp};
use paternoster_model::{
    Dims, InputTensor, ModelSpec, SymbolId, TensorSpec, element_count,
    unfold::{Limit, Nodes, Segment, Unfolding},
};
use paternoster_observe::budget::Reservation;
use paternoster_onnx::{Port, PortDim, Signature};
use smallvec::SmallVec;
use tracing::warn;

use super::{
    LoadAttempt, LoadError, LoadErrorKind, LoadPlace, ResolvedVersion, TrialLimits,
    opening::Opener,
    plans::{self, Batches, Compiled},
};

/// Length of every varying dimension of the example. Of the steps of a program that runs several at a time, the first
/// runs alone.
const EXAMPLE_LENGTH: i64 = 2;
const EXAMPLE_STEPS: i64 = 3;

/// Most bytes of the example's inputs.
const MAX_EXAMPLE_BYTES: usize = 1 << 30;

/// Compiles the cells, and runs an example request. Returns the programs, and the version's knobs with the parameters
/// of the cells for the core.
///
/// # Errors
/// Names the cell or segment if a program cannot be read or compiled, or if the segments do not fit the cells. Also
/// fails if the example request of a model of several programs fails.
pub(super) fn compile(
    pool: &Pool,
    opener: &Opener<'_>,
    limits: TrialLimits,
    resolved: &ResolvedVersion,
    unfold: &UnfoldRequest,
) -> Result<(StagePrograms, Knobs), LoadError> {
    let mut graphs = Vec::with_capacity(unfold.cells.len());
    // Held until the cells are compiled, which then share their sessions.
    let mut held = Vec::new();
    for (number, (cell, program)) in unfold.cells.iter().zip(&resolved.cells).enumerate() {
        let opened = resolved.opened.get(number);
        let graph = opened.map_or_else(|| program.read(), |model| Ok(model.to_bytes()))?;
        let mut signature = Signature::from_bytes(&program.file.display().to_string(), &graph)?;
        let model = match opened {
            Some(model) => model.clone(),
            None => opener.open(program, graph, &StageRequest::default())?,
        };
        let named = |error: LoadError| error.within(LoadPlace::Cell(cell.name.clone()));
        held.extend(opener.infer_shapes(program, &model, &mut signature).map_err(named)?);
        let graph = CellGraph::new(&signature, &cell.tensors).map_err(named)?;
        graphs.push((graph, model));
    }
    // Segments can only be resolved against the inputs and outputs of all cells.
    let all_ports: Vec<CellPorts> = graphs.iter().map(|(graph, _)| graph.ports.clone()).collect();
    let unfolding = unfold.resolve(&resolved.spec, &all_ports)?;
    let all_axes: Vec<&[String]> = graphs.iter().map(|(graph, _)| &graph.axes[..]).collect();
    let CellLengths { cells: lengths, most_steps } = CellLengths::of(&unfold.lengths, &all_axes)?;
    let mut compiled = Vec::with_capacity(graphs.len());
    let cells = unfolding.cells.iter().zip(&graphs).zip(&resolved.cells).zip(lengths);
    for (((cell, (graph, model)), own), lengths) in cells {
        let (inputs, outputs) = CellPrograms::ports(cell);
        let place = LoadPlace::Cell(cell.name.clone());
        let program = opener.compile(own, model, &inputs, &outputs).map_err(|error| error.within(place.clone()))?;
        let (inputs, outputs) = (cell.inputs.clone(), cell.outputs.clone());
        let (place, lengths, batches) = (Some(place), Some(lengths), graph.batches());
        compiled.push(Compiled { place, program, model, inputs, outputs, has_batch_axis: true, batches, lengths });
    }
    let (example, memory) = example(&resolved.spec, &unfolding, opener.attempt())?;
    let programs = plans::of_version(pool, opener.engines(), resolved, &compiled, &|programs| {
        let cells = CellPrograms::new(&resolved.spec, unfolding.clone(), programs).map_err(LoadError::graph)?;
        let cells = match most_steps {
            Some(most) => cells.with_most_steps(most),
            None => cells,
        };
        Ok(cells.into())
    })?;
    let mut knobs = resolved.knobs.clone();
    if let (Policy::Cellular(own), Some(cells)) = (&mut knobs.policy, programs.cells()) {
        (own.cells, own.segments) = cells.knobs();
    }
    // A request that unfolds finds mistakes that no single program shows, such as a state of the wrong shape.
    let tried = opener.attempt().trial(limits, |stop| {
        let batch = WarmUp { rows: 1, inputs: &example, program_inputs: &[], stop };
        pool.warm_up(&resolved.spec, &programs, batch).map_err(LoadError::engine)
    });
    drop(memory);
    match tried {
        // Clients may never send such a request: zeros may be no rate, and two samples no speech.
        Err(reason) if resolved.is_one_program() && opener.attempt().check().is_ok() => {
            let model = &resolved.spec.name;
            warn!(
                model,
                reason = reason.to_string(),
                "an example request of zeros failed; the model is served all the same"
            );
        }
        tried => drop(tried.map_err(|error| error.within(LoadPlace::Example))?),
    }
    Ok((programs, knobs))
}

/// The inputs and outputs of a cell's program.
#[derive(Default)]
pub(super) struct CellGraph {
    /// Without the batch axis. The symbols of a tensor are indices into `axes`.
    pub(super) ports: CellPorts,
    /// The names of varying axes.
    pub(super) axes: Vec<String>,
    /// Where inputs and outputs have the batch.
    batches: Batches,
}

impl CellGraph {
    /// Reads the ports of a program. `tensors` has what the configuration says of them, by name.
    ///
    /// # Errors
    /// Names a tensor that is not a tensor of the protocol or lacks the batch.
    pub(super) fn new(signature: &Signature, tensors: &BTreeMap<String, CellTensor>) -> Result<Self, LoadError> {
        let mut graph = Self::default();
        let ports = || signature.inputs.iter().chain(&signature.outputs).map(|port| port.name.as_str());
        if let Some(name) = tensors.keys().find(|name| !ports().any(|port| port == name.as_str())) {
            let hint = suggestion(name, ports());
            let message = format!("batch_axes.{name}: the program has no such input or output{hint}");
            return Err(LoadError::settings(message));
        }
        for port in &signature.inputs {
            let (tensor, batch) = tensor(port, &mut graph.axes, true, tensors.get(&port.name))?;
            graph.ports.inputs.push(tensor);
            graph.batches.inputs.push(batch);
        }
        for port in &signature.outputs {
            let (tensor, batch) = tensor(port, &mut graph.axes, false, tensors.get(&port.name))?;
            graph.ports.outputs.push(tensor);
            graph.batches.outputs.push(batch);
        }
        Ok(graph)
    }

    /// Returns where its tensors have the batch; `None` if that is axis 0 in all of them.
    pub(super) fn batches(&self) -> Option<Batches> {
        let mut all = self.batches.inputs.iter().chain(&self.batches.outputs);
        all.any(|batch| *batch != TensorBatch::Axis(0)).then(|| self.batches.clone())
    }
}

/// Returns a tensor of a cell, and where it has the batch. Varying axes of inputs are added to `axes`; an axis without
/// a name is named after its input. Only axes that an input has can be followed to outputs.
fn tensor(
    port: &Port,
    axes: &mut Vec<String>,
    is_input: bool,
    given: Option<&CellTensor>,
) -> Result<(TensorSpec, TensorBatch), LoadError> {
    let name = &port.name;
    let refused = |what: fmt::Arguments<'_>| LoadError::graph(format!("'{name}' {what}"));
    let datatype = port.datatype.ok_or_else(|| refused(format_args!("is {}, expected a tensor", port.type_name)))?;
    let dims = port.dims.as_ref().ok_or_else(|| refused(format_args!("has an unknown number of dimensions")))?;
    let batch = match given {
        Some(given) => given.batch,
        // A scalar has one value for all rows of a run.
        None if dims.is_empty() && is_input => TensorBatch::None,
        None => TensorBatch::Axis(0),
    };
    let mut rest: Vec<&PortDim> = dims.iter().collect();
    match (batch, dims.first()) {
        (TensorBatch::None, Some(_)) => {}
        (TensorBatch::None, None) => {
            let scalar = TensorSpec { reshape: Some(Dims::new()), ..TensorSpec::new(name, datatype, &[1]) };
            return Ok((scalar, batch));
        }
        (TensorBatch::Axis(_), None) => {
            return Err(refused(format_args!("is a scalar, expected the batch as axis 0")));
        }
        (TensorBatch::Axis(0), Some(PortDim::Fixed(length @ 0..))) => {
            return Err(refused(format_args!("has {length} along axis 0, expected the batch, which varies")));
        }
        (TensorBatch::Axis(axis), Some(_)) if axis < rest.len() => drop(rest.remove(axis)),
        (TensorBatch::Axis(axis), Some(_)) => {
            return Err(refused(format_args!("has no axis {axis}, expected the batch")));
        }
    }
    if let Some(dims) = given.and_then(|given| given.dims.as_ref()) {
        return Ok((TensorSpec::new(name, datatype, dims), batch));
    }
    let symbols = rest.iter().enumerate().map(|(at, dim)| {
        let axis = match dim {
            PortDim::Symbol(symbol) => symbol.clone(),
            dim if dim.size() >= 0 => return None,
            _ if is_input && at == 0 => name.clone(),
            _ if is_input => format!("{name}.{at}"),
            _ => return None,
        };
        let known = axes.iter().position(|own| *own == axis);
        let known = known.or_else(|| {
            is_input.then(|| {
                axes.push(axis);
                axes.len() - 1
            })
        });
        known.map(|axis| SymbolId(axis as u16))
    });
    let symbols: SmallVec<[Option<SymbolId>; 4]> = symbols.collect();
    let dims: Dims = rest.iter().map(|dim| dim.size()).collect();
    let spec = TensorSpec::new(name, datatype, &dims);
    Ok((if symbols.iter().any(Option::is_some) { TensorSpec { symbols, ..spec } } else { spec }, batch))
}

/// The inputs of a request, and the memory that is reserved for them.
type Example = (Vec<Option<InputTensor>>, Vec<Reservation>);

/// Builds a request of zeros with short varying dimensions. A tree is one root with as many leaves as it may have.
fn example(spec: &ModelSpec, unfolding: &Unfolding, attempt: &LoadAttempt) -> Result<Example, LoadError> {
    let mut trees = unfolding.segments.iter().filter_map(|segment| match segment.nodes {
        Nodes::Tree { children, max_nodes } => Some((children, max_nodes)),
        _ => None,
    });
    let tree = trees.next_back();
    let width = |table: usize| spec.inputs[table].dims.get(1).copied().unwrap_or(0);
    let has_chunks = unfolding.segments.iter().any(Segment::runs_chunks);
    let length = if has_chunks { EXAMPLE_STEPS } else { EXAMPLE_LENGTH };
    let length = tree.map_or(length, |(table, most)| (width(table) + 1).min(i64::from(most)));
    let (mut left, mut memory) = (MAX_EXAMPLE_BYTES, Vec::new());
    let inputs = spec.inputs.iter().enumerate().map(|(number, input)| {
        let dims = input.dims.iter().map(|&dim| if dim < 0 { length } else { dim });
        let shape: Dims = spec.has_batch_axis().then_some(1).into_iter().chain(dims).collect();
        // An empty string takes the four bytes of its length.
        let size = input.datatype.size_bytes().unwrap_or(4);
        let bytes = element_count(&shape).and_then(|elements| elements.checked_mul(size));
        let bytes = bytes.filter(|bytes| *bytes <= left);
        let bytes = bytes
            .ok_or_else(|| LoadError::new(LoadErrorKind::Limit, format!("input '{}' is too large", input.name)))?;
        left -= bytes;
        memory.extend(attempt.reserve(bytes)?);
        let mut data = vec![0; bytes];
        if unfolding.limits.iter().any(|limit| matches!(limit, Limit::Steps { input, .. } if *input == number)) {
            // As short a loop as all other dimensions.
            data.chunks_exact_mut(size).for_each(|element| element.copy_from_slice(&length.to_le_bytes()[..size]));
        }
        if tree.is_some_and(|(table, _)| table == number) {
            // Node 0 has all others as children.
            let children = (0..(bytes / size) as i64).map(|at| if at + 1 < length { at + 1 } else { -1 });
            for (element, child) in data.chunks_exact_mut(size).zip(children) {
                element.copy_from_slice(&child.to_le_bytes()[..size]);
            }
        }
        Ok(Some(InputTensor { shape, data: Bytes::from(data) }))
    });
    let inputs = inputs.collect::<Result<_, LoadError>>()?;
    Ok((inputs, memory))
}

#[cfg(test)]
pub(crate) mod tests {
    use paternoster_model::DataType;

    use super::*;
    use crate::{LoadErrorKind, tests::refusals::Refusals};

    fn example_of(inputs: Vec<TensorSpec>) -> Result<Example, LoadError> {
        let spec = ModelSpec {
            name: "m".to_owned(),
            version: 1,
            max_batch_size: 1,
            inputs,
            outputs: Vec::new(),
            symbols: Vec::new(),
            decoupled: false,
        };
        let unfolding = Unfolding { cells: Vec::new(), segments: Vec::new(), outputs: Vec::new(), limits: Vec::new() };
        example(&spec, &unfolding, &LoadAttempt::of_repository())
    }

    fn input(name: &str, dims: &[i64]) -> TensorSpec {
        TensorSpec::new(name, DataType::Int64, dims)
    }

    #[test]
    fn an_example_is_of_any_length() {
        assert!(example_of(vec![input("x", &[-1, 3])]).is_ok());
    }

    pub(crate) fn refusals(all: &mut Refusals) {
        all.title("examples that no memory holds");
        let kind = Some(LoadErrorKind::Limit);
        all.add(kind, "an input of 2^62 integers", example_of(vec![input("x", &[1 << 61, 2])]));
        let both = vec![input("x", &[9]), input("y", &[1 << 27])];
        all.add(kind, "an input of 2^27 integers after one of 9", example_of(both));
    }
}
