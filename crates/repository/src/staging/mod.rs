//! Turns a graph that was cut into the plan of its stages: where their tensors come from and go to, and where rows
//! exit.

use std::collections::BTreeMap;

use paternoster_config::stages::{ExitRequest, ExitRequestTo, StageCuts, StageRequest};
use paternoster_model::{
    BoundaryDim, BoundaryTensor, Exit, ExitTo, InputSource, ModelSpec, Sink, StagePlan, StageSpec, SymbolId, TensorSpec,
};
use paternoster_onnx::{
    Model, PortDim,
    cut::{Cuts, StageGraph, StagePort, cut},
    infer::infer,
};

use super::LoadError;

/// Cuts a model as configured. Returns the plan of its stages, and their graphs in order.
///
/// # Errors
/// Fails if the graph cannot be cut there, or an exit names a tensor that its stage does not compute. The message names
/// alternatives.
pub fn cut_into_stages(
    model: &Model,
    spec: &ModelSpec,
    request: &StageRequest,
) -> Result<(StagePlan, Vec<Model>), LoadError> {
    let graphs = stage_graphs(model, &request.cuts, &exit_tensors(request))?;
    let symbols = symbols(model, spec);
    // The tensors that each stage leaves for later ones, in the order of its outputs.
    let left: Vec<Vec<&StagePort>> = graphs
        .iter()
        .enumerate()
        .map(|(stage, graph)| graph.outputs.iter().filter(|port| crosses(port, stage)).collect())
        .collect();
    let mut stages = Vec::with_capacity(graphs.len());
    for (number, graph) in graphs.iter().enumerate() {
        let inputs = graph.inputs.iter();
        let inputs = inputs.map(|port| source(spec, &symbols, &left, port)).collect::<Result<_, LoadError>>()?;
        let mut outputs = Vec::with_capacity(graph.outputs.len());
        for port in &graph.outputs {
            sinks(spec, &symbols, &left[number], port, &mut outputs);
        }
        // Exits come last, since they may add outputs that no later stage reads.
        let own = request.exits.iter().filter(|exit| usize::from(exit.stage) == number);
        let exits = own.map(|wanted| exit(spec, &symbols, graph, wanted, &mut outputs));
        let exits = exits.collect::<Result<_, LoadError>>()?;
        stages.push(StageSpec { inputs, outputs, exits });
    }
    let boundaries = left.iter().take(graphs.len() - 1);
    let boundaries = boundaries.map(|ports| ports.iter().map(|port| boundary(&symbols, port)).collect()).collect();
    Ok((StagePlan { stages, boundaries }, graphs.into_iter().map(|graph| graph.model).collect()))
}

/// Cuts a model. `extra` are tensors that stages output although no later stage reads them.
///
/// # Errors
/// Fails if the graph cannot be cut there. The message names alternatives.
pub(super) fn stage_graphs(model: &Model, cuts: &StageCuts, extra: &[String]) -> Result<Vec<StageGraph>, LoadError> {
    let cuts = match cuts {
        StageCuts::Whole => Cuts::Parts(1),
        StageCuts::Parts(count) => Cuts::Parts(usize::from(*count)),
        StageCuts::At(tensors) => Cuts::At(tensors),
    };
    cut(model, cuts, extra).map_err(LoadError::graph)
}

/// Returns the tensors that exits test or reply with.
pub(super) fn exit_tensors(request: &StageRequest) -> Vec<String> {
    let mut tensors = Vec::new();
    for exit in &request.exits {
        let answers = match &exit.to {
            ExitRequestTo::Done(outputs) => outputs.values().cloned().collect(),
            ExitRequestTo::Stage(_) => Vec::new(),
        };
        for tensor in std::iter::once(exit.value.clone()).chain(answers) {
            if !tensors.contains(&tensor) {
                tensors.push(tensor);
            }
        }
    }
    tensors
}

fn crosses(port: &StagePort, stage: usize) -> bool {
    port.last_read_in.is_some_and(|reader| reader > stage)
}

/// Padded axes, by the names of the graph's symbols.
type Symbols = BTreeMap<String, SymbolId>;

fn symbols(model: &Model, spec: &ModelSpec) -> Symbols {
    let inferred = infer(model);
    let mut symbols = BTreeMap::new();
    for input in &spec.inputs {
        let dims = inferred.tensor(&input.name).and_then(|tensor| tensor.dims.as_deref());
        for (dim, symbol) in dims.unwrap_or_default().iter().skip(1).zip(&input.symbols) {
            if let (PortDim::Symbol(name), Some(symbol)) = (dim, symbol) {
                symbols.insert(name.clone(), *symbol);
            }
        }
    }
    symbols
}

