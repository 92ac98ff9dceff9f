//! Knobs of the policy `diversity`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    Ns, PartOrder,
    knob::{
        Above0, FromSettings, KnobRefusal, LengthList, Microseconds, Milliseconds, Mode, ModelTraits, Whole, given,
    },
    policy::{BatchLimits, BatchPolicy, PolicyKnobs, Requirements},
    queue::{LengthBucketing, LengthGroups},
};

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
    pub order: Option<PartOrder>,
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

/// Parameters of DVABatch (section 7).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DiversityKnobs {
    /// Policy I: requests of similar length share batches; the groups run in parallel.
    pub input: Option<InputDiversity>,
    /// Policy II: a batch is split if its remaining stages run faster in parts.
    pub operator: Option<OperatorDiversity>,
    /// Policy III: newcomers join the newest batch. Ignored if Policy I is on (section 7.2).
    pub load: Option<LoadDiversity>,
}

/// Policy I, input diversity.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct InputDiversity {
    /// Upper bounds of fixed length groups, ascending.
    pub bounds: Vec<u32>,
    /// Maximum number of fixed groups, whose bounds are chosen by dynamic programming over the observed lengths. 0:
    /// none, or 8 with the paper's own rule.
    pub max_groups: u32,
    /// Maximum time that a group waits for more requests. `None`: the first stage's time for the largest batch.
    pub window_ns: Option<Ns>,
    /// Whether to use the paper's own rule: groups wait for the window even if no stage runs, and never share a
    /// batch.
    pub paper: bool,
}

impl InputDiversity {
    /// Whether requests are grouped by fixed bounds. Otherwise run times decide which lengths share a batch.
    fn has_groups(&self) -> bool {
        self.paper || self.max_groups > 0 || !self.bounds.is_empty()
    }
}

/// Policy II, operator diversity.
#[derive(Clone, Debug, PartialEq)]
pub struct OperatorDiversity {
    /// A batch is split if its remaining time is at least this times the sum of its parts' times. Each part pays for
    /// the boundaries again, so with 1 a batch that takes exactly as long as its rows one by one would never be split.
    pub threshold: f64,
    /// The order in which the parts run.
    pub order: PartOrder,
    /// Whether to use the paper's own rule: halves only, and only between stages.
    pub paper: bool,
}

impl Default for OperatorDiversity {
    fn default() -> Self {
        Self { threshold: 0.99, order: PartOrder::DepthFirst, paper: false }
    }
}

/// Policy III, load diversity.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LoadDiversity {
    /// T_comp_wait: a batch older than this is not stretched. `None`: half the whole model's time for the largest
    /// batch, and no longer than the batch's slack after a catch-up allows; evaluated at each stretch.
    pub max_age_ns: Option<Ns>,
    /// A batch past this stage is not stretched. `None`: any stage but the last.
    pub max_stage: Option<u16>,
    /// Whether to use the paper's own rule: newcomers join whenever they may, even if rows do not complete earlier.
    pub paper: bool,
}

impl DiversityKnobs {
    /// Whether newcomers join batches. They do not if Policy I is on, because groups that run in parallel already
    /// handle load diversity (section 7.2).
    pub(super) fn joins(&self) -> bool {
        self.load.is_some() && self.input.is_none()
    }
}

impl FromSettings for DiversityKnobs {
    type Settings = DiversitySettings;

    /// By default, Policy I is on if there are lengths to group, and Policy III is on if Policy I is off (DVABatch
    /// section 7.2: groups that run in parallel already admit requests at any time).
    fn read(settings: &DiversitySettings, model: ModelTraits) -> Result<Self, KnobRefusal> {
        let DiversitySettings { input, operator, load } = settings;
        let given_input = switch("input", input.as_ref(), |own| own.is_on)?;
        let given_operator = switch("operator", operator.as_ref(), |own| own.is_on)?;
        let given_load = switch("load", load.as_ref(), |own| own.is_on)?;
        if let (Some((true, _)), Some((true, place))) = (&given_input, &given_load) {
            let message = "'batching.diversity.input' and 'batching.diversity.load' are both on, but groups that run in \
                           parallel already take load diversity (DVABatch section 7.2): expected one of the two";
            return Err(KnobRefusal::new(place, message));
        }
        if let Some((true, place)) = &given_input
            && !model.is_padded
        {
            let message = "requests are grouped by their padded length, but no axis of the model is padded: give an \
                           input a pad, or remove this";
            return Err(KnobRefusal::new(place, message));
        }
        let is_on = |given: &Option<(bool, String)>| given.as_ref().map(|(is_on, _)| *is_on);
        let has_input = is_on(&given_input).unwrap_or(model.is_padded && is_on(&given_load) != Some(true));
        let has_operator = is_on(&given_operator).unwrap_or(false);
        let has_load = is_on(&given_load).unwrap_or(!has_input);
        if !has_input && !has_operator && !has_load {
            let message = "input, operator and load are all off: expected one of them, or the policy 'window'";
            return Err(KnobRefusal::new("policy", message));
        }
        let (input, operator, load) = (input.clone(), operator.clone(), load.clone());
        Ok(Self {
            input: has_input.then(|| read_input(input.unwrap_or_default())).transpose()?,
            operator: has_operator.then(|| read_operator(&operator.unwrap_or_default())).transpose()?,
            load: has_load.then(|| read_load(&load.unwrap_or_default(), model)).transpose()?,
        })
    }
}

