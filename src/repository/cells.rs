//! Compiles the cells of a version whose requests unfold, and runs one small example request through them.

use std::fmt;

use bytes::Bytes;
use smallvec::SmallVec;

use super::{
    LoadRequest, StageRequest,
    config::{
        lengths::CellLengths,
        unfold::{CellPorts, UnfoldRequest},
    },
    opening::Opener,
    plans::{self, Compiled},
};
use crate::{
    batching::Policy,
    executor::{CellPrograms, InputTensor, Pool, StagePrograms, WarmUp},
    model::{
        DataType, Dims, ModelSpec, SymbolId, TensorSpec, element_count,
        unfold::{Nodes, Unfolding},
    },
    onnx::{Port, PortDim, Signature},
};

/// Length of every varying dimension of the example.
const EXAMPLE_LENGTH: i64 = 2;

/// Most bytes of the example's inputs.
const MAX_EXAMPLE_BYTES: usize = 1 << 30;

/// Compiles the cells, stores their parameters for the core in `request.knobs`, and runs an example request.
///
/// # Errors
/// Names the cell or segment if a program cannot be read or compiled, or if the segments do not fit the cells. Also
/// fails if the example request fails.
pub(super) fn compile(
    pool: &Pool,
    opener: &Opener<'_>,
    request: &mut LoadRequest,
    unfold: &UnfoldRequest,
) -> Result<StagePrograms, String> {
    let mut graphs = Vec::with_capacity(unfold.cells.len());
    // Held until the cells are compiled, which then share their sessions.
    let mut held = Vec::new();
    for (cell, program) in unfold.cells.iter().zip(&request.cells) {
        let graph = program.read()?;
        let signature = Signature::from_bytes(&program.file.display().to_string(), &graph);
        let mut signature = signature.map_err(|fault| fault.to_string())?;
        let model = opener.open(program, graph, &StageRequest::default())?;
        let named = |fault: &dyn fmt::Display| format!("cell '{}': {fault}", cell.name);
        held.extend(opener.infer_shapes(program, &model, &mut signature).map_err(|error| named(&error))?);
        let (ports, axes) = ports(&signature).map_err(|fault| named(&fault))?;
        graphs.push((ports, axes, model));
    }
    // Segments can only be resolved against the inputs and outputs of all cells.
    let all_ports: Vec<CellPorts> = graphs.iter().map(|(ports, ..)| ports.clone()).collect();
    let unfolding = unfold.resolve(&request.spec, &all_ports)?;
    let all_axes: Vec<&[String]> = graphs.iter().map(|(_, axes, _)| &axes[..]).collect();
    let CellLengths { cells: lengths, most_steps } = CellLengths::of(&unfold.lengths, &all_axes)?;
    let mut compiled = Vec::with_capacity(graphs.len());
    let cells = unfolding.cells.iter().zip(&graphs).zip(&request.cells).zip(lengths);
    for (((cell, (.., graph)), own), lengths) in cells {
        let (inputs, outputs) = CellPrograms::ports(cell);
        let name = format!("cell '{}'", cell.name);
        let program = opener.compile(own, graph, &inputs, &outputs).map_err(|error| format!("{name}: {error}"))?;
        let (inputs, outputs) = (cell.inputs.clone(), cell.outputs.clone());
        let lengths = Some(lengths);
        compiled.push(Compiled { name, program, model: graph, inputs, outputs, has_batch_axis: true, lengths });
    }
    let example = example(&request.spec, &unfolding)?;
    let programs = plans::of_version(pool, opener.engines, request, &compiled, &|programs| {
        let cells = CellPrograms::new(&request.spec, unfolding.clone(), programs)?;
        let cells = match most_steps {
            Some(most) => cells.with_most_steps(most),
            None => cells,
        };
        Ok(cells.into())
    })?;
    if let (Policy::Cellular(knobs), Some(cells)) = (&mut request.knobs.policy, programs.cells()) {
        (knobs.cells, knobs.segments) = cells.knobs();
    }
    // A request that unfolds finds mistakes that no single program shows, such as a state of the wrong shape.
    let tried = pool.warm_up(&request.spec, &programs, WarmUp { rows: 1, inputs: &example, program_inputs: &[] });
    tried.map_err(|fault| format!("an example request failed: {fault}"))?;
    Ok(programs)
}

