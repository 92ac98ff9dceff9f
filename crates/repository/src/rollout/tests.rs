//! Shares of requests.

use std::collections::BTreeMap;

use super::*;

fn drawn(shares: &[(i64, u32)], count: u64) -> BTreeMap<i64, u64> {
    let mut drawn = BTreeMap::new();
    for number in 0..count {
        let fraction = fraction_of("m", &number.to_le_bytes());
        *drawn.entry(pick(shares.iter().copied(), fraction).expect("a share above 0")).or_default() += 1;
    }
    drawn
}

#[test]
fn requests_are_divided_by_shares() {
    let drawn = drawn(&[(1, 95), (2, 5)], 100_000);
    let share = drawn[&2] as f64 / 1e5;
    assert!((share - 0.05).abs() < 0.003, "{share}");
    assert_eq!(drawn.values().sum::<u64>(), 100_000);
}

#[test]
fn every_fraction_has_a_version() {
    let shares = [(1, 1), (2, 1_000_000), (7, 3)];
    assert_eq!(pick(shares.into_iter(), 0), Some(7));
    assert_eq!(pick(shares.into_iter(), u64::MAX), Some(1));
    assert_eq!(pick([(3, 1)].into_iter(), u64::MAX), Some(3));
    assert_eq!(pick(std::iter::empty::<(i64, u32)>(), 5), None);
}

#[test]
fn a_growing_share_keeps_its_clients() {
    let of = |share: u32, number: u64| {
        pick([(1, 100 - share), (2, share)].into_iter(), fraction_of("m", &number.to_le_bytes()))
    };
    for number in 0..10_000 {
        assert!(of(5, number) != Some(2) || of(10, number) == Some(2), "client {number} lost the new version");
    }
}

#[test]
fn clients_of_one_model_are_not_those_of_another() {
    let both = (0..1000_u64).filter(|number| {
        let is_low = |model| fraction_of(model, &number.to_le_bytes()) < u64::MAX / 10;
        is_low("a") && is_low("b")
    });
    assert!(both.count() < 40, "ten in a thousand are expected");
}