fn source(
    spec: &ModelSpec,
    symbols: &Symbols,
    left: &[Vec<&StagePort>],
    port: &StagePort,
) -> Result<(TensorSpec, InputSource), LoadError> {
    let Some(maker) = port.made_in else {
        let index = spec.input_index(&port.name);
        let index = index.ok_or_else(|| {
            LoadError::graph(format!("a stage reads '{}', which is not an input of the model", port.name))
        })?;
        return Ok((spec.inputs[index].clone(), InputSource::Request(index)));
    };
    let tensor = left[maker].iter().position(|other| other.name == port.name);
    let tensor = tensor
        .ok_or_else(|| LoadError::graph(format!("stage {maker} does not leave '{}' for a later one", port.name)))?;
    Ok((tensor_spec(symbols, port), InputSource::Boundary { boundary: number(maker), tensor: number(tensor) }))
}

fn sinks(
    spec: &ModelSpec,
    symbols: &Symbols,
    left: &[&StagePort],
    port: &StagePort,
    outputs: &mut Vec<(TensorSpec, Sink)>,
) {
    if let Some(reply) = spec.output_index(&port.name).filter(|_| port.is_graph_output) {
        outputs.push((spec.outputs[reply].clone(), Sink::Reply(reply)));
    }
    if let Some(tensor) = left.iter().position(|other| other.name == port.name) {
        outputs.push((tensor_spec(symbols, port), Sink::Boundary(number(tensor))));
    }
}

fn exit(
    spec: &ModelSpec,
    symbols: &Symbols,
    graph: &StageGraph,
    wanted: &ExitRequest,
    outputs: &mut Vec<(TensorSpec, Sink)>,
) -> Result<Exit, LoadError> {
    let mut made = |tensor: &String| {
        if let Some(at) = outputs.iter().position(|(other, _)| other.name == *tensor) {
            return Ok(at);
        }
        let port = graph.outputs.iter().find(|port| port.name == *tensor);
        let port = port.ok_or_else(|| {
            let there: Vec<&str> = graph.outputs.iter().map(|port| port.name.as_str()).collect();
            LoadError::settings(format!(
                "an exit behind stage {} names '{tensor}', which that stage does not make; it makes {there:?}",
                wanted.stage
            ))
        })?;
        outputs.push((tensor_spec(symbols, port), Sink::Exit));
        Ok::<_, LoadError>(outputs.len() - 1)
    };
    let value = made(&wanted.value)?;
    let to = match &wanted.to {
        ExitRequestTo::Stage(stage) => ExitTo::Stage(*stage),
        ExitRequestTo::Done(answers) => {
            let answer = |output: &TensorSpec| answers.get(&output.name).map(&mut made).transpose();
            ExitTo::Done(spec.outputs.iter().map(answer).collect::<Result<_, LoadError>>()?)
        }
    };
    Ok(Exit { value, at_least: wanted.at_least, to })
}

/// Returns the specification of a tensor between stages, without the batch axis.
fn tensor_spec(symbols: &Symbols, port: &StagePort) -> TensorSpec {
    let dims = || port.dims.as_deref().unwrap_or_default().iter().skip(1);
    let lengths = dims().map(|dim| match dim {
        PortDim::Fixed(length) => *length,
        PortDim::Symbol(_) | PortDim::Unknown => -1,
    });
    let padded = dims().map(|dim| match dim {
        PortDim::Symbol(name) => symbols.get(name).copied(),
        PortDim::Fixed(_) | PortDim::Unknown => None,
    });
    let spec = TensorSpec::new(port.name.clone(), port.datatype, &lengths.collect::<Vec<_>>());
    TensorSpec { symbols: padded.collect(), ..spec }
}

fn boundary(symbols: &Symbols, port: &StagePort) -> BoundaryTensor {
    let dim = |dim: &PortDim| match dim {
        PortDim::Fixed(length) => Some(BoundaryDim::Fixed(*length)),
        PortDim::Symbol(name) => symbols.get(name).map(|symbol| BoundaryDim::Symbol(*symbol)),
        PortDim::Unknown => None,
    };
    let dims = port.dims.as_deref().and_then(|dims| dims.iter().skip(1).map(dim).collect());
    BoundaryTensor { name: port.name.clone(), datatype: port.datatype, dims }
}

fn number(index: usize) -> u16 {
    u16::try_from(index).unwrap_or(u16::MAX)
}

#[cfg(test)]
pub(crate) mod tests;
