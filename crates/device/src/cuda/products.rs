//! Matrix products by cuBLASLt, planned before a capture and issued within it.
//!
//! cuBLASLt stores matrices by columns. A matrix stored by rows has the same memory as its transpose stored by columns,
//! so the product `d = a · b` by rows is computed as `dᵀ = bᵀ · aᵀ` by columns, without moving data. This module calls
//! the plain functions of `cudarc`: its safe layer silently computes in TF32, and asks for an algorithm at every call,
//! which a capture forbids.
#![expect(unsafe_code, reason = "cuBLASLt is a C library")]

use std::{ffi::c_void, mem::size_of, ptr, rc::Rc, sync::Arc};

use cudarc::cublaslt::{
    result::{self, CublasError},
    sys::{
        self, cublasComputeType_t, cublasLtEpilogue_t, cublasLtMatmulDescAttributes_t as DescAttribute,
        cublasLtMatmulPreferenceAttributes_t as Preference, cublasLtMatrixLayoutAttribute_t as LayoutAttribute,
        cudaDataType_t,
    },
};

use super::{
    compiler::KernelElement,
    driver::{Address, Context, Stream},
    libraries::CudaLibrary,
};
use crate::DeviceError;

/// Workspace bytes of a product: NVIDIA's recommendation for the H100, which is more than older cards need.
pub const WORKSPACE_BYTES: usize = 32 << 20;

/// Maximum alignment that is reported to the library: it gains nothing from more.
const MOST_ALIGNMENT: u64 = 256;

/// How fp32 factors are multiplied. Sums are in fp32. Factors of half types are multiplied as they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Multiplication {
    /// In IEEE single precision.
    Ieee,
    /// In TF32: factors keep 10 bits of their fractions.
    Tf32,
}

/// One of the matrices of a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operand {
    /// Address of its first element.
    pub address: Address,
    /// Elements between the starts of two rows; of two columns if it is transposed.
    pub leading: usize,
    /// Whether it is stored by columns.
    pub is_transposed: bool,
    /// Elements between two matrices of a batch; 0 if all products of the batch share one.
    pub batch_stride: usize,
}

/// `d = alpha · a · b + bias`, `batches` times. a: `[m, k]`, b: `[k, n]`, bias: `[n]`, d: `[m, n]`; `d` is by rows
/// without gaps.
#[derive(Clone, Copy, Debug)]
pub struct MatrixProduct {
    /// Rows of `a` and `d`.
    pub m: usize,
    /// Columns of `b` and `d`.
    pub n: usize,
    /// Columns of `a`, rows of `b`.
    pub k: usize,
    /// Number of products.
    pub batches: usize,
    /// The left factor.
    pub a: Operand,
    /// The right factor.
    pub b: Operand,
    /// Address of the products, which are consecutive.
    pub d: Address,
    /// Vector that is added to each row.
    pub bias: Option<Address>,
    /// Factor of each product.
    pub alpha: f32,
    /// Element type of both factors.
    pub factors: KernelElement,
    /// Element type of `bias` and `d`: that of the factors, or fp32.
    pub result: KernelElement,
    /// How elements are multiplied.
    pub multiplication: Multiplication,
    /// [`WORKSPACE_BYTES`] of memory that nothing else uses while the product is computed.
    pub workspace: Address,
}

/// cuBLASLt, opened for one context.
#[derive(Debug)]
pub(super) struct Library {
    context: Arc<Context>,
    handle: sys::cublasLtHandle_t,
}

impl Library {
    pub(super) fn open(context: &Arc<Context>) -> Result<Self, DeviceError> {
        CudaLibrary::CublasLt.check().map_err(|unusable| DeviceError::Driver(unusable.to_string()))?;
        let refused = |error: CublasError| DeviceError::Driver(format!("cuBLASLt cannot be opened: {:?}", error.0));
        Ok(Self { handle: result::create_handle().map_err(refused)?, context: Arc::clone(context) })
    }
}

impl Drop for Library {
    fn drop(&mut self) {
        if self.context.is_usable() {
            // SAFETY: this is the only handle of it.
            let _ = unsafe { result::destroy_handle(self.handle) };
        }
    }
}

/// A product's descriptor, destroyed on drop.
#[derive(Debug)]
struct Desc(sys::cublasLtMatmulDesc_t);

impl Desc {
    fn new(multiplication: Multiplication) -> Result<Self, CublasError> {
        let compute = match multiplication {
            Multiplication::Ieee => cublasComputeType_t::CUBLAS_COMPUTE_32F,
            Multiplication::Tf32 => cublasComputeType_t::CUBLAS_COMPUTE_32F_FAST_TF32,
        };
        result::create_matmul_desc(compute, cudaDataType_t::CUDA_R_32F).map(Self)
    }

