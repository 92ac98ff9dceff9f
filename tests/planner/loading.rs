//! What plans are loaded with, and what is refused then.

use cudarc::driver::sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY;
use paternoster::{
    device::DeviceError,
    engine::cuda::Precision,
    model::{DataType, TensorSpec},
    onnx::{PortDim, build::Graph},
};

use crate::{
    fake_control::{fail_calls, fail_none},
    fake_cuda::with_fake_cuda,
    operators::Draft,
    rig::{Case, OnCard, floats},
};

/// `output0` `[3]` = `x` `[200]` times a matrix.
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

#[test]
fn tf32_rounds_the_factors_of_products() {
    with_fake_cuda(&[], || {
        let case = product();
        let inputs = [case.elements(0, 2, 5)];
        let answer = |precision: Precision| {
            let mut on = OnCard::with(&case, 2, precision);
            let graph = on.graph(2);
            floats(&on.run(&graph, 2, 2, &inputs)[0])
        };
        let (ieee, tf32) = (answer(Precision::Ieee), answer(Precision::Tf32));
        assert_ne!(ieee, tf32);
        let largest = ieee.iter().fold(0.0_f32, |largest, number| largest.max(number.abs()));
        assert!(ieee.iter().zip(&tf32).all(|(one, other)| (one - other).abs() < 1e-2 * largest), "{ieee:?} {tf32:?}");
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
