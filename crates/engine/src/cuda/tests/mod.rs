//! Plans of small graphs: their launches, and what is rejected.

mod attention;
mod images;

use paternoster_model::{DataType, TensorSpec};
use paternoster_onnx::{
    ExternalFiles, Model, PortDim, SealedModel, Signature,
    build::{Graph, Value},
    dims,
    pb::{StringStringEntryProto, tensor_proto::DataLocation},
    zoo::{self, Width, cells},
};

use super::{
    Plan, PlanError,
    fuse::Step,
    ir::{Holder, Rectified, RowKernel},
};
use crate::Precision;

/// Plans a model with these lengths of its varying axes.
fn plan(model: &Model, lengths: &[(&str, i64)]) -> Plan {
    let signature = Signature::from_bytes("model", &model.to_bytes()).expect("it can be read");
    let specs = |ports: &[paternoster_onnx::Port]| -> Vec<TensorSpec> {
        let spec = |port: &paternoster_onnx::Port| {
            let length = |dim: &PortDim| match dim {
                PortDim::Fixed(length) => *length,
                PortDim::Symbol(name) => lengths.iter().find(|(known, _)| known == name).expect("a length").1,
                PortDim::Unknown => panic!("{port:?}"),
            };
            let dims: Vec<i64> = port.dims.as_deref().unwrap_or_default()[1..].iter().map(length).collect();
            TensorSpec::new(port.name.clone(), port.datatype.expect("a datatype"), &dims)
        };
        ports.iter().map(spec).collect()
    };
    Plan::new(model, &specs(&signature.inputs), &specs(&signature.outputs), true, Precision::Ieee)
        .expect("it has a plan")
}

/// Describes a plan's launches: the number of stores of each section, or the kind of launch.
fn shown(plan: &Plan) -> Vec<String> {
    let step = |step: &Step| match step {
        Step::Kernel(kernel) => {
            let stores: Vec<usize> = kernel.sections.iter().map(|section| section.stores.len()).collect();
            format!("kernel {stores:?}")
        }
        Step::Product(product) => format!("product{}", if product.bias.is_some() { " + bias" } else { "" }),
        Step::Convolution(convolution) => match convolution.rectified {
            None => "convolution".to_owned(),
            Some(Rectified { addend: None, .. }) => "convolution + relu".to_owned(),
            Some(Rectified { addend: Some(_), .. }) => "convolution + sum + relu".to_owned(),
        },
        Step::Rowwise(rowwise) => match rowwise.kernel {
            RowKernel::Softmax => "softmax".to_owned(),
            RowKernel::LayerNorm { residual: Some(_), .. } => "sum + layer_norm".to_owned(),
            RowKernel::LayerNorm { residual: None, .. } => "layer_norm".to_owned(),
            RowKernel::ArgMax { .. } => "argmax".to_owned(),
        },
        Step::Attention(_) => "attention".to_owned(),
        Step::Reduce(_) => "reduce".to_owned(),
    };
    plan.0.steps.iter().map(step).collect()
}

#[test]
fn an_lstm_step_is_a_lookup_beside_its_state_a_product_and_one_kernel() {
    let model = cells::lstm::step(Width::QUARTER).expect("sound");
    // The token's vector and h are stored side by side; then c and h are computed in one kernel.
    let step = plan(&model, &[]);
    assert_eq!(shown(&step), ["kernel [2]", "product + bias", "kernel [2]"]);
    assert!(!step.0.program.has_head, "the lookup writes the row's fault itself");
    let model = cells::lstm::projected_step(Width::QUARTER).expect("sound");
    assert_eq!(shown(&plan(&model, &[])), ["product", "kernel [2]"]);
}

#[test]
fn a_decoder_step_gives_its_state_once() {
    let model = cells::seq2seq::decoder(Width::QUARTER).expect("sound");
    let launches = ["kernel [2]", "product + bias", "kernel [2]", "product + bias", "argmax"];
    assert_eq!(shown(&plan(&model, &[])), launches);
}

#[test]
fn cells_of_trees_and_gru_steps() {
    let leaf = cells::tree_lstm::leaf(Width::QUARTER).expect("sound");
    assert_eq!(shown(&plan(&leaf, &[])), ["kernel [1]", "product + bias", "kernel [2]"]);
    let node = cells::tree_lstm::node(Width::QUARTER).expect("sound");
    assert_eq!(shown(&plan(&node, &[])), ["kernel [2]", "product + bias", "kernel [2]"]);
    let gru = cells::deepspeech2::forward(Width::QUARTER).expect("sound");
    // The first kernel stores x beside the state, and beside the state after the reset gate.
    let launches = ["kernel [2, 1]", "product + bias", "kernel [1]", "product + bias", "kernel [1]"];
    assert_eq!(shown(&plan(&gru, &[])), launches);
}

