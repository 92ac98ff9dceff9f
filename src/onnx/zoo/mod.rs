//! Seed models: small ones that show one thing each, and the networks of the papers with random weights.
//!
//! The weights of a network depend on its name alone, so every machine makes the same file. Networks come at full and
//! at quarter width; widths apply to channels, never to the images or the number of layers. All graphs have the batch
//! as axis 0, symbol `batch`, unless said otherwise. What recurrent models are unfolded into is in [`cells`].
//!
//! Model directories and configurations are made elsewhere; here are graphs only.

mod bert;
pub mod cells;
mod layers;
mod linknet;
mod mobilenet;
mod resnet;
mod small;
mod unet;
mod vgg;

pub use bert::{bert_base, minilm};
pub use linknet::linknet;
pub use mobilenet::mobilenet;
pub use resnet::resnet50;
pub use small::{add_sub, correlation_id, identity, identity_of, lookup, runaway, running_total, scale, slow};
pub use unet::unet;
pub use vgg::vgg19;

/// How wide a network is, in parts of the paper's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Width {
    divisor: usize,
}

impl Width {
    /// The paper's width.
    pub const FULL: Self = Self { divisor: 1 };
    /// A quarter of the paper's width: about a sixteenth of its work.
    pub const QUARTER: Self = Self { divisor: 4 };

    /// A number of channels at this width.
    pub fn of(self, channels: usize) -> usize {
        channels / self.divisor
    }
}

#[cfg(test)]
mod tests;
