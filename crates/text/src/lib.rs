//! Texts in, vectors out: tokenizers, pooling, and the descriptions that come with models of Hugging Face.
//!
//! `tokenizer` turns one text into tokens, and `pooling` the states of one text into a vector. `tokenize`, and `pool`
//! in `pooling`, are the steps of pipelines around them. `layout` reads the files that lie beside a model's weights,
//! and what they say of the most tokens. That limit holds at two places: [`TextTokenizer`] applies it to texts, and
//! [`Tokenize`] to ids that come in their place.
//!
//! Protocols, model repositories, files and engines must not live here.
#![deny(unsafe_code)]
#![warn(missing_docs)]

mod layout;
mod pooling;
mod tensors;
mod tokenize;
mod tokenizer;

pub use layout::{LayoutFault, TextModelLayout, TextModelTask, hugging_face};
pub use pooling::{Pooling, PoolingOptions, PoolingStep, STATES, cut, normalize};
pub use tensors::floats;
pub use tokenize::{RowSize, Tokenize, TokenizeOptions, output};
pub use tokenizer::{
    DEFAULT_MAX_BYTES, FirstText, MAX_TOKENIZER_BYTES, Piece, TextTokenizer, TokenizerFault, TokenizerOptions, Tokens,
    Truncate,
};

/// The example of the README compiles and runs.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
