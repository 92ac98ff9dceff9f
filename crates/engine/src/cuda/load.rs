//! Loads a plan onto a card.

use std::{
    collections::{HashMap, hash_map::Entry},
    fmt,
    rc::Rc,
    sync::Arc,
};

use paternoster_device::{
    DeviceError,
    cuda::{Address, Compiler, Cuda, Function, KERNELS, KernelElement, KernelSource},
};

use super::{
    codegen::HEAD,
    fuse::Step,
    ir::RowKernel,
    plan::{Parts, Plan},
    weights::Weights,
};
use crate::Precision;

/// Compute capability from which cards multiply BF16.
const HAS_BF16: (i32, i32) = (8, 0);

/// A plan on a card, with its weights and kernels. Must outlive the CUDA graphs made from it.
pub struct LoadedPlan {
    pub(super) plan: Arc<Parts>,
    _weights: Rc<Weights>,
    /// Address of each constant, by buffer.
    pub(super) constants: HashMap<usize, Address>,
    /// The kernel of each step; `None` for products and convolutions.
    pub(super) kernels: Vec<Option<Function>>,
    /// The kernel that computes row counts and clears faults, if the plan needs one.
    pub(super) head: Option<Function>,
}

impl Plan {
    /// Compiles the plan's kernels, on any thread, so that [`Self::load`] finds them in the compiler's cache.
    ///
    /// # Errors
    /// Fails if a kernel does not compile.
    pub fn compile(&self, compiler: &Compiler) -> Result<(), String> {
        let steps = self.0.steps.iter().zip(&self.0.program.kernels);
        let written = steps.filter_map(|(step, generated)| match (step, generated) {
            (step, None) => self.0.written(step).map(|Written { source, element, .. }| (source, element)),
            _ => None,
        });
        let mut sources = std::iter::once((self.own(), KernelElement::F32)).chain(written);
        sources.try_for_each(|(source, element)| compiler.compile(source, element).map(drop))
    }

    /// Returns the source of the plan's own kernels.
    fn own(&self) -> KernelSource<'_> {
        KernelSource { name: "plan.cu", text: &self.0.program.text }
    }

    /// Compiles the plan's kernels and copies its weights to a card, on the card's thread.
    ///
    /// # Errors
    /// Fails if memory is short, if a kernel does not compile, if the card does not support the plan's precision, or if
    /// the device is lost.
    pub fn load(&self, card: &mut Cuda) -> Result<LoadedPlan, DeviceError> {
        let weights = Weights::upload(card, std::iter::once(self))?;
        self.load_with(card, Rc::new(weights))
    }

    /// As [`Self::load`], with weights that are already on the card.
    ///
    /// # Errors
    /// Fails if a kernel does not compile, if the card does not support the plan's precision, or if the device is lost.
    pub fn load_with(&self, card: &mut Cuda, weights: Rc<Weights>) -> Result<LoadedPlan, DeviceError> {
        let parts = &self.0;
        if parts.precision == Precision::Bf16 && card.capability() < HAS_BF16 {
            let (major, minor) = card.capability();
            let refused = format!("precision bf16 needs compute capability 8.0, but the card has {major}.{minor}");
            return Err(DeviceError::Driver(refused));
        }
        let own = card.kernels(self.own(), KernelElement::F32)?;
        let mut by_name: HashMap<(&str, KernelElement), Function> = HashMap::new();
        let mut kernels = Vec::new();
        for (step, generated) in parts.steps.iter().zip(&parts.program.kernels) {
            kernels.push(match (step, generated) {
                (_, Some(generated)) => Some(own.function(&generated.name)?),
                (step, None) => match parts.written(step) {
                    Some(Written { source, name, element }) => Some(match by_name.entry((name, element)) {
                        Entry::Occupied(known) => known.get().clone(),
                        Entry::Vacant(new) => new.insert(card.kernels(source, element)?.function(name)?).clone(),
                    }),
                    None => None,
                },
            });
        }
        let head = parts.program.has_head.then(|| own.function(HEAD)).transpose()?;
        let constants = weights.places(parts);
        Ok(LoadedPlan { plan: Arc::clone(parts), _weights: weights, constants, kernels, head })
    }
}

/// A handwritten kernel.
struct Written {
    source: KernelSource<'static>,
    name: &'static str,
    element: KernelElement,
}

impl Parts {
    /// Returns the handwritten kernel of a step, if it has one.
    fn written(&self, step: &Step) -> Option<Written> {
        let (source, name, buffer) = match step {
            Step::Rowwise(rowwise) => {
                let (source, name) = match rowwise.kernel {
                    RowKernel::Softmax => (KERNELS.softmax, "softmax"),
                    RowKernel::LayerNorm { .. } => (KERNELS.layer_norm, "layer_norm"),
                    RowKernel::ArgMax { .. } => (KERNELS.argmax, "argmax_i64"),
                };
                (source, name, rowwise.from)
            }
            Step::Attention(attention) => {
                let name = match attention.head_size {
                    ..=32 => "attention_32",
                    33..=64 => "attention_64",
                    _ => "attention_128",
                };
                (KERNELS.attention, name, attention.q.buffer)
            }
            Step::Kernel(_) | Step::Product(_) | Step::Convolution(_) | Step::Reduce(_) => return None,
        };
        Some(Written { source, name, element: self.element(buffer) })
    }
}

impl fmt::Debug for LoadedPlan {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Loaded").field("precision", &self.plan.precision).finish_non_exhaustive()
    }
}
