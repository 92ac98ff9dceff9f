//! Budgets: how much of something all clients together may hold.
//!
//! A [`Budget`] counts bytes, requests or connections; a [`Reservation`] holds some of it and gives it back when it is
//! dropped. A budget may be part of another: what is taken from the part is taken from the whole, so that a connection
//! has a share that it cannot exceed. Taking is two atomic operations for a budget and its whole, without a lock; only
//! those that wait for room go through a queue.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::{
    sync::Notify,
    time::{Instant, timeout_at},
};

/// Reservations up to this many bytes may use the part of a budget that is kept for small ones.
const SMALL_BYTES: usize = 64 << 10;

/// The part of a budget of bytes that is kept for small reservations: one in so many bytes. Clients with large messages
/// cannot keep small requests out.
const KEPT_FOR_SMALL: usize = 8;

/// Default of [`Budgets::bytes`], for servers that are not started from the command line.
const DEFAULT_BYTES: usize = 2 << 30;

/// Default of [`Budgets::requests`].
pub const DEFAULT_REQUESTS: usize = 128 << 10;

/// Default of the numbers of connections, for servers that are not started from the command line.
const DEFAULT_CONNECTIONS: usize = 1024;

/// What is bounded for the whole process.
#[derive(Clone, Debug)]
pub struct Budgets {
    /// Bytes of requests: received, and built from what was received.
    pub bytes: Arc<Budget>,
    /// Inference requests that are read and not yet ended.
    pub requests: Arc<Budget>,
    /// Bytes of models that clients sent: while they load, and as long as they are loaded.
    pub sent_model_bytes: Arc<Budget>,
    /// Open gRPC connections.
    pub grpc_connections: Arc<Budget>,
    /// Open connections of the HTTP port.
    pub http_connections: Arc<Budget>,
    /// Open connections of the metrics port.
    pub metrics_connections: Arc<Budget>,
}

impl Default for Budgets {
    fn default() -> Self {
        Self {
            bytes: Budget::of_bytes(DEFAULT_BYTES),
            requests: Budget::of(DEFAULT_REQUESTS),
            sent_model_bytes: Budget::of(DEFAULT_BYTES),
            grpc_connections: Budget::of(DEFAULT_CONNECTIONS),
            http_connections: Budget::of(DEFAULT_CONNECTIONS),
            metrics_connections: Budget::of(DEFAULT_CONNECTIONS),
        }
    }
}

/// An amount that may be held at once, and how much of it is.
#[derive(Debug)]
pub struct Budget {
    capacity: usize,
    /// Of the capacity, what only small reservations may use.
    kept: usize,
    used: AtomicUsize,
    refused: AtomicU64,
    whole: Option<Arc<Budget>>,
    waiting: AtomicUsize,
    released: Notify,
}

/// There is no room in a budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{wanted} more are wanted where {held} of {capacity} are held")]
pub struct Exhausted {
    /// What was asked for.
    pub wanted: usize,
    /// What others held then.
    pub held: usize,
    /// What may be held at once.
    pub capacity: usize,
    /// The most that one reservation may have.
    pub largest: usize,
}

impl Exhausted {
    /// Whether there is no room for it even if others hold nothing.
    pub fn never_fits(&self) -> bool {
        self.wanted > self.largest.max(SMALL_BYTES)
    }
}

impl Budget {
    /// A budget of things that count one each.
    pub fn of(capacity: usize) -> Arc<Self> {
        Arc::new(Self::new(capacity, 0, None))
    }

    /// A budget of bytes, an eighth of which is kept for reservations of up to 64 KiB.
    pub fn of_bytes(capacity: usize) -> Arc<Self> {
        Arc::new(Self::new(capacity, capacity / KEPT_FOR_SMALL, None))
    }

    /// A part of a budget that may use a quarter of it.
    pub fn share_of(whole: &Arc<Self>) -> Arc<Self> {
        Self::part_of(whole, whole.capacity / 4)
    }

    /// A part of a budget that may use `capacity` of it.
    pub fn part_of(whole: &Arc<Self>, capacity: usize) -> Arc<Self> {
        Arc::new(Self::new(capacity, 0, Some(Arc::clone(whole))))
    }

