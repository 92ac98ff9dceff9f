//! Pooling: the states of a text's tokens to one vector, and the step `pool` that does it for each text.

use std::{sync::Arc, time::Duration};

use paternoster_model::{DataType, InputTensor, TensorSpec, text};
use paternoster_pipeline::{BuiltIn, BuiltInFault, InputRows, StepWork, Stop, TensorRows, WorkerGroup, Workers};

use super::tensors::{floats, integers, row_of_floats, rows_of};

/// States of at most this many bytes together take well below a millisecond.
const SHORT_BYTES: usize = 256 << 10;

/// Memory for a row beside its numbers: all tensors.
const ROW_BYTES: usize = 512;

/// Name of the step's input: the states of the tokens, or the vector.
pub const STATES: &str = "states";

/// How states become a vector, as sentence-transformers names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pooling {
    /// The mean of all states.
    Mean,
    /// The first state.
    Cls,
    /// The last state.
    Last,
    /// The mean in which the n-th state counts n times.
    WeightedMean,
    /// The largest number of all states, by dimension.
    Max,
    /// The sum of all states, divided by the root of their number.
    MeanSqrtLen,
    /// The model gives the vector itself.
    Done,
}

impl Pooling {
    /// Returns the vector of a text. `states` are the states of its tokens one after the other, each of `width`
    /// numbers; a text has at least one token. With [`Self::Done`] it is returned as it is.
    pub fn pool(self, states: &[f32], width: usize) -> Vec<f32> {
        let count = states.len() / width.max(1);
        let weighted = |weight: &dyn Fn(usize) -> f32, whole: f32| {
            let mut sum = vec![0.0_f32; width];
            for (number, state) in states.chunks_exact(width.max(1)).enumerate() {
                let factor = weight(number);
                sum.iter_mut().zip(state).for_each(|(sum, value)| *sum += factor * value);
            }
            sum.iter_mut().for_each(|sum| *sum /= whole);
            sum
        };
        match self {
            Self::Done => states.to_vec(),
            Self::Cls => states.get(..width).unwrap_or_default().to_vec(),
            Self::Last => states.get(states.len().saturating_sub(width)..).unwrap_or_default().to_vec(),
            Self::Mean => weighted(&|_| 1.0, count.max(1) as f32),
            Self::MeanSqrtLen => weighted(&|_| 1.0, (count.max(1) as f32).sqrt()),
            Self::WeightedMean => {
                let whole = count * (count + 1) / 2;
                weighted(&|number| (number + 1) as f32, whole.max(1) as f32)
            }
            Self::Max => {
                let mut most = vec![f32::NEG_INFINITY; width];
                for state in states.chunks_exact(width.max(1)) {
                    most.iter_mut().zip(state).for_each(|(most, value)| *most = most.max(*value));
                }
                most
            }
        }
    }
}

/// Divides a vector by its length. A vector of zeros stays one.
pub fn normalize(vector: &mut [f32]) {
    let length = vector.iter().map(|value| value * value).sum::<f32>().sqrt().max(1e-12);
    vector.iter_mut().for_each(|value| *value /= length);
}

/// Keeps the first `dimensions` numbers of a vector, for models that were trained for it (Matryoshka).
pub fn cut(vector: &mut Vec<f32>, dimensions: usize) {
    vector.truncate(dimensions);
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_way_gives_its_vector() {
        let states = [1.0, 8.0, 3.0, 4.0, 8.0, 0.0];
        let pooled = |pooling: Pooling| pooling.pool(&states, 2);
        assert_eq!(pooled(Pooling::Mean), [4.0, 4.0]);
        assert_eq!(pooled(Pooling::Cls), [1.0, 8.0]);
        assert_eq!(pooled(Pooling::Last), [8.0, 0.0]);
        assert_eq!(pooled(Pooling::WeightedMean), [31.0 / 6.0, 16.0 / 6.0]);
        assert_eq!(pooled(Pooling::Max), [8.0, 8.0]);
        assert_eq!(pooled(Pooling::MeanSqrtLen), [12.0 / 3.0_f32.sqrt(), 12.0 / 3.0_f32.sqrt()]);
        assert_eq!(pooled(Pooling::Done), states);
    }

    #[test]
    fn a_normalized_vector_has_length_one_and_zeros_stay() {
        let mut vector = vec![3.0, 4.0, 0.0];
        cut(&mut vector, 2);
        normalize(&mut vector);
        assert_eq!(vector, [0.6, 0.8]);
        let mut zeros = [0.0, 0.0];
        normalize(&mut zeros);
        assert_eq!(zeros, [0.0, 0.0]);
    }
}
