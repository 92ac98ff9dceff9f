//! Convolutions, compared with a plain reference.

use cudarc::{
    cudnn::{
        result as dnn,
        sys::{
            cudnnActivationMode_t::*, cudnnConvolutionBwdDataAlgo_t::*, cudnnConvolutionFwdAlgo_t::*,
            cudnnConvolutionMode_t::*, cudnnDataType_t::*, cudnnMathType_t::*, cudnnNanPropagation_t::*,
            cudnnStatus_t::*, cudnnTensorFormat_t::CUDNN_TENSOR_NCHW,
        },
    },
    driver::sys::{CUgraphInstantiate_flags, CUresult::*, CUstreamCaptureMode},
};
use paternoster_testing::fake_control::fail_calls;

use crate::{
    convolution_rig::{Answer, Case, Convolution, ENDING, Ending, PLAIN, answer, tensor, upload},
    rig::{Rig, on_fake_cuda},
};

#[test]
fn convolutions_are_right_in_both_directions() {
    on_fake_cuda(|| {
        let rig = Rig::new();
        let stream = rig.stream();
        for case in [
            PLAIN,
            Case { x: [1, 1, 1, 1], kernels: [1, 1, 1], ..PLAIN },
            Case { x: [2, 9, 3, 4], kernels: [5, 1, 1], ..PLAIN },
            Case { x: [1, 3, 1, 30], kernels: [7, 1, 5], pads: [0, 2], ..PLAIN },
            Case { pads: [2, 1], strides: [2, 3], ..PLAIN },
            Case { x: [2, 4, 9, 8], kernels: [6, 3, 3], groups: 2, pads: [2, 3], dilations: [2, 3], ..PLAIN },
            Case { x: [1, 6, 5, 5], kernels: [6, 3, 3], groups: 6, pads: [1, 1], strides: [2, 1], ..PLAIN },
            Case { is_turned: true, pads: [1, 1], ..PLAIN },
            Case { alpha: 0.5, beta: 2.0, ..PLAIN },
            Case { math: CUDNN_DEFAULT_MATH, ..PLAIN },
        ] {
            let forward = Convolution::new(case, &stream);
            for (algo, bytes) in forward.algorithms().unwrap() {
                let other = Convolution { workspace_bytes: bytes, ..Convolution::new(case, &stream) };
                other.forward(algo).unwrap();
                stream.synchronize().unwrap();
                other.assert_right(true);
            }
            for algo in [CUDNN_CONVOLUTION_BWD_DATA_ALGO_0, CUDNN_CONVOLUTION_BWD_DATA_ALGO_1] {
                let other = Convolution::new(case, &stream);
                other.backward(algo).unwrap();
                stream.synchronize().unwrap();
                other.assert_right(false);
            }
        }
    });
}

#[test]
fn the_fused_call_adds_and_rectifies() {
    on_fake_cuda(|| {
        let rig = Rig::new();
        let stream = rig.stream();
        let identity = Ending { mode: CUDNN_ACTIVATION_IDENTITY, ..ENDING };
        let precomputed = CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM;
        for (algo, ending) in [
            (CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM, ENDING),
            (precomputed, Ending { adds: 0.0, ..ENDING }),
            (precomputed, identity),
        ] {
            let fused = Convolution::new(PLAIN, &stream);
            let (called, bias) = fused.fused(algo, ending);
            called.unwrap();
            stream.synchronize().unwrap();
            let of_image = fused.values[2].len() / PLAIN.x[0] / bias.len();
            let sums = fused.sums(true).into_iter().zip(&fused.values[2]).enumerate();
            let expected: Vec<f64> = sums
                .map(|(at, (sum, z))| {
                    let value = sum + f64::from(ending.adds * z) + f64::from(bias[at / of_image % bias.len()]);
                    if ending.mode == CUDNN_ACTIVATION_RELU { value.max(0.0) } else { value }
                })
                .collect();
            fused.assert_holds(2, &expected);
        }
        let refused = |algo, ending| Convolution::new(PLAIN, &stream).fused(algo, ending).0;
        let gemm = CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM;
        assert_eq!(
            refused(gemm, identity),
            Err(CUDNN_STATUS_NOT_SUPPORTED),
            "one algorithm goes without an activation"
        );
        assert_eq!(refused(gemm, Ending { mode: CUDNN_ACTIVATION_TANH, ..ENDING }), Err(CUDNN_STATUS_NOT_SUPPORTED));
        assert_eq!(refused(gemm, Ending { nan: CUDNN_PROPAGATE_NAN, ..ENDING }), Err(CUDNN_STATUS_NOT_SUPPORTED));
        assert_eq!(refused(gemm, Ending { bias: [1, 3, 1, 1], ..ENDING }), Err(CUDNN_STATUS_BAD_PARAM));
    });
}

#[test]
fn tf32_loses_bits_and_fma_does_not() {
    on_fake_cuda(|| {
        let rig = Rig::new();
        let stream = rig.stream();
        let one_more = 1.0 + f32::EPSILON;
        let run = |math| {
            let case = Case { x: [1, 1, 1, 1], kernels: [1, 1, 1], math, ..PLAIN };
            let mut convolution = Convolution::new(case, &stream);
            (convolution.memory[0], convolution.memory[1]) = (upload(&[one_more]), upload(&[1.0]));
            convolution.forward(CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM).unwrap();
            stream.synchronize().unwrap();
            convolution.holds(2)[0]
        };
        assert_eq!(run(CUDNN_FMA_MATH), one_more);
        assert_eq!(run(CUDNN_DEFAULT_MATH), 1.0, "the default is TF32");
    });
}

