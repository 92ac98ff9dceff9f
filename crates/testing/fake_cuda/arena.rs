//! The addresses of device memory: one reserved range, backed by one memory file, so that other processes can map
//! pieces of it. Addresses are never reused, so an access to freed memory is always detected.

use std::{io, mem::MaybeUninit, process, ptr, sync::OnceLock};

use parking_lot::Mutex;

/// Bytes of the range. Addresses cost nothing until they are used.
const SPAN_BYTES: usize = 1 << 40;
/// Inaccessible bytes between two pieces.
const GUARD_BYTES: usize = 1 << 20;
const PAGE_BYTES: usize = 4096;

pub(crate) struct Arena {
    base: usize,
    /// The file. Own memory has the same offset in the file as in the range.
    file: i32,
    next: Mutex<usize>,
}

/// A reference to a piece of memory for other processes.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Shared {
    process: u32,
    file: i32,
    /// The file's inode, to recognise the file.
    inode: u64,
    offset: u64,
    pub bytes: u64,
}

/// Returns the process's only arena.
pub(crate) fn arena() -> &'static Arena {
    static ARENA: OnceLock<Arena> = OnceLock::new();
    ARENA.get_or_init(|| Arena::reserve().expect("a range of addresses can be reserved"))
}

impl Arena {
    fn reserve() -> io::Result<Self> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: creates a new mapping at an address that the system chooses.
        let base = unsafe { libc::mmap(ptr::null_mut(), SPAN_BYTES, libc::PROT_NONE, flags, -1, 0) };
        // SAFETY: the name is a C string.
        let file = unsafe { libc::memfd_create(c"fake_cuda".as_ptr(), libc::MFD_CLOEXEC) };
        // SAFETY: the file has just been made.
        if base == libc::MAP_FAILED || file < 0 || unsafe { libc::ftruncate(file, SPAN_BYTES as libc::off_t) } != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { base: base as usize, file, next: Mutex::new(GUARD_BYTES) })
    }

    /// Allocates memory and returns its address, aligned to a page; `None` if none is left.
    pub(crate) fn map(&self, bytes: usize) -> Option<usize> {
        let offset = self.take(bytes)?;
        self.map_file(offset, bytes, self.file, offset)
    }

    /// Maps a piece of another arena, or of this one a second time.
    pub(crate) fn import(&self, shared: &Shared) -> Option<usize> {
        let path = format!("/proc/{}/fd/{}\0", shared.process, shared.file);
        // SAFETY: the path ends with a zero byte.
        let file = unsafe { libc::open(path.as_ptr().cast(), libc::O_RDWR | libc::O_CLOEXEC) };
        if file < 0 {
            return None;
        }
        let found = if inode(file) == Some(shared.inode) {
            let bytes = shared.bytes as usize;
            self.take(bytes).and_then(|offset| self.map_file(offset, bytes, file, shared.offset as usize))
        } else {
            None
        };
        // SAFETY: it was opened above, and the mapping outlives it.
        unsafe { libc::close(file) };
        found
    }

    /// Returns a reference to own memory for other processes.
    pub(crate) fn share(&self, address: usize, bytes: usize) -> Option<Shared> {
        let offset = (address - self.base) as u64;
        Some(Shared { process: process::id(), file: self.file, inode: inode(self.file)?, offset, bytes: bytes as u64 })
    }

    /// Frees memory: accesses fault from here on. `own` says that it came from [`map`](Self::map).
    pub(crate) fn unmap(&self, address: usize, bytes: usize, own: bool) {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
        let bytes = whole_pages(bytes);
        // SAFETY: the addresses are in the arena, and their contents are no longer needed.
        unsafe { libc::mmap(address as *mut _, bytes, libc::PROT_NONE, flags, -1, 0) };
        if own {
            let offset = (address - self.base) as libc::off_t;
            let punch = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
            // SAFETY: the file is the arena's own.
            unsafe { libc::fallocate(self.file, punch, offset, bytes as libc::off_t) };
        }
    }

    /// Reserves addresses, with a guard after them; returns their offset.
    fn take(&self, bytes: usize) -> Option<usize> {
        let mut next = self.next.lock();
        let end = next.checked_add(bytes.checked_add(GUARD_BYTES + PAGE_BYTES)?)?;
        if end > SPAN_BYTES {
            return None;
        }
        Some(std::mem::replace(&mut next, end / PAGE_BYTES * PAGE_BYTES))
    }

    fn map_file(&self, offset: usize, bytes: usize, file: i32, file_offset: usize) -> Option<usize> {
        let address = (self.base + offset) as *mut libc::c_void;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_SHARED | libc::MAP_FIXED;
        // SAFETY: the addresses are in the arena and have just been reserved.
        let mapped =
            unsafe { libc::mmap(address, whole_pages(bytes), access, flags, file, file_offset as libc::off_t) };
        (mapped != libc::MAP_FAILED).then_some(mapped as usize)
    }
}

fn whole_pages(bytes: usize) -> usize {
    bytes.next_multiple_of(PAGE_BYTES)
}

fn inode(file: i32) -> Option<u64> {
    let mut status = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: the call fills the status if it succeeds.
    (unsafe { libc::fstat(file, status.as_mut_ptr()) } == 0).then(|| unsafe { status.assume_init() }.st_ino)
}
