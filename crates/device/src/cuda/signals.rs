//! Tracks completed operations: a word for each stream, which the card writes and one thread polls.
//!
//! Each operation ends by storing its position in its stream's word, in host memory. Completion therefore takes no
//! query or callback of the driver. The poller sleeps while nothing is in flight.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
        mpsc,
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex};

use super::driver::{Address, Context, Mapped, Plain, Stream};
use crate::{DeviceError, Operation, StreamId};

/// Polls without a result before the thread yields.
const SPINS: u32 = 256;

/// How often the driver is asked for the state of the streams, while something is in flight: a kernel that faults
/// signals nothing.
const HEALTH_INTERVAL: Duration = Duration::from_millis(10);

/// Is notified of completed operations. Called on the poller's thread, in order within a stream, and in the order of
/// issue where one operation waited for another.
pub trait CompletionListener: Send + Sync {
    /// Called when a launch is complete. Copies are not reported.
    fn ended(&self, operation: Operation);

    /// Called when the device is lost: nothing in flight will end.
    fn lost(&self, reason: &str);
}

/// The position of a stream's last completed operation, in a cache line of its own.
#[derive(Debug)]
#[repr(C, align(64))]
pub(super) struct Word(AtomicU64);

impl Plain for Word {}

/// State shared by a device and its poller.
#[derive(Debug)]
pub(super) struct Signals {
    words: Mapped<Word>,
    in_flight: Mutex<InFlight>,
    /// Notified when there is something to poll for, or the poller should end.
    changed: Condvar,
}

#[derive(Debug)]
struct InFlight {
    /// Launches that have not been reported, by stream: each has its position and its serial number among the launches
    /// of all streams.
    launches: Box<[VecDeque<(u64, u64)>]>,
    issued: u64,
    has_ended: bool,
}

impl Signals {
    pub(super) fn new(context: &Arc<Context>, streams: u16) -> Result<Self, DeviceError> {
        let launches = (0..streams).map(|_| VecDeque::new()).collect();
        Ok(Self {
            words: Mapped::new(context, usize::from(streams))?,
            in_flight: Mutex::new(InFlight { launches, issued: 0, has_ended: false }),
            changed: Condvar::new(),
        })
    }

    /// Returns the address on the card of a stream's word.
    pub(super) fn address(&self, stream: StreamId) -> Address {
        self.words.address().offset(stream.index() * size_of::<Word>())
    }

    /// Returns the position up to which a stream is complete.
    pub(super) fn complete(&self, stream: StreamId) -> u64 {
        self.words.elements()[stream.index()].0.load(Ordering::Acquire)
    }

    /// Registers a launch.
    pub(super) fn issued(&self, operation: Operation) {
        let mut in_flight = self.in_flight.lock();
        let was_idle = in_flight.launches.iter().all(VecDeque::is_empty);
        let serial = in_flight.issued;
        in_flight.issued += 1;
        in_flight.launches[operation.stream.index()].push_back((operation.position, serial));
        if was_idle {
            self.changed.notify_one();
        }
    }

    /// Ends the poller once it has reported what is complete.
    pub(super) fn end(&self) {
        self.in_flight.lock().has_ended = true;
        self.changed.notify_one();
    }
}

/// Starts the poller, which ends after [`Signals::end`] or when the device is lost. Returns once the context is current
/// on its thread.
pub(super) fn poll(
    signals: Arc<Signals>,
    context: Arc<Context>,
    streams: Vec<Arc<Stream>>,
    listener: Arc<dyn CompletionListener>,
) -> Result<JoinHandle<()>, DeviceError> {
    let (entering, entered) = mpsc::sync_channel(1);
    let poller = move || {
        let has_context = context.enter();
        let goes_on = has_context.is_ok();
        // The caller is waiting, so this cannot fail.
        let _ = entering.send(has_context);
        if goes_on && let Err(reason) = signals.run(&streams, &*listener) {
            listener.lost(&reason.to_string());
        }
    };
    let cannot_start = |error| DeviceError::Driver(format!("the poller cannot be started: {error}"));
    let poller = thread::Builder::new().name("cuda-poller".to_owned()).spawn(poller).map_err(cannot_start)?;
    entered.recv().unwrap_or(Err(DeviceError::Stopped))?;
    Ok(poller)
}

/// Moves completed launches to `ended`. The words of streams are read one after another, and a stream may complete
/// after its word was read, and then another that waited for it before its own is. So they are all read again until
/// nothing more is found: then the launches that those in `ended` waited for are in it too.
fn complete_of(
    launches: &mut [VecDeque<(u64, u64)>],
    complete: impl Fn(StreamId) -> u64,
    ended: &mut Vec<(u64, Operation)>,
) {
    loop {
        let known = ended.len();
        for (index, launches) in (0..).zip(launches.iter_mut()) {
            let stream = StreamId(index);
            let complete = complete(stream);
            while let Some((position, serial)) = launches.pop_front_if(|(position, _)| *position <= complete) {
                ended.push((serial, Operation { stream, position }));
            }
        }
        if ended.len() == known {
            return;
        }
    }
}

impl Signals {
    /// Polls until [`Self::end`], and reports completed launches.
    fn run(&self, streams: &[Arc<Stream>], listener: &dyn CompletionListener) -> Result<(), DeviceError> {
        let mut ended = Vec::new();
        let mut spins = 0;
        let mut asked = Instant::now();
        while self.collect(&mut ended) {
            if !ended.is_empty() {
                // A launch that waited for another was issued after it, so the order of issue respects all waits.
                ended.sort_unstable_by_key(|(serial, _)| *serial);
                ended.drain(..).for_each(|(_, operation)| listener.ended(operation));
                spins = 0;
                continue;
            }
            spins += 1;
            if spins < SPINS {
                std::hint::spin_loop();
                continue;
            }
            spins = 0;
            thread::yield_now();
            if asked.elapsed() >= HEALTH_INTERVAL {
                streams.iter().try_for_each(|stream| stream.is_healthy())?;
                asked = Instant::now();
            }
        }
        Ok(())
    }

    /// Moves completed launches to `ended`; sleeps while nothing is in flight. Returns whether to continue.
    fn collect(&self, ended: &mut Vec<(u64, Operation)>) -> bool {
        let mut in_flight = self.in_flight.lock();
        while !in_flight.has_ended && in_flight.launches.iter().all(VecDeque::is_empty) {
            self.changed.wait(&mut in_flight);
        }
        complete_of(&mut in_flight.launches, |stream| self.complete(stream), ended);
        !in_flight.has_ended || !ended.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn a_launch_is_reported_with_those_it_waited_for_although_the_poller_was_preempted() {
        // The poller reads the word of stream 0 and is preempted. Meanwhile the launch of stream 0 completes, and then
        // that of stream 1, which waited for it.
        let reads = Cell::new(0);
        let complete = |_| {
            reads.set(reads.get() + 1);
            if reads.get() == 1 { 0 } else { 1 }
        };
        let mut launches = [VecDeque::from([(1, 0)]), VecDeque::from([(1, 1)])];
        let mut ended = Vec::new();
        complete_of(&mut launches, complete, &mut ended);
        ended.sort_unstable_by_key(|(serial, _)| *serial);
        let streams: Vec<u16> = ended.iter().map(|(_, operation)| operation.stream.0).collect();
        assert_eq!(streams, [0, 1]);
    }
}
