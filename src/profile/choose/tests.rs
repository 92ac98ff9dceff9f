use super::*;
use crate::profile::Point;

/// A cut whose stages take the times given for 1, 2, 4 and 8 rows, in microseconds.
fn cut(length: u32, stages: &[[Ns; 4]]) -> CutTable {
    let points = |times: &[Ns; 4]| {
        let of = |(rows, us): (u32, &Ns)| Point { rows, length, median_ns: us * 1000, p99_ns: us * 1000, runs: 20 };
        [1, 2, 4, 8].into_iter().zip(times).map(of).collect()
    };
    CutTable { at: Vec::new(), stages: stages.iter().map(points).collect() }
}

fn profile_of(padded_axes: u32, cuts: Vec<CutTable>) -> Profile {
    Profile { model: "m".to_owned(), max_rows: 8, padded_axes, cuts }
}

/// A row in a batch of eight takes a quarter of a row alone.
const GAINS: [Ns; 4] = [1000, 1100, 1500, 2000];
/// It takes as long.
const LINE: [Ns; 4] = [1000, 2000, 4000, 8000];

const INPUT: ChosenPolicy = ChosenPolicy::Diversity { input: true, operator: false, load: false };
const LOAD: ChosenPolicy = ChosenPolicy::Diversity { input: false, operator: false, load: true };

fn even(count: u64) -> CutTable {
    cut(0, &vec![GAINS.map(|us| us / count); usize::try_from(count).expect("it is small")])
}

#[test]
fn the_preferred_size_is_the_smallest_near_the_best_throughput() {
    let found = Findings::of(&profile_of(0, vec![cut(0, &[[1000, 1040, 2000, 3900]])])).expect("one row was measured");
    assert_eq!(found.preferred_rows, [[4]], "4 rows in 2 ms are 2.6 % slower than 8 in 3.9");
    assert_eq!((found.alone_ns, found.together_rows, found.together_row_ns), (1_000_000, 8, 487_500.0));
    assert!(found.load_diversity && !found.operator_diversity && !found.input_diversity);
}

#[test]
fn joining_pays_up_to_seven_tenths() {
    let at = |us| Findings::of(&profile_of(0, vec![cut(0, &[[1000, 2000, 4000, us]])])).expect("it was measured");
    assert!(at(5600).load_diversity);
    assert!(!at(5601).load_diversity);
}

#[test]
fn where_batching_gains_little_nothing_waits_and_nothing_is_cut() {
    let choice = choose(&profile_of(1, vec![cut(64, &[LINE])]), None).expect("it was measured");
    assert_eq!((choice.stages, choice.policy), (1, ChosenPolicy::Window));
    assert_eq!(choice.batch_buckets, [1, 2, 4, 8]);
    assert!(choice.reasons[0].contains("gains little: T(8)/8 is 1.00 of T(1) = 1000 µs"), "{:?}", choice.reasons);
    let Policy::Window(window) = choice.policy.knobs() else { panic!("it is a window") };
    assert_eq!(window.max_queue_delay_ns, 0);
}

#[test]
fn lengths_that_differ_are_grouped_in_one_stage() {
    let cuts = vec![cut(64, &[GAINS]), cut(64, &[GAINS.map(|us| us / 2); 2])];
    let choice = choose(&profile_of(1, cuts), None).expect("it was measured");
    assert_eq!((choice.stages, choice.policy), (1, INPUT));
    let input = InputDiversity::default();
    let knobs = DiversityKnobs { input: Some(input), operator: None, load: None };
    assert_eq!(choice.policy.knobs(), Policy::Diversity(knobs));
}

#[test]
fn stages_are_as_many_as_shorten_the_way_of_a_newcomer() {
    let choice = choose(&profile_of(0, vec![even(1), even(2), even(4), even(8)]), None).expect("it was measured");
    // 1500, 1255, 1140 and 1097.5 µs.
    assert_eq!((choice.stages, choice.policy), (8, LOAD));
    assert!(choice.reasons[1].contains("5 µs a boundary make 1: 1500 µs, 2: 1255 µs, 4: 1140 µs, 8: 1098 µs"));
}

#[test]
fn boundaries_that_cost_more_than_they_gain_are_not_made() {
    let dear = cut(0, &[GAINS.map(|us| us * 7 / 10); 2]);
    let choice = choose(&profile_of(0, vec![even(1), dear]), None).expect("it was measured");
    // 1500 µs, and 350 + 1400 + 5.
    assert_eq!((choice.stages, choice.policy), (1, ChosenPolicy::Window));
}

#[test]
fn stages_that_prefer_other_batches_are_split_for() {
    let likes_many = [500, 510, 520, 540];
    let likes_few = [500, 990, 1980, 3960];
    let cuts = |length| vec![cut(length, &[[1000, 1500, 2500, 4500]]), cut(length, &[likes_many, likes_few])];
    let grouped = choose(&profile_of(1, cuts(64)), None).expect("it was measured");
    assert_eq!(
        (grouped.stages, grouped.policy),
        (2, ChosenPolicy::Diversity { input: true, operator: true, load: false })
    );
    assert!(grouped.reasons.iter().any(|why| why.contains("prefer [8, 1] rows")), "{:?}", grouped.reasons);
    let alike = choose(&profile_of(0, cuts(0)), None).expect("it was measured");
    assert_eq!((alike.stages, alike.policy), (2, ChosenPolicy::Diversity { input: false, operator: true, load: true }));
}

#[test]
fn sizes_preferred_by_a_hair_make_no_diversity() {
    let (flat, flatter) = ([500, 990, 1980, 3960], [500, 900, 1800, 3600]);
    let staged = cut(64, &[flat, flatter]);
    let found = Findings::of(&profile_of(1, vec![cut(64, &[GAINS]), staged])).expect("one row was measured");
    assert_eq!(found.preferred_rows[1], [1, 2], "one size is twice the other");
    assert!(!found.operator_diversity, "but it would do nearly as well with one row");
}

#[test]
fn stages_that_the_configuration_names_stay() {
    let fixed = choose(&profile_of(0, vec![even(1), even(3)]), Some(3)).expect("it was measured");
    assert_eq!((fixed.stages, fixed.policy), (3, LOAD));
    let little = choose(&profile_of(0, vec![cut(0, &[LINE])]), Some(3)).expect("it was measured");
    assert_eq!((little.stages, little.policy), (3, ChosenPolicy::Window));
}

#[test]
fn a_profile_without_one_row_chooses_nothing() {
    let mut table = even(1);
    table.stages[0].remove(0);
    assert_eq!(choose(&profile_of(0, vec![table]), None), None);
}
