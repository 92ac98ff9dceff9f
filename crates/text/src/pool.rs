//! The step `pool`: the states of a model to one vector for each text.

use std::{sync::Arc, time::Duration};

use paternoster_model::{DataType, InputTensor, TensorSpec, text};
use paternoster_pipeline::{BuiltIn, BuiltInFault, InputRows, StepWork, Stop, TensorRows, WorkerGroup, Workers};

use super::{
    Pooling, cut, normalize,
    tensors::{floats, integers, row_of_floats, rows_of},
};

/// States of at most this many bytes together take well below a millisecond.
const SHORT_BYTES: usize = 256 << 10;

/// Memory for a row beside its numbers: all tensors.
const ROW_BYTES: usize = 512;

/// Name of the step's input: the states of the tokens, or the vector.
pub const STATES: &str = "states";

/// How vectors are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolingOptions {
    /// From the states of the tokens.
    pub pooling: Pooling,
    /// Whether vectors are divided by their length, unless a request says otherwise.
    pub normalize: bool,
    /// The datatype of the states.
    pub datatype: DataType,
}

/// The step.
#[derive(Debug)]
pub struct PoolingStep {
    options: PoolingOptions,
    inputs: Vec<TensorSpec>,
    outputs: Vec<TensorSpec>,
}

impl PoolingStep {
    /// Creates the step.
    pub fn new(options: PoolingOptions) -> Self {
        let states: &[i64] = if options.pooling == Pooling::Done { &[-1] } else { &[-1, -1] };
        let optional = |name: &str, datatype| TensorSpec { optional: true, ..TensorSpec::new(name, datatype, &[1]) };
        let inputs = vec![
            TensorSpec::new(STATES, options.datatype, states),
            optional(text::DIMENSIONS, DataType::Int32),
            optional(text::NORMALIZE, DataType::Bool),
        ];
        // A request may ask for fewer numbers.
        let outputs = vec![TensorSpec::new(text::EMBEDDING, DataType::Fp32, &[-1])];
        Self { options, inputs, outputs }
    }

    /// Returns how vectors are made.
    pub fn options(&self) -> &PoolingOptions {
        &self.options
    }
}

impl BuiltIn for PoolingStep {
    fn kind(&self) -> &'static str {
        "pool"
    }

    fn inputs(&self) -> &[TensorSpec] {
        &self.inputs
    }

    fn outputs(&self) -> &[TensorSpec] {
        &self.outputs
    }

    fn is_short(&self, inputs: &[Option<TensorRows>]) -> bool {
        let bytes: usize = inputs.iter().flatten().map(TensorRows::bytes).sum();
        bytes.saturating_add(rows_of(inputs).saturating_mul(ROW_BYTES)) <= SHORT_BYTES
    }

    fn workers<'a>(&self, all: &'a Workers) -> &'a WorkerGroup {
        &all.texts
    }

    fn built_bytes(&self, inputs: &[Option<TensorRows>]) -> usize {
        let rows = rows_of(inputs);
        let size = self.options.datatype.size_bytes().unwrap_or(1);
        let as_fp32 = |bytes: usize| (bytes / size).saturating_mul(size_of::<f32>());
        let width = |tensor: &InputTensor| tensor.shape.last().map_or(0, |&width| width.max(0) as usize);
        let (longest, widest) = match inputs.first().and_then(Option::as_ref) {
            None => (0, 0),
            Some(TensorRows::Joint(states)) => (states.data.len() / rows.max(1), width(states)),
            Some(TensorRows::Rows(states)) => {
                let states = || states.iter().flatten();
                let longest = states().map(|states| states.data.len()).max();
                (longest.unwrap_or(0), states().map(width).max().unwrap_or(0))
            }
        };
        // The states of one row at a time, as FP32, and a vector of each row: as numbers, and as what leaves the step.
        let vector = widest.saturating_mul(size_of::<f32>());
        let outputs = rows.saturating_mul(ROW_BYTES.saturating_add(vector));
        as_fp32(longest).saturating_add(outputs).saturating_add(vector.saturating_mul(2))
    }

    fn check(&self, given: &[Option<TensorRows>], dims: &[&[i64]], rows: usize) -> Result<(), BuiltInFault> {
        let width = dims[0].last().and_then(|&width| usize::try_from(width).ok());
        let (Some(width), Some(wanted)) = (width, &given[1]) else { return Ok(()) };
        let wanted = wanted.by_row(DataType::Int32, rows).map_err(|fault| BuiltInFault::Invalid(fault.to_string()))?;
        wanted.iter().flatten().try_for_each(|wanted| dimensions(wanted, width).map(|_| ()))
    }

    fn begin(self: Arc<Self>, inputs: Vec<Option<TensorRows>>, rows: usize) -> Result<Box<dyn StepWork>, BuiltInFault> {
        let given = InputRows::new(&inputs, &self.inputs, rows)?;
        Ok(Box::new(Pooled { options: self.options, given, vectors: Vec::with_capacity(rows) }))
    }
}

/// Returns how many numbers of a vector of `width` a request wants.
fn dimensions(wanted: &InputTensor, width: usize) -> Result<usize, BuiltInFault> {
    let wanted = integers(&wanted.data, DataType::Int32).first().copied().unwrap_or(0);
    let dimensions = usize::try_from(wanted).ok().filter(|wanted| (1..=width).contains(wanted));
    let text = || format!("expected dimensions from 1 to {width}, but found {wanted}");
    dimensions.ok_or_else(|| BuiltInFault::Invalid(text()))
}

/// The work of a request.
struct Pooled {
    options: PoolingOptions,
    given: InputRows,
    vectors: Vec<Option<InputTensor>>,
}

impl StepWork for Pooled {
    fn effort(&self, row: usize) -> Duration {
        Duration::from_nanos(self.given.get(0, row).map_or(0, |states| states.data.len() as u64))
    }

    fn run(&mut self, row: usize, _stop: &Stop) -> Result<(), BuiltInFault> {
        let (given, PoolingOptions { pooling, datatype, normalize: normalizes }) = (&self.given, self.options);
        let Some(states) = given.get(0, row) else {
            self.vectors.push(None);
            return Ok(());
        };
        let width = states.shape.last().map_or(0, |&width| width.max(0) as usize);
        let mut vector = pooling.pool(&floats(&states.data, datatype), width);
        if let Some(wanted) = given.get(1, row) {
            cut(&mut vector, dimensions(wanted, width)?);
        }
        if given.get(2, row).map_or(normalizes, |flag| flag.data.first() != Some(&0)) {
            normalize(&mut vector);
        }
        self.vectors.push(Some(row_of_floats(&vector)));
        Ok(())
    }

    fn outputs(&mut self) -> Vec<TensorRows> {
        vec![TensorRows::Rows(std::mem::take(&mut self.vectors))]
    }
}
