//! Readings of CUDA cards through NVML, a library of the driver that is loaded only if there is a card.

use std::fmt;

use nvml_wrapper::{Device, Nvml, error::NvmlError};

/// The observed cards.
pub struct WatchedCards {
    nvml: Nvml,
    cards: Vec<WatchedCard>,
}

#[derive(Debug)]
struct WatchedCard {
    uuid: String,
    /// Energy in millijoules at the start; `None` if the card does not count it.
    energy_at_start: Option<u64>,
}

/// The readings of one card at one instant; unknown values are `None`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct CardReading {
    /// Identifier of the driver, `GPU-…`.
    pub uuid: String,
    /// Fraction of the last sample period in which a kernel ran, 0 to 1.
    pub utilization: Option<f64>,
    /// Total memory, and memory in use by all processes, in bytes.
    pub memory: Option<(u64, u64)>,
    /// Power draw in watts.
    pub power_usage: Option<f64>,
    /// Power limit in watts.
    pub power_limit: Option<f64>,
    /// Energy in joules since the start.
    pub energy: Option<f64>,
}

impl WatchedCards {
    /// Starts observing cards, given their identifiers.
    ///
    /// # Errors
    /// If the library is missing, cannot be initialized, or does not know a card.
    pub fn open(uuids: &[String]) -> Result<Self, NvmlError> {
        let nvml = Nvml::init()?;
        let watched = uuids.iter().map(|uuid| {
            let card = nvml.device_by_uuid(uuid.as_str())?;
            Ok(WatchedCard { uuid: uuid.clone(), energy_at_start: card.total_energy_consumption().ok() })
        });
        let cards = watched.collect::<Result<_, NvmlError>>()?;
        Ok(Self { nvml, cards })
    }

    /// Returns the energy of all cards together in joules since the start; `None` if one of them does not count it.
    pub fn energy(&self) -> Option<f64> {
        let joules = |watched: &WatchedCard| watched.energy(&self.nvml.device_by_uuid(watched.uuid.as_str()).ok()?);
        self.cards.iter().map(joules).sum()
    }

    /// Reads each card. A card that fails is omitted.
    pub(crate) fn read(&self) -> Vec<CardReading> {
        let read = |watched: &WatchedCard| {
            let card = self.nvml.device_by_uuid(watched.uuid.as_str()).ok()?;
            Some(watched.read(&card))
        };
        self.cards.iter().filter_map(read).collect()
    }
}

impl WatchedCard {
    /// Returns the energy in joules since the start.
    fn energy(&self, card: &Device<'_>) -> Option<f64> {
        let (start, now) = self.energy_at_start.zip(card.total_energy_consumption().ok())?;
        // A reloaded driver counts from zero.
        Some(now.checked_sub(start).unwrap_or(now) as f64 / 1e3)
    }

    fn read(&self, card: &Device<'_>) -> CardReading {
        let watts = |milliwatts: u32| f64::from(milliwatts) / 1e3;
        CardReading {
            uuid: self.uuid.clone(),
            utilization: card.utilization_rates().ok().map(|rates| f64::from(rates.gpu) / 1e2),
            memory: card.memory_info().ok().map(|memory| (memory.total, memory.used)),
            power_usage: card.power_usage().ok().map(watts),
            power_limit: card.enforced_power_limit().ok().map(watts),
            energy: self.energy(card),
        }
    }
}

impl fmt::Debug for WatchedCards {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("WatchedCards").field("cards", &self.cards).finish_non_exhaustive()
    }
}
