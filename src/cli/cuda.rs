//! Flags for CUDA cards, and the choice of cards.

use std::{fmt::Display, path::PathBuf};

use clap::Args;
use paternoster_device::cuda::{
    Compiler,
    cards::{self, Card},
    libraries::{self, LoadedLibrary},
};
use paternoster_executor::{CardsOptions, Pool};
use paternoster_exporters::WatchedCards;
use paternoster_profile::default_directory;
use tracing::{info, warn};

use super::flags::boolean;

/// Tasks on a stream at once, if some are launched ahead.
const DEPTH: u16 = 2;

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "CUDA cards")]
#[allow(missing_docs)]
pub struct CudaArgs {
    /// Device for models that leave it to the server: auto (all CUDA cards, else the CPU), cpu, cuda, or cuda: with
    /// numbers of cards, as in cuda:0,1
    #[arg(long = "device", value_name = "DEVICE", default_value = "auto", value_parser = DeviceChoice::parse)]
    pub device: DeviceChoice,

    /// Let models that require a CUDA card run on the CPU if there is none; otherwise they are rejected
    #[arg(long = "allow-cpu-fallback", value_name = "BOOL", value_parser = boolean)]
    #[arg(num_args = 0..=1, default_missing_value = "true", default_value = "false")]
    pub allow_cpu_fallback: bool,

    /// Directory of NVRTC, cuBLASLt and cuDNN; by default they are searched in the Python wheels of the environment and
    /// in the system's paths
    #[arg(long = "cuda-libraries", value_name = "DIR")]
    pub libraries: Option<PathBuf>,

    /// Bytes of each card's memory that models may reserve; 0 leaves it to what is free. A model that does not fit is
    /// rejected, or runs on the CPU if it may
    #[arg(long = "cuda-memory-bytes", value_name = "BYTES", default_value_t = 0)]
    pub memory_bytes: usize,

    /// Directory for compiled kernels; defaults to one beside the profiles
    #[arg(long = "cuda-kernel-directory", value_name = "DIR")]
    pub kernel_directory: Option<PathBuf>,

    /// Streams of each card, whose batches run concurrently
    #[arg(long = "cuda-streams", value_name = "N", default_value_t = 2)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=32))]
    pub streams: u16,

    /// Microseconds before the expected end of a stream's batch at which the next one is launched; 0 waits for the end
    #[arg(long = "cuda-horizon-us", value_name = "MICROSECONDS", default_value_t = 100)]
    #[arg(value_parser = clap::value_parser!(u64).range(..=1_000_000))]
    pub horizon_us: u64,
}

/// Directory of compiled kernels in that of all that is kept.
pub(super) const KERNELS: &str = "kernels";

/// The value of `--device`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceChoice {
    /// All cards; the CPU alone if there are none.
    Auto,
    /// No cards.
    Cpu,
    /// These cards, which must exist; all cards if the list is empty.
    Cuda(Vec<u16>),
}

impl DeviceChoice {
    fn parse(text: &str) -> Result<Self, String> {
        let expected = || format!("expected auto, cpu, cuda or cuda:<number>,<number>, but found '{text}'");
        match text {
            "auto" => Ok(Self::Auto),
            "cpu" => Ok(Self::Cpu),
            "cuda" => Ok(Self::Cuda(Vec::new())),
            _ => {
                let numbers = text.strip_prefix("cuda:").ok_or_else(expected)?;
                let numbers = numbers.split(',').map(|number| number.parse().map_err(|_| expected()));
                numbers.collect::<Result<_, _>>().map(Self::Cuda)
            }
        }
    }
}

impl CudaArgs {
    /// Returns the cards to open, or why there are none.
    ///
    /// # Errors
    /// Fails if requested cards do not exist.
    pub(super) fn cards(&self) -> Result<Result<CardsOptions, String>, String> {
        if self.device == DeviceChoice::Cpu {
            return Ok(Err("the server was started with --device cpu".to_owned()));
        }
        let there = cards::cards().and_then(|there| Ok((there, libraries::open(self.libraries.as_deref())?)));
        let (there, found) = match (there, &self.device) {
            (Ok(there), _) => there,
            (Err(reason), DeviceChoice::Cuda(_)) => return Err(format!("--device: {reason}")),
            (Err(reason), _) => {
                if reason.is_fault() {
                    warn!(%reason, "cards cannot be used; models run on the CPU");
                } else {
                    info!(%reason, "models run on the CPU");
                }
                return Ok(Err(reason.to_string()));
            }
        };
        for (path, reason) in &found.broken {
            warn!(library = %path.display(), %reason, "CUDA library cannot be loaded");
        }
        for reason in &found.warnings {
            warn!(%reason, "CUDA library is not the chosen one");
        }
        for LoadedLibrary { library, version, path, .. } in found.libraries.iter().flatten() {
            info!(%library, version, path = %path.display(), "CUDA library is loaded");
        }
        let ordinals = self.chosen(&there)?;
        for card in there.iter().filter(|card| ordinals.contains(&card.ordinal)) {
            info!(card = card.ordinal, description = %card, "CUDA card found");
        }
        Ok(Ok(CardsOptions {
            ordinals,
            lanes: self.streams,
            horizon_ns: self.horizon_us * 1000,
            depth: if self.horizon_us == 0 { 1 } else { DEPTH },
            memory_bytes: Some(self.memory_bytes).filter(|&bytes| bytes > 0),
            compiler: Compiler::new(self.kernels()),
            journal: None,
        }))
    }

