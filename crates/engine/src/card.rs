//! A program's form on a CUDA card: operations that an executor captures into CUDA graphs.

use paternoster_device::{
    DeviceError, StreamId,
    cuda::{Address, Capture, Compiler, Cuda},
};
use paternoster_model::{Dims, Lengths};

/// The size of a run, which is fixed when its CUDA graph is captured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunSize {
    /// Number of rows, including padding.
    pub rows: u32,
    /// Index of the rows' lengths among the program's [lengths](CardProgram::lengths).
    pub lengths: usize,
}

/// Where a run finds what differs from task to task. The run reads it when it begins, not when it is issued.
#[derive(Clone, Copy, Debug)]
pub struct RunParameters<'a> {
    /// Address of a 32-bit number of rows. Rows from that number on are padding, whose content is ignored and whose
    /// results are undefined.
    pub live: Address,
    /// For each symbol of the model, the address of one 32-bit number for each row: its own length along axes of this
    /// symbol. What lies behind it was added by padding.
    pub lengths: &'a [Address],
}

/// A program that can be loaded onto a card. Creating it needs no card.
pub trait CardProgram: Send + Sync {
    /// Returns the lengths of padded axes that runs may have; each entry has one length per symbol of the model. A
    /// program without padded axes has one empty entry.
    fn lengths(&self) -> Vec<Lengths> {
        vec![Lengths::new()]
    }

    /// Returns the dims of one row of an output in runs with the lengths of index `lengths`; `None` if they are those
    /// of the specification.
    fn output_dims(&self, lengths: usize, output: usize) -> Option<Dims> {
        let _ = (lengths, output);
        None
    }

    /// Compiles the kernels that [`Self::load`] needs, on any thread, so that `load` finds them in the compiler's
    /// cache. The card runs nothing while a program is loaded, so loading must not compile.
    ///
    /// # Errors
    /// Fails if a kernel does not compile.
    fn compile(&self, compiler: &Compiler) -> Result<(), String> {
        let _ = compiler;
        Ok(())
    }

    /// Copies the weights to a card. Must be called on the thread of that card, as must all methods below.
    ///
    /// # Errors
    /// Fails if the card lacks memory, or a library that the program needs is missing.
    fn load(&self, card: &mut Cuda) -> Result<Box<dyn CardWeights>, DeviceError>;
}

/// The weights of a program on a card, which all its streams share.
pub trait CardWeights {
    /// Allocates one stream's memory for batches of up to `max_rows` rows: inputs, outputs and intermediate tensors.
    ///
    /// # Errors
    /// Fails if the card lacks memory.
    fn reserve(&self, card: &mut Cuda, stream: StreamId, max_rows: u32) -> Result<Box<dyn CardWorkspace>, DeviceError>;
}

/// A program on one stream of a card. Tensors are row-major and contiguous, with the batch as axis 0. Their addresses
/// depend on the [lengths](CardProgram::lengths) of a run, given by index, but not on its number of rows.
pub trait CardWorkspace {
    /// Returns the address to which an input must be written before a run.
    fn input(&self, lengths: usize, index: usize) -> Address;

    /// Returns the address of an output after a run.
    fn output(&self, lengths: usize, index: usize) -> Address;

    /// Returns the address of one 32-bit word per row, which a run sets to a nonzero value if the row has an index that
    /// is out of range of its table. `None` if the program looks nothing up.
    fn faults(&self, lengths: usize) -> Option<Address>;

    /// Prepares runs of one size. Does everything that may allocate, compile or block, which is not allowed during a
    /// capture. Nothing else may run on the stream meanwhile.
    ///
    /// # Errors
    /// Fails if the card lacks memory, or a kernel does not compile.
    fn prepare(&mut self, card: &mut Cuda, size: RunSize) -> Result<(), DeviceError>;

    /// Issues a run of a size that was [prepared](Self::prepare).
    ///
    /// # Errors
    /// Fails if the driver rejects a launch.
    fn issue(&self, capture: &mut Capture<'_>, size: RunSize, parameters: RunParameters<'_>)
    -> Result<(), DeviceError>;
}
