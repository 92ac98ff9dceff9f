//! Modules, functions and launches.

use std::{
    collections::BTreeMap,
    ffi::{CStr, c_char, c_int, c_void},
    fs,
    sync::Arc,
};

use cudarc::driver::sys::{CUfunction_attribute_enum::*, CUresult, CUresult::*};
use parking_lot::Mutex;

use crate::{
    calls::entries,
    capture,
    context::{self, Context},
    device::{MOST_SHARED_BYTES, MOST_THREADS, SHARED_BYTES},
    handles::{Handle, Kind, Table, name},
    image,
    kernels::{Arguments, Kernel, Library},
    settings::settings,
    stream,
};

/// The number of registers that the stand-in reports for every kernel.
const REGISTERS: c_int = 32;
const MOST_GRID: [u32; 3] = [i32::MAX as u32, 65535, 65535];
const MOST_BLOCK: [u32; 3] = [1024, 1024, 64];

static MODULES: Table<Module> = Table::new(Kind::Module);
static FUNCTIONS: Table<Function> = Table::new(Kind::Function);

struct Module {
    context: Arc<Context>,
    library: Arc<Library>,
    /// The functions that were looked up.
    functions: Mutex<BTreeMap<usize, Handle>>,
}

struct Function {
    context: Arc<Context>,
    library: Arc<Library>,
    kernel: Kernel,
    /// Maximum dynamic shared memory of a launch.
    shared_bytes: Mutex<u32>,
}

