//! The section `diversity`.

use paternoster_batching::{DiversityKnobs, InputDiversity, LoadDiversity, OperatorDiversity, PartOrder};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Above0, FromSettings, LengthList, Microseconds, Milliseconds, Mode, ModelTraits, Whole, given};
use crate::SettingError;

/// Knobs of `diversity`. Each kind of diversity is `true`, `false`, or a mapping of its knobs, which switches it on.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DiversitySettings {
    /// Policy I: requests of similar length share batches. Default: on if an input is padded and `load` is not on.
    #[schemars(with = "Option<FlagOr<InputSettings>>")]
    pub input: Option<InputSettings>,
    /// Policy II: batches are split where their parts are faster. Default: off.
    #[schemars(with = "Option<FlagOr<OperatorSettings>>")]
    pub operator: Option<OperatorSettings>,
    /// Policy III: newcomers join the newest batch. Default: on if `input` is off.
    #[schemars(with = "Option<FlagOr<LoadSettings>>")]
    pub load: Option<LoadSettings>,
}

/// What the schema says of a switch with knobs of its own.
#[derive(JsonSchema)]
#[schemars(untagged)]
#[expect(dead_code, reason = "no value is of this type: it describes the one that is read")]
enum FlagOr<T> {
    Flag(bool),
    Knobs(T),
}

/// Knobs of Policy I.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct InputSettings {
    /// Whether it is on, where that is said: the value of the switch itself.
    #[serde(rename = "")]
    #[schemars(skip)]
    pub is_on: Option<bool>,
    /// Maximum number of groups whose bounds are chosen from the observed lengths. Default: no groups, or 8 in `paper`
    /// mode.
    pub groups: Option<Whole<u32, 1, 64>>,
    /// Upper bounds of the groups, ascending.
    pub bounds: Option<LengthList>,
    /// Maximum time that a group waits for more requests, in microseconds. Default: the time of the first stage with
    /// the largest batch.
    pub window_us: Option<Microseconds>,
    /// `default`, or the paper's own rule.
    pub mode: Option<Mode>,
}

/// Knobs of Policy II.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct OperatorSettings {
    /// Whether it is on, where that is said: the value of the switch itself.
    #[serde(rename = "")]
    #[schemars(skip)]
    pub is_on: Option<bool>,
    /// Factor on the sum of the parts' times when a split is considered. Default: 0.99.
    pub threshold: Option<Above0<10>>,
    /// The order in which the parts run.
    pub order: Option<PartOrderName>,
    /// `default`, or the paper's own rule.
    pub mode: Option<Mode>,
}

/// Knobs of Policy III.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LoadSettings {
    /// Whether it is on, where that is said: the value of the switch itself.
    #[serde(rename = "")]
    #[schemars(skip)]
    pub is_on: Option<bool>,
    /// Maximum age of a batch that is stretched, in milliseconds. Default: half the time of the whole model with the
    /// largest batch.
    pub max_age_ms: Option<Milliseconds>,
    /// Last stage at which a batch is stretched, counted from 0. Default: the last but one.
    pub max_stage: Option<Whole<u16, 0, 255>>,
    /// `default`, or the paper's own rule.
    pub mode: Option<Mode>,
}

/// The order in which the parts of a split batch run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[schemars(rename = "PartOrder")]
pub enum PartOrderName {
    /// Each part runs to its end before the next starts.
    DepthFirst,
    /// All parts run stage by stage.
    Pipelined,
}

impl From<PartOrderName> for PartOrder {
    fn from(name: PartOrderName) -> Self {
        match name {
            PartOrderName::DepthFirst => Self::DepthFirst,
            PartOrderName::Pipelined => Self::Pipelined,
        }
    }
}

impl FromSettings for DiversityKnobs {
    type Settings = DiversitySettings;

