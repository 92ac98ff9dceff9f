//! The thirteen tensor datatypes of the KServe v2 protocol, and BF16.

use std::fmt;

use smallvec::SmallVec;

/// Element type of a tensor, named as on the wire (`BYTES` is Triton's `TYPE_STRING`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum DataType {
    Bool,
    Uint8,
    Uint16,
    Uint32,
    Uint64,
    Int8,
    Int16,
    Int32,
    Int64,
    Fp16,
    Fp32,
    Fp64,
    Bytes,
    Bf16,
}

impl DataType {
    /// All datatypes, in the order of Triton's `DataType` enumeration (whose first value is 1).
    pub const ALL: [Self; 14] = [
        Self::Bool,
        Self::Uint8,
        Self::Uint16,
        Self::Uint32,
        Self::Uint64,
        Self::Int8,
        Self::Int16,
        Self::Int32,
        Self::Int64,
        Self::Fp16,
        Self::Fp32,
        Self::Fp64,
        Self::Bytes,
        Self::Bf16,
    ];

    /// Returns the name on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Bool => "BOOL",
            Self::Uint8 => "UINT8",
            Self::Uint16 => "UINT16",
            Self::Uint32 => "UINT32",
            Self::Uint64 => "UINT64",
            Self::Int8 => "INT8",
            Self::Int16 => "INT16",
            Self::Int32 => "INT32",
            Self::Int64 => "INT64",
            Self::Fp16 => "FP16",
            Self::Fp32 => "FP32",
            Self::Fp64 => "FP64",
            Self::Bytes => "BYTES",
            Self::Bf16 => "BF16",
        }
    }

    /// Returns the datatype with this wire name; `None` if there is none.
    pub fn from_wire(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|datatype| datatype.as_str() == name)
    }

    /// Returns the bytes of one element; `None` for `BYTES`, whose elements carry their own length.
    pub const fn size_bytes(self) -> Option<usize> {
        match self {
            Self::Bool | Self::Uint8 | Self::Int8 => Some(1),
            Self::Uint16 | Self::Int16 | Self::Fp16 | Self::Bf16 => Some(2),
            Self::Uint32 | Self::Int32 | Self::Fp32 => Some(4),
            Self::Uint64 | Self::Int64 | Self::Fp64 => Some(8),
            Self::Bytes => None,
        }
    }

    /// Encodes a value as one element; empty for `BYTES`.
    pub fn element(self, value: f64) -> SmallVec<[u8; 8]> {
        match self {
            Self::Bool => SmallVec::from_slice(&[u8::from(value != 0.0)]),
            Self::Uint8 => SmallVec::from_slice(&(value as u8).to_le_bytes()),
            Self::Uint16 => SmallVec::from_slice(&(value as u16).to_le_bytes()),
            Self::Uint32 => SmallVec::from_slice(&(value as u32).to_le_bytes()),
            Self::Uint64 => SmallVec::from_slice(&(value as u64).to_le_bytes()),
            Self::Int8 => SmallVec::from_slice(&(value as i8).to_le_bytes()),
            Self::Int16 => SmallVec::from_slice(&(value as i16).to_le_bytes()),
            Self::Int32 => SmallVec::from_slice(&(value as i32).to_le_bytes()),
            Self::Int64 => SmallVec::from_slice(&(value as i64).to_le_bytes()),
            Self::Fp16 => SmallVec::from_slice(&half::f16::from_f64(value).to_le_bytes()),
            Self::Bf16 => SmallVec::from_slice(&half::bf16::from_f64(value).to_le_bytes()),
            Self::Fp32 => SmallVec::from_slice(&(value as f32).to_le_bytes()),
            Self::Fp64 => SmallVec::from_slice(&value.to_le_bytes()),
            Self::Bytes => SmallVec::new(),
        }
    }
}

impl fmt::Display for DataType {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.as_str())
    }
}
