//! NVRTC, and modules that are loaded from its results.

use cudarc::{
    driver::{CudaContext, sys::CUresult::*},
    nvrtc::{self, CompileOptions, Ptx, sys::nvrtcResult::*},
};
use paternoster_testing::fake_cuda::with_fake_cuda;

use crate::rig::{ELEMENT, Rig, compile, on_fake_cuda};

const NOTHING: &std::ffi::CStr = c"KERNEL(nothing, 32) { EACH {} }";

#[test]
fn a_program_that_does_not_compile_answers_with_the_log() {
    on_fake_cuda(|| {
        let (result, log) = compile(c"KERNEL(wrong, 32, float* x) { x = mistake; }", &[]).unwrap_err();
        assert_eq!(result, NVRTC_ERROR_COMPILATION);
        assert!(log.contains("kernels.cu:1") && log.contains("mistake"), "the log names the place: {log}");
    });
}

#[test]
fn options_are_checked() {
    on_fake_cuda(|| {
        let good =
            ["--gpu-architecture=sm_90", "-default-device", "--use_fast_math", "--ptxas-options=-v", "--std=c++17"];
        compile(NOTHING, &good).unwrap();
        for wrong in ["--no-such-option", "--gpu-architecture=sm_70", "-arch=native"] {
            let (result, log) = compile(NOTHING, &[wrong]).unwrap_err();
            assert_eq!(result, NVRTC_ERROR_INVALID_OPTION, "{wrong}");
            assert!(log.contains(wrong), "the log names the option: {log}");
        }
        let (result, log) = compile(NOTHING, &["--pre-include=device.cuh"]).unwrap_err();
        assert_eq!(result, NVRTC_ERROR_COMPILATION, "the program has no such header");
        assert!(log.contains("device.cuh"), "{log}");
        let defined = c"#if VALUE != 3\n#error missing\n#endif\nKERNEL(nothing, 32) { EACH {} }";
        compile(defined, &["-DVALUE=3"]).unwrap();
        assert!(compile(defined, &["-DVALUE=4"]).unwrap_err().1.contains("missing"));
    });
}

#[test]
fn headers_come_with_the_program() {
    on_fake_cuda(|| {
        let source = c"#include \"device.cuh\"\nKERNEL(nothing, THREE) { EACH {} }";
        let headers = [c"#define THREE 3\n".as_ptr(), c"#error this is for the device\n".as_ptr()];
        let names = [c"mine.h".as_ptr(), c"device.cuh".as_ptr()];
        let mut program = std::ptr::null_mut();
        // SAFETY: there are two headers, and all are C strings.
        unsafe {
            let create = nvrtc::sys::nvrtcCreateProgram;
            let created = create(&mut program, source.as_ptr(), std::ptr::null(), 2, headers.as_ptr(), names.as_ptr());
            assert_eq!(created, NVRTC_SUCCESS);
            let compiled =
                nvrtc::result::compile_program(program, &["--pre-include=device.cuh", "--pre-include=mine.h", ELEMENT]);
            assert_eq!(compiled, Ok(()));
            nvrtc::result::destroy_program(program).unwrap();
            assert!(nvrtc::result::get_ptx(program).is_err(), "destroyed");

            let outside = [c"../mine.h".as_ptr(), c"device.cuh".as_ptr()];
            let created =
                create(&mut program, source.as_ptr(), std::ptr::null(), 2, headers.as_ptr(), outside.as_ptr());
            assert_eq!(created, NVRTC_ERROR_INVALID_INPUT, "no file is written elsewhere");
        }
    });
}

#[test]
fn modules_load_from_cubins_and_from_ptx_alone() {
    on_fake_cuda(|| {
        let rig = Rig::new();
        let load = |ptx| rig.context.load_module(ptx).map_err(|error| error.0);
        let cubin = compile(NOTHING, &["--gpu-architecture=sm_90"]).unwrap();
        let module = load(Ptx::from_binary(cubin)).unwrap();
        assert!(module.load_function("nothing").is_ok());
        let missing = module.load_function("something").map(|_| ()).map_err(|error| error.0);
        assert_eq!(missing, Err(CUDA_ERROR_NOT_FOUND));

        let options = CompileOptions { options: vec![ELEMENT.to_owned()], ..CompileOptions::default() };
        let ptx = nvrtc::compile_ptx_with_opts(NOTHING.to_str().unwrap(), options).unwrap();
        assert!(load(ptx).unwrap().load_function("nothing").is_ok(), "the text works as well");
        assert_eq!(load(Ptx::from_binary(b"not a module\0".to_vec())).map(|_| ()), Err(CUDA_ERROR_INVALID_IMAGE));
        let real = Ptx::from_src(".version 8.0\n.target sm_90\n");
        assert_eq!(load(real).map(|_| ()), Err(CUDA_ERROR_INVALID_PTX), "PTX is not for a CPU");
    });
}

#[test]
fn modules_have_their_own_kernels() {
    on_fake_cuda(|| {
        let rig = Rig::new();
        let load = |source| {
            rig.context.load_module(Ptx::from_binary(compile(source, &["--gpu-architecture=sm_90"]).unwrap())).unwrap()
        };
        let first = load(c"KERNEL(first, 32) { EACH {} }");
        let second = load(c"KERNEL(second, 32) { EACH {} }");
        assert!(first.load_function("first").is_ok() && first.load_function("second").is_err());
        assert!(second.load_function("second").is_ok() && second.load_function("first").is_err());
        drop(first);
        drop(second);
        let third = load(c"KERNEL(third, 32) { EACH {} }");
        assert!(third.load_function("third").is_ok(), "what was unloaded is not found in its place");
        assert!(third.load_function("first").is_err());
    });
}

#[test]
fn a_cubin_is_for_one_generation() {
    with_fake_cuda(&[("FAKE_CUDA_CAPABILITY", "8.6")], || {
        let context = CudaContext::new(0).unwrap();
        let load = |architecture: &str| {
            let cubin = compile(NOTHING, &[&format!("--gpu-architecture={architecture}")]).unwrap();
            context.load_module(Ptx::from_binary(cubin)).map(|_| ()).map_err(|error| error.0)
        };
        assert_eq!(load("sm_80"), Ok(()));
        assert_eq!(load("sm_75"), Err(CUDA_ERROR_NO_BINARY_FOR_GPU), "too old a generation");
        assert_eq!(load("sm_90"), Err(CUDA_ERROR_NO_BINARY_FOR_GPU), "too new");
    });
}

#[test]
#[expect(clippy::disallowed_methods, reason = "the stand-in reads it from the environment")]
fn the_compiler_is_not_asked_twice() {
    on_fake_cuda(|| {
        let cache = tempfile::tempdir().unwrap();
        // SAFETY: no other thread reads the environment: the stand-in reads it when it is first called.
        unsafe { std::env::set_var("FAKE_CUDA_CACHE", cache.path()) };
        compile(NOTHING, &[]).unwrap();
        let made = || std::fs::read_dir(cache.path()).unwrap().map(|entry| entry.unwrap().path()).collect::<Vec<_>>();
        let [library] = &made()[..] else { panic!("one library is left, and nothing else: {:?}", made()) };
        std::fs::write(library, b"from the cache").unwrap();
        assert!(compile(NOTHING, &[]).unwrap().ends_with(b"from the cache"));
        assert!(!compile(NOTHING, &["-DOTHER"]).unwrap().ends_with(b"from the cache"), "another program");
        assert_eq!(made().len(), 2);
    });
}
