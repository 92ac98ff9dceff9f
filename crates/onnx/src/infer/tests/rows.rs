use super::*;

fn rows(build: impl FnOnce(&mut Graph, &Value, &Value) -> Value) -> RowDependence {
    known(build).rows
}

#[test]
fn a_transposition_moves_the_batch_there_and_back() {
    let moved = |times: usize| {
        rows(|graph, _, states| {
            (0..times).fold(states.clone(), |x, _| graph.op("Transpose", &[&x]).attr("perm", [1, 0, 2]).value())
        })
    };
    assert_eq!(moved(1), RowDependence::Moved { axis: 1 });
    assert_eq!(moved(2), RowDependence::PerRow);
}

#[test]
fn a_reshape_groups_the_rows_and_parts_them_again() {
    let merged = |graph: &mut Graph, states: &Value| {
        let flat = graph.literal(&[-1_i64, 384]);
        let flat = graph.op("Reshape", &[states, &flat]).value();
        let weight = graph.constant("weight", &[384, 8], &[0.0_f32; 3072]);
        graph.op("MatMul", &[&flat, &weight]).value()
    };
    assert_eq!(rows(|graph, _, states| merged(graph, states)), RowDependence::Grouped { axis: 0 });
    let parted = known(|graph, ids, states| {
        let flat = merged(graph, states);
        let shape = graph.op("Shape", &[ids]).value();
        let eight = graph.literal(&[8_i64]);
        let target = graph.op("Concat", &[&shape, &eight]).attr("axis", 0).value();
        graph.op("Reshape", &[&flat, &target]).value()
    });
    assert_eq!(parted, by_rows(DataType::Fp32, &dims!["batch", "tokens", 8]));
}

#[test]
fn a_reshape_that_swaps_lengths_mixes_rows() {
    let info = known(|graph, ids, _| {
        let shape = graph.op("Shape", &[ids]).value();
        let swapped = graph.literal(&[1_i64, 0]);
        let target = graph.op("Gather", &[&shape, &swapped]).value();
        graph.op("Reshape", &[ids, &target]).value()
    });
    assert_eq!(info.dims, Some(dims!["tokens", "batch"].into()));
    assert_eq!(cause(&info), "regroups rows in a way that cannot be followed");
}

#[test]
fn operations_along_the_batch_mix_rows_and_along_other_axes_do_not() {
    type Make = fn(&mut Graph, &Value, i64) -> Value;
    let cases: [(&str, Make); 11] = [
        ("normalises over the batch", |graph, x, axis| graph.op("Softmax", &[x]).attr("axis", axis).value()),
        ("normalises over the batch", |graph, x, axis| graph.op("LpNormalization", &[x]).attr("axis", axis).value()),
        ("reduces over the batch", |graph, x, axis| graph.op("ReduceMean", &[x]).attr("axes", [axis]).value()),
        ("reduces over the batch", |graph, x, axis| graph.op("ArgMax", &[x]).attr("axis", axis).value()),
        ("joins tensors along the batch", |graph, x, axis| graph.op("Concat", &[x, x]).attr("axis", axis).value()),
        ("orders along the batch", |graph, x, axis| {
            let count = graph.literal(&[1_i64]);
            let [values, _indices] = graph.op("TopK", &[x, &count]).attr("axis", axis).values();
            values
        }),
        ("sums along the batch", |graph, x, axis| {
            let axis = graph.scalar(axis);
            graph.op("CumSum", &[x, &axis]).value()
        }),
        ("picks rows of the batch", |graph, x, axis| {
            let first = graph.literal(&[0_i64]);
            graph.op("Gather", &[x, &first]).attr("axis", axis).value()
        }),
        ("picks rows of the batch", |graph, x, axis| {
            let (start, end, axes) = (graph.literal(&[0_i64]), graph.literal(&[1_i64]), graph.literal(&[axis]));
            graph.op("Slice", &[x, &start, &end, &axes]).value()
        }),
        ("picks rows of the batch", |graph, x, axis| {
            let [first, _second] = graph.op("Split", &[x]).attr("axis", axis).values();
            first
        }),
        ("repeats the batch", |graph, x, axis| {
            let times: Vec<i64> = (0..3).map(|at| if at == axis { 2 } else { 1 }).collect();
            let times = graph.literal(&times);
            graph.op("Tile", &[x, &times]).value()
        }),
    ];
    for (expected, make) in cases {
        let mixed = known(|graph, _, states| make(graph, states, 0));
        assert_eq!(cause(&mixed), expected);
        let kept = known(|graph, _, states| make(graph, states, 2));
        assert_eq!(kept.rows, RowDependence::PerRow, "{expected}");
    }
}

