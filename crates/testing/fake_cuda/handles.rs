//! Handles of objects. They are numbers, not addresses, and never reused, so a destroyed handle is always recognised.

use std::{collections::BTreeMap, sync::Arc};

use cudarc::driver::sys::CUresult;
use parking_lot::Mutex;

/// Any pointer to an opaque struct of the C interfaces.
pub(crate) type Handle = usize;

/// The kinds of objects, as named in traces.
const KINDS: [&str; 18] = [
    "none",
    "context",
    "stream",
    "event",
    "module",
    "function",
    "graph",
    "exec",
    "program",
    "matmul",
    "layout",
    "preference",
    "cublaslt",
    "cudnn",
    "tensor",
    "filter",
    "convolution",
    "activation",
];
const KIND_SHIFT: u32 = 40;
const NUMBER_SHIFT: u32 = 4;

#[derive(Clone, Copy)]
pub(crate) enum Kind {
    Context = 1,
    Stream,
    Event,
    Module,
    Function,
    Graph,
    Exec,
    Program,
    MatmulDesc,
    Layout,
    Preference,
    Blas,
    Dnn,
    DnnTensor,
    DnnFilter,
    DnnConvolution,
    DnnActivation,
}

/// Returns the name of a handle in traces: its kind and its number in the order of creation.
pub(crate) fn name(handle: Handle) -> String {
    match handle {
        0 => "0".to_owned(),
        1 => "legacy".to_owned(),
        2 => "per-thread".to_owned(),
        _ => match KINDS.get(handle >> KIND_SHIFT) {
            Some(kind) => format!("{kind} {}", (handle & ((1 << KIND_SHIFT) - 1)) >> NUMBER_SHIFT),
            None => "unknown".to_owned(),
        },
    }
}

/// The live objects of one kind.
pub(crate) struct Table<T> {
    kind: Kind,
    objects: Mutex<Objects<T>>,
}

struct Objects<T> {
    created: usize,
    live: BTreeMap<Handle, Arc<T>>,
}

impl<T> Table<T> {
    pub(crate) const fn new(kind: Kind) -> Self {
        Self { kind, objects: Mutex::new(Objects { created: 0, live: BTreeMap::new() }) }
    }

    pub(crate) fn create(&self, object: impl FnOnce(Handle) -> T) -> Arc<T> {
        let mut objects = self.objects.lock();
        objects.created += 1;
        let handle = (self.kind as usize) << KIND_SHIFT | objects.created << NUMBER_SHIFT;
        let object = Arc::new(object(handle));
        objects.live.insert(handle, object.clone());
        object
    }

    /// Creates an object and returns its handle.
    pub(crate) fn insert(&self, object: T) -> Handle {
        let mut handle = 0;
        self.create(|given| {
            handle = given;
            object
        });
        handle
    }

    pub(crate) fn get(&self, handle: Handle) -> Result<Arc<T>, CUresult> {
        self.objects.lock().live.get(&handle).cloned().ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)
    }

    pub(crate) fn remove(&self, handle: Handle) -> Result<Arc<T>, CUresult> {
        self.objects.lock().live.remove(&handle).ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)
    }

    /// Returns the live objects for which `which` holds, oldest first.
    pub(crate) fn all(&self, which: impl Fn(&T) -> bool) -> Vec<Arc<T>> {
        self.objects.lock().live.values().filter(|object| which(object)).cloned().collect()
    }

    /// Removes the objects for which `which` holds.
    pub(crate) fn remove_all(&self, which: impl Fn(&T) -> bool) -> Vec<Arc<T>> {
        let mut removed = Vec::new();
        self.objects.lock().live.retain(|_, object| {
            let keep = !which(object);
            if !keep {
                removed.push(object.clone());
            }
            keep
        });
        removed
    }
}
