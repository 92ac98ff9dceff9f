//! Comparison of two plans: run two groups of rows one after the other, or together. The measure is the sum of all
//! rows' completion times.

/// Rows that run as one batch, and the duration of that run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run {
    pub(super) rows: u32,
    pub(super) ns: f64,
}

/// Returns by how much the sum of all completion times shrinks, in nanoseconds, if the rows of `first` and `second` run
/// together in `together_ns` instead of apart, where `second` starts `wait_ns` after `first`. `behind` further rows
/// (possibly a fraction) wait until both are done.
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
