//! Plans of convolutions and pooling, and of the other operators of image networks.

use paternoster_model::DataType;
use paternoster_onnx::{
    build::{Graph, Value},
    dims,
    zoo::{self, Width},
};

use super::{of_one, plan, shown};

#[test]
fn a_residual_block_is_its_convolutions() {
    let model = zoo::resnet50(Width::QUARTER).expect("sound");
    let launches = shown(&plan(&model, &[]));
    let (plain, joined) = ("convolution + relu", "convolution + sum + relu");
    // The stem and its pooling; one block whose shortcut is a convolution, and one whose shortcut is its input.
    let first = [plain, "reduce", plain, plain, "convolution", joined, plain, plain, joined];
    assert_eq!(launches[..first.len()], first, "{launches:?}");
    // The last sum is computed where it is reduced, and the last kernel copies an output that has two names.
    let last = ["convolution", "reduce", "product + bias", "kernel [1]"];
    assert_eq!(launches[launches.len() - last.len()..], last, "{launches:?}");
    assert_eq!(launches.len(), 53 + 4);
}

/// Returns the launches of a graph over `x` `[batch, 4, 6, 5]` with `outputs` channels in its result.
fn of_images(outputs: i64, build: impl FnOnce(&mut Graph, &Value) -> Value) -> Vec<String> {
    let mut graph = Graph::new("images");
    let x = graph.input("x", DataType::Fp32, &dims!["batch", 4, 6, 5]);
    let y = build(&mut graph, &x);
    graph.output(&y, DataType::Fp32, &dims!["batch", outputs, 6, 5]);
    shown(&plan(&graph.finish().expect("sound"), &[]))
}

/// Adds a constant of the numbers 1, 2, 3 and so on.
fn counted(graph: &mut Graph, name: &str, dims: &[usize]) -> Value {
    let numbers: Vec<f32> = (1..=dims.iter().product()).map(|number: usize| number as f32).collect();
    graph.constant(name, dims, &numbers)
}

#[test]
fn a_normalisation_goes_into_the_convolution_before_it() {
    let normal = |graph: &mut Graph, x: &Value| {
        let vectors = ["scale", "shift", "mean", "variance"].map(|name| counted(graph, name, &[3]));
        let [scale, shift, mean, variance] = &vectors;
        graph.op("BatchNormalization", &[x, scale, shift, mean, variance]).value()
    };
    let launches = of_images(3, |graph, x| {
        let (w, b) = (counted(graph, "w", &[3, 4, 1, 1]), counted(graph, "b", &[3]));
        let y = graph.op("Conv", &[x, &w, &b]).value();
        let y = normal(graph, &y);
        graph.op("Relu", &[&y]).value()
    });
    assert_eq!(launches, ["convolution + relu"]);
    let launches = of_images(3, |graph, x| {
        let w = counted(graph, "w", &[3, 4, 1, 1]);
        let y = graph.op("Conv", &[x, &w]).value();
        let normal = normal(graph, &y);
        let sum = graph.op("Add", &[&y, &normal]).value();
        graph.op("Relu", &[&sum]).value()
    });
    assert_eq!(launches, ["convolution", "kernel [1]"], "another node reads what the convolution gives");
}

#[test]
fn a_convolution_of_each_channel_alone_and_what_follows_are_one_kernel() {
    let launches = of_images(4, |graph, x| {
        let (w, b) = (counted(graph, "w", &[4, 1, 3, 3]), counted(graph, "b", &[4]));
        let call = graph.op("Conv", &[x, &w, &b]).attr("group", 4).attr("pads", [1, 1, 1, 1]);
        let y = call.value();
        let (low, high) = (graph.scalar(0.0_f32), graph.scalar(6.0_f32));
        let y = graph.op("Clip", &[&y, &low, &high]).value();
        graph.op("HardSwish", &[&y]).value()
    });
    assert_eq!(launches, ["kernel [1]"]);
    // The preceding bias and clip are computed again for each window.
    let block = |op: &'static str| {
        of_images(4, move |graph, x| {
            let (wide, b) = (counted(graph, "wide", &[4, 4, 1, 1]), counted(graph, "b", &[4]));
            let y = graph.op("Conv", &[x, &wide, &b]).value();
            let y = graph.op(op, &[&y]).value();
            let w = counted(graph, "w", &[4, 1, 3, 3]);
            graph.op("Conv", &[&y, &w]).attr("group", 4).attr("pads", [1, 1, 1, 1]).value()
        })
    };
    assert_eq!(block("HardSwish"), ["convolution", "kernel [1]"]);
    assert_eq!(block("Tanh"), ["convolution", "kernel [1]", "kernel [1]"], "it is computed once");
}

