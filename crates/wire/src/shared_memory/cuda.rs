//! Regions of a CUDA card's memory, which clients share by a handle of the driver.

use std::{collections::HashMap, sync::Arc};

use parking_lot::Mutex;
use paternoster_device::{
    DeviceError,
    cuda::{IMPORT_HANDLE_BYTES, ImportedMemory, Sharing},
};

use super::SharedMemoryError;

/// The cards whose memory clients may share, by their numbers among those of the driver; or why there are none.
#[derive(Debug)]
pub(super) struct Cards {
    numbers: Result<Vec<u16>, String>,
    /// Those that regions were registered of.
    started: Mutex<HashMap<u16, Arc<Sharing>>>,
}

impl Cards {
    pub(super) fn new(numbers: Result<Vec<u16>, String>) -> Self {
        Self { numbers, started: Mutex::default() }
    }

    pub(super) fn are_available(&self) -> bool {
        self.numbers.is_ok()
    }

    /// Opens the memory of a handle on a card.
    pub(super) fn open(
        &self,
        name: &str,
        raw_handle: &[u8],
        device: i64,
        byte_size: u64,
    ) -> Result<(u16, Arc<ImportedMemory>), SharedMemoryError> {
        let (card, handle) = self.check(name, raw_handle, device)?;
        let refused = |error: DeviceError| match error {
            DeviceError::Lost(reason) => SharedMemoryError::Card { name: name.to_owned(), reason },
            other => SharedMemoryError::Handle { name: name.to_owned(), reason: other.to_string() },
        };
        let sharing = self.sharing(card).map_err(|error| fault(name, &error))?;
        let memory = sharing.open(handle).map_err(refused)?;
        let available = memory.bytes() as u64;
        if byte_size > available {
            return Err(SharedMemoryError::BeyondAllocation { name: name.to_owned(), byte_size, available });
        }
        Ok((card, Arc::new(memory)))
    }

    fn check(
        &self,
        name: &str,
        raw_handle: &[u8],
        device: i64,
    ) -> Result<(u16, [u8; IMPORT_HANDLE_BYTES]), SharedMemoryError> {
        let name = || name.to_owned();
        let numbers = self.numbers.as_ref();
        let numbers = numbers.map_err(|reason| SharedMemoryError::NoCards { name: name(), reason: reason.clone() })?;
        let card = numbers.iter().find(|card| i64::from(**card) == device).copied();
        let card = card.ok_or_else(|| {
            let expected = format!("one of {numbers:?}");
            SharedMemoryError::UnknownDevice { name: name(), device, expected }
        })?;
        let handle = raw_handle.try_into().map_err(|_| SharedMemoryError::HandleSize {
            name: name(),
            got: raw_handle.len(),
            expected: IMPORT_HANDLE_BYTES,
        })?;
        Ok((card, handle))
    }

    fn sharing(&self, card: u16) -> Result<Arc<Sharing>, DeviceError> {
        let mut started = self.started.lock();
        if let Some(sharing) = started.get(&card) {
            return Ok(Arc::clone(sharing));
        }
        let sharing = Sharing::start(card)?;
        started.insert(card, Arc::clone(&sharing));
        Ok(sharing)
    }
}

/// Why a region on a card cannot be read or written: it was checked to be as long as it was registered.
pub(super) fn fault(name: &str, error: &DeviceError) -> SharedMemoryError {
    SharedMemoryError::Card { name: name.to_owned(), reason: error.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Kind, SharedMemory};

    fn refusal(cards: Result<Vec<u16>, String>, handle: &[u8], device: i64, byte_size: u64) -> SharedMemoryError {
        let memory = SharedMemory::new(true).with_cards(cards);
        memory.register_cuda("region", handle, device, byte_size).expect_err("no card is here")
    }

    #[test]
    fn a_server_without_cards_says_why_there_are_none() {
        let refused = refusal(Err("no driver".to_owned()), &[0; IMPORT_HANDLE_BYTES], 0, 64);
        assert_eq!(refused.kind(), Kind::InvalidArgument);
        assert!(refused.to_string().contains("'region': this server uses no CUDA card (no driver)"), "{refused}");
    }

    #[test]
    fn what_names_no_memory_of_a_card_is_refused_before_the_driver_is_asked() {
        for (handle, device, byte_size, fact) in [
            (&[0; IMPORT_HANDLE_BYTES][..], 2, 64, "there is no device_id 2, expected one of [0, 1]"),
            (&[0; IMPORT_HANDLE_BYTES], -1, 64, "there is no device_id -1"),
            (&[0; 63], 1, 64, "raw_handle has 63 bytes, expected 64"),
            (&[], 0, 64, "raw_handle has 0 bytes, expected 64"),
            (&[0; IMPORT_HANDLE_BYTES], 0, 0, "it needs a byte size > 0"),
        ] {
            let refused = refusal(Ok(vec![0, 1]), handle, device, byte_size);
            assert_eq!(refused.kind(), Kind::InvalidArgument, "{refused}");
            assert!(refused.to_string().contains(fact), "{refused}");
        }
    }

    #[test]
    fn a_server_whose_clients_share_no_memory_names_the_flag_first() {
        let memory = SharedMemory::new(false).with_cards(Ok(vec![0]));
        let refused = memory.register_cuda("region", &[], 9, 0).expect_err("it is off");
        assert_eq!(refused, SharedMemoryError::Disabled);
        assert_eq!(memory.cuda_status("region").expect_err("none is there").kind(), Kind::NotFound);
        memory.unregister_cuda("");
    }
}
