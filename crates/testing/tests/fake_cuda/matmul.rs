//! Matrix products, compared with a plain reference.

use std::{ffi::c_void, ptr};

use cudarc::{
    cublaslt::{
        result as blas,
        sys::{
            self, cublasComputeType_t, cublasComputeType_t::*, cublasLtEpilogue_t, cublasLtEpilogue_t::*,
            cublasLtMatmulAlgo_t, cublasLtMatmulDescAttributes_t::*, cublasLtMatmulPreferenceAttributes_t::*,
            cublasLtMatrixLayoutAttribute_t::*, cublasStatus_t, cublasStatus_t::*, cudaDataType_t, cudaDataType_t::*,
        },
    },
    driver::{CudaStream, result, sys::CUdeviceptr, sys::CUresult::*, sys::CUstreamCaptureMode},
};
use half::{bf16, f16};
use paternoster_testing::fake_control::fail_calls;

use crate::rig::{Rig, on_fake_cuda};

/// A product as the tests describe it. After transposition A is m x k and B is k x n.
#[derive(Clone, Copy, Debug)]
struct Case {
    m: usize,
    n: usize,
    k: usize,
    batches: usize,
    transpose_a: bool,
    transpose_b: bool,
    by_rows: bool,
    types: (cudaDataType_t, cudaDataType_t),
    compute: cublasComputeType_t,
    epilogue: cublasLtEpilogue_t,
    alpha: f32,
    beta: f32,
}

const PLAIN: Case = Case {
    m: 5,
    n: 3,
    k: 7,
    batches: 1,
    transpose_a: false,
    transpose_b: false,
    by_rows: false,
    types: (CUDA_R_32F, CUDA_R_32F),
    compute: CUBLAS_COMPUTE_32F,
    epilogue: CUBLASLT_EPILOGUE_DEFAULT,
    alpha: 1.0,
    beta: 0.0,
};

/// Rows and columns as stored, with two unused elements after each column (or row).
struct Operand {
    rows: usize,
    columns: usize,
    by_rows: bool,
    batches: usize,
}

impl Operand {
    fn leading(&self) -> usize {
        2 + if self.by_rows { self.columns } else { self.rows }
    }

    fn stride(&self) -> usize {
        self.leading() * if self.by_rows { self.rows } else { self.columns }
    }

    fn place(&self, row: usize, column: usize, batch: usize) -> usize {
        let within = if self.by_rows { row * self.leading() + column } else { column * self.leading() + row };
        batch * self.stride() + within
    }

    fn layout(&self, of: cudaDataType_t) -> sys::cublasLtMatrixLayout_t {
        let (rows, columns) = (self.rows as u64, self.columns as u64);
        let layout = blas::create_matrix_layout(of, rows, columns, self.leading() as i64).unwrap();
        let (order, batches, stride) = (i32::from(self.by_rows), self.batches as i32, self.stride() as i64);
        // SAFETY: the attributes have these types.
        unsafe {
            let set = |attribute, value: *const c_void, bytes| {
                blas::set_matrix_layout_attribute(layout, attribute, value, bytes).unwrap();
            };
            set(CUBLASLT_MATRIX_LAYOUT_ORDER, ptr::from_ref(&order).cast(), 4);
            set(CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, ptr::from_ref(&batches).cast(), 4);
            set(CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, ptr::from_ref(&stride).cast(), 8);
        }
        layout
    }
}

/// Returns a number as it is after being stored as a type.
fn stored(number: f32, of: cudaDataType_t) -> f32 {
    match of {
        CUDA_R_16F => f16::from_f32(number).to_f32(),
        CUDA_R_16BF => bf16::from_f32(number).to_f32(),
        _ => number,
    }
}

fn bytes_of(numbers: &[f32], of: cudaDataType_t) -> Vec<u8> {
    let bytes = |number: &f32| match of {
        CUDA_R_16F => f16::from_f32(*number).to_ne_bytes().to_vec(),
        CUDA_R_16BF => bf16::from_f32(*number).to_ne_bytes().to_vec(),
        _ => number.to_ne_bytes().to_vec(),
    };
    numbers.iter().flat_map(bytes).collect()
}

fn numbers_of(bytes: &[u8], of: cudaDataType_t) -> Vec<f32> {
    match of {
        CUDA_R_16F => bytes.chunks(2).map(|pair| f16::from_ne_bytes([pair[0], pair[1]]).to_f32()).collect(),
        CUDA_R_16BF => bytes.chunks(2).map(|pair| bf16::from_ne_bytes([pair[0], pair[1]]).to_f32()).collect(),
        _ => bytes.chunks(4).map(|four| f32::from_ne_bytes(four.try_into().unwrap())).collect(),
    }
}

