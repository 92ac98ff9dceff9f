//! The record of a request that a cache answers.

use std::{sync::Arc, time::Instant};

use super::{
    end::RequestEnd,
    stats::ModelStats,
    trace::{Parts, RequestTrace},
};

/// A request whose response was in the cache. It neither waits nor runs: in a pipeline, it adds nothing to the times of
/// the request that it is a step of.
#[derive(Debug)]
pub struct ObservedHit {
    /// When it was admitted.
    pub began: Instant,
    /// How long it took to find its response.
    pub looked_up_ns: u64,
    /// Its trace, if it is traced.
    pub trace: Option<Arc<RequestTrace>>,
}

impl ObservedHit {
    /// Records that it is answered.
    pub fn answered(self, stats: &ModelStats) {
        let Self { began, looked_up_ns, trace } = self;
        let total_ns = u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
        if let Some(trace) = trace {
            trace.submitted(began, Parts::Whole);
            trace.ended(0, total_ns, RequestEnd::Completed);
        }
        stats.first_response(total_ns);
        stats.cache_hit(total_ns, looked_up_ns);
    }
}
