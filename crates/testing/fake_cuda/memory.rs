//! Device memory.

use std::{collections::BTreeMap, sync::Arc};

use cudarc::driver::sys::{CUdeviceptr, CUresult, CUresult::*};
use parking_lot::Mutex;

use crate::{
    arena::{Shared, arena},
    calls::entries,
    capture,
    context::{self, Context},
    handles::Handle,
    pinned,
    settings::settings,
};

/// CUDA's alignment. The bytes between a piece's end and the next multiple are checked for writes.
const ALIGNMENT_BYTES: usize = 256;
/// The initial byte of new memory and of the tails of pieces; as floats these are NaN.
const FRESH: u8 = 0xff;

static PIECES: Mutex<BTreeMap<usize, Arc<Piece>>> = Mutex::new(BTreeMap::new());

/// A piece of memory known to CUDA.
pub(crate) struct Piece {
    pub address: usize,
    pub bytes: usize,
    pub what: What,
    pub context: Arc<Context>,
    /// Its number in the order of creation among memory of its kind, for traces.
    number: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum What {
    Device,
    /// Memory of another process, or memory of this process mapped a second time.
    Imported,
    /// Pinned host memory, with the flags that it was allocated with.
    Host {
        flags: u32,
    },
    /// Memory that the program allocated and CUDA pinned.
    Registered {
        flags: u32,
    },
}

impl What {
    pub(crate) fn is_device(self) -> bool {
        matches!(self, Self::Device | Self::Imported)
    }

    /// Returns whether kernels may use it.
    pub(crate) fn is_mapped(self) -> bool {
        match self {
            Self::Device | Self::Imported => true,
            Self::Host { flags } | Self::Registered { flags } => flags & pinned::DEVICE_MAP != 0,
        }
    }

    /// Returns whether this process allocated it.
    fn is_own(self) -> bool {
        matches!(self, Self::Device | Self::Host { .. })
    }

    fn name(self) -> &'static str {
        if self.is_device() { "buffer" } else { "host" }
    }
}

impl Piece {
    pub(crate) fn name(&self) -> String {
        format!("{} {}", self.what.name(), self.number)
    }

    fn end(&self) -> usize {
        self.address + self.bytes
    }

    /// Returns whether nothing was written beyond its end.
    fn is_intact(&self) -> bool {
        let tail = self.bytes.next_multiple_of(ALIGNMENT_BYTES) - self.bytes;
        // SAFETY: own memory is allocated in whole pages, so the tail is mapped.
        !self.what.is_own()
            || unsafe { std::slice::from_raw_parts(self.end() as *const u8, tail) } == &[FRESH; ALIGNMENT_BYTES][..tail]
    }
}

/// Allocates memory and fills the tail beyond its end.
pub(crate) fn allocate(context: Arc<Context>, bytes: usize, what: What) -> Result<Arc<Piece>, CUresult> {
    let address = arena().map(bytes).ok_or(CUDA_ERROR_OUT_OF_MEMORY)?;
    // SAFETY: memory is allocated in whole pages.
    unsafe { ((address + bytes) as *mut u8).write_bytes(FRESH, bytes.next_multiple_of(ALIGNMENT_BYTES) - bytes) };
    Ok(add(context, address, bytes, what))
}

/// Registers memory, and returns it.
pub(crate) fn add(context: Arc<Context>, address: usize, bytes: usize, what: What) -> Arc<Piece> {
    static NUMBERS: Mutex<BTreeMap<&str, usize>> = Mutex::new(BTreeMap::new());
    let number = {
        let mut numbers = NUMBERS.lock();
        let last = numbers.entry(what.name()).or_default();
        *last += 1;
        *last
    };
    let piece = Arc::new(Piece { address, bytes, what, context, number });
    PIECES.lock().insert(address, piece.clone());
    piece
}

/// Unregisters the memory that begins at `address` and for which `which` holds.
pub(crate) fn remove(address: usize, which: impl Fn(What) -> bool) -> Result<Arc<Piece>, CUresult> {
    let mut pieces = PIECES.lock();
    match pieces.get(&address) {
        Some(piece) if which(piece.what) => Ok(pieces.remove(&address).expect("it has just been found")),
        _ => Err(CUDA_ERROR_INVALID_VALUE),
    }
}

/// Returns the memory that contains an address.
pub(crate) fn find(address: usize) -> Option<Arc<Piece>> {
    let pieces = PIECES.lock();
    let (_, piece) = pieces.range(..=address).next_back()?;
    (address < piece.end()).then(|| piece.clone())
}

/// Returns the memory that contains all of these bytes.
pub(crate) fn find_range(address: usize, bytes: usize) -> Result<Arc<Piece>, CUresult> {
    let piece = find(address).ok_or(CUDA_ERROR_INVALID_VALUE)?;
    let fits = address.checked_add(bytes).is_some_and(|end| end <= piece.end());
    fits.then_some(piece).ok_or(CUDA_ERROR_INVALID_VALUE)
}

/// Returns the memory that contains all of these bytes, if the device may use it.
pub(crate) fn find_mapped(address: usize, bytes: usize) -> Result<Arc<Piece>, CUresult> {
    find_range(address, bytes).and_then(|piece| piece.what.is_mapped().then_some(piece).ok_or(CUDA_ERROR_INVALID_VALUE))
}

/// Returns the name of an address in traces.
pub(crate) fn name(address: usize) -> String {
    match find(address) {
        None => "unknown".to_owned(),
        Some(piece) if piece.address == address => piece.name(),
        Some(piece) => format!("{}+{}", piece.name(), address - piece.address),
    }
}