    /// Returns the chosen cards, out of those that exist.
    fn chosen(&self, there: &[Card]) -> Result<Vec<u16>, String> {
        let all = || there.iter().map(|card| card.ordinal).collect::<Vec<u16>>();
        let DeviceChoice::Cuda(named) = &self.device else { return Ok(all()) };
        if named.is_empty() {
            return Ok(all());
        }
        if let Some(missing) = named.iter().find(|named| !all().contains(named)) {
            return Err(format!("--device: there is no CUDA card {missing}, expected one of {:?}", all()));
        }
        let mut named = named.clone();
        named.sort_unstable();
        named.dedup();
        Ok(named)
    }

    /// Returns the directory for compiled kernels, if there is one.
    fn kernels(&self) -> Option<PathBuf> {
        self.kernel_directory.clone().or_else(|| Some(default_directory()?.join(KERNELS)))
    }

    /// Returns whether the server may start although its cards cannot be used.
    pub(super) fn leaves_open(&self) -> bool {
        self.device == DeviceChoice::Auto
    }
}

/// Watches the cards of a pool for the metrics; `None`, with a warning in the log, if NVML does not know them.
pub(super) fn watched_cards(pool: &Pool) -> Option<WatchedCards> {
    if !pool.has_cards() {
        return None;
    }
    let watched = watch(&pool.cards().collect::<Vec<u16>>());
    watched.inspect_err(|error| warn!(%error, "there are no metrics of cards: NVML does not know them")).ok()
}

/// Watches cards by their numbers in the driver.
///
/// # Errors
/// If NVML does not know them.
pub(super) fn watch(ordinals: &[u16]) -> Result<WatchedCards, impl Display + use<>> {
    let chosen = |card: Card| ordinals.contains(&card.ordinal).then_some(card.uuid);
    let uuids: Vec<String> = cards::cards().unwrap_or_default().into_iter().filter_map(chosen).collect();
    WatchedCards::open(&uuids)
}

#[cfg(test)]
mod tests {
    use super::{super::tests::serve, *};

    #[test]
    fn a_device_is_named() {
        let device = |text: &str| serve(&["--device", text]).cuda.device;
        assert_eq!(serve(&[]).cuda.device, DeviceChoice::Auto);
        assert_eq!(device("cpu"), DeviceChoice::Cpu);
        assert_eq!(device("cuda"), DeviceChoice::Cuda(vec![]));
        assert_eq!(device("cuda:1,0"), DeviceChoice::Cuda(vec![1, 0]));
        for wrong in ["gpu", "cuda:", "cuda:x", "cuda:0,", "cuda:-1", "cuda:70000"] {
            let refusal = DeviceChoice::parse(wrong).expect_err("it names no device");
            assert!(refusal.contains("expected auto, cpu, cuda") && refusal.contains(wrong), "{refusal}");
        }
    }

    #[test]
    fn cards_are_chosen_among_those_that_there_are() {
        let there = [0, 1, 2].map(|ordinal| Card {
            ordinal,
            name: "Card X".to_owned(),
            capability: (9, 0),
            memory_bytes: 1 << 30,
            uuid: "GPU-0".to_owned(),
        });
        let chosen = |text: &str| serve(&["--device", text]).cuda.chosen(&there);
        assert_eq!(chosen("auto"), Ok(vec![0, 1, 2]));
        assert_eq!(chosen("cuda"), Ok(vec![0, 1, 2]));
        assert_eq!(chosen("cuda:2,0,2"), Ok(vec![0, 2]));
        let refusal = "--device: there is no CUDA card 3, expected one of [0, 1, 2]";
        assert_eq!(chosen("cuda:0,3"), Err(refusal.to_owned()));
    }
}
