//! Knobs of the policy `diversity`.

use crate::batching::{
    Ns, PartOrder,
    knob::{DAY_MS, DAY_US, Form, GivenKnobs, Knob, KnobEntry, KnobRefusal, MODE, POLICY, from_ms, from_us, narrow},
    policy::{BatchLimits, BatchPolicy, PolicyKnobs, Requirements},
    queue::{LengthBucketing, LengthGroups},
};

/// Maximum number of length groups.
const MAX_GROUPS: u64 = 64;
/// Last stage that a model can have.
const MAX_STAGE: u64 = 255;

const PARTS: Form = Form::Word { words: &["depth-first", "pipelined"], refused: None };

/// Switches Policy I on or off.
const INPUT: Knob<bool> = Knob::new("batching.diversity.input", Form::Flag);
/// Maximum number of groups if their bounds are chosen automatically.
const INPUT_GROUPS: Knob<u64> = Knob::whole("batching.diversity.input.groups", 1, MAX_GROUPS);
/// Upper bounds of the groups.
const INPUT_BOUNDS: Knob<Vec<u32>> = Knob::new("batching.diversity.input.bounds", Form::Lengths);
/// Maximum time that a group waits for more requests, in microseconds.
const INPUT_WINDOW: Knob<u64> = Knob::whole("batching.diversity.input.window_us", 0, DAY_US);
/// `default`, or the paper's own rule.
const INPUT_MODE: Knob<&str> = Knob::new("batching.diversity.input.mode", MODE);
/// Switches Policy II on or off.
const OPERATOR: Knob<bool> = Knob::new("batching.diversity.operator", Form::Flag);
/// Factor on the sum of the parts' times when a split is considered.
const OPERATOR_THRESHOLD: Knob<f64> = Knob::positive("batching.diversity.operator.threshold", 10.0);
/// The order in which the parts run.
const OPERATOR_ORDER: Knob<&str> = Knob::new("batching.diversity.operator.order", PARTS);
/// `default`, or the paper's own rule.
const OPERATOR_MODE: Knob<&str> = Knob::new("batching.diversity.operator.mode", MODE);
/// Switches Policy III on or off.
const LOAD: Knob<bool> = Knob::new("batching.diversity.load", Form::Flag);
/// Maximum age of a batch that is stretched, in milliseconds.
const LOAD_AGE: Knob<f64> = Knob::positive("batching.diversity.load.max_age_ms", DAY_MS);
/// Last stage at which a batch is stretched.
const LOAD_STAGE: Knob<u64> = Knob::whole("batching.diversity.load.max_stage", 0, MAX_STAGE);
/// `default`, or the paper's own rule.
const LOAD_MODE: Knob<&str> = Knob::new("batching.diversity.load.mode", MODE);

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
    /// Upper bounds of the length groups, ascending. Empty: chosen by dynamic programming over the observed lengths.
    pub bounds: Vec<u32>,
    /// Maximum number of groups if their bounds are chosen; 0 means 8.
    pub max_groups: u32,
    /// Maximum time that a group waits for more requests. `None`: the first stage's time for the largest batch.
    pub window_ns: Option<Ns>,
    /// Whether to use the paper's own rule: groups wait for the window even if the pipeline is empty, and never share a
    /// batch.
    pub paper: bool,
    /// Without bounds: each length is its own group, and near lengths share a batch if the model's measured runs show
    /// that this is faster. For models without profiled times; excludes `bounds`, `max_groups` and `paper`.
    pub by_runs: bool,
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