impl Function {
    fn check_launch(&self, grid: [u32; 3], block: [u32; 3], shared_bytes: u32) -> Result<(), CUresult> {
        let within = |sizes: [u32; 3], most: [u32; 3]| {
            sizes.into_iter().zip(most).all(|(size, most)| (1..=most).contains(&size))
        };
        let threads = block.into_iter().map(u64::from).product::<u64>();
        if !within(grid, MOST_GRID) || !within(block, MOST_BLOCK) || threads > u64::from(MOST_THREADS) {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        if shared_bytes > *self.shared_bytes.lock() {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        if threads > u64::from(self.kernel.most_threads) {
            return Err(CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES);
        }
        Ok(())
    }
}

fn load(library: &[u8]) -> Result<Handle, CUresult> {
    let context = context::current()?;
    capture::refuse_unsafe_call()?;
    let library = Arc::new(Library::load(library)?);
    Ok(MODULES.insert(Module { context, library, functions: Mutex::default() }))
}

fn forget_functions(module: &Module) {
    for function in module.functions.lock().values() {
        // The table holds it for as long as its module is loaded.
        let _ = FUNCTIONS.remove(*function);
    }
}

pub(crate) fn unload_all(context: &Context) {
    let unloaded = MODULES.remove_all(|module| module.context.handle == context.handle);
    unloaded.iter().for_each(|module| forget_functions(module));
}

entries! {
    fn cuModuleLoadData(module: *mut Handle, data: *const c_void) |call| {
        context::current()?;
        *module = load(&image::read(data.cast())?)?;
        call.note(|| format!("-> {}", name(*module)));
        Ok(())
    }

    fn cuModuleLoad(module: *mut Handle, file: *const c_char) |call| {
        context::current()?;
        if file.is_null() {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let mut bytes = fs::read(&*CStr::from_ptr(file).to_string_lossy()).map_err(|_| CUDA_ERROR_FILE_NOT_FOUND)?;
        bytes.push(0);
        *module = load(&image::read(bytes.as_ptr())?)?;
        call.note(|| format!("-> {}", name(*module)));
        Ok(())
    }

    fn cuModuleUnload(module: Handle) |call| {
        call.note(|| name(module));
        context::current()?;
        capture::refuse_unsafe_call()?;
        forget_functions(&*MODULES.remove(module)?);
        Ok(())
    }

    fn cuModuleGetFunction(function: *mut Handle, module: Handle, kernel: *const c_char) |call| {
        context::current()?;
        let module = MODULES.get(module)?;
        if kernel.is_null() {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let wanted = CStr::from_ptr(kernel);
        call.note(|| wanted.to_string_lossy().into_owned());
        let kernels = &module.library.kernels;
        let place = kernels.iter().position(|kernel| *kernel.name == *wanted).ok_or(CUDA_ERROR_NOT_FOUND)?;
        *function = *module.functions.lock().entry(place).or_insert_with(|| {
            FUNCTIONS.insert(Function {
                context: module.context.clone(),
                library: module.library.clone(),
                kernel: kernels[place].clone(),
                shared_bytes: Mutex::new(SHARED_BYTES),
            })
        });
        call.note(|| format!("-> {}", name(*function)));
        Ok(())
    }

    fn cuFuncGetAttribute(value: *mut c_int, attribute: u32, function: Handle) |call| {
        call.note(|| format!("{} attribute={attribute}", name(function)));
        context::current()?;
        let function = FUNCTIONS.get(function)?;
        let (major, minor) = settings().capability;
        let is = |one: cudarc::driver::sys::CUfunction_attribute_enum| one as u32 == attribute;
        *value = if is(CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK) {
            function.kernel.most_threads as c_int
        } else if is(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES) {
            *function.shared_bytes.lock() as c_int
        } else if is(CU_FUNC_ATTRIBUTE_NUM_REGS) {
            REGISTERS
        } else if is(CU_FUNC_ATTRIBUTE_PTX_VERSION) || is(CU_FUNC_ATTRIBUTE_BINARY_VERSION) {
            major * 10 + minor
        } else if attribute < CU_FUNC_ATTRIBUTE_MAX as u32 {
            0
        } else {
            return Err(CUDA_ERROR_INVALID_VALUE);
        };
        Ok(())
    }

    fn cuFuncSetAttribute(function: Handle, attribute: u32, value: c_int) |call| {
        call.note(|| format!("{} attribute={attribute} value={value}", name(function)));
        context::current()?;
        let function = FUNCTIONS.get(function)?;
        match attribute {
            _ if attribute == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES as u32 => {
                let bytes = u32::try_from(value).ok().filter(|bytes| *bytes <= MOST_SHARED_BYTES);
                *function.shared_bytes.lock() = bytes.ok_or(CUDA_ERROR_INVALID_VALUE)?;
            }
            // How a multiprocessor's memory is divided has no effect on results.
            _ if attribute == CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT as u32 => {}
            _ => return Err(CUDA_ERROR_INVALID_VALUE),
        }
        Ok(())
    }

    fn cuLaunchKernel(
        function: Handle,
        grid_x: u32,
        grid_y: u32,
        grid_z: u32,
        block_x: u32,
        block_y: u32,
        block_z: u32,
        shared_bytes: u32,
        stream: Handle,
        arguments: *mut *mut c_void,
        extra: *mut *mut c_void
    ) |call| {
        let (grid, block) = ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]);
        let on = stream;
        let stream = stream::get(stream)?;
        let function = FUNCTIONS.get(function)?;
        let kernel = function.kernel.name.to_string_lossy().into_owned();
        call.note(|| format!("{kernel} grid={grid:?} block={block:?} shared={shared_bytes} {}", name(on)));
        if function.context.handle != stream.context.handle {
            return Err(CUDA_ERROR_INVALID_HANDLE);
        }
        // Arguments in one buffer are not supported.
        if !extra.is_null() {
            return Err(CUDA_ERROR_NOT_SUPPORTED);
        }
        function.check_launch(grid, block, shared_bytes)?;
        let arguments = Arguments::copy(arguments, &function.kernel.sizes)?;
        stream::issue(&stream, &kernel, Arc::new(move || {
            function.library.run(&function.kernel, grid, block, &arguments)
        }))
    }
}
