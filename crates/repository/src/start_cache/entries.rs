//! Small files in one directory: each is replaced as a whole, and ignored unless it is complete.

use std::{
    fs::{self, DirBuilder, OpenOptions},
    io::{self, ErrorKind, Read, Write},
    os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::SystemTime,
};

use paternoster_profile::hexadecimal;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use sha2::{Digest, Sha256};
use tempfile::Builder;

/// Begins each file, with its format. The hash of what follows completes the line.
const HEADER: &str = "paternoster start cache 1 ";
/// How names end.
const ENDING: &str = ".entry";
/// Most bytes of a file; keys contain what a configuration says of stages.
const MAX_BYTES: u64 = 1 << 16;
/// Most files. Those that were written or read first leave first.
const MAX_ENTRIES: usize = 16_384;
/// Number of writes between two looks at this limit.
const WRITES_BETWEEN_LOOKS: u64 = 1024;
/// Only the server's user reads and writes what it trusts.
const MODE: u32 = 0o700;

/// A directory of entries.
#[derive(Debug)]
pub(super) struct Entries {
    directory: PathBuf,
    writes: AtomicU64,
    has_ignored: AtomicBool,
    has_failed: AtomicBool,
}

/// What a file holds.
#[derive(Serialize, Deserialize)]
struct Entry<K, T> {
    key: K,
    value: T,
}

impl Entries {
    pub(super) fn new(directory: PathBuf) -> Self {
        let (has_ignored, has_failed) = (AtomicBool::default(), AtomicBool::default());
        Self { directory, writes: AtomicU64::new(0), has_ignored, has_failed }
    }

    /// Returns what was written under a key. What is not complete, or is of another key, counts as nothing; the log
    /// names the first such file.
    pub(super) fn read<T: DeserializeOwned>(&self, key: &str) -> Option<T> {
        let path = self.path(key);
        match read(&path, key) {
            Ok(found) => found,
            Err(fault) => {
                let file = path.display();
                if self.has_ignored.swap(true, Ordering::Relaxed) {
                    tracing::debug!(%file, %fault, "an entry of the cache directory is ignored");
                } else {
                    tracing::warn!(%file, %fault, "an entry of the cache directory is ignored; others may be too");
                }
                None
            }
        }
    }

    /// Writes under a key, in place of what was there. If it cannot be written, the log says so once.
    pub(super) fn write<T: Serialize>(&self, key: &str, value: &T) {
        if let Err(fault) = self.try_write(key, value) {
            let directory = self.directory.display();
            if self.has_failed.swap(true, Ordering::Relaxed) {
                tracing::debug!(%directory, %fault, "the cache directory cannot be written");
            } else {
                tracing::warn!(
                    %directory,
                    %fault,
                    "the cache directory cannot be written (--cache-directory); the next start computes again"
                );
            }
            return;
        }
        if self.writes.fetch_add(1, Ordering::Relaxed).is_multiple_of(WRITES_BETWEEN_LOOKS) {
            self.remove_oldest(MAX_ENTRIES);
        }
    }

    fn try_write<T: Serialize>(&self, key: &str, value: &T) -> io::Result<()> {
        let content = serde_json::to_vec(&Entry { key, value })?;
        if content.len() as u64 > MAX_BYTES - 128 {
            return Ok(());
        }
        DirBuilder::new().recursive(true).mode(MODE).create(&self.directory)?;
        let mut file = Builder::new().prefix("new-").suffix(ENDING).tempfile_in(&self.directory)?;
        let line = format!("{HEADER}{}\n", hexadecimal(&Sha256::digest(&content)));
        // Not synchronised: a file that a crash of the machine cuts off is ignored.
        file.write_all(&[line.as_bytes(), &content].concat())?;
        file.persist(self.path(key)).map(drop).map_err(|error| error.error)
    }

    fn path(&self, key: &str) -> PathBuf {
        // Half of the digits is enough to avoid collisions; the key in the file is checked as well.
        let digits = hexadecimal(&Sha256::digest(key));
        self.directory.join(format!("{}{ENDING}", &digits[..32]))
    }

    /// Removes the files that were written or read first, until at most `max_entries` are left. Another server may
    /// remove them at the same time.
    pub(super) fn remove_oldest(&self, max_entries: usize) {
        let Ok(entries) = fs::read_dir(&self.directory) else { return };
        let mut found: Vec<(SystemTime, PathBuf)> = entries
            .filter_map(|entry| {
                let entry = entry.ok()?;
                let metadata = entry.metadata().ok().filter(|metadata| metadata.is_file())?;
                let is_entry = entry.file_name().to_string_lossy().ends_with(ENDING);
                is_entry.then_some((metadata.modified().ok()?, entry.path()))
            })
            .collect();
        found.sort_unstable();
        for (_, path) in found.iter().rev().skip(max_entries) {
            // Fails if another server was first.
            let _ = fs::remove_file(path);
        }
    }
}

/// Reads an entry; `None` if there is none.
fn read<T: DeserializeOwned>(path: &Path, key: &str) -> io::Result<Option<T>> {
    // Opening must not block on a pipe without a writer, nor follow a link to another place.
    let flags = libc::O_NONBLOCK | libc::O_NOFOLLOW;
    let file = match OpenOptions::new().read(true).custom_flags(flags).open(path) {
        Ok(file) => file,
        Err(fault) if matches!(fault.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => return Ok(None),
        Err(fault) => return Err(fault),
    };
    let metadata = file.metadata()?;
    if metadata.uid() != rustix::process::geteuid().as_raw() {
        return Err(io::Error::other("it is of another user"));
    }
    if !metadata.is_file() || metadata.len() > MAX_BYTES {
        return Err(io::Error::other(format!("expected a file of at most {MAX_BYTES} bytes")));
    }
    let mut content = Vec::new();
    (&file).take(MAX_BYTES).read_to_end(&mut content)?;
    let ending = content.iter().position(|&byte| byte == b'\n').ok_or_else(|| io::Error::other("it has no header"))?;
    let (line, content) = (&content[..ending], &content[ending + 1..]);
    let hash = line.strip_prefix(HEADER.as_bytes()).ok_or_else(|| io::Error::other("it is of another format"))?;
    if hash != hexadecimal(&Sha256::digest(content)).as_bytes() {
        return Err(io::Error::other("its content does not have the hash in its header"));
    }
    let entry: Entry<String, T> = serde_json::from_slice(content)?;
    if entry.key != key {
        return Err(io::Error::other("it is of another key than its name says"));
    }
    // What is read stays. If that fails, it leaves earlier.
    let _ = file.set_modified(SystemTime::now());
    Ok(Some(entry.value))
}