/// A call that a capture forbids.
type Call = fn(&Convolution) -> Answer;

#[test]
fn a_captured_convolution_runs_at_each_launch_and_choosing_is_done_before() {
    on_fake_cuda(|| {
        let rig = Rig::new();
        let stream = rig.stream();
        let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        let gemm = CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM;
        let convolution = Convolution::new(PLAIN, &stream);
        let first: Call = |convolution| convolution.forward(CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM);
        let choosing: Call = |convolution| convolution.algorithms().map(|_| ());
        for (call, what) in [(first, "it loads its kernels"), (choosing, "it waits for the device")] {
            stream.begin_capture(mode).unwrap();
            assert_eq!(call(&convolution), Err(CUDNN_STATUS_INTERNAL_ERROR), "{what}");
            let ended = stream.end_capture(CUgraphInstantiate_flags(0)).map(|_| ()).map_err(|error| error.0);
            assert_eq!(ended, Err(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED));
        }
        let before = Convolution::new(PLAIN, &stream);
        before.forward(gemm).unwrap();
        stream.begin_capture(mode).unwrap();
        convolution.forward(gemm).unwrap();
        let graph = stream.end_capture(CUgraphInstantiate_flags(0)).unwrap().unwrap();
        assert_eq!(convolution.holds(2), convolution.values[2], "a capture runs nothing");
        graph.launch().unwrap();
        stream.synchronize().unwrap();
        convolution.assert_right(true);
    });
}

#[test]
fn convolutions_that_do_not_fit_are_refused() {
    on_fake_cuda(|| {
        let rig = Rig::new();
        let stream = rig.stream();
        let gemm = CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM;
        let mut convolution = Convolution::new(PLAIN, &stream);
        convolution.y = tensor([2, 4, 4, 3]);
        assert_eq!(convolution.forward(gemm), Err(CUDNN_STATUS_BAD_PARAM), "y has 4 columns");
        assert_eq!(convolution.algorithms().map(|_| ()), Err(CUDNN_STATUS_BAD_PARAM));
        convolution.y = dnn::create_tensor_descriptor().unwrap();
        assert_eq!(convolution.forward(gemm), Err(CUDNN_STATUS_BAD_PARAM), "y was not described");
        let little = Convolution { workspace_bytes: 0, ..Convolution::new(PLAIN, &stream) };
        let precomputed = CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM;
        assert_eq!(little.forward(precomputed), Err(CUDNN_STATUS_BAD_PARAM), "it needs a workspace");
        let fft = Convolution::new(PLAIN, &stream).forward(CUDNN_CONVOLUTION_FWD_ALGO_FFT);
        assert_eq!(fft, Err(CUDNN_STATUS_NOT_SUPPORTED));
        fail_calls(c"cudnnConvolutionForward", 1, CUDA_ERROR_LAUNCH_FAILED);
        let failed = Convolution::new(PLAIN, &stream).forward(gemm);
        assert_eq!(failed, Err(CUDNN_STATUS_INTERNAL_ERROR), "an injected error");
    });
}

#[test]
fn descriptions_are_checked_when_they_are_set() {
    on_fake_cuda(|| {
        let _rig = Rig::new();
        let (tensor, moves) = (dnn::create_tensor_descriptor().unwrap(), dnn::create_convolution_descriptor().unwrap());
        let describe = |dims, format, of| {
            // SAFETY: it has just been made.
            answer(unsafe { dnn::set_tensor4d_descriptor(tensor, format, of, dims) })
        };
        let data = CUDNN_DATA_FLOAT;
        assert_eq!(describe([1, 0, 1, 1], CUDNN_TENSOR_NCHW, data), Err(CUDNN_STATUS_BAD_PARAM), "no channels");
        let huge = [1 << 10, 1 << 10, 1 << 10, 2];
        assert_eq!(describe(huge, CUDNN_TENSOR_NCHW, data), Err(CUDNN_STATUS_NOT_SUPPORTED), "too many elements");
        // SAFETY: as above.
        let moved = |pad, stride, dilation| unsafe {
            let mode = CUDNN_CROSS_CORRELATION;
            answer(dnn::set_convolution2d_descriptor(moves, pad, 0, 1, stride, dilation, 1, mode, data))
        };
        assert_eq!(moved(0, 1, 1), Ok(()));
        for (pad, stride, dilation) in [(-1, 1, 1), (0, 0, 1), (0, 1, 0)] {
            assert_eq!(moved(pad, stride, dilation), Err(CUDNN_STATUS_BAD_PARAM), "{pad} {stride} {dilation}");
        }
        // SAFETY: it is destroyed twice, which is what is tested.
        unsafe {
            dnn::destroy_tensor_descriptor(tensor).unwrap();
            assert_eq!(answer(dnn::destroy_tensor_descriptor(tensor)), Err(CUDNN_STATUS_BAD_PARAM));
        }
    });
}

#[test]
fn a_convolution_over_the_end_of_its_memory_ruins_the_context() {
    on_fake_cuda(|| {
        let rig = Rig::new();
        let stream = rig.stream();
        let mut convolution = Convolution::new(PLAIN, &stream);
        convolution.forward(CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM).unwrap();
        stream.synchronize().unwrap();
        convolution.memory[0] += 4;
        convolution.forward(CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM).unwrap();
        assert_eq!(stream.synchronize().map_err(|error| error.0), Err(CUDA_ERROR_ILLEGAL_ADDRESS));
    });
}
