//! Statistics of pipelines and models behind the response cache.

use std::sync::atomic::{AtomicBool, Ordering};

use super::*;
use crate::{Cached, ResponseCache};

fn cached(inner: Servable) -> Servable {
    Servable::Cached(Arc::new(Cached::new(inner, Arc::new(ResponseCache::new(1 << 20)))))
}

/// Requests that succeeded, and those of them that hit and missed.
fn counts(servable: &Servable) -> (u64, u64, u64) {
    let counted = servable.stats().snapshot().inference_stats;
    (counted.success.count, counted.cache_hit.count, counted.cache_miss.count)
}

/// Models of which one is not served while it is reloaded.
struct Reloading {
    served: Arc<Served>,
    is_away: AtomicBool,
}

impl Models for Reloading {
    fn resolve(&self, model: &str, version: Option<i64>) -> Result<Servable, String> {
        if model == "second" && self.is_away.swap(false, Ordering::Relaxed) {
            return Err("it is being loaded".to_owned());
        }
        self.served.resolve(model, version)
    }
}

#[tokio::test]
async fn a_request_that_arrives_while_a_model_of_a_step_is_reloaded_counts_as_a_miss() {
    let served = two_models(&pool(), Knobs::default(), FakeProgram::identity());
    let models = Arc::new(Reloading { served, is_away: AtomicBool::new(false) });
    let pipeline = cached(Servable::Pipeline(chain("chain", &["first", "second"], &models)));
    pipeline.submit(request(None)).await.expect("both run");
    pipeline.submit(request(None)).await.expect("it is kept");
    assert_eq!(counts(&pipeline), (2, 1, 1));

    // It is back before its step begins.
    models.is_away.store(true, Ordering::Relaxed);
    pipeline.submit(request(None)).await.expect("both run");
    assert_eq!(counts(&pipeline), (3, 1, 2));
}

#[tokio::test]
async fn a_request_whose_client_leaves_as_it_is_answered_counts_as_a_miss() {
    let model = cached(serve(&pool(), spec("alone", "x", "y"), Knobs::default(), FakeProgram::identity()));
    let answer = model.submit(request(None));
    while counts(&model).0 == 0 {
        tokio::task::yield_now().await;
    }
    drop(answer);
    assert_eq!(counts(&model), (1, 0, 1));
}
