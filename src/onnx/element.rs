//! Rust types that can be elements of constant tensors.

use crate::model::DataType;

/// A number that a constant tensor can hold.
pub trait Element: Copy {
    /// The tensor's element type.
    const DATATYPE: DataType;

    /// Appends the number's bytes, least significant first.
    fn write_le(self, out: &mut Vec<u8>);
}

macro_rules! elements {
    ($($number:ty => $datatype:ident),* $(,)?) => {$(
        impl Element for $number {
            const DATATYPE: DataType = DataType::$datatype;

            fn write_le(self, out: &mut Vec<u8>) {
                out.extend_from_slice(&self.to_le_bytes());
            }
        }
    )*};
}

elements! { f32 => Fp32, i64 => Int64, i32 => Int32 }

impl Element for bool {
    const DATATYPE: DataType = DataType::Bool;

    fn write_le(self, out: &mut Vec<u8>) {
        out.push(self.into());
    }
}
