//! Convolutional networks compute the same as ONNX Runtime.

use paternoster_onnx::{
    Model,
    pb::{tensor_shape_proto::dimension, type_proto},
    zoo::{self, Width, cells},
};
use paternoster_testing::fake_cuda::with_card;

use crate::networks::network;

/// Returns a network with smaller images, to save time on the stand-in. Its layers do not depend on the size.
pub(crate) fn of_side(mut model: Model, side: i64) -> Model {
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
    with_card(|| {
        let model = zoo::resnet50(Width::QUARTER).expect("the graph is sound");
        network::<()>(Ok(of_side(model, 64)), &[], 1).check();
    });
}

#[test]
#[ignore = "one network of many: make nightly"]
fn vgg() {
    with_card(|| {
        // Its dense layers require images of the full size.
        network(zoo::vgg19(Width::QUARTER), &[], 1).check_once();
    });
}

#[test]
fn mobilenet() {
    with_card(|| {
        let model = zoo::mobilenet(Width::QUARTER).expect("the graph is sound");
        network::<()>(Ok(of_side(model, 64)), &[], 1).check();
    });
}

#[test]
fn unet() {
    with_card(|| {
        let model = zoo::unet(Width::QUARTER).expect("the graph is sound");
        network::<()>(Ok(of_side(model, 48)), &[], 1).check();
    });
}

#[test]
#[ignore = "one network of many: make nightly"]
fn linknet() {
    with_card(|| {
        let model = zoo::linknet(Width::QUARTER).expect("the graph is sound");
        network::<()>(Ok(of_side(model, 64)), &[], 1).check();
    });
}

#[test]
fn the_convolutions_of_a_speech_recogniser() {
    with_card(|| {
        // Frame counts that the time stride does not divide, and fewer than a window has.
        for frames in [9, 4] {
            let steps = (frames + 1) / 2;
            network(cells::deepspeech2::conv(Width::QUARTER), &[("frames", frames), ("steps", steps)], 1).check();
        }
    });
}
