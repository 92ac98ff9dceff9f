//! Plan A against plan B: some rows run and others follow, or both run together. What counts is the sum of all rows'
//! times to completion.

/// Rows that run as one batch, and how long it takes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run {
    pub(super) rows: u32,
    pub(super) ns: f64,
}

/// By how much the sum of all completion times is shorter, in nanoseconds, if the rows of `first` and `second` run
/// together, which takes `together_ns`. Else the second begin `wait_ns` after the first. Further rows `behind` them,
/// not always a whole number, wait for the device until both are done.
pub(super) fn gain_ns(first: Run, second: Run, wait_ns: f64, together_ns: f64, behind: f64) -> f64 {
    let (own, others) = (f64::from(first.rows), f64::from(second.rows));
    let apart = own * first.ns + others * (wait_ns + second.ns) + behind * (first.ns + second.ns);
    apart - (own + others + behind) * together_ns
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: Run = Run { rows: 2, ns: 10.0 };
    const SECOND: Run = Run { rows: 1, ns: 8.0 };

    #[test]
    fn waiting_for_the_first_counts_against_running_apart() {
        assert_eq!(gain_ns(FIRST, SECOND, 10.0, 12.0, 0.0), 2.0, "2 * 10 + 18 apart, 3 * 12 together");
        assert_eq!(gain_ns(FIRST, SECOND, 0.0, 12.0, 0.0), -8.0, "a second lane idles");
    }

    #[test]
    fn rows_behind_both_gain_what_the_device_saves() {
        assert_eq!(gain_ns(FIRST, SECOND, 10.0, 12.0, 4.0), 2.0 + 4.0 * 6.0);
    }
}
