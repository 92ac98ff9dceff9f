//! Profiles on disk: one file for each model file, device and engine.

use std::{
    env,
    fs::{self, File},
    io::{self, Write},
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tempfile::NamedTempFile;

use super::Profile;

/// Format version of the files. Profiles of another version are measured again.
const FORMAT: u32 = 3;
/// Maximum size of a file.
const MAX_BYTES: u64 = 16 << 20;

/// Identity of a profile. Another model file, device, engine or configuration has another profile.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Key {
    /// SHA-256 of the model's file, in hexadecimal digits; for a model of several, of their SHA-256s.
    pub model_sha256: String,
    /// The device, as described by [`paternoster_observe::machine`].
    pub device: String,
    /// The engine, its version and its number of threads.
    pub engine: String,
    /// The part of the configuration that affects measurements: batches, padded axes, cuts, or cells.
    pub configuration: String,
}

/// Content of a file.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Stored {
    format: u32,
    key: Key,
    profile: Profile,
}

/// The format version alone, readable in a file of any version.
#[derive(Deserialize)]
struct Form {
    format: u32,
}

/// A profile that could not be written.
#[derive(Debug, thiserror::Error)]
#[error("cannot write the profile '{}': {source}", path.display())]
pub struct StoreError {
    /// Path of the file.
    path: PathBuf,
    /// Error of the operating system.
    source: io::Error,
}

/// A directory of profiles.
#[derive(Clone, Debug)]
pub struct Store {
    directory: PathBuf,
}

impl Store {
    /// Creates a store in a directory, which is created when the first profile is written.
    pub fn new(directory: PathBuf) -> Self {
        Self { directory }
    }

    /// Returns whether there are profiles at all.
    pub fn is_empty(&self) -> bool {
        fs::read_dir(&self.directory).map_or(true, |mut entries| entries.next().is_none())
    }

    /// Returns the path of a profile. Models with other names that run the same file share it.
    pub fn path(&self, key: &Key) -> PathBuf {
        let mut hash = Sha256::new();
        for part in [&key.model_sha256, &key.device, &key.engine, &key.configuration] {
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part);
        }
        // Half of the digits is enough to avoid collisions; the key in the file is checked as well.
        let digits = hexadecimal(&hash.finalize());
        self.directory.join(format!("{}.json", &digits[..32]))
    }

    /// Reads a profile. Returns `None` if there is none. If the file is damaged or of another format version, logs a
    /// warning that names it and returns `None`, so that the model is measured again.
    pub fn read(&self, key: &Key) -> Option<Profile> {
        let path = self.path(key);
        match read(&path, key) {
            Ok(found) => found,
            Err(fault) => {
                tracing::warn!(file = %path.display(), %fault, "the profile is not used and will be measured again");
                None
            }
        }
    }

    /// Writes a profile atomically and returns its path.
    ///
    /// # Errors
    /// If the directory or the file cannot be written.
    pub fn write(&self, key: &Key, profile: &Profile) -> Result<PathBuf, StoreError> {
        let path = self.path(key);
        let stored = Stored { format: FORMAT, key: key.clone(), profile: profile.clone() };
        let written = fs::create_dir_all(&self.directory).and_then(|()| {
            let mut file = NamedTempFile::new_in(&self.directory)?;
            serde_json::to_writer(&mut file, &stored).map_err(io::Error::from)?;
            file.flush()?;
            file.as_file().sync_all()?;
            file.persist(&path).map(drop).map_err(|error| error.error)
        });
        written.map(|()| path.clone()).map_err(|source| StoreError { path, source })
    }
}

/// A file that is no profile.
#[derive(Debug, thiserror::Error)]
#[error("cannot read the profile '{}': {reason}", path.display())]
pub struct ProfileFileError {
    /// Path of the file.
    path: PathBuf,
    /// What is wrong.
    reason: String,
}

/// The profile alone, as in a stored file and in what `paternoster profile --json` prints.
#[derive(Deserialize)]
struct Measured {
    profile: Profile,
}

impl Profile {
    /// Reads the profile in a file, whatever its key: a stored one, or what `paternoster profile --json` prints.
    ///
    /// # Errors
    /// If the file cannot be read or has no such profile.
    pub fn read(path: &Path) -> Result<Self, ProfileFileError> {
        let refused = |reason: String| ProfileFileError { path: path.to_owned(), reason };
        let content = content(path).map_err(refused)?.ok_or_else(|| refused("there is no such file".to_owned()))?;
        let measured: Measured = serde_json::from_slice(&content).map_err(|error| refused(error.to_string()))?;
        if measured.profile.is_sound() {
            return Ok(measured.profile);
        }
        Err(refused(UNSOUND.to_owned()))
    }
}

/// Why data is no profile.
const UNSOUND: &str = "it lacks times, or has some that cannot be";

/// Reads a file of a bounded size; `None` if there is none.
fn content(path: &Path) -> Result<Option<Vec<u8>>, String> {
    let length = match fs::metadata(path) {
        Ok(metadata) => metadata.len(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error.to_string()),
    };
    if length > MAX_BYTES {
        return Err(format!("it has {length} bytes, expected at most {MAX_BYTES}"));
    }
    fs::read(path).map(Some).map_err(|error| error.to_string())
}

fn read(path: &Path, key: &Key) -> Result<Option<Profile>, String> {
    let Some(content) = content(path)? else { return Ok(None) };
    let form: Form = serde_json::from_slice(&content).map_err(|error| error.to_string())?;
    if form.format != FORMAT {
        return Err(format!("it has the format {}, expected {FORMAT}", form.format));
    }
    let stored: Stored = serde_json::from_slice(&content).map_err(|error| error.to_string())?;
    if stored.key != *key {
        return Err("it is of another model, device or engine than its name says".to_owned());
    }
    if !stored.profile.is_sound() {
        return Err(UNSOUND.to_owned());
    }
    Ok(Some(stored.profile))
}

/// Returns the SHA-256 of the only file in hexadecimal digits, or of several files that of their SHA-256s.
///
/// # Errors
/// If a file cannot be read.
pub fn digest_of_all(paths: &[&Path]) -> io::Result<String> {
    if let [only] = paths {
        return digest(only);
    }
    let mut hash = Sha256::new();
    for path in paths {
        hash.update(digest(path)?);
    }
    Ok(hexadecimal(&hash.finalize()))
}

/// Returns the SHA-256 of a file in hexadecimal digits.
///
/// # Errors
/// If the file cannot be read.
pub fn digest(path: &Path) -> io::Result<String> {
    let mut hash = Sha256::new();
    let mut file = File::open(path)?;
    let mut chunk = vec![0; 1 << 20];
    loop {
        match io::Read::read(&mut file, &mut chunk)? {
            0 => return Ok(hexadecimal(&hash.finalize())),
            read => hash.update(&chunk[..read]),
        }
    }
}

/// Returns bytes in hexadecimal digits.
pub fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns the default directory: `$XDG_CACHE_HOME/paternoster`, or else `~/.cache/paternoster`. `None` if there is no
/// home directory.
pub fn default_directory() -> Option<PathBuf> {
    let absolute = |name: &str| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let cache = absolute("XDG_CACHE_HOME").or_else(|| absolute("HOME").map(|home| home.join(".cache")));
    cache.map(|cache| cache.join("paternoster"))
}
