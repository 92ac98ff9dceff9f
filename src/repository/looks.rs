//! Decides in poll mode what to load and unload, from what each poll of the repositories saw. Pure: polls arrive as
//! data, failed ones too.
//!
//! A poll that failed proves nothing. What it could not read counts as unchanged and is read again by the next poll.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    path::{Path, PathBuf},
};

use super::{
    directory::Fingerprint,
    scan::{Found, Listing, Scan, merge},
};

/// What one poll of all repositories saw.
#[derive(Debug, Default)]
pub(super) struct Look {
    pub(super) scan: Scan,
    /// Fingerprints of the model directories of the scan.
    pub(super) prints: BTreeMap<PathBuf, io::Result<Fingerprint>>,
}

/// What a poll saw of one model name.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Sight {
    found: Found,
    print: Fingerprint,
}

/// What the last poll saw, and what has been acted on.
#[derive(Debug, Default)]
pub(super) struct Looks {
    /// Repositories as they were last seen, in the order of the command line.
    roots: Vec<(PathBuf, Listing)>,
    last: BTreeMap<String, Sight>,
    acted: BTreeMap<String, Sight>,
    /// Why directories could not be read by the last poll.
    faults: BTreeMap<PathBuf, String>,
    is_complete: bool,
}

/// What to do after a poll.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Verdict {
    pub(super) load: BTreeMap<String, Found>,
    pub(super) unload: BTreeSet<String>,
    /// Whether something changed since the last poll.
    pub(super) unsettled: bool,
    /// Number of directories that could not be read.
    pub(super) failed: usize,
    /// Those that could be read before, or that failed for another reason.
    pub(super) warnings: Vec<(PathBuf, String)>,
    /// Directories that can be read again.
    pub(super) recovered: Vec<PathBuf>,
}

impl Looks {
    /// Judges the poll at startup: everything found is loaded at once.
    pub(super) fn first(&mut self, look: Look) -> Verdict {
        let (current, faults) = self.see(look);
        self.last.clone_from(&current);
        self.judge(current, faults)
    }

    /// Judges a later poll: a change is acted on once two polls in a row saw the same.
    pub(super) fn again(&mut self, look: Look) -> Verdict {
        let (current, faults) = self.see(look);
        self.judge(current, faults)
    }

    /// Returns whether the last poll had a listing of every repository.
    pub(super) fn is_complete(&self) -> bool {
        self.is_complete
    }

    /// Makes the next poll load a model again, because a store did not deliver it as listed. A model that cannot be a
    /// directory waits for a change instead.
    pub(super) fn try_again(&mut self, name: &str) {
        let acted = self.acted.get_mut(name).filter(|sight| !matches!(sight.print, Fingerprint::Fault(_)));
        if let Some(sight) = acted {
            // The entry stays, so that the model is unloaded once it is gone.
            sight.print = Fingerprint::default();
        }
    }

    /// Returns the current models, with the last known state where a poll failed, and the reasons of the failures.
    fn see(&mut self, look: Look) -> (BTreeMap<String, Sight>, BTreeMap<PathBuf, String>) {
        let Look { scan, mut prints } = look;
        let mut faults = BTreeMap::new();
        let number = scan.len();
        let mut roots = Vec::with_capacity(number);
        for (root, listed) in scan {
            // A repository that could not be read keeps its last listing, so that an outage unloads nothing.
            let known = self.roots.iter().find(|(path, _)| *path == root).map(|(_, listing)| listing);
            match accept(&root, listed, known, &mut faults) {
                Ok(listing) => roots.push((root, listing)),
                Err(reason) => {
                    roots.extend(known.map(|known| (root.clone(), known.clone())));
                    faults.insert(root, reason);
                }
            }
        }
        self.is_complete = roots.len() == number;
        self.roots = roots;
        let found = merge(self.roots.iter().map(|(_, listing)| listing));
        let sights = found.into_iter().map(|(name, found)| {
            let print = match &found {
                Found::Twice(..) => None,
                Found::At(directory) => match prints.remove(directory) {
                    Some(Ok(print)) => Some(print),
                    Some(Err(fault)) => {
                        faults.insert(directory.clone(), fault.to_string());
                        self.print_before(&name, directory)
                    }
                    None => self.print_before(&name, directory),
                },
            };
            (name, Sight { found, print: print.unwrap_or_default() })
        });
        (sights.collect(), faults)
    }

    fn print_before(&self, name: &str, directory: &Path) -> Option<Fingerprint> {
        let is_same = |sight: &&Sight| matches!(&sight.found, Found::At(path) if path == directory);
        self.last.get(name).filter(is_same).map(|sight| sight.print.clone())
    }

