//! Which models leave memory for a load, and when a load must wait or is refused: the rule alone, without I/O, threads
//! or a clock. Callers describe what is loaded at a moment; [`room`] decides.
//!
//! The least recently used models leave first. Models that must not leave are left alone: see [`Hold`]. A model that
//! was just loaded stays for ten times as long as its load took, so that models that evict each other cost at most a
//! tenth of the time. A model that has requests, or is used more than the one that is to be loaded, stays until that
//! one has waited for as long; then it takes no further requests, and leaves once it has answered those it has. A load
//! for which too little may leave evicts nothing; it waits until more may.

#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;

use std::{cmp::Reverse, collections::BTreeSet, fmt, time::Duration};

/// A model stays loaded for this many times the duration of its load.
const STAY_FACTOR: u32 = 10;

/// Longest such stay: a model that takes minutes to load must not hold its memory for an hour.
const LONGEST_STAY: Duration = Duration::from_secs(60);

/// Time after which a request counts half as much in [`Uses`]. Short, so that a model whose clients have left soon
/// makes room for another.
const USES_HALF_LIFE: Duration = Duration::from_secs(1);

/// Most models that an explanation names.
const MOST_NAMED: usize = 5;

/// A loaded model. Times are durations since a moment of the caller's choice.
#[derive(Clone, Debug)]
pub(super) struct Resident {
    pub(super) name: String,
    pub(super) bytes: usize,
    pub(super) loaded_at: Duration,
    /// Duration of its load.
    pub(super) load_took: Duration,
    /// When the last request for it arrived, or else when it was loaded.
    pub(super) last_used: Duration,
    pub(super) uses: Uses,
    /// Why it may not leave at all, if so.
    pub(super) hold: Option<Hold>,
    /// Pipelines that need it, loaded or being loaded. It leaves only with them.
    pub(super) needed_by: Vec<String>,
}

/// Why a model may not leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hold {
    /// Its configuration or the command line says that it stays.
    Pinned,
    /// A client sent its files, so the server could not load it again.
    Sent,
    /// It has requests, or is being loaded again.
    Busy,
    /// It keeps the state of this many open sequences.
    Sequences(usize),
}

impl Hold {
    /// Returns whether only an operator or a client's unload ends it.
    pub(super) fn is_permanent(self) -> bool {
        matches!(self, Self::Pinned | Self::Sent)
    }
}

/// How much a model has been used lately: its requests, which count less the longer ago they were.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Uses {
    pub(super) count: f32,
    /// When `count` was right.
    pub(super) at: Duration,
}

impl Uses {
    /// Returns the uses with a request at `now`.
    pub(super) fn with_one(self, now: Duration) -> Self {
        Self { count: self.count_at(now) + 1.0, at: now }
    }

    pub(super) fn count_at(self, now: Duration) -> f32 {
        let half_lives = now.saturating_sub(self.at).as_secs_f32() / USES_HALF_LIFE.as_secs_f32();
        self.count * (-half_lives).exp2()
    }
}

/// A load that wants room.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted {
    pub(super) bytes: usize,
    /// How much its model was used lately, the requests that wait for it as one.
    pub(super) uses: f32,
    /// Since when it has waited for room.
    pub(super) since: Duration,
    /// Longest time after which others make room for it although they have requests.
    pub(super) longest_wait: Duration,
}

/// What must happen for a load.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Room {
    /// Nothing: there is room.
    Free,
    /// These models leave, in this order.
    Unload(Vec<String>),
    /// Too little may leave now.
    Wait {
        /// When enough models have stayed long enough, if no requests come; `None` if that depends on requests.
        until: Option<Duration>,
    },
    /// There will be no room: the load is larger than what models that stay leave of the budget.
    Never,
}

/// Decides what must happen at `now` so that a load fits into a budget, of which `used` bytes are taken by all models
/// and by loads in progress.
pub(super) fn room(budget: usize, used: usize, wanted: Wanted, residents: &[Resident], now: Duration) -> Room {
    let lacking = used.saturating_add(wanted.bytes).saturating_sub(budget);
    if lacking == 0 {
        return Room::Free;
    }
    let permanent = residents.iter().filter(|resident| resident.hold.is_some_and(Hold::is_permanent));
    if wanted.bytes > budget.saturating_sub(permanent.map(|resident| resident.bytes).sum()) {
        return Room::Never;
    }
    match victims(residents, lacking, |resident| resident.may_leave(wanted, now)) {
        Some(leaving) => Room::Unload(leaving.into_iter().map(|resident| resident.name.clone()).collect()),
        None => {
            let young = |resident: &&Resident| resident.hold.is_none() && !resident.is_needed_more(wanted, now);
            let ends = residents.iter().filter(young).map(Resident::stays_until);
            let mut ends: Vec<Duration> = ends.filter(|until| *until > now).collect();
            ends.sort_unstable();
            let leaving_by = |end: Duration| {
                victims(residents, lacking, |resident| young(&resident) && resident.stays_until() <= end)
            };
            // The later, the more may leave.
            let first = ends.partition_point(|&end| leaving_by(end).is_none());
            Room::Wait { until: ends.get(first).copied() }
        }
    }
}

