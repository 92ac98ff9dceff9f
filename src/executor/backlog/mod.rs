//! Bytes of replies that wait for their clients: those of a call that streams, within those of its connection, within
//! those of the process. Each level has a bound; what happens at it is up to who makes replies.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use tokio::sync::Notify;

use crate::observe::PoolStats;

/// Bounds on bytes of replies that wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BacklogLimits {
    /// Of one streaming call: beyond it the models of its decoupled requests pause, or such a request fails where its
    /// model cannot. It is also what a connection may have in any case, however much waits for others.
    pub stream_bytes: usize,
    /// Of one connection: beyond it no further call of it is read.
    pub connection_bytes: usize,
    /// Of all connections: beyond it connections get no more than the bound of a stream.
    pub total_bytes: usize,
}

impl BacklogLimits {
    /// What is bounded where nothing is said.
    pub const DEFAULT: Self = Self { stream_bytes: 4 << 20, connection_bytes: 64 << 20, total_bytes: 512 << 20 };
}

impl Default for BacklogLimits {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// Replies that wait for the clients of the process, of a connection, or of a streaming call.
#[derive(Debug)]
pub struct Backlog {
    limits: BacklogLimits,
    limit_bytes: usize,
    /// Of the process: the gauge that metrics show.
    waiting_bytes: Arc<AtomicUsize>,
    parent: Option<Arc<Backlog>>,
    stats: Arc<PoolStats>,
    /// Rings when a client has taken something of what was too much.
    room: Notify,
}

/// A reply's share of a backlog, given back when dropped.
#[derive(Debug)]
pub struct Held {
    backlog: Arc<Backlog>,
    bytes: usize,
}

/// A reply that may not wait: its client has left too many unread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the client reads too slowly: {waiting_bytes} bytes of replies wait, of at most {limit_bytes}")]
pub struct Unread {
    /// Bytes that wait at the level that is full.
    pub waiting_bytes: usize,
    /// Its bound.
    pub limit_bytes: usize,
}

impl Backlog {
    /// That of a process, which has none yet.
    pub fn new(limits: BacklogLimits, stats: &Arc<PoolStats>) -> Arc<Self> {
        Arc::new(Self {
            limits,
            limit_bytes: limits.total_bytes,
            waiting_bytes: Arc::clone(stats.waiting_reply_bytes()),
            parent: None,
            stats: Arc::clone(stats),
            room: Notify::new(),
        })
    }

    /// That of a new connection within a process.
    pub fn connection(self: &Arc<Self>) -> Arc<Self> {
        self.within(self.limits.connection_bytes)
    }

    /// That of a new streaming call within a connection.
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

    /// Bytes that wait here.
    pub fn waiting_bytes(&self) -> usize {
        self.waiting_bytes.load(Ordering::Acquire)
    }

    /// Counts a reply that waits from now on, full or not.
    pub fn hold(self: &Arc<Self>, bytes: usize) -> Held {
        self.levels().for_each(|level| _ = level.waiting_bytes.fetch_add(bytes, Ordering::AcqRel));
        Held { backlog: Arc::clone(self), bytes }
    }

    /// Counts a reply that waits from now on.
    ///
    /// # Errors
    /// When too much waits in the process, and more than its share for the reply's own connection.
    pub fn try_hold(self: &Arc<Self>, bytes: usize) -> Result<Held, Unread> {
        if self.of_connection().waiting_bytes() >= self.limits.stream_bytes
            && let Some(unread) = self.levels().last().and_then(Self::excess)
        {
            self.stats.reply_refused();
            return Err(unread);
        }
        Ok(self.hold(bytes))
    }

    /// Counts a response of a request that cannot pause.
    ///
    /// # Errors
    /// When too much waits here already, or [`Self::try_hold`] refuses it.
    pub(super) fn try_hold_streamed(self: &Arc<Self>, bytes: usize) -> Result<Held, Unread> {
        if let Some(unread) = self.excess() {
            self.stats.reply_refused();
            return Err(unread);
        }
        self.try_hold(bytes)
    }

    /// Whether a request that can pause is to do so: too much waits at some level.
    pub(super) fn is_full(&self) -> bool {
        self.levels().any(|level| level.excess().is_some())
    }

    /// Counts a request that pauses.
    pub(super) fn paused(&self) {
        self.stats.reply_paused();
    }

    /// Waits until the client of a connection has taken enough that it may have further replies.
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

    /// Whether a connection may have further replies.
    pub fn has_room(&self) -> bool {
        let has_share = self.waiting_bytes() < self.limits.stream_bytes;
        has_share || !self.is_full()
    }

    fn excess(&self) -> Option<Unread> {
        let (waiting_bytes, limit_bytes) = (self.waiting_bytes(), self.limit_bytes);
        (waiting_bytes >= limit_bytes).then_some(Unread { waiting_bytes, limit_bytes })
    }

    /// This level and those that it is within, up to the process.
    fn levels(&self) -> impl Iterator<Item = &Self> {
        std::iter::successors(Some(self), |level| level.parent.as_deref())
    }

    fn of_connection(&self) -> &Self {
        self.levels().take_while(|level| level.parent.is_some()).last().unwrap_or(self)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        for level in self.backlog.levels() {
            let before = level.waiting_bytes.fetch_sub(self.bytes, Ordering::AcqRel);
            // A waiter for room sees more than one of these bounds exceeded.
            if level.parent.is_some() && before >= level.limits.stream_bytes.min(level.limit_bytes) {
                level.room.notify_waiters();
            }
        }
    }
}

#[cfg(test)]
mod tests;
