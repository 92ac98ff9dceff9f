//! `generate`: how a decoder answers.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::knobs::Whole;

/// A decoder that was exported with its past keys and values, and generates tokens.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Generate {
    /// Most tokens of a response. Default: 256.
    pub max_tokens: Option<Whole<u32, 1, { 1 << 20 }>>,
    /// Most tokens of a prompt and its response together. Default: the positions in `config.json`, else 4,096.
    pub max_length: Option<Whole<u32, 2, { 1 << 20 }>>,
    /// Tokens that end a response, which has them too; −1 is none. Default: `eos_token_id` in `generation_config.json`
    /// or `config.json`, else none.
    #[schemars(length(max = 64))]
    pub end_tokens: Option<Vec<Whole<i64, { -1 }, { i32::MAX as i128 }>>>,
}