/// Returns different numbers between -1 and 1.
fn numbers(count: usize, seed: usize) -> Vec<f32> {
    (0..count).map(|place| ((place * 37 + seed * 101) % 211) as f32 / 105.5 - 1.0).collect()
}

fn upload(numbers: &[f32], of: cudaDataType_t) -> CUdeviceptr {
    let bytes = bytes_of(numbers, of);
    // SAFETY: the memory has the size of the copy.
    unsafe {
        let memory = result::malloc_sync(bytes.len()).unwrap();
        result::memcpy_htod_sync(memory, &bytes).unwrap();
        memory
    }
}

/// A product that is ready to run.
struct Product {
    case: Case,
    handle: sys::cublasLtHandle_t,
    desc: sys::cublasLtMatmulDesc_t,
    operands: [Operand; 4],
    layouts: [sys::cublasLtMatrixLayout_t; 4],
    memory: [CUdeviceptr; 4],
    values: [Vec<f32>; 4],
    bias: Vec<f32>,
    workspace: CUdeviceptr,
}

const WORKSPACE_BYTES: usize = 64 << 10;

impl Product {
    fn new(case: Case) -> Self {
        let Case { m, n, k, batches, by_rows, types, .. } = case;
        let operand = |rows, columns, transposed: bool| {
            let (rows, columns) = if transposed { (columns, rows) } else { (rows, columns) };
            Operand { rows, columns, by_rows, batches }
        };
        let plain = |rows, columns| operand(rows, columns, false);
        let operands = [operand(m, k, case.transpose_a), operand(k, n, case.transpose_b), plain(m, n), plain(m, n)];
        let types = [types.0, types.0, types.1, types.1];
        let values = [0, 1, 2, 3].map(|place: usize| numbers(operands[place].stride() * batches, place));
        let memory = [0, 1, 2, 3].map(|place: usize| upload(&values[place], types[place]));
        let layouts = [0, 1, 2, 3].map(|place: usize| operands[place].layout(types[place]));
        let bias = numbers(m, 9);
        let bias_memory = upload(&bias, types[3]);
        let handle = blas::create_handle().unwrap();
        let desc = blas::create_matmul_desc(case.compute, CUDA_R_32F).unwrap();
        let (a, b) = (u32::from(case.transpose_a), u32::from(case.transpose_b));
        let epilogue = case.epilogue as u32;
        // SAFETY: the attributes have these types.
        let workspace = unsafe {
            let set = |attribute, value: *const c_void, bytes| {
                blas::set_matmul_desc_attribute(desc, attribute, value, bytes).unwrap();
            };
            set(CUBLASLT_MATMUL_DESC_TRANSA, ptr::from_ref(&a).cast(), 4);
            set(CUBLASLT_MATMUL_DESC_TRANSB, ptr::from_ref(&b).cast(), 4);
            set(CUBLASLT_MATMUL_DESC_EPILOGUE, ptr::from_ref(&epilogue).cast(), 4);
            set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, ptr::from_ref(&bias_memory).cast(), 8);
            result::malloc_sync(WORKSPACE_BYTES).unwrap()
        };
        Self { case, handle, desc, operands, layouts, memory, values, bias, workspace }
    }

    /// Chooses an algorithm that may use `bytes` of workspace.
    fn choose(&self, bytes: u64) -> Result<cublasLtMatmulAlgo_t, cublasStatus_t> {
        let preference = blas::create_matmul_pref().unwrap();
        let [a, b, c, d] = self.layouts;
        // SAFETY: all of these are valid.
        unsafe {
            let attribute = CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES;
            blas::set_matmul_pref_attribute(preference, attribute, ptr::from_ref(&bytes).cast(), 8).unwrap();
            let chosen = blas::get_matmul_algo_heuristic(self.handle, self.desc, a, b, c, d, preference);
            blas::destroy_matmul_pref(preference).unwrap();
            chosen.map(|chosen| chosen.algo).map_err(|error| error.0)
        }
    }

    fn issue(&self, stream: &CudaStream, algo: *const cublasLtMatmulAlgo_t) -> Result<(), cublasStatus_t> {
        let ([a, b, c, d], [al, bl, cl, dl]) = (self.memory, self.layouts);
        let (alpha, beta) = (self.case.alpha, self.case.beta);
        // SAFETY: all of these are valid, and the memory has the size of its layout.
        let result = unsafe {
            blas::matmul(
                self.handle,
                self.desc,
                ptr::from_ref(&alpha).cast(),
                ptr::from_ref(&beta).cast(),
                a as *const c_void,
                al,
                b as *const c_void,
                bl,
                c as *const c_void,
                cl,
                d as *mut c_void,
                dl,
                algo,
                self.workspace as *mut c_void,
                WORKSPACE_BYTES,
                stream.cu_stream().cast(),
            )
        };
        result.map_err(|error| error.0)
    }

    /// Returns the elements of D.
    fn result(&self) -> Vec<f32> {
        let of = self.case.types.1;
        let mut bytes = bytes_of(&self.values[3], of);
        // SAFETY: the memory has the size of the copy.
        unsafe { result::memcpy_dtoh_sync(&mut bytes, self.memory[3]) }.unwrap();
        numbers_of(&bytes, of)
    }

    /// Returns the expected elements of D. Those between its columns are unchanged.
    fn reference(&self) -> Vec<f32> {
        let Case { m, n, k, batches, types, .. } = self.case;
        let [a, b, c, d] = &self.operands;
        let mut right: Vec<f32> = self.values[3].iter().map(|number| stored(*number, types.1)).collect();
        for batch in 0..batches {
            for (i, j) in (0..m).flat_map(|i| (0..n).map(move |j| (i, j))) {
                let at = |place: usize, operand: &Operand, row, column, transposed| {
                    let (row, column) = if transposed { (column, row) } else { (row, column) };
                    let of = if place < 2 { types.0 } else { types.1 };
                    f64::from(stored(self.values[place][operand.place(row, column, batch)], of))
                };
                let sum: f64 =
                    (0..k).map(|l| at(0, a, i, l, self.case.transpose_a) * at(1, b, l, j, self.case.transpose_b)).sum();
                let scaled = f64::from(self.case.alpha) * sum + f64::from(self.case.beta) * at(2, c, i, j, false);
                let bias = f64::from(stored(self.bias[i], types.1));
                let gelu = |x: f64| {
                    0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x)).tanh())
                };
                right[d.place(i, j, batch)] = match self.case.epilogue {
                    CUBLASLT_EPILOGUE_RELU => scaled.max(0.0),
                    CUBLASLT_EPILOGUE_BIAS => scaled + bias,
                    CUBLASLT_EPILOGUE_RELU_BIAS => (scaled + bias).max(0.0),
                    CUBLASLT_EPILOGUE_GELU => gelu(scaled),
                    CUBLASLT_EPILOGUE_GELU_BIAS => gelu(scaled + bias),
                    _ => scaled,
                } as f32;
            }
        }
        right
    }

    fn assert_right(&self) {
        let case = self.case;
        let coarse = case.types != (CUDA_R_32F, CUDA_R_32F) || case.compute != CUBLAS_COMPUTE_32F;
        let tolerance = if coarse { 2e-2 } else { 1e-5 };
        for (place, (is, right)) in self.result().iter().zip(self.reference()).enumerate() {
            assert!((is - right).abs() <= tolerance * (1.0 + right.abs()), "{case:?}: {is} for {right} at {place}");
        }
    }
}

