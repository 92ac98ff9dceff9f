//! Slack: LazyBatching's equations 1 and 2, algorithm 1, and the stack of figure 10.

use paternoster_model::CellId;
use proptest::prelude::*;

use super::{
    at,
    cost::{costs, lengths},
    same_each_time,
};
use crate::{
    Instant, Ns, Predictor, ShapeClass,
    cost::{Costs, Quantile},
    graph::single_input_exec_time,
    policy::slack::{Entry, SlackPredictor, Waiting, slack_alone, slack_batched},
};

#[test]
fn equation_1_the_example_of_figure_10() {
    assert_eq!(slack_alone(30, 2, 8), 20);
}

#[test]
fn equation_2_takes_a_batch_for_the_sum_of_its_inputs_alone() {
    assert_eq!(slack_batched(30, 2, [8]), slack_alone(30, 2, 8));
    assert_eq!(slack_batched(30, 2, [8, 8]), 12);
    assert_eq!(slack_batched(30, 2, [8, 8, 8]), 4);
}

#[test]
fn slack_is_negative_when_the_target_is_missed() {
    assert_eq!(slack_batched(30, 2, [8; 4]), -4);
    assert_eq!(slack_alone(0, Ns::MAX, Ns::MAX), -i64::MAX);
}

#[test]
fn algorithm_1_counts_encoder_and_decoder_nodes_once_a_time_step() {
    let (enc_timesteps, dec_timesteps) = (20, 30);
    let nodes = [(5, 1), (3, enc_timesteps), (7, dec_timesteps), (1, 1)];
    assert_eq!(single_input_exec_time(nodes), 5 + 3 * 20 + 7 * 30 + 1);
    assert_eq!(single_input_exec_time([(5, 1), (3, 0), (7, 0), (1, 1)]), 6);
    assert_eq!(single_input_exec_time([(1, 1); 8]), 8, "figure 10, nodes A to H");
    assert_eq!(single_input_exec_time([]), 0);
}

#[test]
fn covering_fewer_output_lengths_makes_slack_look_larger() {
    let slack = |dec_timesteps| slack_alone(60, 0, single_input_exec_time([(1, dec_timesteps)]));
    assert_eq!([slack(10), slack(32)], [50, 28]);
}

fn entry(next: u16, rows: u32, target: Option<Ns>) -> Entry {
    Entry { next: CellId(next), rows, target: target.map(at), allowance_ns: None, late: false }
}

struct Stack {
    costs: Costs,
    class: ShapeClass,
}

impl Stack {
    /// Eight nodes, A to H, each of which takes one unit for one row and `c` more for each additional row.
    fn of_eight_nodes(c: Ns) -> Self {
        let node: &[(u32, Ns)] = &[(1, 100), (65, 100 + 64 * c)];
        Self { costs: costs(&[node; 8]), class: lengths(&[]) }
    }

    fn by(&self, predictor: Predictor) -> SlackPredictor<'_> {
        SlackPredictor { costs: &self.costs, class: &self.class, predictor }
    }

    /// Returns how long the stack takes, and for each entry how long until those above have caught up with it. `None`
    /// if a stage's time is unknown.
    fn times(&self, entries: &[Entry]) -> (Option<Ns>, Vec<Ns>) {
        let until_done = |entries: &[Entry]| {
            let steps = entries.iter().rev().map(|entry| (entry.next, entry.rows));
            self.costs.staircase(steps, &self.class, Quantile::Mean)
        };
        let resumes = (0..entries.len()).map_while(|at| {
            let rows = entries[at..].iter().map(|entry| entry.rows).sum();
            let rest_ns = self.costs.remaining(entries[at].next, rows, &self.class, Quantile::Mean)?;
            Some(until_done(&entries[at..])? - rest_ns)
        });
        (until_done(entries), resumes.collect())
    }
}

/// Whether `pushed` may become the stack's new top: every row of every entry keeps slack ≥ 0.
trait MayPush {
    fn may_push(&self, now: Ns, entries: &[Entry], pushed: &Entry) -> bool;
}

impl MayPush for SlackPredictor<'_> {
    fn may_push(&self, now: Ns, entries: &[Entry], pushed: &Entry) -> bool {
        let target = pushed.target.filter(|_| !pushed.late);
        let veto = self.veto(at(now), entries, pushed.next, target.into_iter());
        self.keeps(entries, (pushed.next, pushed.rows), veto)
    }
}

