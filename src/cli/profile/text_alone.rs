//! In the place of `display`, where the feature `tools` is off: `paternoster profile` shows text alone.

use std::convert::Infallible;

use crate::profile::Profile;

/// Where plots go: nowhere.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct PlotArgs {
    /// Known, so that it can be refused with the reason.
    #[arg(long, value_name = "FILE", hide = true, value_parser = refuse)]
    pub svg: Option<Infallible>,
}

fn refuse(_: &str) -> Result<Infallible, &'static str> {
    Err("this program was built without plots, which need the cargo feature 'tools'")
}

/// There is no plot that could fail.
pub(super) type PlotError = Infallible;

impl PlotArgs {
    pub(super) fn write(&self, _: &Profile) -> Result<(), PlotError> {
        Ok(())
    }
}

pub(super) struct Progress;

impl Progress {
    pub(super) fn start() -> Self {
        Self
    }

    pub(super) fn show(&self, _: String) {}

    pub(super) fn clear(self) {}
}
