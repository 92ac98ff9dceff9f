//! Stages on a card. Intermediate tensors of a batch lie in the rows of its buffer pair at each boundary (DVABatch
//! section 6.1). The buffers are reserved when the version is loaded.

mod captured;
mod launch;
mod layout;
mod outputs;

use std::sync::Arc;

use paternoster_batching::{Knobs, Lease, ReqId};
use paternoster_device::{BufferId, Device, DeviceError, cuda::Cuda};
use paternoster_engine::CardProgram;
use paternoster_model::{ModelSpec, TensorSpec};

pub use self::captured::{CapturedStages, StageLaunch};
use self::layout::{Layout, ReadFrom, StageLayout};
use super::{
    graph::{Around, Loader, Move, OnCard, RowsPlace, buckets},
    version::free,
};
use crate::{StagePrograms, stages::Programs};

/// The list of each row's index in the rings of host memory.
const HOST_ROWS: usize = 0;

/// A version of stages on the card.
pub(super) struct Stages {
    spec: Arc<ModelSpec>,
    programs: StagePrograms,
    layout: Arc<Layout>,
    stages: Vec<OnCard>,
    boundaries: Vec<Boundary>,
    max_rows: u32,
}

/// The buffer pairs behind one stage.
#[derive(Default)]
struct Boundary {
    tensors: Vec<BoundaryBuffer>,
    /// What each row holds once all issued tasks have run: the batch, the request and the request's row.
    written_by: Vec<Option<(u64, ReqId, u32)>>,
}

/// A tensor at a boundary, with a row for each row of each buffer pair.
struct BoundaryBuffer {
    buffer: BufferId,
    place: RowsPlace,
}

/// Checks whether cards can run a version that is whole or cut into stages.
///
/// # Errors
/// If they cannot; the text says what is missing.
pub(super) fn check(spec: &ModelSpec, programs: &StagePrograms) -> Result<(), String> {
    Layout::new(spec, programs).map(drop)
}

/// Returns which inputs and outputs of requests may lie on the card, in the order of the specification; both lists are
/// empty for a version that does not run there. Inputs of varying length are excluded, because the host pads them, and
/// so are outputs that a row may finish without.
pub(super) fn placed_ports(spec: &ModelSpec, programs: &StagePrograms) -> (Box<[bool]>, Box<[bool]>) {
    let Ok(layout) = Layout::new(spec, programs) else { return Default::default() };
    let is_fixed = |tensor: &TensorSpec| tensor.dims.iter().all(|&dim| dim >= 0);
    let has_exits = matches!(&programs.0, Programs::Cut(cut) if cut.stages.iter().any(|stage| !stage.exits.is_empty()));
    let makers = |number: usize| {
        let outputs = layout.stages.iter().flat_map(|stage| &stage.outputs);
        outputs.filter(|output| output.reply == Some(number)).count()
    };
    let outputs = spec.outputs.iter().enumerate();
    let outputs = outputs.map(|(number, output)| is_fixed(output) && !has_exits && makers(number) == 1);
    (spec.inputs.iter().map(is_fixed).collect(), outputs.collect())
}

impl Stages {
    /// Reserves the memory of a version's stages, captures their graphs, and sets the buckets in the core's knobs.
    ///
    /// # Errors
    /// If the card has too little memory, or does not support what a stage needs; the text names the stage.
    pub(super) fn load(
        mut loader: Loader<'_>,
        spec: &Arc<ModelSpec>,
        programs: &StagePrograms,
        knobs: &mut Knobs,
    ) -> Result<Self, String> {
        let max_rows = knobs.max_batch_rows.max(1);
        for stage in &mut knobs.stages {
            if stage.buckets.is_empty() {
                stage.buckets = buckets(max_rows);
            }
        }
        Self::with(&mut loader, spec, programs, knobs, |loader, number, program, around| {
            let buckets = knobs.stages.get(number).map_or(&[][..], |stage| &stage.buckets);
            loader.load(program, around, buckets, &[1])
        })
    }