/// Returns the models to unload, a pipeline before the models that it needs; `None` if all that may leave are not
/// enough.
fn victims(residents: &[Resident], lacking: usize, may_leave: impl Fn(&Resident) -> bool) -> Option<Vec<&Resident>> {
    let free: Vec<&Resident> = residents.iter().filter(|resident| may_leave(resident)).collect();
    let mut leaving: Vec<&Resident> = Vec::new();
    let mut names = BTreeSet::new();
    let mut freed = 0;
    while freed < lacking {
        let may_leave = free.iter().copied().filter(|resident| {
            let needed = |resident: &Resident| resident.needed_by.iter().any(|by| !names.contains(by.as_str()));
            !names.contains(resident.name.as_str()) && !needed(resident)
        });
        // Those with requests last.
        let next = may_leave.min_by_key(|resident| (resident.hold.is_some(), resident.last_used, &resident.name))?;
        names.insert(next.name.as_str());
        freed += next.bytes;
        leaving.push(next);
    }
    spare(&mut leaving, freed - lacking);
    Some(leaving)
}

/// Spares models without which enough is freed, the most recently used first. A pipeline leaves if a model of it does.
fn spare(leaving: &mut Vec<&Resident>, mut surplus: usize) {
    for index in (0..leaving.len()).rev() {
        let resident = leaving[index];
        let is_needed = leaving.iter().any(|other| other.needed_by.contains(&resident.name));
        if resident.bytes <= surplus && !is_needed {
            surplus -= resident.bytes;
            leaving.remove(index);
        }
    }
}

impl Resident {
    /// Returns how long it stays after its load, and then for others that wait: long enough to make up for the load.
    fn stay(&self) -> Duration {
        (self.load_took * STAY_FACTOR).min(LONGEST_STAY)
    }

    fn stays_until(&self) -> Duration {
        self.loaded_at + self.stay()
    }

    /// Returns whether it has requests, or is used more than a model that is to be loaded.
    fn is_needed_more(&self, wanted: Wanted, now: Duration) -> bool {
        self.hold == Some(Hold::Busy) || self.uses.count_at(now) > wanted.uses
    }

    /// Returns whether it may leave for a load.
    fn may_leave(&self, wanted: Wanted, now: Duration) -> bool {
        let has_stayed = self.stays_until() <= now;
        let has_waited = || wanted.since + self.stay().min(wanted.longest_wait) <= now;
        let may_drain = matches!(self.hold, None | Some(Hold::Busy));
        may_drain && has_stayed && (!self.is_needed_more(wanted, now) || has_waited())
    }

    /// Returns whether it has had no request for `idle`, and may leave.
    pub(super) fn is_idle(&self, idle: Duration, now: Duration) -> bool {
        self.hold.is_none() && self.needed_by.is_empty() && self.last_used + idle <= now
    }
}

/// Says what holds the memory: the largest models, and why each stays.
pub(super) struct Holders<'a> {
    pub(super) residents: &'a [Resident],
    pub(super) now: Duration,
    /// Whether models leave by themselves.
    pub(super) is_on_demand: bool,
}

impl fmt::Display for Holders<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut largest: Vec<&Resident> = self.residents.iter().collect();
        largest.sort_by_key(|resident| (Reverse(resident.bytes), &resident.name));
        if largest.is_empty() {
            return formatter.write_str("loads in progress and requests of unloaded models hold the rest");
        }
        let more = largest.len().saturating_sub(MOST_NAMED);
        for (index, resident) in largest.iter().take(MOST_NAMED).enumerate() {
            let separator = if index == 0 { "held by " } else { ", " };
            let Resident { name, bytes, .. } = resident;
            write!(formatter, "{separator}'{name}' ({bytes} bytes, ")?;
            match (resident.hold, resident.needed_by.first()) {
                _ if !self.is_on_demand => formatter.write_str("loaded")?,
                (Some(Hold::Pinned), _) => formatter.write_str("pinned")?,
                (Some(Hold::Sent), _) => formatter.write_str("sent by a client")?,
                (Some(Hold::Busy), _) => formatter.write_str("busy")?,
                (Some(Hold::Sequences(open)), _) => write!(formatter, "open sequences: {open}")?,
                (None, Some(pipeline)) => write!(formatter, "needed by '{pipeline}'")?,
                (None, None) => match resident.stays_until().checked_sub(self.now) {
                    Some(left) if !left.is_zero() => write!(formatter, "loaded recently, stays {left:.1?}")?,
                    _ => formatter.write_str("idle")?,
                },
            }
            formatter.write_str(")")?;
        }
        if more > 0 { write!(formatter, " and {more} more") } else { Ok(()) }
    }
}