#[test]
fn products_are_right() {
    on_fake_cuda(|| {
        let rig = Rig::new();
        let stream = rig.stream();
        let mut cases = vec![
            Case { m: 1, n: 1, k: 1, ..PLAIN },
            Case { alpha: 0.5, beta: 2.0, ..PLAIN },
            Case { batches: 4, beta: 1.0, ..PLAIN },
            Case { m: 33, n: 17, k: 130, ..PLAIN },
        ];
        for (transpose_a, transpose_b, by_rows) in
            [(true, false, false), (false, true, false), (true, true, false), (false, false, true), (true, true, true)]
        {
            cases.push(Case { transpose_a, transpose_b, by_rows, batches: 2, ..PLAIN });
        }
        for epilogue in [
            CUBLASLT_EPILOGUE_RELU,
            CUBLASLT_EPILOGUE_BIAS,
            CUBLASLT_EPILOGUE_RELU_BIAS,
            CUBLASLT_EPILOGUE_GELU,
            CUBLASLT_EPILOGUE_GELU_BIAS,
        ] {
            cases.push(Case { epilogue, ..PLAIN });
        }
        for types in
            [(CUDA_R_16F, CUDA_R_16F), (CUDA_R_16F, CUDA_R_32F), (CUDA_R_16BF, CUDA_R_16BF), (CUDA_R_16BF, CUDA_R_32F)]
        {
            cases.push(Case { types, epilogue: CUBLASLT_EPILOGUE_BIAS, beta: 1.0, ..PLAIN });
        }
        for compute in [CUBLAS_COMPUTE_32F_FAST_TF32, CUBLAS_COMPUTE_32F_FAST_16F, CUBLAS_COMPUTE_32F_FAST_16BF] {
            cases.push(Case { compute, ..PLAIN });
        }
        for case in cases {
            let product = Product::new(case);
            let algo = product.choose(WORKSPACE_BYTES as u64).unwrap();
            product.issue(&stream, &algo).unwrap();
            stream.synchronize().unwrap();
            product.assert_right();
        }
    });
}

