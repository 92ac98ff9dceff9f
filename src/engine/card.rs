//! What a program is on a CUDA card: operations that an executor captures into its graphs.

use crate::{
    batching::Lengths,
    device::{
        DeviceError, StreamId,
        cuda::{Address, Capture, Compiler, Cuda},
    },
    model::Dims,
};

/// The size of a run, fixed when its graph is captured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunSize {
    /// Rows, padding included.
    pub rows: u32,
    /// Which of the program's [lengths](CardProgram::lengths) its rows have.
    pub lengths: usize,
}

/// A program that can be loaded onto a card. It is made without one.
pub trait CardProgram: Send + Sync {
    /// The lengths of padded axes that runs may have, each entry by symbol of the model. There is one empty entry where
    /// nothing is padded.
    fn lengths(&self) -> Vec<Lengths> {
        vec![Lengths::new()]
    }

    /// The dims of a row of an output in runs with the lengths of this number; `None` where they are those of its
    /// specification.
    fn output_dims(&self, lengths: usize, output: usize) -> Option<Dims> {
        let _ = (lengths, output);
        None
    }

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
    fn reserve(&self, card: &mut Cuda, stream: StreamId, max_rows: u32) -> Result<Box<dyn CardWorkspace>, DeviceError>;
}

/// A program on one stream of a card. Tensors are row-major without gaps, and the batch is axis 0. Where they lie
/// depends on the [lengths](CardProgram::lengths) of a run, which are given by number, but not on its number of rows.
pub trait CardWorkspace {
    /// Where an input is to be written before a run.
    fn input(&self, lengths: usize, index: usize) -> Address;

    /// Where an output lies after a run.
    fn output(&self, lengths: usize, index: usize) -> Address;

    /// Where a run notes which of its rows name what a table does not have: a 32-bit word a row, not zero where one
    /// does. `None` where rows name nothing.
    fn faults(&self, lengths: usize) -> Option<Address>;

    /// Does for runs of a size what may allocate, compile or wait, none of which a capture allows. Nothing runs on the
    /// stream meanwhile.
    ///
    /// # Errors
    /// When the card has not enough memory, or a kernel does not compile.
    fn prepare(&mut self, card: &mut Cuda, size: RunSize) -> Result<(), DeviceError>;

    /// Issues a run of a size that was [prepared](Self::prepare). Rows from `live` on are padding, a 32-bit number
    /// on the card that is read when the run begins: what they hold is of no account, and what they become neither.
    ///
    /// # Errors
    /// When the driver refuses.
    fn issue(&self, capture: &mut Capture<'_>, size: RunSize, live: Address) -> Result<(), DeviceError>;
}
