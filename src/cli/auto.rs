//! Flags of `paternoster serve` for models that leave stages or policy to the server.

use std::{path::PathBuf, time::Duration};

use clap::Args;
use paternoster_profile::Store;
use paternoster_repository::PoolLoader;
use tracing::warn;

use super::flags::boolean;

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Profiles")]
#[allow(missing_docs)]
pub struct AutoArgs {
    /// Directory of the profiles for models with `stages: auto` or `policy: auto`; defaults to --cache-directory
    #[arg(long = "profile-directory", value_name = "DIR")]
    pub profile_directory: Option<PathBuf>,

    /// Measure such models while they serve, if they have no profile, and then serve them as the profile advises
    #[arg(long = "auto-profile", value_name = "BOOL", value_parser = boolean)]
    #[arg(num_args = 0..=1, default_missing_value = "true", default_value = "true")]
    pub auto_profile: bool,

    /// Limit on the seconds for measuring one model
    #[arg(long = "auto-profile-seconds", value_name = "SECONDS", default_value_t = 20)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    pub auto_profile_secs: u32,
}

impl AutoArgs {
    /// Configures a loader as the flags say, with profiles in `directory`.
    pub(super) fn apply(&self, loader: PoolLoader, directory: Option<PathBuf>) -> PoolLoader {
        let Some(store) = directory.map(Store::new) else {
            warn!(
                "models are served without profiles: there is no home directory, and neither --profile-directory nor \
                 --cache-directory"
            );
            return loader;
        };
        let loader = loader.with_profiles(store);
        if !self.auto_profile {
            return loader;
        }
        loader.with_background_profiles(Duration::from_secs(u64::from(self.auto_profile_secs)))
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::serve;

    #[test]
    fn models_are_measured_while_they_serve_unless_it_is_switched_off() {
        let auto = |flags: &[&str]| serve(flags).auto;
        let given = auto(&[]);
        assert!(given.auto_profile && given.auto_profile_secs == 20 && given.profile_directory.is_none());
        assert!(!auto(&["--auto-profile=false"]).auto_profile);
        assert_eq!(auto(&["--auto-profile-seconds", "5"]).auto_profile_secs, 5);
        assert_eq!(auto(&["--profile-directory=/p"]).profile_directory, Some("/p".into()));
    }
}
