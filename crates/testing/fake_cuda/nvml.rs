//! The load of the devices, as the driver's management library (NVML) reports it: constants that differ by device, and
//! an energy counter that grows with each reading.

use std::{
    ffi::{CStr, c_char, c_int, c_uint, c_ulonglong, c_void},
    sync::atomic::{AtomicU64, Ordering},
};

use crate::{device, settings::settings};

const SUCCESS: c_int = 0;
const NOT_SUPPORTED: c_int = 3;
const NOT_FOUND: c_int = 6;

/// Millijoules that each reading adds.
const ENERGY_STEP: u64 = 1_500;

static ENERGY: AtomicU64 = AtomicU64::new(1_000_000);

#[repr(C)]
pub(crate) struct Utilization {
    gpu: c_uint,
    memory: c_uint,
}

#[repr(C)]
pub(crate) struct MemoryInfo {
    version: c_uint,
    total: c_ulonglong,
    reserved: c_ulonglong,
    free: c_ulonglong,
    used: c_ulonglong,
}

/// A device's number plus one, so that no handle is null.
type Handle = *mut c_void;

#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvmlInit_v2() -> c_int {
    SUCCESS
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvmlShutdown() -> c_int {
    SUCCESS
}

/// # Safety
/// `uuid` is a C string, `handle` can be written.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn nvmlDeviceGetHandleByUUID(uuid: *const c_char, handle: *mut Handle) -> c_int {
    // SAFETY: guaranteed by the caller.
    let asked = unsafe { CStr::from_ptr(uuid) };
    let known =
        (0..settings().devices).find(|&number| device::uuid_text(number as c_int).as_bytes() == asked.to_bytes());
    let Some(number) = known else { return NOT_FOUND };
    // SAFETY: guaranteed by the caller.
    unsafe { *handle = (number + 1) as Handle };
    SUCCESS
}

/// # Safety
/// `rates` can be written.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn nvmlDeviceGetUtilizationRates(handle: Handle, rates: *mut Utilization) -> c_int {
    // SAFETY: guaranteed by the caller.
    unsafe { *rates = Utilization { gpu: 40 + handle as c_uint, memory: 7 } };
    SUCCESS
}

/// # Safety
/// `info` can be written.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn nvmlDeviceGetMemoryInfo_v2(_: Handle, info: *mut MemoryInfo) -> c_int {
    let total = settings().memory_bytes as c_ulonglong;
    let used = total / 4;
    // SAFETY: guaranteed by the caller.
    unsafe { *info = MemoryInfo { version: (*info).version, total, reserved: 0, free: total - used, used } };
    SUCCESS
}

/// # Safety
/// `milliwatts` can be written.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn nvmlDeviceGetPowerUsage(handle: Handle, milliwatts: *mut c_uint) -> c_int {
    // SAFETY: guaranteed by the caller.
    unsafe { *milliwatts = 120_500 + handle as c_uint };
    SUCCESS
}

/// The second device does not report its limit, like some cards.
///
/// # Safety
/// `milliwatts` can be written.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn nvmlDeviceGetEnforcedPowerLimit(handle: Handle, milliwatts: *mut c_uint) -> c_int {
    if handle as usize == 2 {
        return NOT_SUPPORTED;
    }
    // SAFETY: guaranteed by the caller.
    unsafe { *milliwatts = 700_000 };
    SUCCESS
}

/// # Safety
/// `millijoules` can be written.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn nvmlDeviceGetTotalEnergyConsumption(_: Handle, millijoules: *mut c_ulonglong) -> c_int {
    // SAFETY: guaranteed by the caller.
    unsafe { *millijoules = ENERGY.fetch_add(ENERGY_STEP, Ordering::Relaxed) };
    SUCCESS
}
