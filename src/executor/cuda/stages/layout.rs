//! Where the stages of a version read and write on a card. A version that is not cut is one stage, which reads requests
//! and writes replies.

use super::HOST_ROWS;
use crate::{
    executor::{
        StagePrograms,
        cuda::graph::row_bytes,
        stages::{Programs, Stages},
    },
    model::{Dims, ExitTo, ModelSpec, Source, TensorSpec},
};

/// Where a version's stages read and write.
#[derive(Debug)]
pub(super) struct Layout {
    pub(super) stages: Vec<StageLayout>,
    /// By boundary and tensor: the bytes of a row.
    pub(super) boundaries: Vec<Vec<usize>>,
}

/// Where a stage reads and writes.
#[derive(Debug)]
pub(super) struct StageLayout {
    pub(super) inputs: Vec<Input>,
    pub(super) outputs: Vec<Output>,
    /// Boundaries that it reads, ascending.
    pub(super) reads: Vec<u16>,
    /// Whether replies are made of its outputs.
    pub(super) answers: bool,
}

/// An input of a stage.
#[derive(Debug)]
pub(super) struct Input {
    pub(super) row_bytes: usize,
    pub(super) from: ReadFrom,
}

/// Where an input comes from.
#[derive(Clone, Copy, Debug)]
pub(super) enum ReadFrom {
    /// The requests' input of this number.
    Request(usize),
    /// What an earlier stage left.
    Boundary { boundary: u16, tensor: usize },
}

/// An output of a stage's program.
#[derive(Debug)]
pub(super) struct Output {
    pub(super) row_bytes: usize,
    /// Dims of a row.
    pub(super) dims: Dims,
    /// The tensor at the stage's boundary that it becomes.
    pub(super) boundary: Option<usize>,
    /// Whether the host reads it.
    pub(super) is_fetched: bool,
}

impl Layout {
    /// Of a version's stages.
    ///
    /// # Errors
    /// When a stage has no plan, or needs what cards do not do.
    pub(super) fn new(spec: &ModelSpec, programs: &StagePrograms) -> Result<Self, String> {
        match &programs.0 {
            Programs::Whole(program) => {
                if program.on_card().is_none() {
                    return Err("its program has no plan for CUDA cards".to_owned());
                }
                let inputs = spec.inputs.iter().enumerate();
                let inputs = inputs.map(|(number, tensor)| Input::new(spec, tensor, ReadFrom::Request(number)));
                let outputs = spec.outputs.iter().map(|tensor| Output::new(tensor, None, true));
                let stage = StageLayout {
                    inputs: inputs.collect::<Result<_, _>>()?,
                    outputs: outputs.collect::<Result<_, _>>()?,
                    reads: Vec::new(),
                    answers: true,
                };
                Ok(Self { stages: vec![stage], boundaries: Vec::new() })
            }
            Programs::Cut(cut) => {
                let mut layout = Self { stages: Vec::new(), boundaries: Vec::new() };
                for number in 0..cut.stages.len() {
                    let stage = layout.stage(spec, cut, number).map_err(|fault| format!("stage {number}: {fault}"))?;
                    layout.stages.push(stage);
                }
                Ok(layout)
            }
            Programs::Cells(_) => Err("its requests unfold into cells".to_owned()),
        }
    }

    fn stage(&mut self, spec: &ModelSpec, cut: &Stages, number: usize) -> Result<StageLayout, String> {
        let stage = &cut.stages[number];
        if stage.program.on_card().is_none() {
            return Err("has no plan for CUDA cards".to_owned());
        }
        let mut inputs = Vec::with_capacity(stage.inputs.len());
        let mut reads: Vec<u16> = Vec::new();
        for (tensor, source) in &stage.inputs {
            let from = match *source {
                Source::Request(input) => ReadFrom::Request(input),
                Source::Boundary { boundary, tensor } => {
                    reads.push(boundary);
                    ReadFrom::Boundary { boundary, tensor: usize::from(tensor) }
                }
            };
            let input = Input::new(spec, tensor, from)?;
            if let ReadFrom::Boundary { boundary, tensor: place } = from {
                let left = self.boundaries[usize::from(boundary)][place];
                if left != input.row_bytes {
                    let (name, bytes) = (&tensor.name, input.row_bytes);
                    return Err(format!("'{name}' has rows of {bytes} bytes here, of {left} where it is made"));
                }
            }
            inputs.push(input);
        }
        reads.sort_unstable();
        reads.dedup();
        let outputs = stage.outputs.iter().map(|output| Output::new(&output.tensor, output.boundary, output.kept));
        let outputs: Vec<Output> = outputs.collect::<Result<_, _>>()?;
        for exit in &stage.exits {
            let (name, bytes) = (&stage.outputs[exit.value].tensor.name, outputs[exit.value].row_bytes);
            if bytes != size_of::<f32>() {
                return Err(format!("decides by '{name}', which has {bytes} bytes a row, expected one FP32"));
            }
        }
        if let Some(tensors) = cut.boundaries.get(number) {
            let mut left = vec![0; tensors.len()];
            for output in &outputs {
                if let Some(tensor) = output.boundary {
                    left[tensor] = output.row_bytes;
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
    /// The list of row numbers at a boundary that the stage reads.
    pub(super) fn reads(&self, boundary: u16) -> usize {
        HOST_ROWS + 1 + self.reads.iter().position(|own| *own == boundary).unwrap_or_default()
    }

    /// The list of row numbers at the stage's own boundary.
    pub(super) fn writes(&self) -> usize {
        HOST_ROWS + 1 + self.reads.len()
    }
}

impl Input {
    fn new(spec: &ModelSpec, tensor: &TensorSpec, from: ReadFrom) -> Result<Self, String> {
        if matches!(from, ReadFrom::Request(input) if spec.inputs[input].optional) {
            return Err(format!("input '{}' is optional, which inputs on a card are not", tensor.name));
        }
        Ok(Self { row_bytes: row_bytes(tensor)?, from })
    }
}

impl Output {
    fn new(tensor: &TensorSpec, boundary: Option<usize>, is_fetched: bool) -> Result<Self, String> {
        let dims = tensor.reshape.clone().unwrap_or_else(|| tensor.dims.clone());
        Ok(Self { row_bytes: row_bytes(tensor)?, dims, boundary, is_fetched })
    }
}
