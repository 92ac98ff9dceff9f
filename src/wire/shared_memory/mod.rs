//! System shared memory: named regions of `/dev/shm` that requests take inputs from and put outputs into.
//!
//! Regions are read and written by position, never mapped: a client that truncates its file makes a read fail, where a
//! mapping would kill the server with SIGBUS. A read is a snapshot; what the client writes afterwards does not reach
//! the request.

use std::{
    collections::HashMap,
    fs::{File, OpenOptions},
    io,
    os::unix::fs::{FileExt, OpenOptionsExt},
    path::{Path, PathBuf},
    sync::Arc,
};

use bytes::Bytes;
use parking_lot::RwLock;

use super::{
    pb::{SystemSharedMemoryStatusResponse, system_shared_memory_status_response::RegionStatus},
    status::Kind,
};

/// Where `shm_open` keeps its objects on Linux.
const DIRECTORY: &str = "/dev/shm";

/// Longest name of such an object.
const KEY_LIMIT_BYTES: usize = 255;

/// Longest name of a region: the server keeps it, and every status repeats it.
const NAME_LIMIT_BYTES: usize = 1024;

/// Most regions: each holds a file descriptor, of which a process often has no more than 1,024.
const MOST_REGIONS: usize = 512;

/// Bytes that one request may read unless it is said otherwise: the largest message of gRPC.
const REQUEST_LIMIT_BYTES: u64 = i32::MAX as u64;

/// Step of a read: the part that is zeroed and then filled is still in the cache when it is filled.
const READ_STEP_BYTES: usize = 256 * 1024;

/// The regions that clients have registered.
#[derive(Debug)]
pub struct SharedMemory {
    register_allowed: bool,
    request_limit_bytes: u64,
    /// Where the objects of keys are.
    directory: PathBuf,
    regions: RwLock<HashMap<String, Arc<Region>>>,
}

#[derive(Debug)]
struct Region {
    name: String,
    key: String,
    file: File,
    /// First byte of the region in the file.
    offset_bytes: u64,
    size_bytes: u64,
}

/// A part of a region, checked to lie within it. It keeps the region's file open: a request that holds it ends well
/// even where the region is unregistered meanwhile.
#[derive(Clone, Debug)]
pub struct RegionSlice {
    region: Arc<Region>,
    /// First byte within the region.
    offset_bytes: u64,
    size_bytes: u64,
}

/// What one request may still read from shared memory. Every byte that is copied for it is taken from here before there
/// is memory for it, so this is where a budget of the whole server would be asked too.
#[derive(Debug)]
pub struct Allowance {
    limit_bytes: u64,
    left_bytes: u64,
}

/// Why shared memory could not be registered or used.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum SharedMemoryError {
    #[error("system shared memory cannot be registered: start the server with --allow-client-shm=true")]
    Disabled,
    #[error("a shared memory region needs a name")]
    Unnamed,
    #[error("the name of a shared memory region may have {limit} bytes, this one has {length}")]
    NameTooLong { length: usize, limit: usize },
    #[error("failed to register shared memory region '{name}': {limit} regions are registered, which is the most")]
    TooMany { name: String, limit: usize },
    #[error("shared memory region '{name}' already in manager")]
    AlreadyRegistered { name: String },
    #[error("unable to find system shared memory region: '{name}'")]
    Unknown { name: String },
    #[error("Unable to open shared memory region: '{key}' (region '{name}'): {reason}")]
    Open { name: String, key: String, reason: String },
    #[error("failed to register shared memory region '{name}': it needs a byte size > 0")]
    Empty { name: String },
    #[error(
        "failed to register shared memory region '{name}': offset {offset} + byte size {byte_size} is beyond the \
         {available} bytes of '{key}'"
    )]
    BeyondFile { name: String, key: String, offset: u64, byte_size: u64, available: u64 },
    #[error(
        "invalid offset + byte size for shared memory region '{name}': {offset} + {byte_size} is beyond its {available} \
         bytes"
    )]
    BeyondRegion { name: String, offset: u64, byte_size: u64, available: u64 },
    #[error("shared memory region '{name}' has become shorter than it was registered")]
    Shrunk { name: String },
    #[error("shared memory region '{name}' cannot be used: {reason}")]
    Io { name: String, reason: String },
    #[error(
        "a request may read {limit} bytes from shared memory: {byte_size} from region '{name}' are too many, {left} of them \
         are left"
    )]
    OverLimit { name: String, byte_size: u64, limit: u64, left: u64 },
    #[error("no memory for {byte_size} bytes from shared memory region '{name}'")]
    NoMemory { name: String, byte_size: u64 },
}

