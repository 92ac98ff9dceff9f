//! The flags of `paternoster serve` about models that leave their stages or policy to the server.

use std::path::PathBuf;

use clap::Args;

use crate::profile::{Store, default_directory};

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Profiles")]
#[allow(missing_docs)]
pub struct AutoArgs {
    /// Directory of the profiles by which models with `stages: auto` or `policy: auto` are served; $XDG_CACHE_HOME/paternoster or
    /// ~/.cache/paternoster where not given
    #[arg(long = "profile-directory", value_name = "DIR")]
    pub profile_directory: Option<PathBuf>,
}

impl AutoArgs {
    /// Where profiles lie; `None` on a machine without a home, if no directory was given.
    pub(super) fn store(&self) -> Option<Store> {
        self.profile_directory.clone().or_else(default_directory).map(Store::new)
    }
}
