//! Lists the CUDA cards of the machine.

use std::fmt;

use cudarc::driver::{result, sys::CUdevice_attribute as Attribute};

use super::{
    driver::{named, uuid},
    libraries::{self, NoCards},
};

/// A card.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Card {
    /// Its ordinal in the driver.
    pub ordinal: u16,
    /// Its product name.
    pub name: String,
    /// Compute capability, such as 9 and 0.
    pub capability: (i32, i32),
    /// Bytes of its memory.
    pub memory_bytes: usize,
    /// Its identifier, such as `GPU-...`, which is the same in every process.
    pub uuid: String,
}

impl fmt::Display for Card {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (major, minor) = self.capability;
        let gib = self.memory_bytes as f64 / f64::from(1_u32 << 30);
        write!(formatter, "{}, compute capability {major}.{minor}, {gib:.0} GiB", self.name)
    }
}

/// Returns the cards that the driver lists. Called once, at start, because looking for a missing library is slow.
///
/// # Errors
/// If there is none, with the reason.
pub fn cards() -> Result<Vec<Card>, NoCards> {
    libraries::driver()?;
    let count = result::init().and_then(|()| result::device::get_count());
    let count = count.map_err(|error| NoCards::Refused(named(error)))?;
    let ordinals = 0..u16::try_from(count).unwrap_or(0);
    let cards: Result<Vec<Card>, result::DriverError> = ordinals.map(card).collect();
    let cards = cards.map_err(|error| NoCards::Refused(named(error)))?;
    if cards.is_empty() { Err(NoCards::None) } else { Ok(cards) }
}

fn card(ordinal: u16) -> Result<Card, result::DriverError> {
    let device = result::device::get(i32::from(ordinal))?;
    #[expect(unsafe_code, reason = "the driver is a C library")]
    // SAFETY: the driver has just named the device.
    let (major, minor, memory_bytes) = unsafe {
        (
            result::device::get_attribute(device, Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            result::device::get_attribute(device, Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
            result::device::total_mem(device)?,
        )
    };
    Ok(Card {
        ordinal,
        name: result::device::get_name(device)?,
        capability: (major, minor),
        memory_bytes,
        uuid: uuid(result::device::get_uuid(device)?),
    })
}

#[cfg(test)]
mod tests {
    use std::ffi::c_char;

    use cudarc::driver::sys::CUuuid;

    use super::*;

    #[test]
    fn a_card_is_named_as_the_drivers_tools_do() {
        let card = Card {
            ordinal: 0,
            name: "Card X".to_owned(),
            capability: (9, 0),
            memory_bytes: 80 << 30,
            uuid: uuid(CUuuid { bytes: std::array::from_fn(|at| at as c_char) }),
        };
        assert_eq!(card.uuid, "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f");
        assert_eq!(card.to_string(), "Card X, compute capability 9.0, 80 GiB");
    }
}