    /// ## (last, acted) => (current, acted + settled)
    fn judge(&mut self, current: BTreeMap<String, Sight>, faults: BTreeMap<PathBuf, String>) -> Verdict {
        let mut verdict = Verdict { failed: faults.len(), ..Verdict::default() };
        let news = faults.iter().filter(|(path, reason)| self.faults.get(*path) != Some(*reason));
        verdict.warnings = news.map(|(path, reason)| (path.clone(), reason.clone())).collect();
        verdict.recovered = self.faults.keys().filter(|path| !faults.contains_key(*path)).cloned().collect();
        self.faults = faults;
        // A change must be seen twice, so that a model that is still being copied is left alone.
        for (name, sight) in &current {
            if self.acted.get(name) == Some(sight) {
                continue;
            }
            if self.last.get(name) == Some(sight) {
                verdict.load.insert(name.clone(), sight.found.clone());
                self.acted.insert(name.clone(), sight.clone());
            } else {
                verdict.unsettled = true;
            }
        }
        // A model must also be missing twice before it is unloaded.
        let gone = self.acted.keys().filter(|name| !current.contains_key(*name));
        for name in gone.cloned().collect::<Vec<_>>() {
            if self.last.contains_key(&name) {
                verdict.unsettled = true;
            } else {
                self.acted.remove(&name);
                verdict.unload.insert(name);
            }
        }
        self.last = current;
        verdict
    }
}

/// Returns a repository's listing as it is to be trusted, given the last one in `known`. Entries that could not be read
/// go into `faults`; they stay models if they were models before, or if this is the first listing.
fn accept(
    root: &Path,
    listed: io::Result<Listing>,
    known: Option<&Listing>,
    faults: &mut BTreeMap<PathBuf, String>,
) -> Result<Listing, String> {
    let mut listing = listed.map_err(|fault| fault.to_string())?;
    let is_empty = listing.models.is_empty() && listing.unclear.is_empty();
    // An unmounted volume leaves its mount point: an empty directory on the surrounding file system.
    if is_empty && known.is_some_and(|known| known.is_elsewhere_than(&listing)) {
        return Err("it is empty and on another device than before, as after an unmounted volume".to_owned());
    }
    for (name, reason) in listing.unclear.clone() {
        if known.is_none_or(|known| known.models.contains_key(&name)) {
            listing.believe(root, &name);
        }
        faults.insert(root.join(name), reason);
    }
    Ok(listing)
}

