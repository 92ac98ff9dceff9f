//! Matrix products: checks their arguments; `matmul.cpp` computes them.

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    sync::OnceLock,
};

use cudarc::{
    cublaslt::sys::cublasStatus_t::{self, *},
    driver::sys::{CUresult, CUresult::*},
};

use crate::{
    compiler::{self, Failure},
    memory,
    settings::settings,
    shared::Shared,
};

pub(crate) const F32: u32 = 0;
pub(crate) const F16: u32 = 2;
pub(crate) const BF16: u32 = 14;

/// A matrix as the program describes it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layout {
    pub data_type: u32,
    /// 0 for columns, 1 for rows.
    pub order: i32,
    pub rows: u64,
    pub columns: u64,
    pub leading: i64,
    pub batches: i32,
    pub batch_stride: i64,
}

/// A product as the program describes it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Desc {
    pub compute: u32,
    pub scale: u32,
    pub pointer_mode: u32,
    pub transpose_a: u32,
    pub transpose_b: u32,
    pub transpose_c: u32,
    pub epilogue: u32,
    pub bias: u64,
    pub bias_batch_stride: i64,
    /// -1 for the type of D.
    pub bias_type: i32,
}

/// Same as in `matmul.cpp`, with strides in elements.
#[derive(Clone, Copy, Debug, Hash)]
#[repr(C)]
pub(crate) struct Matrix {
    pub data: u64,
    data_type: i64,
    row_stride: i64,
    column_stride: i64,
    batch_stride: i64,
}

/// Same as in `matmul.cpp`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Problem {
    pub a: Matrix,
    pub b: Matrix,
    pub c: Matrix,
    pub d: Matrix,
    pub bias: Matrix,
    pub m: i64,
    pub n: i64,
    pub k: i64,
    batches: i64,
    rounding: i64,
    activation: i64,
    pub alpha: f32,
    pub beta: f32,
}

impl Layout {
    fn element_bytes(data_type: i64) -> u64 {
        if data_type == i64::from(F32) { 4 } else { 2 }
    }

    /// Returns the matrix, transposed if asked for, with its rows and columns.
    fn matrix(&self, transpose: u32) -> Result<(Matrix, i64, i64), cublasStatus_t> {
        let number = |number: u64| i64::try_from(number).ok().filter(|number| (1..1 << 31).contains(number));
        let (rows, columns) = number(self.rows).zip(number(self.columns)).ok_or(CUBLAS_STATUS_INVALID_VALUE)?;
        let (along, row_stride, column_stride) = match self.order {
            0 => (rows, 1, self.leading),
            1 => (columns, self.leading, 1),
            _ => return Err(CUBLAS_STATUS_NOT_SUPPORTED),
        };
        if self.leading < along || self.batches < 1 || self.batch_stride < 0 || transpose > 2 {
            return Err(CUBLAS_STATUS_INVALID_VALUE);
        }
        let (data_type, batch_stride) = (i64::from(self.data_type), self.batch_stride);
        let matrix = Matrix { data: 0, data_type, row_stride, column_stride, batch_stride };
        if transpose == 0 {
            return Ok((matrix, rows, columns));
        }
        Ok((Matrix { row_stride: column_stride, column_stride: row_stride, ..matrix }, columns, rows))
    }
}

impl Matrix {
    /// Checks that its memory is allocated.
    fn check(&self, rows: i64, columns: i64, batches: i64) -> Result<(), CUresult> {
        let last = [(rows, self.row_stride), (columns, self.column_stride), (batches, self.batch_stride)];
        let last = last.into_iter().try_fold(0_i64, |sum, (count, stride)| {
            (count - 1).checked_mul(stride).and_then(|more| sum.checked_add(more))
        });
        let bytes = last.and_then(|last| (last as u64 + 1).checked_mul(Layout::element_bytes(self.data_type)));
        let bytes = bytes.ok_or(CUDA_ERROR_ILLEGAL_ADDRESS)? as usize;
        memory::find_mapped(self.data as usize, bytes).map(|_| ()).map_err(|_| CUDA_ERROR_ILLEGAL_ADDRESS)
    }
}

