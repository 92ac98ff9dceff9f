//! Reference answers: collected one request at a time, before the load starts, and compared with every response under
//! load.

use std::{
    process,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use paternoster_executor::OutputTensor;
use paternoster_model::{CorrelationId, DataType, InSequence};

use crate::{ResponseTensors, Target, samples::Sample, target::PendingResponse};

/// Default tolerance: maximum difference from the reference answer, relative to the root mean square of the output.
const TOLERANCE: f64 = 1e-4;
/// Tolerances of 16-bit elements, whose last bit is worth about a thousandth (FP16) or a hundredth (BF16) of the value.
const TOLERANCE_FP16: f64 = 4e-3;
const TOLERANCE_BF16: f64 = 3e-2;

/// Requests with their reference answers.
#[derive(Clone, Debug)]
pub struct CheckedRequests {
    samples: Vec<Sample>,
    expected: Vec<Vec<Expected>>,
    /// Requests of each sequence; `None` if requests belong to none.
    sequence_length: Option<usize>,
    /// The id of the next sequence.
    next_id: Arc<AtomicU64>,
}

/// The reference value of one output.
#[derive(Clone, Debug)]
struct Expected {
    name: String,
    datatype: DataType,
    tensor: OutputTensor,
    /// Maximum difference; 0 if the bytes must be equal.
    tolerance: f64,
}

/// A sample that the server did not answer before the load started.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[error("request {index} failed, alone and before any load: {reason}")]
pub struct Unanswered {
    /// Index of the sample.
    pub index: usize,
    /// Reason given by the server.
    pub reason: String,
}

impl CheckedRequests {
    /// Sends all samples to the target, one at a time, and keeps the answers as references. `tolerance` is the maximum
    /// difference of later answers, relative to the root mean square of an output; if it is `None`, the defaults
    /// described at [`Self::check`] apply.
    ///
    /// # Errors
    /// If a sample is not answered.
    ///
    /// If the target has sequences, every `sequence_length` samples are one; their number is a multiple of it.
    pub async fn prepare(
        target: &Target,
        samples: Vec<Sample>,
        sequence_length: usize,
        tolerance: Option<f64>,
    ) -> Result<Self, Unanswered> {
        let sequence_length = target.ports().sequences.then_some(sequence_length);
        // Ids of other processes differ, so that several may load one server.
        let next_id = Arc::new(AtomicU64::new((u64::from(process::id()) << 32) + 1));
        let mut work = Self { samples, expected: Vec::new(), sequence_length, next_id };
        for arrival in 0..work.distinct() / work.per_arrival() {
            let id = work.new_sequence();
            for step in 0..work.per_arrival() {
                let index = work.number(arrival, step);
                let answer = work.send(target, id, index).await;
                let answer = answer.map_err(|reason| Unanswered { index, reason })?;
                work.expected.push(expectations(target, answer, tolerance));
            }
        }
        Ok(work)
    }

    /// Returns the number of requests of one arrival: those of a sequence, or one.
    pub fn per_arrival(&self) -> usize {
        self.sequence_length.unwrap_or(1)
    }

    /// Returns the number of a request of an arrival.
    pub fn number(&self, arrival: usize, step: usize) -> usize {
        arrival * self.per_arrival() + step
    }

    /// Returns an id for the sequence of an arrival.
    pub fn new_sequence(&self) -> u64 {
        self.next_id.fetch_add(1, Ordering::Relaxed)
    }

    /// Sends the request with this number, in the sequence `id` if the target has sequences. Numbers beyond the last
    /// sample start again at the first.
    pub fn send(&self, target: &Target, id: u64, number: usize) -> PendingResponse {
        let sequence = self.sequence_length.map(|length| {
            let step = number % length;
            InSequence { id: CorrelationId::Number(id), starts: step == 0, ends: step + 1 == length }
        });
        target.send(&self.samples[number % self.samples.len()], sequence)
    }

    /// Returns the number of distinct requests.
    pub fn distinct(&self) -> usize {
        self.samples.len()
    }

    /// Compares a response with the reference of the request with this number.
    ///
    /// # Errors
    /// A description of the difference, if it exceeds the tolerance: by default 1e-4 of the root mean square of the
    /// output, more for 16-bit floating point, and 0 for datatypes that are not floating point.
    pub fn check(&self, number: usize, answer: &[OutputTensor]) -> Result<(), String> {
        let expected = &self.expected[number % self.expected.len()];
        if answer.len() != expected.len() {
            return Err(format!("{} outputs instead of {}", answer.len(), expected.len()));
        }
        expected.iter().zip(answer).try_for_each(|(expected, got)| expected.check(got))
    }
}

fn expectations(target: &Target, answer: ResponseTensors, tolerance: Option<f64>) -> Vec<Expected> {
    let ports = target.ports().outputs.iter();
    ports.zip(answer).map(|(port, tensor)| Expected::new(&port.name, port.datatype, tensor, tolerance)).collect()
}

impl Expected {
    fn new(name: &str, datatype: DataType, tensor: OutputTensor, tolerance: Option<f64>) -> Self {
        let unit = tolerance.unwrap_or(match datatype {
            DataType::Fp16 => TOLERANCE_FP16,
            DataType::Bf16 => TOLERANCE_BF16,
            _ => TOLERANCE,
        });
        let tolerance = floats(datatype, &tensor.data).map_or(0.0, |values| {
            let (count, squares) = values.fold((0, 0.0), |(count, sum), value| (count + 1, sum + value * value));
            unit * (squares / f64::from(count.max(1))).sqrt()
        });
        Self { name: name.to_owned(), datatype, tensor, tolerance }
    }

    fn check(&self, got: &OutputTensor) -> Result<(), String> {
        let Self { name, datatype, tensor, tolerance } = self;
        if got.shape != tensor.shape {
            return Err(format!("output '{name}' has the shape {:?} instead of {:?}", got.shape, tensor.shape));
        }
        if got.data == tensor.data {
            return Ok(());
        }
        let (Some(values), Some(right)) = (floats(*datatype, &got.data), floats(*datatype, &tensor.data)) else {
            return Err(format!("output '{name}' differs"));
        };
        if got.data.len() != tensor.data.len() {
            return Err(format!("output '{name}' has {} bytes instead of {}", got.data.len(), tensor.data.len()));
        }
        let wrong = values.zip(right).enumerate().find(|(_, (value, right))| {
            let difference = (value - right).abs();
            // NaN differs from everything.
            difference.is_nan() || difference > *tolerance
        });
        match wrong {
            Some((at, (value, right))) => {
                Err(format!("output '{name}' is {value} at element {at} instead of {right} within {tolerance:.1e}"))
            }
            None => Ok(()),
        }
    }
}

/// Returns the values of a floating-point tensor; `None` for other datatypes.
fn floats(datatype: DataType, data: &[u8]) -> Option<Box<dyn Iterator<Item = f64> + '_>> {
    Some(match datatype {
        DataType::Fp16 => Box::new(data.as_chunks().0.iter().map(|&bytes| half::f16::from_le_bytes(bytes).to_f64())),
        DataType::Bf16 => Box::new(data.as_chunks().0.iter().map(|&bytes| half::bf16::from_le_bytes(bytes).to_f64())),
        DataType::Fp32 => Box::new(data.as_chunks().0.iter().map(|&bytes| f64::from(f32::from_le_bytes(bytes)))),
        DataType::Fp64 => Box::new(data.as_chunks().0.iter().map(|&bytes| f64::from_le_bytes(bytes))),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use paternoster_model::Dims;

    use super::*;

    fn floats_of(values: &[f32]) -> OutputTensor {
        let data = Bytes::from(values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>());
        OutputTensor { shape: Dims::from_slice(&[1, values.len() as i64]), data }
    }

    #[test]
    fn floats_may_differ_by_a_share_of_their_root_mean_square() {
        // The root mean square is 10.
        let expected = Expected::new("y", DataType::Fp32, floats_of(&[14.0, 2.0, 0.0, 14.142_136]), None);
        let check = |first, third| expected.check(&floats_of(&[first, 2.0, third, 14.142_136]));
        assert_eq!(check(14.0, 0.0009), Ok(()), "a small value is not judged by its own size");
        assert!(check(14.0, 0.0012).is_err());
        assert!(check(14.0012, 0.0).is_err());
        assert!(check(14.0, f32::NAN).is_err(), "what is no number is no answer");
        let message = check(14.1, 0.0).expect_err("it differs");
        assert!(message.contains("output 'y' is 14.1") && message.contains("at element 0 instead of 14"), "{message}");
    }

    #[test]
    fn other_datatypes_must_be_the_same_to_the_last_bit() {
        let tensor =
            |bytes: &'static [u8]| OutputTensor { shape: Dims::from_slice(&[2]), data: Bytes::from_static(bytes) };
        let expected = Expected::new("y", DataType::Uint8, tensor(&[1, 2]), None);
        assert_eq!(expected.check(&tensor(&[1, 2])), Ok(()));
        assert_eq!(expected.check(&tensor(&[1, 3])), Err("output 'y' differs".to_owned()));
    }

    #[test]
    fn another_shape_or_size_is_wrong() {
        let expected = Expected::new("y", DataType::Fp32, floats_of(&[1.0, 2.0]), None);
        assert!(expected.check(&floats_of(&[1.0])).is_err());
        let short = OutputTensor { data: floats_of(&[1.0]).data, ..floats_of(&[1.0, 2.0]) };
        assert_eq!(expected.check(&short), Err("output 'y' has 4 bytes instead of 8".to_owned()));
    }
}
