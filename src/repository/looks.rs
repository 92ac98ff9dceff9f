//! What poll mode saw, and what follows from it. Pure: looks come as data, those that failed too.
//!
//! A look that failed says nothing. What it was about stays as the look before it saw it, and is looked at again.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    path::{Path, PathBuf},
};

use super::{
    directory::Fingerprint,
    scan::{Found, Listing, Scan, merge},
};

/// One look at everything.
#[derive(Debug, Default)]
pub(super) struct Look {
    pub(super) scan: Scan,
    /// The model directories of the scan.
    pub(super) prints: BTreeMap<PathBuf, io::Result<Fingerprint>>,
}

/// What a look saw of one name.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Sight {
    found: Found,
    print: Fingerprint,
}

/// What was seen and what was acted on.
#[derive(Debug, Default)]
pub(super) struct Looks {
    /// Repositories as they were last seen, in the order of the command line.
    roots: Vec<(PathBuf, Listing)>,
    last: BTreeMap<String, Sight>,
    acted: BTreeMap<String, Sight>,
    /// Why directories could not be looked at the last time.
    faults: BTreeMap<PathBuf, String>,
    is_complete: bool,
}

/// What a look asks for.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Verdict {
    pub(super) load: BTreeMap<String, Found>,
    pub(super) unload: BTreeSet<String>,
    /// Something changed since the last look.
    pub(super) unsettled: bool,
    /// Directories that could not be looked at.
    pub(super) failed: usize,
    /// Those of them that could be before, or failed for another reason.
    pub(super) warnings: Vec<(PathBuf, String)>,
    /// Directories that can be looked at again.
    pub(super) recovered: Vec<PathBuf>,
}

impl Looks {
    /// The look at the start: asks at once for whatever there is.
    pub(super) fn first(&mut self, look: Look) -> Verdict {
        let (current, faults) = self.see(look);
        self.last.clone_from(&current);
        self.judge(current, faults)
    }

    /// A later look: asks for what two looks in a row saw the same.
    pub(super) fn again(&mut self, look: Look) -> Verdict {
        let (current, faults) = self.see(look);
        self.judge(current, faults)
    }

    /// Whether every repository was seen at least once.
    pub(super) fn is_complete(&self) -> bool {
        self.is_complete
    }

    /// Notes that a store did not give a model as it was seen: the next look asks for it again. One that cannot be a
    /// directory waits for a change.
    pub(super) fn try_again(&mut self, name: &str) {
        let acted = self.acted.get_mut(name).filter(|sight| !matches!(sight.print, Fingerprint::Fault(_)));
        if let Some(sight) = acted {
            // It is still known as a model that is unloaded when it is gone.
            sight.print = Fingerprint::default();
        }
    }

    /// What there is now, as far as it could be seen and otherwise as it was, and what could not be seen.
    fn see(&mut self, look: Look) -> (BTreeMap<String, Sight>, BTreeMap<PathBuf, String>) {
        let Look { scan, mut prints } = look;
        let mut faults = BTreeMap::new();
        let number = scan.len();
        let mut roots = Vec::with_capacity(number);
        for (root, listed) in scan {
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

/// A repository as it is to be taken to be, `known` being what was seen of it before. Notes its entries that could not
/// be looked at; those that were models stay models, and at the first look they may be.
fn accept(
    root: &Path,
    listed: io::Result<Listing>,
    known: Option<&Listing>,
    faults: &mut BTreeMap<PathBuf, String>,
) -> Result<Listing, String> {
    let mut listing = listed.map_err(|fault| fault.to_string())?;
    let is_empty = listing.models.is_empty() && listing.unclear.is_empty();
    // Where a volume was unmounted, its mount point is left: an empty directory of the file system around it.
    if is_empty && known.is_some_and(|known| known.is_elsewhere_than(&listing)) {
        return Err("it is empty and on another device than before, as if a volume was unmounted".to_owned());
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
    /// Whether this one holds models and is on another device than a later one.
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

    /// A look at one repository: its models and the texts that their directories are told apart by.
    fn look(models: &[(&str, &str)]) -> Look {
        let names: Vec<&str> = models.iter().map(|(name, _)| *name).collect();
        let prints = models.iter().map(|(name, text)| (Path::new(ROOT).join(name), Ok(Fingerprint::of_text(text))));
        Look { scan: vec![(ROOT.into(), Ok(listing(1, &names)))], prints: prints.collect() }
    }

    fn failed(kind: io::ErrorKind) -> Look {
        Look { scan: vec![(ROOT.into(), Err(kind.into()))], prints: BTreeMap::new() }
    }

    /// What was seen of two models and acted on.
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
            // Its directory cannot be read, then not even told to be one.
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
