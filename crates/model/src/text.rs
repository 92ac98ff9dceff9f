//! The names of the tensors of models that take texts. Built-in steps have them, and front ends recognise by them what
//! a model, or a pipeline of the user's, can do.

/// The text: BYTES, one element for each row.
pub const TEXT: &str = "TEXT";
/// The second text of a pair: BYTES, one element for each row, optional.
pub const PAIR: &str = "PAIR";
/// The tokens in place of a text, those that a tokenizer adds included: INT64, optional.
pub const TOKENS: &str = "TOKENS";
/// The name of the prompt to put in front of the text: BYTES, one element for each row, optional.
pub const PROMPT: &str = "PROMPT";
/// Whether a text of too many tokens may lose some: BOOL, one element for each row, optional.
pub const TRUNCATE: &str = "TRUNCATE";
/// The number of numbers of a vector that are kept: INT32, one element for each row, optional.
pub const DIMENSIONS: &str = "DIMENSIONS";
/// Whether a vector is divided by its length: BOOL, one element for each row, optional.
pub const NORMALIZE: &str = "NORMALIZE";

/// The vector of a text: FP32.
pub const EMBEDDING: &str = "embedding";
/// The vectors of a text's tokens, if a vector of the text is made by the program: a tensor between the steps.
pub const TOKEN_EMBEDDINGS: &str = "token_embeddings";
/// One number for each class of a text: FP32.
pub const LOGITS: &str = "logits";
/// The number of tokens of a text: INT32, one element for each row.
pub const TOKEN_COUNT: &str = "tokens";
/// Where each token begins and ends in its text, in bytes: INT32.
pub const OFFSETS: &str = "offsets";
