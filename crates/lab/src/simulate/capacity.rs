//! Capacity planning: how many devices are enough.

/// Returns the smallest number of devices, at most `most`, for which `enough` is true; `None` if it is false even for
/// `most`. Tries powers of two, and then bisects, so `enough` must be monotone.
pub fn fewest_devices(most: u16, mut enough: impl FnMut(u16) -> bool) -> Option<u16> {
    let mut few = 0;
    let mut many = 1.min(most);
    while many > few && !enough(many) {
        few = many;
        many = many.saturating_mul(2).min(most);
    }
    if many == few {
        return None;
    }
    while many - few > 1 {
        let middle = few + (many - few) / 2;
        if enough(middle) {
            many = middle;
        } else {
            few = middle;
        }
    }
    Some(many)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fewest_that_are_enough_are_found() {
        for least in 1..=40 {
            let mut asked = 0;
            let found = fewest_devices(40, |devices| {
                asked += 1;
                devices >= least
            });
            assert_eq!(found, Some(least));
            assert!(asked <= 12, "{asked} runs for {least}");
        }
        assert_eq!(fewest_devices(40, |devices| devices > 40), None);
        assert_eq!(fewest_devices(0, |_| true), None);
    }
}
