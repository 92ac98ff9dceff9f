//! Knobs of the policy `diversity`.

use crate::{
    Ns, PartOrder,
    policy::{BatchLimits, BatchPolicy, PolicyKnobs, Requirements},
    queue::{LengthBucketing, LengthGroups},
};

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
