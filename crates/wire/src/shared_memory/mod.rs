//! Memory that clients share with the server: named regions that requests take inputs from and put outputs into. System
//! regions are objects of `/dev/shm` (`system`), CUDA regions memory of a card (`cuda`). Names are those of both kinds.
//!
//! System regions are read and written by position, never mapped: a client that truncates its file makes a read fail,
//! where a mapping would kill the server with SIGBUS. A read is a snapshot; what the client writes afterwards does not
//! reach the request.

mod cuda;
mod error;
mod system;

use std::{collections::HashMap, path::PathBuf, sync::Arc};

use bytes::Bytes;
use parking_lot::RwLock;
use paternoster_device::cuda::{ImportedMemory, ImportedSlice};

pub use self::error::SharedMemoryError;
use self::{
    cuda::Cards,
    system::{DIRECTORY, Object},
};
use super::pb::{
    CudaSharedMemoryStatusResponse, SystemSharedMemoryStatusResponse,
    cuda_shared_memory_status_response::RegionStatus as CudaRegionStatus,
    system_shared_memory_status_response::RegionStatus,
};

/// Longest name of a region: the server keeps it, and every status repeats it.
const NAME_LIMIT_BYTES: usize = 1024;

/// Most regions: each holds a file descriptor, of which a process often has no more than 1,024.
const MOST_REGIONS: usize = 512;

/// Bytes that one request may read by default: the largest message of gRPC.
const REQUEST_LIMIT_BYTES: u64 = i32::MAX as u64;

/// What statuses call the kinds of regions.
const SYSTEM: &str = "system";
const CUDA: &str = "cuda";

/// The regions that clients have registered.
#[derive(Debug)]
pub struct SharedMemory {
    register_allowed: bool,
    request_limit_bytes: u64,
    /// Where the objects of keys are.
    directory: PathBuf,
    cards: Cards,
    regions: RwLock<HashMap<String, Arc<Region>>>,
}

#[derive(Debug)]
struct Region {
    name: String,
    size_bytes: u64,
    memory: Memory,
}

#[derive(Debug)]
enum Memory {
    System(Object),
    Cuda { card: u16, memory: Arc<ImportedMemory> },
}

/// A part of a region, checked to lie within it. It keeps the region's memory open: a request that holds it ends well
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

impl SharedMemory {
    /// No regions yet, and no cards. Where `register_allowed` is false (`--allow-client-shm` is off) there never will
    /// be any, and everything but [`Self::register`] and [`Self::register_cuda`] answers as usual.
    pub fn new(register_allowed: bool) -> Self {
        Self {
            register_allowed,
            request_limit_bytes: REQUEST_LIMIT_BYTES,
            directory: DIRECTORY.into(),
            cards: Cards::new(Err("none was looked for".to_owned())),
            regions: RwLock::default(),
        }
    }

    /// Bounds the bytes that one request may read, over all its inputs.
    #[must_use]
    pub fn with_request_limit(self, bytes: u64) -> Self {
        Self { request_limit_bytes: bytes, ..self }
    }

    /// Lets clients share memory of these cards, named by their numbers among those of the driver; or says why there
    /// are none.
    #[must_use]
    pub fn with_cards(self, cards: Result<Vec<u16>, String>) -> Self {
        Self { cards: Cards::new(cards), ..self }
    }

    /// Whether there are cards whose memory clients can share.
    pub fn has_cards(&self) -> bool {
        self.cards.are_available()
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
        self.add(name, byte_size, || Object::open(&self.directory, name, key, offset, byte_size).map(Memory::System))
    }

    /// Registers the first `byte_size` bytes of the memory that a handle of the driver names on a card, under a name.
    ///
    /// # Errors
    /// When registering is off, the name is taken or too long, there is no such card, the driver does not take the
    /// handle, the memory is shorter than that, or too many regions are registered.
    pub fn register_cuda(
        &self,
        name: &str,
        raw_handle: &[u8],
        device: i64,
        byte_size: u64,
    ) -> Result<(), SharedMemoryError> {
        self.add(name, byte_size, || {
            let (card, memory) = self.cards.open(name, raw_handle, device, byte_size)?;
            Ok(Memory::Cuda { card, memory })
        })
    }

    fn add(
        &self,
        name: &str,
        byte_size: u64,
        open: impl FnOnce() -> Result<Memory, SharedMemoryError>,
    ) -> Result<(), SharedMemoryError> {
        if !self.register_allowed {
            return Err(SharedMemoryError::Disabled);
        }
        if name.is_empty() {
            return Err(SharedMemoryError::Unnamed);
        }
        if name.len() > NAME_LIMIT_BYTES {
            return Err(SharedMemoryError::NameTooLong { length: name.len(), limit: NAME_LIMIT_BYTES });
        }
        check_room(&self.regions.read(), name)?;
        if byte_size == 0 {
            return Err(SharedMemoryError::Empty { name: name.to_owned() });
        }
        // A card may take its time.
        let region = Region { name: name.to_owned(), size_bytes: byte_size, memory: open()? };
        let mut regions = self.regions.write();
        check_room(&regions, name)?;
        regions.insert(name.to_owned(), Arc::new(region));
        Ok(())
    }

    /// Forgets the named system region, or all of them with an empty name. An unknown name is no error.
    pub fn unregister(&self, name: &str) {
        self.forget(name, SYSTEM);
    }

    /// Forgets the named CUDA region, or all of them with an empty name. An unknown name is no error.
    pub fn unregister_cuda(&self, name: &str) {
        self.forget(name, CUDA);
    }

    fn forget(&self, name: &str, kind: &'static str) {
        let is_meant = |region: &Region| region.memory.kind() == kind && (name.is_empty() || region.name == name);
        self.regions.write().retain(|_, region| !is_meant(region));
    }

