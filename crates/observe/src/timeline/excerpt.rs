//! The end of a picture, of bounded size, for the web page.

use std::{cmp::Reverse, collections::BTreeMap};

use serde::Serialize;

use super::{
    change::Change,
    picture::{Kind, LANES, Picture, Process, Row, Span},
};

/// Limits of an excerpt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Length before the last event, in nanoseconds.
    pub length_ns: u64,
    /// Number of rows per track; the first ones are shown.
    pub rows: u32,
    /// Number of spans; the latest ones are shown.
    pub spans: usize,
}

/// The end of a picture. Times are in microseconds from its start.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Excerpt<'p> {
    length_us: f64,
    /// Number of spans within this time that are omitted.
    left_out: usize,
    /// Models first and lanes last, in drawing order.
    tracks: Vec<Track<'p>>,
}

/// A model version, or the lanes.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct Track<'p> {
    name: &'p str,
    rows: Vec<TrackRow<'p>>,
}

/// Spans that do not overlap.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct TrackRow<'p> {
    /// The lane; empty for requests.
    name: &'p str,
    spans: Vec<TrackSpan<'p>>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
struct TrackSpan<'p> {
    from_us: f64,
    to_us: f64,
    kind: Kind,
    request: Option<u64>,
    stage: Option<u16>,
    batch: Option<u64>,
    rows: u32,
    changes: &'p [Change],
    failed: bool,
    open: bool,
}

impl Picture {
    /// Extracts the end of the picture.
    pub fn excerpt(&self, bounds: Bounds) -> Excerpt<'_> {
        let Some(last_ns) = self.spans.iter().map(|span| span.to_ns).max() else { return Excerpt::default() };
        let begin_ns = self.spans.iter().map(|span| span.from_ns).min().unwrap_or(last_ns);
        let from_ns = begin_ns.max(last_ns.saturating_sub(bounds.length_ns));
        let mut within: Vec<&Span> = self.spans.iter().filter(|span| span.to_ns > from_ns).collect();
        let all = within.len();
        within.retain(|span| span.row.row <= bounds.rows);
        within.sort_by_key(|span| (Reverse(span.to_ns), span.row));
        // If there are too many spans, the period is shortened, so that it is covered completely.
        let from_ns = within.get(bounds.spans).map_or(from_ns, |first_left_out| first_left_out.to_ns);
        within.truncate(bounds.spans);
        let left_out = all - within.len();

        let us = |at_ns: u64| at_ns.saturating_sub(from_ns) as f64 / 1e3;
        let mut rows: BTreeMap<Row, Vec<TrackSpan<'_>>> = BTreeMap::new();
        for Span { row, from_ns, to_ns, kind, facts } in within.into_iter().rev() {
            rows.entry(*row).or_default().push(TrackSpan {
                from_us: us(*from_ns),
                to_us: us(*to_ns),
                kind: *kind,
                request: facts.request,
                stage: facts.stage,
                batch: facts.batch,
                rows: facts.rows,
                changes: &facts.changes,
                failed: facts.failed,
                open: facts.open,
            });
        }
        let (lanes, models): (Vec<_>, Vec<_>) = self.processes.iter().partition(|process| process.id == LANES);
        let tracks = models.into_iter().chain(lanes).filter_map(|process| track(process, &mut rows));
        Excerpt { length_us: us(last_ns), left_out, tracks: tracks.collect() }
    }
}

/// Returns the rows of a process that have spans, if any.
fn track<'p>(process: &'p Process, rows: &mut BTreeMap<Row, Vec<TrackSpan<'p>>>) -> Option<Track<'p>> {
    let mut of_process = Vec::new();
    for (&row, name) in &process.rows {
        if let Some(spans) = rows.remove(&Row { process: process.id, row }) {
            let name = if process.id == LANES { name.as_str() } else { "" };
            of_process.push(TrackRow { name, spans });
        }
    }
    let is_empty = of_process.is_empty();
    (!is_empty).then_some(Track { name: &process.name, rows: of_process })
}

#[cfg(test)]
mod tests {
    use super::{
        super::{TaskLaunch, TaskRows, Timeline},
        *,
    };
    use crate::RequestEnd;

    /// A picture of `count` consecutive requests, each with a task of one millisecond.
    fn picture(count: u64) -> Picture {
        let timeline = Timeline::on(10_000);
        timeline.model_up(0, "minilm", 2);
        for n in 0..count {
            let at_ns = n * 1_000_000;
            timeline.arrived(at_ns, n, 0, 1);
            let launch = TaskLaunch { task: n, model: 0, stage: 0, lane: 0, batch: n, bucket_rows: 1, lengths: &[] };
            timeline.launched(at_ns, &launch, [TaskRows { req: n, start: 0, count: 1, at: 0 }]);
            timeline.completed(at_ns + 900_000, n, false);
            timeline.ended(at_ns + 900_000, n, RequestEnd::Completed);
        }
        timeline.recording().expect("it is on").picture()
    }

    #[test]
    fn the_last_milliseconds_are_cut_out_models_first() {
        let picture = picture(10);
        let excerpt = picture.excerpt(Bounds { length_ns: 2_500_000, rows: 10, spans: 100 });
        assert_eq!((excerpt.length_us, excerpt.left_out), (2_500.0, 0));
        let names: Vec<&str> = excerpt.tracks.iter().map(|track| track.name).collect();
        assert_eq!(names, ["minilm · version 2", "lanes"]);
        let lane = &excerpt.tracks[1].rows[0];
        assert_eq!(lane.name, "lane 0");
        let tasks: Vec<(f64, f64, Option<u64>)> =
            lane.spans.iter().map(|span| (span.from_us, span.to_us, span.batch)).collect();
        assert_eq!(tasks, [(0.0, 500.0, Some(7)), (600.0, 1_500.0, Some(8)), (1_600.0, 2_500.0, Some(9))]);
    }

    #[test]
    fn spans_and_rows_beyond_the_bounds_are_left_out_and_counted() {
        let picture = picture(10);
        let whole = Bounds { length_ns: u64::MAX, rows: 10, spans: 100 };
        let few = picture.excerpt(Bounds { spans: 6, ..whole });
        let kept: usize = few.tracks.iter().flat_map(|track| &track.rows).map(|row| row.spans.len()).sum();
        assert_eq!((kept, few.left_out), (6, 14), "a request and its task each");
        assert_eq!(few.length_us, 3_000.0, "from the end of what is left out");
        assert_eq!(few.tracks[1].rows[0].spans.last().and_then(|span| span.batch), Some(9), "the latest stay");
        assert_eq!(picture.excerpt(Bounds { rows: 0, ..whole }).left_out, 20);
    }

    #[test]
    fn nothing_recorded_makes_an_empty_excerpt() {
        let bounds = Bounds { length_ns: 1, rows: 1, spans: 1 };
        assert_eq!(Picture::default().excerpt(bounds), Excerpt::default());
    }
}
