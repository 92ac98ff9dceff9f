//! Loading of plans, and what is rejected then.

use std::{env, fs, os::unix::fs::symlink, path::Path};

use cudarc::driver::sys::CUresult::{CUDA_ERROR_NOT_SUPPORTED, CUDA_ERROR_OUT_OF_MEMORY};
use paternoster_device::DeviceError;
use paternoster_engine::Precision;
use paternoster_model::{DataType, TensorSpec};
use paternoster_onnx::{PortDim, build::Graph};
use paternoster_testing::{
    fake_control::{fail_calls, fail_none, traced},
    fake_cuda::{self, with_fake_cuda},
};

use crate::{
    operators::Draft,
    rig::{Case, OnCard, STREAM, card, floats},
};

/// Returns a graph with `output0` `[3]` = `x` `[200]` times a matrix.
fn product() -> Case {
    let mut draft = Draft::new();
    let x = draft.floats("x", &[200]);
    let weight = draft.numbers("weight", &[200, 3]);
    let product = draft.graph.op("MatMul", &[&x, &weight]).value();
    draft.give(&product, &[3]);
    draft.case()
}

#[test]
fn a_graph_without_a_batch_axis() {
    with_fake_cuda(&[], || {
        let mut graph = Graph::new("whole");
        let dims = |dims: &[i64]| -> Vec<PortDim> { dims.iter().map(|&length| length.into()).collect() };
        let (x, ids) =
            (graph.input("x", DataType::Fp32, &dims(&[3, 4])), graph.input("ids", DataType::Int64, &dims(&[2])));
        let rows = graph.op("Gather", &[&x, &ids]).value();
        let turned = graph.op("Transpose", &[&x]).value();
        let product = graph.op("MatMul", &[&rows, &turned]).value();
        let sum = graph.op("ReduceMean", &[&product]).attr("axes", [0]).attr("keepdims", 0).value();
        let shares = graph.op("Softmax", &[&product]).attr("axis", 0).value();
        let mut outputs = Vec::new();
        for (name, value, shape) in [("mean", &sum, &[3][..]), ("shares", &shares, &[2, 3])] {
            let named = graph.op("Identity", &[value]).named(name).value();
            graph.output(&named, DataType::Fp32, &dims(shape));
            outputs.push(TensorSpec::new(name, DataType::Fp32, shape));
        }
        let model = graph.finish().expect("the graph is sound");
        let inputs = vec![TensorSpec::new("x", DataType::Fp32, &[3, 4]), TensorSpec::new("ids", DataType::Int64, &[2])];
        Case { model, inputs, outputs, most: vec![1, 3], has_batch_axis: false }.check();
    });
}

/// Returns a graph with `output0` `[6, 8, 7]` = a convolution of `x` `[4, 8, 7]`, and `output1` `[4, 16, 14]` = a
/// transposed convolution of that.
fn convolutions() -> Case {
    let mut draft = Draft::new();
    let x = draft.floats("x", &[4, 8, 7]);
    let (forth, back) = (draft.numbers("forth", &[6, 4, 3, 3]), draft.numbers("back", &[6, 4, 2, 2]));
    let y = draft.graph.op("Conv", &[&x, &forth]).attr("pads", [1, 1, 1, 1]).value();
    draft.give(&y, &[6, 8, 7]);
    let z = draft.graph.op("ConvTranspose", &[&y, &back]).attr("strides", [2, 2]).value();
    draft.give(&z, &[4, 16, 14]);
    draft.case()
}

#[test]
fn tf32_rounds_the_factors_of_products_and_convolutions() {
    with_fake_cuda(&[], || {
        for case in [product(), convolutions()] {
            let inputs = [case.elements(0, 2, 5)];
            let answer = |precision: Precision| {
                let mut on = OnCard::with(&case, 2, precision);
                let graph = on.graph(2);
                floats(&on.run(&graph, 2, 2, &inputs)[0])
            };
            let (ieee, tf32) = (answer(Precision::Ieee), answer(Precision::Tf32));
            assert_ne!(ieee, tf32);
            let largest = ieee.iter().fold(0.0_f32, |largest, number| largest.max(number.abs()));
            let are_near = ieee.iter().zip(&tf32).all(|(one, other)| (one - other).abs() < 1e-2 * largest);
            assert!(are_near, "{ieee:?} {tf32:?}");
        }
    });
}

#[test]
fn a_convolution_that_the_library_refuses_is_an_error_and_the_card_goes_on() {
    with_fake_cuda(&[], || {
        let case = convolutions();
        let mut on = OnCard::new(&case, 4);
        let of_four = "a convolution of [4, 4, 8, 7] with 6 kernels of 3 x 3 cannot be planned: cuDNN: CUDNN_STATUS";
        for (function, what) in [
            (c"cudnnCreateTensorDescriptor", of_four),
            (c"cudnnSetConvolution2dDescriptor", of_four),
            (c"cudnnGetConvolutionForwardAlgorithm_v7", of_four),
            (c"cudnnGetConvolutionForwardWorkspaceSize", of_four),
            (c"cudnnConvolutionForward", of_four),
            (c"cudnnSetStream", of_four),
            (c"cudnnGetConvolutionBackwardDataAlgorithm_v7", "a convolution of [4, 6, 8, 7] with 4 kernels of 2 x 2"),
            (c"cudnnConvolutionBackwardData", "a convolution of [4, 6, 8, 7] with 4 kernels of 2 x 2"),
        ] {
            fail_calls(function, 1, CUDA_ERROR_OUT_OF_MEMORY);
            let refused = on.prepare(4).expect_err("it is refused").to_string();
            assert!(refused.contains(what), "{refused}");
            fail_none();
        }
        let graph = on.graph(4);
        let inputs = [case.elements(0, 3, 1)];
        assert!(floats(&on.run(&graph, 3, 4, &inputs)[1]).iter().all(|number| number.is_finite()));
    });
}

