//! Reads a model directory: its versions, whether it holds a model, and a fingerprint that shows changes.

use std::{
    collections::BTreeMap,
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    time::SystemTime,
};

use super::{generation, stores::Object};

/// The tokenizer's file of a model that takes texts, unless the configuration names another one.
pub(super) const TOKENIZER: &str = "tokenizer.json";

/// Where exports put the program of a model that has no version directories.
pub(super) const PROGRAMS: [&str; 2] = ["onnx/model.onnx", "model.onnx"];

/// Most files and directories of a model directory that are checked for changes.
const MAX_FILES: usize = 10_000;
/// Deepest level of subdirectories that is checked.
const MAX_DEPTH: usize = 8;

/// Identifies a directory and its device, since another directory may have the same path at another time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Identity {
    pub(super) device: u64,
    pub(super) inode: u64,
}

/// Returns what identifies a directory or a file.
pub(super) fn identity(metadata: &fs::Metadata) -> Identity {
    Identity { device: metadata.dev(), inode: metadata.ino() }
}

/// Returns whether a path leads, through links, to a directory. A missing path does not; any other failure is an error.
pub(super) fn is_directory(path: &Path) -> io::Result<bool> {
    match fs::metadata(path) {
        Ok(metadata) => Ok(metadata.is_dir()),
        Err(fault) if matches!(fault.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => Ok(false),
        Err(fault) => Err(fault),
    }
}

/// Returns the version numbers of a model directory, ascending. Directories with other names, including those with
/// leading zeros, are ignored.
///
/// # Errors
/// Fails if the directory or one of its entries cannot be read, since an incomplete list could unload versions.
pub(super) fn versions(model: &Path) -> io::Result<Vec<i64>> {
    let mut versions = Vec::new();
    for entry in fs::read_dir(model)? {
        let entry = entry?;
        if !is_directory(&entry.path())? {
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

/// Returns the version that a directory's name denotes.
pub(super) fn version_number(name: &str) -> Option<i64> {
    let plain = !name.starts_with('0') && name.bytes().all(|byte| byte.is_ascii_digit());
    name.parse().ok().filter(|version| plain && *version > 0)
}

/// Returns whether a directory holds a model: it has a configuration, or a version with a file or directory
/// `model.<something>`, as for Triton; or it is laid out as Hugging Face does.
///
/// # Errors
/// Fails if the directory cannot be read.
pub(super) fn holds_model(directory: &Path, configurations: &[PathBuf]) -> io::Result<bool> {
    for configuration in configurations {
        if configuration.try_exists()? {
            return Ok(true);
        }
    }
    if laid_out(directory).is_some() {
        return Ok(true);
    }
    for version in versions(directory)? {
        for entry in fs::read_dir(directory.join(version.to_string()))? {
            if entry?.file_name().to_string_lossy().starts_with("model.") {
                return Ok(true);
            }
        }
    }
    Ok(false)
}

/// Returns the program of a directory that Hugging Face or sentence-transformers laid out, which has no version
/// directories, but a tokenizer, or a description of a decoder. Without the feature `text` no tokenizer is looked for.
pub(super) fn laid_out(directory: &Path) -> Option<PathBuf> {
    let program = PROGRAMS.into_iter().map(PathBuf::from).find(|program| directory.join(program).is_file())?;
    let has_tokenizer = cfg!(feature = "text") && directory.join(TOKENIZER).is_file();
    // A directory that cannot be read has no versions that would be served instead.
    let has_versions = versions(directory).is_ok_and(|versions| !versions.is_empty());
    (!has_versions && (has_tokenizer || generation::is_described(directory))).then_some(program)
}

/// Returns whether a directory is laid out as that of a model that takes texts.
pub(super) fn takes_texts(directory: &Path) -> bool {
    laid_out(directory).is_some_and(|program| !generation::generates(directory, &directory.join(program)))
}

/// The identity of the files of a model. Two fingerprints are equal if no file was added, removed, replaced or written
/// in between.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Fingerprint {
    /// Of a directory.
    Files(BTreeMap<PathBuf, Mark>),
    /// Of a model in a store.
    Objects(Vec<Object>),
    /// Of a model in a store that cannot become a directory, with the reason.
    Fault(String),
}

impl Default for Fingerprint {
    fn default() -> Self {
        Self::Files(BTreeMap::new())
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mark {
    bytes: u64,
    modified: Option<SystemTime>,
    /// Distinguishes a file from another one moved into its place.
    identity: Identity,
}

impl Fingerprint {
    /// Takes the fingerprint of a model directory.
    ///
    /// # Errors
    /// Fails if the directory or a part of it cannot be read. Files that this process may not read are left out
    /// instead, so that they do not block the model.
    pub(super) fn of(model: &Path) -> io::Result<Self> {
        let mut marks = BTreeMap::new();
        add(&mut marks, fs::read_dir(model)?, Path::new(""), 0)?;
        Ok(Self::Files(marks))
    }

    /// Returns the bytes of the files of a directory that are counted.
    pub(super) fn bytes_of(&self, is_counted: impl Fn(&Path) -> bool) -> u64 {
        let Self::Files(files) = self else { return 0 };
        files.iter().filter(|(file, _)| is_counted(file)).map(|(_, mark)| mark.bytes).sum()
    }

    /// Returns the fingerprint of a model in a store, from its objects.
    pub(super) fn of_objects(objects: Vec<Object>) -> Self {
        Self::Objects(objects)
    }

    /// Returns the fingerprint of a model in a store that cannot become a directory.
    pub(super) fn of_fault(reason: &str) -> Self {
        Self::Fault(reason.to_owned())
    }
}

fn add(marks: &mut BTreeMap<PathBuf, Mark>, entries: fs::ReadDir, relative: &Path, depth: usize) -> io::Result<()> {
    for entry in entries {
        let entry = entry?;
        // Follows links: Kubernetes updates a volume mount by moving a link.
        let (path, name) = (entry.path(), relative.join(entry.file_name()));
        let metadata = match fs::metadata(&path) {
            Ok(metadata) => metadata,
            Err(fault) if is_lasting(&fault) => continue,
            Err(fault) => return Err(fault),
        };
        if marks.len() >= MAX_FILES {
            return Ok(());
        }
        if !metadata.is_dir() || depth >= MAX_DEPTH {
            let (bytes, modified) = (metadata.len(), metadata.modified().ok());
            marks.insert(name, Mark { bytes, modified, identity: identity(&metadata) });
            continue;
        }
        marks.insert(name.clone(), Mark { bytes: 0, modified: None, identity: Identity::default() });
        match fs::read_dir(&path) {
            Ok(entries) => add(marks, entries, &name, depth + 1)?,
            Err(fault) if is_lasting(&fault) => {}
            Err(fault) => return Err(fault),
        }
    }
    Ok(())
}

#[cfg(test)]
impl Fingerprint {
    /// A fingerprint that differs from that of any other text.
    pub(super) fn of_text(text: &str) -> Self {
        let mark = Mark { bytes: 0, modified: None, identity: Identity::default() };
        Self::Files(BTreeMap::from([(PathBuf::from(text), mark)]))
    }
}

/// Returns whether an error is caused by what is on disk (a dangling or circular link, a file that this process may not
/// read) rather than by a temporary failure of the disk or process.
fn is_lasting(fault: &io::Error) -> bool {
    use io::ErrorKind::{NotADirectory, NotFound, PermissionDenied};
    matches!(fault.kind(), NotFound | NotADirectory | PermissionDenied) || fault.raw_os_error() == Some(libc::ELOOP)
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
    fn a_written_replaced_or_added_file_changes_the_fingerprint() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("1/model.onnx");
        fs::create_dir(directory.path().join("1")).unwrap();
        fs::write(&file, "one").unwrap();
        let first = Fingerprint::of(directory.path()).unwrap();
        assert_eq!(Fingerprint::of(directory.path()).unwrap(), first, "nothing changed");

        fs::write(&file, "three").unwrap();
        let longer = Fingerprint::of(directory.path()).unwrap();
        assert_ne!(longer, first, "written");
        fs::create_dir(directory.path().join("2")).unwrap();
        assert_ne!(Fingerprint::of(directory.path()).unwrap(), longer, "an empty version directory was added");
    }

    #[test]
    fn links_in_a_circle_end() {
        let directory = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink(directory.path(), directory.path().join("self")).unwrap();
        assert_ne!(Fingerprint::of(directory.path()).unwrap(), Fingerprint::default());
    }

    #[test]
    fn links_to_nowhere_or_to_themselves_are_no_fault_of_the_disk() {
        let directory = tempfile::tempdir().unwrap();
        for target in ["nowhere", "link"] {
            let link = directory.path().join("link");
            std::os::unix::fs::symlink(target, &link).unwrap();
            assert_eq!(Fingerprint::of(directory.path()).unwrap(), Fingerprint::default());
            fs::remove_file(link).unwrap();
        }
        assert!(Fingerprint::of(&directory.path().join("missing")).is_err());
    }

    #[test]
    fn a_model_is_known_by_its_configuration_or_by_a_file_of_a_version() {
        let directory = tempfile::tempdir().unwrap();
        let configuration = [directory.path().join("model.yaml")];
        let holds = || holds_model(directory.path(), &configuration).unwrap();
        fs::create_dir(directory.path().join("1")).unwrap();
        fs::write(directory.path().join("1/notes.txt"), "").unwrap();
        assert!(!holds());
        fs::write(directory.path().join("1/model.plan"), "").unwrap();
        assert!(holds(), "of whatever kind");
        fs::remove_dir_all(directory.path().join("1")).unwrap();
        fs::write(&configuration[0], "").unwrap();
        assert!(holds());
    }
}
