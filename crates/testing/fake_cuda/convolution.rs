//! Convolutions: checks their arguments; `convolution.cpp` computes them.

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    sync::OnceLock,
};

use cudarc::{
    cudnn::sys::cudnnStatus_t::{self, *},
    driver::sys::{CUresult, CUresult::*},
};

use half::{bf16, f16};

use crate::{
    compiler::{self, Failure},
    descriptors::{BF16, Convolution, Dense, F16, F32, Moves},
    memory,
    settings::settings,
    shared::Shared,
};

const FMA_MATH: u32 = 3;

/// The direction of a convolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Direction {
    Forward,
    BackwardData,
}

/// A convolution's parameters, without its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Shape {
    pub direction: Direction,
    x: [i64; 4],
    w: [i64; 4],
    y: [i64; 4],
    moves: Moves,
    groups: i64,
    math: u32,
    /// Type of images, filter and bias.
    pub data_type: u32,
}

/// Same as in `convolution.cpp`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Problem {
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
    /// Checks that cuDNN supports the convolution. `x` and `y` are those of the forward direction.
    pub(crate) fn new(
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
        let is_of_one_type = [w.data_type, y.data_type].iter().all(|&of| of == x.data_type);
        if !is_of_one_type || ![F32, F16, BF16].contains(&x.data_type) || moves.compute_type != F32 {
            return Err(CUDNN_STATUS_NOT_SUPPORTED);
        }
        if x.data_type == BF16 && settings().capability.0 < 8 {
            return Err(CUDNN_STATUS_NOT_SUPPORTED_ARCH_MISMATCH);
        }
        let (math, data_type) = (convolution.math, x.data_type);
        Ok(Self { direction, x: x.dims, w: w.dims, y: y.dims, moves: *moves, groups, math, data_type })
    }

    /// Returns a hash of everything that the choice of an algorithm depends on.
    pub(crate) fn fingerprint(&self) -> u64 {
        let mut hash = DefaultHasher::new();
        self.hash(&mut hash);
        hash.finish()
    }

    /// Returns whether the kernel is 3 x 3 with strides of 1.
    pub(crate) fn is_plain_3x3(&self) -> bool {
        self.w[2..] == [3, 3] && self.moves.strides == [1, 1] && self.moves.dilations == [1, 1]
    }

    fn element_bytes(&self) -> usize {
        if self.data_type == F32 { 4 } else { 2 }
    }

    /// Returns the bytes of all images of `x`.
    pub(crate) fn image_bytes(&self) -> usize {
        self.element_bytes() * self.x.iter().product::<i64>() as usize
    }

    /// Returns the bytes of all kernels, as a dense tensor.
    pub(crate) fn weight_bytes(&self) -> usize {
        self.element_bytes() * self.w.iter().product::<i64>() as usize
    }

    /// Returns the convolution without bias and activation. `x` and `y` are those of the forward direction.
    pub(crate) fn problem(&self, [x, w, y]: [u64; 3], alpha: f32, beta: f32) -> Problem {
        let axes = |dims: [i64; 4]| [dims[2], dims[3]];
        // Without tensor cores there is no TF32, and FMA math forbids it. All other math types use it.
        let rounds = self.data_type == F32 && settings().capability.0 >= 8 && self.math != FMA_MATH;
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

    /// Computes the convolution. Memory that is not allocated is an illegal address.
    pub(crate) fn run(&self, problem: &Problem) -> Result<(), CUresult> {
        let count = |dims: &[i64; 4]| dims.iter().product::<i64>();
        let mut touched = vec![(problem.x, count(&self.x)), (problem.w, count(&self.w)), (problem.y, count(&self.y))];
        if problem.alpha2 != 0.0 {
            touched.push((problem.z, count(&self.y)));
        }
        if problem.bias != 0 {
            touched.push((problem.bias, self.w[0]));
        }
        for (address, elements) in touched {
            let found = memory::find_mapped(address as usize, self.element_bytes() * elements as usize);
            found.map_err(|_| CUDA_ERROR_ILLEGAL_ADDRESS)?;
        }
        let library = library().map_err(|_| CUDA_ERROR_LAUNCH_FAILED)?;
        let compute = match self.direction {
            Direction::Forward => library.forward,
            Direction::BackwardData => library.backward,
        };
        // SAFETY: all of the memory was checked above.
        unsafe {
            match self.data_type {
                F16 => self.by_way_of_floats::<f16>(compute, problem),
                BF16 => self.by_way_of_floats::<bf16>(compute, problem),
                _ => compute(problem),
            }
        }
        Ok(())
    }

    /// Computes a convolution of 16-bit types in fp32.
    ///
    /// # Safety
    /// The problem's memory is allocated.
    unsafe fn by_way_of_floats<T: Number>(&self, compute: Compute, problem: &Problem) {
        let count = |dims: &[i64; 4]| dims.iter().product::<i64>() as usize;
        let read = |address: u64, elements: usize| -> Vec<f32> {
            if address == 0 {
                return Vec::new();
            }
            // SAFETY: guaranteed by the caller.
            let elements = unsafe { std::slice::from_raw_parts(address as *const T, elements) };
            elements.iter().map(|&element| element.to_float()).collect()
        };
        let (mut x, mut y) = (read(problem.x, count(&self.x)), read(problem.y, count(&self.y)));
        let mut w = read(problem.w, count(&self.w));
        let has_addend = problem.alpha2 != 0.0;
        let z = if has_addend { read(problem.z, count(&self.y)) } else { Vec::new() };
        let bias = read(problem.bias, self.w[0] as usize);
        let at = |numbers: &[f32]| if numbers.is_empty() { 0 } else { numbers.as_ptr() as u64 };
        let floats = Problem {
            x: x.as_mut_ptr() as u64,
            w: w.as_mut_ptr() as u64,
            y: y.as_mut_ptr() as u64,
            z: at(&z),
            bias: at(&bias),
            ..*problem
        };
        let (results, to) = match self.direction {
            Direction::Forward => (&y, problem.y),
            Direction::BackwardData => (&x, problem.x),
        };
        // SAFETY: the numbers live until it returns, and the memory of the results is allocated.
        unsafe {
            compute(&floats);
            for (place, &number) in results.iter().enumerate() {
                (to as *mut T).add(place).write(T::of_float(number));
            }
        }
    }
}

/// A type of 16 bits.
trait Number: Copy {
    fn to_float(self) -> f32;
    fn of_float(number: f32) -> Self;
}

macro_rules! numbers {
    ($($of:ty)+) => {$(
        impl Number for $of {
            fn to_float(self) -> f32 {
                self.to_f32()
            }

            fn of_float(number: f32) -> Self {
                Self::from_f32(number)
            }
        }
    )+};
}

numbers! { f16 bf16 }

type Compute = unsafe extern "C" fn(*const Problem);

struct Library {
    _shared: Shared,
    forward: Compute,
    backward: Compute,
}

/// Compiles `convolution.cpp`, once.
pub(crate) fn prepare() -> Result<(), cudnnStatus_t> {
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
        // SAFETY: this is the type with which convolution.cpp defines them.
        let of = |function: *mut _| unsafe { std::mem::transmute::<*mut std::ffi::c_void, Compute>(function) };
        Ok(Library { forward: of(forward), backward: of(backward), _shared: shared })
    });
    library.as_ref().map_err(String::as_str)
}