    fn set<T>(&self, attribute: DescAttribute, value: T) -> Result<(), CublasError> {
        // SAFETY: it lives, and the library copies as many bytes as the value has.
        unsafe { result::set_matmul_desc_attribute(self.0, attribute, pointer(&value), size_of::<T>()) }
    }
}

impl Drop for Desc {
    fn drop(&mut self) {
        // SAFETY: this is the only handle of it, and it is host memory only.
        let _ = unsafe { result::destroy_matmul_desc(self.0) };
    }
}

/// The descriptor of a matrix by columns, destroyed on drop.
#[derive(Debug)]
struct Layout(sys::cublasLtMatrixLayout_t);

impl Layout {
    fn new(
        element: KernelElement,
        [rows, columns]: [usize; 2],
        leading: usize,
        batches: usize,
        stride: usize,
    ) -> Result<Self, CublasError> {
        let layout =
            Self(result::create_matrix_layout(data_type(element), rows as u64, columns as u64, leading as i64)?);
        layout.set(LayoutAttribute::CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, batches as i32)?;
        layout.set(LayoutAttribute::CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, stride as i64)?;
        Ok(layout)
    }

    /// Describes the transpose of a factor, as stored in memory: rows of the factor are columns here.
    fn of(
        element: KernelElement,
        operand: &Operand,
        [rows, columns]: [usize; 2],
        batches: usize,
    ) -> Result<Self, CublasError> {
        let lengths = if operand.is_transposed { [rows, columns] } else { [columns, rows] };
        Self::new(element, lengths, operand.leading, batches, operand.batch_stride)
    }

    fn set<T>(&self, attribute: LayoutAttribute, value: T) -> Result<(), CublasError> {
        // SAFETY: it lives, and the library copies as many bytes as the value has.
        unsafe { result::set_matrix_layout_attribute(self.0, attribute, pointer(&value), size_of::<T>()) }
    }
}

impl Drop for Layout {
    fn drop(&mut self) {
        // SAFETY: this is the only handle of it, and it is host memory only.
        let _ = unsafe { result::destroy_matrix_layout(self.0) };
    }
}

fn data_type(element: KernelElement) -> cudaDataType_t {
    match element {
        KernelElement::F32 => cudaDataType_t::CUDA_R_32F,
        KernelElement::F16 => cudaDataType_t::CUDA_R_16F,
        KernelElement::Bf16 => cudaDataType_t::CUDA_R_16BF,
    }
}

fn pointer<T>(value: &T) -> *const c_void {
    ptr::from_ref(value).cast()
}

/// Returns the alignment of an address, up to [`MOST_ALIGNMENT`].
fn alignment(address: Address) -> u32 {
    (1_u64 << address.to_bits().trailing_zeros().min(63)).min(MOST_ALIGNMENT) as u32
}

/// A product with its algorithm, ready for captures.
#[derive(Debug)]
pub struct Product {
    library: Rc<Library>,
    desc: Desc,
    /// Layouts of `bᵀ`, `aᵀ` and `dᵀ`.
    layouts: [Layout; 3],
    algorithm: sys::cublasLtMatmulAlgo_t,
    product: MatrixProduct,
}

/// Everything that decides which of the library's kernels compute a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Form {
    algorithm: sys::cublasLtMatmulAlgo_t,
    /// m, n, k and the batch.
    lengths: [usize; 4],
    leading: [usize; 2],
    are_transposed: [bool; 2],
    has_bias: bool,
    /// Element types of the factors and of the result.
    elements: [KernelElement; 2],
    multiplication: Multiplication,
}

impl MatrixProduct {
    /// Converts an error of the library, with everything that it was asked for.
    fn failed(&self, what: &str, error: CublasError) -> DeviceError {
        let Self { m, n, k, batches, a, b, bias, factors, result, multiplication, .. } = self;
        let operand = |operand: &Operand| {
            let order = if operand.is_transposed { "columns" } else { "rows" };
            let Operand { leading, batch_stride, .. } = operand;
            format!("by {order} of {leading}, stride {batch_stride}, aligned to {}", alignment(operand.address))
        };
        let bias = if bias.is_some() { "with" } else { "without" };
        DeviceError::Driver(format!(
            "a product of {batches} matrices [{m}, {k}] and [{k}, {n}] of {factors:?} cannot be {what}: cuBLASLt: {:?} \
             (left {}; right {}; result {result:?}, {multiplication:?}, {bias} bias)",
            error.0,
            operand(a),
            operand(b)
        ))
    }
}

