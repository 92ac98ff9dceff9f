//! Where a model runs: its engine, the precision of its products, and its devices.

use paternoster_engine::{OnnxEngine, Precision};
use paternoster_executor::{Placement, Site};

use super::{
    ConfigError, Origin,
    pb::{self, model_instance_group::Kind},
    settings::{OPENVINO, REPEAT, Settings},
    values::{Parsed, PartName},
};

/// Returns the devices that the instance groups name together. If one group leaves the choice to the server (KIND_AUTO,
/// or KIND_MODEL, which leaves it to the backend), the server chooses for all.
pub fn placement(config: &pb::ModelConfig) -> Placement {
    let mut sites = Vec::new();
    for group in &config.instance_group {
        match group.kind() {
            Kind::Auto | Kind::Model => return Placement::Auto,
            Kind::Cpu => sites.push(Site::Cpu),
            Kind::Gpu if group.gpus.is_empty() => sites.push(Site::Cards),
            Kind::Gpu => {
                // A number that does not fit becomes one that no card has.
                let number = |gpu: &i32| u16::try_from(*gpu).unwrap_or(u16::MAX);
                sites.extend(group.gpus.iter().map(|gpu| Site::Card(number(gpu))));
            }
        }
    }
    if sites.is_empty() { Placement::Auto } else { Placement::On(sites) }
}

/// Returns the engine and the precision of a model. If the configuration names no engine, Triton's `backend` decides.
///
/// # Errors
/// Rejects an engine for a model without a graph.
pub fn engine(settings: &Settings, origin: &Origin) -> Result<(OnnxEngine, Precision), ConfigError> {
    let Settings { config, own } = settings;
    let by_backend = if config.backend == OPENVINO { OnnxEngine::OpenVino } else { OnnxEngine::default() };
    if own.engine.is_some() && config.backend == REPEAT {
        let message = format!("the backend '{}' runs no graph: remove this", REPEAT);
        return Err(origin.error("engine", message));
    }
    let precision = own.instance.precision.map(|Parsed(precision)| precision);
    Ok((own.engine.map_or(by_backend, |Parsed(engine)| engine), precision.unwrap_or_default()))
}

/// Returns the engine and the precision of a cell, which default to those of the model.
///
/// # Errors
/// As [`engine()`].
pub fn engine_of_cell(
    settings: &Settings,
    cell: &str,
    origin: &Origin,
) -> Result<(OnnxEngine, Precision), ConfigError> {
    let (engine, precision) = self::engine(settings, origin)?;
    let Some(own) = settings.own.cells.get(&PartName(cell.to_owned())) else { return Ok((engine, precision)) };
    Ok((own.engine.map_or(engine, |Parsed(engine)| engine), own.precision.map_or(precision, |Parsed(own)| own)))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::{
        ConfigErrorKind::Value,
        parameters::tests::{folded, parameter},
        tests::refusals::{Refusals, part},
    };

    fn read(backend: &str, parameters: &[(&str, &str)]) -> Result<(OnnxEngine, Precision), ConfigError> {
        let mut settings = folded(parameters)?;
        backend.clone_into(&mut settings.config.backend);
        engine(&settings, &Origin::default())
    }

    #[test]
    fn a_model_runs_by_onnx_runtime_unless_it_says_otherwise() {
        assert_eq!(read("", &[]), Ok((OnnxEngine::OnnxRuntime, Precision::Ieee)));
        assert_eq!(read("onnxruntime", &[("engine", "openvino")]), Ok((OnnxEngine::OpenVino, Precision::Ieee)));
        assert_eq!(read("openvino", &[]), Ok((OnnxEngine::OpenVino, Precision::Ieee)));
        assert_eq!(read("openvino", &[("engine", "onnxruntime")]), Ok((OnnxEngine::OnnxRuntime, Precision::Ieee)));
        let bf16 = [("engine", "openvino"), ("instance.precision", "bf16")];
        assert_eq!(read("", &bf16), Ok((OnnxEngine::OpenVino, Precision::Bf16)));
    }

    #[test]
    fn a_cell_has_its_own_or_the_model_s() {
        let settings = folded(&[
            ("engine", "openvino"),
            ("instance.precision", "bf16"),
            (
                "paternoster",
                "cells: { head: { program: h, engine: onnxruntime }, tail: { program: t, precision: fp32 } }",
            ),
        ]);
        let settings = settings.expect("they are well formed");
        let cell = |name| engine_of_cell(&settings, name, &Origin::default()).expect("it has a graph");
        assert_eq!(cell("step"), (OnnxEngine::OpenVino, Precision::Bf16));
        assert_eq!(cell("head"), (OnnxEngine::OnnxRuntime, Precision::Bf16));
        assert_eq!(cell("tail"), (OnnxEngine::OpenVino, Precision::Ieee));
    }

    pub(crate) fn refusals(all: &mut Refusals) {
        part(all, "engines and precisions", parameter).refuses(&[
            (Value, "parameters[engine]", "engine: tensorrt"),
            (Value, "parameters[instance.precision]", "instance.precision: FP16"),
            (
                Value,
                "parameters[paternoster]:1:38: cells.step.precision",
                "paternoster: cells: { step: { program: step.onnx, precision: half } }",
            ),
        ]);
        all.add(
            Value,
            "parameters[engine]",
            "an engine for the backend 'repeat'",
            read("repeat", &[("engine", "openvino")]),
        );
    }

    fn group(kind: Kind, gpus: &[i32]) -> pb::ModelInstanceGroup {
        pb::ModelInstanceGroup { kind: kind.into(), gpus: gpus.to_vec(), ..Default::default() }
    }

    #[test]
    fn instance_groups_name_devices() {
        let of = |groups: &[pb::ModelInstanceGroup]| {
            placement(&pb::ModelConfig { instance_group: groups.to_vec(), ..Default::default() })
        };
        assert_eq!(of(&[]), Placement::Auto);
        assert_eq!(of(&[group(Kind::Cpu, &[])]), Placement::On(vec![Site::Cpu]));
        assert_eq!(of(&[group(Kind::Gpu, &[])]), Placement::On(vec![Site::Cards]));
        let named = of(&[group(Kind::Gpu, &[1, 2]), group(Kind::Cpu, &[])]);
        assert_eq!(named, Placement::On(vec![Site::Card(1), Site::Card(2), Site::Cpu]));
        assert_eq!(of(&[group(Kind::Cpu, &[]), group(Kind::Auto, &[])]), Placement::Auto);
        assert_eq!(of(&[group(Kind::Model, &[])]), Placement::Auto);
    }
}
