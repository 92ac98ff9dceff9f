//! What a model's products and convolutions are computed with.

use super::{ConfigError, origin::Origin, pb};
use crate::engine::Precision;

/// Key: a name of [`Precision::NAMES`].
pub const PRECISION: &str = "instance.precision";

/// That of a model; [`Precision::Ieee`] where it does not say.
///
/// # Errors
/// When it names none.
pub fn of(config: &pb::ModelConfig, origin: &Origin) -> Result<Precision, ConfigError> {
    let Some(parameter) = config.parameters.get(PRECISION) else { return Ok(Precision::default()) };
    parameter.string_value.parse().map_err(|fault: String| origin.error(&format!("parameters[{PRECISION}]"), fault))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Precision, String> {
        let mut config = pb::ModelConfig::default();
        config.parameters.insert(PRECISION.to_owned(), pb::ModelParameter { string_value: text.to_owned() });
        of(&config, &Origin::default()).map_err(|error| error.to_string())
    }

    #[test]
    fn it_is_one_of_four() {
        assert_eq!(of(&pb::ModelConfig::default(), &Origin::default()).ok(), Some(Precision::Ieee));
        assert_eq!(read("bf16"), Ok(Precision::Bf16));
        let refused = read("FP16").expect_err("names are lower case");
        let reason = "parameters[instance.precision]: expected fp32 (or ieee), tf32, bf16 or fp16, but found 'FP16'";
        assert!(refused.ends_with(reason), "{refused}");
    }
}
