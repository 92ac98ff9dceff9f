//! The parameters of a task, as its graph reads them, and the host memory that holds the task's rows.

use crate::device::cuda::{Address, HostMemory};

/// Bytes of one entry in the list of [`copy_pieces`](super::graph::Kernels).
pub(super) const PIECE_BYTES: usize = 24;

/// Bytes of one address in the lists of rows with places of their own.
pub(super) const PLACE_BYTES: usize = size_of::<u64>();

/// The host memory of one task.
#[derive(Debug)]
pub(super) struct Section {
    /// Index of its first row in the rings, which span all sections.
    pub(super) first_row: u32,
    /// Indexed by ring that the host writes.
    pub(super) brought: Vec<HostMemory>,
    /// Indexed by ring that the host reads.
    pub(super) fetched: Vec<HostMemory>,
    /// One word for each row.
    pub(super) faults: HostMemory,
    pub(super) pieces: HostMemory,
    /// For each ring (those that the host writes first) and row, the address that replaces the row's place in the ring,
    /// or zero. `None` if rows of this version never have one.
    pub(super) placed: Option<HostMemory>,
}

impl Section {
    /// Returns whether a row has an index beyond its table.
    pub(super) fn is_faulty(&self, row: usize) -> bool {
        let word = size_of::<u32>();
        self.faults.bytes()[row * word..][..word].iter().any(|byte| *byte != 0)
    }
}

/// Byte offsets of the parts of a task's parameters.
#[derive(Clone, Copy, Debug)]
pub(super) struct Places {
    /// Rows in each list.
    pub(super) bucket: u32,
    pub(super) lists: usize,
}

impl Places {
    pub(super) const LIVE: usize = 0;
    pub(super) const PIECES: usize = 4;
    pub(super) const PIECE_LIST: usize = 8;
    pub(super) const PLACED: usize = 16;
    pub(super) const LISTS: usize = 24;

    pub(super) fn list(self, number: usize) -> usize {
        Self::LISTS + number * self.bucket as usize * size_of::<i32>()
    }

    pub(super) fn bytes(self) -> usize {
        self.list(self.lists)
    }
}

/// The parameters of a task.
#[derive(Debug)]
pub(super) struct Parameters {
    bytes: Vec<u8>,
    places: Places,
    pieces: Vec<[u64; 3]>,
    /// Rows with places of their own: the ring, the row, and the address.
    placed: Vec<(Ring, usize, Address)>,
}

/// A ring of host memory. A row of it may have a place of its own on the card instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ring {
    /// The ring of this index that the host writes.
    Brought(usize),
    /// The ring of this index that the host reads.
    Fetched(usize),
}

impl Ring {
    /// Returns its index among all rings.
    pub(super) fn number(self, brought: usize) -> usize {
        match self {
            Self::Brought(number) => number,
            Self::Fetched(number) => brought + number,
        }
    }
}

impl Parameters {
    /// Creates the parameters of a task with `rows` live rows and this number of lists, in a graph of `bucket` rows.
    pub(super) fn new(lists: usize, bucket: u32, rows: usize) -> Self {
        let places = Places { bucket, lists };
        let bytes = vec![0; places.bytes()];
        let mut parameters = Self { bytes, places, pieces: Vec::new(), placed: Vec::new() };
        parameters.number(Places::LIVE, rows as u32);
        parameters
    }

    /// Sets an entry of a list: a row number, −1 for no row, or a length.
    pub(super) fn name(&mut self, list: usize, row: usize, value: i32) {
        let at = self.places.list(list) + row * size_of::<i32>();
        self.bytes[at..][..size_of::<i32>()].copy_from_slice(&value.to_ne_bytes());
    }

    /// Copies bytes on the card before the graph reads any row.
    pub(super) fn copy(&mut self, from: Address, to: Address, bytes: usize) {
        self.pieces.push([from.to_bits(), to.to_bits(), bytes as u64]);
    }

    /// Gives a row a place of its own at `at`, which must be a multiple of 4 bytes and hold a row of the ring. The
    /// [`Loader`](super::graph::Loader) must have had `places_rows` set.
    pub(super) fn place(&mut self, ring: Ring, row: usize, at: Address) {
        self.placed.push((ring, row, at));
    }

    /// Returns the parameters as the graph reads them. Pieces and places are written to lists in the task's section.
    pub(super) fn finish(mut self, section: &mut Section) -> Box<[u8]> {
        let brought = section.brought.len();
        let rings = brought + section.fetched.len();
        if let Some(list) = section.placed.as_mut().filter(|_| !self.placed.is_empty()) {
            let address = list.address().to_bits();
            let bytes = list.bytes_mut();
            let ring_bytes = bytes.len() / rings.max(1);
            bytes.fill(0);
            for (ring, row, at) in &self.placed {
                let to = ring.number(brought) * ring_bytes + row * PLACE_BYTES;
                bytes[to..][..PLACE_BYTES].copy_from_slice(&at.to_bits().to_ne_bytes());
            }
            self.bytes[Places::PLACED..][..PLACE_BYTES].copy_from_slice(&address.to_ne_bytes());
        }
        self.number(Places::PIECES, self.pieces.len() as u32);
        let list = section.pieces.address().to_bits();
        self.bytes[Places::PIECE_LIST..][..size_of::<u64>()].copy_from_slice(&list.to_ne_bytes());
        for (piece, to) in self.pieces.iter().zip(section.pieces.bytes_mut().chunks_exact_mut(PIECE_BYTES)) {
            for (word, to) in piece.iter().zip(to.chunks_exact_mut(size_of::<u64>())) {
                to.copy_from_slice(&word.to_ne_bytes());
            }
        }
        self.bytes.into()
    }

    fn number(&mut self, at: usize, value: u32) {
        self.bytes[at..][..size_of::<u32>()].copy_from_slice(&value.to_ne_bytes());
    }
}

/// Returns the maximum rows of a task whose parameters have `parameter_bytes` bytes and `lists` lists.
pub(super) fn rows_of(parameter_bytes: usize, lists: usize) -> u32 {
    let rows = parameter_bytes.saturating_sub(Places::LISTS) / (lists.max(1) * size_of::<i32>());
    u32::try_from(rows).unwrap_or(u32::MAX)
}