#[test]
fn what_is_made_of_mixed_rows_tells_where_they_were_mixed() {
    let info = known(|graph, _, states| {
        let mixed = graph.op("Softmax", &[states]).attr("axis", 0).named("culprit").value();
        graph.op("Relu", &[&mixed]).value()
    });
    let origin = "node 'culprit' (Softmax)".to_owned();
    assert_eq!(info.rows, RowDependence::Mixed { origin, cause: "normalises over the batch" });
}

#[test]
fn slices_that_take_every_row_keep_them() {
    let info = known(|graph, ids, _| {
        let (start, end) = (graph.literal(&[0_i64, 0]), graph.literal(&[i64::MAX, 1]));
        graph.op("Slice", &[ids, &start, &end]).value()
    });
    assert_eq!(info, by_rows(DataType::Int64, &dims!["batch", 1]));
}

#[test]
fn rows_that_meet_other_rows_are_mixed() {
    let against_a_transposed = known(|graph, _, states| {
        let turned = graph.op("Transpose", &[states]).attr("perm", [1, 0, 2]).value();
        graph.op("Add", &[states, &turned]).value()
    });
    assert_eq!(cause(&against_a_transposed), "combines rows with each other");
    let by_a_table_of_rows = known(|graph, ids, _| {
        let table = graph.constant("table", &[4, 1], &[1_i64, 2, 3, 4]);
        graph.op("Add", &[ids, &table]).value()
    });
    assert_eq!(cause(&by_a_table_of_rows), "combines rows with each other");
    let over_the_batch = known(|graph, _, states| {
        let turned = graph.op("Transpose", &[states]).attr("perm", [1, 2, 0]).value();
        let weight = graph.constant("weight", &[2, 2], &[1.0_f32; 4]);
        graph.op("MatMul", &[&turned, &weight]).value()
    });
    assert_eq!(cause(&over_the_batch), "multiplies over the batch");
    let similarity = known(|graph, ids, _| {
        let ids = graph.op("Cast", &[ids]).attr("to", 1).value();
        graph.op("Gemm", &[&ids, &ids]).attr("transB", 1).value()
    });
    assert_eq!(cause(&similarity), "combines rows with each other");
}

#[test]
fn attention_keeps_rows_apart() {
    let info = known(|graph, _, states| {
        let turned = graph.op("Transpose", &[states]).attr("perm", [0, 2, 1]).value();
        let scores = graph.op("MatMul", &[states, &turned]).value();
        let shares = graph.op("Softmax", &[&scores]).attr("axis", -1).value();
        graph.op("MatMul", &[&shares, states]).value()
    });
    assert_eq!(info, by_rows(DataType::Fp32, &dims!["batch", "tokens", 384]));
}

#[test]
fn a_batch_norm_in_training_mixes_rows() {
    let norm = |training: i64| {
        known(|graph, _, states| {
            let one = graph.literal(&[1.0_f32]);
            let operands = [states, &one, &one, &one, &one];
            graph.op("BatchNormalization", &operands).attr("training_mode", training).value()
        })
    };
    assert_eq!(norm(0), by_rows(DataType::Fp32, &dims!["batch", "tokens", 384]));
    assert_eq!(cause(&norm(1)), "normalises over the batch");
}

#[test]
fn places_of_maxima_count_through_the_whole_batch() {
    let info = known(|graph, _, states| {
        let [_values, places] = graph.op("MaxPool", &[states]).attr("kernel_shape", [2]).values();
        places
    });
    assert_eq!(cause(&info), "counts places through the batch");
}

#[test]
fn positions_by_length_are_constant_and_by_rows_are_not() {
    let positions = |axis: i64| {
        known(move |graph, ids, _| {
            let shape = graph.op("Shape", &[ids]).value();
            let axis = graph.scalar(axis);
            let length = graph.op("Gather", &[&shape, &axis]).value();
            let (zero, one) = (graph.scalar(0_i64), graph.scalar(1_i64));
            graph.op("Range", &[&zero, &length, &one]).value()
        })
    };
    let along_tokens = positions(1);
    assert_eq!((along_tokens.dims, along_tokens.rows), (Some(dims!["tokens"].into()), RowDependence::Constant));
    assert_eq!(cause(&positions(0)), "makes a tensor as long as there are rows");
}

#[test]
fn the_number_of_rows_is_no_number_for_rows() {
    let info = known(|graph, ids, states| {
        let shape = graph.op("Shape", &[ids]).value();
        let first = graph.scalar(0_i64);
        let count = graph.op("Gather", &[&shape, &first]).value();
        let count = graph.op("Cast", &[&count]).attr("to", 1).value();
        graph.op("Div", &[states, &count]).value()
    });
    assert_eq!(cause(&info), "computes with the number of rows");
    assert_eq!(rows(|graph, ids, _| graph.op("Shape", &[ids]).value()), RowDependence::Count);
}

