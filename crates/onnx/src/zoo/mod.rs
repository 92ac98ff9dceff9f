//! Seed models: small models that each demonstrate one feature, and the networks of the papers with random weights.
//!
//! The weights of a network depend only on its name, so every machine builds the same file. Networks exist at full and
//! quarter width. Widths apply to channels, not to images or the number of layers. All graphs have the batch as axis 0,
//! symbol `batch`, unless stated otherwise. The cells of recurrent models are in [`cells`].
//!
//! This module builds graphs only, not model directories or configurations.

mod bert;
pub mod cells;
mod layers;
mod linknet;
mod mobilenet;
mod resnet;
mod small;
mod unet;
mod vgg;

pub use bert::{bert_base, minilm, minilm_of, reranker};
pub use linknet::{linknet, linknet_of};
pub use mobilenet::mobilenet;
pub use resnet::{resnet50, resnet152};
pub use small::{
    add_sub, classifier, correlation_id, identity, identity_of, lookup, runaway, running_total, scale, slow,
};
pub use unet::{unet, unet_of};
pub use vgg::vgg19;

/// Width of a network relative to the paper's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Width {
    divisor: usize,
}

impl Width {
    /// The paper's width.
    pub const FULL: Self = Self { divisor: 1 };
    /// A quarter of the paper's width: about a sixteenth of its work.
    pub const QUARTER: Self = Self { divisor: 4 };

    /// One part in `divisor` of the paper's width. It must divide all channels and heads of the network.
    pub const fn part(divisor: usize) -> Self {
        Self { divisor }
    }

    /// Returns a number of channels at this width.
    pub fn of(self, channels: usize) -> usize {
        channels / self.divisor
    }
}

#[cfg(test)]
mod tests;
