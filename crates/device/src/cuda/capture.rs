//! The operations that a graph can be captured from.

use super::{
    convolutions::Convolution,
    driver::{Address, Argument, Function, LaunchShape, Stream},
    products::Product,
};
use crate::DeviceError;

/// A capture in progress. What is issued to it becomes part of the graph. It has no operation that allocates or waits,
/// because a capture forbids these.
pub struct Capture<'c> {
    pub(super) stream: &'c Stream,
    pub(super) parameters: Address,
    pub(super) blocks: [Argument; 6],
    pub(super) head_words: i32,
}

impl Capture<'_> {
    /// Returns where a launch's parameters lie on the card while it runs.
    pub fn parameters(&self) -> Address {
        self.parameters
    }

    /// Returns the arguments of a kernel that fetches the parameters: those of `fetch_parameters`, followed by the
    /// words of a block before the parameters.
    pub fn fetching(&self) -> [Argument; 7] {
        let [blocks, count, stride, words, taken, block] = self.blocks;
        [blocks, count, stride, words, taken, block, Argument::I32(self.head_words)]
    }

    /// Returns the arguments of a kernel that reads the parameters where an earlier kernel of the graph has put them,
    /// in the form of [`Self::fetching`].
    pub fn fetched(&self) -> [Argument; 7] {
        let [_, _, stride, _, taken, block] = self.blocks;
        [block, Argument::U32(1), stride, Argument::U32(0), taken, block, Argument::I32(self.head_words)]
    }

    /// Launches a kernel after everything issued before. Its arguments must have the types and order of the kernel's
    /// parameters, and what they point to must live as long as the graph.
    ///
    /// # Errors
    /// If the driver refuses.
    pub fn kernel(&mut self, kernel: &Function, shape: LaunchShape, arguments: &[Argument]) -> Result<(), DeviceError> {
        self.stream.launch(kernel, shape, arguments)
    }

    /// Computes a matrix product after everything issued before.
    ///
    /// # Errors
    /// If the library refuses.
    pub fn product(&mut self, product: &Product) -> Result<(), DeviceError> {
        product.issue(self.stream)
    }

    /// Computes a convolution after everything issued before.
    ///
    /// # Errors
    /// If the library refuses.
    pub fn convolution(&mut self, convolution: &Convolution) -> Result<(), DeviceError> {
        convolution.issue(self.stream)
    }

    /// Copies bytes from one place on the card to another.
    ///
    /// # Errors
    /// If the driver refuses.
    pub fn copy(&mut self, from: Address, to: Address, bytes: usize) -> Result<(), DeviceError> {
        self.stream.copy(from, to, bytes)
    }
}