#[test]
fn nodes_without_operands_are_refused() {
    let ops = ["Relu", "Add", "Less", "Gelu", "ReduceSum", "GlobalAveragePool", "BatchNormalization", "Conv", "Resize"];
    for op in ops {
        let error = of_one(op, |graph, x| {
            let y = graph.op(op, &[]).value();
            graph.op("Add", &[x, &y]).value()
        });
        let error = error.expect_err("it computes nothing").to_string();
        assert!(error.contains(&format!("{op} (node '{op}")) && error.contains("it has no operand"), "{error}");
    }
}

#[test]
fn layers_that_do_the_same_share_their_kernels() {
    let model = zoo::bert_base(Width::part(12)).expect("sound");
    let plan = plan(&model, &[("tokens", 6)]);
    let kernels = plan.0.program.kernels.iter().flatten().count();
    let written = plan.0.program.text.matches("KERNEL(").count();
    assert!(written * 4 < kernels, "{written} kernels in the source for {kernels} launches");
}

#[test]
fn heads_are_put_in_order_by_the_kernel_that_adds_biases() {
    let model = cells::transformer::encoder(Width::QUARTER).expect("sound");
    let launches = shown(&plan(&model, &[("source", 6)]));
    // The first such kernel also stores the mask. Results are put in order by the attention itself.
    let layer = ["product", "product", "product", "kernel [3, 1]", "attention", "product + bias", "sum + layer_norm"];
    assert_eq!(launches[1..=layer.len()], layer, "{launches:?}");
}

/// Plans a graph of one node over `x` `[batch, 4, 6]`.
fn of_one(op: &str, build: impl FnOnce(&mut Graph, &Value) -> Value) -> Result<Plan, PlanError> {
    let mut graph = Graph::new(op);
    let x = graph.input("x", DataType::Fp32, &dims!["batch", 4, 6]);
    let y = build(&mut graph, &x);
    let y = graph.op("Identity", &[&y]).named("y").value();
    graph.output(&y, DataType::Fp32, &dims!["batch", 4, 6]);
    let model = graph.finish().expect("sound");
    let (x, y) = (TensorSpec::new("x", DataType::Fp32, &[4, 6]), TensorSpec::new("y", DataType::Fp32, &[4, 6]));
    Plan::new(&model, &[x], &[y], true, Precision::Ieee)
}

#[test]
fn all_operators_without_a_lowering_are_named() {
    let refused = of_one("several", |graph, x| {
        let one = graph.op("Einsum", &[x]).named("first").value();
        let two = graph.op("Relu", &[&one]).value();
        let three = graph.op("Einsum", &[&two, x]).named("second").value();
        let turned = graph.op("Transpose", &[x]).named("third").attr("perm", [1, 0, 2]).value();
        graph.op("Add", &[&three, &turned]).value()
    });
    let error = refused.expect_err("three nodes have none").to_string();
    assert_eq!(
        error,
        "operators without a plan: Einsum (node 'first'), Einsum (node 'second'), Transpose (node 'third': it mixes or \
         moves the rows of a batch)"
    );
}

#[test]
fn nodes_that_nothing_needs_are_left_out() {
    let planned = of_one("unused", |graph, x| {
        graph.op("Einsum", &[x]).value();
        graph.op("Relu", &[x]).value()
    });
    assert_eq!(shown(&planned.expect("the other node has a plan")), ["kernel [1]"]);
}

#[test]
fn what_mixes_the_rows_of_a_batch_is_refused() {
    type Build = fn(&mut Graph, &Value) -> Value;
    let builds: [(&str, Build); 6] = [
        ("ReduceSum", |graph, x| {
            let first = graph.literal(&[0_i64]);
            graph.op("ReduceSum", &[x, &first]).value()
        }),
        ("Softmax", |graph, x| graph.op("Softmax", &[x]).attr("axis", 0).value()),
        ("Concat", |graph, x| graph.op("Concat", &[x, x]).attr("axis", 0).value()),
        ("Slice", |graph, x| {
            let (zero, one) = (graph.literal(&[0_i64]), graph.literal(&[1_i64]));
            graph.op("Slice", &[x, &zero, &one, &zero]).value()
        }),
        ("Reshape", |graph, x| {
            let shape = graph.literal(&[4_i64, -1, 6]);
            graph.op("Reshape", &[x, &shape]).value()
        }),
        ("Gather", |graph, x| {
            let first = graph.scalar(0_i64);
            graph.op("Gather", &[x, &first]).value()
        }),
    ];
    for (op, build) in builds {
        let error = of_one(op, build).expect_err("it reads across rows").to_string();
        assert!(error.starts_with(&format!("operators without a plan: {op} (node '{op}")), "{error}");
        assert!(error.contains("batch"), "{error}");
    }
}

