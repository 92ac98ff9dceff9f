//! Decides in poll mode what to load and unload, from what each poll of the repositories saw. No I/O: polls arrive as
//! data, failed ones too.
//!
//! A failed poll is no evidence of a change. What it could not read counts as unchanged and is read again by the next
//! poll.

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
pub(super) struct PollResult {
    pub(super) scan: Scan,
    /// Fingerprints of the model directories of the scan.
    pub(super) fingerprints: BTreeMap<PathBuf, io::Result<Fingerprint>>,
}

/// What a poll saw of one model name.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ModelState {
    found: Found,
    fingerprint: Fingerprint,
}

/// What the last poll saw, and what has been acted on.
#[derive(Debug, Default)]
pub(super) struct ChangeDetector {
    /// Repositories as they were last seen, in the order of the command line.
    roots: Vec<(PathBuf, Listing)>,
    last: BTreeMap<String, ModelState>,
    acted: BTreeMap<String, ModelState>,
    /// Why directories could not be read by the last poll.
    faults: BTreeMap<PathBuf, String>,
    is_complete: bool,
}

/// What to do after a poll.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Changes {
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

impl ChangeDetector {
    /// Processes the poll at startup: everything found is loaded at once.
    pub(super) fn first(&mut self, poll: PollResult) -> Changes {
        let (current, faults) = self.observe(poll);
        self.last.clone_from(&current);
        self.decide(current, faults)
    }

    /// Processes a later poll: a change is acted on once two polls in a row saw the same.
    pub(super) fn again(&mut self, poll: PollResult) -> Changes {
        let (current, faults) = self.observe(poll);
        self.decide(current, faults)
    }

    /// Returns whether the last poll had a listing of every repository.
    pub(super) fn is_complete(&self) -> bool {
        self.is_complete
    }

    /// Makes the next poll load a model again, because a store did not deliver it as listed. A model that cannot be a
    /// directory waits for a change instead.
    pub(super) fn try_again(&mut self, name: &str) {
        let acted = self.acted.get_mut(name).filter(|state| !matches!(state.fingerprint, Fingerprint::Fault(_)));
        if let Some(state) = acted {
            // The entry stays, so that the model is unloaded once it is gone.
            state.fingerprint = Fingerprint::default();
        }
    }

    /// Returns the current models, with the last known state where a poll failed, and the reasons of the failures.
    fn observe(&mut self, poll: PollResult) -> (BTreeMap<String, ModelState>, BTreeMap<PathBuf, String>) {
        let PollResult { scan, mut fingerprints } = poll;
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
                    faults.insert(root, reason.to_string());
                }
            }
        }
        self.is_complete = roots.len() == number;
        self.roots = roots;
        let found = merge(self.roots.iter().map(|(_, listing)| listing));
        let states = found.into_iter().map(|(name, found)| {
            let fingerprint = match &found {
                Found::Twice(..) => None,
                Found::At(directory) => match fingerprints.remove(directory) {
                    Some(Ok(fingerprint)) => Some(fingerprint),
                    Some(Err(fault)) => {
                        faults.insert(directory.clone(), fault.to_string());
                        self.fingerprint_before(&name, directory)
                    }
                    None => self.fingerprint_before(&name, directory),
                },
            };
            (name, ModelState { found, fingerprint: fingerprint.unwrap_or_default() })
        });
        (states.collect(), faults)
    }

    fn fingerprint_before(&self, name: &str, directory: &Path) -> Option<Fingerprint> {
        let is_same = |state: &&ModelState| matches!(&state.found, Found::At(path) if path == directory);
        self.last.get(name).filter(is_same).map(|state| state.fingerprint.clone())
    }

    /// ## (last, acted) => (current, acted + settled)
    fn decide(&mut self, current: BTreeMap<String, ModelState>, faults: BTreeMap<PathBuf, String>) -> Changes {
        let mut changes = Changes { failed: faults.len(), ..Changes::default() };
        let news = faults.iter().filter(|(path, reason)| self.faults.get(*path) != Some(*reason));
        changes.warnings = news.map(|(path, reason)| (path.clone(), reason.clone())).collect();
        changes.recovered = self.faults.keys().filter(|path| !faults.contains_key(*path)).cloned().collect();
        self.faults = faults;
        // A change must be seen twice, so that a model that is still being copied is left alone.
        for (name, state) in &current {
            if self.acted.get(name) == Some(state) {
                continue;
            }
            if self.last.get(name) == Some(state) {
                changes.load.insert(name.clone(), state.found.clone());
                self.acted.insert(name.clone(), state.clone());
            } else {
                changes.unsettled = true;
            }
        }
        // A model must also be missing twice before it is unloaded.
        let gone = self.acted.keys().filter(|name| !current.contains_key(*name));
        for name in gone.cloned().collect::<Vec<_>>() {
            if self.last.contains_key(&name) {
                changes.unsettled = true;
            } else {
                self.acted.remove(&name);
                changes.unload.insert(name);
            }
        }
        self.last = current;
        changes
    }
}