#[test]
fn figure_10_each_entry_goes_on_when_those_above_have_caught_up_and_all_complete_together() {
    let stack = Stack::of_eight_nodes(0);
    let at_5 = [entry(2, 1, None), entry(1, 1, None), entry(0, 1, None)];
    assert_eq!(stack.times(&at_5), (Some(800), vec![200, 100, 0]), "merges at B at 6, at C at 7, done at 13");
    assert_eq!(stack.times(&at_5[..2]), (Some(700), vec![100, 0]));
    assert_eq!(stack.times(&at_5[..1]), (Some(600), vec![0]));
}

#[test]
fn each_segment_is_taken_at_the_number_of_rows_that_run_it() {
    let stack = Stack::of_eight_nodes(10);
    let entries = [entry(6, 4, None), entry(4, 2, None), entry(3, 1, None)];
    let (three, four_and_five, six_and_seven) = (100, 2 * 120, 2 * 160);
    let completion = three + four_and_five + six_and_seven;
    assert_eq!(stack.times(&entries), (Some(completion), vec![three + four_and_five, three, 0]));
}

#[test]
fn entries_at_the_same_segment_merge_at_once() {
    let stack = Stack::of_eight_nodes(10);
    assert_eq!(stack.times(&[entry(7, 2, None), entry(7, 1, None)]), (Some(120), vec![0, 0]));
}

#[test]
fn an_empty_stack_takes_no_time_and_one_of_unknown_segments_is_unknown() {
    assert_eq!(Stack::of_eight_nodes(0).times(&[]), (Some(0), vec![]));
    let unknown = Stack { costs: costs(&[&[(1, 100)], &[]]), class: lengths(&[]) };
    assert_eq!(unknown.times(&[entry(0, 1, None)]).0, None);
}

#[test]
fn a_push_is_allowed_up_to_no_slack_at_all() {
    let stack = Stack::of_eight_nodes(10);
    // Two nodes alone to catch up, then six with both rows.
    let completion: Ns = 2 * 100 + 6 * 110;
    let may_push = |target| {
        let below = entry(2, 1, Some(1_000 + target));
        stack.by(Predictor::Oracle).may_push(1_000, &[below], &entry(0, 1, None))
    };
    assert_eq!([may_push(completion - 1), may_push(completion)], [false, true]);
}

#[test]
fn every_entry_of_the_stack_has_a_veto() {
    let stack = Stack::of_eight_nodes(10);
    let completion: Ns = 2 * 100 + 2 * 110 + 4 * 120;
    let tight = |which: usize| {
        let mut entries = [entry(4, 1, Some(10_000)), entry(2, 1, Some(10_000)), entry(0, 1, Some(10_000))];
        entries[which].target = Some(at(completion - 1));
        stack.by(Predictor::Oracle).may_push(0, &entries[..2], &entries[2])
    };
    assert_eq!([tight(0), tight(1)], [false; 2]);
}

#[test]
fn a_push_of_many_rows_may_not_make_its_own_rows_late() {
    let stack = Stack::of_eight_nodes(10);
    let push = |rows| {
        let below = entry(4, 1, None);
        stack.by(Predictor::Oracle).may_push(0, &[below], &entry(0, rows, Some(1_000)))
    };
    // 4 · (100 + 10 (n − 1)) + 4 · (100 + 10 n) = 760 + 80 n.
    assert_eq!([push(3), push(4)], [true, false]);
}

#[test]
fn the_table_keeps_a_margin_that_the_exact_curve_does_not() {
    let stack = Stack::of_eight_nodes(0);
    let may_push =
        |predictor, target| stack.by(predictor).may_push(0, &[entry(2, 1, Some(target))], &entry(0, 1, None));
    assert_eq!([may_push(Predictor::Oracle, 800), may_push(Predictor::Table, 800)], [true, false]);
    assert_eq!([may_push(Predictor::Table, 919), may_push(Predictor::Table, 920)], [false, true], "15 % more");
}

#[test]
fn rows_that_are_late_anyway_have_no_veto() {
    let stack = Stack::of_eight_nodes(10);
    let may_push = |target: Ns, late| {
        let below = Entry { late, ..entry(2, 1, Some(target)) };
        stack.by(Predictor::Oracle).may_push(1_000, &[below], &entry(0, 1, None))
    };
    assert!(may_push(900, false), "its target has passed");
    assert!(may_push(1_599, false), "its remaining 600 end after its target");
    assert!(!may_push(1_600, false), "it would be in time without the push");
    assert!(may_push(1_600, true), "it is marked late");
}