impl SharedMemoryError {
    /// What kind of answer the error makes.
    pub fn kind(&self) -> Kind {
        match self {
            Self::Unknown { .. } => Kind::NotFound,
            Self::Disabled | Self::NoMemory { .. } => Kind::Unavailable,
            Self::OverLimit { .. } | Self::TooMany { .. } => Kind::ResourceExhausted,
            Self::Open { .. } | Self::Io { .. } => Kind::Internal,
            Self::Unnamed
            | Self::NameTooLong { .. }
            | Self::AlreadyRegistered { .. }
            | Self::Empty { .. }
            | Self::BeyondFile { .. }
            | Self::BeyondRegion { .. }
            | Self::Shrunk { .. } => Kind::InvalidArgument,
        }
    }
}

impl SharedMemory {
    /// No regions yet. Where `register_allowed` is false (`--allow-client-shm` is off) there never will be any, and
    /// everything but [`Self::register`] answers as usual.
    pub fn new(register_allowed: bool) -> Self {
        Self {
            register_allowed,
            request_limit_bytes: REQUEST_LIMIT_BYTES,
            directory: DIRECTORY.into(),
            regions: RwLock::default(),
        }
    }

    /// Bounds the bytes that one request may read, over all its inputs.
    #[must_use]
    pub fn with_request_limit(self, bytes: u64) -> Self {
        Self { request_limit_bytes: bytes, ..self }
    }

    /// What a request that has read nothing may read.
    pub fn allowance(&self) -> Allowance {
        Allowance { limit_bytes: self.request_limit_bytes, left_bytes: self.request_limit_bytes }
    }

    /// Registers `byte_size` bytes from `offset` of the shared-memory object `key` (as in `shm_open`) under a name.
    ///
    /// # Errors
    /// When registering is off, the name is taken or too long, there is no such object, it is shorter than that, or too
    /// many regions are registered.
    pub fn register(&self, name: &str, key: &str, offset: u64, byte_size: u64) -> Result<(), SharedMemoryError> {
        if !self.register_allowed {
            return Err(SharedMemoryError::Disabled);
        }
        if name.is_empty() {
            return Err(SharedMemoryError::Unnamed);
        }
        if name.len() > NAME_LIMIT_BYTES {
            return Err(SharedMemoryError::NameTooLong { length: name.len(), limit: NAME_LIMIT_BYTES });
        }
        let mut regions = self.regions.write();
        if regions.contains_key(name) {
            return Err(SharedMemoryError::AlreadyRegistered { name: name.to_owned() });
        }
        if regions.len() >= MOST_REGIONS {
            return Err(SharedMemoryError::TooMany { name: name.to_owned(), limit: MOST_REGIONS });
        }
        let region = Region::open(&self.directory, name, key, offset, byte_size)?;
        regions.insert(name.to_owned(), Arc::new(region));
        Ok(())
    }

    /// Forgets the named region, or all with an empty name. An unknown name is no error.
    pub fn unregister(&self, name: &str) {
        let mut regions = self.regions.write();
        if name.is_empty() {
            regions.clear();
        } else {
            regions.remove(name);
        }
    }

    /// The named region, or all with an empty name.
    ///
    /// # Errors
    /// When no region has that name.
    pub fn status(&self, name: &str) -> Result<SystemSharedMemoryStatusResponse, SharedMemoryError> {
        let regions = self.regions.read();
        let wanted: Vec<&Region> = if name.is_empty() {
            regions.values().map(AsRef::as_ref).collect()
        } else {
            vec![regions.get(name).ok_or_else(|| SharedMemoryError::Unknown { name: name.to_owned() })?]
        };
        let regions = wanted.into_iter().map(|region| (region.name.clone(), region.status())).collect();
        Ok(SystemSharedMemoryStatusResponse { regions })
    }

    /// `byte_size` bytes from `offset` of the named region.
    ///
    /// # Errors
    /// When no region has that name, or it is shorter than that.
    pub fn slice(&self, name: &str, offset: u64, byte_size: u64) -> Result<RegionSlice, SharedMemoryError> {
        let region = self.regions.read().get(name).map(Arc::clone);
        let region = region.ok_or_else(|| SharedMemoryError::Unknown { name: name.to_owned() })?;
        let available = region.size_bytes;
        if !fits(offset, byte_size, available) {
            return Err(SharedMemoryError::BeyondRegion { name: name.to_owned(), offset, byte_size, available });
        }
        Ok(RegionSlice { region, offset_bytes: offset, size_bytes: byte_size })
    }
}

