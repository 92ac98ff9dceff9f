//! `stages` and `exits`: where a model is to be cut, and where rows leave the order of stages. They travel in
//! `parameters`: `stages` (a number, or `auto`) or `stages.<n>` (the tensor that stage n ends with), and
//! `exits.<n>.<key>`. Which cuts are possible only the graph knows; the loader finds out.

use std::collections::BTreeMap;

use super::{ConfigError, Origin, complete::REPEAT, knobs::MAX_STAGES, nearest::suggestion, pb};

/// Key of the number of stages; with a dot and a number behind it, of a tensor to cut at. Stages count from 0.
pub const STAGES: &str = "stages";

/// Begins the keys of exits, which count from 0.
pub const EXITS: &str = "exits";

/// Most exits of a model.
const MAX_EXITS: u16 = 256;

const STAGE: &str = "stage";
const VALUE: &str = "value";
const AT_LEAST: &str = "at_least";
const SKIP_TO: &str = "skip_to";
const OUTPUTS: &str = "outputs.";

/// How a version is to be cut into stages.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StageRequest {
    /// Where.
    pub cuts: StageCuts,
    /// Where rows leave the order of stages (DVABatch section 9.2), by ascending number in the configuration.
    pub exits: Vec<ExitRequest>,
}

impl StageRequest {
    /// Number of stages, at least 1.
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
    /// Nowhere: one stage.
    #[default]
    Whole,
    /// Into this many stages of even time, at least 2.
    Parts(u16),
    /// At these tensors, in order: the n-th is what stage n ends with. At least one.
    At(Vec<String>),
}

/// Rows that leave the order of stages: those whose value behind a stage is high enough.
#[derive(Clone, Debug, PartialEq)]
pub struct ExitRequest {
    /// The stage behind which the value is looked at; never the last.
    pub stage: u16,
    /// The tensor that holds one FP32 value a row.
    pub value: String,
    /// Rows with at least this value leave.
    pub at_least: f32,
    /// Where they go.
    pub to: ExitRequestTo,
}

/// Where rows go that leave the order of stages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExitRequestTo {
    /// They are done. For outputs of the model, by name: the tensor of the stage that answers; earlier stages have
    /// given the others.
    Done(BTreeMap<String, String>),
    /// On to this stage, at least two behind.
    Stage(u16),
}

/// What a key of ours is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Key<'k> {
    Stages,
    Cut(u16),
    Exit(u16, &'k str),
}

impl<'k> Key<'k> {
    fn of(key: &'k str) -> Option<Self> {
        if key == STAGES {
            return Some(Self::Stages);
        }
        let (first, rest) = key.split_once('.')?;
        if first == STAGES {
            return number(rest).map(Self::Cut);
        }
        let (exit, name) = rest.split_once('.')?;
        let output = name.strip_prefix(OUTPUTS).is_some_and(|output| !output.is_empty());
        let known = output || [STAGE, VALUE, AT_LEAST, SKIP_TO].contains(&name);
        (first == EXITS && known).then_some(Self::Exit(number(exit)?, name))
    }
}

/// A number in a key, in the one form that `model.yaml` writes.
fn number(text: &str) -> Option<u16> {
    let number: u16 = text.parse().ok()?;
    (number.to_string() == text).then_some(number)
}

/// Whether a key is in the name space of stages and exits.
pub fn is_ours(key: &str) -> bool {
    key.starts_with(STAGES) || key.starts_with(EXITS)
}

/// Checks a key of that name space.
///
/// # Errors
/// When it says nothing about stages or exits; with the nearest one that does.
pub fn known(key: &str) -> Result<(), String> {
    if Key::of(key).is_some() {
        return Ok(());
    }
    let exit = key.split('.').nth(1).and_then(number).unwrap_or(0);
    let names = [STAGE, VALUE, AT_LEAST, SKIP_TO, "outputs.<output>"];
    let exits = names.map(|name| format!("{EXITS}.{exit}.{name}"));
    let known = exits.iter().map(String::as_str).chain([STAGES, "stages.0"]);
    Err(format!("expected stages, stages.<number> or exits.<number>.<key>{}", suggestion(key, known)))
}