    /// The named system region, or all of them with an empty name.
    ///
    /// # Errors
    /// When no system region has that name.
    pub fn status(&self, name: &str) -> Result<SystemSharedMemoryStatusResponse, SharedMemoryError> {
        let status = |region: &Region| match &region.memory {
            Memory::System(object) => Some(RegionStatus {
                name: region.name.clone(),
                key: object.key.clone(),
                offset: object.offset_bytes,
                byte_size: region.size_bytes,
            }),
            Memory::Cuda { .. } => None,
        };
        Ok(SystemSharedMemoryStatusResponse { regions: self.statuses(name, SYSTEM, status)? })
    }

    /// The named CUDA region, or all of them with an empty name.
    ///
    /// # Errors
    /// When no CUDA region has that name.
    pub fn cuda_status(&self, name: &str) -> Result<CudaSharedMemoryStatusResponse, SharedMemoryError> {
        let status = |region: &Region| match &region.memory {
            Memory::Cuda { card, .. } => Some(CudaRegionStatus {
                name: region.name.clone(),
                device_id: u64::from(*card),
                byte_size: region.size_bytes,
            }),
            Memory::System(_) => None,
        };
        Ok(CudaSharedMemoryStatusResponse { regions: self.statuses(name, CUDA, status)? })
    }

    /// Statuses of regions of a kind, by name.
    fn statuses<S>(
        &self,
        name: &str,
        kind: &'static str,
        status: impl Fn(&Region) -> Option<S>,
    ) -> Result<HashMap<String, S>, SharedMemoryError> {
        let regions = self.regions.read();
        if name.is_empty() {
            return Ok(regions.values().filter_map(|region| Some((region.name.clone(), status(region)?))).collect());
        }
        let unknown = || SharedMemoryError::UnknownOfKind { name: name.to_owned(), kind };
        let region = regions.get(name).ok_or_else(unknown)?;
        let status = status(region).ok_or_else(|| SharedMemoryError::OfOtherKind {
            name: name.to_owned(),
            registered: region.memory.kind(),
            asked: kind,
        })?;
        Ok(HashMap::from([(name.to_owned(), status)]))
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

/// Whether a region of this name may be added.
fn check_room(regions: &HashMap<String, Arc<Region>>, name: &str) -> Result<(), SharedMemoryError> {
    if regions.contains_key(name) {
        return Err(SharedMemoryError::AlreadyRegistered { name: name.to_owned() });
    }
    if regions.len() >= MOST_REGIONS {
        return Err(SharedMemoryError::TooMany { name: name.to_owned(), limit: MOST_REGIONS });
    }
    Ok(())
}

impl Memory {
    fn kind(&self) -> &'static str {
        match self {
            Self::System(_) => SYSTEM,
            Self::Cuda { .. } => CUDA,
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

    /// Where it lies on a card, and on which, if it does.
    pub fn on_card(&self) -> Option<(u16, ImportedSlice)> {
        let Memory::Cuda { card, memory } = &self.region.memory else { return None };
        // Within the memory, whose length is a usize.
        Some((*card, ImportedSlice::new(memory, self.offset_bytes as usize, self.size_bytes as usize)?))
    }

    /// A copy of all its bytes, which are taken from the request's allowance.
    ///
    /// # Errors
    /// When the request may not read that much, the client has shortened the file, the card is lost, or there is no
    /// memory for the copy.
    pub fn read(&self, allowance: &mut Allowance) -> Result<Bytes, SharedMemoryError> {
        allowance.take(self)?;
        let name = self.region();
        if let Memory::System(object) = &self.region.memory {
            object.check(name, self.offset_bytes, self.size_bytes)?;
        }
        let no_memory = || SharedMemoryError::NoMemory { name: name.to_owned(), byte_size: self.size_bytes };
        let size_bytes = usize::try_from(self.size_bytes).map_err(|_| no_memory())?;
        // A file may be sparse and the limit above what memory is left: a failed allocation must not end the server.
        let mut copy: Vec<u8> = Vec::new();
        copy.try_reserve_exact(size_bytes).map_err(|_| no_memory())?;
        let copy = match &self.region.memory {
            Memory::System(object) => object.read(name, self.offset_bytes, size_bytes, copy)?,
            Memory::Cuda { memory, .. } => {
                // Within the memory, whose length is a usize.
                let copied = memory.read(self.offset_bytes as usize, size_bytes, copy);
                copied.map_err(|error| cuda::fault(name, &error))?
            }
        };
        Ok(Bytes::from(copy))
    }

    /// Writes from its start; what lies behind `data` stays as it is.
    ///
    /// # Errors
    /// When `data` is longer than the slice, the client has shortened the file, or the card is lost.
    pub fn write(&self, data: &Bytes) -> Result<(), SharedMemoryError> {
        let (name, offset, byte_size) = (self.region(), self.offset_bytes, data.len() as u64);
        if byte_size > self.size_bytes {
            let available = offset + self.size_bytes;
            return Err(SharedMemoryError::BeyondRegion { name: name.to_owned(), offset, byte_size, available });
        }
        match &self.region.memory {
            Memory::System(object) => object.write(name, offset, data),
            Memory::Cuda { memory, .. } => {
                memory.write(offset as usize, data.clone()).map_err(|error| cuda::fault(name, &error))
            }
        }
    }
}

impl Allowance {
    /// Takes the bytes of a slice; none where it has more than are left.
    fn take(&mut self, slice: &RegionSlice) -> Result<(), SharedMemoryError> {
        let (limit, left, byte_size) = (self.limit_bytes, self.left_bytes, slice.size_bytes);
        let name = || slice.region().to_owned();
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

#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzz;
#[cfg(test)]
mod tests;