impl Problem {
    /// Checks that cuBLASLt supports the product, and describes it.
    pub(crate) fn new(desc: &Desc, a: &Layout, b: &Layout, c: &Layout, d: &Layout) -> Result<Self, cublasStatus_t> {
        let rounding = rounding(desc, a)?;
        let of_types = (a.data_type, b.data_type, c.data_type, d.data_type);
        let supported = match of_types {
            (F32, F32, F32, F32) => true,
            (F16 | BF16, b, c, d) => b == a.data_type && c == d && (d == F32 || d == a.data_type),
            _ => false,
        };
        let newer_than_turing = settings().capability.0 >= 8;
        let needs_newer = desc.compute == COMPUTE_TF32 || a.data_type == BF16;
        if !supported || desc.scale != F32 || desc.pointer_mode != 0 || desc.transpose_c != 0 {
            return Err(CUBLAS_STATUS_NOT_SUPPORTED);
        }
        if needs_newer && !newer_than_turing {
            return Err(CUBLAS_STATUS_ARCH_MISMATCH);
        }
        let (has_bias, activation) = epilogue(desc.epilogue)?;
        let bias_type = u32::try_from(desc.bias_type).unwrap_or(d.data_type);
        if has_bias && bias_type != d.data_type && bias_type != F32 {
            return Err(CUBLAS_STATUS_NOT_SUPPORTED);
        }
        let (a_matrix, m, k) = a.matrix(desc.transpose_a)?;
        let (b_matrix, b_rows, n) = b.matrix(desc.transpose_b)?;
        let (c_matrix, c_rows, c_columns) = c.matrix(0)?;
        let (d_matrix, d_rows, d_columns) = d.matrix(0)?;
        let fits = b_rows == k && (c_rows, c_columns) == (m, n) && (d_rows, d_columns) == (m, n);
        if !fits || [a, b, c].iter().any(|layout| layout.batches != d.batches) {
            return Err(CUBLAS_STATUS_INVALID_VALUE);
        }
        Ok(Self {
            a: a_matrix,
            b: b_matrix,
            c: c_matrix,
            d: d_matrix,
            bias: Matrix {
                data: if has_bias { desc.bias } else { 0 },
                data_type: i64::from(bias_type),
                row_stride: 1,
                column_stride: 0,
                batch_stride: desc.bias_batch_stride,
            },
            m,
            n,
            k,
            batches: i64::from(d.batches),
            rounding,
            activation,
            alpha: 1.0,
            beta: 0.0,
        })
    }

    /// Returns a hash of what an algorithm is chosen for: the shapes, the types and the epilogue, not the addresses.
    pub(crate) fn fingerprint(&self, desc: &Desc) -> u64 {
        let mut hash = DefaultHasher::new();
        for matrix in [&self.a, &self.b, &self.c, &self.d] {
            Matrix { data: 0, ..*matrix }.hash(&mut hash);
        }
        (self.m, self.n, self.k, self.batches, desc.compute, desc.epilogue).hash(&mut hash);
        hash.finish()
    }

    /// Computes the product. Memory that is not allocated is an illegal address.
    pub(crate) fn run(&self) -> Result<(), CUresult> {
        self.a.check(self.m, self.k, self.batches)?;
        self.b.check(self.k, self.n, self.batches)?;
        self.d.check(self.m, self.n, self.batches)?;
        if self.beta != 0.0 {
            self.c.check(self.m, self.n, self.batches)?;
        }
        if self.bias.data != 0 {
            self.bias.check(self.m, 1, self.batches)?;
        }
        let compute = library().map_err(|_| CUDA_ERROR_LAUNCH_FAILED)?.matmul;
        // SAFETY: all of the memory was checked above.
        unsafe { compute(self) };
        Ok(())
    }
}

const COMPUTE_TF32: u32 = 77;

/// Returns how inputs are rounded, as a number of `matmul.cpp`. Only `float` inputs are rounded.
fn rounding(desc: &Desc, a: &Layout) -> Result<i64, cublasStatus_t> {
    match (desc.compute, a.data_type) {
        (68 | 69, _) => Ok(0),
        (COMPUTE_TF32, F32) => Ok(1),
        (74, F32) => Ok(2),
        (75, F32) => Ok(3),
        _ => Err(CUBLAS_STATUS_NOT_SUPPORTED),
    }
}

/// Returns whether there is a bias, and the activation as a number of `matmul.cpp`.
fn epilogue(epilogue: u32) -> Result<(bool, i64), cublasStatus_t> {
    match epilogue {
        1 => Ok((false, 0)),
        2 => Ok((false, 1)),
        4 => Ok((true, 0)),
        6 => Ok((true, 1)),
        32 => Ok((false, 2)),
        36 => Ok((true, 2)),
        _ => Err(CUBLAS_STATUS_NOT_SUPPORTED),
    }
}

struct Library {
    _shared: Shared,
    matmul: unsafe extern "C" fn(*const Problem),
}

/// Compiles `matmul.cpp`, once.
pub(crate) fn prepare() -> Result<(), cublasStatus_t> {
    library().map(|_| ()).map_err(|error| {
        eprintln!("fake_cuda: matmul.cpp: {error}");
        CUBLAS_STATUS_NOT_INITIALIZED
    })
}

fn library() -> Result<&'static Library, &'static str> {
    static LIBRARY: OnceLock<Result<Library, String>> = OnceLock::new();
    let library = LIBRARY.get_or_init(|| {
        let files = [("matmul.cpp".to_owned(), include_bytes!("matmul.cpp").to_vec())];
        let bytes = compiler::compile(&files, &[]).map_err(|failure| match failure {
            Failure::Program(log) | Failure::System(log) => log,
        })?;
        let open = Shared::open(&bytes).and_then(|shared| Ok((shared.function(c"matmul")?, shared)));
        let (matmul, shared) = open.map_err(|code| format!("{code:?}"))?;
        // SAFETY: this is the type with which matmul.cpp defines it.
        Ok(Library {
            matmul: unsafe { std::mem::transmute::<*mut _, unsafe extern "C" fn(*const Problem)>(matmul) },
            _shared: shared,
        })
    });
    library.as_ref().map_err(String::as_str)
}
