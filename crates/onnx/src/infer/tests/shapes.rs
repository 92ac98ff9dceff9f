use super::*;

#[test]
fn reshapes_follow_lengths_that_the_graph_computes() {
    let info = known(|graph, _, states| {
        let shape = graph.op("Shape", &[states]).value();
        let (zero, one, two) = (graph.literal(&[0_i64]), graph.literal(&[1_i64]), graph.literal(&[2_i64]));
        let batch = graph.op("Gather", &[&shape, &zero]).value();
        let tokens = graph.op("Slice", &[&shape, &one, &two]).value();
        let (heads, width) = (graph.literal(&[12_i64]), graph.literal(&[32_i64]));
        let target = graph.op("Concat", &[&batch, &tokens, &heads, &width]).attr("axis", 0).value();
        graph.op("Reshape", &[states, &target]).value()
    });
    assert_eq!(info, by_rows(DataType::Fp32, &dims!["batch", "tokens", 12, 32]));
}

#[test]
fn a_missing_length_is_what_is_left() {
    let info = known(|graph, _, states| {
        let target = graph.literal(&[0_i64, 0, 12, -1]);
        graph.op("Reshape", &[states, &target]).value()
    });
    assert_eq!(info, by_rows(DataType::Fp32, &dims!["batch", "tokens", 12, 32]));
}

#[test]
fn arithmetic_on_lengths_is_followed() {
    let info = known(|graph, _, states| {
        let shape = graph.op("Shape", &[states]).value();
        let pick = |graph: &mut Graph, at: i64| {
            let at = graph.scalar(at);
            let picked = graph.op("Gather", &[&shape, &at]).value();
            let first = graph.literal(&[0_i64]);
            graph.op("Unsqueeze", &[&picked, &first]).value()
        };
        let (batch, hidden) = (pick(graph, 0), pick(graph, 2));
        let (half, three) = (graph.literal(&[2_i64]), graph.literal(&[3_i64]));
        let hidden = graph.op("Div", &[&hidden, &half]).value();
        let hidden = graph.op("Mul", &[&hidden, &three]).value();
        let hidden = graph.op("Cast", &[&hidden]).attr("to", 7).value();
        let target = graph.op("Concat", &[&batch, &hidden]).attr("axis", 0).value();
        graph.op("ConstantOfShape", &[&target]).value()
    });
    assert_eq!(info, by_rows(DataType::Fp32, &dims!["batch", 576]));
}

#[test]
fn minus_one_in_an_expansion_chooses_the_own_length() {
    // In the form that exporters write: Expand(x, Where(shape == -1, 1, shape)).
    let info = known(|graph, ids, _| {
        let shape = graph.op("Shape", &[ids]).value();
        let (minus, ones) = (graph.literal(&[-1_i64]), graph.literal(&[1_i64, 1]));
        let left_open = graph.op("Equal", &[&shape, &minus]).value();
        let target = graph.op("Where", &[&left_open, &ones, &shape]).value();
        let row = graph.literal(&[1_i64]);
        graph.op("Expand", &[&row, &target]).value()
    });
    assert_eq!(info, by_rows(DataType::Int64, &dims!["batch", "tokens"]));
}

#[test]
fn operands_broadcast() {
    let info = known(|graph, ids, states| {
        let axis = graph.literal(&[2_i64]);
        let column = graph.op("Unsqueeze", &[ids, &axis]).value();
        let column = graph.op("Cast", &[&column]).attr("to", 1).value();
        graph.op("Mul", &[&column, states]).value()
    });
    assert_eq!(info, by_rows(DataType::Fp32, &dims!["batch", "tokens", 384]));
}

#[test]
fn lengths_that_are_no_product_of_symbols_are_unknown_outside_but_equal_to_themselves() {
    let info = known(|graph, _, states| {
        let zeros = graph.literal(&[0_i64, 1, 0, 0, 0, 0]);
        let padded = graph.op("Pad", &[states, &zeros]).value();
        let again = graph.op("Pad", &[states, &zeros]).value();
        graph.op("Add", &[&padded, &again]).value()
    });
    let longer = [PortDim::from("batch"), PortDim::Unknown, PortDim::from(384)];
    assert_eq!(info, by_rows(DataType::Fp32, &longer));
}

fn image_op(dims: &[PortDim], build: impl FnOnce(&mut Graph, &Value) -> Value) -> TensorInfo {
    known(|graph, _, _| {
        let image = graph.input("image", DataType::Fp32, dims);
        build(graph, &image)
    })
}

