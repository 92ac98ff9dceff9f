//! A model without a profile is measured while it serves, and then switched to its profile's recommendations.

use std::{sync::Arc, time::Duration};

use paternoster_model::DataType;
use paternoster_onnx::{Model, PortDim, build::Graph};
use paternoster_profile::{Store, choose};
use paternoster_repository::read_model;
use paternoster_testing::runtime::runtime;

use crate::profile::rig::{Place, values};

/// Requests of different lengths share a batch, and a batch takes hardly longer than a row.
const CONFIGURATION: &str = "
max_batch_size: 8
inputs: [ { name: x, dtype: FP32, dims: [tokens], pad: { axis: tokens, value: 0 } } ]
outputs: [ { name: y, dtype: FP32, dims: [tokens] } ]
batching: { policy: auto }
";

/// Adds eight to every number, one at a time.
fn eight_more() -> Model {
    let shape = [PortDim::from("batch"), PortDim::from("tokens")];
    let mut graph = Graph::new("eight_more");
    let one = graph.constant("one", &[1], &[1.0_f32]);
    let mut value = graph.input("x", DataType::Fp32, &shape);
    for _ in 0..7 {
        value = graph.op("Add", &[&value, &one]).value();
    }
    let last = graph.op("Add", &[&value, &one]).named("y").value();
    graph.output(&last, DataType::Fp32, &shape);
    graph.finish().expect("it is sound")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_is_switched_under_load_and_no_request_fails() {
    let Some(runtime) = runtime() else { return };
    let place = Place::new();
    place.add("model", CONFIGURATION, &eight_more());
    let served = place.serve_and_measure(runtime, Duration::from_secs(2)).await;
    let at_first = served.handle();

    let (_pool, loader) = place.loader(runtime);
    let request = read_model(&place.repository(), "model", &*loader).expect("it can be loaded");
    let key = loader.profile_key(&request).expect("it has a file");
    let store = Store::new(place.profiles());
    let load = async {
        loop {
            let answer = served.answer(&[1.0, 2.0, 3.0]).await.expect("no request fails");
            assert_eq!(values(&answer), [9.0, 10.0, 11.0]);
            let Some(profile) = store.read(&key) else { continue };
            // On a busy machine the measured times may be rejected as unreliable, and the model then stays as it was.
            if profile.doubt().is_some() {
                break None;
            }
            let choice = choose(&profile, None).expect("one row was measured");
            if !Arc::ptr_eq(&at_first, &served.handle()) {
                break Some(choice);
            }
        }
    };
    let advised = tokio::time::timeout(Duration::from_secs(120), load).await.expect("it is switched in the end");
    assert_eq!(served.stages(), advised.map_or(1, |choice| usize::from(choice.stages)));
    assert_eq!(place.kept().len(), 1);
    served.answer(&[1.0]).await.expect("it goes on");
}