/// Reads and checks what a completed configuration says about stages and exits.
///
/// # Errors
/// For values of a wrong kind, for models that cannot be cut, and for exits that lead nowhere.
pub fn read(config: &pb::ModelConfig, origin: &Origin) -> Result<StageRequest, ConfigError> {
    let source = Source { config, origin };
    let cuts = source.cuts()?;
    if cuts != StageCuts::Whole {
        source.can_be_cut(&cuts)?;
    }
    let mut request = StageRequest { cuts, exits: Vec::new() };
    request.exits = source.exits(request.count())?;
    Ok(request)
}

fn path(key: &str) -> String {
    format!("parameters[{key}]")
}

#[derive(Clone, Copy)]
struct Source<'c> {
    config: &'c pb::ModelConfig,
    origin: &'c Origin,
}

impl<'c> Source<'c> {
    fn text(self, key: &str) -> Option<&'c str> {
        self.config.parameters.get(key).map(|parameter| parameter.string_value.as_str())
    }

    fn refuse(self, key: &str, message: impl Into<String>) -> ConfigError {
        self.origin.error(&path(key), message)
    }

    fn cuts(self) -> Result<StageCuts, ConfigError> {
        let mut named: BTreeMap<u16, &str> = BTreeMap::new();
        for (key, parameter) in &self.config.parameters {
            if let Some(Key::Cut(number)) = Key::of(key) {
                named.insert(number, &parameter.string_value);
            }
        }
        let given = self.text(STAGES).map(str::trim);
        if named.is_empty() {
            return match given {
                None | Some("auto" | "1") => Ok(StageCuts::Whole),
                Some(count) => match count.parse().ok().filter(|count| (2..=MAX_STAGES).contains(count)) {
                    Some(count) => Ok(StageCuts::Parts(count)),
                    None => {
                        let message =
                            format!("expected auto or a number of stages from 1 to {MAX_STAGES}, but found '{count}'");
                        Err(self.refuse(STAGES, message))
                    }
                },
            };
        }
        if given.is_some() {
            return Err(
                self.refuse(STAGES, "expected either a number or tensors to cut at (stages.0 …), but found both")
            );
        }
        let mut tensors: Vec<String> = Vec::with_capacity(named.len());
        for (expected, (number, tensor)) in named.into_iter().enumerate() {
            let key = format!("{STAGES}.{number}");
            if usize::from(number) != expected {
                return Err(
                    self.refuse(&key, format!("cuts count from 0 without gaps: expected {STAGES}.{expected} too"))
                );
            }
            if number >= MAX_STAGES - 1 {
                return Err(self.refuse(&key, format!("expected at most {MAX_STAGES} stages")));
            }
            if tensor.is_empty() {
                return Err(self.refuse(&key, "expected the name of a tensor"));
            }
            if tensors.iter().any(|earlier| earlier == tensor) {
                return Err(self.refuse(&key, format!("the tensor '{tensor}' is there twice")));
            }
            tensors.push(tensor.to_owned());
        }
        Ok(StageCuts::At(tensors))
    }

    fn can_be_cut(self, cuts: &StageCuts) -> Result<(), ConfigError> {
        let key = if matches!(cuts, StageCuts::At(_)) { "stages.0" } else { STAGES };
        if self.config.backend == REPEAT {
            return Err(self.refuse(key, format!("the backend '{REPEAT}' has no graph to cut: remove this")));
        }
        if self.config.max_batch_size < 1 {
            let message = "stages hand on rows of a batch: expected a max_batch_size of at least 1, but it is 0";
            return Err(self.refuse(key, message));
        }
        if self.config.model_transaction_policy.as_ref().is_some_and(|policy| policy.decoupled) {
            let message = "stages give one response to a request, but the model is decoupled: remove one of the two";
            return Err(self.refuse(key, message));
        }
        Ok(())
    }

    fn exits(self, stages: u16) -> Result<Vec<ExitRequest>, ConfigError> {
        let mut parts: BTreeMap<u16, BTreeMap<&str, &str>> = BTreeMap::new();
        for (key, parameter) in &self.config.parameters {
            if let Some(Key::Exit(exit, name)) = Key::of(key) {
                parts.entry(exit).or_default().insert(name, &parameter.string_value);
            }
        }
        let mut exits = Vec::with_capacity(parts.len());
        for (expected, (number, given)) in parts.into_iter().enumerate() {
            let exit = format!("{EXITS}.{number}");
            // An error about the whole exit stands at the first of its keys.
            let first = given.keys().next().map_or_else(|| exit.clone(), |name| format!("{exit}.{name}"));
            if usize::from(number) != expected {
                let message = format!("exits count from 0 without gaps: expected {EXITS}.{expected} too");
                return Err(self.refuse(&first, message));
            }
            if number >= MAX_EXITS {
                return Err(self.refuse(&first, format!("expected at most {MAX_EXITS} exits")));
            }
            if stages < 2 {
                let message = "an exit leaves the order of stages, but the model is not cut: give 'stages' as a number \
                               above 1 or as tensors to cut at";
                return Err(self.refuse(&first, message));
            }
            exits.push(self.exit(&exit, &first, &given, stages)?);
        }
        Ok(exits)
    }

    fn exit(
        self,
        exit: &str,
        first: &str,
        given: &BTreeMap<&str, &str>,
        stages: u16,
    ) -> Result<ExitRequest, ConfigError> {
        let required = |name: &str| {
            let text = given.get(name).map(|text| text.trim()).filter(|text| !text.is_empty());
            text.ok_or_else(|| self.refuse(first, format!("expected {exit}.{name} too")))
        };
        let (stage_text, value, at_least_text) = (required(STAGE)?, required(VALUE)?, required(AT_LEAST)?);
        let last = stages - 1;
        let Some(stage) = stage_text.parse().ok().filter(|stage| *stage < last) else {
            let message = format!("expected a stage from 0 to {}, before the last, but found '{stage_text}'", last - 1);
            return Err(self.refuse(&format!("{exit}.{STAGE}"), message));
        };
        let Some(at_least) = at_least_text.parse().ok().filter(|value: &f32| value.is_finite()) else {
            let message = format!("expected a number, but found '{at_least_text}'");
            return Err(self.refuse(&format!("{exit}.{AT_LEAST}"), message));
        };
        let outputs = self.outputs(exit, given)?;
        let to = match given.get(SKIP_TO).map(|text| text.trim()) {
            Some(skip_to) => ExitRequestTo::Stage(self.skip_to(exit, skip_to, stage, last, outputs.is_empty())?),
            None => ExitRequestTo::Done(outputs),
        };
        Ok(ExitRequest { stage, value: value.to_owned(), at_least, to })
    }

    fn outputs(self, exit: &str, given: &BTreeMap<&str, &str>) -> Result<BTreeMap<String, String>, ConfigError> {
        let mut outputs = BTreeMap::new();
        for (name, tensor) in given.iter().filter_map(|(key, tensor)| Some((key.strip_prefix(OUTPUTS)?, *tensor))) {
            let key = format!("{exit}.{OUTPUTS}{name}");
            if !self.config.output.iter().any(|output| output.name == name) {
                let hint = suggestion(name, self.config.output.iter().map(|output| output.name.as_str()));
                return Err(self.refuse(&key, format!("the model has no output '{name}'{hint}")));
            }
            if tensor.is_empty() {
                return Err(self.refuse(&key, format!("expected the name of the tensor that answers for '{name}'")));
            }
            outputs.insert(name.to_owned(), tensor.to_owned());
        }
        Ok(outputs)
    }

    fn skip_to(self, exit: &str, text: &str, stage: u16, last: u16, alone: bool) -> Result<u16, ConfigError> {
        let key = format!("{exit}.{SKIP_TO}");
        if !alone {
            let message = "rows that leave are either done, with outputs, or skip stages: expected one of the two";
            return Err(self.refuse(&key, message));
        }
        let nearest = stage + 2;
        if nearest > last {
            let message = format!("nothing can be skipped behind stage {stage}: the next one, {last}, is the last");
            return Err(self.refuse(&key, message));
        }
        let target = text.parse().ok().filter(|target| (nearest..=last).contains(target));
        target.ok_or_else(|| {
            let message = format!("expected a stage from {nearest} to {last}, but found '{text}'");
            self.refuse(&key, message)
        })
    }
}

#[cfg(test)]
mod tests;
