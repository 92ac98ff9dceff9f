//! Triton's dynamic batcher over plain slices, as described in its documentation: the reference for `window`. Its batch
//! ends at the first request of another shape, whereas `window` also takes later ones that fit.

use crate::{Instant, Knobs, Policy, WindowKnobs};

/// What Triton would do with the pending batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Run this many requests from the front now.
    Run(usize),
    /// Wait until this time.
    Wait(Instant),
}

/// The waiting requests, as far as they affect the pending batch.
#[derive(Clone, Debug)]
pub(super) struct Queue {
    /// Rows and arrival of the first request and of all that may share its batch, in boarding order; not empty.
    pub(super) sub_queue: Vec<(u32, Instant)>,
    /// Whether a waiting request cannot join the batch, or arrived after the first request but boarded ahead of it.
    pub(super) is_closed: bool,
}

/// Returns what happens to the pending batch at `now`, when a lane is free.
pub(super) fn verdict(knobs: &Knobs, queue: &Queue, now: Instant) -> Verdict {
    let sub_queue = &queue.sub_queue;
    let window = match &knobs.policy {
        Policy::Window(window) if knobs.mergeable => window,
        _ => return Verdict::Run(1),
    };
    let sizes = preferred_sizes(knobs, window);
    let largest_preferred = *sizes.iter().max().expect("there is a preferred size");

    let totals: Vec<u32> = sub_queue
        .iter()
        .scan(0, |total, &(rows, _)| {
            *total += rows;
            Some(*total)
        })
        .collect();
    let fitting = totals.iter().take_while(|&&total| total <= knobs.max_batch_rows).count();
    let hit = (0..fitting).rev().find(|&last| sizes.contains(&totals[last]));
    let short_of_all = totals.iter().take_while(|&&total| total <= largest_preferred).count().max(1);

    let oldest = sub_queue[..fitting].iter().map(|&(_, arrived)| arrived).min().expect("one request always fits");
    let delay_exceeded = window.max_queue_delay_ns > 0 && now >= oldest + window.max_queue_delay_ns;
    if delay_exceeded {
        return Verdict::Run(fitting);
    }
    if let Some(last) = hit {
        return Verdict::Run(last + 1);
    }
    if short_of_all < sub_queue.len() {
        return Verdict::Run(short_of_all);
    }
    if queue.is_closed || window.max_queue_delay_ns == 0 || totals[fitting - 1] >= largest_preferred {
        return Verdict::Run(fitting);
    }
    Verdict::Wait(oldest + window.max_queue_delay_ns)
}

fn preferred_sizes(knobs: &Knobs, window: &WindowKnobs) -> Vec<u32> {
    let mut sizes = window.preferred_batch_sizes.clone();
    sizes.retain(|&size| size > 0 && size <= knobs.max_batch_rows);
    if sizes.is_empty() {
        sizes.push(knobs.max_batch_rows);
    }
    sizes
}