impl PolicyKnobs for DiversityKnobs {
    const NAME: &'static str = "diversity";
    const KNOBS: &'static [KnobEntry] = &[
        INPUT.entry(),
        INPUT_GROUPS.entry(),
        INPUT_BOUNDS.entry(),
        INPUT_WINDOW.entry(),
        INPUT_MODE.entry(),
        OPERATOR.entry(),
        OPERATOR_THRESHOLD.entry(),
        OPERATOR_ORDER.entry(),
        OPERATOR_MODE.entry(),
        LOAD.entry(),
        LOAD_AGE.entry(),
        LOAD_STAGE.entry(),
        LOAD_MODE.entry(),
    ];

    /// By default, Policy I is on if there are lengths to group, and Policy III is on if Policy I is off (DVABatch
    /// section 7.2: groups that run in parallel already admit requests at any time).
    fn read(given: &GivenKnobs<'_>) -> Result<Self, KnobRefusal> {
        let input = switch(given, &INPUT)?;
        let operator = switch(given, &OPERATOR)?.unwrap_or(false);
        let load = switch(given, &LOAD)?;
        if input == Some(true) && load == Some(true) {
            let message = format!(
                "'{}' and '{}' are both on, but groups that run in parallel already take load diversity \
                 (DVABatch section 7.2): expected one of the two",
                INPUT.key, LOAD.key
            );
            return Err(KnobRefusal::new(place(given, &LOAD), message));
        }
        if input == Some(true) && !given.is_padded {
            let message = "requests are grouped by their padded length, but no axis of the model is padded: give an \
                           input a pad, or remove this";
            return Err(KnobRefusal::new(place(given, &INPUT), message));
        }
        let input = input.unwrap_or(given.is_padded && load != Some(true));
        let load = load.unwrap_or(!input);
        if !input && !operator && !load {
            let message = "input, operator and load are all off: expected one of them, or the policy 'window'";
            return Err(KnobRefusal::new(POLICY, message));
        }
        Ok(Self {
            input: input.then(|| read_input(given)).transpose()?,
            operator: operator.then(|| read_operator(given)).transpose()?,
            load: load.then(|| read_load(given)).transpose()?,
        })
    }

    fn start(&self, _: BatchLimits) -> Box<dyn BatchPolicy> {
        Box::new(super::Diversity::new(self))
    }

    fn requirements(&self) -> Requirements {
        let lengths = self.input.as_ref().map(|input| match input.by_runs {
            true => LengthBucketing::Width(1),
            false => LengthBucketing::Groups(LengthGroups::new(&input.bounds, input.max_groups)),
        });
        Requirements { joins: true, lengths, ..Requirements::default() }
    }
}

fn read_input(given: &GivenKnobs<'_>) -> Result<InputDiversity, KnobRefusal> {
    let bounds = given.read(&INPUT_BOUNDS)?;
    let groups = given.read(&INPUT_GROUPS)?;
    if bounds.is_some() && groups.is_some() {
        let message = format!("the groups follow from '{}': expected one of the two", INPUT_BOUNDS.key);
        return Err(KnobRefusal::new(INPUT_GROUPS.key, message));
    }
    Ok(InputDiversity {
        bounds: bounds.unwrap_or_default(),
        max_groups: groups.map_or(0, narrow),
        window_ns: given.read(&INPUT_WINDOW)?.map(from_us),
        paper: given.read_paper(&INPUT_MODE, &[])?,
        by_runs: false,
    })
}

fn read_operator(given: &GivenKnobs<'_>) -> Result<OperatorDiversity, KnobRefusal> {
    let default = OperatorDiversity::default();
    let paper = given.read_paper(&OPERATOR_MODE, &[OPERATOR_THRESHOLD.entry()])?;
    let order = match given.read(&OPERATOR_ORDER)? {
        Some("pipelined") => PartOrder::Pipelined,
        _ => default.order,
    };
    let threshold = given.read(&OPERATOR_THRESHOLD)?.unwrap_or(default.threshold);
    Ok(OperatorDiversity { threshold, order, paper })
}

fn read_load(given: &GivenKnobs<'_>) -> Result<LoadDiversity, KnobRefusal> {
    let max_stage = given.read(&LOAD_STAGE)?.and_then(|stage| u16::try_from(stage).ok());
    let last = given.stages - 1;
    if let Some(stage) = max_stage.filter(|stage| *stage > last) {
        let message = format!("expected a stage from 0 to {last}, the model's last, but found {stage}");
        return Err(KnobRefusal::new(LOAD_STAGE.key, message));
    }
    Ok(LoadDiversity {
        max_age_ns: given.read(&LOAD_AGE)?.map(from_ms),
        max_stage,
        paper: given.read_paper(&LOAD_MODE, &[])?,
    })
}

/// Returns the given knobs of one kind of diversity.
fn own<'g>(given: &'g GivenKnobs<'_>, kind: &'g Knob<bool>) -> impl Iterator<Item = &'static str> + 'g {
    let is_own = |key: &str| key.strip_prefix(kind.key).is_some_and(|rest| rest.starts_with('.'));
    let keys = DiversityKnobs::KNOBS.iter().map(|(key, _)| *key);
    keys.filter(move |key| is_own(key) && given.is_given(key))
}

/// Returns whether a kind of diversity is switched on or off. Setting one of its knobs switches it on.
fn switch(given: &GivenKnobs<'_>, kind: &Knob<bool>) -> Result<Option<bool>, KnobRefusal> {
    match (given.read(kind)?, own(given, kind).next()) {
        (Some(false), Some(key)) => {
            Err(KnobRefusal::new(key, format!("'{}' is off: remove this, or switch it on", kind.key)))
        }
        (None, Some(_)) => Ok(Some(true)),
        (switch, _) => Ok(switch),
    }
}

/// Returns the key that switched a kind on: its own switch if given, or else its first given knob.
fn place(given: &GivenKnobs<'_>, kind: &Knob<bool>) -> &'static str {
    match given.is_given(kind.key) {
        true => kind.key,
        false => own(given, kind).min().unwrap_or(kind.key),
    }
}
