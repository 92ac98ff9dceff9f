//! A network in stages, with a plan for each stage, as the repository makes them of a model.

use std::{error::Error, sync::Arc};

use paternoster_config::stages::{StageCuts, StageRequest};
use paternoster_engine::{
    Precision, Program,
    cuda::{OnCard, Plan},
};
use paternoster_executor::StagePrograms;
use paternoster_model::{Lengths, ModelSpec, StagePlan, SymbolId, TensorSpec};
use paternoster_onnx::{Model, Port, PortDim, Signature};
use paternoster_repository::cut_into_stages;
use paternoster_testing::program::FakeProgram;

/// Returns the specification of a network, all of whose axes that vary are padded.
pub(crate) fn spec(name: &str, model: &Model, max_rows: u32) -> Result<ModelSpec, Box<dyn Error>> {
    let signature = Signature::from_bytes(name, &model.to_bytes())?;
    let mut symbols: Vec<String> = Vec::new();
    let mut tensor = |port: &Port| {
        let datatype = port.datatype.ok_or_else(|| format!("{name}: '{}' has no datatype", port.name))?;
        let own = port.dims.iter().flatten().skip(1).map(|dim| match dim {
            PortDim::Fixed(fixed) => Ok((*fixed, None)),
            PortDim::Symbol(symbol) => {
                let known = symbols.iter().position(|known| known == symbol);
                let number = known.unwrap_or_else(|| {
                    symbols.push(symbol.clone());
                    symbols.len() - 1
                });
                Ok((-1, Some(SymbolId(u16::try_from(number)?))))
            }
            PortDim::Unknown => Err(format!("{name}: '{}' has an axis without a name", port.name).into()),
        });
        let (dims, symbols): (Vec<i64>, Vec<Option<SymbolId>>) = own.collect::<Result<_, Box<dyn Error>>>()?;
        Ok::<_, Box<dyn Error>>(TensorSpec { symbols: symbols.into(), ..TensorSpec::new(&port.name, datatype, &dims) })
    };
    let inputs = signature.inputs.iter().map(&mut tensor).collect::<Result<_, _>>()?;
    let outputs = signature.outputs.iter().map(&mut tensor).collect::<Result<_, _>>()?;
    let name = name.to_owned();
    Ok(ModelSpec { name, version: 1, max_batch_size: max_rows, inputs, outputs, symbols, decoupled: false })
}

/// Returns the plans of a network that is cut into stages of equal estimated time, and the stages. Axes that vary are
/// `lengths` long.
pub(crate) fn stage_plans(
    model: &Model,
    spec: &ModelSpec,
    count: usize,
    lengths: &Lengths,
    precision: Precision,
) -> Result<(StagePlan, Vec<Plan>), Box<dyn Error>> {
    let request = StageRequest { cuts: StageCuts::Parts(u16::try_from(count)?), exits: Vec::new() };
    let (stages, graphs) = cut_into_stages(model, spec, &request)?;
    let plans = stages.stages.iter().zip(&graphs).map(|(stage, graph)| {
        let prepared = |tensors: Vec<&TensorSpec>| -> Vec<TensorSpec> {
            let prepared = |tensor: &TensorSpec| TensorSpec { dims: tensor.dims_at(lengths), ..tensor.clone() };
            tensors.into_iter().map(prepared).collect()
        };
        let (inputs, outputs) = StagePrograms::tensors(stage);
        Plan::new(graph, &prepared(inputs), &prepared(outputs), true, precision)
    });
    let plans = plans.collect::<Result<_, _>>()?;
    Ok((stages, plans))
}

/// Cuts a network into stages of equal estimated time. Axes that vary are `length` long.
pub(crate) fn in_stages(
    model: &Model,
    spec: &ModelSpec,
    count: usize,
    length: u32,
    precision: Precision,
) -> Result<StagePrograms, Box<dyn Error>> {
    let lengths: Lengths = spec.symbols.iter().map(|_| length).collect();
    let (stages, plans) = stage_plans(model, spec, count, &lengths, precision)?;
    let on_card = |plan| {
        let on_host = Arc::new(FakeProgram::failing("it runs on cards alone"));
        Arc::new(OnCard::new(on_host, vec![(lengths.clone(), plan)])) as Arc<dyn Program>
    };
    Ok(StagePrograms::cut(spec, stages, plans.into_iter().map(on_card).collect())?)
}