/// A kernel that treated them as numbers would read out of bounds.
#[test]
fn elements_of_another_type_than_a_kernel_has_are_refused() {
    type Build = fn(&mut Graph, &Value) -> Value;
    let builds: [(&str, &str, Build); 6] = [
        ("Gemm", "its operands are of [F32, I64]", |graph, _| {
            let ones = graph.constant("ones", &[1, 1], &[1.0_f32]);
            let bias = graph.constant("bias", &[1], &[1_i64]);
            graph.op("Gemm", &[&ones, &ones, &bias]).value()
        }),
        ("Softmax", "it has elements of Bool", |graph, truth| graph.op("Softmax", &[truth]).value()),
        ("ArgMax", "it has elements of Bool", |graph, truth| graph.op("ArgMax", &[truth]).attr("axis", 1).value()),
        ("LayerNormalization", "it has elements of Bool", |graph, truth| {
            let scale = graph.constant("scale", &[6], &[1.0_f32; 6]);
            graph.op("LayerNormalization", &[truth, &scale]).value()
        }),
        ("MatMul", "it multiplies Bool", |graph, truth| {
            let weight = graph.constant("weight", &[6, 6], &[1.0_f32; 36]);
            graph.op("MatMul", &[truth, &weight]).value()
        }),
        ("Pow", "it raises integers to a power that may not be an integer", |graph, truth| {
            let (whole, half) = (graph.op("Cast", &[truth]).attr("to", 7).value(), graph.scalar(0.5_f32));
            graph.op("Pow", &[&whole, &half]).value()
        }),
    ];
    for (op, reason, build) in builds {
        let refused = of_one(op, |graph, x| {
            let truth = graph.op("Cast", &[x]).attr("to", 9).value();
            build(graph, &truth)
        });
        let error = refused.expect_err("the kernels have no such elements").to_string();
        assert_eq!(error, format!("operators without a plan: {op} (node '{op}': {reason})"));
    }
}

#[test]
fn tensors_that_cannot_be_had_are_refused_by_name() {
    let mut graph = Graph::new("ports");
    let x = graph.input("x", DataType::Fp32, &dims!["batch", "n"]);
    let y = graph.op("Relu", &[&x]).named("y").value();
    graph.output(&y, DataType::Fp32, &dims!["batch", "n"]);
    let model = graph.finish().expect("sound");
    let spec = |name: &str, datatype: DataType, dims: &[i64]| TensorSpec::new(name, datatype, dims);
    let refused = |inputs: &[TensorSpec], output: TensorSpec| {
        Plan::new(&model, inputs, &[output], true, Precision::Ieee).expect_err("it is refused").to_string()
    };
    let x = |datatype: DataType, length: i64| [spec("x", datatype, &[length])];
    let y = |length: i64| spec("y", DataType::Fp32, &[length]);
    let x_is_f32 = x(DataType::Fp32, 3);
    assert_eq!(
        refused(&x(DataType::Fp32, -1), y(-1)),
        "input 'x' has the dims [-1], expected lengths that do not vary"
    );
    assert_eq!(refused(&x(DataType::Fp16, 3), y(-1)), "input 'x' is FP16, expected FP32, INT64, INT32 or BOOL");
    assert_eq!(refused(&x(DataType::Int64, 3), y(-1)), "input 'x' is FLOAT in the graph, expected INT64");
    assert_eq!(refused(&[], y(-1)), "the graph needs an input 'x', which is not given");
    assert_eq!(refused(&x_is_f32, y(4)), "output 'y' has the dims [3] a row, expected [4]");
    assert_eq!(refused(&x_is_f32, spec("z", DataType::Fp32, &[3])), "'z' is not an output of the graph");
    let planned = Plan::new(&model, &x_is_f32, &[y(-1)], true, Precision::Ieee).expect("it has a plan");
    assert_eq!(planned.outputs()[0].dims.as_slice(), [3], "a length that was open is known");
}

#[test]
fn an_output_that_no_row_changes_is_refused() {
    let refused = of_one("constant", |graph, _| graph.constant("fixed", &[1, 4, 6], &[1.0_f32; 24]));
    assert_eq!(
        refused.expect_err("it is one for all").to_string(),
        "output 'y' does not depend on the rows of a batch"
    );
}

