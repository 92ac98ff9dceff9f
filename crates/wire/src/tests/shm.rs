//! Shared-memory objects as clients create them, removed at the end of a test.

use std::{
    fs::{self, OpenOptions},
    os::unix::fs::symlink,
    path::PathBuf,
};

/// A file in `/dev/shm` with a name unique to this process and test.
pub(crate) struct Object {
    key: String,
    path: PathBuf,
}

impl Object {
    pub(crate) fn new(test: &str, content: &[u8]) -> Self {
        let object = Self::named(test);
        fs::write(&object.path, content).expect("/dev/shm can be written");
        object
    }

    /// Creates a directory, which cannot be a region.
    pub(crate) fn folder(test: &str) -> Self {
        let object = Self::named(test);
        fs::create_dir(&object.path).expect("/dev/shm can be written");
        object
    }

    fn named(test: &str) -> Self {
        let key = format!("paternoster-test-{}-{test}", std::process::id());
        let path = PathBuf::from("/dev/shm").join(&key);
        Self { key, path }
    }

    /// Creates a symbolic link to this object.
    pub(crate) fn link(&self, test: &str) -> Self {
        let link = Self::named(test);
        symlink(&self.path, &link.path).expect("/dev/shm can be written");
        link
    }

    pub(crate) fn key(&self) -> &str {
        &self.key
    }

    pub(crate) fn content(&self) -> Vec<u8> {
        fs::read(&self.path).expect("the object is there until it is dropped")
    }

    /// Sets its length; added bytes have no memory of their own.
    pub(crate) fn truncate(&self, length: u64) {
        let file = OpenOptions::new().write(true).open(&self.path).expect("the object is there until it is dropped");
        file.set_len(length).expect("/dev/shm takes any length");
    }
}

impl Drop for Object {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path).or_else(|_| fs::remove_dir(&self.path));
    }
}
