//! Symbolic work: the results of a launch, as hashes of its inputs.

use smallvec::SmallVec;

/// The work of a launch in the simulator.
///
/// Its output rows are the rows of all accesses that write or update, in order. Every output row has `fan_in` sources.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Work {
    /// The program: a stage or a cell.
    pub program: u64,
    /// Duration in nanoseconds of virtual time.
    pub duration_ns: u64,
    /// Whether it fails, so that its output rows are lost.
    pub fails: bool,
    /// Number of sources of each output row.
    pub fan_in: u32,
    /// The sources of the first output row, then of the second, and so on.
    pub sources: SmallVec<[RowSource; 8]>,
}

/// A source of an output row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowSource {
    /// A row as it was when the launch started.
    Row {
        /// Index of the access in the launch's list; it must read or update.
        access: u16,
        /// Index of the row within the access.
        row: u32,
    },
    /// A value from outside the device, such as [`external`] returns for a row of a request.
    External(u64),
}

impl Work {
    /// Creates work whose output rows have `fan_in` sources each. The caller must push them to `sources`.
    pub fn new(program: u64, duration_ns: u64, fan_in: u32) -> Self {
        Self { program, duration_ns, fails: false, fan_in, sources: SmallVec::new() }
    }

    /// Creates a stage on `rows` rows: row i of each of the first `inputs` accesses feeds row i of each of `outputs`
    /// outputs.
    pub fn row_by_row(program: u64, duration_ns: u64, inputs: u16, outputs: u16, rows: u32) -> Self {
        let mut work = Self::new(program, duration_ns, u32::from(inputs));
        for row in (0..outputs).flat_map(|_| 0..rows) {
            work.sources.extend((0..inputs).map(|access| RowSource::Row { access, row }));
        }
        work
    }

    /// Makes the work fail.
    pub fn failing(mut self) -> Self {
        self.fails = true;
        self
    }
}

/// Returns the input value of row `row` of request `request`, the start of every chain of contents.
pub fn external(request: u64, row: u64) -> u64 {
    mix(mix(request ^ 0x9e37_79b9_7f4a_7c15) ^ row)
}

/// Returns the value that `program` computes from `inputs` for a row of its `output`-th written access. A serial oracle
/// that applies it stage by stage to the rows of one request gets the same values as every correct batched schedule.
pub fn content(program: u64, output: u16, inputs: &[u64]) -> u64 {
    inputs.iter().fold(Content::of(program, output), |content, input| content.and(*input)).value()
}

/// Incremental form of [`content`], input by input.
#[derive(Clone, Copy)]
pub(super) struct Content(u64);

impl Content {
    pub(super) fn of(program: u64, output: u16) -> Self {
        Self(mix(mix(program ^ 0xd1b5_4a32_d192_ed03) ^ u64::from(output)))
    }

    pub(super) fn and(self, input: u64) -> Self {
        Self(mix(self.0.rotate_left(23) ^ input))
    }

    pub(super) fn value(self) -> u64 {
        self.0
    }
}

/// The finalizer of splitmix64: each bit of the input changes each bit of the output with probability 1/2.
fn mix(input: u64) -> u64 {
    let spread = input.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let folded = (spread ^ (spread >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (folded ^ (folded >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}