#[test]
fn pushed_rows_that_would_be_late_alone_do_not_forbid_the_push() {
    let stack = Stack::of_eight_nodes(10);
    let may_push = |target| stack.by(Predictor::Oracle).may_push(0, &[entry(2, 1, None)], &entry(0, 2, Some(target)));
    let with_one_row: Ns = 2 * 100 + 6 * 110;
    assert_eq!([may_push(with_one_row - 1), may_push(with_one_row)], [true, false]);
}

#[test]
fn while_a_segment_is_unknown_rows_with_a_target_admit_no_push_and_others_do() {
    let unknown = Stack { costs: costs(&[&[(1, 100)], &[]]), class: lengths(&[]) };
    for predictor in [Predictor::Paper, Predictor::Table, Predictor::Oracle] {
        let with_target = Entry { allowance_ns: Some(Ns::MAX), ..entry(1, 1, Some(Ns::MAX)) };
        let may_push = |below, pushed| unknown.by(predictor).may_push(0, &[below], &pushed);
        assert!(may_push(entry(1, 1, None), entry(0, 1, None)), "{predictor:?}");
        assert!(!may_push(with_target, entry(0, 1, None)), "{predictor:?}");
        assert!(!may_push(entry(1, 1, None), entry(0, 1, Some(Ns::MAX))), "{predictor:?}");
        assert!(may_push(Entry { late: true, ..with_target }, entry(0, 1, None)), "{predictor:?}");
    }
}

#[test]
fn as_published_slack_is_the_sum_of_all_rows_alone_however_far_they_have_come() {
    // Figure 10 in units of 100: SLA 30 minus 2 in the queue leaves 28 for three inputs of 8 each.
    let stack = Stack::of_eight_nodes(0);
    let may_push = |allowance_ns, next| {
        let below = Entry { allowance_ns: Some(allowance_ns), ..entry(next, 2, None) };
        stack.by(Predictor::Paper).may_push(0, &[below], &entry(0, 1, None))
    };
    for next in [1, 7] {
        assert_eq!([may_push(2_800, next), may_push(2_400, next), may_push(2_399, next)], [true, true, false]);
    }
    assert!(may_push(799, 1), "what equation 1 finds late has no veto under equation 2");
    assert!(!may_push(800, 1));
}

#[test]
fn as_published_a_pushed_row_has_from_now_to_its_target() {
    let stack = Stack::of_eight_nodes(0);
    let may_push = |target| stack.by(Predictor::Paper).may_push(500, &[entry(1, 1, None)], &entry(0, 1, Some(target)));
    assert_eq!([may_push(2_099), may_push(2_100)], [false, true]);
}

fn waiting(targets: &[Ns]) -> Vec<Waiting> {
    targets.iter().map(|&target| Waiting { rows: 1, target: Some(at(target)) }).collect()
}

#[test]
fn the_longest_prefix_that_keeps_the_slack_is_pushed() {
    let stack = Stack::of_eight_nodes(10);
    let below = [entry(4, 1, Some(1_000))];
    let pushable = |count: usize, room| {
        stack.by(Predictor::Oracle).pushable(Instant::ZERO, &below, CellId(0), &waiting(&vec![5_000; count]), room)
    };
    // 760 + 80 n, as above.
    assert_eq!([pushable(0, 64), pushable(2, 64), pushable(3, 64), pushable(10, 64)], [0, 2, 3, 3]);
    assert_eq!([pushable(10, 2), pushable(10, 0)], [2, 0]);
}

#[test]
fn requests_are_not_parted_to_fill_the_room() {
    let stack = Stack::of_eight_nodes(10);
    let requests = [3, 4, 1].map(|rows| Waiting { rows, target: None });
    let pushable = |room| stack.by(Predictor::Oracle).pushable(Instant::ZERO, &[], CellId(0), &requests, room);
    assert_eq!([2, 3, 6, 7, 8].map(pushable), [0, 1, 1, 2, 3]);
}

#[test]
fn the_earliest_target_that_can_be_met_bounds_the_prefix() {
    let stack = Stack::of_eight_nodes(10);
    let pushable =
        |targets: &[Ns]| stack.by(Predictor::Oracle).pushable(Instant::ZERO, &[], CellId(0), &waiting(targets), 64);
    // 800 + 80 (n − 1).
    assert_eq!(pushable(&[960, 2_000, 2_000, 2_000]), 3);
    assert_eq!(pushable(&[100, 799, 960, 2_000, 2_000]), 3, "those that are late go first and have no say");
    assert_eq!(pushable(&[100, 200, 300, 400]), 4, "late ones are batched as far as there is room");
}