impl Listing {
    /// Returns whether this listing has models and is on another device than a later one.
    fn is_elsewhere_than(&self, later: &Self) -> bool {
        !self.models.is_empty() && self.identity.device != later.identity.device
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::repository::scan::Identity;

    const ROOT: &str = "/models";

    fn listing(device: u64, models: &[&str]) -> Listing {
        let models = models.iter().map(|name| ((*name).to_owned(), Path::new(ROOT).join(name)));
        Listing { identity: Identity { device, inode: 1 }, models: models.collect(), ..Listing::default() }
    }

    /// A poll of one repository: its models, and texts that stand for the contents of their directories.
    fn look(models: &[(&str, &str)]) -> Look {
        let names: Vec<&str> = models.iter().map(|(name, _)| *name).collect();
        let prints = models.iter().map(|(name, text)| (Path::new(ROOT).join(name), Ok(Fingerprint::of_text(text))));
        Look { scan: vec![(ROOT.into(), Ok(listing(1, &names)))], prints: prints.collect() }
    }

    fn failed(kind: io::ErrorKind) -> Look {
        Look { scan: vec![(ROOT.into(), Err(kind.into()))], prints: BTreeMap::new() }
    }

    /// Looks that have seen and acted on two models.
    fn settled() -> Looks {
        let mut looks = Looks::default();
        let first = looks.first(look(&[("a", "x"), ("b", "x")]));
        assert_eq!(first.load.len(), 2);
        assert!(looks.is_complete());
        looks
    }

    #[test]
    fn a_change_is_acted_on_once_it_holds_still() {
        let mut looks = Looks::default();
        assert!(looks.again(look(&[("a", "half")])).unsettled, "new");
        assert!(looks.again(look(&[("a", "more")])).unsettled, "still being written");
        let verdict = looks.again(look(&[("a", "more")]));
        assert_eq!(verdict.load.keys().collect::<Vec<_>>(), ["a"], "it held still");
        assert_eq!(looks.again(look(&[("a", "more")])), Verdict::default(), "and is loaded once");
    }

    #[test]
    fn a_model_that_a_store_did_not_give_is_asked_for_again_and_unloaded_when_it_is_gone() {
        let mut looks = settled();
        looks.try_again("a");
        let verdict = looks.again(look(&[("a", "x"), ("b", "x")]));
        assert_eq!(verdict.load.keys().collect::<Vec<_>>(), ["a"]);
        looks.try_again("a");
        looks.again(look(&[("b", "x")]));
        assert_eq!(looks.again(look(&[("b", "x")])).unload.iter().collect::<Vec<_>>(), ["a"]);
        looks.try_again("unknown");
        assert_eq!(looks.again(look(&[("b", "x")])), Verdict::default());
    }

    #[test]
    fn a_model_that_cannot_be_a_directory_is_tried_once_for_each_of_its_faults() {
        let mut looks = Looks::default();
        let faulty = |reason: &str| {
            let mut look = look(&[("a", "")]);
            look.prints = BTreeMap::from([(Path::new(ROOT).join("a"), Ok(Fingerprint::of_fault(reason)))]);
            look
        };
        assert_eq!(looks.first(faulty("one key")).load.len(), 1);
        looks.try_again("a");
        assert!(looks.again(faulty("one key")).load.is_empty());
        looks.again(faulty("another key"));
        assert_eq!(looks.again(faulty("another key")).load.len(), 1);
    }

    #[test]
    fn a_model_that_is_gone_for_two_looks_is_unloaded() {
        let mut looks = settled();
        let first = looks.again(look(&[("b", "x")]));
        assert!(first.unload.is_empty() && first.unsettled, "it may only be moved aside");
        let second = looks.again(look(&[("b", "x")]));
        assert_eq!(second.unload.iter().collect::<Vec<_>>(), ["a"]);
        assert_eq!(looks.again(look(&[("b", "x")])), Verdict::default());
    }

    #[test]
    fn a_model_that_comes_back_unchanged_is_not_loaded_again() {
        let mut looks = settled();
        looks.again(look(&[]));
        assert_eq!(looks.again(look(&[("a", "x"), ("b", "x")])), Verdict::default());
    }

    #[test]
    fn a_repository_that_cannot_be_looked_at_changes_nothing_and_is_warned_of_once() {
        let mut looks = settled();
        for (number, kind) in
            [io::ErrorKind::NotFound, io::ErrorKind::NotFound, io::ErrorKind::Other].into_iter().enumerate()
        {
            let verdict = looks.again(failed(kind));
            assert!(verdict.load.is_empty() && verdict.unload.is_empty() && !verdict.unsettled, "{verdict:?}");
            assert_eq!((verdict.failed, verdict.warnings.len()), (1, usize::from(number != 1)), "once for each cause");
        }
        let back = looks.again(look(&[("a", "x"), ("b", "x")]));
        let recovered = Verdict { recovered: vec![ROOT.into()], ..Verdict::default() };
        assert_eq!(back, recovered, "nothing is loaded again");
    }

    #[test]
    fn a_model_that_cannot_be_looked_at_stays_as_it_is() {
        let mut looks = settled();
        for _ in 0..3 {
            // Its directory cannot be read, and then cannot even be recognized as a directory.
            let mut unread = look(&[("a", "y"), ("b", "x")]);
            unread.prints.insert(Path::new(ROOT).join("b"), Err(io::ErrorKind::Other.into()));
            looks.again(unread);
            let mut unclear = look(&[("a", "y")]);
            if let (_, Ok(listing)) = &mut unclear.scan[0] {
                listing.unclear.insert("b".to_owned(), "stale file handle".to_owned());
            }
            let verdict = looks.again(unclear);
            assert!(verdict.unload.is_empty() && !verdict.load.contains_key("b"), "{verdict:?}");
            assert_eq!(verdict.failed, 1);
        }
        assert_eq!(looks.acted["a"].print, Fingerprint::of_text("y"), "the other is followed");
    }

    #[test]
    fn an_empty_directory_on_another_device_is_an_unmounted_volume() {
        let mut looks = settled();
        let mount_point = || Look { scan: vec![(ROOT.into(), Ok(listing(2, &[])))], ..Look::default() };
        for _ in 0..3 {
            let verdict = looks.again(mount_point());
            assert!(verdict.unload.is_empty() && verdict.failed == 1, "{verdict:?}");
        }
        let mut other_volume = look(&[("a", "x")]);
        other_volume.scan = vec![(ROOT.into(), Ok(listing(3, &["a"])))];
        assert!(looks.again(other_volume).unsettled, "another volume with models is believed");
        let emptied = || Look { scan: vec![(ROOT.into(), Ok(listing(3, &[])))], ..Look::default() };
        looks.again(emptied());
        looks.again(emptied());
        assert!(looks.acted.is_empty(), "and so is that it was emptied");
    }

    #[test]
    fn a_repository_that_was_never_seen_leaves_the_picture_incomplete() {
        let mut looks = Looks::default();
        looks.first(failed(io::ErrorKind::NotFound));
        assert!(!looks.is_complete());
        looks.again(look(&[]));
        assert!(looks.is_complete());
    }
}