/// Returns a repository's listing to use, given the last one in `known`. Entries that could not be read
/// go into `faults`; they stay models if they were models before, or if this is the first listing.
fn accept(
    root: &Path,
    listed: io::Result<Listing>,
    known: Option<&Listing>,
    faults: &mut BTreeMap<PathBuf, String>,
) -> io::Result<Listing> {
    let mut listing = listed?;
    let is_empty = listing.models.is_empty() && listing.unreadable.is_empty();
    // An unmounted volume leaves its mount point: an empty directory on the surrounding file system.
    if is_empty && known.is_some_and(|known| known.is_elsewhere_than(&listing)) {
        let message = "it is empty and on another device than before, as after an unmounted volume";
        return Err(io::Error::other(message));
    }
    for (name, reason) in listing.unreadable.clone() {
        if known.is_none_or(|known| known.models.contains_key(&name)) {
            listing.assume_model(root, &name);
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
    use crate::directory::Identity;

    const ROOT: &str = "/models";

    fn listing(device: u64, models: &[&str]) -> Listing {
        let models = models.iter().map(|name| ((*name).to_owned(), Path::new(ROOT).join(name)));
        Listing { identity: Identity { device, inode: 1 }, models: models.collect(), ..Listing::default() }
    }

    /// A poll of one repository: its models, and texts that stand for the contents of their directories.
    fn poll(models: &[(&str, &str)]) -> PollResult {
        let names: Vec<&str> = models.iter().map(|(name, _)| *name).collect();
        let fingerprints =
            models.iter().map(|(name, text)| (Path::new(ROOT).join(name), Ok(Fingerprint::of_text(text))));
        PollResult { scan: vec![(ROOT.into(), Ok(listing(1, &names)))], fingerprints: fingerprints.collect() }
    }

    fn failed(kind: io::ErrorKind) -> PollResult {
        PollResult { scan: vec![(ROOT.into(), Err(kind.into()))], fingerprints: BTreeMap::new() }
    }

    /// A detector that has seen and acted on two models.
    fn settled() -> ChangeDetector {
        let mut detector = ChangeDetector::default();
        let first = detector.first(poll(&[("a", "x"), ("b", "x")]));
        assert_eq!(first.load.len(), 2);
        assert!(detector.is_complete());
        detector
    }

    #[test]
    fn a_change_is_acted_on_once_two_polls_saw_it() {
        let mut detector = ChangeDetector::default();
        assert!(detector.again(poll(&[("a", "half")])).unsettled, "new");
        assert!(detector.again(poll(&[("a", "more")])).unsettled, "still being written");
        let changes = detector.again(poll(&[("a", "more")]));
        assert_eq!(changes.load.keys().collect::<Vec<_>>(), ["a"], "two polls saw it");
        assert_eq!(detector.again(poll(&[("a", "more")])), Changes::default(), "and is loaded once");
    }

    #[test]
    fn a_model_that_a_store_did_not_give_is_asked_for_again_and_unloaded_when_it_is_gone() {
        let mut detector = settled();
        detector.try_again("a");
        let changes = detector.again(poll(&[("a", "x"), ("b", "x")]));
        assert_eq!(changes.load.keys().collect::<Vec<_>>(), ["a"]);
        detector.try_again("a");
        detector.again(poll(&[("b", "x")]));
        assert_eq!(detector.again(poll(&[("b", "x")])).unload.iter().collect::<Vec<_>>(), ["a"]);
        detector.try_again("unknown");
        assert_eq!(detector.again(poll(&[("b", "x")])), Changes::default());
    }

    #[test]
    fn a_model_that_cannot_be_a_directory_is_tried_once_for_each_of_its_faults() {
        let mut detector = ChangeDetector::default();
        let faulty = |reason: &str| {
            let mut poll = poll(&[("a", "")]);
            poll.fingerprints = BTreeMap::from([(Path::new(ROOT).join("a"), Ok(Fingerprint::of_fault(reason)))]);
            poll
        };
        assert_eq!(detector.first(faulty("one key")).load.len(), 1);
        detector.try_again("a");
        assert!(detector.again(faulty("one key")).load.is_empty());
        detector.again(faulty("another key"));
        assert_eq!(detector.again(faulty("another key")).load.len(), 1);
    }

    #[test]
    fn a_model_that_is_missing_in_two_polls_is_unloaded() {
        let mut detector = settled();
        let first = detector.again(poll(&[("b", "x")]));
        assert!(first.unload.is_empty() && first.unsettled, "it may only be moved aside");
        let second = detector.again(poll(&[("b", "x")]));
        assert_eq!(second.unload.iter().collect::<Vec<_>>(), ["a"]);
        assert_eq!(detector.again(poll(&[("b", "x")])), Changes::default());
    }

    #[test]
    fn a_model_that_comes_back_unchanged_is_not_loaded_again() {
        let mut detector = settled();
        detector.again(poll(&[]));
        assert_eq!(detector.again(poll(&[("a", "x"), ("b", "x")])), Changes::default());
    }

    #[test]
    fn a_repository_that_cannot_be_read_changes_nothing_and_is_warned_of_once() {
        let mut detector = settled();
        for (number, kind) in
            [io::ErrorKind::NotFound, io::ErrorKind::NotFound, io::ErrorKind::Other].into_iter().enumerate()
        {
            let changes = detector.again(failed(kind));
            assert!(changes.load.is_empty() && changes.unload.is_empty() && !changes.unsettled, "{changes:?}");
            assert_eq!((changes.failed, changes.warnings.len()), (1, usize::from(number != 1)), "once for each cause");
        }
        let back = detector.again(poll(&[("a", "x"), ("b", "x")]));
        let recovered = Changes { recovered: vec![ROOT.into()], ..Changes::default() };
        assert_eq!(back, recovered, "nothing is loaded again");
    }

    #[test]
    fn a_model_that_cannot_be_read_stays_as_it_is() {
        let mut detector = settled();
        for _ in 0..3 {
            // Its directory cannot be read, and then cannot even be recognized as a directory.
            let mut unread = poll(&[("a", "y"), ("b", "x")]);
            unread.fingerprints.insert(Path::new(ROOT).join("b"), Err(io::ErrorKind::Other.into()));
            detector.again(unread);
            let mut unreadable = poll(&[("a", "y")]);
            if let (_, Ok(listing)) = &mut unreadable.scan[0] {
                listing.unreadable.insert("b".to_owned(), "stale file handle".to_owned());
            }
            let changes = detector.again(unreadable);
            assert!(changes.unload.is_empty() && !changes.load.contains_key("b"), "{changes:?}");
            assert_eq!(changes.failed, 1);
        }
        assert_eq!(detector.acted["a"].fingerprint, Fingerprint::of_text("y"), "the other is followed");
    }

    #[test]
    fn an_empty_directory_on_another_device_is_an_unmounted_volume() {
        let mut detector = settled();
        let mount_point = || PollResult { scan: vec![(ROOT.into(), Ok(listing(2, &[])))], ..PollResult::default() };
        for _ in 0..3 {
            let changes = detector.again(mount_point());
            assert!(changes.unload.is_empty() && changes.failed == 1, "{changes:?}");
        }
        let mut other_volume = poll(&[("a", "x")]);
        other_volume.scan = vec![(ROOT.into(), Ok(listing(3, &["a"])))];
        assert!(detector.again(other_volume).unsettled, "another volume with models replaces the first");
        let emptied = || PollResult { scan: vec![(ROOT.into(), Ok(listing(3, &[])))], ..PollResult::default() };
        detector.again(emptied());
        detector.again(emptied());
        assert!(detector.acted.is_empty(), "and so is that it was emptied");
    }

    #[test]
    fn a_repository_that_was_never_seen_leaves_the_state_incomplete() {
        let mut detector = ChangeDetector::default();
        detector.first(failed(io::ErrorKind::NotFound));
        assert!(!detector.is_complete());
        detector.again(poll(&[]));
        assert!(detector.is_complete());
    }
}
