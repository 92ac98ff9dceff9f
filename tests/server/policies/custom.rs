//! A policy of another crate, this one, registered under a name that the model's configuration gives. It knows no more
//! than the public interface of `paternoster-batching`.

use std::{collections::VecDeque, sync::Arc};

use paternoster_batching::{BatchLimits, BatchPolicy, CustomPolicy, Decision, Instant, Ns, PolicyKnobs, View};
use paternoster_config::CustomPolicies;
use paternoster_executor::InferRequest;
use paternoster_model::DataType;
use paternoster_onnx::{Model, PortDim, build::Graph};
use paternoster_testing::runtime::runtime;
use tokio::time::timeout;

use crate::policies::rig::{NEVER_SO_LONG, Place, tensor, values};

/// Number of requests, even.
const REQUESTS: u8 = 8;

/// Time that a request waits for another: an hour.
const PATIENCE_NS: Ns = 3_600_000_000_000;

/// Launches two requests together, and one alone only after a long wait.
#[derive(Clone, Copy, Debug)]
struct Pairs;

impl PolicyKnobs for Pairs {
    fn start(&self, _: BatchLimits) -> Box<dyn BatchPolicy> {
        Box::new(*self)
    }
}

impl BatchPolicy for Pairs {
    fn board(&mut self, view: &View<'_>) -> Decision {
        let Some(waiting) = view.sub_queues().next() else { return Decision::Nothing };
        let due = waiting.oldest_arrival().map_or(Instant::ZERO, |arrived| arrived + PATIENCE_NS);
        if waiting.requests().nth(1).is_none() && view.now() < due {
            return Decision::Wait(due);
        }
        waiting.candidates().launch(2)
    }
}

/// `y` = 2 `x`, for one number a row.
fn double() -> Model {
    let dims: [PortDim; 2] = ["batch".into(), 1.into()];
    let mut graph = Graph::new("double");
    let x = graph.input("x", DataType::Fp32, &dims);
    let two = graph.scalar(2.0_f32);
    let y = graph.op("Mul", &[&x, &two]).named("y").value();
    graph.output(&y, DataType::Fp32, &dims);
    graph.finish().expect("the graph is sound")
}

fn registered() -> CustomPolicies {
    let mut policies = CustomPolicies::default();
    policies.register(CustomPolicy::new("pairs", Pairs)).expect("no other policy has this name");
    policies
}

#[tokio::test(flavor = "multi_thread")]
async fn a_policy_of_another_crate_forms_the_batches() {
    let Some(runtime) = runtime() else { return };
    let place = Place::new(&double());
    let yaml = "max_batch_size: 8\nbatching: { policy: pairs }\n";
    let served = place.serve_with(runtime, yaml, registered(), "pairs").await;
    assert_eq!(served.handle.policy(), "pairs");
    let submit = |number: u8| {
        let input = tensor(&[1, 1], [&f32::from(number).to_le_bytes()]);
        served.handle.submit(InferRequest::new(1, vec![Some(input)]))
    };
    let mut responses: VecDeque<_> = (0..REQUESTS - 1).map(submit).collect();
    for number in 0..REQUESTS {
        // The one that is left over has no partner yet.
        if number == REQUESTS - 2 {
            assert_eq!(served.handle.stats().pending(), 1);
            responses.push_back(submit(REQUESTS - 1));
        }
        let response = responses.pop_front().expect("one for each request");
        let ended = timeout(NEVER_SO_LONG, response).await.expect("two requests are a batch");
        let answer = ended.expect("it is answered");
        assert_eq!(values(&answer.outputs[0].data), [2.0 * f32::from(number)]);
    }
    let handle = Arc::clone(&served.handle);
    served.stop("pairs");
    let batches = handle.stats().reading().stats.batch_stats;
    let sizes: Vec<_> = batches.iter().map(|batch| (batch.batch_size, batch.compute_infer.count)).collect();
    assert_eq!(sizes, [(2, u64::from(REQUESTS) / 2)], "nothing but pairs");
}
