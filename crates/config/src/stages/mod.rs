//! `stages` and `exits`: where a model is to be cut, and where rows leave before the last stage. Whether the graph can
//! be cut there is checked when it is loaded.

use std::collections::BTreeMap;

use super::{
    ConfigError, Origin, SettingError,
    knobs::Whole,
    model::{ExitSettings, MAX_STAGES, Stages},
    nearest::suggestion,
    settings::{REPEAT, Settings},
    values::NonEmpty,
};

/// Maximum number of exits of a model.
const MAX_EXITS: usize = 256;

/// How a version is to be cut into stages.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StageRequest {
    /// Where it is cut.
    pub cuts: StageCuts,
    /// Where rows leave before the last stage (DVABatch section 9.2), in the order of the configuration.
    pub exits: Vec<ExitRequest>,
}

impl StageRequest {
    /// Returns the number of stages, at least 1.
    pub fn count(&self) -> u16 {
        match &self.cuts {
            StageCuts::Whole => 1,
            StageCuts::Parts(count) => *count,
            StageCuts::At(tensors) => u16::try_from(tensors.len() + 1).unwrap_or(MAX_STAGES),
        }
    }
}

/// Where a model is to be cut.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum StageCuts {
    /// Nowhere: the model is one stage.
    #[default]
    Whole,
    /// Into this number of stages of about equal run time, at least 2.
    Parts(u16),
    /// At these tensors, at least one: stage n ends with the n-th tensor.
    At(Vec<String>),
}

/// An exit: rows whose value after a stage is high enough leave.
#[derive(Clone, Debug, PartialEq)]
pub struct ExitRequest {
    /// The stage after which rows may leave; never the last.
    pub stage: u16,
    /// A tensor with one FP32 value per row.
    pub value: String,
    /// Rows with at least this value leave.
    pub at_least: f32,
    /// Where rows that leave continue.
    pub to: ExitRequestTo,
}

/// Where rows that leave continue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExitRequestTo {
    /// Nowhere: they are complete. For outputs of the model, by name: the tensor of the stage that gives the output.
    /// Earlier stages have given the other outputs.
    Done(BTreeMap<String, String>),
    /// At this stage, at least two after the exit's.
    Stage(u16),
}

/// Reads the stages and exits of a completed configuration.
///
/// # Errors
/// Rejects stages of models that cannot be cut, and exits to stages or outputs that do not exist.
pub fn read(settings: &Settings, origin: &Origin) -> Result<StageRequest, ConfigError> {
    let reader = Reader { settings, origin };
    let cuts = reader.cuts()?;
    if cuts != StageCuts::Whole {
        reader.can_be_cut(&cuts)?;
    }
    let mut request = StageRequest { cuts, exits: Vec::new() };
    request.exits = reader.exits(request.count())?;
    Ok(request)
}

#[derive(Clone, Copy)]
struct Reader<'c> {
    settings: &'c Settings,
    origin: &'c Origin,
}

impl Reader<'_> {
    fn refuse(self, key: &str, message: impl Into<SettingError>) -> ConfigError {
        self.origin.error(key, message)
    }

    fn cuts(self) -> Result<StageCuts, ConfigError> {
        let tensors = match &self.settings.own.stages {
            None | Some(Stages::Word(_) | Stages::Count(Whole(1))) => return Ok(StageCuts::Whole),
            Some(Stages::Count(count)) => return Ok(StageCuts::Parts(count.0)),
            Some(Stages::At(NonEmpty(tensors))) => tensors,
        };
        for (number, tensor) in tensors.iter().enumerate() {
            let refuse = |message: String| Err(self.refuse(&format!("stages[{number}]"), message));
            if number >= usize::from(MAX_STAGES) - 1 {
                return refuse(format!("expected at most {MAX_STAGES} stages"));
            }
            if tensor.is_empty() {
                return refuse("expected the name of a tensor".to_owned());
            }
            if tensors[..number].contains(tensor) {
                return refuse(format!("the tensor '{tensor}' is given twice"));
            }
        }
        Ok(StageCuts::At(tensors.clone()))
    }

    fn can_be_cut(self, cuts: &StageCuts) -> Result<(), ConfigError> {
        let key = if matches!(cuts, StageCuts::At(_)) { "stages[0]" } else { "stages" };
        let refuse_if = |applies, message: &str| self.origin.refuse_if(applies, key, message);
        let Settings { config, .. } = self.settings;
        refuse_if(config.backend == REPEAT, "the backend 'repeat' has no graph to cut: remove this")?;
        let batch = "stages hand on rows of a batch: expected a max_batch_size of at least 1, but it is 0";
        refuse_if(config.max_batch_size < 1, batch)?;
        let decoupled = "stages give one response to a request, but the model is decoupled: remove one of the two";
        refuse_if(self.settings.is_decoupled(), decoupled)
    }

    fn exits(self, stages: u16) -> Result<Vec<ExitRequest>, ConfigError> {
        let exits = &self.settings.own.exits;
        if exits.len() > MAX_EXITS {
            let message = format!("expected at most {MAX_EXITS} exits");
            return Err(self.refuse(&format!("exits.{MAX_EXITS}.at_least"), message));
        }
        if stages < 2 && !exits.is_empty() {
            let message = "an exit leaves the order of stages, but the model is not cut: give 'stages' as a number \
                           above 1 or as tensors to cut at";
            return Err(self.refuse("exits[0].at_least", message));
        }
        exits.iter().enumerate().map(|(number, exit)| self.exit(number, exit, stages)).collect()
    }

    fn exit(self, number: usize, exit: &ExitSettings, stages: u16) -> Result<ExitRequest, ConfigError> {
        let refuse = |key: &str, message: String| Err(self.refuse(&format!("exits[{number}].{key}"), message));
        let (stage, last) = (exit.stage.0, stages - 1);
        if stage >= last {
            return refuse(
                "stage",
                format!("expected a stage from 0 to {}, before the last, but found {stage}", last - 1),
            );
        }
        #[allow(clippy::cast_possible_truncation)]
        let at_least = exit.at_least.0 as f32;
        if !at_least.is_finite() {
            return refuse("at_least", format!("expected a number of 32 bits, but found {:e}", exit.at_least.0));
        }
        for name in exit.outputs.keys() {
            let mut outputs = self.settings.config.output.iter().map(|output| output.name.as_str());
            if !outputs.clone().any(|output| output == name) {
                let hint = suggestion(name, &mut outputs);
                return refuse(&format!("outputs.{name}"), format!("the model has no output '{name}'{hint}"));
            }
        }
        let nearest = stage + 2;
        let to = match exit.skip_to.map(|target| target.0) {
            None => {
                let outputs = exit.outputs.iter().map(|(name, tensor)| (name.clone(), tensor.0.clone()));
                ExitRequestTo::Done(outputs.collect())
            }
            Some(_) if !exit.outputs.is_empty() => {
                let message = "rows that leave are either done, with outputs, or skip stages: expected one of the two";
                return refuse("skip_to", message.to_owned());
            }
            Some(_) if nearest > last => {
                let message = format!("nothing can be skipped behind stage {stage}: the next one, {last}, is the last");
                return refuse("skip_to", message);
            }
            Some(target) if !(nearest..=last).contains(&target) => {
                let message = format!("expected a stage from {nearest} to {last}, but found {target}");
                return refuse("skip_to", message);
            }
            Some(target) => ExitRequestTo::Stage(target),
        };
        Ok(ExitRequest { stage, value: exit.value.0.clone(), at_least, to })
    }
}

#[cfg(test)]
pub(crate) mod tests;
