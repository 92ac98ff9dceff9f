//! Networks of convolutions give what ONNX Runtime gives.

use paternoster::onnx::{
    Model,
    pb::{tensor_shape_proto::dimension, type_proto},
    zoo::{self, Width},
};

use crate::{fake_cuda::with_fake_cuda, networks::network};

/// A network with smaller images, where the stand-in would take long: its layers do not depend on their size.
fn of_side(mut model: Model, side: i64) -> Model {
    let graph = model.0.graph.as_mut().expect("a graph");
    for port in graph.input.iter_mut().chain(&mut graph.output) {
        let declared = port.r#type.as_mut().and_then(|declared| declared.value.as_mut());
        let Some(type_proto::Value::TensorType(tensor)) = declared else { continue };
        for dim in tensor.shape.iter_mut().flat_map(|shape| &mut shape.dim) {
            if let Some(dimension::Value::DimValue(length @ (224 | 256))) = &mut dim.value {
                *length = side;
            }
        }
    }
    model
}

#[test]
fn resnet() {
    with_fake_cuda(&[], || {
        let model = zoo::resnet50(Width::QUARTER).expect("the graph is sound");
        network::<()>(Ok(of_side(model, 64)), &[], 1).check();
    });
}
