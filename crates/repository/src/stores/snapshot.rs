//! The local copies of one repository. A model is a link to a snapshot, which is complete before the link points to it
//! and never changes afterwards; readers see the model before or after an update, never in between.

use std::{
    fs::{self, File},
    io,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    time::SystemTime,
};

use tempfile::TempDir;

use super::Object;

/// Names in a snapshot: the list of its objects, and the directory of its files.
const OBJECTS: &str = "objects.json";
const FILES: &str = "files";

/// The cache directory of one repository.
#[derive(Debug)]
pub(super) struct SnapshotDir {
    /// Holds one link for each model, under its name.
    models: PathBuf,
    snapshots: PathBuf,
}

/// A model as it was fetched.
#[derive(Debug)]
pub(super) struct Snapshot {
    folder: PathBuf,
    pub(super) objects: Vec<Object>,
}

/// A model that is being fetched. Dropping it removes its files.
#[derive(Debug)]
pub(super) struct Draft {
    folder: TempDir,
}

impl SnapshotDir {
    /// Returns the directory of a repository without changing it.
    pub(super) fn of(folder: &Path) -> Self {
        Self { models: folder.join("models"), snapshots: folder.join("snapshots") }
    }

    /// Opens the directory of a repository, and removes what an earlier process left incomplete.
    ///
    /// # Errors
    /// Fails if it cannot be created or written.
    pub(super) fn open(folder: &Path) -> io::Result<Self> {
        let shelf = Self::of(folder);
        fs::create_dir_all(&shelf.models)?;
        fs::create_dir_all(&shelf.snapshots)?;
        let mut wanted = Vec::new();
        for link in fs::read_dir(&shelf.models)? {
            let link = link?.path();
            match link.canonicalize() {
                Ok(files) => wanted.extend(files.parent().map(Path::to_owned)),
                Err(_) => fs::remove_file(&link)?,
            }
        }
        // A snapshot without a link was never published, or was replaced and not removed.
        for snapshot in fs::read_dir(&shelf.snapshots)? {
            let snapshot = snapshot?.path();
            if !wanted.contains(&snapshot.canonicalize()?) {
                fs::remove_dir_all(&snapshot)?;
            }
        }
        Ok(shelf)
    }

    /// Returns the names of the models with a copy.
    ///
    /// # Errors
    /// Fails if the directory cannot be read. A directory that is not a repository's has no models.
    pub(super) fn names(&self) -> io::Result<Vec<String>> {
        let links = match fs::read_dir(&self.models) {
            Err(fault) if fault.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            links => links?,
        };
        let names = links.map(|link| Ok(link?.file_name().into_string().unwrap_or_default()));
        // A link that begins with a dot is still being created.
        names.filter(|name| !name.as_ref().is_ok_and(|name| name.is_empty() || name.starts_with('.'))).collect()
    }

    /// Returns the size of a model in bytes and the time of its last use; `None` if they cannot be read.
    pub(super) fn usage(&self, name: &str) -> Option<(u64, SystemTime)> {
        let file = self.folder_of(name)?.join(OBJECTS);
        let used = fs::metadata(&file).and_then(|file| file.modified()).ok()?;
        let objects: Vec<Object> = serde_json::from_slice(&fs::read(file).ok()?).ok()?;
        Some((objects.iter().map(|object| object.size).sum(), used))
    }

    /// Records that a model is in use now. Failures are ignored: the model then only seems less recently used.
    pub(super) fn touch(&self, name: &str) {
        let file = self.folder_of(name).and_then(|folder| File::open(folder.join(OBJECTS)).ok());
        let _ = file.map(|file| file.set_modified(SystemTime::now()));
    }

    /// Returns the path of a model's copy.
    pub(super) fn model(&self, name: &str) -> PathBuf {
        self.models.join(name)
    }