/// Checks that nothing was written beyond the end of any memory. Prints which memory was.
pub(crate) fn check_ends() -> Result<(), CUresult> {
    match PIECES.lock().values().find(|piece| !piece.is_intact()) {
        Some(piece) => {
            eprintln!("fake_cuda: a kernel wrote behind the end of {}, which has {} bytes", piece.name(), piece.bytes);
            Err(CUDA_ERROR_ILLEGAL_ADDRESS)
        }
        None => Ok(()),
    }
}

/// Frees all memory of a context.
pub(crate) fn free_all(context: &Context) {
    let mut freed = Vec::new();
    PIECES.lock().retain(|_, piece| {
        let keep = piece.context.handle != context.handle;
        if !keep {
            freed.push(piece.clone());
        }
        keep
    });
    freed.iter().for_each(|piece| give_back(piece));
}

pub(crate) fn give_back(piece: &Piece) {
    match piece.what {
        What::Device | What::Host { .. } => arena().unmap(piece.address, piece.bytes, true),
        What::Imported => arena().unmap(piece.address, piece.bytes, false),
        What::Registered { .. } => {}
    }
}

/// Returns the bytes allocated on a device.
fn used_bytes(device: usize) -> usize {
    let pieces = PIECES.lock();
    pieces.values().filter(|piece| piece.what == What::Device && piece.context.device == device).map(|p| p.bytes).sum()
}

/// CUDA's handle of shared memory: 64 bytes whose contents the driver chooses.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct IpcHandle {
    shared: Shared,
    rest: [u8; 64 - size_of::<Shared>()],
}

entries! {
    fn cuMemAlloc_v2(pointer: *mut CUdeviceptr, bytes: usize) |call| {
        call.note(|| format!("bytes={bytes}"));
        let context = context::current()?;
        capture::refuse_unsafe_call()?;
        if bytes == 0 || pointer.is_null() {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        if bytes > settings().memory_bytes.saturating_sub(used_bytes(context.device)) {
            return Err(CUDA_ERROR_OUT_OF_MEMORY);
        }
        let piece = allocate(context, bytes, What::Device)?;
        (piece.address as *mut u8).write_bytes(FRESH, bytes);
        call.note(|| format!("-> {}", piece.name()));
        *pointer = piece.address as CUdeviceptr;
        Ok(())
    }

    fn cuMemFree_v2(pointer: CUdeviceptr) |call| {
        call.note(|| name(pointer as usize));
        context::current()?;
        capture::refuse_unsafe_call()?;
        if pointer == 0 {
            return Ok(());
        }
        give_back(&*remove(pointer as usize, |what| what == What::Device)?);
        Ok(())
    }

    fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) |_call| {
        let context = context::current()?;
        *total = settings().memory_bytes;
        *free = settings().memory_bytes.saturating_sub(used_bytes(context.device));
        Ok(())
    }

    fn cuMemGetAddressRange_v2(base: *mut CUdeviceptr, bytes: *mut usize, pointer: CUdeviceptr) |call| {
        call.note(|| name(pointer as usize));
        context::current()?;
        let piece = find(pointer as usize).filter(|piece| piece.what.is_device()).ok_or(CUDA_ERROR_NOT_FOUND)?;
        if let Some(base) = base.as_mut() {
            *base = piece.address as CUdeviceptr;
        }
        if let Some(bytes) = bytes.as_mut() {
            *bytes = piece.bytes;
        }
        Ok(())
    }

    fn cuPointerGetAttribute(value: *mut core::ffi::c_void, attribute: u32, pointer: CUdeviceptr) |call| {
        call.note(|| format!("{} attribute={attribute}", name(pointer as usize)));
        context::current()?;
        let piece = find(pointer as usize).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        match attribute {
            1 => *value.cast::<Handle>() = piece.context.handle,
            2 => *value.cast::<u32>() = if piece.what.is_device() { 2 } else { 1 },
            3 if piece.what.is_mapped() => *value.cast::<CUdeviceptr>() = pointer,
            4 if !piece.what.is_device() => *value.cast::<CUdeviceptr>() = pointer,
            9 => *value.cast::<i32>() = piece.context.device as i32,
            _ => return Err(CUDA_ERROR_INVALID_VALUE),
        }
        Ok(())
    }

    fn cuIpcGetMemHandle(handle: *mut IpcHandle, pointer: CUdeviceptr) |call| {
        call.note(|| name(pointer as usize));
        context::current()?;
        let piece = find(pointer as usize).filter(|piece| piece.what == What::Device).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        let shared = arena().share(piece.address, piece.bytes).ok_or(CUDA_ERROR_OPERATING_SYSTEM)?;
        *handle = IpcHandle { shared, rest: [0; _] };
        Ok(())
    }

    fn cuIpcOpenMemHandle_v2(pointer: *mut CUdeviceptr, handle: IpcHandle, flags: u32) |call| {
        let context = context::current()?;
        capture::refuse_unsafe_call()?;
        let bytes = handle.shared.bytes as usize;
        // The only flag enables access between devices.
        if flags > 1 || bytes == 0 || bytes > settings().memory_bytes {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let address = arena().import(&handle.shared).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        let piece = add(context, address, bytes, What::Imported);
        call.note(|| format!("-> {}", piece.name()));
        *pointer = address as CUdeviceptr;
        Ok(())
    }

    fn cuIpcCloseMemHandle(pointer: CUdeviceptr) |call| {
        call.note(|| name(pointer as usize));
        context::current()?;
        capture::refuse_unsafe_call()?;
        give_back(&*remove(pointer as usize, |what| what == What::Imported)?);
        Ok(())
    }
}
