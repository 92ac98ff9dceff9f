//! Time: instants, and lengths of time.

use std::ops::{Add, AddAssign, Sub};

/// A length of time in nanoseconds.
pub type Ns = u64;

/// A point in time, in nanoseconds since an epoch of the driver's choosing. The core has no clock: the driver passes
/// the time with each event.
///
/// An instant plus or minus a length of time is an instant; the length between two is the time [since](Self::since) the
/// earlier one. Arithmetic saturates at the epoch and at [`NEVER`](Self::NEVER).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Instant(u64);

impl Instant {
    /// The epoch.
    pub const ZERO: Self = Self(0);
    /// The instant that never comes: it is after all others.
    pub const NEVER: Self = Self(u64::MAX);

    /// Returns the instant this long after the epoch.
    #[inline]
    pub const fn from_ns(since_epoch_ns: Ns) -> Self {
        Self(since_epoch_ns)
    }

    /// Returns the time since the epoch.
    #[inline]
    pub const fn as_ns(self) -> Ns {
        self.0
    }

    /// Returns the time since an earlier instant; 0 if that is later.
    #[inline]
    pub const fn since(self, earlier: Self) -> Ns {
        self.0.saturating_sub(earlier.0)
    }

    /// Returns the time since an earlier instant; `None` if that is later.
    #[inline]
    pub const fn checked_since(self, earlier: Self) -> Option<Ns> {
        self.0.checked_sub(earlier.0)
    }

    /// Returns the instant, unless it never comes.
    #[inline]
    pub(crate) fn unless_never(self) -> Option<Self> {
        (self != Self::NEVER).then_some(self)
    }
}

impl Add<Ns> for Instant {
    type Output = Self;

    #[inline]
    fn add(self, ns: Ns) -> Self {
        Self(self.0.saturating_add(ns))
    }
}

impl AddAssign<Ns> for Instant {
    #[inline]
    fn add_assign(&mut self, ns: Ns) {
        *self = *self + ns;
    }
}

impl Sub<Ns> for Instant {
    type Output = Self;

    #[inline]
    fn sub(self, ns: Ns) -> Self {
        Self(self.0.saturating_sub(ns))
    }
}
