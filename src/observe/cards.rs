//! What cards say of themselves, by NVML: a library of the driver's, which is loaded where there is a card.

use std::fmt;

use nvml_wrapper::{Device, Nvml, error::NvmlError};

/// The cards that are watched.
pub struct WatchedCards {
    nvml: Nvml,
    cards: Vec<WatchedCard>,
}

#[derive(Debug)]
struct WatchedCard {
    uuid: String,
    /// Millijoules when the watching began; none where the card does not count them.
    energy_at_start: Option<u64>,
}

/// What one card says at one instant. What it does not know is absent.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct CardReading {
    /// As the driver has it, `GPU-…`.
    pub uuid: String,
    /// Share of the last sample period in which a kernel ran, 0 to 1.
    pub utilization: Option<f64>,
    /// Bytes of its memory, and of those in use by all processes.
    pub memory: Option<(u64, u64)>,
    /// Watts that it takes.
    pub power_usage: Option<f64>,
    /// Most watts that it may take.
    pub power_limit: Option<f64>,
    /// Joules that it took since the watching began.
    pub energy: Option<f64>,
}

impl WatchedCards {
    /// Begins to watch cards by their identifiers.
    ///
    /// # Errors
    /// When the library is not there, does not start, or does not know a card.
    pub fn open(uuids: &[String]) -> Result<Self, NvmlError> {
        let nvml = Nvml::init()?;
        let watched = uuids.iter().map(|uuid| {
            let card = nvml.device_by_uuid(uuid.as_str())?;
            Ok(WatchedCard { uuid: uuid.clone(), energy_at_start: card.total_energy_consumption().ok() })
        });
        let cards = watched.collect::<Result<_, NvmlError>>()?;
        Ok(Self { nvml, cards })
    }

    /// What each card says now. A card that fails meanwhile says nothing.
    pub(super) fn read(&self) -> Vec<CardReading> {
        let read = |watched: &WatchedCard| {
            let card = self.nvml.device_by_uuid(watched.uuid.as_str()).ok()?;
            Some(watched.read(&card))
        };
        self.cards.iter().filter_map(read).collect()
    }
}

impl WatchedCard {
    fn read(&self, card: &Device<'_>) -> CardReading {
        let watts = |milliwatts: u32| f64::from(milliwatts) / 1e3;
        let energy = self.energy_at_start.zip(card.total_energy_consumption().ok());
        CardReading {
            uuid: self.uuid.clone(),
            utilization: card.utilization_rates().ok().map(|rates| f64::from(rates.gpu) / 1e2),
            memory: card.memory_info().ok().map(|memory| (memory.total, memory.used)),
            power_usage: card.power_usage().ok().map(watts),
            power_limit: card.enforced_power_limit().ok().map(watts),
            // A driver that is loaded again counts from zero.
            energy: energy.map(|(start, now)| now.checked_sub(start).unwrap_or(now) as f64 / 1e3),
        }
    }
}

impl fmt::Debug for WatchedCards {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("WatchedCards").field("cards", &self.cards).finish_non_exhaustive()
    }
}
