//! Records the timeline while the server runs.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::atomic::{AtomicBool, Ordering},
};

use parking_lot::Mutex;

use super::{
    record::{Record, TaskLaunch, TaskRows},
    recording::{Recording, VersionName},
};
use crate::end::RequestEnd;

/// Maximum number of version names kept, including those of unloaded versions; each load adds one.
const MOST_NAMES: usize = 1024;

/// Records the course of requests, if enabled. All methods can be called from any thread.
///
/// If disabled, a call costs a branch. If enabled, it takes an uncontended lock and writes 40 bytes per event and per
/// request of a task: about 40 ns for a task of eight requests. Nothing is allocated. Times are nanoseconds since an
/// epoch chosen by the caller, the same for all calls; they may be slightly out of order.
#[derive(Debug, Default)]
pub struct Timeline {
    /// Whether there is a ring. Calls check only this flag if there is none.
    is_recording: AtomicBool,
    ring: Mutex<Option<Ring>>,
    /// Names of all loaded versions, which are loaded before a recording starts.
    names: Mutex<BTreeMap<u32, VersionName>>,
    /// Whether it records for its whole life.
    is_kept: bool,
}

/// The latest records.
#[derive(Debug)]
struct Ring {
    records: VecDeque<Record>,
    most: usize,
    dropped: u64,
    arrivals: u64,
}

impl Timeline {
    /// Creates a timeline that records nothing unless it is [watched](Self::watch).
    pub fn off() -> Self {
        Self::default()
    }

    /// Creates a timeline that keeps the latest `most_events` events, at least 1. An arrival, an end, a completion, a
    /// launch, and each request and padded length of a launch count as one event. Reserves about 40 bytes per event.
    pub fn on(most_events: usize) -> Self {
        let ring = Mutex::new(Some(Ring::new(most_events)));
        Self { is_recording: AtomicBool::new(true), ring, is_kept: true, ..Self::default() }
    }

    /// Whether it records for its whole life, watched or not.
    pub fn is_kept(&self) -> bool {
        self.is_kept
    }

    /// Records from now on until [`Self::unwatch`], keeping the latest `most_events` events as [`Self::on`]. Has no
    /// effect if a recording is running.
    pub fn watch(&self, most_events: usize) {
        let mut ring = self.ring.lock();
        ring.get_or_insert_with(|| Ring::new(most_events));
        self.is_recording.store(true, Ordering::Relaxed);
    }

    /// Ends a recording started by [`Self::watch`] and frees its memory.
    pub fn unwatch(&self) {
        if !self.is_kept {
            let mut ring = self.ring.lock();
            self.is_recording.store(false, Ordering::Relaxed);
            *ring = None;
        }
    }

    /// Records the name of a version under the number that requests and tasks refer to. Numbers are never reused.
    pub fn model_up(&self, model: u32, name: &str, version: i64) {
        let named = VersionName { name: name.to_owned(), version };
        let mut names = self.names.lock();
        names.insert(model, named);
        if names.len() > MOST_NAMES {
            names.pop_first();
        }
    }

    /// Records if enabled. The lock is uncontended except while a snapshot is taken.
    #[inline]
    fn record(&self, write: impl FnOnce(&mut Ring)) {
        if self.is_recording.load(Ordering::Relaxed)
            && let Some(ring) = self.ring.lock().as_mut()
        {
            write(ring);
        }
    }

    /// Records an admitted request of `rows` rows. Its number is never reused.
    #[inline]
    pub fn arrived(&self, now_ns: u64, req: u64, model: u32, rows: u32) {
        self.record(|ring| {
            ring.arrivals += 1;
            let number = ring.arrivals;
            ring.push(Record::Arrived { at_ns: now_ns, req, number, model, rows });
        });
    }

    /// Records a launched task with its rows, in the order of their places.
    #[inline]
    pub fn launched(&self, now_ns: u64, task: &TaskLaunch<'_>, rows: impl IntoIterator<Item = TaskRows>) {
        self.record(|ring| {
            let &TaskLaunch { task, model, stage, lane, batch, bucket_rows, lengths } = task;
            ring.push(Record::Launched { at_ns: now_ns, task, batch, model, bucket_rows, stage, lane });
            for &length in lengths {
                ring.push(Record::Length(length));
            }
            for rows in rows {
                ring.push(Record::Rows(rows));
            }
        });
    }

    /// Records the end of a task.
    #[inline]
    pub fn completed(&self, now_ns: u64, task: u64, failed: bool) {
        self.record(|ring| ring.push(Record::Completed { at_ns: now_ns, task, failed }));
    }

    /// Records the end of a request.
    #[inline]
    pub fn ended(&self, now_ns: u64, req: u64, how: RequestEnd) {
        self.record(|ring| ring.push(Record::Ended { at_ns: now_ns, req, how }));
    }

    /// Returns a snapshot; `None` if disabled. Recording waits while it is copied, about two milliseconds for 100,000
    /// events.
    pub fn recording(&self) -> Option<Recording> {
        self.latest(usize::MAX)
    }

    /// Like [`Self::recording`], but returns only the latest events, which limits how long recording waits.
    pub fn latest(&self, most_events: usize) -> Option<Recording> {
        let (records, dropped) = {
            let ring = self.ring.lock();
            let ring = ring.as_ref()?;
            let left_out = ring.records.len().saturating_sub(most_events);
            let (front, back) = ring.records.as_slices();
            let in_front = left_out.min(front.len());
            let records = [&front[in_front..], &back[left_out - in_front..]].concat();
            (records, ring.dropped + left_out as u64)
        };
        Some(Recording::new(records, dropped, self.names.lock().clone()))
    }
}

