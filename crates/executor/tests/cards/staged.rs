//! Models in stages, and whole ones, with the expected answers to their requests.

use std::sync::Arc;

use bytes::Bytes;
use paternoster_engine::Program;
use paternoster_executor::{InferRequest, StagePrograms};
use paternoster_model::{
    BoundaryDim, BoundaryTensor, DataType, Dims, Exit, ExitTo, InputSource, InputTensor, ModelSpec, Sink, StagePlan,
    StageSpec, TensorSpec,
};
use smallvec::SmallVec;

use crate::{
    mixing::{Mixing, leaves, mixing},
    rng::Rng,
};

const MODULUS: u64 = 1_000_000_007;

/// How a model is cut into stages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Staged {
    /// Not cut.
    Whole,
    /// A chain.
    Chain,
    /// A chain in which rows leave early, and whose last stage also reads the second's output.
    Exits,
    /// A chain in which some rows skip a stage.
    Skips,
}

pub(crate) const STAGED: [Staged; 4] = [Staged::Whole, Staged::Chain, Staged::Exits, Staged::Skips];

/// For each stage, the stages whose outputs it reads; an empty list means the request.
type Reads = &'static [&'static [u16]];

impl Staged {
    fn reads(self) -> Reads {
        match self {
            Self::Whole => &[&[]],
            Self::Chain => &[&[], &[0], &[1]],
            Self::Exits => &[&[], &[0], &[0, 1], &[1, 2]],
            Self::Skips => &[&[], &[0], &[1], &[0, 1]],
        }
    }

    /// Returns the stages with exits and where their leaving rows go; `None` means that they are done.
    fn exits(self) -> &'static [(usize, Option<u16>)] {
        match self {
            Self::Whole | Self::Chain => &[],
            Self::Exits => &[(1, None), (2, None)],
            Self::Skips => &[(1, Some(3))],
        }
    }

    pub(crate) fn spec(self, max_rows: u32) -> ModelSpec {
        ModelSpec {
            name: format!("{self:?}"),
            version: 1,
            max_batch_size: max_rows,
            inputs: vec![value("x")],
            outputs: vec![value("y")],
            symbols: vec![],
            decoupled: false,
        }
    }

    pub(crate) fn programs(self, max_rows: u32) -> StagePrograms {
        let program = |inputs: usize| Arc::new(Mixing { inputs: inputs.max(1), modulus: MODULUS }) as Arc<dyn Program>;
        if self == Self::Whole {
            return program(1).into();
        }
        let reads = self.reads();
        let last = reads.len() - 1;
        let stages = (0..reads.len()).map(|number| {
            let from = |&boundary: &u16| (value(&named(boundary)), InputSource::Boundary { boundary, tensor: 0 });
            let inputs = match reads[number] {
                [] => vec![(value("x"), InputSource::Request(0))],
                boundaries => boundaries.iter().map(from).collect(),
            };
            let own = if number == last { "y".to_owned() } else { named(number as u16) };
            let sink = if number == last { Sink::Reply(0) } else { Sink::Boundary(0) };
            let mut outputs = vec![(value(&own), sink)];
            let exit = self.exits().iter().find(|(stage, _)| *stage == number).map(|(_, to)| {
                outputs.push((TensorSpec::new("decision", DataType::Fp32, &[1]), Sink::Exit));
                let to = to.map_or_else(|| ExitTo::Done(vec![Some(0)]), ExitTo::Stage);
                Exit { value: 1, at_least: 0.5, to }
            });
            StageSpec { inputs, outputs, exits: exit.into_iter().collect() }
        });
        let left = |boundary: usize| BoundaryTensor {
            name: named(boundary as u16),
            datatype: DataType::Int64,
            dims: Some(SmallVec::from_slice(&[BoundaryDim::Fixed(1)])),
        };
        let plan = StagePlan { stages: stages.collect(), boundaries: (0..last).map(|at| vec![left(at)]).collect() };
        let programs = reads.iter().map(|reads| program(reads.len())).collect();
        StagePrograms::cut(&self.spec(max_rows), plan, programs).expect("the plan is sound")
    }

    /// Returns the expected answer to a row.
    pub(crate) fn answer(self, row: u64) -> u64 {
        let mut values: Vec<u64> = Vec::new();
        let mut stage = 0;
        let reads = self.reads();
        while stage < reads.len() {
            let read = |at: usize| reads[stage].get(at).map(|&from| values[usize::from(from)]);
            let made = mixing(read(0).unwrap_or(row), read(1).unwrap_or(0), MODULUS);
            // The outputs of skipped stages are not read.
            values.resize(stage, 0);
            values.push(made);
            let exit = self.exits().iter().find(|(decides, _)| *decides == stage);
            stage = match exit {
                Some((_, to)) if leaves(values[stage]) => to.map_or(reads.len(), usize::from),
                _ => stage + 1,
            };
        }
        values.last().copied().expect("there is a stage")
    }

    /// Creates the random rows of a request.
    pub(crate) fn ask(rng: &mut Rng, most_rows: u64) -> Vec<u64> {
        (0..rng.within(1, most_rows)).map(|_| rng.below(1 << 40)).collect()
    }

    /// Returns a request in the form in which it is submitted.
    pub(crate) fn request(rows: &[u64]) -> InferRequest {
        let data: Bytes = rows.iter().flat_map(|row| row.to_le_bytes()).collect();
        let input = InputTensor { shape: Dims::from_slice(&[rows.len() as i64, 1]), data };
        InferRequest::new(rows.len() as u32, vec![Some(input)])
    }
}

fn value(name: &str) -> TensorSpec {
    TensorSpec::new(name, DataType::Int64, &[1])
}

fn named(boundary: u16) -> String {
    format!("v{boundary}")
}