    fn new(capacity: usize, kept: usize, whole: Option<Arc<Self>>) -> Self {
        let (used, refused, waiting) = (AtomicUsize::new(0), AtomicU64::new(0), AtomicUsize::new(0));
        Self { capacity, kept, used, refused, whole, waiting, released: Notify::new() }
    }

    /// What may be held at once.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// What is held now.
    pub fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    /// How often there was no room in time.
    pub fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// The largest reservation that can ever be made.
    pub fn largest(&self) -> usize {
        let here = self.capacity - self.kept;
        self.whole.as_ref().map_or(here, |whole| here.min(whole.largest()))
    }

    /// Takes one, as of requests or connections; `None`, counted as a refusal, where all are taken.
    pub fn take_one(self: &Arc<Self>) -> Option<Reservation> {
        let mut one = Reservation::none(self);
        if one.try_grow(1) {
            return Some(one);
        }
        self.count_refusal();
        None
    }

    /// Counts a refusal that was decided without asking for room.
    pub fn count_refusal(&self) {
        self.root().refused.fetch_add(1, Ordering::Relaxed);
    }

    fn root(&self) -> &Self {
        self.whole.as_ref().map_or(self, |whole| whole.root())
    }

    fn take(&self, amount: usize, small: bool) -> bool {
        let room = if small { self.capacity } else { self.capacity - self.kept };
        let grown = |used: usize| used.checked_add(amount).filter(|used| *used <= room);
        if self.used.fetch_update(Ordering::SeqCst, Ordering::SeqCst, grown).is_err() {
            return false;
        }
        let taken = self.whole.as_ref().is_none_or(|whole| whole.take(amount, small));
        if !taken {
            self.used.fetch_sub(amount, Ordering::SeqCst);
        }
        taken
    }

    /// Whether there is room for `amount` now.
    fn has_room(&self, amount: usize, small: bool) -> bool {
        let room = if small { self.capacity } else { self.capacity - self.kept };
        let fits = self.used().checked_add(amount).is_some_and(|used| used <= room);
        fits && self.whole.as_ref().is_none_or(|whole| whole.has_room(amount, small))
    }

    fn give_back(&self, amount: usize) {
        self.used.fetch_sub(amount, Ordering::SeqCst);
        match &self.whole {
            Some(whole) => whole.give_back(amount),
            // A waiter was counted before it looked for room, so that either it finds this or is woken.
            None if self.waiting.load(Ordering::SeqCst) > 0 => self.released.notify_waiters(),
            None => {}
        }
    }

    fn exhausted(&self, wanted: usize) -> Exhausted {
        match &self.whole {
            Some(whole) if self.used().saturating_add(wanted) <= self.capacity => whole.exhausted(wanted),
            _ => Exhausted { wanted, held: self.used(), capacity: self.capacity, largest: self.largest() },
        }
    }
}

/// A part of a budget that is held; dropping it gives it back.
#[derive(Debug)]
pub struct Reservation {
    budget: Arc<Budget>,
    amount: usize,
}

impl Reservation {
    /// Nothing yet.
    pub fn none(budget: &Arc<Budget>) -> Self {
        Self { budget: Arc::clone(budget), amount: 0 }
    }

    /// What is held.
    pub fn amount(&self) -> usize {
        self.amount
    }

    /// The largest amount that it can ever hold.
    pub fn largest(&self) -> usize {
        self.budget.largest()
    }

    /// What is held, leaving nothing.
    #[must_use]
    pub fn take(&mut self) -> Self {
        self.split_off(self.amount)
    }

    /// Takes a part of what is held into a reservation of its own.
    #[must_use]
    pub fn split_off(&mut self, amount: usize) -> Self {
        let amount = amount.min(self.amount);
        self.amount -= amount;
        Self { budget: Arc::clone(&self.budget), amount }
    }

    /// Adds what another reservation of the same budget holds.
    pub fn absorb(&mut self, mut other: Self) {
        debug_assert!(Arc::ptr_eq(&self.budget, &other.budget), "both are of one budget");
        self.amount += std::mem::take(&mut other.amount);
    }

    /// Why a reservation of `amount` can never be made, counted as a refusal; `None` if it can.
    pub fn refusal(&self, amount: usize) -> Option<Exhausted> {
        let capacity = self.largest();
        (amount > capacity.max(SMALL_BYTES)).then(|| {
            self.budget.count_refusal();
            Exhausted { wanted: amount, held: self.budget.used(), capacity, largest: capacity }
        })
    }