    /// Reserves the memory at the boundaries of a version's stages, and has `load` bring each program onto the card.
    ///
    /// # Errors
    /// As [`Self::load`].
    fn with(
        loader: &mut Loader<'_>,
        spec: &Arc<ModelSpec>,
        programs: &StagePrograms,
        knobs: &Knobs,
        load: impl FnMut(&mut Loader<'_>, usize, &dyn CardProgram, Around) -> Result<OnCard, String>,
    ) -> Result<Self, String> {
        let layout = Arc::new(Layout::new(spec, programs)?);
        loader.places_rows = true;
        let max_rows = knobs.max_batch_rows.max(1);
        let rows = max_rows.checked_mul(u32::from(knobs.buffer_pairs.max(1)));
        let rows = rows.ok_or("its buffer pairs have more rows than can be counted")?;
        let mut boundaries = Vec::with_capacity(layout.boundaries.len());
        let reserved = reserve(loader.card, &layout, rows, &mut boundaries);
        let reserved = reserved.map_err(|error| format!("its buffer pairs: {error}"));
        match reserved.and_then(|()| load_all(loader, programs, &layout, &boundaries, load)) {
            Ok(stages) => {
                let (spec, programs) = (Arc::clone(spec), programs.clone());
                Ok(Self { spec, programs, layout, stages, boundaries, max_rows })
            }
            Err(reason) => {
                // Freeing fails only on a lost card; the first error says more.
                let _ = free(loader.card, buffers(&boundaries));
                Err(reason)
            }
        }
    }

    /// Returns the first of `count` rows at `at` within a lease; `None` if they are not all within its buffer pair.
    fn rows(&self, lease: Lease, at: u32, count: u32) -> Option<u32> {
        let first = u32::from(lease.pair).checked_mul(self.max_rows)?;
        let rows = self.boundaries.get(usize::from(lease.boundary))?.written_by.len();
        let is_within = at.checked_add(count)? <= self.max_rows && first as usize + self.max_rows as usize <= rows;
        is_within.then_some(first + at)
    }
}

/// Reserves boundaries one by one. If one fails, the caller frees those that `boundaries` holds already.
fn reserve(card: &mut Cuda, layout: &Layout, rows: u32, boundaries: &mut Vec<Boundary>) -> Result<(), DeviceError> {
    for tensors in &layout.boundaries {
        boundaries.push(Boundary { tensors: Vec::new(), written_by: vec![None; rows as usize] });
        for row_bytes in tensors {
            let buffer = card.allocate(rows, row_bytes.pitch())?;
            let place = RowsPlace::Rows(card.address(buffer)?, rows);
            if let Some(boundary) = boundaries.last_mut() {
                boundary.tensors.push(BoundaryBuffer { buffer, place });
            }
        }
    }
    Ok(())
}

fn buffers(boundaries: &[Boundary]) -> impl Iterator<Item = BufferId> {
    boundaries.iter().flat_map(|boundary| &boundary.tensors).map(|kept| kept.buffer)
}

fn load_all(
    loader: &mut Loader<'_>,
    programs: &StagePrograms,
    layout: &Layout,
    boundaries: &[Boundary],
    mut load: impl FnMut(&mut Loader<'_>, usize, &dyn CardProgram, Around) -> Result<OnCard, String>,
) -> Result<Vec<OnCard>, String> {
    let stages = layout.stages.iter().enumerate().map(|(number, stage)| {
        let program = program(programs, number).ok_or("has no plan for CUDA cards".to_owned());
        let around = stage.around(number, boundaries, layout.axes());
        let loaded = program.and_then(|program| load(loader, number, program, around));
        loaded.map_err(|fault| format!("stage {number}: {fault}"))
    });
    stages.collect()
}

/// Returns the program of a stage for cards.
fn program(programs: &StagePrograms, stage: usize) -> Option<&dyn CardProgram> {
    match &programs.0 {
        Programs::Whole(program) => program.on_card(),
        Programs::Cut(cut) => cut.stages.get(stage)?.program.on_card(),
        Programs::Cells(_) => None,
    }
}

impl StageLayout {
    /// Returns the row moves of a stage's graphs, whose rows have lengths along this number of axes.
    fn around(&self, number: usize, boundaries: &[Boundary], axes: usize) -> Around {
        let lengths = (0..axes).map(|axis| self.lengths(axis)).collect();
        let mut around = Around { lists: self.lengths(axes), faults: HOST_ROWS, lengths, ..Around::default() };
        for input in &self.inputs {
            let (list, place) = match input.from {
                ReadFrom::Request(_) => {
                    around.brought.push(input.row_bytes.pitch());
                    (HOST_ROWS, RowsPlace::Brought(around.brought.len() - 1))
                }
                ReadFrom::Boundary { boundary, tensor } => {
                    (self.reads(boundary), boundaries[usize::from(boundary)].tensors[tensor].place)
                }
            };
            around.gathers.push(Move { list, counts: None, row_bytes: input.row_bytes.clone(), place, begins: None });
        }
        for (port, output) in self.outputs.iter().enumerate() {
            let row_bytes = || output.row_bytes.clone();
            if let Some(tensor) = output.boundary {
                let place = boundaries[number].tensors[tensor].place;
                around.scatters.push((
                    port,
                    Move { list: self.writes(), counts: None, row_bytes: row_bytes(), place, begins: None },
                ));
            }
            if output.is_fetched {
                around.fetched.push(output.row_bytes.pitch());
                let place = RowsPlace::Fetched(around.fetched.len() - 1);
                around
                    .scatters
                    .push((port, Move { list: HOST_ROWS, counts: None, row_bytes: row_bytes(), place, begins: None }));
            }
        }
        around
    }
}
