//! The devices and their properties: an H100, by default.

use std::{
    ffi::{c_char, c_int},
    sync::{
        OnceLock,
        atomic::{AtomicBool, Ordering},
    },
};

use cudarc::driver::sys::{CUdevice_attribute_enum, CUdevice_attribute_enum::*, CUresult, CUresult::*, CUuuid};
use parking_lot::Mutex;

use crate::{calls::entries, context::Primary, settings::settings};

pub(crate) const MOST_THREADS: u32 = 1024;
const MULTIPROCESSORS: i32 = 132;
/// Shared memory of a block, without and with a kernel's opt-in.
pub(crate) const SHARED_BYTES: u32 = 48 << 10;
pub(crate) const MOST_SHARED_BYTES: u32 = 227 << 10;

static INITIALIZED: AtomicBool = AtomicBool::new(false);

#[derive(Default)]
pub(crate) struct Device {
    pub primary: Mutex<Primary>,
}

pub(crate) fn check_initialized() -> Result<(), CUresult> {
    INITIALIZED.load(Ordering::Relaxed).then_some(()).ok_or(CUDA_ERROR_NOT_INITIALIZED)
}

pub(crate) fn get(ordinal: c_int) -> Result<&'static Device, CUresult> {
    static DEVICES: OnceLock<Vec<Device>> = OnceLock::new();
    check_initialized()?;
    let devices = DEVICES.get_or_init(|| (0..settings().devices).map(|_| Device::default()).collect());
    usize::try_from(ordinal).ok().and_then(|place| devices.get(place)).ok_or(CUDA_ERROR_INVALID_DEVICE)
}

/// Returns the attributes that programs ask for. All others are 0, including support of memory pools: memory that is
/// shared with other processes cannot come from a pool.
fn attribute(attribute: u32, ordinal: i32) -> i32 {
    let is = |one: CUdevice_attribute_enum| one as u32 == attribute;
    let values = [
        (CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, MOST_THREADS as i32),
        (CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X, 1024),
        (CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y, 1024),
        (CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z, 64),
        (CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X, i32::MAX),
        (CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y, 65535),
        (CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z, 65535),
        (CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK, SHARED_BYTES as i32),
        (CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, MOST_SHARED_BYTES as i32),
        (CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR, 228 << 10),
        (CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY, 64 << 10),
        (CU_DEVICE_ATTRIBUTE_WARP_SIZE, 32),
        (CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK, 65536),
        (CU_DEVICE_ATTRIBUTE_CLOCK_RATE, 1_980_000),
        (CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, MULTIPROCESSORS),
        (CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, 2048),
        (CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY, 1),
        (CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, 1),
        (CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS, 1),
        (CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED, 1),
        (CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT, 3),
        (CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, 50 << 20),
        (CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE, 2_619_000),
        (CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH, 5120),
        (CU_DEVICE_ATTRIBUTE_PCI_BUS_ID, 1 + ordinal),
        (CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, settings().capability.0),
        (CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, settings().capability.1),
    ];
    values.into_iter().find(|(name, _)| is(*name)).map_or(0, |(_, value)| value)
}

/// Copies a C string, truncated to the capacity.
///
/// # Safety
/// `to` has `capacity` bytes.
unsafe fn copy_text(text: &str, to: *mut c_char, capacity: c_int) -> Result<(), CUresult> {
    let capacity = usize::try_from(capacity).ok().filter(|capacity| *capacity > 0).ok_or(CUDA_ERROR_INVALID_VALUE)?;
    let length = text.len().min(capacity - 1);
    // SAFETY: guaranteed by the caller.
    unsafe {
        text.as_ptr().copy_to_nonoverlapping(to.cast(), length);
        *to.add(length) = 0;
    }
    Ok(())
}

fn uuid(ordinal: c_int) -> CUuuid {
    let mut bytes = [0; 16];
    for (to, from) in bytes.iter_mut().zip(b"fake-cuda-dev-00") {
        *to = *from as c_char;
    }
    bytes[15] += ordinal as c_char;
    CUuuid { bytes }
}

/// Returns the identifier as the driver's tools write it.
pub(crate) fn uuid_text(ordinal: c_int) -> String {
    let hex: Vec<String> = uuid(ordinal).bytes.iter().map(|&byte| format!("{:02x}", byte as u8)).collect();
    let part = |range: std::ops::Range<usize>| hex[range].concat();
    format!("GPU-{}-{}-{}-{}-{}", part(0..4), part(4..6), part(6..8), part(8..10), part(10..16))
}

entries! {
    fn cuInit(flags: u32) |_call| {
        if flags != 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        if settings().devices == 0 {
            return Err(CUDA_ERROR_NO_DEVICE);
        }
        INITIALIZED.store(true, Ordering::Relaxed);
        Ok(())
    }

    fn cuDriverGetVersion(version: *mut c_int) |_call| {
        *version = settings().driver;
        Ok(())
    }

    fn cuDeviceGetCount(count: *mut c_int) |_call| {
        check_initialized()?;
        *count = settings().devices as c_int;
        Ok(())
    }

    fn cuDeviceGet(device: *mut c_int, ordinal: c_int) |call| {
        call.note(|| format!("device={ordinal}"));
        get(ordinal)?;
        *device = ordinal;
        Ok(())
    }

    fn cuDeviceGetName(text: *mut c_char, capacity: c_int, device: c_int) |call| {
        call.note(|| format!("device={device}"));
        get(device)?;
        copy_text("Fake CUDA device", text, capacity)
    }

    fn cuDeviceGetPCIBusId(text: *mut c_char, capacity: c_int, device: c_int) |call| {
        call.note(|| format!("device={device}"));
        get(device)?;
        copy_text(&format!("00000000:{:02X}:00.0", 1 + device), text, capacity)
    }

    fn cuDeviceGetUuid(id: *mut CUuuid, device: c_int) |call| {
        call.note(|| format!("device={device}"));
        get(device)?;
        *id = uuid(device);
        Ok(())
    }

    fn cuDeviceGetUuid_v2(id: *mut CUuuid, device: c_int) |call| {
        call.note(|| format!("device={device}"));
        get(device)?;
        *id = uuid(device);
        Ok(())
    }

    fn cuDeviceTotalMem_v2(bytes: *mut usize, device: c_int) |call| {
        call.note(|| format!("device={device}"));
        get(device)?;
        *bytes = settings().memory_bytes;
        Ok(())
    }

    fn cuDeviceGetAttribute(value: *mut c_int, name: u32, device: c_int) |call| {
        call.note(|| format!("device={device} attribute={name}"));
        get(device)?;
        if name == 0 || name >= CU_DEVICE_ATTRIBUTE_MAX as u32 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        *value = attribute(name, device);
        Ok(())
    }

    fn cuDeviceCanAccessPeer(can: *mut c_int, device: c_int, peer: c_int) |call| {
        call.note(|| format!("device={device} peer={peer}"));
        get(device)?;
        get(peer)?;
        *can = c_int::from(device != peer);
        Ok(())
    }
}