#[test]
fn onto_an_empty_stack_one_request_always_goes() {
    let unknown = Stack { costs: Costs::new(&[&[]], 64, None), class: lengths(&[]) };
    for predictor in [Predictor::Paper, Predictor::Table, Predictor::Oracle] {
        let pushable =
            |stack: &[Entry]| unknown.by(predictor).pushable(Instant::ZERO, stack, CellId(0), &waiting(&[5, 6]), 64);
        assert_eq!([pushable(&[]), pushable(&[entry(0, 1, None)])], [1, 0], "{predictor:?}");
    }
    let large = [Waiting { rows: 9, target: Some(at(801)) }];
    assert_eq!(Stack::of_eight_nodes(10).by(Predictor::Oracle).pushable(Instant::ZERO, &[], CellId(0), &large, 64), 1);
}

/// Simulates the rule segment by segment: the top runs, and the two topmost entries merge at the same segment.
fn played(segments: u16, time: impl Fn(u16, u32) -> Ns, entries: &[Entry]) -> Ns {
    let mut stack: Vec<(u16, u32)> = entries.iter().map(|entry| (entry.next.0, entry.rows)).collect();
    let mut elapsed = 0;
    loop {
        while let [.., below, top] = stack[..]
            && below.0 == top.0
        {
            stack.truncate(stack.len() - 2);
            stack.push((below.0, below.1 + top.1));
        }
        let Some(top) = stack.last_mut() else { return elapsed };
        elapsed += time(top.0, top.1);
        top.0 += 1;
        if top.0 == segments {
            stack.pop();
        }
    }
}

fn staircase() -> impl Strategy<Value = Vec<Entry>> {
    proptest::collection::vec((0..6_u16, 1..9_u32, proptest::option::of(1..20_000_u64)), 0..5).prop_map(|steps| {
        let mut entries: Vec<Entry> = steps.into_iter().map(|(next, rows, target)| entry(next, rows, target)).collect();
        entries.sort_by_key(|entry| std::cmp::Reverse(entry.next));
        entries
    })
}

proptest! {
    #![proptest_config(same_each_time(256))]

    #[test]
    fn predicted_completion_is_that_of_the_rule_played_segment_by_segment(
        entries in staircase(),
        lines in proptest::collection::vec((1..300_u64, 0..30_u64), 6),
    ) {
        let time = |segment: u16, rows: u32| lines[usize::from(segment)].0 + lines[usize::from(segment)].1 * Ns::from(rows);
        let points: Vec<[(u32, Ns); 2]> = (0..6).map(|segment| [1, 65].map(|rows| (rows, time(segment, rows)))).collect();
        let stages: Vec<&[(u32, Ns)]> = points.iter().map(|points| &points[..]).collect();
        let stack = Stack { costs: costs(&stages), class: lengths(&[]) };
        prop_assert_eq!(stack.times(&entries).0, Some(played(6, time, &entries)));
    }

    #[test]
    fn no_prefix_that_may_be_pushed_is_longer(
        entries in staircase(),
        mut targets in proptest::collection::vec(1..20_000_u64, 0..20),
        now in 0..3_000_u64,
        table in any::<bool>(),
    ) {
        let stack = Stack::of_eight_nodes(10);
        let predictor = stack.by(if table { Predictor::Table } else { Predictor::Oracle });
        targets.sort_unstable();
        let requests = waiting(&targets);
        let count = predictor.pushable(at(now), &entries, CellId(0), &requests, 16);
        let in_time = |target: &Ns| {
            let alone: Vec<Entry> = entries.iter().copied().chain([entry(0, 1, None)]).collect();
            stack.times(&alone).0.is_some_and(|ns| now + ns <= *target)
        };
        let earliest = targets[..targets.len().min(16)].iter().copied().find(in_time);
        let may_push = |rows: usize| predictor.may_push(now, &entries, &entry(0, rows as u32, earliest));
        let least = usize::from(entries.is_empty()).min(targets.len());
        prop_assert!(count == least || may_push(count));
        prop_assert!(count == targets.len().min(16) || !may_push(count + 1));
    }
}
