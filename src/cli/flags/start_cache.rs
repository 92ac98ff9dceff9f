//! Where the server keeps what it need not compute again after a restart.

use std::path::PathBuf;

use paternoster_profile::default_directory;
use paternoster_repository::StartCache;

use super::{super::cuda::KERNELS, CudaArgs, ServeArgs};

/// The value of --cache-directory that turns it off.
const KEEP_NOTHING: &str = "off";

impl ServeArgs {
    /// Returns the directory that the command line names for all that is kept across restarts.
    fn cache_directory(&self) -> Option<&PathBuf> {
        self.repository.start_cache_directory.as_ref().filter(|directory| directory.as_os_str() != KEEP_NOTHING)
    }

    /// Returns the directory of profiles; `None` if none is named and there is no home directory.
    pub(in crate::cli) fn profile_directory(&self) -> Option<PathBuf> {
        self.auto.profile_directory.as_ref().or(self.cache_directory()).cloned().or_else(default_directory)
    }

    /// Returns what is kept of models across restarts; `None` if that is turned off, or there is no directory for it.
    pub(in crate::cli) fn start_cache(&self) -> Option<StartCache> {
        let directory = match &self.repository.start_cache_directory {
            Some(_) => self.cache_directory().cloned(),
            None => self.profile_directory(),
        };
        directory.as_deref().map(StartCache::new)
    }

    /// Returns the settings of cards, with a directory for compiled kernels.
    pub(in crate::cli) fn cuda(&self) -> CudaArgs {
        let kernels = || self.cache_directory().map(|directory| directory.join(KERNELS));
        CudaArgs { kernel_directory: self.cuda.kernel_directory.clone().or_else(kernels), ..self.cuda.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::tests::serve;

    #[test]
    fn one_directory_holds_all_that_is_kept_unless_parts_have_their_own() {
        let profiles = |flags: &[&str]| serve(flags).profile_directory();
        let kernels = |flags: &[&str]| serve(flags).cuda().kernel_directory;
        let kept = |flags: &[&str]| serve(flags).start_cache().map(|cache| format!("{cache:?}"));
        let is_in = |kept: Option<String>, directory: &str| {
            kept.is_some_and(|kept| kept.contains(&format!("directory: \"{directory}/start-cache\"")))
        };
        let all = ["--cache-directory=/c"];
        assert_eq!((profiles(&all), kernels(&all)), (Some("/c".into()), Some("/c/kernels".into())));
        assert!(is_in(kept(&all), "/c"));
        let parts = ["--cache-directory=/c", "--profile-directory=/p", "--cuda-kernel-directory=/k"];
        assert_eq!((profiles(&parts), kernels(&parts)), (Some("/p".into()), Some("/k".into())));
        assert!(is_in(kept(&parts), "/c"));
        assert!(is_in(kept(&["--profile-directory=/p"]), "/p"), "a place that the server may write to");
        let off = ["--cache-directory=off", "--profile-directory=/p"];
        assert_eq!((kept(&off), profiles(&off), kernels(&off)), (None, Some("/p".into()), None));
        assert_eq!(profiles(&["--cache-directory=off"]), profiles(&[]));
    }
}
