//! The spans of a measurement that a `tracing` subscriber receives.

use std::{
    collections::HashMap,
    fmt::Debug,
    sync::{Arc, Mutex},
    time::Duration,
};

use paternoster_onnx::zoo;
use paternoster_repository::{Trials, read_model};
use paternoster_testing::runtime::runtime;
use tracing::{
    Subscriber,
    field::{Field, Visit},
    span::{Attributes, Id},
};
use tracing_subscriber::{
    Layer, Registry,
    layer::{Context, SubscriberExt},
    registry::LookupSpan,
};

use crate::profile::rig::Place;

/// A span's name and its fields.
type Span = (String, HashMap<&'static str, String>);

/// Every span when it was opened: its path of names, and its fields.
#[derive(Clone, Default)]
struct Seen(Arc<Mutex<Vec<Span>>>);

struct Values(HashMap<&'static str, String>);

impl Visit for Values {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.insert(field.name(), format!("{value:?}"));
    }
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Seen {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let mut values = Values(HashMap::new());
        attributes.record(&mut values);
        let scope = context.span_scope(id).expect("it was opened");
        let path: Vec<&str> = scope.from_root().map(|span| span.name()).collect();
        self.0.lock().expect("no panic").push((path.join("/"), values.0));
    }
}

#[test]
fn a_measurement_is_a_span_with_one_for_each_way_that_the_model_is_cut() {
    let Some(runtime) = runtime() else { return };
    let place = Place::new();
    place.add("add_sub", "max_batch_size: 2\n", &zoo::add_sub().expect("it is sound"));
    let (_pool, loader) = place.loader(runtime);
    let request = read_model(&place.repository(), "add_sub", loader.as_ref()).expect("it is there");

    let seen = Seen::default();
    let trials = Trials {
        budget: Duration::from_millis(50),
        before_run: &|_, _| true,
        wants_stages: &|_| true,
        by_operators: false,
    };
    let measured =
        tracing::subscriber::with_default(Registry::default().with(seen.clone()), || loader.measure(&request, trials));
    measured.expect("it runs");

    let seen = seen.0.lock().expect("no panic");
    let of = |path: &str| seen.iter().filter(|(seen, _)| seen == path).map(|(_, fields)| fields).collect::<Vec<_>>();
    let [profile] = of("profile")[..] else { panic!("one span of all: {seen:?}") };
    assert_eq!((&*profile["model"], &*profile["version"]), (r#""add_sub""#, "1"));
    let measures = of("profile/measure");
    assert_eq!((&*measures[0]["what"], &*measures[0]["sizes"]), (r#""whole""#, "2"), "{seen:?}");
    assert_eq!(seen.len(), 1 + measures.len(), "{seen:?}");
}