/// If an algorithm does not support a convolution, the next is tried.
#[test]
fn an_algorithm_that_is_not_supported_after_all_is_followed_by_the_next() {
    with_fake_cuda(&[], || {
        let case = convolutions();
        let mut on = OnCard::new(&case, 2);
        for function in [c"cudnnConvolutionForward", c"cudnnConvolutionBackwardData"] {
            fail_calls(function, 1, CUDA_ERROR_NOT_SUPPORTED);
            on.prepare(2).expect("another algorithm computes it");
            fail_none();
            fail_calls(function, 0, CUDA_ERROR_NOT_SUPPORTED);
            let refused = on.prepare(2).expect_err("none computes it").to_string();
            assert!(refused.contains("cuDNN: CUDNN_STATUS_NOT_SUPPORTED"), "{refused}");
            fail_none();
        }
    });
}

/// A launch makes only the calls of its capture, and sums are computed in a fixed order.
#[test]
fn transposed_convolutions_go_by_an_algorithm_that_always_gives_the_same() {
    with_fake_cuda(&[], || {
        let case = convolutions();
        let mut on = OnCard::new(&case, 2);
        let calls = traced(|| {
            on.graph(2);
        });
        let of = |name: &str| calls.lines().filter(|line| line.contains(name)).collect::<Vec<_>>();
        let backward = of("cudnnConvolutionBackwardData ");
        assert_eq!(backward.len(), 2, "it runs once before the capture: {calls}");
        assert!(backward.iter().all(|line| line.contains("algo=1")), "{backward:?}");
        let captured = calls.split("cuStreamBeginCapture").nth(1).expect("a capture");
        let captured = captured.split("cuStreamEndCapture").next().expect("its end");
        let of_cudnn: Vec<&str> = captured.lines().filter(|line| line.contains("cudnn")).collect();
        assert!(of_cudnn.iter().all(|line| line.contains("SetStream") || line.contains("cudnnConvolution")), "{calls}");
    });
}

/// Returns the loader's folders, without the libraries whose names begin with `name`.
fn folders_without(name: &str) -> (tempfile::TempDir, String) {
    let folder = tempfile::tempdir().expect("a folder");
    let command = fake_cuda::command(Path::new("none"));
    let variable = command.get_envs().find(|(variable, _)| *variable == "LD_LIBRARY_PATH");
    let folders = variable.and_then(|(_, folders)| folders).expect("the stand-in is found by it");
    let linked = env::split_paths(folders).next().expect("the stand-in's own");
    for link in fs::read_dir(linked).expect("it is there") {
        let link = link.expect("it can be read").path();
        let file = link.file_name().expect("a name").to_string_lossy().into_owned();
        if file.starts_with("lib") && !file.starts_with(name) {
            symlink(fs::canonicalize(&link).expect("it leads to the stand-in"), folder.path().join(file))
                .expect("a link");
        }
    }
    let path = folder.path().to_string_lossy().into_owned();
    (folder, path)
}

#[test]
fn without_cudnn_plans_with_convolutions_are_refused_in_one_line_and_others_run() {
    // Looking for the folders builds the stand-in.
    if fake_cuda::is_left_out() {
        return;
    }
    let (_folder, libraries) = folders_without("libcudnn");
    with_fake_cuda(&[("LD_LIBRARY_PATH", &libraries)], || {
        product().check();
        let mut cuda = card();
        let case = convolutions();
        let loaded = case.plan().load(&mut cuda).expect("its kernels and weights are there");
        let refused = loaded.reserve(&mut cuda, STREAM, 2).expect_err("there is no cuDNN");
        let reason = "cuDNN is not found (libcudnn.so.9): convolutions cannot be computed; give the folder of CUDA's \
                      libraries with --cuda-libraries";
        assert_eq!(refused, DeviceError::Driver(reason.to_owned()));
    });
}

#[test]
fn a_workspace_takes_no_more_rows_than_it_was_reserved_for() {
    with_fake_cuda(&[], || {
        let case = product();
        let mut on = OnCard::new(&case, 4);
        for rows in [0, 5] {
            let refused = on.prepare(rows).expect_err("there is no memory for them");
            let reason = format!("{rows} rows are to be run in memory for 1 to 4");
            assert_eq!(refused, DeviceError::Driver(reason));
        }
    });
}

#[test]
fn a_product_that_the_library_refuses_is_an_error_and_the_card_goes_on() {
    with_fake_cuda(&[], || {
        let case = product();
        let mut on = OnCard::new(&case, 4);
        for function in [c"cublasLtMatmulAlgoGetHeuristic", c"cublasLtMatmul", c"cublasLtMatmulDescCreate"] {
            fail_calls(function, 1, CUDA_ERROR_OUT_OF_MEMORY);
            let refused = on.prepare(4).expect_err("it is refused").to_string();
            assert!(refused.contains("cuBLASLt: CUBLAS_STATUS"), "{refused}");
            fail_none();
        }
        let graph = on.graph(4);
        let inputs = [case.elements(0, 3, 1)];
        assert!(floats(&on.run(&graph, 3, 4, &inputs)[0]).iter().all(|number| number.is_finite()));
    });
}