/// Accepting these would need more memory, time or bits than there are.
#[test]
fn windows_and_borders_that_no_memory_holds_are_refused() {
    type Build = fn(&mut Graph, &Value) -> Value;
    const LARGE: i64 = (1 << 31) - 1;
    let builds: [(&str, &str, Build); 7] = [
        ("MaxPool", "over 4294967300 entries", |graph, x| {
            let call = graph.op("MaxPool", &[x]).attr("kernel_shape", [1]).attr("pads", [LARGE, LARGE]);
            call.attr("strides", [LARGE]).value()
        }),
        ("AveragePool", "it goes over the axes [1, 4, 1999999999]", |graph, x| {
            graph.op("AveragePool", &[x]).attr("kernel_shape", [8]).attr("pads", [1_000_000_000, 1_000_000_000]).value()
        }),
        ("AveragePool", "its pads are [9223372036854775807, -1], expected 2 numbers from 0 on", |graph, x| {
            graph.op("AveragePool", &[x]).attr("kernel_shape", [8]).attr("pads", [i64::MAX, -1]).value()
        }),
        ("Conv", "it goes over the axes [1, 4, 2000000005]", |graph, x| {
            let w = counted(graph, "w", &[4, 1, 2]);
            let call = graph.op("Conv", &[x, &w]).attr("group", 4);
            call.attr("pads", [1_000_000_000, 1_000_000_000]).value()
        }),
        ("Pad", "its pads -9223372036854775808 and 9223372036854775807 do not fit an axis of 6", |graph, x| {
            let pads = graph.literal(&[0, 0, i64::MIN, 0, 0, i64::MAX]);
            graph.op("Pad", &[x, &pads]).value()
        }),
        ("Pad", "it goes over the axes [1, 2000000004, 2000000006]", |graph, x| {
            let pads = graph.literal(&[0, 2_000_000_000, 0, 0, 0, 2_000_000_000_i64]);
            graph.op("Pad", &[x, &pads]).value()
        }),
        ("Resize", "it goes over the axes [1, 4, 1200000000]", |graph, x| {
            let scales = graph.literal(&[1.0_f32, 1.0, 2e8]);
            graph.op("Resize", &[x]).skip().with(&scales).value()
        }),
    ];
    for (op, reason, build) in builds {
        let error = of_one(op, build).expect_err("it is refused").to_string();
        assert!(error.contains(&format!("{op} (node '")) && error.contains(reason), "{error}");
    }
}

#[test]
fn windows_and_borders_that_have_no_plan_are_named() {
    type Build = fn(&mut Graph, &Value) -> Value;
    let builds: [(&str, &str, Build); 10] = [
        ("MaxPool", "it outputs the indices of the maxima too", |graph, x| {
            let [y, _] = graph.op("MaxPool", &[x]).attr("kernel_shape", [2]).values();
            y
        }),
        ("MaxPool", "its strides are [0], expected 1 numbers from 1 on", |graph, x| {
            graph.op("MaxPool", &[x]).attr("kernel_shape", [2]).attr("strides", [0]).value()
        }),
        ("AveragePool", "its window of 9 is beyond an axis of 6", |graph, x| {
            graph.op("AveragePool", &[x]).attr("kernel_shape", [9]).value()
        }),
        ("AveragePool", "its auto_pad is 'SAME'", |graph, x| {
            graph.op("AveragePool", &[x]).attr("kernel_shape", [2]).attr("auto_pad", "SAME").value()
        }),
        ("Conv", "its weights are [3, 2, 1] in 1 groups, for 4 channels", |graph, x| {
            let w = counted(graph, "w", &[3, 2, 1]);
            graph.op("Conv", &[x, &w]).value()
        }),
        ("Conv", "it has 3 spatial axes and weights [1, 4, 1, 1, 1], expected 1 or 2", |graph, x| {
            let (axes, w) = (graph.literal(&[2_i64, 3]), counted(graph, "w", &[1, 4, 1, 1, 1]));
            let x = graph.op("Unsqueeze", &[x, &axes]).value();
            graph.op("Conv", &[&x, &w]).value()
        }),
        ("ConvTranspose", "its output_padding or output_shape gives 9 entries of at most 6", |graph, x| {
            let w = counted(graph, "w", &[4, 1, 1]);
            graph.op("ConvTranspose", &[x, &w]).attr("output_shape", [9]).value()
        }),
        ("Pad", "its mode is 'reflect', expected 'constant'", |graph, x| {
            let pads = graph.literal(&[0_i64, 0, 1, 0, 0, 1]);
            graph.op("Pad", &[x, &pads]).attr("mode", "reflect").value()
        }),
        ("Pad", "it mixes or moves the rows of a batch", |graph, x| {
            let pads = graph.literal(&[1_i64, 0, 0, 0, 0, 0]);
            graph.op("Pad", &[x, &pads]).value()
        }),
        ("Resize", "its mode is 'cubic', which has no lowering", |graph, x| {
            let scales = graph.literal(&[1.0_f32, 1.0, 2.0]);
            graph.op("Resize", &[x]).skip().with(&scales).attr("mode", "cubic").value()
        }),
    ];
    for (op, reason, build) in builds {
        let error = of_one(op, build).expect_err("it is refused").to_string();
        assert!(error.contains(&format!("{op} (node '")) && error.contains(reason), "{error}");
    }
}