#[test]
fn tensors_that_no_memory_holds_are_refused_before_they_are_counted() {
    let huge = 1_i64 << 40;
    let expanded = of_one("Expand", |graph, x| {
        let shape = graph.literal(&[huge, huge, huge, 1, 4, 6]);
        let scalar = graph.scalar(1.0_f32);
        let wide = graph.op("Expand", &[&scalar, &shape]).value();
        graph.op("Add", &[&wide, x]).value()
    });
    let error = expanded.expect_err("it has 2^120 elements").to_string();
    assert!(error.contains("expected fewer than 2147483648 elements"), "{error}");
    let reshaped = of_one("Reshape", |graph, x| {
        let shape = graph.literal(&[-1, huge, huge, huge]);
        graph.op("Reshape", &[x, &shape]).value()
    });
    let error = reshaped.expect_err("it does not fill that").to_string();
    assert!(error.contains("24 elements a row do not fill the shape"), "{error}");
    let sliced = of_one("Slice", |graph, x| {
        let (first, last) = (graph.literal(&[0_i64]), graph.literal(&[i64::MAX]));
        let one = graph.literal(&[1_i64]);
        let first = graph.op("Slice", &[x, &first, &last, &one, &last]).value();
        graph.op("Add", &[x, &first]).value()
    });
    assert_eq!(shown(&sliced.expect("a step beyond the end leaves one entry")), ["kernel [1]"]);
    let input = [TensorSpec::new("x", DataType::Fp32, &[huge, huge])];
    let mut graph = Graph::new("input");
    let x = graph.input("x", DataType::Fp32, &dims!["batch", "n", "m"]);
    graph.output(&x, DataType::Fp32, &dims!["batch", "n", "m"]);
    let model = graph.finish().expect("sound");
    let error = Plan::new(&model, &input, &input, true, Precision::Ieee).expect_err("it is too large");
    assert!(error.to_string().starts_with("input 'x' has the dims [1099511627776, 1099511627776], expected fewer"));
}

#[test]
fn a_plan_may_be_made_by_any_thread() {
    fn is_shared<T: Send + Sync>() {}
    is_shared::<Plan>();
}

/// Returns a graph that multiplies by a table of 256 columns in another file: its directory, the graph, and the table's
/// bytes.
fn with_a_table_apart() -> (tempfile::TempDir, SealedModel, Vec<u8>) {
    const COLUMNS: usize = 256;
    let mut graph = Graph::new("apart");
    let x = graph.input("x", DataType::Fp32, &dims!["batch", 256]);
    let table: Vec<f32> = (0..COLUMNS * COLUMNS).map(|place| place as f32).collect();
    let w = graph.constant("w", &[COLUMNS, COLUMNS], &table);
    let y = graph.op("MatMul", &[&x, &w]).named("y").value();
    graph.output(&y, DataType::Fp32, &dims!["batch", 256]);
    let mut model = graph.finish().expect("sound");
    let weight = &mut model.0.graph.as_mut().expect("a graph").initializer[0];
    let data = weight.raw_data.take().expect("its elements").to_vec();
    weight.data_location = Some(DataLocation::External.into());
    let entry = StringStringEntryProto { key: Some("location".to_owned()), value: Some("w.bin".to_owned()) };
    weight.external_data = vec![entry];
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("w.bin"), &data).expect("a file");
    let files = ExternalFiles::beside(&folder.path().join("model.onnx"));
    let sealed = SealedModel::new("apart", model.to_bytes(), &files).expect("it is sound");
    (folder, sealed, data)
}

#[test]
fn weights_in_files_of_their_own_are_read_once_for_all_plans() {
    let (_folder, sealed, data) = with_a_table_apart();
    let [x, y] = ["x", "y"].map(|name| TensorSpec::new(name, DataType::Fp32, &[256]));
    let planned = || {
        let plan = Plan::new(&sealed, std::slice::from_ref(&x), std::slice::from_ref(&y), true, Precision::Ieee);
        plan.expect("it has a plan")
    };
    let table = |plan: &Plan| {
        let constants = plan.0.work.buffers.iter().filter_map(|buffer| match &buffer.holder {
            Holder::Constant(data) => Some(data.clone()),
            _ => None,
        });
        constants.max_by_key(bytes::Bytes::len).expect("there is the table")
    };
    let (one, other) = (table(&planned()), table(&planned()));
    assert_eq!(one, data);
    assert_eq!(one.as_ptr(), other.as_ptr(), "no second copy");
    let refused = Plan::new(sealed.model(), &[x], &[y], true, Precision::Ieee).expect_err("the file is not given");
    assert!(refused.to_string().ends_with("its data lie outside of the file"), "{refused}");
}

#[test]
fn a_file_of_weights_that_became_shorter_is_named() {
    let (folder, sealed, _) = with_a_table_apart();
    std::fs::write(folder.path().join("w.bin"), []).expect("a file");
    let [x, y] = ["x", "y"].map(|name| TensorSpec::new(name, DataType::Fp32, &[256]));
    let refused = Plan::new(&sealed, &[x], &[y], true, Precision::Ieee).expect_err("it cannot be read").to_string();
    assert!(refused.contains("cannot read 'w.bin'"), "{refused}");
}
