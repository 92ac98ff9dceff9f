//! Where the stages of a version read and write on a card. A version that is not cut is one stage, which reads requests
//! and writes responses.

use paternoster_batching::ShapeClass;
use paternoster_engine::CardProgram;
use paternoster_model::{Dims, ExitTo, InputSource, Lengths, ModelSpec, TensorSpec};

use super::HOST_ROWS;
use crate::{
    StagePrograms,
    cuda::row_bytes::{RowBytes, least_that_holds, row_bytes},
    stages::{Programs, Stages},
};

/// Where a version's stages read and write.
#[derive(Debug)]
pub(super) struct Layout {
    /// The lengths that rows are padded to, the same for all stages.
    pub(super) lengths: Vec<Lengths>,
    pub(super) stages: Vec<StageLayout>,
    /// Bytes of a row, indexed by boundary and tensor.
    pub(super) boundaries: Vec<Vec<RowBytes>>,
}

/// Where a stage reads and writes.
#[derive(Debug)]
pub(super) struct StageLayout {
    pub(super) inputs: Vec<Input>,
    pub(super) outputs: Vec<Output>,
    /// The boundaries that it reads, ascending.
    pub(super) reads: Vec<u16>,
    /// Whether its outputs are part of responses.
    pub(super) answers: bool,
}

/// An input of a stage.
#[derive(Debug)]
pub(super) struct Input {
    pub(super) row_bytes: RowBytes,
    pub(super) from: ReadFrom,
}

/// Where an input comes from.
#[derive(Clone, Copy, Debug)]
pub(super) enum ReadFrom {
    /// The requests' input of this index.
    Request(usize),
    /// The output of an earlier stage, at its boundary.
    Boundary { boundary: u16, tensor: usize },
}

/// An output of a stage's program.
#[derive(Debug)]
pub(super) struct Output {
    pub(super) row_bytes: RowBytes,
    /// The dims of a row, indexed by lengths.
    pub(super) dims: Vec<Dims>,
    /// Its index among the tensors at the stage's boundary, if it is one.
    pub(super) boundary: Option<usize>,
    /// Whether the host reads it.
    pub(super) is_fetched: bool,
    /// The model's output that it is, if the host reads it as exactly one.
    pub(super) reply: Option<usize>,
}

impl Layout {
    /// Lays out a version's stages.
    ///
    /// # Errors
    /// If a stage has no plan, or needs something that cards do not support.
    pub(super) fn new(spec: &ModelSpec, programs: &StagePrograms) -> Result<Self, String> {
        match &programs.0 {
            Programs::Whole(program) => {
                let program = program.on_card().ok_or("its program has no plan for CUDA cards")?;
                let lengths = program.lengths();
                let inputs = spec.inputs.iter().enumerate();
                let inputs =
                    inputs.map(|(number, tensor)| Input::new(spec, tensor, ReadFrom::Request(number), &lengths));
                let outputs = spec.outputs.iter().enumerate();
                let outputs = outputs.map(|(number, tensor)| {
                    Ok::<_, String>(Output { reply: Some(number), ..Output::new(tensor, None, true, &lengths)? })
                });
                let stage = StageLayout {
                    inputs: inputs.collect::<Result<_, _>>()?,
                    outputs: outputs.collect::<Result<_, _>>()?,
                    reads: Vec::new(),
                    answers: true,
                };
                Ok(Self { stages: vec![stage], lengths, boundaries: Vec::new() })
            }
            Programs::Cut(cut) => {
                let mut layout = Self { stages: Vec::new(), lengths: Vec::new(), boundaries: Vec::new() };
                for number in 0..cut.stages.len() {
                    let stage = layout.stage(spec, cut, number).map_err(|fault| format!("stage {number}: {fault}"))?;
                    layout.stages.push(stage);
                }
                Ok(layout)
            }
            Programs::Cells(_) => Err("its requests unfold into cells".to_owned()),
        }
    }

    /// Returns the number of padded axes.
    pub(super) fn axes(&self) -> usize {
        self.lengths.first().map_or(0, |lengths| lengths.len())
    }

    /// Returns the index of the smallest lengths that hold a batch of this shape.
    pub(super) fn lengths_for(&self, class: &ShapeClass) -> Option<usize> {
        least_that_holds(&self.lengths, &class.0)
    }

