//! Puts a plan on a card.

use std::{collections::HashMap, fmt, rc::Rc, sync::Arc};

use super::{
    codegen::HEAD,
    fuse::Step,
    ir::{RowKernel, Rowwise},
    plan::{Parts, Plan},
    weights::Weights,
};
use crate::device::{
    DeviceError,
    cuda::{Address, Compiler, Cuda, Element, Function, KERNELS, Source, products::Multiplication},
};

/// Of matrix products and convolutions; tensors are fp32.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Precision {
    /// IEEE single precision.
    Ieee,
    /// TF32: factors are rounded to 10 bits of fraction, where the card has units for that.
    Tf32,
}

impl Precision {
    /// How products are computed.
    pub(super) fn multiplication(self) -> Multiplication {
        match self {
            Self::Ieee => Multiplication::Ieee,
            Self::Tf32 => Multiplication::Tf32,
        }
    }
}

/// A plan on a card: its weights and its kernels. It lives as long as the graphs that are made of it.
pub struct Loaded {
    pub(super) plan: Arc<Parts>,
    pub(super) precision: Precision,
    _weights: Rc<Weights>,
    /// Constants, by buffer.
    pub(super) constants: HashMap<usize, Address>,
    /// Kernels, by step; none for products and convolutions.
    pub(super) kernels: Vec<Option<Function>>,
    /// What counts rows and clears faults, where that is needed.
    pub(super) head: Option<Function>,
}

impl Plan {
    /// Compiles the plan's kernels, on any thread: [`Self::load`] finds them in the compiler's cache.
    ///
    /// # Errors
    /// When a kernel does not compile.
    pub fn compile(&self, compiler: &Compiler) -> Result<(), String> {
        let steps = self.0.steps.iter().zip(&self.0.program.kernels);
        let written = steps.filter_map(|(step, generated)| match (step, generated) {
            (Step::Rowwise(Rowwise { kernel, .. }), None) => Some(written(kernel).0),
            _ => None,
        });
        let sources = std::iter::once(self.own()).chain(written);
        sources.into_iter().try_for_each(|source| compiler.compile(source, Element::F32).map(drop))
    }

    /// The plan's own kernels.
    fn own(&self) -> Source<'_> {
        Source { name: "plan.cu", text: &self.0.program.text }
    }

    /// Compiles the plan's kernels and puts its weights on a card, on the card's thread.
    ///
    /// # Errors
    /// When there is not as much memory, a kernel does not compile, or the device is lost.
    pub fn load(&self, card: &mut Cuda, precision: Precision) -> Result<Loaded, DeviceError> {
        let weights = Weights::upload(card, std::iter::once(self))?;
        self.load_with(card, Rc::new(weights), precision)
    }

    /// As [`Self::load`], with weights that are on the card.
    ///
    /// # Errors
    /// When a kernel does not compile, or the device is lost.
    pub fn load_with(
        &self,
        card: &mut Cuda,
        weights: Rc<Weights>,
        precision: Precision,
    ) -> Result<Loaded, DeviceError> {
        let parts = &self.0;
        let own = card.kernels(self.own(), Element::F32)?;
        let mut by_name: HashMap<&str, Function> = HashMap::new();
        let mut kernels = Vec::new();
        for (step, generated) in parts.steps.iter().zip(&parts.program.kernels) {
            kernels.push(match (step, generated) {
                (_, Some(generated)) => Some(own.function(&generated.name)?),
                (Step::Rowwise(Rowwise { kernel, .. }), None) => {
                    let (source, name) = written(kernel);
                    if !by_name.contains_key(name) {
                        by_name.insert(name, card.kernels(source, Element::F32)?.function(name)?);
                    }
                    by_name.get(name).cloned()
                }
                (_, None) => None,
            });
        }
        let head = parts.program.has_head.then(|| own.function(HEAD)).transpose()?;
        let constants = weights.places(parts);
        Ok(Loaded { plan: Arc::clone(parts), precision, _weights: weights, constants, kernels, head })
    }
}

/// The file and the name of a written kernel.
fn written(kernel: &RowKernel) -> (Source<'static>, &'static str) {
    match kernel {
        RowKernel::Softmax => (KERNELS.softmax, "softmax"),
        RowKernel::LayerNorm { .. } => (KERNELS.layer_norm, "layer_norm"),
        RowKernel::ArgMax { .. } => (KERNELS.argmax, "argmax_i64"),
    }
}

impl fmt::Debug for Loaded {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Loaded").field("precision", &self.precision).finish_non_exhaustive()
    }
}