impl Product {
    /// Returns the form, which is the same for products that run the same kernels.
    pub(super) fn form(&self) -> Form {
        let MatrixProduct { m, n, k, batches, a, b, bias, factors, result, multiplication, .. } = &self.product;
        Form {
            algorithm: self.algorithm,
            lengths: [*m, *n, *k, *batches],
            leading: [a.leading, b.leading],
            are_transposed: [a.is_transposed, b.is_transposed],
            has_bias: bias.is_some(),
            elements: [*factors, *result],
            multiplication: *multiplication,
        }
    }

    /// Describes a product and chooses its algorithm.
    pub(super) fn new(library: &Rc<Library>, product: &MatrixProduct) -> Result<Self, DeviceError> {
        let MatrixProduct { m, n, k, batches, factors, .. } = *product;
        let describe = || {
            let desc = Desc::new(product.multiplication)?;
            desc.set(DescAttribute::CUBLASLT_MATMUL_DESC_TRANSA, i32::from(product.b.is_transposed))?;
            desc.set(DescAttribute::CUBLASLT_MATMUL_DESC_TRANSB, i32::from(product.a.is_transposed))?;
            if let Some(bias) = product.bias {
                desc.set(DescAttribute::CUBLASLT_MATMUL_DESC_EPILOGUE, cublasLtEpilogue_t::CUBLASLT_EPILOGUE_BIAS)?;
                desc.set(DescAttribute::CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias.to_bits())?;
            }
            let layouts = [
                Layout::of(factors, &product.b, [k, n], batches)?,
                Layout::of(factors, &product.a, [m, k], batches)?,
                Layout::new(product.result, [n, m], n, batches, m * n)?,
            ];
            let algorithm = choose(library, &desc, &layouts, product)?;
            Ok(Self { library: Rc::clone(library), desc, layouts, algorithm, product: *product })
        };
        describe().map_err(|error| product.failed("planned", error))
    }

    /// Issues the product, within a capture or outside.
    pub(super) fn issue(&self, stream: &Stream) -> Result<(), DeviceError> {
        let MatrixProduct { a, b, d, alpha, workspace, .. } = &self.product;
        let (alpha, beta) = (*alpha, 0.0_f32);
        let on_card = |address: &Address| address.to_bits() as *mut c_void;
        let [b_layout, a_layout, d_layout] = &self.layouts;
        // SAFETY: the descriptors live. The caller, which compiles plans, ensures that the matrices have the described
        // sizes and live until the product is computed. `alpha` and `beta` are host memory that is read during the
        // call.
        let issued = unsafe {
            result::matmul(
                self.library.handle,
                self.desc.0,
                pointer(&alpha),
                pointer(&beta),
                on_card(&b.address),
                b_layout.0,
                on_card(&a.address),
                a_layout.0,
                on_card(d),
                d_layout.0,
                on_card(d),
                d_layout.0,
                &raw const self.algorithm,
                on_card(workspace),
                WORKSPACE_BYTES,
                stream.raw().cast(),
            )
        };
        issued.map_err(|error| self.product.failed("computed", error))
    }
}

/// Asks the library for the best algorithm, given the workspace and the alignment of each matrix.
fn choose(
    library: &Library,
    desc: &Desc,
    [b, a, d]: &[Layout; 3],
    product: &MatrixProduct,
) -> Result<sys::cublasLtMatmulAlgo_t, CublasError> {
    let preference = result::create_matmul_pref()?;
    let set = |attribute, value: *const c_void, bytes| {
        // SAFETY: it lives, and the library copies the value.
        unsafe { result::set_matmul_pref_attribute(preference, attribute, value, bytes) }
    };
    let chosen = || {
        let bytes = WORKSPACE_BYTES as u64;
        set(Preference::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, pointer(&bytes), size_of::<u64>())?;
        for (attribute, address) in [
            (Preference::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, product.b.address),
            (Preference::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, product.a.address),
            (Preference::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, product.d),
            (Preference::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, product.d),
        ] {
            set(attribute, pointer(&alignment(address)), size_of::<u32>())?;
        }
        // SAFETY: all of these live.
        let found =
            unsafe { result::get_matmul_algo_heuristic(library.handle, desc.0, b.0, a.0, d.0, d.0, preference) }?;
        found.state.result().map(|()| found.algo)
    };
    let chosen = chosen();
    // SAFETY: this is the only handle of it.
    let _ = unsafe { result::destroy_matmul_pref(preference) };
    chosen
}
