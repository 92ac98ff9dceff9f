//! What the core needs to know of a request before it is admitted: its lengths along padded axes, and the key that
//! requests of a batch must share.

use paternoster_batching::RequestKey;
use paternoster_model::{InputTensor, Lengths, ModelSpec};

/// Marks an omitted optional input in a key; no dimension is negative.
const ABSENT: i64 = -1;

/// The properties of a specification that decide whether requests may share a batch. Computed once per version.
#[derive(Debug)]
pub(super) struct Admission {
    batch_axis: bool,
    symbols: usize,
    /// Inputs whose presence or dimensions vary, by index.
    varying: Vec<Varying>,
}

#[derive(Debug)]
struct Varying {
    input: usize,
    optional: bool,
    /// Axes, without the batch axis, on which requests must agree.
    keyed: Vec<usize>,
    /// Padded axes, each with its symbol.
    padded: Vec<(usize, usize)>,
}

impl Admission {
    pub(super) fn new(spec: &ModelSpec) -> Self {
        let varying = spec.inputs.iter().enumerate().filter_map(|(index, input)| {
            let symbol = |axis: usize| input.symbols.get(axis).copied().flatten();
            let axes = 0..input.dims.len();
            let keyed: Vec<usize> =
                axes.clone().filter(|&axis| input.dims[axis] < 0 && symbol(axis).is_none()).collect();
            let padded: Vec<(usize, usize)> =
                axes.filter_map(|axis| Some((axis, usize::from(symbol(axis)?.0)))).collect();
            let varies = input.optional || !keyed.is_empty() || !padded.is_empty();
            varies.then_some(Varying { input: index, optional: input.optional, keyed, padded })
        });
        Self { batch_axis: spec.has_batch_axis(), symbols: spec.symbols.len(), varying: varying.collect() }
    }

    /// Whether all requests have the same dimensions except for their number of rows.
    pub(super) fn is_fixed(&self) -> bool {
        self.varying.is_empty()
    }

    /// Returns the lengths and the key of a request with these inputs.
    pub(super) fn measure(&self, inputs: &[Option<InputTensor>]) -> (Lengths, RequestKey) {
        let mut lengths = Lengths::from_elem(0, self.symbols);
        let mut key = RequestKey::default();
        let offset = usize::from(self.batch_axis);
        for varying in &self.varying {
            let Some(tensor) = inputs.get(varying.input).and_then(Option::as_ref) else {
                key.0.push(ABSENT);
                continue;
            };
            if varying.optional {
                key.0.push(0);
            }
            let dim = |axis: usize| tensor.shape.get(axis + offset).copied().unwrap_or(0);
            key.0.extend(varying.keyed.iter().map(|&axis| dim(axis)));
            for &(axis, symbol) in &varying.padded {
                lengths[symbol] = u32::try_from(dim(axis)).unwrap_or(u32::MAX);
            }
        }
        (lengths, key)
    }
}
