//! cuBLASLt: descriptors of products and matrices, the choice of an algorithm, and products on streams. Choosing waits
//! for the device, so captures forbid it.

use std::{ffi::c_void, sync::Arc};

use cudarc::cublaslt::sys::{
    cublasLtMatmulAlgo_t, cublasLtMatmulHeuristicResult_t,
    cublasStatus_t::{self, *},
};
use cudarc::driver::sys::CUresult::{self, CUDA_ERROR_ILLEGAL_ADDRESS};
use parking_lot::Mutex;

use crate::{
    calls::{Status, entries_of},
    capture, context,
    handles::{Handle, Kind, Table, name},
    matmul::{self, Desc, Layout, Problem},
    memory, stream,
};

/// 13.1.0.
const VERSION: usize = 130_100;
/// The first word of each algorithm that [`cublasLtMatmulAlgoGetHeuristic`] chose.
const ALGORITHM: u64 = 0x6661_6b65_616c_676f;
/// Workspace that long sums use, if they are given it.
const WORKSPACE_BYTES: u64 = 64 << 10;
const LONG_SUM: i64 = 64;

static HANDLES: Table<()> = Table::new(Kind::Blas);
static DESCS: Table<Mutex<Desc>> = Table::new(Kind::MatmulDesc);
static LAYOUTS: Table<Mutex<Layout>> = Table::new(Kind::Layout);
static PREFERENCES: Table<Mutex<Preference>> = Table::new(Kind::Preference);

#[derive(Default)]
struct Preference {
    search_mode: u32,
    workspace_bytes: u64,
    alignments: [u32; 4],
}

fn of(code: CUresult) -> cublasStatus_t {
    Status::of(code)
}

/// The memory of an attribute; `None` if there is no such attribute.
type Field<'a> = Option<&'a mut [u8]>;

impl Desc {
    fn field(&mut self, attribute: u32) -> Field<'_> {
        use bytemuck::bytes_of_mut;
        Some(match attribute {
            0 => bytes_of_mut(&mut self.compute),
            1 => bytes_of_mut(&mut self.scale),
            2 => bytes_of_mut(&mut self.pointer_mode),
            3 => bytes_of_mut(&mut self.transpose_a),
            4 => bytes_of_mut(&mut self.transpose_b),
            5 => bytes_of_mut(&mut self.transpose_c),
            7 => bytes_of_mut(&mut self.epilogue),
            8 => bytes_of_mut(&mut self.bias),
            10 => bytes_of_mut(&mut self.bias_batch_stride),
            26 => bytes_of_mut(&mut self.bias_type),
            _ => return None,
        })
    }
}

impl Layout {
    fn field(&mut self, attribute: u32) -> Field<'_> {
        use bytemuck::bytes_of_mut;
        Some(match attribute {
            0 => bytes_of_mut(&mut self.data_type),
            1 => bytes_of_mut(&mut self.order),
            2 => bytes_of_mut(&mut self.rows),
            3 => bytes_of_mut(&mut self.columns),
            4 => bytes_of_mut(&mut self.leading),
            5 => bytes_of_mut(&mut self.batches),
            6 => bytes_of_mut(&mut self.batch_stride),
            _ => return None,
        })
    }
}

impl Preference {
    fn field(&mut self, attribute: u32) -> Field<'_> {
        use bytemuck::bytes_of_mut;
        Some(match attribute {
            0 => bytes_of_mut(&mut self.search_mode),
            1 => bytes_of_mut(&mut self.workspace_bytes),
            5..=8 => bytes_of_mut(&mut self.alignments[attribute as usize - 5]),
            _ => return None,
        })
    }
}

/// Sets an attribute, whose size must match exactly.
///
/// # Safety
/// `from` has `bytes` bytes.
unsafe fn set(field: Field<'_>, from: *const c_void, bytes: usize) -> Result<(), cublasStatus_t> {
    let field = field.filter(|field| field.len() == bytes && !from.is_null()).ok_or(CUBLAS_STATUS_INVALID_VALUE)?;
    // SAFETY: guaranteed by the caller.
    unsafe { from.cast::<u8>().copy_to(field.as_mut_ptr(), bytes) };
    Ok(())
}

/// Gets an attribute. If `bytes` is 0, gets its size instead.
///
/// # Safety
/// `to` has `bytes` bytes; `written` may be null.
unsafe fn get(field: Field<'_>, to: *mut c_void, bytes: usize, written: *mut usize) -> Result<(), cublasStatus_t> {
    let field = field.ok_or(CUBLAS_STATUS_INVALID_VALUE)?;
    if bytes != 0 && bytes < field.len() || bytes == 0 && written.is_null() {
        return Err(CUBLAS_STATUS_INVALID_VALUE);
    }
    // SAFETY: guaranteed by the caller.
    unsafe {
        if bytes != 0 {
            field.as_ptr().copy_to(to.cast(), field.len());
        }
        if let Some(written) = written.as_mut() {
            *written = field.len();
        }
    }
    Ok(())
}