    fn stage(&mut self, spec: &ModelSpec, cut: &Stages, number: usize) -> Result<StageLayout, String> {
        let stage = &cut.stages[number];
        let lengths = stage.program.on_card().map(CardProgram::lengths).ok_or("has no plan for CUDA cards")?;
        // A row keeps its lengths from stage to stage, and its pitch at each boundary is that of the longest.
        if number > 0 && lengths != self.lengths {
            return Err("is made for other lengths than the stages before it".to_owned());
        }
        self.lengths = lengths;
        let mut inputs = Vec::with_capacity(stage.inputs.len());
        let mut reads: Vec<u16> = Vec::new();
        for (tensor, source) in &stage.inputs {
            let from = match *source {
                InputSource::Request(input) => ReadFrom::Request(input),
                InputSource::Boundary { boundary, tensor } => {
                    reads.push(boundary);
                    ReadFrom::Boundary { boundary, tensor: usize::from(tensor) }
                }
            };
            let input = Input::new(spec, tensor, from, &self.lengths)?;
            if let ReadFrom::Boundary { boundary, tensor: place } = from {
                let left = &self.boundaries[usize::from(boundary)][place];
                if *left != input.row_bytes {
                    let (name, bytes, left) = (&tensor.name, input.row_bytes.pitch(), left.pitch());
                    return Err(format!("'{name}' is read in rows of {bytes} bytes, but written in rows of {left}"));
                }
            }
            inputs.push(input);
        }
        reads.sort_unstable();
        reads.dedup();
        let outputs = stage.outputs.iter();
        let outputs = outputs.map(|output| {
            // An output that answers several of the model's outputs has no single place on the card to be written to.
            let reply = match output.replies[..] {
                [reply] => Some(reply),
                _ => None,
            };
            let own = Output::new(&output.tensor, output.boundary, output.kept, &self.lengths)?;
            Ok::<_, String>(Output { reply, ..own })
        });
        let outputs: Vec<Output> = outputs.collect::<Result<_, _>>()?;
        for exit in &stage.exits {
            // The poller reads the value of an exit as one FP32 for each row.
            let (name, bytes) = (&stage.outputs[exit.value].tensor.name, outputs[exit.value].row_bytes.pitch());
            if bytes != size_of::<f32>() {
                return Err(format!("decides by '{name}', which has {bytes} bytes a row, expected one FP32"));
            }
        }
        if let Some(tensors) = cut.boundaries.get(number) {
            let mut left = vec![RowBytes::from(0); tensors.len()];
            for output in &outputs {
                if let Some(tensor) = output.boundary {
                    left[tensor] = output.row_bytes.clone();
                }
            }
            self.boundaries.push(left);
        }
        let answers = stage.outputs.iter().any(|output| !output.replies.is_empty())
            || stage.exits.iter().any(|exit| matches!(exit.to, ExitTo::Done(_)));
        Ok(StageLayout { inputs, outputs, reads, answers })
    }
}

impl StageLayout {
    /// Returns the list of row numbers at a boundary that the stage reads.
    pub(super) fn reads(&self, boundary: u16) -> usize {
        HOST_ROWS + 1 + self.reads.iter().position(|own| *own == boundary).unwrap_or_default()
    }

    /// Returns the list of row numbers at the stage's own boundary.
    pub(super) fn writes(&self) -> usize {
        HOST_ROWS + 1 + self.reads.len()
    }

    /// Returns the list of each row's own length along a padded axis. The lists of lengths follow all others.
    pub(super) fn lengths(&self, axis: usize) -> usize {
        self.writes() + 1 + axis
    }
}

impl Input {
    fn new(spec: &ModelSpec, tensor: &TensorSpec, from: ReadFrom, lengths: &[Lengths]) -> Result<Self, String> {
        if matches!(from, ReadFrom::Request(input) if spec.inputs[input].optional) {
            return Err(format!("input '{}' is optional, which inputs on a card cannot be", tensor.name));
        }
        Ok(Self { row_bytes: row_bytes(tensor, lengths)?, from })
    }
}

impl Output {
    fn new(
        tensor: &TensorSpec,
        boundary: Option<usize>,
        is_fetched: bool,
        lengths: &[Lengths],
    ) -> Result<Self, String> {
        let dims = |lengths: &Lengths| tensor.reshape.clone().unwrap_or_else(|| tensor.dims_at(lengths));
        let dims = lengths.iter().map(dims).collect();
        Ok(Self { row_bytes: row_bytes(tensor, lengths)?, dims, boundary, is_fetched, reply: None })
    }
}
