//! Replaces `display` if the feature `tools` is off: `paternoster profile` then only prints text.

use std::convert::Infallible;

use paternoster_profile::Profile;

/// Plot files; none without the feature.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct PlotArgs {
    /// Accepted so that it can be rejected with the reason.
    #[arg(long, value_name = "FILE", hide = true, value_parser = refuse)]
    pub svg: Option<Infallible>,
}

fn refuse(_: &str) -> Result<Infallible, &'static str> {
    Err("this program was built without plots, which need the cargo feature 'tools'")
}

/// Plots cannot fail, since there are none.
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
