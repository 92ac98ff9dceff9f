//! `pipeline` of `model.yaml`, and `ensemble_scheduling` of Triton's `config.pbtxt`: the steps of a pipeline.

use std::sync::Arc;

use paternoster_pipeline::{BuiltIn, Condition, GraphFault, PipelineGraph, PortBinding, Runs, Step, Test};

use super::{
    ConfigError, Origin, SettingError,
    knobs::given,
    model::{ModelStep, PipelineStep, Scalar, When},
    pb::{self, model_config::SchedulingChoice, model_ensembling},
    settings::Settings,
};

/// The platform of pipelines in `ModelConfig`, as in Triton.
pub const ENSEMBLE: &str = "ensemble";

/// The path of the steps in each form.
const STEPS: &str = "pipeline";
const ENSEMBLE_STEPS: &str = "ensemble_scheduling.step";

/// Returns `ensemble_scheduling`.
pub fn ensemble(config: &pb::ModelConfig) -> Option<&pb::ModelEnsembling> {
    match &config.scheduling_choice {
        Some(SchedulingChoice::EnsembleScheduling(ensemble)) => Some(ensemble),
        _ => None,
    }
}

/// Whether a configuration is that of a pipeline, in whatever form.
pub fn is_pipeline(settings: &Settings) -> bool {
    !settings.own.pipeline.is_empty() || ensemble(&settings.config).is_some() || settings.config.platform == ENSEMBLE
}

/// Returns the names of the models that its steps run, each once.
pub fn models(settings: &Settings) -> Vec<String> {
    let own = settings.own.pipeline.iter().filter_map(|step| match step {
        PipelineStep::Model(step) => Some(step.name.0.clone()),
        _ => None,
    });
    let steps = ensemble(&settings.config).into_iter().flat_map(|ensemble| &ensemble.step);
    let mut names: Vec<String> = own.chain(steps.map(|step| step.model_name.clone())).collect();
    names.sort_unstable();
    names.dedup();
    names
}

/// Shows the steps of `model.yaml` as Triton's `ensemble_scheduling`, if they have nothing that it cannot express.
pub fn as_ensemble(steps: &[PipelineStep]) -> Option<pb::ModelEnsembling> {
    let step = |step: &PipelineStep| match step {
        PipelineStep::Model(ModelStep { name, version, inputs, outputs, when: None }) => Some(model_ensembling::Step {
            model_name: name.0.clone(),
            model_version: version.map_or(-1, |version| version.0),
            // Triton's `input_map` and `output_map` both have the model's name first.
            input_map: ModelStep::names(inputs),
            output_map: ModelStep::names(outputs),
            ..Default::default()
        }),
        _ => None,
    };
    let step = steps.iter().map(step).collect::<Option<_>>()?;
    Some(pb::ModelEnsembling { step, ..Default::default() })
}

/// Refuses settings of models that a pipeline does not have. Call it before completion.
///
/// # Errors
/// Returns the first of them.
pub fn check(settings: &Settings, origin: &Origin) -> Result<(), ConfigError> {
    let Settings { config, own } = settings;
    let refuse = |key: &str| {
        let noun = if own.pipeline.is_empty() { "an ensemble" } else { "a pipeline" };
        Err(origin.error(key, format!("{noun} has none: it belongs to the models of its steps")))
    };
    if let Some(key) = given(&own.batching).first() {
        return refuse(&format!("batching.{key}"));
    }
    let has_keys = [
        ("engine", own.engine.is_some()),
        ("stages", own.stages.is_some()),
        ("exits", !own.exits.is_empty()),
        ("cells", !own.cells.is_empty()),
        ("unfold", !own.unfold.is_empty()),
        ("pad", !own.pad.is_empty()),
        ("text", own.text.is_some()),
        ("generate", own.generate.is_some()),
        ("instance_group", !config.instance_group.is_empty()),
        ("default_model_filename", !config.default_model_filename.is_empty()),
        ("model_warmup", !config.model_warmup.is_empty()),
        ("dynamic_batching", matches!(config.scheduling_choice, Some(SchedulingChoice::DynamicBatching(_)))),
        ("sequence_batching", matches!(config.scheduling_choice, Some(SchedulingChoice::SequenceBatching(_)))),
        ("backend", !config.backend.is_empty()),
    ];
    if let Some((key, _)) = has_keys.into_iter().find(|(_, is_given)| *is_given) {
        return refuse(key);
    }
    Ok(())
}

/// Creates the built-in step that a step of `model.yaml` describes.
pub type BuiltIns<'a> = &'a dyn Fn(&PipelineStep) -> Result<Arc<dyn BuiltIn>, SettingError>;

