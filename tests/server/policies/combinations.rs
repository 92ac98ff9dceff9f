//! Configurations of every policy, with and without stages.

use paternoster_onnx::cut::legal_cuts;

use crate::policies::networks::Network;

/// Maximum stages; latency tables have a time for each.
const MOST_STAGES: usize = 4;

/// Batches take as long as single rows, so joining pays.
pub(crate) const JOINING_PAYS: fn(f64) -> f64 = |_| 1_000.0;
/// Batches take much longer than their parts, so splitting pays.
pub(crate) const SPLITTING_PAYS: fn(f64) -> f64 = |rows| 100.0 * rows * rows;

/// One way to configure a network.
pub(crate) struct Combination {
    pub name: &'static str,
    pub yaml: String,
    pub stages: String,
}

/// A policy as in `model.yaml`, and the latencies that it starts from.
pub(crate) struct PolicyText {
    pub name: &'static str,
    text: &'static str,
    latency_us: Option<fn(f64) -> f64>,
    padded_only: bool,
}

const fn policy(name: &'static str, text: &'static str) -> PolicyText {
    PolicyText { name, text, latency_us: None, padded_only: false }
}

/// Every policy. Timeouts are long enough that none passes in a test, and latencies such that batches are stretched and
/// split.
pub(crate) const POLICIES: [PolicyText; 14] = [
    policy("serial", "policy: serial"),
    policy("window", "policy: window"),
    policy("window with a delay", "policy: window, window: { max_queue_delay_us: 2000 }"),
    policy("adaptive", "policy: adaptive, adaptive: { max_queue_delay_us: 5000 }"),
    policy("adaptive as in the paper", "policy: adaptive, adaptive: { mode: paper, max_queue_delay_us: 5000 }"),
    PolicyText {
        latency_us: Some(JOINING_PAYS),
        ..policy("lazy", "policy: lazy, latency_objective_ms: 60000, lazy: { max_catch_up_ms: 60000 }")
    },
    policy(
        "lazy as in the paper",
        "policy: lazy, latency_objective_ms: 60000, lazy: { predictor: paper, max_catch_up_ms: 60000 }",
    ),
    policy("lazy as it learns", "policy: lazy, latency_objective_ms: 200"),
    PolicyText {
        latency_us: Some(JOINING_PAYS),
        ..policy("load diversity", "policy: diversity, diversity: { input: false, load: { max_age_ms: 60000 } }")
    },
    PolicyText {
        latency_us: Some(JOINING_PAYS),
        ..policy(
            "load diversity on one pair of buffers",
            "policy: diversity, buffer_pairs: 1, diversity: { input: false, load: { max_age_ms: 60000 } }",
        )
    },
    PolicyText {
        latency_us: Some(SPLITTING_PAYS),
        ..policy(
            "operator diversity, depth-first",
            "policy: diversity, diversity: { input: false, operator: { threshold: 0.05, order: depth-first } }",
        )
    },
    PolicyText {
        latency_us: Some(SPLITTING_PAYS),
        ..policy(
            "operator diversity, pipelined",
            "policy: diversity, diversity: { input: false, operator: { threshold: 0.05, order: pipelined } }",
        )
    },
    PolicyText {
        padded_only: true,
        ..policy("input diversity", "policy: diversity, diversity: { input: { bounds: [8, 14], window_us: 500 } }")
    },
    PolicyText {
        latency_us: Some(SPLITTING_PAYS),
        padded_only: true,
        ..policy(
            "input and operator diversity",
            "policy: diversity, diversity: { input: { groups: 3 }, operator: { threshold: 0.05 } }",
        )
    },
];

impl PolicyText {
    /// Returns whether it is only for models that pad an axis.
    pub(crate) fn is_padded_only(&self) -> bool {
        self.padded_only
    }

    /// Returns the section `batching` of a model with this many stages.
    pub(crate) fn batching(&self, stages: usize) -> String {
        let Some(latency_us) = self.latency_us else { return format!("batching: {{ {} }}\n", self.text) };
        let cells = (0..stages).flat_map(|stage| [1, 2, 4, 8].map(|rows| (stage, rows)));
        let latencies: Vec<String> = cells
            .map(|(stage, rows)| {
                format!("{{ stage: {stage}, rows: {rows}, latency_us: {} }}", latency_us(f64::from(rows)))
            })
            .collect();
        format!("batching: {{ {}, latencies: [{}] }}\n", self.text, latencies.join(", "))
    }
}

/// Returns every policy with two of four ways to cut the network: whole and in four stages, or in three stages and at a
/// named tensor. The choice alternates between policies and, by `turn`, between networks.
pub(crate) fn combinations(network: &Network, turn: usize) -> Vec<Combination> {
    let middle = legal_cuts(&network.model).into_iter().find(|cut| cut.cost_before >= 0.5).expect("it can be cut");
    let cuts = |policy: usize| match (policy + turn) % 2 {
        0 => [(1, "1".to_owned()), (MOST_STAGES, MOST_STAGES.to_string())],
        _ => [(3, "3".to_owned()), (2, format!("[\"{}\"]", middle.tensor))],
    };
    let policies = POLICIES.iter().filter(|policy| network.is_padded() || !policy.is_padded_only()).enumerate();
    policies
        .flat_map(|(number, policy)| {
            cuts(number).map(|(count, stages)| Combination {
                name: policy.name,
                yaml: format!("stages: {stages}\n{}", policy.batching(count)),
                stages: if count == 2 {
                    format!("2 stages, cut at {}", middle.tensor)
                } else {
                    format!("{count} stages")
                },
            })
        })
        .collect()
}