impl Region {
    fn open(directory: &Path, name: &str, key: &str, offset: u64, byte_size: u64) -> Result<Self, SharedMemoryError> {
        if byte_size == 0 {
            return Err(SharedMemoryError::Empty { name: name.to_owned() });
        }
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
        Ok(Self { name: name.to_owned(), key: key.to_owned(), file, offset_bytes: offset, size_bytes: byte_size })
    }

    fn status(&self) -> RegionStatus {
        RegionStatus {
            name: self.name.clone(),
            key: self.key.clone(),
            offset: self.offset_bytes,
            byte_size: self.size_bytes,
        }
    }

    fn fault(&self, error: &io::Error) -> SharedMemoryError {
        let name = self.name.clone();
        match error.kind() {
            io::ErrorKind::UnexpectedEof => SharedMemoryError::Shrunk { name },
            _ => SharedMemoryError::Io { name, reason: error.to_string() },
        }
    }
}

impl RegionSlice {
    /// Name of its region.
    pub fn region(&self) -> &str {
        &self.region.name
    }

    /// Its first byte within the region.
    pub fn offset_bytes(&self) -> u64 {
        self.offset_bytes
    }

    /// Its length.
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// A copy of all its bytes, which are taken from the request's allowance.
    ///
    /// # Errors
    /// When the request may not read that much, the client has shortened the file, or there is no memory for the copy.
    pub fn read(&self, allowance: &mut Allowance) -> Result<Bytes, SharedMemoryError> {
        allowance.take(self)?;
        self.check_file(self.size_bytes)?;
        let no_memory = || SharedMemoryError::NoMemory { name: self.region.name.clone(), byte_size: self.size_bytes };
        let size_bytes = usize::try_from(self.size_bytes).map_err(|_| no_memory())?;
        // A file may be sparse and the limit above what memory is left: a failed allocation must not end the server.
        let mut copy: Vec<u8> = Vec::new();
        copy.try_reserve_exact(size_bytes).map_err(|_| no_memory())?;
        let mut position = self.start_in_file();
        while copy.len() < size_bytes {
            let filled = copy.len();
            let step = READ_STEP_BYTES.min(size_bytes - filled);
            copy.resize(filled + step, 0);
            self.region.file.read_exact_at(&mut copy[filled..], position).map_err(|error| self.region.fault(&error))?;
            position += step as u64;
        }
        Ok(Bytes::from(copy))
    }

    /// Writes from its start; what lies behind `data` stays as it is.
    ///
    /// # Errors
    /// When `data` is longer than the slice, or the client has shortened the file.
    pub fn write(&self, data: &[u8]) -> Result<(), SharedMemoryError> {
        let byte_size = data.len() as u64;
        if byte_size > self.size_bytes {
            let (name, offset) = (self.region.name.clone(), self.offset_bytes);
            let available = offset + self.size_bytes;
            return Err(SharedMemoryError::BeyondRegion { name, offset, byte_size, available });
        }
        // A write past the end would make the file grow again, unseen by the client that shortened it.
        self.check_file(byte_size)?;
        self.region.file.write_all_at(data, self.start_in_file()).map_err(|error| self.region.fault(&error))
    }

    /// Checks that the file still has the slice's first `byte_size` bytes.
    fn check_file(&self, byte_size: u64) -> Result<(), SharedMemoryError> {
        let file_size = self.region.file.metadata().map_err(|error| self.region.fault(&error))?.len();
        if fits(self.start_in_file(), byte_size, file_size) {
            return Ok(());
        }
        Err(SharedMemoryError::Shrunk { name: self.region.name.clone() })
    }

    /// Within the file's length at registration, so it cannot overflow.
    fn start_in_file(&self) -> u64 {
        self.region.offset_bytes + self.offset_bytes
    }
}

impl Allowance {
    /// Takes the bytes of a slice; none where it has more than are left.
    fn take(&mut self, slice: &RegionSlice) -> Result<(), SharedMemoryError> {
        let (limit, left, byte_size) = (self.limit_bytes, self.left_bytes, slice.size_bytes);
        let name = || slice.region.name.clone();
        self.left_bytes = left.checked_sub(byte_size).ok_or_else(|| SharedMemoryError::OverLimit {
            name: name(),
            byte_size,
            limit,
            left,
        })?;
        Ok(())
    }
}

impl PartialEq for RegionSlice {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.region, &other.region)
            && self.offset_bytes == other.offset_bytes
            && self.size_bytes == other.size_bytes
    }
}

impl Eq for RegionSlice {}

fn fits(offset: u64, byte_size: u64, available: u64) -> bool {
    offset.checked_add(byte_size).is_some_and(|end| end <= available)
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

#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzz;
#[cfg(test)]
mod tests;
