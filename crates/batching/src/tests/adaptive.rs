//! Adaptive batching (section III) through the core: figure 1, algorithm 1 and the dispatcher.

use super::{
    at,
    pool::{DynamicBatching, arrival, window},
    timeline::{Timeline, UNIT, rows_of, staged},
};
use crate::{AdaptiveKnobs, Arrival, Knobs, Ns, Policy, QueueKnobs, QueueingKnobs, Task, TimeoutAction};

const MS: Ns = 1_000_000;
const SECOND: Ns = 1_000 * MS;

/// Sends twelve requests, one per unit, in batches of four that run for `run_ns`. Returns the latencies by batch.
fn figure_1(run_ns: fn(&Task) -> Ns) -> Vec<Vec<Ns>> {
    let delay = DynamicBatching { max_queue_delay_ns: 1_000 * UNIT, ..DynamicBatching::default() };
    let mut server = Timeline::new([window(4, delay)], run_ns);
    server.lane_up(0, 0);
    (0..12).for_each(|req| server.arrives(req * UNIT, req));
    server.run_out();
    assert_eq!(server.sizes(), [4, 4, 4]);
    let latencies: Vec<Ns> = server.latencies().iter().map(|latency| latency / UNIT).collect();
    latencies.chunks(4).map(<[Ns]>::to_vec).collect()
}

#[test]
fn figure_1_a_batch_that_runs_shorter_than_it_is_collected_waits_for_its_last_request() {
    // From T to T + Q, where Q = 3 units.
    assert_eq!(figure_1(|_| 2 * UNIT), [[5, 4, 3, 2]; 3]);
}

#[test]
fn figure_1_a_batch_that_runs_as_long_as_the_next_is_collected_keeps_the_device_busy_and_nobody_waiting() {
    assert_eq!(figure_1(|_| 4 * UNIT), [[7, 6, 5, 4]; 3]);
}

#[test]
fn figure_1_a_batch_that_runs_longer_than_the_next_is_collected_makes_each_wait_longer() {
    // a = 0, 2 and 4 units.
    assert_eq!(figure_1(|_| 6 * UNIT), [[9, 8, 7, 6], [11, 10, 9, 8], [13, 12, 11, 10]]);
}

/// T = a + c·B: 10 ms, and 1 ms per row.
fn run_ns(task: &Task) -> Ns {
    10 * MS + MS * u64::from(rows_of(task))
}

fn adaptive(knobs: AdaptiveKnobs) -> Timeline {
    let points: Vec<(u32, Ns)> = (1..=8).map(|rows| (rows, 10 * MS + MS * u64::from(rows))).collect();
    let knobs: Knobs = staged(Policy::Adaptive(knobs), 1, 8, &points);
    let mut server = Timeline::new([knobs], run_ns);
    server.lane_up(0, 0);
    server
}

/// Returns the row counts of the tasks launched in a period, without duplicates.
fn sizes_between(server: &Timeline, from: Ns, to: Ns) -> Vec<u32> {
    let within = server.launches.iter().filter(|(at, _)| (from..to).contains(at));
    let mut sizes: Vec<u32> = within.map(|(_, task)| rows_of(task)).collect();
    sizes.sort_unstable();
    sizes.dedup();
    sizes
}

#[test]
fn algorithm_1_each_second_runs_the_size_that_carries_the_rate_of_the_last() {
    let mut server = adaptive(AdaptiveKnobs { paper: true, ..AdaptiveKnobs::default() });
    let mut req = 0;
    for (second, rate) in [300, 700, 200, 100, 100].into_iter().enumerate() {
        for arrival in 0..rate {
            server.arrives(second as Ns * SECOND + arrival * SECOND / rate, req);
            req += 1;
        }
    }
    let sizes = |second: Ns| sizes_between(&server, second * SECOND, (second + 1) * SECOND);
    assert_eq!(sizes(0), [2], "nothing is known yet: the search begins at 2");
    assert_eq!(sizes(1), [5], "4/14 ms < 300/s < 5/15 ms");
    assert_eq!(sizes(2), [8], "8/18 ms < 700/s: none keeps up");
    assert_eq!(sizes(3), [3], "2/12 ms < 200/s < 3/13 ms");
    assert_eq!(sizes(4), [2], "100/s < 2/12 ms");
}

