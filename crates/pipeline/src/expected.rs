//! How long the steps of a pipeline are expected to take, so that the policy of a step knows how much of its request's
//! time the later ones need.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use super::PipelineGraph;

/// Weight of what is known of a step, beside 1 for its last run.
const AVERAGED: u64 = 7;

/// By step: the average time of its executions without any waiting, in nanoseconds; 0 before its first run. Runs that
/// a condition skipped count as 0.
#[derive(Debug)]
pub(crate) struct ExpectedTimes(Box<[AtomicU64]>);

impl ExpectedTimes {
    /// Nothing is known yet.
    pub(crate) fn new(steps: usize) -> Self {
        Self((0..steps).map(|_| AtomicU64::new(0)).collect())
    }

    /// Learns that a step took `ns`. Of two runs that end at once, one may be lost.
    pub(crate) fn learn(&self, step: usize, ns: u64) {
        let known = &self.0[step];
        let next = match known.load(Ordering::Relaxed) {
            0 => ns,
            average => average.saturating_mul(AVERAGED).saturating_add(ns) / (AVERAGED + 1),
        };
        known.store(next, Ordering::Relaxed);
    }

    /// Lowers all times, after a request was rejected because of them: it taught nothing of the steps behind, and a
    /// single slow run would reject all further requests.
    pub(crate) fn doubt(&self) {
        for known in &self.0 {
            let lower = known.load(Ordering::Relaxed) / (AVERAGED + 1) * AVERAGED;
            known.store(lower, Ordering::Relaxed);
        }
    }

    /// Returns by step: the time of the longest path of steps behind it.
    pub(crate) fn after(&self, graph: &PipelineGraph, order: &[usize]) -> Vec<Duration> {
        let mut after = vec![Duration::ZERO; self.0.len()];
        for &step in order.iter().rev() {
            let readers = graph.steps[step].outputs.iter().flat_map(|&(_, tensor)| &graph.readers[tensor]);
            let behind = readers.map(|&reader| after[reader] + self.of(reader)).max();
            after[step] = behind.unwrap_or_default();
        }
        after
    }

    fn of(&self, step: usize) -> Duration {
        Duration::from_nanos(self.0[step].load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{PortBinding, Runs, Step};

    #[test]
    fn the_longest_path_behind_each_step_counts() {
        // 0 → 1 → 3, 0 → 2 → 3.
        let port = |tensor: &&str| PortBinding { port: (*tensor).to_owned(), tensor: (*tensor).to_owned() };
        let step = |inputs: &[&str], output: &str| Step {
            runs: Runs::Served { model: "m".to_owned(), version: None },
            inputs: inputs.iter().map(port).collect(),
            outputs: vec![port(&output)],
            when: None,
        };
        let steps = vec![step(&["in"], "a"), step(&["a"], "b"), step(&["a"], "c"), step(&["b", "c"], "out")];
        let graph = PipelineGraph::new(&["in"], &["out"], steps).expect("a graph");
        let times = ExpectedTimes::new(4);
        let after = || times.after(&graph, &graph.order()).into_iter().map(|time| time.as_nanos()).collect::<Vec<_>>();
        assert_eq!(after(), [0, 0, 0, 0], "nothing is known");
        for (step, ns) in [(0, 1_000), (1, 20), (2, 300), (3, 8)] {
            times.learn(step, ns);
        }
        assert_eq!(after(), [308, 8, 8, 0]);
        times.learn(2, 700);
        assert_eq!(after(), [358, 8, 8, 0], "an average");
        times.learn(2, 0);
        assert_eq!(after(), [314, 8, 8, 0], "a run that was skipped");
    }
}
