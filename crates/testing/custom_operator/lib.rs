//! A library of custom operators for ONNX Runtime, for tests only: `Twice` of the domain `test` doubles an FP32 tensor.

// Names follow the C interface.
#![allow(non_snake_case)]

use std::{
    ffi::{CStr, c_char, c_int, c_void},
    ptr, slice,
    sync::OnceLock,
};

use ort::sys::{
    ONNXTensorElementDataType, OrtApi, OrtApiBase, OrtCustomOp, OrtCustomOpInputOutputCharacteristic, OrtKernelContext,
    OrtKernelInfo, OrtMemType, OrtSessionOptions, OrtStatusPtr,
};

const DOMAIN: &CStr = c"test";

/// Adds the domain to the options of a session. ONNX Runtime calls this when it loads the library.
///
/// # Safety
/// The options and the base of ONNX Runtime's interface are valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn RegisterCustomOps(options: *mut OrtSessionOptions, base: *const OrtApiBase) -> OrtStatusPtr {
    // SAFETY: as the caller promises; the domain and the operator live as long as the process.
    unsafe {
        let api = &*((*base).GetApi)(ort::sys::ORT_API_VERSION);
        let mut domain = ptr::null_mut();
        for status in [
            (api.CreateCustomOpDomain)(DOMAIN.as_ptr(), &mut domain),
            (api.CustomOpDomain_Add)(domain, operator()),
            (api.AddCustomOpDomain)(options, domain),
        ] {
            if !status.0.is_null() {
                return status;
            }
        }
    }
    OrtStatusPtr::default()
}

fn operator() -> &'static OrtCustomOp {
    static OPERATOR: OnceLock<OrtCustomOp> = OnceLock::new();
    OPERATOR.get_or_init(|| OrtCustomOp {
        version: ort::sys::ORT_API_VERSION,
        CreateKernel: Some(create),
        GetName: Some(name),
        GetExecutionProviderType: Some(provider),
        GetInputType: Some(element),
        GetInputTypeCount: Some(one),
        GetOutputType: Some(element),
        GetOutputTypeCount: Some(one),
        KernelCompute: Some(compute),
        KernelDestroy: Some(destroy),
        GetInputCharacteristic: Some(characteristic),
        GetOutputCharacteristic: Some(characteristic),
        GetInputMemoryType: Some(memory),
        GetVariadicInputMinArity: Some(arity),
        GetVariadicInputHomogeneity: Some(arity),
        GetVariadicOutputMinArity: Some(arity),
        GetVariadicOutputHomogeneity: Some(arity),
        CreateKernelV2: None,
        KernelComputeV2: None,
        InferOutputShapeFn: None,
        GetStartVersion: None,
        GetEndVersion: None,
    })
}

/// The kernel needs nothing but the interface.
unsafe extern "system" fn create(_: *const OrtCustomOp, api: *const OrtApi, _: *const OrtKernelInfo) -> *mut c_void {
    api.cast_mut().cast()
}

unsafe extern "system" fn destroy(_: *mut c_void) {}

unsafe extern "system" fn name(_: *const OrtCustomOp) -> *const c_char {
    c"Twice".as_ptr()
}

unsafe extern "system" fn provider(_: *const OrtCustomOp) -> *const c_char {
    ptr::null()
}

unsafe extern "system" fn element(_: *const OrtCustomOp, _: usize) -> ONNXTensorElementDataType {
    ONNXTensorElementDataType::ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT
}

unsafe extern "system" fn one(_: *const OrtCustomOp) -> usize {
    1
}

unsafe extern "system" fn arity(_: *const OrtCustomOp) -> c_int {
    1
}

unsafe extern "system" fn characteristic(_: *const OrtCustomOp, _: usize) -> OrtCustomOpInputOutputCharacteristic {
    OrtCustomOpInputOutputCharacteristic::INPUT_OUTPUT_REQUIRED
}

unsafe extern "system" fn memory(_: *const OrtCustomOp, _: usize) -> OrtMemType {
    OrtMemType::OrtMemTypeDefault
}

unsafe extern "system" fn compute(api: *mut c_void, context: *mut OrtKernelContext) {
    // SAFETY: `create` returned the interface as the kernel; the context and its tensors are valid during the call.
    unsafe {
        let api = &*api.cast::<OrtApi>();
        let (mut input, mut output, mut info) = (ptr::null(), ptr::null_mut(), ptr::null_mut());
        expect((api.KernelContext_GetInput)(context, 0, &mut input));
        expect((api.GetTensorTypeAndShape)(input, &mut info));
        let (mut axes, mut count) = (0, 0);
        expect((api.GetDimensionsCount)(info, &mut axes));
        expect((api.GetTensorShapeElementCount)(info, &mut count));
        let mut dims = vec![0; axes];
        expect((api.GetDimensions)(info, dims.as_mut_ptr(), axes));
        (api.ReleaseTensorTypeAndShapeInfo)(info);
        expect((api.KernelContext_GetOutput)(context, 0, dims.as_ptr(), axes, &mut output));
        let (mut from, mut to) = (ptr::null_mut(), ptr::null_mut());
        expect((api.GetTensorMutableData)(input.cast_mut(), &mut from));
        expect((api.GetTensorMutableData)(output, &mut to));
        let from = slice::from_raw_parts(from.cast::<f32>(), count);
        let to = slice::from_raw_parts_mut(to.cast::<f32>(), count);
        to.iter_mut().zip(from).for_each(|(to, from)| *to = 2.0 * from);
    }
}

fn expect(status: OrtStatusPtr) {
    assert!(status.0.is_null(), "ONNX Runtime refuses a call");
}