#[test]
fn as_published_a_slow_trickle_waits_for_the_cap() {
    let mut server = adaptive(AdaptiveKnobs { paper: true, ..AdaptiveKnobs::default() });
    (0..6).for_each(|req| server.arrives(req * SECOND / 2, req));
    server.run_out();
    assert_eq!(server.latencies(), [111 * MS; 6]);
}

#[test]
fn a_slow_trickle_does_not_wait_at_all() {
    let mut server = adaptive(AdaptiveKnobs::default());
    (0..6).for_each(|req| server.arrives(req * SECOND / 2, req));
    server.run_out();
    assert_eq!(server.latencies(), [11 * MS; 6]);
}

/// Sends two batches of eight at once, which raise the batch size, and a single request at `at` on an idle lane.
/// Returns how long the latter waits.
fn straggler_waits(at: Ns, max_queue_delay_ns: Ns) -> Ns {
    let mut server = adaptive(AdaptiveKnobs { max_queue_delay_ns, ..AdaptiveKnobs::default() });
    for req in 0..2 {
        server.sends(0, Arrival { rows: 8, ..arrival(req) });
    }
    server.arrives(at, 2);
    server.run_out();
    assert_eq!(server.sizes(), [8, 8, 1]);
    server.launches[2].0 - at
}

#[test]
fn a_partial_batch_never_waits_longer_than_the_cap() {
    assert_eq!([1, 3, 5].map(|cap| straggler_waits(37 * MS, cap * MS)), [MS, 3 * MS, 5 * MS]);
}

#[test]
fn a_request_alone_on_an_idle_lane_goes_when_the_next_is_not_expected_before_it_is_done() {
    assert_eq!(straggler_waits(300 * MS, 100 * MS), 0);
}

#[test]
fn at_a_steady_rate_a_batch_runs_about_as_long_as_the_next_is_collected() {
    let mut server = adaptive(AdaptiveKnobs { headroom: 0.0, ..AdaptiveKnobs::default() });
    // One request every 4 ms: 3/13 ms < 250/s <= 4/14 ms. An idle lane takes three, which finish before the fifth
    // arrives.
    (0..500).for_each(|req| server.arrives(req * 4 * MS, req));
    server.run_out();
    assert_eq!(sizes_between(&server, SECOND, 2 * SECOND), [3, 4]);
    let latest = server.latencies()[250..].iter().copied().max();
    assert_eq!(latest, Some(27 * MS), "it comes as three have just gone, for 13 ms, and goes among four");
}

/// Requests of the same lengths whose queue timeouts have passed wait in the order of these, not in that of arrival.
#[test]
fn of_requests_whose_timeouts_have_passed_one_boards_whose_rows_are_more_than_preferred() {
    let delay =
        QueueKnobs { timeout_action: TimeoutAction::Delay, allow_timeout_override: true, ..QueueKnobs::default() };
    let queueing = QueueingKnobs { default_queue: delay, ..QueueingKnobs::default() };
    let policy = Policy::Adaptive(AdaptiveKnobs::default());
    let known = [1, 2, 3, 4].map(|rows| (rows, MS * Ns::from(rows)));
    // One row meets it, as those that wait do one by one. A second one would take far longer to arrive.
    let objective_ns = Some(100 * MS);
    let knobs = Knobs { queueing, objective_ns, ..staged(policy, 1, 4, &known) };
    let mut server = Timeline::new([knobs], |task| MS * Ns::from(rows_of(task)));
    for (req, rows, length, queue_deadline) in [(1, 3, 8, 50), (2, 1, 8, 40), (3, 2, 16, 60)] {
        let (lengths, queue_deadline) = ([length].into_iter().collect(), Some(at(queue_deadline * SECOND)));
        server.sends(req * 10 * SECOND, Arrival { rows, lengths, queue_deadline, ..arrival(req) });
    }
    server.lane_up(100 * SECOND, 0);
    server.run_out();
    assert_eq!(server.sizes(), [3, 1, 2]);
}
