//! The metric families of the machine: CPU, memory and CUDA cards.

use std::time::{Duration, Instant};

use parking_lot::Mutex;
use paternoster_observe::{Machine, MachineMemory};
use prometheus::{
    core::{Collector, Desc},
    proto::MetricFamily,
};

use super::{
    families::{CPU_UTILIZATION, Family, MEMORY_TOTAL, MEMORY_USED, PER_CARD, PINNED_TOTAL, PINNED_USED},
    samples::{family_of, labels, number, single},
};
use crate::cards::{CardReading, WatchedCards};

/// Selection of the machine's metrics.
#[derive(Debug)]
pub struct MachineMetrics {
    /// Whether to export CPU and memory (`--allow-cpu-metrics`).
    pub cpu: bool,
    /// The cards to export, if any (`--allow-gpu-metrics`).
    pub cards: Option<WatchedCards>,
    /// A scrape reuses readings that are younger than this (`--metrics-interval-ms`).
    pub interval: Duration,
}

/// A cached reading, renewed by the first scrape after it has expired.
#[derive(Debug)]
struct Kept<T> {
    interval: Duration,
    last: Mutex<Option<(Instant, T)>>,
}

impl<T: Clone> Kept<T> {
    fn new(interval: Duration) -> Self {
        Self { interval, last: Mutex::new(None) }
    }

    /// Returns the cached reading or a new one. Concurrent scrapes wait for the one that reads, and share its result.
    fn get(&self, now: Instant, read: impl FnOnce() -> T) -> T {
        let mut last = self.last.lock();
        if let Some((at, reading)) = &*last
            && now.saturating_duration_since(*at) < self.interval
        {
            return reading.clone();
        }
        let reading = read();
        *last = Some((now, reading.clone()));
        reading
    }
}

#[derive(Clone, Copy, Debug)]
struct CpuReading {
    utilization: Option<f64>,
    memory: Option<MachineMemory>,
}

/// Reads the machine when metrics are collected.
#[derive(Debug)]
pub(super) struct MachineCollector {
    machine: Option<Machine>,
    cpu: Kept<CpuReading>,
    watched: Option<WatchedCards>,
    cards: Kept<Vec<CardReading>>,
    descs: Vec<Desc>,
}

impl MachineCollector {
    pub(super) fn new(shown: MachineMetrics) -> Result<Self, prometheus::Error> {
        let MachineMetrics { cpu, cards, interval } = shown;
        let own = [&CPU_UTILIZATION, &MEMORY_TOTAL, &MEMORY_USED, &PINNED_TOTAL, &PINNED_USED];
        let own = own.map(|family| (family, &[][..]));
        let of_cards = PER_CARD.iter().map(|one| (&one.family, &["gpu_uuid"][..]));
        let descs = own.into_iter().chain(of_cards).map(|(family, labels): (&Family, &[&str])| {
            let labels = labels.iter().map(|&label| label.to_owned()).collect();
            Desc::new(family.name.to_owned(), family.help.to_owned(), labels, Default::default())
        });
        Ok(Self {
            descs: descs.collect::<Result<_, _>>()?,
            machine: cpu.then(Machine::start),
            cpu: Kept::new(interval),
            watched: cards,
            cards: Kept::new(interval),
        })
    }

    fn cpu_families(&self, now: Instant) -> Vec<MetricFamily> {
        let Some(machine) = &self.machine else { return Vec::new() };
        let read = || CpuReading { utilization: machine.cpu_utilization(), memory: Machine::memory() };
        let CpuReading { utilization, memory } = self.cpu.get(now, read);
        let mut families: Vec<MetricFamily> =
            utilization.map(|share| single(&CPU_UTILIZATION, share)).into_iter().collect();
        if let Some(MachineMemory { total, used }) = memory {
            families.extend([single(&MEMORY_TOTAL, total as f64), single(&MEMORY_USED, used as f64)]);
        }
        families
    }

    fn card_families(&self, now: Instant) -> Vec<MetricFamily> {
        let Some(watched) = &self.watched else { return Vec::new() };
        let read = self.cards.get(now, || watched.read());
        let families = PER_CARD.iter().map(|one| {
            let samples = read.iter().filter_map(|card| {
                let value = (one.value)(card)?;
                Some(number(labels(&[("gpu_uuid", &card.uuid)]), one.family.kind, value))
            });
            family_of(&one.family, samples.collect())
        });
        families.collect()
    }
}

impl Collector for MachineCollector {
    fn desc(&self) -> Vec<&Desc> {
        self.descs.iter().collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let now = Instant::now();
        // There is no pool of pinned memory, because each model pins its own. Dashboards query these families anyway.
        let mut families = vec![single(&PINNED_TOTAL, 0.0), single(&PINNED_USED, 0.0)];
        families.extend(self.cpu_families(now));
        families.extend(self.card_families(now));
        families
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reading_is_made_again_once_it_is_as_old_as_the_interval() {
        let (kept, begin) = (Kept::new(Duration::from_secs(2)), Instant::now());
        let at = |ms, value| kept.get(begin + Duration::from_millis(ms), || value);
        assert_eq!(at(0, 1), 1);
        assert_eq!(at(1_999, 2), 1, "it is not old yet");
        assert_eq!(at(2_000, 3), 3);
        assert_eq!(at(3_000, 4), 3, "each reading starts a new interval");
        let always = Kept::new(Duration::ZERO);
        assert_eq!((always.get(begin, || 1), always.get(begin, || 2)), (1, 2));
    }
}
