//! What runs a model on the CPU, and what each of its cells.

use super::{
    ConfigError, complete,
    origin::Origin,
    params, pb, precision,
    unfold::{CELLS, keys},
};
use crate::engine::{OnnxEngine, Precision};

/// Key: a name of [`OnnxEngine::NAMES`].
pub const ENGINE: &str = "engine";

/// The engine and the precision of a model. An engine that the configuration does not name is the one that Triton's
/// `backend` names.
///
/// # Errors
/// When either names none, or the model has no graph that an engine could run.
pub fn of(config: &pb::ModelConfig, origin: &Origin) -> Result<(OnnxEngine, Precision), ConfigError> {
    let by_backend = if config.backend == complete::OPENVINO { OnnxEngine::OpenVino } else { OnnxEngine::default() };
    let engine = read::<OnnxEngine>(config, ENGINE, origin)?;
    if engine.is_some() && config.backend == complete::REPEAT {
        let message = format!("the backend '{}' runs no graph: remove this", complete::REPEAT);
        return Err(origin.error(&params::path(ENGINE), message));
    }
    Ok((engine.unwrap_or(by_backend), precision::of(config, origin)?))
}

/// The engine and the precision of a cell: its own, else those of the model.
///
/// # Errors
/// As [`of`].
pub fn of_cell(config: &pb::ModelConfig, cell: &str, origin: &Origin) -> Result<(OnnxEngine, Precision), ConfigError> {
    let (engine, precision) = of(config, origin)?;
    let key = |name: &str| format!("{CELLS}.{cell}.{name}");
    let own_engine = read(config, &key(keys::ENGINE), origin)?;
    let own_precision = read(config, &key(keys::PRECISION), origin)?;
    Ok((own_engine.unwrap_or(engine), own_precision.unwrap_or(precision)))
}

fn read<T: std::str::FromStr<Err = String>>(
    config: &pb::ModelConfig,
    key: &str,
    origin: &Origin,
) -> Result<Option<T>, ConfigError> {
    let Some(parameter) = config.parameters.get(key) else { return Ok(None) };
    parameter.string_value.parse().map(Some).map_err(|fault: String| origin.error(&params::path(key), fault))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(backend: &str, parameters: &[(&str, &str)]) -> pb::ModelConfig {
        let mut config = pb::ModelConfig { backend: backend.to_owned(), ..pb::ModelConfig::default() };
        for (key, text) in parameters {
            let value = pb::ModelParameter { string_value: (*text).to_owned() };
            config.parameters.insert((*key).to_owned(), value);
        }
        config
    }

    fn read(backend: &str, parameters: &[(&str, &str)]) -> Result<(OnnxEngine, Precision), String> {
        of(&with(backend, parameters), &Origin::default()).map_err(|error| error.to_string())
    }

    #[test]
    fn a_model_runs_by_onnx_runtime_unless_it_says_otherwise() {
        assert_eq!(read("", &[]), Ok((OnnxEngine::OnnxRuntime, Precision::Ieee)));
        assert_eq!(read("onnxruntime", &[("engine", "openvino")]), Ok((OnnxEngine::OpenVino, Precision::Ieee)));
        assert_eq!(read("openvino", &[]), Ok((OnnxEngine::OpenVino, Precision::Ieee)));
        assert_eq!(read("openvino", &[("engine", "onnxruntime")]), Ok((OnnxEngine::OnnxRuntime, Precision::Ieee)));
        let bf16 = [("engine", "openvino"), ("instance.precision", "bf16")];
        assert_eq!(read("", &bf16), Ok((OnnxEngine::OpenVino, Precision::Bf16)));
        let refused = read("", &[("engine", "tensorrt")]).expect_err("there is none");
        assert!(
            refused.ends_with("parameters[engine]: expected onnxruntime or openvino, but found 'tensorrt'"),
            "{refused}"
        );
        let refused = read("repeat", &[("engine", "openvino")]).expect_err("it has no graph");
        assert!(refused.ends_with("the backend 'repeat' runs no graph: remove this"), "{refused}");
    }

    #[test]
    fn a_cell_has_its_own_or_the_model_s() {
        let config = with(
            "",
            &[
                ("engine", "openvino"),
                ("instance.precision", "bf16"),
                ("cells.head.engine", "onnxruntime"),
                ("cells.tail.precision", "fp32"),
            ],
        );
        let cell = |name| of_cell(&config, name, &Origin::default()).expect("they are well formed");
        assert_eq!(cell("step"), (OnnxEngine::OpenVino, Precision::Bf16));
        assert_eq!(cell("head"), (OnnxEngine::OnnxRuntime, Precision::Bf16));
        assert_eq!(cell("tail"), (OnnxEngine::OpenVino, Precision::Ieee));
        let wrong = with("", &[("cells.step.precision", "half")]);
        let refused = of_cell(&wrong, "step", &Origin::default()).expect_err("there is none").to_string();
        assert!(refused.contains("parameters[cells.step.precision]: expected "), "{refused}");
    }
}
