//! Convolutions: what they need is checked here, and `convolution.cpp` computes them.

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    sync::OnceLock,
};

use cudarc::{
    cudnn::sys::cudnnStatus_t::{self, *},
    driver::sys::{CUresult, CUresult::*},
};

use crate::{
    compiler::{self, Failure},
    descriptors::{Convolution, Dense, F32, Moves},
    memory,
    settings::settings,
    shared::Shared,
};

const FMA_MATH: u32 = 3;

/// Which way a convolution goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    Forward,
    BackwardData,
}

/// What a convolution is, without its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Shape {
    pub direction: Direction,
    x: [i64; 4],
    w: [i64; 4],
    y: [i64; 4],
    moves: Moves,
    groups: i64,
    math: u32,
}

/// As in `convolution.cpp`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Problem {
    pub x: u64,
    pub w: u64,
    pub y: u64,
    pub z: u64,
    pub bias: u64,
    images: i64,
    groups: i64,
    inputs: i64,
    outputs: i64,
    size: [i64; 2],
    kernel: [i64; 2],
    out: [i64; 2],
    pads: [i64; 2],
    strides: [i64; 2],
    dilations: [i64; 2],
    is_turned: i64,
    rounds: i64,
    pub activates: i64,
    alpha: f32,
    pub alpha2: f32,
    beta: f32,
}

impl Shape {
    /// Checks that the convolution is one that cuDNN computes. `x` and `y` are those of the forward direction.
    pub fn new(
        direction: Direction,
        x: &Dense,
        w: &Dense,
        y: &Dense,
        (convolution, moves): &(Convolution, Moves),
    ) -> Result<Self, cudnnStatus_t> {
        let ([images, channels, ..], [outputs, inputs, ..]) = (x.dims, w.dims);
        let groups = convolution.groups;
        let fits = channels == inputs * groups && outputs % groups == 0 && y.dims[..2] == [images, outputs];
        let positions = |axis: usize| {
            let span = (w.dims[2 + axis] - 1) * moves.dilations[axis] + 1;
            let room = x.dims[2 + axis] + 2 * moves.pads[axis] - span;
            (room >= 0).then_some(room / moves.strides[axis] + 1)
        };
        if !fits || (0..2).any(|axis| positions(axis) != Some(y.dims[2 + axis])) {
            return Err(CUDNN_STATUS_BAD_PARAM);
        }
        if [x.data_type, w.data_type, y.data_type, moves.compute_type].iter().any(|&of| of != F32) {
            return Err(CUDNN_STATUS_NOT_SUPPORTED);
        }
        Ok(Self { direction, x: x.dims, w: w.dims, y: y.dims, moves: *moves, groups, math: convolution.math })
    }

    /// What algorithms are chosen for.
    pub fn fingerprint(&self) -> u64 {
        let mut hash = DefaultHasher::new();
        self.hash(&mut hash);
        hash.finish()
    }

    /// Whether the kernel is 3 x 3 and moves by single steps.
    pub fn is_plain_3x3(&self) -> bool {
        self.w[2..] == [3, 3] && self.moves.strides == [1, 1] && self.moves.dilations == [1, 1]
    }

    /// Bytes of all images on the side of `x`.
    pub fn image_bytes(&self) -> usize {
        4 * self.x.iter().product::<i64>() as usize
    }

    /// Bytes of a dense tensor of all kernels.
    pub fn weight_bytes(&self) -> usize {
        4 * self.w.iter().product::<i64>() as usize
    }

    /// The convolution with no bias and no activation. `x` and `y` are those of the forward direction.
    pub fn problem(&self, [x, w, y]: [u64; 3], alpha: f32, beta: f32) -> Problem {
        let axes = |dims: [i64; 4]| [dims[2], dims[3]];
        // Without tensor cores there is no TF32, and FMA forbids it. All other kinds of mathematics use it.
        let rounds = settings().capability.0 >= 8 && self.math != FMA_MATH;
        Problem {
            x,
            w,
            y,
            z: 0,
            bias: 0,
            images: self.x[0],
            groups: self.groups,
            inputs: self.w[1],
            outputs: self.w[0] / self.groups,
            size: axes(self.x),
            kernel: axes(self.w),
            out: axes(self.y),
            pads: self.moves.pads,
            strides: self.moves.strides,
            dilations: self.moves.dilations,
            is_turned: i64::from(self.moves.mode == 0),
            rounds: i64::from(rounds),
            activates: 0,
            alpha,
            alpha2: 0.0,
            beta,
        }
    }

    /// Computes; memory that is not there is an illegal address.
    pub fn run(&self, problem: &Problem) -> Result<(), CUresult> {
        let count = |dims: &[i64; 4]| dims.iter().product::<i64>();
        let mut touched = vec![(problem.x, count(&self.x)), (problem.w, count(&self.w)), (problem.y, count(&self.y))];
        if problem.alpha2 != 0.0 {
            touched.push((problem.z, count(&self.y)));
        }
        if problem.bias != 0 {
            touched.push((problem.bias, self.w[0]));
        }
        for (address, elements) in touched {
            let found = memory::find_mapped(address as usize, 4 * elements as usize);
            found.map_err(|_| CUDA_ERROR_ILLEGAL_ADDRESS)?;
        }
        let library = library().map_err(|_| CUDA_ERROR_LAUNCH_FAILED)?;
        let compute = match self.direction {
            Direction::Forward => library.forward,
            Direction::BackwardData => library.backward,
        };
        // SAFETY: all of the memory is there.
        unsafe { compute(problem) };
        Ok(())
    }
}

type Compute = unsafe extern "C" fn(*const Problem);

struct Library {
    _shared: Shared,
    forward: Compute,
    backward: Compute,
}

/// Compiles what computes, once.
pub fn prepare() -> Result<(), cudnnStatus_t> {
    library().map(|_| ()).map_err(|error| {
        eprintln!("fake_cuda: convolution.cpp: {error}");
        CUDNN_STATUS_NOT_INITIALIZED
    })
}

fn library() -> Result<&'static Library, &'static str> {
    static LIBRARY: OnceLock<Result<Library, String>> = OnceLock::new();
    let library = LIBRARY.get_or_init(|| {
        let files = [("convolution.cpp".to_owned(), include_bytes!("convolution.cpp").to_vec())];
        let bytes = compiler::compile(&files, &[]).map_err(|failure| match failure {
            Failure::Program(log) | Failure::System(log) => log,
        })?;
        let open = Shared::open(&bytes).and_then(|it| Ok((it.function(c"forward")?, it.function(c"backward")?, it)));
        let (forward, backward, shared) = open.map_err(|code| format!("{code:?}"))?;
        // SAFETY: the type that convolution.cpp defines them with.
        let of = |function: *mut _| unsafe { std::mem::transmute::<*mut std::ffi::c_void, Compute>(function) };
        Ok(Library { forward: of(forward), backward: of(backward), _shared: shared })
    });
    library.as_ref().map_err(String::as_str)
}
