//! OpenVINO's core, its registry of plugins.

use std::{
    ffi::{CStr, CString, c_char},
    ptr,
};

use super::api::{self, Api};
use crate::EngineError;

/// The device for which programs are compiled.
pub(super) const DEVICE: &CStr = c"CPU";

/// The registry of plugins.
pub(super) struct Core {
    pub(super) api: &'static Api,
    core: *mut api::Core,
}

// SAFETY: several threads may use an OpenVINO core at once.
unsafe impl Send for Core {}
// SAFETY: as above.
unsafe impl Sync for Core {}

impl Core {
    /// Creates a core.
    ///
    /// # Errors
    /// Fails if OpenVINO cannot find its plugins.
    pub(super) fn new(api: &'static Api) -> Result<Self, EngineError> {
        let mut core = ptr::null_mut();
        // SAFETY: `core` receives the new object.
        api.check(unsafe { (api.ov_core_create)(&mut core) })?;
        Ok(Self { api, core })
    }

    pub(super) fn as_ptr(&self) -> *const api::Core {
        self.core
    }

    /// Returns a property of the device, for which the plugin is loaded.
    ///
    /// # Errors
    /// Fails if the plugin cannot be loaded or lacks the property.
    pub(super) fn property(&self, name: &CStr) -> Result<String, EngineError> {
        let mut value: *mut c_char = ptr::null_mut();
        // SAFETY: the core is live and the strings are zero-terminated; the value belongs to the caller.
        unsafe {
            let got = (self.api.ov_core_get_property)(self.core, DEVICE.as_ptr(), name.as_ptr(), &mut value);
            self.api.check(got)?;
            Ok(self.api.owned(value))
        }
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        // SAFETY: created by `new` and released once, after everything created from it, which holds a reference.
        unsafe { (self.api.ov_core_free)(self.core) }
    }
}

/// Returns a zero-terminated copy of a string.
///
/// # Errors
/// Fails if it contains a zero byte.
pub(super) fn c_string(text: &str) -> Result<CString, EngineError> {
    CString::new(text).map_err(|_| EngineError::new(format!("'{}' holds a zero byte", text.escape_debug())))
}