#[test]
fn random_numbers_are_never_constant() {
    let info = known(|graph, _, _| graph.op("RandomNormal", &[]).attr("shape", [1, 384]).value());
    assert_eq!(cause(&info), "is an operation through which rows cannot be followed");
}

#[test]
fn recurrent_layers_carry_the_batch_on_another_axis() {
    let recur = |graph: &mut Graph, states: &Value, layout: i64| {
        let weight = graph.constant("w", &[1, 32, 384], &[0.0_f32; 32 * 384]);
        let again = graph.constant("r", &[1, 32, 8], &[0.0_f32; 256]);
        let call = graph.op("LSTM", &[states, &weight, &again]).attr("hidden_size", 8).attr("layout", layout);
        let [every, last] = call.values();
        (every, last)
    };
    let last = known(|graph, _, states| {
        let turned = graph.op("Transpose", &[states]).attr("perm", [1, 0, 2]).value();
        recur(graph, &turned, 0).1
    });
    assert_eq!(last.dims, Some(dims![1, "batch", 8].into()));
    assert_eq!(last.rows, RowDependence::Moved { axis: 1 });
    let every = known(|graph, _, states| {
        let turned = graph.op("Transpose", &[states]).attr("perm", [1, 0, 2]).value();
        let (every, _) = recur(graph, &turned, 0);
        let direction = graph.literal(&[1_i64]);
        let every = graph.op("Squeeze", &[&every, &direction]).value();
        graph.op("Transpose", &[&every]).attr("perm", [1, 0, 2]).value()
    });
    assert_eq!(every, by_rows(DataType::Fp32, &dims!["batch", "tokens", 8]));
    assert_eq!(cause(&known(|graph, _, states| recur(graph, states, 0).0)), "runs along the batch");
    let rows_first = known(|graph, _, states| recur(graph, states, 1).1);
    assert_eq!(rows_first, by_rows(DataType::Fp32, &dims!["batch", 1, 8]));
}

#[test]
fn inputs_agree_on_the_batch_unless_a_symbol_stands_elsewhere_too() {
    let flow = |second: &[PortDim]| {
        let mut graph = Graph::new("two");
        let x = graph.input("x", DataType::Fp32, &dims!["batch", "n"]);
        let y = graph.input("y", DataType::Fp32, second);
        graph.output(&x, DataType::Fp32, &dims!["batch", "n"]);
        graph.output(&y, DataType::Fp32, second);
        infer(&graph.finish().expect("sound")).tensor("y").expect("it is there").rows.clone()
    };
    assert_eq!(flow(&dims!["other", 2]), RowDependence::PerRow);
    assert_eq!(flow(&[PortDim::Unknown, PortDim::from(2)]), RowDependence::PerRow);
    let strange = |rows: RowDependence| matches!(rows, RowDependence::Mixed { cause: "has no batch axis", .. });
    assert!(strange(flow(&dims!["n"])), "n is the second axis of x");
    assert!(strange(flow(&dims![1, 2])), "a fixed length is no batch");
    assert!(strange(flow(&[])), "a number has no rows");
}

/// A graph over `x` FP32 `[batch, batch]`, and a tensor that `build` makes of it, called `y`.
fn of_square(build: impl FnOnce(&mut Graph, &Value) -> Value) -> Model {
    let mut graph = Graph::new("square");
    let x = graph.input("x", DataType::Fp32, &dims!["batch", "batch"]);
    let y = build(&mut graph, &x);
    graph.output(&y, DataType::Fp32, &[PortDim::from("batch"), PortDim::Unknown]);
    graph.finish().expect("sound")
}

#[test]
fn an_axis_with_the_name_of_the_batch_is_another_length() {
    let product = |graph: &mut Graph, x: &Value| {
        let weight = graph.constant("weight", &[16, 8], &[0.0_f32; 128]);
        graph.op("MatMul", &[x, &weight]).named("y").value()
    };
    let apart = of_square(product);
    assert_eq!(infer(&apart).tensor("y"), Some(&by_rows(DataType::Fp32, &dims!["batch", 8])));
    assert!(!needs_square(&apart), "16 columns are no rows");
    let turned = |graph: &mut Graph, x: &Value| {
        let turned = graph.op("Transpose", &[x]).attr("perm", [1, 0]).value();
        graph.op("Add", &[x, &turned]).named("y").value()
    };
    let square = of_square(turned);
    assert_eq!(cause(infer(&square).tensor("y").expect("it is there")), "combines rows with each other");
    assert!(needs_square(&square));
    let squared = of_square(|graph, x| graph.op("MatMul", &[x, x]).named("y").value());
    assert!(needs_square(&squared));
    assert!(!needs_square(&of_square(|graph, x| graph.op("Mul", &[x, x]).named("y").value())));
}
