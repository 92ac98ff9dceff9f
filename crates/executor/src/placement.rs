//! The devices of a pool, and the choice of devices for a version.

use std::{fmt, io, sync::Arc};

use paternoster_batching::{LaneKnobs, Ns};
use paternoster_device::cuda::Compiler;
use paternoster_model::ModelSpec;

use super::{
    backend::Backend,
    cuda::{Card, CardOptions, Journal, check_cards},
    stages::StagePrograms,
};

/// The kind of a shard's device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceKind {
    /// The CPU, or a part of it.
    Cpu,
    /// A CUDA card, by its number in the driver.
    Card(u16),
}

/// The CPU's name among the devices of resources.
pub(super) const CPU: &str = "cpu";

impl DeviceKind {
    /// Returns its name among the devices of resources: a card's number, or `cpu`, which all parts of the CPU share.
    pub(super) fn resource_name(self) -> String {
        self.card().map_or_else(|| CPU.to_owned(), |number| number.to_string())
    }

    /// The card's number among those of the driver, if it is one.
    pub(super) fn card(self) -> Option<u16> {
        match self {
            Self::Cpu => None,
            Self::Card(number) => Some(number),
        }
    }
}

/// The cards of a pool.
#[derive(Clone, Debug, Default)]
pub struct CardsOptions {
    /// Numbers of the cards in the driver.
    pub ordinals: Vec<u16>,
    /// Number of streams per card, which run tasks in parallel; at least 1.
    pub lanes: u16,
    /// A task is launched behind others on its stream while they are expected to end within this time; 0: only on an
    /// idle stream.
    pub horizon_ns: Ns,
    /// Maximum number of tasks on a stream, at least 1.
    pub depth: u16,
    /// Maximum bytes of each card's memory that versions reserve; `None`: as much as there is.
    pub memory_bytes: Option<usize>,
    /// Compiles the kernels.
    pub compiler: Compiler,
    /// Records what is issued to the card and what ends. Requires a pool with one card.
    pub journal: Option<Arc<Journal>>,
}

impl CardsOptions {
    /// Opens the cards.
    ///
    /// # Errors
    /// If one cannot be opened; the text names it.
    pub(super) fn open(&self, most_bytes: usize) -> io::Result<Vec<(DeviceKind, Box<dyn Backend>)>> {
        let cards = self.ordinals.iter().enumerate().map(|(shard, &ordinal)| {
            let lane_knobs = LaneKnobs { horizon_ns: self.horizon_ns, depth: self.depth.max(1) };
            let journal = self.journal.clone();
            let (lanes, memory_bytes) = (self.lanes.max(1), self.memory_bytes);
            let options = CardOptions { ordinal, lanes, lane_knobs, most_bytes, memory_bytes, journal };
            let card = Card::open(shard, &options, self.compiler.clone());
            let card = card.map_err(|error| io::Error::other(format!("CUDA card {ordinal}: {error}")))?;
            Ok((DeviceKind::Card(ordinal), Box::new(card) as Box<dyn Backend>))
        });
        cards.collect()
    }
}

/// The devices of a version (Triton's instance groups).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Placement {
    /// On all cards if its programs run there, otherwise on the CPU (KIND_AUTO).
    #[default]
    Auto,
    /// On all of these; at least one.
    On(Vec<Site>),
}

/// A device, or several, that a version can be placed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Site {
    /// The CPU (KIND_CPU).
    Cpu,
    /// All cards (KIND_GPU).
    Cards,
    /// One card, by its number in the driver (KIND_GPU with `gpus`).
    Card(u16),
}

impl fmt::Display for Placement {
    /// Formats as `auto`, or as kinds of Triton's instance groups.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self::On(sites) = self else { return formatter.write_str("auto") };
        for (position, site) in sites.iter().enumerate() {
            formatter.write_str(if position == 0 { "" } else { "," })?;
            match site {
                Site::Cpu => formatter.write_str("cpu")?,
                Site::Cards => formatter.write_str("gpu")?,
                Site::Card(number) => write!(formatter, "gpu:{number}")?,
            }
        }
        Ok(())
    }
}

impl Placement {
    /// Whether it names cards.
    pub fn needs_cards(&self) -> bool {
        matches!(self, Self::On(sites) if sites.iter().any(|site| *site != Site::Cpu))
    }

    /// The first card that it names, by its number among those of the driver.
    pub fn card(&self) -> Option<u16> {
        let Self::On(sites) = self else { return None };
        sites.iter().find_map(|site| match site {
            Site::Card(number) => Some(*number),
            Site::Cpu | Site::Cards => None,
        })
    }

    /// Whether cards may be among the devices.
    pub fn may_need_cards(&self) -> bool {
        *self == Self::Auto || self.needs_cards()
    }

    /// Returns the devices by their numbers in the pool; at least one.
    ///
    /// # Errors
    /// If none of the devices exists, or if the programs do not run there.
    pub(super) fn devices(
        &self,
        kinds: &[DeviceKind],
        spec: &ModelSpec,
        programs: &StagePrograms,
    ) -> Result<Vec<usize>, String> {
        let has_cards = kinds.iter().any(|kind| *kind != DeviceKind::Cpu);
        if programs.use_cards() {
            // Wherever it is asked to live: the card is the program's own.
            return Self::On(vec![Site::Cpu]).of_kinds(kinds);
        }
        let sites = match self {
            Self::Auto if has_cards && check_cards(spec, programs).is_ok() => &[Site::Cards][..],
            Self::Auto => &[Site::Cpu],
            Self::On(sites) => sites,
        };
        // An explicit choice of cards fails here; automatic placement has already fallen back to the CPU.
        if self.needs_cards() && has_cards {
            check_cards(spec, programs)?;
        }
        Self::On(sites.to_vec()).of_kinds(kinds)
    }

    /// The devices of these sites.
    ///
    /// # Errors
    /// When there is none of them.
    fn of_kinds(&self, kinds: &[DeviceKind]) -> Result<Vec<usize>, String> {
        let Self::On(sites) = self else { return Ok((0..kinds.len()).collect()) };
        let mut devices: Vec<usize> = Vec::new();
        for site in sites {
            let before = devices.len();
            let meant = kinds.iter().enumerate().filter(|(_, kind)| match (site, kind) {
                (Site::Cpu, kind) => **kind == DeviceKind::Cpu,
                (Site::Cards, kind) => **kind != DeviceKind::Cpu,
                (Site::Card(named), kind) => **kind == DeviceKind::Card(*named),
            });
            devices.extend(meant.map(|(device, _)| device));
            if devices.len() == before {
                return Err(match site {
                    Site::Cpu => "the pool does not have the CPU".to_owned(),
                    Site::Cards => "there is no CUDA card".to_owned(),
                    Site::Card(named) => format!("there is no CUDA card {named}"),
                });
            }
        }
        devices.sort_unstable();
        devices.dedup();
        Ok(devices)
    }
}