    /// Whether there is room for `more` now, of which nothing is taken.
    pub fn fits(&self, more: usize) -> bool {
        self.budget.has_room(more, self.amount.saturating_add(more) <= SMALL_BYTES)
    }

    /// Takes `more` if there is room now.
    #[must_use]
    pub fn try_grow(&mut self, more: usize) -> bool {
        let small = self.amount.saturating_add(more) <= SMALL_BYTES;
        let taken = self.budget.take(more, small);
        if taken {
            self.amount += more;
        }
        taken
    }

    /// Takes `more`.
    ///
    /// # Errors
    /// When there is no room now; counted as a refusal.
    pub fn grow_now(&mut self, more: usize) -> Result<(), Exhausted> {
        if self.try_grow(more) {
            return Ok(());
        }
        self.budget.count_refusal();
        Err(self.budget.exhausted(more))
    }

    /// Takes `more` even where that exceeds the capacity, for what exists already.
    pub fn grow_anyway(&mut self, more: usize) {
        let mut budget = Some(&self.budget);
        while let Some(one) = budget {
            one.used.fetch_add(more, Ordering::SeqCst);
            budget = one.whole.as_ref();
        }
        self.amount += more;
    }

    /// Takes `more`, and waits for room for as long as `patience`.
    ///
    /// # Errors
    /// When there is none by then, or never can be; counted as a refusal.
    pub async fn grow_within(&mut self, more: usize, patience: Duration) -> Result<(), Exhausted> {
        let deadline = Instant::now() + patience;
        let budget = Arc::clone(&self.budget);
        let root = budget.root();
        let possible = self.amount.saturating_add(more) <= budget.largest().max(SMALL_BYTES);
        root.waiting.fetch_add(1, Ordering::SeqCst);
        let _waiting = WaitingCount(root);
        loop {
            let released = root.released.notified();
            tokio::pin!(released);
            released.as_mut().enable();
            if self.try_grow(more) {
                return Ok(());
            }
            if !possible || timeout_at(deadline, released).await.is_err() {
                root.refused.fetch_add(1, Ordering::Relaxed);
                return Err(budget.exhausted(more));
            }
        }
    }

    /// Gives back what is beyond `amount`.
    pub fn shrink_to(&mut self, amount: usize) {
        if let Some(excess) = self.amount.checked_sub(amount).filter(|excess| *excess > 0) {
            self.amount = amount;
            self.budget.give_back(excess);
        }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.shrink_to(0);
    }
}

/// A reservation for bytes that have several owners. It is given back with the last of them, or when it is released.
#[derive(Clone, Debug)]
pub struct SharedReservation(Arc<Mutex<Reservation>>);

impl SharedReservation {
    /// Shares a reservation.
    pub fn new(reservation: Reservation) -> Self {
        Self(Arc::new(Mutex::new(reservation)))
    }

    /// Returns the same bytes, which now hold the reservation as long as any part of them is shared.
    #[must_use]
    pub fn attach(&self, bytes: Bytes) -> Bytes {
        struct Attached(Bytes, #[allow(dead_code, reason = "held for as long as the bytes are")] SharedReservation);
        impl AsRef<[u8]> for Attached {
            fn as_ref(&self) -> &[u8] {
                &self.0
            }
        }
        Bytes::from_owner(Attached(bytes, self.clone()))
    }

    /// Gives the reservation back, because the bytes are counted elsewhere from now on.
    pub fn release(&self) {
        self.0.lock().shrink_to(0);
    }
}

/// One that waits for room, until it leaves.
struct WaitingCount<'a>(&'a Budget);