impl PolicyKnobs for DiversityKnobs {
    fn plain() -> Self {
        Self { load: Some(LoadDiversity::default()), ..Self::default() }
    }

    fn start(&self, _: BatchLimits) -> Box<dyn BatchPolicy> {
        Box::new(super::Diversity::new(self))
    }

    fn requirements(&self) -> Requirements {
        let lengths = self.input.as_ref().filter(|input| input.has_groups());
        let lengths = lengths.map(|input| LengthBucketing::Groups(LengthGroups::new(&input.bounds, input.max_groups)));
        Requirements { joins: true, lengths, ..Requirements::default() }
    }
}

fn read_input(settings: InputSettings) -> Result<InputDiversity, KnobRefusal> {
    let InputSettings { groups, bounds, window_us, mode, .. } = settings;
    if bounds.is_some() && groups.is_some() {
        let message = "the groups follow from 'batching.diversity.input.bounds': expected one of the two";
        return Err(KnobRefusal::new("diversity.input.groups", message));
    }
    Ok(InputDiversity {
        bounds: bounds.map(|bounds| bounds.0).unwrap_or_default(),
        max_groups: groups.map_or(0, |groups| groups.0),
        window_ns: window_us.map(Microseconds::us),
        paper: mode == Some(Mode::Paper),
    })
}

fn read_operator(settings: &OperatorSettings) -> Result<OperatorDiversity, KnobRefusal> {
    let OperatorSettings { threshold, order, mode, .. } = settings;
    let default = OperatorDiversity::default();
    Ok(OperatorDiversity {
        threshold: threshold.map_or(default.threshold, |threshold| threshold.0),
        order: order.unwrap_or(default.order),
        paper: Mode::is_paper(*mode, &[("diversity.operator.threshold", threshold.is_some())])?,
    })
}

fn read_load(settings: &LoadSettings, model: ModelTraits) -> Result<LoadDiversity, KnobRefusal> {
    let LoadSettings { max_age_ms, max_stage, mode, .. } = settings;
    let max_stage = max_stage.map(|stage| stage.0);
    let last = model.stages - 1;
    if let Some(stage) = max_stage.filter(|stage| *stage > last) {
        let message = format!("expected a stage from 0 to {last}, the model's last, but found {stage}");
        return Err(KnobRefusal::new("diversity.load.max_stage", message));
    }
    Ok(LoadDiversity { max_age_ns: max_age_ms.map(Milliseconds::ns), max_stage, paper: *mode == Some(Mode::Paper) })
}

/// Returns whether a kind of diversity is switched on or off, and the key that says so: its switch, or else its first
/// knob, which switches it on.
fn switch<T: Serialize>(
    kind: &str,
    settings: Option<&T>,
    is_on: impl Fn(&T) -> Option<bool>,
) -> Result<Option<(bool, String)>, KnobRefusal> {
    let Some(settings) = settings else { return Ok(None) };
    let key = |name: &str| format!("diversity.{kind}.{name}").trim_end_matches('.').to_owned();
    let given: Vec<String> = given(settings);
    match (is_on(settings), given.as_slice()) {
        (Some(false), [_, knob, ..]) => {
            let message = format!("'batching.diversity.{kind}' is off: remove this, or switch it on");
            Err(KnobRefusal::new(key(knob), message))
        }
        (is_on, [first, ..]) => Ok(Some((is_on.unwrap_or(true), key(first)))),
        (_, []) => Ok(None),
    }
}
