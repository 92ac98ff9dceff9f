//! The models of one repository on the disk. A model is a link to a snapshot, which is complete before the link leads
//! there and is never changed; so a model is seen as it was before or as it is after, and never in between.

use std::{
    fs::{self, File},
    io,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    time::SystemTime,
};

use tempfile::TempDir;

use super::Object;

/// What a snapshot was made of, beside its files.
const OBJECTS: &str = "objects.json";
const FILES: &str = "files";

/// The folder of one repository.
#[derive(Debug)]
pub(super) struct Shelf {
    /// One link for each model, by its name.
    models: PathBuf,
    snapshots: PathBuf,
}

/// A model as it was fetched.
#[derive(Debug)]
pub(super) struct Snapshot {
    folder: PathBuf,
    pub(super) objects: Vec<Object>,
}

/// A model that is being fetched. Dropping it leaves nothing.
#[derive(Debug)]
pub(super) struct Draft {
    folder: TempDir,
}

impl Shelf {
    /// The folder of a repository, as it is.
    pub(super) fn of(folder: &Path) -> Self {
        Self { models: folder.join("models"), snapshots: folder.join("snapshots") }
    }

    /// Opens the folder of a repository, and removes what an earlier process did not complete.
    ///
    /// # Errors
    /// When it cannot be made or written.
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
        for snapshot in fs::read_dir(&shelf.snapshots)? {
            let snapshot = snapshot?.path();
            if !wanted.contains(&snapshot.canonicalize()?) {
                fs::remove_dir_all(&snapshot)?;
            }
        }
        Ok(shelf)
    }

    /// The models that were fetched.
    ///
    /// # Errors
    /// When the folder cannot be read; one that is no repository's has none.
    pub(super) fn names(&self) -> io::Result<Vec<String>> {
        let links = match fs::read_dir(&self.models) {
            Err(fault) if fault.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            links => links?,
        };
        let names = links.map(|link| Ok(link?.file_name().into_string().unwrap_or_default()));
        // A link that begins with a dot is one that is being made.
        names.filter(|name| !name.as_ref().is_ok_and(|name| name.is_empty() || name.starts_with('.'))).collect()
    }

    /// Bytes that a model takes, and when it was used last; none where that cannot be told.
    pub(super) fn usage(&self, name: &str) -> Option<(u64, SystemTime)> {
        let file = self.folder_of(name)?.join(OBJECTS);
        let used = fs::metadata(&file).and_then(|file| file.modified()).ok()?;
        let objects: Vec<Object> = serde_json::from_slice(&fs::read(file).ok()?).ok()?;
        Some((objects.iter().map(|object| object.size).sum(), used))
    }

    /// Notes that a model is used now. What cannot be noted makes it older than it is, and harms nothing.
    pub(super) fn touch(&self, name: &str) {
        let file = self.folder_of(name).and_then(|folder| File::open(folder.join(OBJECTS)).ok());
        let _ = file.map(|file| file.set_modified(SystemTime::now()));
    }

    /// Where a model is, once it was fetched.
    pub(super) fn model(&self, name: &str) -> PathBuf {
        self.models.join(name)
    }

    /// The snapshot that a model's link leads to; none where there is none, or a part of it is gone.
    pub(super) fn current(&self, name: &str) -> Option<Snapshot> {
        let folder = self.model(name).canonicalize().ok()?.parent()?.to_owned();
        let objects = serde_json::from_slice(&fs::read(folder.join(OBJECTS)).ok()?).ok()?;
        let snapshot = Snapshot { folder, objects };
        let is_whole = |object: &Object| {
            fs::symlink_metadata(snapshot.file(object)).is_ok_and(|file| file.is_file() && file.len() == object.size)
        };
        snapshot.objects.iter().all(is_whole).then_some(snapshot)
    }

    /// Begins to fetch a model.
    ///
    /// # Errors
    /// When the disk does not take it.
    pub(super) fn begin(&self) -> io::Result<Draft> {
        let folder = tempfile::Builder::new().prefix("model-").tempdir_in(&self.snapshots)?;
        fs::create_dir(folder.path().join(FILES))?;
        Ok(Draft { folder })
    }

    /// Puts a model that was fetched in its place, by one rename.
    ///
    /// # Errors
    /// When the disk does not take it; the model then stays as it was.
    pub(super) fn publish(&self, name: &str, draft: Draft, objects: &[Object]) -> io::Result<PathBuf> {
        fs::write(draft.folder.path().join(OBJECTS), serde_json::to_vec(objects)?)?;
        let before = self.folder_of(name);
        let unique = draft.folder.path().file_name().unwrap_or_default();
        let link = self.models.join(format!(".{name}.new"));
        remove_file(&link)?;
        symlink(Path::new("..").join("snapshots").join(unique).join(FILES), &link)?;
        fs::rename(&link, self.model(name))?;
        // It is the link's from here on.
        let _ = draft.folder.keep();
        before.map_or(Ok(()), fs::remove_dir_all)?;
        Ok(self.model(name))
    }

    /// Removes a model that its store does not have any more.
    ///
    /// # Errors
    /// When the disk does not let it go.
    pub(super) fn remove(&self, name: &str) -> io::Result<()> {
        let snapshot = self.folder_of(name);
        remove_file(&self.model(name))?;
        snapshot.map_or(Ok(()), fs::remove_dir_all)
    }

    /// The snapshot that a model's link leads to, whatever is in it.
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
    /// Where an object of the model belongs.
    fn file(&self, object: &Object) -> PathBuf {
        self.folder.path().join(FILES).join(&object.path)
    }

    /// Takes over from an earlier snapshot what did not change. Returns what has to be fetched, and where to. A file
    /// that is taken over stays the same file, so the model's directory looks unchanged there.
    ///
    /// # Errors
    /// When the disk does not take it.
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

/// Removes a file, if there is one.
fn remove_file(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(fault) if fault.kind() != io::ErrorKind::NotFound => Err(fault),
        _ => Ok(()),
    }
}