impl Drop for WaitingCount<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LARGE: usize = 10 * SMALL_BYTES;

    fn held(budget: &Arc<Budget>, amount: usize) -> Option<Reservation> {
        let mut reservation = Reservation::none(budget);
        reservation.try_grow(amount).then_some(reservation)
    }

    #[test]
    fn what_is_held_is_given_back() {
        let budget = Budget::of(2);
        let first = budget.take_one().expect("room for two");
        let second = budget.take_one().expect("room for two");
        assert!(budget.take_one().is_none());
        assert_eq!((budget.used(), budget.refused()), (2, 1));
        drop((first, second));
        assert_eq!(budget.used(), 0);
        assert!(budget.take_one().is_some());
    }

    #[test]
    fn shared_bytes_hold_their_reservation_until_the_last_is_dropped_or_it_is_released() {
        let budget = Budget::of(20);
        let attached = || {
            let shared = SharedReservation::new(held(&budget, 10).expect("there is room"));
            (shared.attach(Bytes::from_static(b"0123456789")), shared)
        };
        let (bytes, shared) = attached();
        let part = bytes.slice(2..4);
        drop((bytes, shared));
        assert_eq!((&part[..], budget.used()), (&b"23"[..], 10));
        let (other, shared) = attached();
        drop(part);
        assert_eq!(budget.used(), 10);
        shared.release();
        assert_eq!((&other[..2], budget.used()), (&b"01"[..], 0));
    }

    #[test]
    fn a_share_ends_before_the_whole_does() {
        let whole = Budget::of_bytes(16 * LARGE);
        let (greedy, other) = (Budget::share_of(&whole), Budget::share_of(&whole));
        let mut all = held(&greedy, 4 * LARGE).expect("its quarter");
        assert!(!all.try_grow(1), "no byte more");
        assert!(held(&other, 4 * LARGE).is_some(), "the others have theirs");
        assert_eq!(whole.used(), 4 * LARGE);
        all.shrink_to(LARGE);
        assert_eq!((greedy.used(), whole.used()), (LARGE, LARGE));
    }

    #[test]
    fn large_reservations_leave_room_for_small_ones() {
        let whole = Budget::of_bytes(16 * LARGE);
        let shares: Vec<_> = (0..4).map(|_| Budget::share_of(&whole)).collect();
        let _large: Vec<_> = shares.iter().filter_map(|share| held(share, 4 * LARGE)).collect();
        let _rest = held(&shares[3], 2 * LARGE).expect("fourteen of sixteen");
        assert!(held(&shares[3], LARGE).is_none(), "the rest is kept");
        assert!(held(&shares[3], SMALL_BYTES).is_some(), "for small ones");
        assert_eq!(whole.largest(), 14 * LARGE);
        assert_eq!(shares[0].largest(), 4 * LARGE);
    }

    #[test]
    fn what_exists_already_is_counted_beyond_the_capacity_and_keeps_others_out() {
        let whole = Budget::of_bytes(8);
        let mut first = held(&Budget::share_of(&whole), 1).expect("there is room");
        first.grow_anyway(9);
        assert_eq!((first.amount(), whole.used()), (10, 10));
        assert!(held(&whole, 1).is_none());
        drop(first);
        assert_eq!(whole.used(), 0);
    }

    #[test]
    fn a_failed_reservation_takes_nothing() {
        let whole = Budget::of_bytes(8);
        let share = Budget::share_of(&whole);
        let _all = held(&whole, 8).expect("all of it");
        assert!(held(&share, 1).is_none());
        assert!(held(&share, usize::MAX).is_none(), "no overflow");
        assert_eq!(share.used(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn room_is_waited_for_and_the_wait_is_bounded() {
        let whole = Budget::of_bytes(4 * LARGE);
        let share = Budget::share_of(&whole);
        let first = held(&share, LARGE).expect("the share");
        let mut second = Reservation::none(&share);
        let error = second.grow_within(LARGE, Duration::from_secs(1)).await.expect_err("nothing is given back");
        assert_eq!(error, Exhausted { wanted: LARGE, held: LARGE, capacity: LARGE, largest: LARGE });
        assert!(!error.never_fits(), "it would if nothing were held");
        assert_eq!((whole.refused(), second.amount()), (1, 0));

        let waiter = tokio::spawn(async move {
            second.grow_within(LARGE, Duration::from_secs(1)).await.expect("room in time");
            second.amount()
        });
        tokio::task::yield_now().await;
        drop(first);
        assert_eq!(waiter.await.expect("no panic"), LARGE);
        assert_eq!((whole.refused(), whole.used()), (1, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn what_can_never_fit_is_not_waited_for() {
        let share = Budget::share_of(&Budget::of_bytes(4 * LARGE));
        let began = Instant::now();
        let mut reservation = Reservation::none(&share);
        reservation.grow_within(LARGE + 1, Duration::from_secs(1)).await.expect_err("more than the share");
        assert_eq!(began.elapsed(), Duration::ZERO);
    }
}
