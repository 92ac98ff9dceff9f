//! Byte counts of responses that wait for their clients: per streaming call, per connection and per process, each
//! nested in the next. Each level has a limit; the code that makes responses decides what happens at the limit.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use paternoster_observe::PoolStats;
use tokio::sync::Notify;

/// Limits on the bytes of waiting responses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BacklogLimits {
    /// Limit per streaming call. Beyond it the models of its decoupled requests pause; if a model cannot pause, the
    /// request fails. A connection may always hold this much, however much waits elsewhere.
    pub stream_bytes: usize,
    /// Limit per connection. Beyond it no further call is read from it.
    pub connection_bytes: usize,
    /// Limit for all connections. Beyond it each connection is reduced to the limit of a stream.
    pub total_bytes: usize,
}

impl BacklogLimits {
    /// The default limits.
    pub const DEFAULT: Self = Self { stream_bytes: 4 << 20, connection_bytes: 64 << 20, total_bytes: 512 << 20 };
}

impl Default for BacklogLimits {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// Count of the responses that wait for the clients of the process, of a connection, or of a streaming call.
#[derive(Debug)]
pub struct Backlog {
    limits: BacklogLimits,
    limit_bytes: usize,
    /// For the process, the gauge that metrics export.
    waiting_bytes: Arc<AtomicUsize>,
    parent: Option<Arc<Backlog>>,
    stats: Arc<PoolStats>,
    /// Notified when a client has taken responses from a level that was over its limit.
    room: Notify,
}

/// A response's share of a backlog, returned when dropped.
#[derive(Debug)]
pub struct BacklogShare {
    backlog: Arc<Backlog>,
    bytes: usize,
}

/// Error for a response that is not allowed to wait, because its client has left too many responses unread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the client reads too slowly: {waiting_bytes} bytes of replies wait, of at most {limit_bytes}")]
pub struct Unread {
    /// Bytes waiting at the level that is full.
    pub waiting_bytes: usize,
    /// Limit of that level.
    pub limit_bytes: usize,
}

impl Backlog {
    /// Creates the backlog of a process.
    pub fn new(limits: BacklogLimits, stats: &Arc<PoolStats>) -> Arc<Self> {
        Arc::new(Self {
            limits,
            limit_bytes: limits.total_bytes,
            waiting_bytes: Arc::clone(stats.waiting_response_bytes()),
            parent: None,
            stats: Arc::clone(stats),
            room: Notify::new(),
        })
    }

    /// Creates the backlog of a new connection within a process.
    pub fn connection(self: &Arc<Self>) -> Arc<Self> {
        self.within(self.limits.connection_bytes)
    }

    /// Creates the backlog of a new streaming call within a connection.
    pub fn stream(self: &Arc<Self>) -> Arc<Self> {
        self.within(self.limits.stream_bytes)
    }

    fn within(self: &Arc<Self>, limit_bytes: usize) -> Arc<Self> {
        Arc::new(Self {
            limits: self.limits,
            limit_bytes,
            waiting_bytes: Arc::default(),
            parent: Some(Arc::clone(self)),
            stats: Arc::clone(&self.stats),
            room: Notify::new(),
        })
    }

    /// Returns the bytes that wait at this level.
    pub fn waiting_bytes(&self) -> usize {
        self.waiting_bytes.load(Ordering::Acquire)
    }

    /// Counts a waiting response, even beyond the limits.
    pub fn hold(self: &Arc<Self>, bytes: usize) -> BacklogShare {
        self.levels().for_each(|level| _ = level.waiting_bytes.fetch_add(bytes, Ordering::AcqRel));
        BacklogShare { backlog: Arc::clone(self), bytes }
    }

    /// Counts a waiting response.
    ///
    /// # Errors
    /// If the process is over its limit, and the response's connection holds more than its minimum share.
    pub fn try_hold(self: &Arc<Self>, bytes: usize) -> Result<BacklogShare, Unread> {
        if self.of_connection().waiting_bytes() >= self.limits.stream_bytes
            && let Some(unread) = self.levels().last().and_then(Self::excess)
        {
            self.stats.response_refused();
            return Err(unread);
        }
        Ok(self.hold(bytes))
    }

    /// Counts a response of a request that cannot pause.
    ///
    /// # Errors
    /// If this level is over its limit, or if [`Self::try_hold`] rejects the response.
    pub(super) fn try_hold_streamed(self: &Arc<Self>, bytes: usize) -> Result<BacklogShare, Unread> {
        if let Some(unread) = self.excess() {
            self.stats.response_refused();
            return Err(unread);
        }
        self.try_hold(bytes)
    }

    /// Whether a request that can pause must do so, because some level is over its limit.
    pub(super) fn is_full(&self) -> bool {
        self.levels().any(|level| level.excess().is_some())
    }

    /// Counts a request that pauses.
    pub(super) fn paused(&self) {
        self.stats.response_paused();
    }

    /// Waits until the client of a connection has taken enough responses for more to be added.
    pub async fn room(&self) {
        while !self.has_room() {
            let taken = self.room.notified();
            tokio::pin!(taken);
            taken.as_mut().enable();
            if self.has_room() {
                return;
            }
            taken.await;
        }
    }

    /// Whether a connection may get further responses.
    pub fn has_room(&self) -> bool {
        let has_share = self.waiting_bytes() < self.limits.stream_bytes;
        has_share || !self.is_full()
    }

    fn excess(&self) -> Option<Unread> {
        let (waiting_bytes, limit_bytes) = (self.waiting_bytes(), self.limit_bytes);
        (waiting_bytes >= limit_bytes).then_some(Unread { waiting_bytes, limit_bytes })
    }

    /// Returns this level and those that contain it, up to the process.
    fn levels(&self) -> impl Iterator<Item = &Self> {
        std::iter::successors(Some(self), |level| level.parent.as_deref())
    }

    fn of_connection(&self) -> &Self {
        self.levels().take_while(|level| level.parent.is_some()).last().unwrap_or(self)
    }
}

impl Drop for BacklogShare {
    fn drop(&mut self) {
        for level in self.backlog.levels() {
            let before = level.waiting_bytes.fetch_sub(self.bytes, Ordering::AcqRel);
            // A task that waits for room has seen one of these limits exceeded, so other releases need not notify it.
            if level.parent.is_some() && before >= level.limits.stream_bytes.min(level.limit_bytes) {
                level.room.notify_waiters();
            }
        }
    }
}

#[cfg(test)]
mod tests;