fn problem(desc: &Desc, layouts: [Handle; 4]) -> Result<Problem, cublasStatus_t> {
    let layout = |place: usize| Ok(*LAYOUTS.get(layouts[place]).map_err(of)?.lock());
    Problem::new(desc, &layout(0)?, &layout(1)?, &layout(2)?, &layout(3)?)
}

fn choose(problem: &Problem, desc: &Desc, workspace_bytes: u64) -> cublasLtMatmulAlgo_t {
    let needs = if problem.k >= LONG_SUM { WORKSPACE_BYTES } else { 0 };
    let needs = if needs <= workspace_bytes { needs } else { 0 };
    cublasLtMatmulAlgo_t { data: [ALGORITHM, problem.fingerprint(desc), needs, 0, 0, 0, 0, 0] }
}

/// Overwrites the workspace, so that concurrent use by another operation shows.
fn use_workspace(address: usize, bytes: usize) -> Result<(), CUresult> {
    if bytes > 0 {
        memory::find_mapped(address, bytes).map_err(|_| CUDA_ERROR_ILLEGAL_ADDRESS)?;
        // SAFETY: the range is there.
        unsafe { (address as *mut u8).write_bytes(0xff, bytes) };
    }
    Ok(())
}

/// The library's version.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn cublasLtGetVersion() -> usize {
    VERSION
}