/// Reads the graph of a pipeline whose inputs and outputs have been checked.
///
/// # Errors
/// If steps make no graph, or a built-in step cannot be created.
pub fn read(settings: &Settings, origin: &Origin, built_ins: BuiltIns<'_>) -> Result<PipelineGraph, ConfigError> {
    let Settings { config, own } = settings;
    let (path, steps) = match ensemble(config) {
        _ if !own.pipeline.is_empty() => {
            let steps = own.pipeline.iter().enumerate().map(|(number, step)| own_step(number, step, origin, built_ins));
            (STEPS, steps.collect::<Result<Vec<_>, _>>()?)
        }
        Some(ensemble) => {
            let steps = ensemble.step.iter().enumerate().map(|(number, step)| ensemble_step(number, step, origin));
            (ENSEMBLE_STEPS, steps.collect::<Result<Vec<_>, _>>()?)
        }
        None => return Err(origin.error("platform", "an ensemble must specify 'ensemble_scheduling'")),
    };
    let inputs: Vec<&str> = config.input.iter().map(|input| input.name.as_str()).collect();
    let outputs: Vec<&str> = config.output.iter().map(|output| output.name.as_str()).collect();
    let graph = PipelineGraph::new(&inputs, &outputs, steps).map_err(|fault| graph_fault(path, &fault, origin))?;
    Ok(if path == STEPS { graph } else { graph.called_ensemble() })
}

/// Places a fault at its step.
fn graph_fault(path: &str, fault: &GraphFault, origin: &Origin) -> ConfigError {
    let key = fault.step().map_or_else(|| path.to_owned(), |step| format!("{path}[{step}]"));
    let advice = match fault {
        // The steps of ensembles have no conditions.
        GraphFault::GivenTwice { other: Some(_), .. } if path == STEPS => "; steps with a condition may share one",
        _ => "",
    };
    origin.error(&key, format!("{fault}{advice}"))
}

/// Places a fault that loading found at its step.
pub fn at_step(settings: &Settings, step: Option<usize>, message: &str, origin: &Origin) -> ConfigError {
    let path = if settings.own.pipeline.is_empty() { ENSEMBLE_STEPS } else { STEPS };
    origin.error(&step.map_or_else(|| path.to_owned(), |step| format!("{path}[{step}]")), message)
}

fn own_step(number: usize, step: &PipelineStep, origin: &Origin, built_ins: BuiltIns<'_>) -> Result<Step, ConfigError> {
    let path = format!("{STEPS}[{number}].{}", step.kind());
    let runs = match step {
        PipelineStep::Model(ModelStep { name, version, .. }) => {
            Runs::Served { model: name.0.clone(), version: version.map(|version| version.0) }
        }
        built_in => built_ins(built_in).map(Runs::BuiltIn).map_err(|fault| origin.error(&path, fault))?,
    };
    let (inputs, outputs, when) = step.ports();
    Ok(Step {
        runs,
        inputs: ports(ModelStep::names(inputs)),
        outputs: ports(ModelStep::names(outputs)),
        when: when.map(|when| condition(when, &path, origin)).transpose()?,
    })
}

fn condition(when: &When, path: &str, origin: &Origin) -> Result<Condition, ConfigError> {
    let test = match (&when.at_least, &when.equals) {
        (Some(least), None) => Test::AtLeast(least.0),
        (None, Some(Scalar::Number(number))) => Test::Equals(number.0),
        (None, Some(Scalar::Bool(flag))) => Test::Equals(f64::from(u8::from(*flag))),
        (None, Some(Scalar::Text(text))) => Test::Is(text.clone()),
        _ => return Err(origin.error(&format!("{path}.when"), "expected either 'at_least' or 'equals'")),
    };
    Ok(Condition { tensor: when.tensor.0.clone(), test })
}

fn ensemble_step(number: usize, step: &model_ensembling::Step, origin: &Origin) -> Result<Step, ConfigError> {
    let path = format!("{ENSEMBLE_STEPS}[{number}]");
    let model_ensembling::Step { model_name, model_version, input_map, output_map, model_namespace } = step;
    let namespace = "model namespaces are not supported";
    origin.refuse_if(!model_namespace.is_empty(), &format!("{path}.model_namespace"), namespace)?;
    origin.refuse_if(model_name.is_empty(), &format!("{path}.model_name"), "expected the name of a model")?;
    let version = match *model_version {
        -1 => None,
        number if number > 0 => Some(number),
        // Triton's default for a version that is left out.
        0 => None,
        other => {
            let message = format!("expected a version above 0, or -1 for the latest, but found {other}");
            return Err(origin.error(&format!("{path}.model_version"), message));
        }
    };
    for (key, map) in [("input_map", input_map), ("output_map", output_map)] {
        let path = format!("{path}.{key}");
        origin.refuse_if(map.is_empty(), &path, format!("expected at least one entry for '{model_name}'"))?;
        let is_empty = map.iter().any(|(port, tensor)| port.is_empty() || tensor.is_empty());
        origin.refuse_if(is_empty, &path, "expected the name of a tensor, but found an empty one")?;
    }
    Ok(Step {
        runs: Runs::Served { model: model_name.clone(), version },
        inputs: ports(input_map.clone()),
        outputs: ports(output_map.clone()),
        when: None,
    })
}

fn ports(names: std::collections::BTreeMap<String, String>) -> Vec<PortBinding> {
    names.into_iter().map(|(port, tensor)| PortBinding { port, tensor }).collect()
}
