//! A model of one input `x` and one output `y`, and a chain of stages for it.

use paternoster_model::{
    BoundaryDim, BoundaryTensor, DataType, InputSource, ModelSpec, Sink, StagePlan, StageSpec, TensorSpec,
};
use smallvec::SmallVec;

fn tensor(name: &str, width: usize) -> TensorSpec {
    TensorSpec::new(name, DataType::Fp32, &[width as i64])
}

/// Returns the specification: rows of `width` values, in batches of up to eight.
pub fn spec(width: usize) -> ModelSpec {
    ModelSpec {
        name: "line".to_owned(),
        version: 1,
        max_batch_size: 8,
        inputs: vec![tensor("x", width)],
        outputs: vec![tensor("y", width)],
        symbols: vec![],
        decoupled: false,
    }
}

/// Returns a chain of `count` stages. Each passes one tensor as wide as a row to the next.
pub fn plan(count: usize, width: usize) -> StagePlan {
    let name = |boundary: usize| format!("h{boundary}");
    let stage = |number: usize| {
        let input = match number.checked_sub(1) {
            None => (tensor("x", width), InputSource::Request(0)),
            Some(before) => {
                (tensor(&name(before), width), InputSource::Boundary { boundary: before as u16, tensor: 0 })
            }
        };
        let output = if number + 1 == count {
            (tensor("y", width), Sink::Reply(0))
        } else {
            (tensor(&name(number), width), Sink::Boundary(0))
        };
        StageSpec { inputs: vec![input], outputs: vec![output], exits: vec![] }
    };
    let left = |boundary: usize| BoundaryTensor {
        name: name(boundary),
        datatype: DataType::Fp32,
        dims: Some(SmallVec::from_slice(&[BoundaryDim::Fixed(width as i64)])),
    };
    StagePlan {
        stages: (0..count).map(stage).collect(),
        boundaries: (0..count - 1).map(|boundary| vec![left(boundary)]).collect(),
    }
}
