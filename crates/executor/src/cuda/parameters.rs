//! The parameters of a task, as its graph reads them, and the host memory that holds the task's rows.

use paternoster_device::cuda::{Address, HostMemory};

/// Bytes of one address in the lists of rows with places of their own.
pub(super) const PLACE_BYTES: usize = size_of::<u64>();

/// The host memory of one task.
#[derive(Debug)]
pub(super) struct Section {
    /// Index of its first row in the rings, which span all sections.
    pub(super) first_row: u32,
    /// Number of its rows.
    pub(super) rows: u32,
    /// Indexed by ring that the host writes.
    pub(super) brought: Vec<HostMemory>,
    /// Indexed by ring that the host reads.
    pub(super) fetched: Vec<HostMemory>,
    /// One word for each row.
    pub(super) faults: HostMemory,
    /// For each list of places ([`Ring::list`]) and row, the address where the row lies instead, or zero. `None` if
    /// rows of this version never have one.
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
    /// The number of live rows; 32 bits.
    pub(super) const LIVE: usize = 0;
    /// The address of the lists of places; 64 bits.
    pub(super) const PLACED: usize = 8;
    pub(super) const LISTS: usize = 16;

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
    /// Rows with places of their own: the rows that they are among, the row, and the address.
    placed: Vec<(Ring, usize, Address)>,
}

/// Rows that may have places of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ring {
    /// Those of the ring of this index that the host writes.
    Brought(usize),
    /// Those of the ring of this index that the host reads.
    Fetched(usize),
    /// Those of state, in the gather of this number, where a request begins.
    Begins(usize),
}

impl Ring {
    /// Returns its list of places. `has_rings`: rows of rings may have places of their own.
    pub(super) fn list(self, brought: usize, fetched: usize, has_rings: bool) -> usize {
        match self {
            Self::Brought(number) => number,
            Self::Fetched(number) => brought + number,
            Self::Begins(number) => number + if has_rings { brought + fetched } else { 0 },
        }
    }
}

impl Parameters {
    /// Creates the parameters of a task with `rows` live rows and this number of lists, in a graph of `bucket` rows.
    pub(super) fn new(lists: usize, bucket: u32, rows: usize) -> Self {
        let places = Places { bucket, lists };
        let bytes = vec![0; places.bytes()];
        let mut parameters = Self { bytes, places, placed: Vec::new() };
        parameters.number(Places::LIVE, rows as u32);
        parameters
    }

    /// Sets an entry of a list: a row number, −1 for no row, or a length.
    pub(super) fn name(&mut self, list: usize, row: usize, value: i32) {
        let at = self.places.list(list) + row * size_of::<i32>();
        self.bytes[at..][..size_of::<i32>()].copy_from_slice(&value.to_ne_bytes());
    }

    /// Gives a row a place of its own at `at`, which must be a multiple of 4 bytes and hold a row of the ring. The
    /// [`Loader`](super::graph::Loader) must have had `places_rows` set.
    pub(super) fn place(&mut self, ring: Ring, row: usize, at: Address) {
        self.placed.push((ring, row, at));
    }

    /// Returns the parameters as the graph reads them. Places are written to lists in the task's section. `has_rings`:
    /// rows of rings may have places of their own.
    pub(super) fn finish(mut self, section: &mut Section, has_rings: bool) -> Box<[u8]> {
        let (brought, fetched) = (section.brought.len(), section.fetched.len());
        if let Some(lists) = section.placed.as_mut().filter(|_| !self.placed.is_empty()) {
            let address = lists.address().to_bits();
            let list_bytes = section.rows as usize * PLACE_BYTES;
            let bytes = lists.bytes_mut();
            bytes.fill(0);
            for (ring, row, at) in &self.placed {
                let to = ring.list(brought, fetched, has_rings) * list_bytes + row * PLACE_BYTES;
                bytes[to..][..PLACE_BYTES].copy_from_slice(&at.to_bits().to_ne_bytes());
            }
            self.bytes[Places::PLACED..][..PLACE_BYTES].copy_from_slice(&address.to_ne_bytes());
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