/// Returns the inputs and outputs of a cell's program without the batch axis, and the names of its varying axes; a
/// tensor's symbols are indices into these names.
pub(super) fn ports(signature: &Signature) -> Result<(CellPorts, Vec<String>), String> {
    let mut axes = Vec::new();
    let inputs = signature.inputs.iter().map(|port| tensor(port, &mut axes, true)).collect::<Result<_, String>>()?;
    let outputs = signature.outputs.iter().map(|port| tensor(port, &mut axes, false)).collect::<Result<_, String>>()?;
    Ok((CellPorts { inputs, outputs }, axes))
}

/// Returns a tensor of a cell. Varying axes of inputs are added to `axes`; an axis without a name is named after its
/// input. Only axes that an input has can be followed to outputs.
fn tensor(port: &Port, axes: &mut Vec<String>, is_input: bool) -> Result<TensorSpec, String> {
    let name = &port.name;
    let datatype = port.datatype.filter(|datatype| *datatype != DataType::Bytes);
    let datatype = datatype.ok_or_else(|| format!("'{name}' is {}, expected numbers", port.type_name))?;
    let dims = port.dims.as_ref().ok_or_else(|| format!("'{name}' has an unknown number of dimensions"))?;
    let rest = match dims.split_first() {
        None => return Err(format!("'{name}' is a scalar, expected the batch as axis 0")),
        Some((PortDim::Fixed(length), _)) => {
            return Err(format!("'{name}' has {length} along axis 0, expected the batch, which varies"));
        }
        Some((_, rest)) => rest,
    };
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
    let dims: Dims = rest.iter().map(PortDim::size).collect();
    let spec = TensorSpec::new(name.clone(), datatype, &dims);
    Ok(if symbols.iter().any(Option::is_some) { TensorSpec { symbols, ..spec } } else { spec })
}

/// Builds a request of zeros with short varying dimensions. A tree is one root with as many leaves as it may have.
fn example(spec: &ModelSpec, unfolding: &Unfolding) -> Result<Vec<Option<InputTensor>>, String> {
    let mut trees = unfolding.segments.iter().filter_map(|segment| match segment.nodes {
        Nodes::Tree { children, max_nodes } => Some((children, max_nodes)),
        _ => None,
    });
    let tree = trees.next_back();
    let width = |table: usize| spec.inputs[table].dims.get(1).copied().unwrap_or(0);
    let length = tree.map_or(EXAMPLE_LENGTH, |(table, most)| (width(table) + 1).min(i64::from(most)));
    let mut left = MAX_EXAMPLE_BYTES;
    let inputs = spec.inputs.iter().enumerate().map(|(number, input)| {
        let dims = input.dims.iter().map(|&dim| if dim < 0 { length } else { dim });
        let shape: Dims = spec.has_batch_axis().then_some(1).into_iter().chain(dims).collect();
        let size = input.datatype.size_bytes().ok_or_else(|| format!("input '{}' holds strings", input.name))?;
        let bytes = element_count(&shape).and_then(|elements| elements.checked_mul(size));
        let bytes = bytes.filter(|bytes| *bytes <= left);
        let bytes = bytes.ok_or_else(|| format!("input '{}' is too large", input.name))?;
        left -= bytes;
        let mut data = vec![0; bytes];
        if tree.is_some_and(|(table, _)| table == number) {
            // Node 0 has all others as children.
            let children = (0..(bytes / size) as i64).map(|at| if at + 1 < length { at + 1 } else { -1 });
            for (element, child) in data.chunks_exact_mut(size).zip(children) {
                element.copy_from_slice(&child.to_le_bytes()[..size]);
            }
        }
        Ok(Some(InputTensor { shape, data: Bytes::from(data) }))
    });
    inputs.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_example_that_no_memory_holds_is_refused() {
        let input = |name: &str, dims: &[i64]| TensorSpec::new(name, DataType::Int64, dims);
        let refusal = |inputs: Vec<TensorSpec>| {
            let spec = ModelSpec {
                name: "m".to_owned(),
                version: 1,
                max_batch_size: 1,
                inputs,
                outputs: Vec::new(),
                symbols: Vec::new(),
                decoupled: false,
            };
            let unfolding = Unfolding { cells: Vec::new(), segments: Vec::new(), outputs: Vec::new() };
            example(&spec, &unfolding).err()
        };
        assert_eq!(refusal(vec![input("x", &[-1, 3])]), None);
        assert_eq!(refusal(vec![input("x", &[1 << 61, 2])]), Some("input 'x' is too large".to_owned()));
        let both = vec![input("x", &[9]), input("y", &[1 << 27])];
        assert_eq!(refusal(both), Some("input 'y' is too large".to_owned()), "together with the others");
    }
}