entries_of! {
    cublasStatus_t,

    fn cublasLtCreate(handle: *mut Handle) |call| {
        context::current().map_err(|_| CUBLAS_STATUS_NOT_INITIALIZED)?;
        capture::refuse_unsafe_call().map_err(of)?;
        matmul::prepare()?;
        *handle = HANDLES.insert(());
        call.note(|| format!("-> {}", name(*handle)));
        Ok(())
    }

    fn cublasLtDestroy(handle: Handle) |call| {
        call.note(|| name(handle));
        HANDLES.remove(handle).map_err(of)?;
        Ok(())
    }

    fn cublasLtMatmulDescCreate(desc: *mut Handle, compute: u32, scale: u32) |call| {
        call.note(|| format!("compute={compute}"));
        let none = Desc {
            compute,
            scale,
            pointer_mode: 0,
            transpose_a: 0,
            transpose_b: 0,
            transpose_c: 0,
            epilogue: 1,
            bias: 0,
            bias_batch_stride: 0,
            bias_type: -1,
        };
        *desc = DESCS.insert(Mutex::new(none));
        call.note(|| format!("-> {}", name(*desc)));
        Ok(())
    }

    fn cublasLtMatmulDescDestroy(desc: Handle) |call| {
        call.note(|| name(desc));
        DESCS.remove(desc).map_err(of)?;
        Ok(())
    }

    fn cublasLtMatmulDescSetAttribute(desc: Handle, attribute: u32, from: *const c_void, bytes: usize) |call| {
        call.note(|| format!("{} attribute={attribute}", name(desc)));
        set(DESCS.get(desc).map_err(of)?.lock().field(attribute), from, bytes)
    }

    fn cublasLtMatmulDescGetAttribute(
        desc: Handle,
        attribute: u32,
        to: *mut c_void,
        bytes: usize,
        written: *mut usize
    ) |call| {
        call.note(|| format!("{} attribute={attribute}", name(desc)));
        get(DESCS.get(desc).map_err(of)?.lock().field(attribute), to, bytes, written)
    }

    fn cublasLtMatrixLayoutCreate(layout: *mut Handle, data_type: u32, rows: u64, columns: u64, leading: i64) |call| {
        call.note(|| format!("type={data_type} {rows}x{columns} ld={leading}"));
        let created = Layout { data_type, order: 0, rows, columns, leading, batches: 1, batch_stride: 0 };
        *layout = LAYOUTS.insert(Mutex::new(created));
        call.note(|| format!("-> {}", name(*layout)));
        Ok(())
    }

    fn cublasLtMatrixLayoutDestroy(layout: Handle) |call| {
        call.note(|| name(layout));
        LAYOUTS.remove(layout).map_err(of)?;
        Ok(())
    }

    fn cublasLtMatrixLayoutSetAttribute(layout: Handle, attribute: u32, from: *const c_void, bytes: usize) |call| {
        call.note(|| format!("{} attribute={attribute}", name(layout)));
        set(LAYOUTS.get(layout).map_err(of)?.lock().field(attribute), from, bytes)
    }

    fn cublasLtMatrixLayoutGetAttribute(
        layout: Handle,
        attribute: u32,
        to: *mut c_void,
        bytes: usize,
        written: *mut usize
    ) |call| {
        call.note(|| format!("{} attribute={attribute}", name(layout)));
        get(LAYOUTS.get(layout).map_err(of)?.lock().field(attribute), to, bytes, written)
    }

    fn cublasLtMatmulPreferenceCreate(preference: *mut Handle) |call| {
        *preference = PREFERENCES.insert(Mutex::default());
        call.note(|| format!("-> {}", name(*preference)));
        Ok(())
    }

    fn cublasLtMatmulPreferenceDestroy(preference: Handle) |call| {
        call.note(|| name(preference));
        PREFERENCES.remove(preference).map_err(of)?;
        Ok(())
    }

    fn cublasLtMatmulPreferenceSetAttribute(
        preference: Handle,
        attribute: u32,
        from: *const c_void,
        bytes: usize
    ) |call| {
        call.note(|| format!("{} attribute={attribute}", name(preference)));
        set(PREFERENCES.get(preference).map_err(of)?.lock().field(attribute), from, bytes)
    }

    fn cublasLtMatmulAlgoGetHeuristic(
        handle: Handle,
        desc: Handle,
        a: Handle,
        b: Handle,
        c: Handle,
        d: Handle,
        preference: Handle,
        wanted: i32,
        results: *mut cublasLtMatmulHeuristicResult_t,
        count: *mut i32
    ) |call| {
        call.note(|| name(desc));
        HANDLES.get(handle).map_err(of)?;
        capture::refuse_unsafe_call().map_err(of)?;
        if wanted < 1 || results.is_null() || count.is_null() {
            return Err(CUBLAS_STATUS_INVALID_VALUE);
        }
        *count = 0;
        let desc = *DESCS.get(desc).map_err(of)?.lock();
        let problem = problem(&desc, [a, b, c, d])?;
        let workspace_bytes = PREFERENCES.get(preference).map_err(of)?.lock().workspace_bytes;
        let algo = choose(&problem, &desc, workspace_bytes);
        *results = cublasLtMatmulHeuristicResult_t {
            algo,
            workspaceSize: algo.data[2] as usize,
            state: CUBLAS_STATUS_SUCCESS,
            wavesCount: 1.0,
            reserved: [0; 4],
        };
        *count = 1;
        Ok(())
    }

    fn cublasLtMatmul(
        handle: Handle,
        desc: Handle,
        alpha: *const f32,
        a: u64,
        a_layout: Handle,
        b: u64,
        b_layout: Handle,
        beta: *const f32,
        c: u64,
        c_layout: Handle,
        d: u64,
        d_layout: Handle,
        algo: *const cublasLtMatmulAlgo_t,
        workspace: usize,
        workspace_bytes: usize,
        on: Handle
    ) |call| {
        call.note(|| format!("{} {}", name(desc), name(on)));
        HANDLES.get(handle).map_err(of)?;
        let stream = stream::get(on).map_err(of)?;
        if alpha.is_null() || beta.is_null() {
            return Err(CUBLAS_STATUS_INVALID_VALUE);
        }
        let desc = *DESCS.get(desc).map_err(of)?.lock();
        let mut problem = problem(&desc, [a_layout, b_layout, c_layout, d_layout])?;
        let algo = match algo.as_ref() {
            Some(algo) => *algo,
            // Without an algorithm, the library chooses one itself.
            None => {
                capture::refuse_unsafe_call().map_err(of)?;
                choose(&problem, &desc, workspace_bytes as u64)
            }
        };
        let [magic, fingerprint, needs, ..] = algo.data;
        let is_for_this = magic == ALGORITHM && fingerprint == problem.fingerprint(&desc);
        let lacks_bias = matches!(desc.epilogue, 4 | 6 | 36) && desc.bias == 0;
        if !is_for_this || needs > workspace_bytes as u64 || lacks_bias {
            return Err(CUBLAS_STATUS_INVALID_VALUE);
        }
        (problem.alpha, problem.beta) = (*alpha, *beta);
        (problem.a.data, problem.b.data, problem.c.data, problem.d.data) = (a, b, c, d);
        call.note(|| format!("m={} n={} k={} {}", problem.m, problem.n, problem.k, memory::name(d as usize)));
        let work = move || {
            use_workspace(workspace, needs as usize)?;
            problem.run()
        };
        stream::issue(&stream, "matmul", Arc::new(work)).map_err(of)
    }
}
