//! One loaded version, as admission and lanes need it.

use std::sync::Arc;

use super::{admit::Admission, brevity::Brevity};
use crate::{engine::Program, model::ModelSpec, observe::ModelStats};

/// What lanes and admission need of a loaded version.
pub(super) struct Loaded {
    pub(super) spec: Arc<ModelSpec>,
    pub(super) stats: Arc<ModelStats>,
    pub(super) program: Arc<dyn Program>,
    pub(super) brevity: Brevity,
    pub(super) admission: Admission,
}

impl Loaded {
    pub(super) fn new(spec: Arc<ModelSpec>, stats: Arc<ModelStats>, program: Arc<dyn Program>) -> Arc<Self> {
        let admission = Admission::new(&spec);
        let brevity = Brevity::new(admission.is_fixed() && program.is_steady());
        Arc::new(Self { spec, stats, program, brevity, admission })
    }
}
