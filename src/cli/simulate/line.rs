//! One line of a comparison.

use crate::simulate::Figures;

/// One policy under one load, as tables, JSON, CSV and plots show it.
#[derive(Debug)]
pub(super) struct Line {
    pub(super) policy: String,
    pub(super) objective_ms: Option<f64>,
    /// Part of the peak, where the load was given so.
    pub(super) part: Option<f64>,
    /// Requests a second on average; none where the arrivals have their own rates.
    pub(super) rate: Option<f64>,
    pub(super) figures: Figures,
}
