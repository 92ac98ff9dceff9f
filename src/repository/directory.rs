//! Model directories on disk: finding them, their versions, and whether they changed.

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
    time::SystemTime,
};

use super::StartError;

/// More files than this in one model directory are not looked at for changes.
const MAX_FILES: usize = 10_000;
/// Deeper than this they are not looked at either.
const MAX_DEPTH: usize = 8;

/// A model directory, or the reason why a name has none that could be served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Found {
    At(PathBuf),
    /// The same name in two repositories.
    Twice(PathBuf, PathBuf),
}

/// Refuses what is not a readable directory.
pub(super) fn check_roots(roots: &[PathBuf]) -> Result<(), StartError> {
    if roots.is_empty() {
        return Err(StartError::NoRepository);
    }
    for path in roots {
        let text = path.to_string_lossy();
        if ["s3://", "gs://", "as://"].iter().any(|scheme| text.starts_with(scheme)) {
            return Err(StartError::Remote { location: text.into_owned() });
        }
        fs::read_dir(path).map_err(|source| StartError::Unreadable { path: path.clone(), source })?;
    }
    Ok(())
}

/// Whether a name can be a model's: one plain directory name, not hidden (volume mounts keep their data in `..data`).
pub(super) fn is_model_name(name: &str) -> bool {
    !name.is_empty() && !name.starts_with('.') && !name.contains(['/', '\\', '\0'])
}

/// All models of all repositories. Directories may be links; a repository that cannot be read just now has none.
pub(super) fn scan(roots: &[PathBuf]) -> BTreeMap<String, Found> {
    let mut models = BTreeMap::new();
    for root in roots {
        let entries = match fs::read_dir(root) {
            Ok(entries) => entries,
            Err(fault) => {
                tracing::warn!(repository = %root.display(), %fault, "the model repository cannot be read");
                continue;
            }
        };
        for entry in entries.flatten() {
            let Ok(name) = entry.file_name().into_string() else { continue };
            let path = entry.path();
            if !is_model_name(&name) || !path.is_dir() {
                continue;
            }
            let found = match models.remove(&name) {
                None => Found::At(path),
                Some(Found::At(first) | Found::Twice(first, _)) => Found::Twice(first, path),
            };
            models.insert(name, found);
        }
    }
    models
}

/// The directory of one model, if any repository has it.
pub(super) fn find(roots: &[PathBuf], name: &str) -> Option<Found> {
    if !is_model_name(name) {
        return None;
    }
    let mut places = roots.iter().map(|root| root.join(name)).filter(|path| path.is_dir());
    let first = places.next()?;
    Some(places.next().map_or(Found::At(first.clone()), |second| Found::Twice(first, second)))
}

/// Version numbers of a model directory, ascending. Directories with other names, leading zeros included, do not count.
pub(super) fn versions(model: &Path) -> io::Result<Vec<i64>> {
    let mut versions = Vec::new();
    for entry in fs::read_dir(model)?.flatten() {
        if !entry.path().is_dir() {
            continue;
        }
        let name = entry.file_name();
        match name.to_str().and_then(version_number) {
            Some(version) => versions.push(version),
            None => tracing::debug!(model = %model.display(), directory = ?name, "not a version directory"),
        }
    }
    versions.sort_unstable();
    Ok(versions)
}

/// The version a directory's name stands for.
pub(super) fn version_number(name: &str) -> Option<i64> {
    let plain = !name.starts_with('0') && name.bytes().all(|byte| byte.is_ascii_digit());
    name.parse().ok().filter(|version| plain && *version > 0)
}

/// What a model directory looks like from outside: equal as long as no file was added, removed, replaced or written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Fingerprint(BTreeMap<PathBuf, Mark>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Mark {
    bytes: u64,
    modified: Option<SystemTime>,
    /// Tells a file apart from one that was moved into its place.
    identity: u64,
}

impl Fingerprint {
    pub(super) fn of(model: &Path) -> Self {
        let mut print = Self::default();
        print.add(model, Path::new(""), 0);
        print
    }

    fn add(&mut self, directory: &Path, relative: &Path, depth: usize) {
        let Ok(entries) = fs::read_dir(directory) else { return };
        for entry in entries.flatten() {
            // Links are followed: a volume mount is updated by moving a link.
            let (path, name) = (entry.path(), relative.join(entry.file_name()));
            let Ok(metadata) = fs::metadata(&path) else { continue };
            if self.0.len() >= MAX_FILES {
                return;
            }
            if metadata.is_dir() && depth < MAX_DEPTH {
                self.0.insert(name.clone(), Mark { bytes: 0, modified: None, identity: 0 });
                self.add(&path, &name, depth + 1);
            } else {
                let mark =
                    Mark { bytes: metadata.len(), modified: metadata.modified().ok(), identity: identity(&metadata) };
                self.0.insert(name, mark);
            }
        }
    }
}

#[cfg(unix)]
fn identity(metadata: &fs::Metadata) -> u64 {
    std::os::unix::fs::MetadataExt::ino(metadata)
}

#[cfg(not(unix))]
fn identity(_metadata: &fs::Metadata) -> u64 {
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_numbers_above_zero_are_versions() {
        assert_eq!(version_number("1"), Some(1));
        assert_eq!(version_number("20240131"), Some(20_240_131));
        for name in ["", "0", "01", "-1", "+1", "1a", "a", "1.0", "99999999999999999999"] {
            assert_eq!(version_number(name), None, "{name:?}");
        }
    }

    #[test]
    fn names_that_leave_the_repository_are_no_model_names() {
        assert!(is_model_name("resnet-50.v1"));
        for name in ["", ".", "..", "../x", "a/b", "/etc", "a\\b", ".git", "..data", "a\0b"] {
            assert!(!is_model_name(name), "{name:?}");
        }
    }

    #[test]
    fn remote_repositories_are_refused_with_a_way_out() {
        let error = check_roots(&[PathBuf::from("s3://bucket/models")]).unwrap_err().to_string();
        assert!(error.contains("s3://bucket/models") && error.contains("init container"), "{error}");
        assert!(matches!(check_roots(&[]), Err(StartError::NoRepository)));
        let missing = PathBuf::from("no/such/directory");
        assert!(matches!(check_roots(&[missing]), Err(StartError::Unreadable { .. })));
    }

    #[test]
    fn a_written_replaced_or_added_file_changes_the_fingerprint() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("1/model.onnx");
        fs::create_dir(directory.path().join("1")).unwrap();
        fs::write(&file, "one").unwrap();
        let first = Fingerprint::of(directory.path());
        assert_eq!(Fingerprint::of(directory.path()), first, "nothing changed");

        fs::write(&file, "three").unwrap();
        let longer = Fingerprint::of(directory.path());
        assert_ne!(longer, first, "written");
        fs::create_dir(directory.path().join("2")).unwrap();
        assert_ne!(Fingerprint::of(directory.path()), longer, "an empty version directory was added");
    }

    #[test]
    fn links_in_a_circle_end() {
        let directory = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink(directory.path(), directory.path().join("self")).unwrap();
        assert!(!Fingerprint::of(directory.path()).0.is_empty());
    }
}
