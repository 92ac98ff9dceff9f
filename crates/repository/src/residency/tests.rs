//! Tests of the rule on small sets of models.

use super::*;

const SECOND: Duration = Duration::from_secs(1);

/// A model of one byte, loaded at 0 in no time and used at this second.
fn model(name: &str, last_used: u32) -> Resident {
    Resident {
        name: name.to_owned(),
        bytes: 1,
        loaded_at: Duration::ZERO,
        load_took: Duration::ZERO,
        last_used: last_used * SECOND,
        uses: Uses::default(),
        hold: None,
        needed_by: Vec::new(),
    }
}

/// A model that took a second to load and may not leave now.
fn held(name: &str, hold: Hold) -> Resident {
    Resident { hold: Some(hold), load_took: SECOND, ..model(name, 0) }
}

fn of_bytes(bytes: usize, resident: Resident) -> Resident {
    Resident { bytes, ..resident }
}

fn unload(names: &[&str]) -> Room {
    Room::Unload(names.iter().map(|&name| name.to_owned()).collect())
}

/// Decides at second 100, where the models are all that takes memory.
fn decide(budget: usize, wanted: usize, residents: &[Resident]) -> Room {
    decide_for(budget, wants(wanted), residents)
}

fn decide_for(budget: usize, wanted: Wanted, residents: &[Resident]) -> Room {
    let used = residents.iter().map(|resident| resident.bytes).sum();
    room(budget, used, wanted, residents, 100 * SECOND)
}

/// A load that has just begun to wait.
fn wants(bytes: usize) -> Wanted {
    Wanted { bytes, uses: 1.0, since: 100 * SECOND, longest_wait: 15 * SECOND }
}

#[test]
fn what_fits_evicts_nothing_and_else_the_least_recently_used_leave() {
    let models = [model("b", 20), model("a", 10), model("c", 30)];
    assert_eq!(decide(4, 1, &models), Room::Free);
    assert_eq!(decide(3, 1, &models), unload(&["a"]));
    assert_eq!(decide(3, 2, &models), unload(&["a", "b"]));
    assert_eq!(decide(3, 3, &models), unload(&["a", "b", "c"]));
    assert_eq!(room(3, 5, wants(0), &models, 100 * SECOND), unload(&["a", "b"]), "more is used than the budget has");
}

#[test]
fn a_model_that_need_not_leave_after_all_stays() {
    let models = [model("small", 10), of_bytes(5, model("large", 20))];
    assert_eq!(decide(6, 5, &models), unload(&["large"]), "its memory alone is enough");
    assert_eq!(decide(6, 6, &models), unload(&["small", "large"]));
}

#[test]
fn models_with_requests_sequences_or_a_pin_never_leave() {
    let models = [held("busy", Hold::Busy), held("sequences", Hold::Sequences(2)), held("pinned", Hold::Pinned)];
    let wait = Room::Wait { until: None };
    assert_eq!(decide(3, 1, &models), wait);
    let with_another = [&models[..], &[model("other", 99)]].concat();
    assert_eq!(decide(4, 1, &with_another), unload(&["other"]));
    assert_eq!(decide(4, 2, &with_another), wait, "nothing leaves in vain");
}

#[test]
fn what_can_never_fit_is_refused_at_once() {
    assert_eq!(decide(3, 4, &[]), Room::Never, "a budget below one model");
    let stays = [held("pinned", Hold::Pinned), held("sent", Hold::Sent), held("busy", Hold::Busy)];
    assert_eq!(decide(3, 2, &stays), Room::Never, "two bytes are held for good");
    assert_eq!(decide(3, 1, &stays), Room::Wait { until: None });
}

#[test]
fn a_model_stays_ten_times_as_long_as_its_load_took_and_a_minute_at_most() {
    let loaded = |took: Duration| [Resident { load_took: took, loaded_at: 90 * SECOND, ..model("m", 90) }];
    assert_eq!(decide(1, 1, &loaded(SECOND)), unload(&["m"]), "ten seconds have passed");
    let later = |seconds: u32| Room::Wait { until: Some(seconds * SECOND) };
    assert_eq!(decide(1, 1, &loaded(2 * SECOND)), later(110));
    assert_eq!(decide(1, 1, &loaded(3600 * SECOND)), later(150));
    let [second] = loaded(3 * SECOND);
    let both = [&loaded(2 * SECOND)[..], &[Resident { name: "second".to_owned(), ..second }]].concat();
    assert_eq!(decide(2, 1, &both), later(110), "the first that may leave");
    assert_eq!(decide(2, 2, &both), later(120), "both must leave");
    let one_busy = [&loaded(2 * SECOND)[..], &[held("busy", Hold::Busy)]].concat();
    assert_eq!(decide(2, 2, &one_busy), Room::Wait { until: None }, "time alone is not enough");
}

