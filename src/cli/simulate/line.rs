//! One line of a comparison.

use paternoster_lab::simulate::SimulatedFigures;

/// One policy under one load, as tables, JSON, CSV and plots show it.
#[derive(Debug)]
pub(super) struct Line {
    pub(super) policy: String,
    pub(super) objective_ms: Option<f64>,
    /// Share of the peak, if the load was given as one.
    pub(super) part: Option<f64>,
    /// Mean requests per second; `None` if the arrivals have their own rates.
    pub(super) rate: Option<f64>,
    pub(super) figures: SimulatedFigures,
}