#[test]
fn tf32_loses_bits_and_ieee_does_not() {
    on_fake_cuda(|| {
        let rig = Rig::new();
        let stream = rig.stream();
        let one_more = 1.0 + f32::EPSILON;
        let run = |compute| {
            let mut product = Product::new(Case { m: 1, n: 1, k: 1, compute, ..PLAIN });
            product.memory[0] = upload(&[one_more], CUDA_R_32F);
            product.memory[1] = upload(&[1.0], CUDA_R_32F);
            product.issue(&stream, &product.choose(0).unwrap()).unwrap();
            stream.synchronize().unwrap();
            product.result()[0]
        };
        assert_eq!(run(CUBLAS_COMPUTE_32F), one_more);
        assert_eq!(run(CUBLAS_COMPUTE_32F_FAST_TF32), 1.0);
    });
}

/// A call that chooses an algorithm.
type Choosing = fn(&Product, &CudaStream) -> Result<(), cublasStatus_t>;

#[test]
fn a_captured_product_runs_at_each_launch_and_choosing_is_done_before() {
    on_fake_cuda(|| {
        let rig = Rig::new();
        let stream = rig.stream();
        let product = Product::new(Case { k: 100, ..PLAIN });
        let algo = product.choose(WORKSPACE_BYTES as u64).unwrap();
        let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        let no_flags = cudarc::driver::sys::CUgraphInstantiate_flags(0);
        stream.begin_capture(mode).unwrap();
        product.issue(&stream, &algo).unwrap();
        let graph = stream.end_capture(no_flags).unwrap().unwrap();
        let untouched: Vec<f32> = product.result();
        assert_eq!(untouched, product.values[3], "a capture runs nothing");
        graph.launch().unwrap();
        stream.synchronize().unwrap();
        product.assert_right();

        let choosing: [Choosing; 2] =
            [|product, _| product.choose(0).map(|_| ()), |product, stream| product.issue(stream, ptr::null())];
        for choose in choosing {
            stream.begin_capture(mode).unwrap();
            assert_eq!(choose(&product, &stream), Err(CUBLAS_STATUS_INTERNAL_ERROR));
            let ended = stream.end_capture(no_flags).map(|_| ()).map_err(|error| error.0);
            assert_eq!(ended, Err(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED));
        }
        product.issue(&stream, ptr::null()).unwrap();
        stream.synchronize().unwrap();
        product.assert_right();
    });
}

#[test]
fn products_that_do_not_fit_are_refused() {
    on_fake_cuda(|| {
        let rig = Rig::new();
        let stream = rig.stream();
        let mut product = Product::new(PLAIN);
        let algo = product.choose(0).unwrap();
        product.layouts[1] = Operand { rows: 8, columns: 3, by_rows: false, batches: 1 }.layout(CUDA_R_32F);
        assert_eq!(product.choose(0).map(|_| ()), Err(CUBLAS_STATUS_INVALID_VALUE), "A has 7 columns, B 8 rows");
        let other = Product::new(Case { m: 6, ..PLAIN });
        assert_eq!(other.issue(&stream, &algo), Err(CUBLAS_STATUS_INVALID_VALUE), "an algorithm for other shapes");
        let mixed = Product::new(Case { types: (CUDA_R_32F, CUDA_R_16F), ..PLAIN });
        assert_eq!(mixed.choose(0).map(|_| ()), Err(CUBLAS_STATUS_NOT_SUPPORTED));
        let epilogue = Product::new(Case { epilogue: CUBLASLT_EPILOGUE_DGELU, ..PLAIN });
        assert_eq!(epilogue.choose(0).map(|_| ()), Err(CUBLAS_STATUS_NOT_SUPPORTED));
        fail_calls(c"cublasLtMatmul", 1, CUDA_ERROR_LAUNCH_FAILED);
        assert_eq!(other.issue(&stream, ptr::null()), Err(CUBLAS_STATUS_INTERNAL_ERROR), "an injected error");
    });
}

#[test]
fn a_product_over_the_end_of_its_memory_ruins_the_context() {
    on_fake_cuda(|| {
        let rig = Rig::new();
        let stream = rig.stream();
        let mut product = Product::new(PLAIN);
        product.memory[1] += 4;
        product.issue(&stream, &product.choose(0).unwrap()).unwrap();
        stream.synchronize().unwrap();
        product.memory[1] += 8;
        product.issue(&stream, &product.choose(0).unwrap()).unwrap();
        assert_eq!(stream.synchronize().map_err(|error| error.0), Err(CUDA_ERROR_ILLEGAL_ADDRESS));
    });
}
