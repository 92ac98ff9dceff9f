//! Rust types of the elements of constant tensors.

use paternoster_model::DataType;

/// A number that can be an element of a constant tensor.
pub trait Element: Copy {
    /// Element type of the tensor.
    const DATATYPE: DataType;

    /// Appends the number in little-endian order.
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
