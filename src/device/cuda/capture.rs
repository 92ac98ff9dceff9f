//! What a graph is captured from.

use super::{
    convolutions::Convolution,
    driver::{Address, Argument, Function, Shape, Stream},
    products::Product,
};
use crate::device::DeviceError;

/// What a graph is made of, as it is issued. There is nothing here that allocates or waits, which a capture forbids.
pub struct Capture<'c> {
    pub(super) stream: &'c Stream,
    pub(super) parameters: Address,
}

impl Capture<'_> {
    /// Where the parameters of a launch lie, on the card, when it runs.
    pub fn parameters(&self) -> Address {
        self.parameters
    }

    /// Launches a kernel behind what was issued before. Its arguments must be of its parameters' types, in their
    /// order, and what they point to must live as long as the graph.
    ///
    /// # Errors
    /// When the driver refuses.
    pub fn kernel(&mut self, kernel: &Function, shape: Shape, arguments: &[Argument]) -> Result<(), DeviceError> {
        self.stream.launch(kernel, shape, arguments)
    }

    /// Computes a matrix product behind what was issued before.
    ///
    /// # Errors
    /// When the library refuses.
    pub fn product(&mut self, product: &Product) -> Result<(), DeviceError> {
        product.issue(self.stream)
    }

    /// Computes a convolution behind what was issued before.
    ///
    /// # Errors
    /// When the library refuses.
    pub fn convolution(&mut self, convolution: &Convolution) -> Result<(), DeviceError> {
        convolution.issue(self.stream)
    }

    /// Copies bytes from one place on the card to another.
    ///
    /// # Errors
    /// When the driver refuses.
    pub fn copy(&mut self, from: Address, to: Address, bytes: usize) -> Result<(), DeviceError> {
        self.stream.copy(from, to, bytes)
    }
}
