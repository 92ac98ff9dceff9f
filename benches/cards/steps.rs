//! One network: its plan in each precision, its graph for each number of rows, and how long that takes.

use std::{error::Error, rc::Rc, time::Duration};

use paternoster_device::{
    DeviceError,
    cuda::{CapturedGraph, Cuda},
};
use paternoster_engine::{
    Precision, RunParameters,
    cuda::{LoadedPlan, Plan, Workspace},
};
use serde::Serialize;

use crate::{STREAM, ceilings::Ceilings, networks::Network, timing};

/// A time.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Step {
    pub(crate) network: String,
    pub(crate) precision: String,
    pub(crate) rows: u32,
    /// Of a captured graph, launched behind others.
    pub(crate) microseconds: f64,
    /// What its products and convolutions, and reading their weights, take at the card's own speeds.
    pub(crate) floor_microseconds: f64,
    /// Kernels and calls of libraries in the graph.
    pub(crate) launches: usize,
}

/// Measures a network in each precision, and adds its times to `steps` as they are measured. Inputs are zeros: no time
/// here depends on values. Returns what was left out, and why: the network with its precision.
pub(crate) fn measure(
    cuda: &mut Cuda,
    network: &Network,
    ceilings: &Ceilings,
    lasting: Duration,
    steps: &mut Vec<Step>,
) -> Vec<(String, String)> {
    let mut skipped = Vec::new();
    for (name, precision) in Precision::NAMES {
        if let Err(reason) = measure_in(cuda, network, (name, precision), ceilings, lasting, steps) {
            skipped.push((format!("{}, {name}", network.name), reason.to_string()));
        }
    }
    skipped
}

fn measure_in(
    cuda: &mut Cuda,
    network: &Network,
    (name, precision): (&str, Precision),
    ceilings: &Ceilings,
    lasting: Duration,
    steps: &mut Vec<Step>,
) -> Result<(), Box<dyn Error>> {
    let Network { model, inputs, outputs, rows, .. } = network;
    let plan = Plan::new(model, inputs, outputs, true, precision)?;
    let loaded = plan.load(cuda)?;
    let workspace = loaded.reserve(cuda, STREAM, rows.last().copied().unwrap_or(1))?;
    for &rows in rows {
        let seconds = time(cuda, &loaded, &workspace, rows, lasting)?;
        let demand = plan.demand(rows);
        let floor = ceilings.floor(precision, demand.flops, demand.weight_bytes as f64);
        steps.push(Step {
            network: network.name.clone(),
            precision: name.to_owned(),
            rows,
            microseconds: seconds * 1e6,
            floor_microseconds: floor * 1e6,
            launches: plan.launches(),
        });
    }
    Ok(())
}

fn time(
    cuda: &mut Cuda,
    loaded: &LoadedPlan,
    workspace: &Workspace,
    rows: u32,
    lasting: Duration,
) -> Result<f64, Box<dyn Error>> {
    let graph = captured(cuda, loaded, workspace, rows)?;
    Ok(timing::seconds(cuda, &graph, &live(rows), lasting)?)
}

/// Captures a batch of `rows` rows, which are the graph's parameter as well.
fn captured(
    cuda: &mut Cuda,
    loaded: &LoadedPlan,
    workspace: &Workspace,
    rows: u32,
) -> Result<Rc<CapturedGraph>, DeviceError> {
    let prepared = loaded.prepare(cuda, workspace, rows)?;
    let graph = cuda.capture(STREAM, size_of::<i32>(), |capture| {
        let parameters = RunParameters { live: capture.parameters(), lengths: &[] };
        prepared.issue(capture, parameters)
    })?;
    Ok(Rc::new(graph))
}

/// The parameter of such a graph.
fn live(rows: u32) -> [u8; 4] {
    i32::try_from(rows).unwrap_or(i32::MAX).to_ne_bytes()
}