#[test]
fn a_model_that_is_needed_more_leaves_once_another_has_waited_ten_times_as_long_as_its_load_took() {
    let used = |count| Resident { uses: Uses { count, at: 98 * SECOND }, load_took: SECOND, ..model("used", 98) };
    let waits = |since: u32, wanted| Wanted { since: since * SECOND, ..wanted };
    let wait = Room::Wait { until: None };
    assert_eq!(decide(1, 1, &[used(4.0)]), unload(&["used"]), "two half-lives ago");
    assert_eq!(decide(1, 1, &[used(5.0)]), wait, "it is used more");
    let as_much = Wanted { uses: 1.25, ..wants(1) };
    assert_eq!(decide_for(1, as_much, &[used(5.0)]), unload(&["used"]));
    for needed_more in [used(5.0), held("used", Hold::Busy)] {
        let residents = [Resident { name: "used".to_owned(), ..needed_more }];
        assert_eq!(decide_for(1, waits(91, wants(1)), &residents), wait, "nine seconds");
        assert_eq!(decide_for(1, waits(90, wants(1)), &residents), unload(&["used"]), "ten");
        let slow = residents.map(|resident| Resident { load_took: 9 * SECOND, ..resident });
        assert_eq!(decide_for(1, waits(86, wants(1)), &slow), wait);
        assert_eq!(decide_for(1, waits(85, wants(1)), &slow), unload(&["used"]), "as long as it may wait");
    }
    let young = [Resident { loaded_at: 95 * SECOND, ..held("used", Hold::Busy) }];
    assert_eq!(decide_for(1, waits(0, wants(1)), &young), wait, "it stays after its load first");
    for hold in [Hold::Sequences(1), Hold::Pinned, Hold::Sent] {
        assert!(!matches!(decide_for(1, waits(0, wants(1)), &[held("held", hold)]), Room::Unload(_)), "{hold:?}");
    }
    let both = [held("busy", Hold::Busy), model("idle", 99)];
    assert_eq!(decide_for(2, waits(0, wants(1)), &both), unload(&["idle"]), "one without requests first");
}

#[test]
fn uses_count_half_as_much_after_each_half_life() {
    let uses = [1, 1, 2].into_iter().fold(Uses::default(), |uses, second| uses.with_one(second * SECOND));
    assert_eq!((uses.count_at(2 * SECOND), uses.count_at(4 * SECOND)), (2.0, 0.5));
    assert_eq!(uses.count_at(SECOND), 2.0, "a clock that two threads read does not go back");
}

#[test]
fn the_models_of_a_pipeline_leave_only_with_it() {
    let step = |name: &str, by: &[&str]| Resident {
        needed_by: by.iter().map(|&by| by.to_owned()).collect(),
        ..of_bytes(10, model(name, 1))
    };
    let models = [step("a", &["p"]), step("b", &["p", "q"]), model("p", 50), model("q", 60)];
    assert_eq!(decide(22, 5, &models), unload(&["p", "a"]));
    assert_eq!(decide(22, 15, &models), unload(&["p", "a", "q", "b"]));
    let busy = [step("a", &["p"]), held("p", Hold::Busy)];
    assert_eq!(decide(11, 5, &busy), Room::Wait { until: None });
    let loading = [step("a", &["is being loaded"])];
    assert_eq!(decide(10, 5, &loading), Room::Wait { until: None });
}

#[test]
fn idle_models_are_those_without_requests_for_so_long() {
    let now = 100 * SECOND;
    assert!(model("m", 90).is_idle(10 * SECOND, now));
    assert!(!model("m", 91).is_idle(10 * SECOND, now));
    assert!(!held("m", Hold::Sequences(1)).is_idle(10 * SECOND, now));
    assert!(!Resident { needed_by: vec!["p".to_owned()], ..model("m", 0) }.is_idle(SECOND, now));
}

#[test]
fn a_refusal_names_the_largest_models_and_why_each_stays() {
    let young = Resident { loaded_at: 99 * SECOND, load_took: SECOND, ..of_bytes(5, model("young", 99)) };
    let step = Resident { needed_by: vec!["p".to_owned()], ..of_bytes(4, model("step", 1)) };
    let models = [
        of_bytes(9, held("pinned", Hold::Pinned)),
        of_bytes(8, held("sent", Hold::Sent)),
        held("small", Hold::Busy),
        of_bytes(7, held("busy", Hold::Busy)),
        of_bytes(6, held("sequences", Hold::Sequences(3))),
        young.clone(),
        step.clone(),
    ];
    let said = |residents: &[Resident]| Holders { residents, now: 100 * SECOND, is_on_demand: true }.to_string();
    assert_eq!(
        said(&models),
        "held by 'pinned' (9 bytes, pinned), 'sent' (8 bytes, sent by a client), 'busy' (7 bytes, busy), 'sequences' \
         (6 bytes, open sequences: 3), 'young' (5 bytes, loaded recently, stays 9.0s) and 2 more"
    );
    assert_eq!(said(&[step, model("m", 1)]), "held by 'step' (4 bytes, needed by 'p'), 'm' (1 bytes, idle)");
    assert_eq!(said(&[]), "loads in progress and requests of unloaded models hold the rest");
    let elsewhere = Holders { residents: &models[..1], now: Duration::ZERO, is_on_demand: false };
    assert_eq!(elsewhere.to_string(), "held by 'pinned' (9 bytes, loaded)");
}
