//! Profiles on disk: a file for each model file, device and engine.

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

/// The form of the files. Those of another form are measured again.
const FORMAT: u32 = 3;
/// No profile is larger.
const MAX_BYTES: u64 = 16 << 20;

/// What a profile is of. Another model file, device, engine or configuration has another profile.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Key {
    /// SHA-256 of the model's file, in hexadecimal digits.
    pub model_sha256: String,
    /// The device, as [`crate::observe::machine`] describes it.
    pub device: String,
    /// The engine, its version, and how many threads it has.
    pub engine: String,
    /// What the configuration says that changes what is measured: batches, padded axes, cuts.
    pub configuration: String,
}

/// The file's content.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Stored {
    format: u32,
    key: Key,
    profile: Profile,
}

/// Only the form, of a file of any form.
#[derive(Deserialize)]
struct Form {
    format: u32,
}

/// Why a profile was not written.
#[derive(Debug, thiserror::Error)]
#[error("cannot write the profile '{}': {source}", path.display())]
pub struct StoreError {
    /// The file.
    path: PathBuf,
    /// The operating system's reason.
    source: io::Error,
}

/// A directory of profiles.
#[derive(Clone, Debug)]
pub struct Store {
    directory: PathBuf,
}

impl Store {
    /// The profiles in a directory, which is made when the first of them is written.
    pub fn new(directory: PathBuf) -> Self {
        Self { directory }
    }

    /// The file of a profile. Models of other names that run the same file share it.
    pub fn path(&self, key: &Key) -> PathBuf {
        let mut hash = Sha256::new();
        for part in [&key.model_sha256, &key.device, &key.engine, &key.configuration] {
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part);
        }
        // Half of the digits tell apart all models there will ever be; the key within says it for sure.
        let digits = hexadecimal(&hash.finalize());
        self.directory.join(format!("{}.json", &digits[..32]))
    }

    /// A model's profile. `None` if there is none; and, with a warning that names the file, if it is damaged or of
    /// another form, so that it is measured again.
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

    /// Writes a model's profile, at once or not at all, and gives its file.
    ///
    /// # Errors
    /// When the directory cannot be made or the file not written.
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

fn read(path: &Path, key: &Key) -> Result<Option<Profile>, String> {
    let length = match fs::metadata(path) {
        Ok(metadata) => metadata.len(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error.to_string()),
    };
    if length > MAX_BYTES {
        return Err(format!("it has {length} bytes, expected at most {MAX_BYTES}"));
    }
    let content = fs::read(path).map_err(|error| error.to_string())?;
    let form: Form = serde_json::from_slice(&content).map_err(|error| error.to_string())?;
    if form.format != FORMAT {
        return Err(format!("it has the format {}, expected {FORMAT}", form.format));
    }
    let stored: Stored = serde_json::from_slice(&content).map_err(|error| error.to_string())?;
    if stored.key != *key {
        return Err("it is of another model, device or engine than its name says".to_owned());
    }
    if !stored.profile.is_sound() {
        return Err("it lacks times, or has some that cannot be".to_owned());
    }
    Ok(Some(stored.profile))
}

/// SHA-256 of a file, in hexadecimal digits.
///
/// # Errors
/// When it cannot be read.
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

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Where profiles lie if nobody says otherwise: `$XDG_CACHE_HOME/paternoster`, else `~/.cache/paternoster`. `None`
/// where there is no home.
pub fn default_directory() -> Option<PathBuf> {
    let absolute = |name: &str| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let cache = absolute("XDG_CACHE_HOME").or_else(|| absolute("HOME").map(|home| home.join(".cache")));
    cache.map(|cache| cache.join("paternoster"))
}