    /// By default, Policy I is on if there are lengths to group, and Policy III is on if Policy I is off (DVABatch
    /// section 7.2: groups that run in parallel already admit requests at any time).
    fn read(settings: &DiversitySettings, model: ModelTraits) -> Result<Self, SettingError> {
        let DiversitySettings { input, operator, load } = settings;
        let given_input = switch("input", input.as_ref(), |own| own.is_on)?;
        let given_operator = switch("operator", operator.as_ref(), |own| own.is_on)?;
        let given_load = switch("load", load.as_ref(), |own| own.is_on)?;
        if let (Some((true, _)), Some((true, place))) = (&given_input, &given_load) {
            let message = "'batching.diversity.input' and 'batching.diversity.load' are both on, but groups that run \
                           in parallel already take load diversity (DVABatch section 7.2): expected one of the two";
            return Err(SettingError::from(message).at(place));
        }
        if let Some((true, place)) = &given_input
            && !model.is_padded
        {
            let message = "requests are grouped by their padded length, but no axis of the model is padded: give an \
                           input a pad, or remove this";
            return Err(SettingError::from(message).at(place));
        }
        let is_on = |given: &Option<(bool, String)>| given.as_ref().map(|(is_on, _)| *is_on);
        let has_input = is_on(&given_input).unwrap_or(model.is_padded && is_on(&given_load) != Some(true));
        let has_operator = is_on(&given_operator).unwrap_or(false);
        let has_load = is_on(&given_load).unwrap_or(!has_input);
        if !has_input && !has_operator && !has_load {
            let message = "input, operator and load are all off: expected one of them, or the policy 'window'";
            return Err(SettingError::from(message).at("policy"));
        }
        let (input, operator, load) = (input.clone(), operator.clone(), load.clone());
        Ok(Self {
            input: has_input.then(|| read_input(input.unwrap_or_default())).transpose()?,
            operator: has_operator.then(|| read_operator(&operator.unwrap_or_default())).transpose()?,
            load: has_load.then(|| read_load(&load.unwrap_or_default(), model)).transpose()?,
        })
    }
}

fn read_input(settings: InputSettings) -> Result<InputDiversity, SettingError> {
    let InputSettings { groups, bounds, window_us, mode, .. } = settings;
    if bounds.is_some() && groups.is_some() {
        let message = "the groups follow from 'batching.diversity.input.bounds': expected one of the two";
        return Err(SettingError::from(message).at("diversity.input.groups"));
    }
    Ok(InputDiversity {
        bounds: bounds.map(|bounds| bounds.0).unwrap_or_default(),
        max_groups: groups.map_or(0, |groups| groups.0),
        window_ns: window_us.map(Microseconds::us),
        paper: mode == Some(Mode::Paper),
    })
}

fn read_operator(settings: &OperatorSettings) -> Result<OperatorDiversity, SettingError> {
    let OperatorSettings { threshold, order, mode, .. } = settings;
    let default = OperatorDiversity::default();
    Ok(OperatorDiversity {
        threshold: threshold.map_or(default.threshold, |threshold| threshold.0),
        order: order.map_or(default.order, PartOrder::from),
        paper: Mode::is_paper(*mode, &[("diversity.operator.threshold", threshold.is_some())])?,
    })
}

fn read_load(settings: &LoadSettings, model: ModelTraits) -> Result<LoadDiversity, SettingError> {
    let LoadSettings { max_age_ms, max_stage, mode, .. } = settings;
    let max_stage = max_stage.map(|stage| stage.0);
    let last = model.stages - 1;
    if let Some(stage) = max_stage.filter(|stage| *stage > last) {
        let message = format!("expected a stage from 0 to {last}, the model's last, but found {stage}");
        return Err(SettingError::from(message).at("diversity.load.max_stage"));
    }
    Ok(LoadDiversity { max_age_ns: max_age_ms.map(Milliseconds::ns), max_stage, paper: *mode == Some(Mode::Paper) })
}

/// Returns whether a kind of diversity is switched on or off, and the key that says so: its switch, or else its first
/// knob, which switches it on.
fn switch<T: Serialize>(
    kind: &str,
    settings: Option<&T>,
    is_on: impl Fn(&T) -> Option<bool>,
) -> Result<Option<(bool, String)>, SettingError> {
    let Some(settings) = settings else { return Ok(None) };
    let key = |name: &str| format!("diversity.{kind}.{name}").trim_end_matches('.').to_owned();
    let given: Vec<String> = given(settings);
    match (is_on(settings), given.as_slice()) {
        (Some(false), [_, knob, ..]) => {
            let message = format!("'batching.diversity.{kind}' is off: remove this, or switch it on");
            Err(SettingError::from(message).at(key(knob)))
        }
        (is_on, [first, ..]) => Ok(Some((is_on.unwrap_or(true), key(first)))),
        (_, []) => Ok(None),
    }
}
