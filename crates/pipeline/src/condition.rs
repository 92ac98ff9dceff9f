//! Conditions of steps, evaluated for each row.

use half::{bf16, f16};
use paternoster_model::{DataType, InputTensor};

/// A step runs for the rows of which at least one element of a tensor passes a test.
#[derive(Clone, Debug, PartialEq)]
pub struct Condition {
    /// The tensor, by its name in the pipeline.
    pub tensor: String,
    /// The test.
    pub test: Test,
}

/// A test of one element.
#[derive(Clone, Debug, PartialEq)]
pub enum Test {
    /// A number of at least this value.
    AtLeast(f64),
    /// This number; booleans are 0 and 1.
    Equals(f64),
    /// This string.
    Is(String),
}

impl Test {
    /// Whether it can be applied to elements of a datatype.
    pub(crate) fn fits(&self, datatype: DataType) -> bool {
        matches!(self, Self::Is(_)) == (datatype == DataType::Bytes)
    }

    /// Returns whether an element of a row passes.
    pub(crate) fn holds(&self, row: &InputTensor, datatype: DataType) -> bool {
        match self {
            Self::AtLeast(least) => any_number(&row.data, datatype, |number| number >= *least),
            Self::Equals(wanted) => any_number(&row.data, datatype, |number| number == *wanted),
            Self::Is(wanted) => any_string(&row.data, |text| text == wanted.as_bytes()),
        }
    }
}

fn any_number(data: &[u8], datatype: DataType, passes: impl Fn(f64) -> bool) -> bool {
    macro_rules! any {
        ($number:ty, $to:expr) => {
            data.as_chunks::<{ size_of::<$number>() }>().0.iter().any(|chunk| {
                let to: fn($number) -> f64 = $to;
                passes(to(<$number>::from_le_bytes(*chunk)))
            })
        };
    }
    match datatype {
        DataType::Bool | DataType::Uint8 => any!(u8, f64::from),
        DataType::Uint16 => any!(u16, f64::from),
        DataType::Uint32 => any!(u32, f64::from),
        DataType::Uint64 => any!(u64, |number| number as f64),
        DataType::Int8 => any!(i8, f64::from),
        DataType::Int16 => any!(i16, f64::from),
        DataType::Int32 => any!(i32, f64::from),
        DataType::Int64 => any!(i64, |number| number as f64),
        DataType::Fp16 => any!(f16, f64::from),
        DataType::Bf16 => any!(bf16, f64::from),
        DataType::Fp32 => any!(f32, f64::from),
        DataType::Fp64 => any!(f64, |number| number),
        DataType::Bytes => false,
    }
}

fn any_string(mut data: &[u8], passes: impl Fn(&[u8]) -> bool) -> bool {
    while let Some((length, rest)) = data.split_first_chunk::<4>() {
        let length = (u32::from_le_bytes(*length) as usize).min(rest.len());
        let (text, behind) = rest.split_at(length);
        if passes(text) {
            return true;
        }
        data = behind;
    }
    false
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use paternoster_model::Dims;

    use super::*;

    fn row(data: &[u8]) -> InputTensor {
        InputTensor { shape: Dims::from_slice(&[1, 1]), data: Bytes::copy_from_slice(data) }
    }

    #[test]
    fn numbers_are_compared_by_their_datatype() {
        let least = Test::AtLeast(0.5);
        assert!(least.holds(&row(&0.5_f32.to_le_bytes()), DataType::Fp32));
        assert!(!least.holds(&row(&f32::NAN.to_le_bytes()), DataType::Fp32));
        assert!(least.holds(&row(&f16::from_f32(0.75).to_le_bytes()), DataType::Fp16));
        assert!(!least.holds(&row(&(-3_i64).to_le_bytes()), DataType::Int64));
        assert!(Test::Equals(1.0).holds(&row(&[0, 1]), DataType::Bool), "any element");
        assert!(!Test::Equals(1.0).holds(&row(&[0, 0]), DataType::Bool));
    }

    #[test]
    fn strings_are_compared_whole() {
        let german = Test::Is("de".to_owned());
        assert!(german.holds(&row(b"\x02\0\0\0en\x02\0\0\0de"), DataType::Bytes));
        assert!(!german.holds(&row(b"\x03\0\0\0deu"), DataType::Bytes));
        assert!(german.fits(DataType::Bytes) && !german.fits(DataType::Fp32));
    }
}
