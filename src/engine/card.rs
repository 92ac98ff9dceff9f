//! What a program is on a CUDA card: operations that an executor captures into its graphs.

use crate::device::{
    DeviceError,
    cuda::{Address, Capture, Compiler, Cuda},
};

/// A program that can be loaded onto a card. It is made without one.
pub trait CardProgram: Send + Sync {
    /// Compiles what [`Self::load`] needs, on any thread, so that it finds that in the compiler's cache: a card serves
    /// nothing while a program is loaded.
    ///
    /// # Errors
    /// When a kernel does not compile.
    fn compile(&self, compiler: &Compiler) -> Result<(), String> {
        let _ = compiler;
        Ok(())
    }

    /// Puts the weights onto a card. On the thread of that card, as all that follows.
    ///
    /// # Errors
    /// When the card has not enough memory, or a library that the program needs is missing.
    fn load(&self, card: &mut Cuda) -> Result<Box<dyn CardWeights>, DeviceError>;
}

/// The weights of a program on a card, which all its streams share.
pub trait CardWeights {
    /// Memory of one stream for batches of up to `max_rows` rows: inputs, outputs, and what lies between.
    ///
    /// # Errors
    /// When the card has not enough.
    fn reserve(&self, card: &mut Cuda, max_rows: u32) -> Result<Box<dyn CardWorkspace>, DeviceError>;
}

/// A program on one stream of a card. Tensors are row-major without gaps, the batch being axis 0, whatever the number of
/// rows of a run.
pub trait CardWorkspace {
    /// Where an input is to be written before a run.
    fn input(&self, index: usize) -> Address;

    /// Where an output lies after a run.
    fn output(&self, index: usize) -> Address;

    /// Where a run notes which of its rows name what a table does not have: a 32-bit word a row, not zero where one
    /// does. `None` where rows name nothing.
    fn faults(&self) -> Option<Address>;

    /// Does for runs of `rows` rows what may allocate, compile or wait, none of which a capture allows.
    ///
    /// # Errors
    /// When the card has not enough memory, or a kernel does not compile.
    fn prepare(&mut self, card: &mut Cuda, rows: u32) -> Result<(), DeviceError>;

    /// Issues a run of `rows` rows that was [prepared](Self::prepare). Those from `live` on are padding, a 32-bit number
    /// on the card that is read when the run begins: what they hold is of no account, and what they become neither.
    ///
    /// # Errors
    /// When the driver refuses.
    fn issue(&self, capture: &mut Capture<'_>, rows: u32, live: Address) -> Result<(), DeviceError>;
}
