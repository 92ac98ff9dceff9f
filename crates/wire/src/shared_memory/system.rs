//! Regions of `/dev/shm`: a file, read and written by position, never mapped.

use std::{
    fs::{File, OpenOptions},
    io,
    os::unix::fs::{FileExt, OpenOptionsExt},
    path::Path,
};

use super::{SharedMemoryError, fits};

/// Where `shm_open` keeps its objects on Linux.
pub(super) const DIRECTORY: &str = "/dev/shm";

/// Longest name of such an object.
pub(super) const KEY_LIMIT_BYTES: usize = 255;

/// Step of a read: the part that is zeroed and then filled is still in the cache when it is filled.
pub(super) const READ_STEP_BYTES: usize = 256 * 1024;

/// A region's part of a shared-memory object.
#[derive(Debug)]
pub(super) struct Object {
    pub(super) key: String,
    file: File,
    /// First byte of the region in the file.
    pub(super) offset_bytes: u64,
}

impl Object {
    pub(super) fn open(
        directory: &Path,
        name: &str,
        key: &str,
        offset: u64,
        byte_size: u64,
    ) -> Result<Self, SharedMemoryError> {
        let failed = |reason: String| SharedMemoryError::Open { name: name.to_owned(), key: key.to_owned(), reason };
        let object =
            object_name(key).ok_or_else(|| failed(format!("a name in {DIRECTORY} without '/' is expected")))?;
        // As shm_open does: a link could lead out of the directory, a pipe could block.
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
            .open(directory.join(object))
            .map_err(|error| failed(error.to_string()))?;
        let metadata = file.metadata().map_err(|error| failed(error.to_string()))?;
        if !metadata.is_file() {
            return Err(failed("not a shared memory object".to_owned()));
        }
        let available = metadata.len();
        if !fits(offset, byte_size, available) {
            let (name, key) = (name.to_owned(), key.to_owned());
            return Err(SharedMemoryError::BeyondFile { name, key, offset, byte_size, available });
        }
        Ok(Self { key: key.to_owned(), file, offset_bytes: offset })
    }

    /// Checks that the file still has `byte_size` bytes from `offset` of the region on.
    pub(super) fn check(&self, name: &str, offset: u64, byte_size: u64) -> Result<(), SharedMemoryError> {
        let file_size = self.file.metadata().map_err(|error| fault(name, &error))?.len();
        if fits(self.in_file(offset), byte_size, file_size) {
            return Ok(());
        }
        Err(SharedMemoryError::Shrunk { name: name.to_owned() })
    }

    /// Appends bytes from `offset` of the region on to `copy`, which has the room.
    pub(super) fn read(
        &self,
        name: &str,
        offset: u64,
        byte_size: usize,
        mut copy: Vec<u8>,
    ) -> Result<Vec<u8>, SharedMemoryError> {
        let mut position = self.in_file(offset);
        while copy.len() < byte_size {
            let filled = copy.len();
            let step = READ_STEP_BYTES.min(byte_size - filled);
            copy.resize(filled + step, 0);
            self.file.read_exact_at(&mut copy[filled..], position).map_err(|error| fault(name, &error))?;
            position += step as u64;
        }
        Ok(copy)
    }

    pub(super) fn write(&self, name: &str, offset: u64, data: &[u8]) -> Result<(), SharedMemoryError> {
        // A write past the end would make the file grow again, unseen by the client that shortened it.
        self.check(name, offset, data.len() as u64)?;
        self.file.write_all_at(data, self.in_file(offset)).map_err(|error| fault(name, &error))
    }

    /// Within the file's length at registration, so it cannot overflow.
    fn in_file(&self, offset: u64) -> u64 {
        self.offset_bytes + offset
    }
}

fn fault(name: &str, error: &io::Error) -> SharedMemoryError {
    let name = name.to_owned();
    match error.kind() {
        io::ErrorKind::UnexpectedEof => SharedMemoryError::Shrunk { name },
        _ => SharedMemoryError::Io { name, reason: error.to_string() },
    }
}

/// The file's name for a key: leading separators do not count, as in `shm_open`, and others are not allowed.
fn object_name(key: &str) -> Option<&str> {
    let object = key.trim_start_matches('/');
    let valid = !object.is_empty()
        && object != "."
        && object != ".."
        && object.len() <= KEY_LIMIT_BYTES
        && !object.contains(['/', '\0']);
    valid.then_some(object)
}
