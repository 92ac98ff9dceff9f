//! Arrays in memory, as kernels access them.

use std::alloc::{Layout, alloc, dealloc};

use half::{bf16, f16};

/// The element type of an array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    F32,
    F16,
    Bf16,
    I32,
    I64,
}

impl Kind {
    /// The element types that kernels are compiled for.
    pub(crate) const ELEMENTS: [Self; 3] = [Self::F32, Self::F16, Self::Bf16];

    pub(crate) fn bytes(self) -> usize {
        match self {
            Self::F16 | Self::Bf16 => 2,
            Self::F32 | Self::I32 => 4,
            Self::I64 => 8,
        }
    }

    fn encode(self, value: f64) -> Vec<u8> {
        match self {
            Self::F32 => (value as f32).to_ne_bytes().into(),
            Self::F16 => f16::from_f32(value as f32).to_ne_bytes().into(),
            Self::Bf16 => bf16::from_f32(value as f32).to_ne_bytes().into(),
            Self::I32 => (value as i32).to_ne_bytes().into(),
            Self::I64 => (value as i64).to_ne_bytes().into(),
        }
    }

    fn decode(self, bytes: &[u8]) -> f64 {
        let two = || [bytes[0], bytes[1]];
        let four = || [bytes[0], bytes[1], bytes[2], bytes[3]];
        match self {
            Self::F32 => f32::from_ne_bytes(four()).into(),
            Self::F16 => f16::from_ne_bytes(two()).into(),
            Self::Bf16 => bf16::from_ne_bytes(two()).into(),
            Self::I32 => i32::from_ne_bytes(four()).into(),
            Self::I64 => i64::from_ne_bytes(bytes.try_into().expect("8 bytes")) as f64,
        }
    }
}

/// The value of outputs before a launch. Every element type represents it exactly.
pub(crate) const UNTOUCHED: f64 = -7.0;

/// An array that ends where its allocation ends, so that a sanitizer detects accesses beyond it. Values are read and
/// written as doubles, rounded to the array's kind when written.
pub(crate) struct Array {
    kind: Kind,
    count: usize,
    layout: Layout,
    allocation: *mut u8,
    /// Bytes between the allocation and the first element.
    shift: usize,
}

impl Array {
    /// Creates an array at an address that allows vector loads.
    pub(crate) fn new(kind: Kind, values: impl IntoIterator<Item = f64>) -> Self {
        Self::at(kind, values, 0)
    }

    /// Creates an array that begins one element after such an address.
    pub(crate) fn unaligned(kind: Kind, values: impl IntoIterator<Item = f64>) -> Self {
        Self::at(kind, values, kind.bytes())
    }

    fn at(kind: Kind, values: impl IntoIterator<Item = f64>, shift: usize) -> Self {
        let bytes: Vec<u8> = values.into_iter().flat_map(|value| kind.encode(value)).collect();
        let layout = Layout::from_size_align(bytes.len() + shift.max(1), 64).expect("a small array");
        // SAFETY: the layout's size is not zero.
        let allocation = unsafe { alloc(layout) };
        assert!(!allocation.is_null(), "there is no memory for a small array");
        let array = Self { kind, count: bytes.len() / kind.bytes(), layout, allocation, shift };
        // SAFETY: the allocation has room for the shift and the bytes.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), array.address(), bytes.len()) };
        array
    }

    /// Creates an output of `count` elements.
    pub(crate) fn untouched(kind: Kind, count: usize) -> Self {
        Self::new(kind, std::iter::repeat_n(UNTOUCHED, count))
    }

    pub(crate) fn zeros(kind: Kind, count: usize) -> Self {
        Self::new(kind, std::iter::repeat_n(0.0, count))
    }

    pub(crate) fn address(&self) -> *mut u8 {
        self.allocation.wrapping_add(self.shift)
    }

    pub(crate) fn values(&self) -> Vec<f64> {
        // SAFETY: the elements are initialized, and no kernel runs meanwhile.
        let bytes = unsafe { std::slice::from_raw_parts(self.address(), self.count * self.kind.bytes()) };
        bytes.chunks(self.kind.bytes()).map(|element| self.kind.decode(element)).collect()
    }
}

impl Drop for Array {
    fn drop(&mut self) {
        // SAFETY: it was allocated with this layout, and is freed once.
        unsafe { dealloc(self.allocation, self.layout) };
    }
}
