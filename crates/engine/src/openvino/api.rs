//! Bindings to the functions of OpenVINO's C API that are used, looked up by name in the loaded library.

use std::ffi::{CStr, c_char, c_void};

use libloading::Library;

use crate::EngineError;

/// Result of a function; zero is success.
pub(super) type Status = i32;

/// Opaque objects of the API.
macro_rules! objects {
    ($($(#[$doc:meta])* $name:ident;)*) => {$(
        $(#[$doc])*
        #[repr(C)]
        pub(super) struct $name {
            _private: [u8; 0],
        }
    )*};
}

objects! {
    /// The registry of devices and their settings.
    Core;
    /// A graph that has been read.
    Model;
    /// A graph compiled for a device.
    CompiledModel;
    /// An input or output.
    Port;
    /// Runs a compiled graph, one run at a time.
    InferRequest;
    /// Elements with their shape.
    Tensor;
}

/// A shape. One that a function filled in is freed with [`Api::ov_shape_free`]; one passed in belongs to the caller.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Shape {
    pub(super) rank: i64,
    pub(super) dims: *mut i64,
}

/// Version strings, freed with [`Api::ov_version_free`].
#[repr(C)]
pub(super) struct Version {
    pub(super) build_number: *const c_char,
    pub(super) description: *const c_char,
}

macro_rules! functions {
    ($($name:ident: fn($($argument:ty),*) $(-> $result:ty)?;)*) => {
        /// The functions, by their names in the library.
        pub(super) struct Api {
            $(pub(super) $name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
            /// Compiles a model. The `usize` is the number of variadic arguments: settings as pairs of strings, name
            /// and value.
            pub(super) ov_core_compile_model: unsafe extern "C" fn(
                *const Core, *const Model, *const c_char, usize, *mut *mut CompiledModel, ...
            ) -> Status,
        }

        impl Api {
            /// Looks up the functions in a library.
            ///
            /// # Errors
            /// Fails if one is missing; the loader's message names it.
            ///
            /// # Safety
            /// The library is OpenVINO's C API, and stays loaded as long as the functions are called.
            pub(super) unsafe fn of(library: &Library) -> Result<Self, String> {
                let lacks = |error: libloading::Error| format!("it lacks a function: {error}");
                // SAFETY: the types are those of the API's headers, which have not changed since 2025.1.
                unsafe {
                    Ok(Self {
                        $($name: *library.get(stringify!($name)).map_err(lacks)?,)*
                        ov_core_compile_model: *library.get("ov_core_compile_model").map_err(lacks)?,
                    })
                }
            }
        }
    };
}

functions! {
    ov_get_openvino_version: fn(*mut Version) -> Status;
    ov_version_free: fn(*mut Version);
    ov_get_last_err_msg: fn() -> *const c_char;
    ov_get_error_info: fn(Status) -> *const c_char;
    ov_free: fn(*const c_char);

    ov_core_create: fn(*mut *mut Core) -> Status;
    ov_core_free: fn(*mut Core);
    ov_core_get_property: fn(*const Core, *const c_char, *const c_char, *mut *mut c_char) -> Status;
    ov_core_read_model_from_memory_buffer:
        fn(*const Core, *const c_char, usize, *const Tensor, *mut *mut Model) -> Status;
    ov_model_free: fn(*mut Model);

    ov_compiled_model_inputs_size: fn(*const CompiledModel, *mut usize) -> Status;
    ov_compiled_model_input_by_index: fn(*const CompiledModel, usize, *mut *mut Port) -> Status;
    ov_compiled_model_input_by_name: fn(*const CompiledModel, *const c_char, *mut *mut Port) -> Status;
    ov_compiled_model_outputs_size: fn(*const CompiledModel, *mut usize) -> Status;
    ov_compiled_model_output_by_index: fn(*const CompiledModel, usize, *mut *mut Port) -> Status;
    ov_compiled_model_output_by_name: fn(*const CompiledModel, *const c_char, *mut *mut Port) -> Status;
    ov_compiled_model_get_property: fn(*const CompiledModel, *const c_char, *mut *mut c_char) -> Status;
    ov_compiled_model_create_infer_request: fn(*const CompiledModel, *mut *mut InferRequest) -> Status;
    ov_compiled_model_free: fn(*mut CompiledModel);

    ov_port_get_any_name: fn(*const Port, *mut *mut c_char) -> Status;
    ov_port_get_element_type: fn(*const Port, *mut u32) -> Status;
    ov_const_port_get_shape: fn(*const Port, *mut Shape) -> Status;
    ov_output_const_port_free: fn(*mut Port);

    ov_infer_request_set_input_tensor_by_index: fn(*mut InferRequest, usize, *const Tensor) -> Status;
    ov_infer_request_set_output_tensor_by_index: fn(*mut InferRequest, usize, *const Tensor) -> Status;
    ov_infer_request_infer: fn(*mut InferRequest) -> Status;
    ov_infer_request_cancel: fn(*mut InferRequest) -> Status;
    ov_infer_request_free: fn(*mut InferRequest);

    ov_tensor_create: fn(u32, Shape, *mut *mut Tensor) -> Status;
    ov_tensor_create_from_host_ptr: fn(u32, Shape, *mut c_void, *mut *mut Tensor) -> Status;
    ov_tensor_get_shape: fn(*const Tensor, *mut Shape) -> Status;
    ov_tensor_get_byte_size: fn(*const Tensor, *mut usize) -> Status;
    ov_tensor_data: fn(*const Tensor, *mut *mut c_void) -> Status;
    ov_tensor_free: fn(*mut Tensor);
    ov_shape_free: fn(*mut Shape) -> Status;
}

impl Api {
    /// Converts a status into a result. The library keeps one last message for all threads, so two concurrent failures
    /// may get each other's text.
    pub(super) fn check(&self, status: Status) -> Result<(), EngineError> {
        if status == 0 {
            return Ok(());
        }
        // SAFETY: both calls only take what is given. The first returns a string to be freed, the second a static one.
        let (text, kind) = unsafe { (self.owned((self.ov_get_last_err_msg)()), (self.ov_get_error_info)(status)) };
        // SAFETY: a static string, or null.
        let kind = (!kind.is_null()).then(|| unsafe { CStr::from_ptr(kind) }.to_string_lossy().into_owned());
        let reason = [plain(&text), kind.unwrap_or_default()].into_iter().find(|text| !text.is_empty());
        Err(EngineError::of_engine(format!("openvino error: {}", reason.unwrap_or_else(|| format!("status {status}")))))
    }

    /// Copies and frees a string that the library allocated; null gives an empty string.
    ///
    /// # Safety
    /// It is null, or a string that the library allocated and that nothing else frees.
    pub(super) unsafe fn owned(&self, text: *const c_char) -> String {
        if text.is_null() {
            return String::new();
        }
        // SAFETY: as required of the caller.
        unsafe {
            let copy = CStr::from_ptr(text).to_string_lossy().into_owned();
            (self.ov_free)(text);
            copy
        }
    }
}

/// Returns an OpenVINO message as one line, without source locations and the advice to write an extension.
fn plain(text: &str) -> String {
    let is_place = |line: &&str| {
        line.starts_with("Exception from ")
            || line.starts_with("Check '") && line.contains("' failed at ")
            || line.starts_with("To facilitate the conversion")
    };
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !is_place(line));
    let message = lines.collect::<Vec<_>>().join(" ");
    if message.is_empty() { text.split_whitespace().collect::<Vec<_>>().join(" ") } else { message }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_one_line_without_places_in_the_source() {
        let text = "Exception from src/inference/src/cpp/core.cpp:105:\n\
                    Check 'false' failed at src/frontends/a.cpp:151:\n\
                    FrontEnd API failed with OpConversionFailure:\nModel wasn't fully converted.\nSummary:\n\
                    -- No conversion rule found for operations: my.Foo\n\
                    To facilitate the conversion of unsupported operations, refer to a page\n\n\n";
        let expected = "FrontEnd API failed with OpConversionFailure: Model wasn't fully converted. Summary: \
                        -- No conversion rule found for operations: my.Foo";
        assert_eq!(plain(text), expected);
        assert_eq!(plain("Infer Request was canceled\n"), "Infer Request was canceled");
        assert_eq!(plain("Check 'x' failed at a.cpp:1"), "Check 'x' failed at a.cpp:1", "there is nothing better");
    }
}
