//! From the states of a text's tokens to one vector.

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
