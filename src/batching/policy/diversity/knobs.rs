//! Knobs of `diversity`.

use crate::batching::{
    Ns, PartOrder,
    knob::{DAY_MS, DAY_US, Form, GivenKnobs, Knob, KnobEntry, KnobRefusal, MODE, POLICY, narrow},
    policy::{BatchLimits, BatchPolicy, PolicyKnobs, Requirements},
    queue::{LengthBucketing, LengthGroups},
};

/// Most groups of length.
const MAX_GROUPS: u64 = 64;
/// Last stage that a model may have.
const MAX_STAGE: u64 = 255;

const PARTS: Form = Form::Word { words: &["depth-first", "pipelined"], refused: None };

/// Policy I on or off.
const INPUT: Knob<bool> = Knob::new("batching.diversity.input", Form::Flag);
/// Most groups where their bounds are chosen.
const INPUT_GROUPS: Knob<u64> = Knob::whole("batching.diversity.input.groups", 1, MAX_GROUPS);
/// Upper ends of the groups.
const INPUT_BOUNDS: Knob<Vec<u32>> = Knob::new("batching.diversity.input.bounds", Form::Lengths);
/// How long a group may wait for more, in microseconds.
const INPUT_WINDOW: Knob<u64> = Knob::whole("batching.diversity.input.window_us", 0, DAY_US);
/// `default` or the paper's own rule.
const INPUT_MODE: Knob<&str> = Knob::new("batching.diversity.input.mode", MODE);
/// Policy II on or off.
const OPERATOR: Knob<bool> = Knob::new("batching.diversity.operator", Form::Flag);
/// Factor on the parts' times when a split is weighed.
const OPERATOR_THRESHOLD: Knob<f64> = Knob::positive("batching.diversity.operator.threshold", 10.0);
/// In which order the parts run.
const OPERATOR_ORDER: Knob<&str> = Knob::new("batching.diversity.operator.order", PARTS);
/// `default` or the paper's own rule.
const OPERATOR_MODE: Knob<&str> = Knob::new("batching.diversity.operator.mode", MODE);
/// Policy III on or off.
const LOAD: Knob<bool> = Knob::new("batching.diversity.load", Form::Flag);
/// Age above which a batch is not stretched, in milliseconds.
const LOAD_AGE: Knob<f64> = Knob::positive("batching.diversity.load.max_age_ms", DAY_MS);
/// Last stage at which a batch is stretched.
const LOAD_STAGE: Knob<u64> = Knob::whole("batching.diversity.load.max_stage", 0, MAX_STAGE);
/// `default` or the paper's own rule.
const LOAD_MODE: Knob<&str> = Knob::new("batching.diversity.load.mode", MODE);

/// DVABatch, section 7.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DiversityKnobs {
    /// Policy I: requests of like length travel together, the groups in parallel.
    pub input: Option<InputDiversity>,
    /// Policy II: batches split where the rest runs faster in parts.
    pub operator: Option<OperatorDiversity>,
    /// Policy III: newcomers join the newest batch. Off where Policy I is on (section 7.2).
    pub load: Option<LoadDiversity>,
}

/// Policy I.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct InputDiversity {
    /// Upper ends of the length groups, ascending; empty: chosen by dynamic programming over the observed lengths.
    pub bounds: Vec<u32>,
    /// Most groups where they are chosen; 0: 8.
    pub max_groups: u32,
    /// How long a group may wait for more; none: the time of the first stage with the largest batch.
    pub window_ns: Option<Ns>,
    /// The paper's own rule: groups wait for the window even while the pipeline is empty, and never share a batch.
    pub paper: bool,
    /// Without bounds: each length is a group of its own, and those of near lengths share a batch where the model's
    /// own runs tell that this is faster. For models of which no times are known; not together with `bounds`,
    /// `max_groups` and `paper`.
    pub by_runs: bool,
}

/// Policy II.
#[derive(Clone, Debug, PartialEq)]
pub struct OperatorDiversity {
    /// A batch splits when its remaining time is at least this times the sum of its parts'. Each part pays the
    /// boundaries again, so that with 1 even a rest that takes exactly as long as its rows one by one would never be
    /// split.
    pub threshold: f64,
    /// In which order the parts run.
    pub order: PartOrder,
    /// The paper's own rule: halves only, and only between stages.
    pub paper: bool,
}

impl Default for OperatorDiversity {
    fn default() -> Self {
        Self { threshold: 0.99, order: PartOrder::DepthFirst, paper: false }
    }
}

/// Policy III.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LoadDiversity {
    /// T_comp_wait: a batch older than this is not stretched; none: the smaller of its slack after a catch-up and half
    /// of the whole model's time for the largest batch, evaluated at each stretch.
    pub max_age_ns: Option<Ns>,
    /// A batch past this stage is not stretched; none: any stage but the last.
    pub max_stage: Option<u16>,
    /// The paper's own rule: newcomers join wherever they may, whether or not rows complete earlier for it.
    pub paper: bool,
}

impl DiversityKnobs {
    /// Whether newcomers join batches: not where parallel entry resolves load diversity already (section 7.2).
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

    /// Without a word, Policy I is on where there is something to group, and Policy III where Policy I is not
    /// (DVABatch section 7.2: groups that run in parallel already let requests in at any time).
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
        window_ns: given.read_us(&INPUT_WINDOW)?,
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
    Ok(LoadDiversity { max_age_ns: given.read_ms(&LOAD_AGE)?, max_stage, paper: given.read_paper(&LOAD_MODE, &[])? })
}

/// The knobs of one kind of diversity that are given.
fn own<'g>(given: &'g GivenKnobs<'_>, kind: &'g Knob<bool>) -> impl Iterator<Item = &'static str> + 'g {
    let is_own = |key: &str| key.strip_prefix(kind.key).is_some_and(|rest| rest.starts_with('.'));
    let keys = DiversityKnobs::KNOBS.iter().map(|(key, _)| *key);
    keys.filter(move |key| is_own(key) && given.is_given(key))
}

/// Whether a kind of diversity is switched on or off; one of its own knobs switches it on.
fn switch(given: &GivenKnobs<'_>, kind: &Knob<bool>) -> Result<Option<bool>, KnobRefusal> {
    match (given.read(kind)?, own(given, kind).next()) {
        (Some(false), Some(key)) => {
            Err(KnobRefusal::new(key, format!("'{}' is off: remove this, or switch it on", kind.key)))
        }
        (None, Some(_)) => Ok(Some(true)),
        (switch, _) => Ok(switch),
    }
}

/// The key of a switch that is on: its own where it is given, else that of its first knob.
fn place(given: &GivenKnobs<'_>, kind: &Knob<bool>) -> &'static str {
    match given.is_given(kind.key) {
        true => kind.key,
        false => own(given, kind).min().unwrap_or(kind.key),
    }
}