impl Ring {
    fn new(most_events: usize) -> Self {
        let most = most_events.max(1);
        Self { records: VecDeque::with_capacity(most), most, dropped: 0, arrivals: 0 }
    }

    fn push(&mut self, record: Record) {
        if self.records.len() == self.most {
            self.records.pop_front();
            self.dropped += 1;
        }
        self.records.push_back(record);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAUNCH: TaskLaunch<'static> =
        TaskLaunch { task: 5, model: 0, stage: 1, lane: 0, batch: 3, bucket_rows: 2, lengths: &[64] };

    fn rows(req: u64, at: u32) -> TaskRows {
        TaskRows { req, start: 0, count: 1, at }
    }

    #[test]
    fn a_timeline_that_is_off_holds_nothing() {
        let timeline = Timeline::off();
        timeline.arrived(1, 7, 0, 1);
        assert!(!timeline.is_kept());
        assert!(timeline.recording().is_none());
    }

    #[test]
    fn a_timeline_records_while_it_is_watched_and_knows_versions_from_before() {
        let timeline = Timeline::off();
        timeline.model_up(0, "minilm", 2);
        timeline.arrived(1, 7, 0, 1);
        timeline.watch(10);
        timeline.arrived(2, 8, 0, 1);
        timeline.watch(10);
        let recording = timeline.recording().expect("it is watched");
        assert_eq!(recording.records, [Record::Arrived { at_ns: 2, req: 8, number: 1, model: 0, rows: 1 }]);
        assert_eq!(recording.names[&0].name, "minilm");
        timeline.unwatch();
        timeline.arrived(3, 9, 0, 1);
        assert!(timeline.recording().is_none());
        timeline.watch(10);
        assert_eq!(
            timeline.recording().map(|recording| recording.records.len()),
            Some(0),
            "the recording starts again"
        );
    }

    #[test]
    fn watching_changes_nothing_about_a_timeline_that_is_kept() {
        let timeline = Timeline::on(10);
        timeline.watch(1);
        timeline.arrived(1, 7, 0, 1);
        timeline.arrived(2, 8, 0, 1);
        timeline.unwatch();
        timeline.arrived(3, 9, 0, 1);
        assert_eq!(timeline.recording().map(|recording| recording.records.len()), Some(3));
    }

    #[test]
    fn the_latest_events_are_copied_without_rows_of_a_launch_before_them() {
        let timeline = Timeline::on(100);
        timeline.arrived(1, 70, 0, 1);
        timeline.launched(2, &LAUNCH, [rows(70, 0), rows(80, 1)]);
        timeline.completed(3, 5, false);
        let latest = timeline.latest(3).expect("it is on");
        assert_eq!(latest.records, [Record::Completed { at_ns: 3, task: 5, failed: false }]);
        assert_eq!(latest.dropped, 5);
    }

    #[test]
    fn events_are_kept_in_their_order_and_arrivals_are_numbered() {
        let timeline = Timeline::on(100);
        timeline.model_up(0, "minilm", 2);
        timeline.arrived(1, 70, 0, 1);
        timeline.arrived(2, 80, 0, 1);
        timeline.launched(3, &LAUNCH, [rows(70, 0), rows(80, 1)]);
        timeline.completed(4, 5, false);
        timeline.ended(5, 70, RequestEnd::Completed);

        let recording = timeline.recording().expect("it is on");
        let expected = [
            Record::Arrived { at_ns: 1, req: 70, number: 1, model: 0, rows: 1 },
            Record::Arrived { at_ns: 2, req: 80, number: 2, model: 0, rows: 1 },
            Record::Launched { at_ns: 3, task: 5, batch: 3, model: 0, bucket_rows: 2, stage: 1, lane: 0 },
            Record::Length(64),
            Record::Rows(rows(70, 0)),
            Record::Rows(rows(80, 1)),
            Record::Completed { at_ns: 4, task: 5, failed: false },
            Record::Ended { at_ns: 5, req: 70, how: RequestEnd::Completed },
        ];
        assert_eq!(recording.records, expected);
        assert_eq!(recording.dropped, 0);
        assert_eq!(recording.names[&0], VersionName { name: "minilm".to_owned(), version: 2 });
    }

    #[test]
    fn a_full_ring_drops_the_oldest_and_what_belonged_to_them() {
        let timeline = Timeline::on(4);
        timeline.launched(1, &LAUNCH, [rows(70, 0), rows(80, 1)]);
        timeline.completed(2, 5, true);
        timeline.ended(3, 70, RequestEnd::Failed);

        let recording = timeline.recording().expect("it is on");
        let kept = [
            Record::Completed { at_ns: 2, task: 5, failed: true },
            Record::Ended { at_ns: 3, req: 70, how: RequestEnd::Failed },
        ];
        assert_eq!(recording.records, kept, "rows without their launch say nothing");
        assert_eq!(recording.dropped, 4, "the launch, its length and its two rows");
    }

    #[test]
    fn names_of_old_versions_are_forgotten_first() {
        let timeline = Timeline::on(1);
        for model in 0..=MOST_NAMES as u32 {
            timeline.model_up(model, "reloaded", 1);
        }
        let names = timeline.recording().expect("it is on").names;
        assert_eq!((names.len(), names.first_key_value().map(|(&model, _)| model)), (MOST_NAMES, Some(1)));
    }

    #[test]
    fn a_record_stays_small() {
        assert!(size_of::<Record>() <= 40, "{} bytes", size_of::<Record>());
    }
}
