use paternoster_batching::Ns;

use super::*;
use crate::LatencyPoint;

/// Creates a cut whose stages take these times for 1, 2, 4 and 8 rows, in microseconds.
fn cut(length: u32, stages: &[[Ns; 4]]) -> CutTable {
    let points = |times: &[Ns; 4]| {
        let of =
            |(rows, us): (u32, &Ns)| LatencyPoint { rows, length, median_ns: us * 1000, p99_ns: us * 1000, runs: 20 };
        [1, 2, 4, 8].into_iter().zip(times).map(of).collect()
    };
    CutTable { at: Vec::new(), stages: stages.iter().map(points).collect(), scatter: Vec::new() }
}

fn profile_of(padded_axes: u32, cuts: Vec<CutTable>) -> Profile {
    Profile { model: "m".to_owned(), max_rows: 8, padded_axes, cuts, ..Profile::default() }
}

/// A row in a batch of eight takes a quarter of the time of a single row.
const GAINS: [Ns; 4] = [1000, 1100, 1500, 2000];
/// A row in a batch takes as long as a single row.
const LINE: [Ns; 4] = [1000, 2000, 4000, 8000];

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
    let choice = choose(&profile_of(0, vec![cut(0, &[LINE])]), None).expect("it was measured");
    assert_eq!((choice.stages, choice.policy), (1, ChosenPolicy::Auto));
    assert_eq!(choice.batch_buckets, [1, 2, 4, 8]);
    assert!(choice.reasons[0].contains("gains little: T(8)/8 is 1.00 of T(1) = 1000 µs"), "{:?}", choice.reasons);
    let padded = choose(&profile_of(1, vec![cut(64, &[LINE])]), None).expect("it was measured");
    assert_eq!((padded.stages, padded.policy), (1, ChosenPolicy::Auto), "padding costs all the more");
}

#[test]
fn where_busy_lanes_do_best_with_one_row_each_requests_run_one_by_one() {
    // On one lane, eight rows take 6 % less per row; on two lanes, two rows take `us` and one takes 1500.
    let side_by_side = |padded_axes, eight, us| {
        let points = cut(0, &[[1500, us, 6600, 13_000]]).stages.remove(0);
        let profile = profile_of(padded_axes, vec![cut(0, &[[1000, 1900, 3800, eight]])]);
        choose(&Profile { side_by_side: points, ..profile }, None).expect("it was measured").policy
    };
    assert_eq!(side_by_side(0, 7520, 2860), ChosenPolicy::Serial, "4.7 % less a row is noise");
    assert_eq!(side_by_side(0, 7520, 2840), ChosenPolicy::Auto);
    assert_eq!(side_by_side(0, 2000, 2860), ChosenPolicy::Serial, "whatever batches gain on a device of their own");
    assert_eq!(side_by_side(1, 7520, 2860), ChosenPolicy::Auto, "what lengths change was not measured");
    assert_eq!(ChosenPolicy::Serial.knobs(), Policy::Serial);
    let alone = cut(0, &[GAINS]).stages.remove(0)[..1].to_vec();
    let gains = Profile { side_by_side: alone, ..profile_of(0, vec![cut(0, &[LINE])]) };
    assert_eq!(
        choose(&gains, None).expect("it was measured").policy,
        ChosenPolicy::Auto,
        "there was no time for larger ones"
    );
}

#[test]
fn lengths_that_differ_are_grouped_in_one_stage() {
    let cuts = vec![cut(64, &[GAINS]), cut(64, &[GAINS.map(|us| us / 2); 2])];
    let choice = choose(&profile_of(1, cuts), None).expect("it was measured");
    assert_eq!((choice.stages, choice.policy), (1, ChosenPolicy::Auto));
    assert_eq!(choice.policy.knobs(), Policy::Auto(AutoKnobs::default()));
}

#[test]
fn stages_are_as_many_as_shorten_the_way_of_a_newcomer() {
    let choice = choose(&profile_of(0, vec![even(1), even(2), even(4), even(8)]), None).expect("it was measured");
    // 1500, 1255, 1140 and 1097.5 µs.
    assert_eq!((choice.stages, choice.policy), (8, ChosenPolicy::Auto));
    assert!(choice.reasons[1].contains("5 µs a boundary make 1: 1500 µs, 2: 1255 µs, 4: 1140 µs, 8: 1098 µs"));
}

