//! Symbolic work: what a launch would compute, as hashes of what it was given.

use smallvec::SmallVec;

/// What a launch in the simulator runs.
///
/// Its output rows are the rows of all accesses that write or update, one access after another, each in its order.
/// Every output row is made of `fan_in` sources.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Work {
    /// Which program runs: a stage or a cell.
    pub program: u64,
    /// How long it takes, in nanoseconds of virtual time.
    pub duration_ns: u64,
    /// Whether it fails: its output rows are lost.
    pub fails: bool,
    /// How many sources each output row has.
    pub fan_in: u32,
    /// The sources of the first output row, then of the second, and so on.
    pub sources: SmallVec<[Source; 8]>,
}

/// What feeds an output row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// A row as it was when the launch began.
    Row {
        /// The access, by its place in the launch's list; one that reads or updates.
        access: u16,
        /// The row, by its place in the access.
        row: u32,
    },
    /// A value from outside the device, such as [`external`] gives for a request's row.
    External(u64),
}

impl Work {
    /// Work whose output rows have `fan_in` sources each, yet to be pushed to `sources`.
    pub fn new(program: u64, duration_ns: u64, fan_in: u32) -> Self {
        Self { program, duration_ns, fails: false, fan_in, sources: SmallVec::new() }
    }

    /// A stage on `rows` rows: row i of each of the first `inputs` accesses feeds row i of each of `outputs` outputs.
    pub fn row_by_row(program: u64, duration_ns: u64, inputs: u16, outputs: u16, rows: u32) -> Self {
        let mut work = Self::new(program, duration_ns, u32::from(inputs));
        for row in (0..outputs).flat_map(|_| 0..rows) {
            work.sources.extend((0..inputs).map(|access| Source::Row { access, row }));
        }
        work
    }

    /// The same work, failing.
    pub fn failing(mut self) -> Self {
        self.fails = true;
        self
    }
}

/// What row `row` of request `request` brings along: the beginning of every chain of contents.
pub fn external(request: u64, row: u64) -> u64 {
    mix(mix(request ^ 0x9e37_79b9_7f4a_7c15) ^ row)
}

/// What `program` writes to a row of its `output`-th written access from `inputs`. A serial oracle that applies it
/// stage by stage to one request's rows gets what any right schedule of batches leaves in them.
pub fn content(program: u64, output: u16, inputs: &[u64]) -> u64 {
    inputs.iter().fold(Content::of(program, output), |content, input| content.and(*input)).value()
}

/// [`content`], input by input.
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

/// The finaliser of splitmix64: each bit of the input changes each bit of the output with probability 1/2.
fn mix(input: u64) -> u64 {
    let spread = input.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let folded = (spread ^ (spread >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (folded ^ (folded >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}