#[test]
fn windows_count_their_positions() {
    let image = dims!["batch", 8, 57, 57];
    let pool = |ceil: i64| {
        image_op(&image, |graph, image| {
            let call = graph.op("MaxPool", &[image]).attr("kernel_shape", [3, 3]).attr("strides", [2, 2]);
            call.attr("ceil_mode", ceil).attr("pads", [0, 0, 1, 1]).value()
        })
    };
    assert_eq!(pool(0).dims, Some(dims!["batch", 8, 28, 28].into()));
    assert_eq!(pool(1).dims, Some(dims!["batch", 8, 29, 29].into()));
    let convolved = image_op(&image, |graph, image| {
        let weight = graph.constant("weight", &[4, 2, 3, 3], &[0.0_f32; 72]);
        let call = graph.op("Conv", &[image, &weight]).attr("group", 4).attr("dilations", [2, 2]);
        call.attr("strides", [2, 2]).attr("auto_pad", "SAME_UPPER").value()
    });
    assert_eq!(convolved, by_rows(DataType::Fp32, &dims!["batch", 4, 29, 29]));
    let raised = image_op(&image, |graph, image| {
        let weight = graph.constant("weight", &[8, 2, 3, 3], &[0.0_f32; 144]);
        let call = graph.op("ConvTranspose", &[image, &weight]).attr("group", 2).attr("strides", [2, 2]);
        call.attr("output_padding", [1, 1]).attr("pads", [1, 1, 1, 1]).value()
    });
    assert_eq!(raised, by_rows(DataType::Fp32, &dims!["batch", 4, 114, 114]));
}

#[test]
fn windows_that_keep_the_size_keep_symbols() {
    let image = dims!["batch", 3, "height", "width"];
    let info = image_op(&image, |graph, image| {
        let weight = graph.constant("weight", &[4, 3, 3, 3], &[0.0_f32; 108]);
        graph.op("Conv", &[image, &weight]).attr("pads", [1, 1, 1, 1]).value()
    });
    assert_eq!(info, by_rows(DataType::Fp32, &dims!["batch", 4, "height", "width"]));
}

#[test]
fn resizing_takes_factors_or_lengths() {
    let image = dims!["batch", 3, "height", 10];
    let doubled = image_op(&image, |graph, image| {
        let factors = graph.constant("factors", &[4], &[1.0_f32, 1.0, 2.0, 2.5]);
        graph.op("Resize", &[image]).skip().with(&factors).value()
    });
    assert_eq!(doubled.dims, Some(vec!["batch".into(), 3.into(), PortDim::Unknown, 25.into()]));
    assert_eq!(doubled.rows, RowDependence::PerRow);
    let sized = image_op(&image, |graph, image| {
        let lengths = graph.literal(&[7_i64, 5]);
        graph.op("Resize", &[image]).skip().skip().with(&lengths).attr("axes", [3, 2]).value()
    });
    assert_eq!(sized, by_rows(DataType::Fp32, &dims!["batch", 3, 5, 7]));
}

#[test]
fn parts_of_a_split_share_what_there_is() {
    let part = |operands: Option<[i64; 2]>| {
        known(|graph, _, states| {
            let lengths = operands.map(|lengths| graph.literal(&lengths));
            let call = graph.op("Split", &[states]).attr("axis", -1);
            let call = if let Some(lengths) = &lengths { call.with(lengths) } else { call };
            let [_first, second] = call.values();
            second
        })
    };
    assert_eq!(part(None), by_rows(DataType::Fp32, &dims!["batch", "tokens", 192]));
    assert_eq!(part(Some([300, 84])), by_rows(DataType::Fp32, &dims!["batch", "tokens", 84]));
}

#[test]
fn what_an_unknown_operator_makes_is_as_the_file_declares_but_not_by_rows() {
    let Texts { mut graph, states, .. } = texts();
    let odd = graph.op("Oddity", &[&states]).named("odd").value();
    let shape = graph.op("Shape", &[&odd]).attr("start", 1).attr("end", 2).named("shape").value();
    graph.output(&odd, DataType::Fp32, &dims!["batch", "pieces", 3]);
    graph.output(&shape, DataType::Int64, &dims![1]);
    let inferred = infer(&graph.finish().expect("a sound graph"));
    let odd = inferred.tensor("odd").expect("it is there");
    assert_eq!(odd.datatype, Some(DataType::Fp32));
    assert_eq!(odd.dims, Some(dims!["batch", "pieces", 3].into()));
    assert_eq!(cause(odd), "is an operation through which rows cannot be followed");
    let shape = inferred.tensor("shape").expect("it is there");
    assert_eq!(shape.rows, RowDependence::Count, "the number of pieces may hang on the rows");
}

#[test]
fn element_types_follow_the_operators() {
    let datatype = |op: &'static str| known(|graph, ids, _| graph.op(op, &[ids, ids]).value()).datatype;
    assert_eq!(datatype("Less"), Some(DataType::Bool));
    assert_eq!(datatype("Add"), Some(DataType::Int64));
    let cast = known(|graph, ids, _| graph.op("Cast", &[ids]).attr("to", 10).value());
    assert_eq!(cast.datatype, Some(DataType::Fp16));
    let chosen = known(|graph, ids, states| {
        let condition = graph.op("Equal", &[ids, ids]).value();
        let axis = graph.literal(&[2_i64]);
        let condition = graph.op("Unsqueeze", &[&condition, &axis]).value();
        graph.op("Where", &[&condition, states, states]).value()
    });
    assert_eq!(chosen, by_rows(DataType::Fp32, &dims!["batch", "tokens", 384]));
}