#[test]
fn cuts_that_make_batches_slower_are_not_made() {
    let with =
        |stage: [Ns; 4]| choose(&profile_of(0, vec![even(1), cut(0, &[stage; 2])]), None).expect("it was measured");
    // A request that arrives at a random moment would complete after 255 + 1020 + 5 µs instead of 1500.
    let cheap = with([510, 560, 760, 1020]);
    assert_eq!((cheap.stages, cheap.policy), (2, ChosenPolicy::Auto));
    for dear in [[511, 560, 760, 1020], [510, 560, 760, 1021]] {
        let choice = with(dear);
        assert_eq!((choice.stages, choice.policy), (1, ChosenPolicy::Auto));
        assert!(choice.reasons[1].contains("more than 2 % slower are left out"), "{:?}", choice.reasons);
    }
}

#[test]
fn stages_that_prefer_other_batches_are_split_for() {
    // At its best batch size, a row takes 540 / 8 µs in one stage and 500 µs in the other.
    let likes_many = [500, 510, 520, 540];
    let likes_few = [500, 1100, 2300, 4800];
    let together = [1000, 1610, 2820, 5340];
    let cuts = |length| vec![cut(length, &[together]), cut(length, &[likes_many, likes_few])];
    let grouped = choose(&profile_of(1, cuts(64)), None).expect("it was measured");
    assert_eq!((grouped.stages, grouped.policy), (2, ChosenPolicy::Auto));
    assert!(
        grouped.reasons.iter().any(|why| why.contains("gain by batches of different sizes")),
        "{:?}",
        grouped.reasons
    );
    let mut rough = cuts(64);
    rough[1].stages.iter_mut().flatten().for_each(|point| point.runs = 2);
    let rough = choose(&profile_of(1, rough), None).expect("it was measured");
    assert_eq!((rough.stages, rough.policy), (1, ChosenPolicy::Auto), "two runs may differ by chance");
}

#[test]
fn sizes_preferred_by_a_hair_make_no_diversity() {
    let (flat, flatter) = ([500, 990, 1980, 3960], [500, 900, 1800, 3600]);
    let staged = cut(64, &[flat, flatter]);
    let found = Findings::of(&profile_of(1, vec![cut(64, &[[1000, 1890, 3780, 7560]]), staged]));
    let found = found.expect("one row was measured");
    assert_eq!(found.preferred_rows[1], [1, 2], "one size is twice the other");
    assert!(!found.operator_diversity, "but both do as well with two rows");
}

/// A model whose first half takes as long for any batch, and whose second as long for each row, in microseconds. The
/// measured cut between them takes `extra` longer.
fn of_halves(extra: Ns) -> Profile {
    let (flat, by_row) = ([1000; 4], [300, 600, 1200, 2400]);
    let at = |cut: CutTable| CutTable { at: vec!["middle".to_owned()], ..cut };
    let mut profile = profile_of(0, vec![cut(0, &[[1300, 1600, 2200, 3400]]), even(2)]);
    profile.ranges = Some(at(cut(0, &[flat, by_row])));
    profile.by_operators = Some(at(cut(0, &[flat.map(|us| us + extra), by_row])));
    profile
}

#[test]
fn a_model_is_cut_where_preferred_batches_change_if_that_was_measured_to_gain() {
    let cut = choose(&of_halves(0), None).expect("it was measured");
    assert_eq!((cut.stages, cut.cut_at, cut.policy), (2, vec!["middle".to_owned()], ChosenPolicy::Auto));
    let expected = "cut where preferred batches change, at middle: a row of a batch of 8 is done after 2355 µs on average \
                    instead of 3400";
    assert_eq!(cut.reasons[1], expected);
    let dear = choose(&of_halves(900), None).expect("it was measured");
    assert_eq!(dear.cut_at, [""; 0], "{:?}", dear.reasons);
    assert!(dear.reasons[1].starts_with("not cut where preferred batches change"), "{:?}", dear.reasons);
    let fixed = choose(&of_halves(0), Some(2)).expect("it was measured");
    assert_eq!((fixed.stages, fixed.cut_at.len()), (2, 0), "the configuration names equal stages");
}

#[test]
fn stages_that_the_configuration_names_stay() {
    let fixed = choose(&profile_of(0, vec![even(1), even(3)]), Some(3)).expect("it was measured");
    assert_eq!((fixed.stages, fixed.policy), (3, ChosenPolicy::Auto));
    let little = choose(&profile_of(0, vec![cut(0, &[LINE])]), Some(3)).expect("it was measured");
    assert_eq!((little.stages, little.policy), (3, ChosenPolicy::Auto));
}

#[test]
fn a_profile_without_one_row_chooses_nothing() {
    let mut table = even(1);
    table.stages[0].remove(0);
    assert_eq!(choose(&profile_of(0, vec![table]), None), None);
}