    /// Returns the snapshot that a model's link points to; `None` if there is none or a file is missing.
    pub(super) fn current(&self, name: &str) -> Option<Snapshot> {
        let folder = self.model(name).canonicalize().ok()?.parent()?.to_owned();
        let objects = serde_json::from_slice(&fs::read(folder.join(OBJECTS)).ok()?).ok()?;
        let snapshot = Snapshot { folder, objects };
        let is_whole = |object: &Object| {
            fs::symlink_metadata(snapshot.file(object)).is_ok_and(|file| file.is_file() && file.len() == object.size)
        };
        snapshot.objects.iter().all(is_whole).then_some(snapshot)
    }

    /// Returns the paths that messages may show for the directory of a model.
    pub(super) fn shown_paths(&self, name: &str) -> Vec<PathBuf> {
        let (link, files) = (self.model(name), self.folder_of(name).map(|folder| folder.join(FILES)));
        let canonical = link.canonicalize().ok();
        [canonical, files, Some(link)].into_iter().flatten().collect()
    }

    /// Starts a draft of a model.
    ///
    /// # Errors
    /// Fails if the disk cannot be written.
    pub(super) fn begin(&self) -> io::Result<Draft> {
        let folder = tempfile::Builder::new().prefix("model-").tempdir_in(&self.snapshots)?;
        fs::create_dir(folder.path().join(FILES))?;
        Ok(Draft { folder })
    }

    /// Puts a fetched model in its place with one rename, and removes its earlier snapshot.
    ///
    /// # Errors
    /// Fails if the disk cannot be written. If that happens before the rename, the earlier copy stays.
    pub(super) fn publish(&self, name: &str, draft: Draft, objects: &[Object]) -> io::Result<PathBuf> {
        fs::write(draft.folder.path().join(OBJECTS), serde_json::to_vec(objects)?)?;
        let before = self.folder_of(name);
        let unique = draft.folder.path().file_name().unwrap_or_default();
        let link = self.models.join(format!(".{name}.new"));
        remove_file(&link)?;
        symlink(Path::new("..").join("snapshots").join(unique).join(FILES), &link)?;
        fs::rename(&link, self.model(name))?;
        // The link refers to the directory now, so it must outlive the draft.
        let _ = draft.folder.keep();
        before.map_or(Ok(()), fs::remove_dir_all)?;
        Ok(self.model(name))
    }

    /// Removes the copy of a model.
    ///
    /// # Errors
    /// Fails if it cannot be deleted.
    pub(super) fn remove(&self, name: &str) -> io::Result<()> {
        let snapshot = self.folder_of(name);
        remove_file(&self.model(name))?;
        snapshot.map_or(Ok(()), fs::remove_dir_all)
    }

    /// Returns the snapshot that a model's link points to, whether it is complete or not.
    fn folder_of(&self, name: &str) -> Option<PathBuf> {
        let target = fs::read_link(self.model(name)).ok()?;
        Some(self.snapshots.join(target.parent()?.file_name()?))
    }
}

impl Snapshot {
    fn file(&self, object: &Object) -> PathBuf {
        self.folder.join(FILES).join(&object.path)
    }
}

impl Draft {
    /// Returns the path of an object's file.
    fn file(&self, object: &Object) -> PathBuf {
        self.folder.path().join(FILES).join(&object.path)
    }

    /// Takes unchanged files over from an earlier snapshot. Returns the objects to fetch with the paths to write them
    /// to. Files that are taken over are hard links, so the model's fingerprint does not change for them.
    ///
    /// # Errors
    /// Fails if the disk cannot be written.
    pub(super) fn take_over(
        &self,
        earlier: Option<&Snapshot>,
        objects: Vec<Object>,
    ) -> io::Result<Vec<(Object, PathBuf)>> {
        let mut missing = Vec::new();
        for object in objects {
            let file = self.file(&object);
            file.parent().map_or(Ok(()), fs::create_dir_all)?;
            let same = earlier.filter(|earlier| earlier.objects.contains(&object));
            match same {
                Some(earlier) => fs::hard_link(earlier.file(&object), &file)?,
                None => missing.push((object, file)),
            }
        }
        Ok(missing)
    }
}

/// Removes a file if it exists.
fn remove_file(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(fault) if fault.kind() != io::ErrorKind::NotFound => Err(fault),
        _ => Ok(()),
    }
}
