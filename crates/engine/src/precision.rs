//! The precision of a model's matrix products and convolutions.

use std::{fmt, str::FromStr};

/// The precision of matrix products and convolutions, where the device supports it. Sums are always fp32. On the CPU,
/// only OpenVINO supports others than fp32.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Precision {
    /// IEEE single precision.
    #[default]
    Ieee,
    /// TF32: operands are rounded to 11 significant bits; tensors stay fp32.
    Tf32,
    /// BF16: weights, and tensors between a program's inputs and outputs, are rounded to 8 significant bits.
    Bf16,
    /// FP16: as BF16, with 11 significant bits and a largest number of 65504.
    Fp16,
}

impl Precision {
    /// All precisions, with their names in configurations and tables.
    pub const NAMES: [(&'static str, Self); 4] =
        [("ieee", Self::Ieee), ("tf32", Self::Tf32), ("bf16", Self::Bf16), ("fp16", Self::Fp16)];
}

/// Another name of [`Precision::Ieee`] in configurations.
const FP32: &str = "fp32";

impl FromStr for Precision {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        if name == FP32 {
            return Ok(Self::Ieee);
        }
        let found = Self::NAMES.iter().find(|(known, _)| *known == name);
        found
            .map(|(_, precision)| *precision)
            .ok_or_else(|| format!("expected fp32 (or ieee), tf32, bf16 or fp16, but found '{name}'"))
    }
}

impl fmt::Display for Precision {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Self::NAMES.iter().find(|(_, precision)| precision == self);
        formatter.write_str(name.map_or("ieee", |(name, _)| name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_has_a_name() {
        for (name, precision) in Precision::NAMES {
            assert_eq!(name.parse(), Ok(precision));
            assert_eq!(precision.to_string(), name);
        }
        assert_eq!(FP32.parse(), Ok(Precision::Ieee));
        let refused = "expected fp32 (or ieee), tf32, bf16 or fp16, but found 'half'";
        assert_eq!("half".parse::<Precision>(), Err(refused.to_owned()));
    }
}
