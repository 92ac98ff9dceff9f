//! Sources of a network's weights: a seeded generator, or a checkpoint in the safetensors format.

use std::{fs, path::Path};

use bytes::Bytes;
use safetensors::{Dtype, SafeTensors};

use super::Error;

/// Provides the weights of a network by name: FP32, little-endian, row-major.
pub trait WeightSource {
    /// Returns a tensor. `spread` is the standard deviation for random weights.
    ///
    /// # Errors
    /// If there is no such tensor, or it has another type or shape.
    fn tensor(&mut self, name: &str, dims: &[usize], spread: f32) -> Result<Bytes, Error>;

    /// Returns a matrix of `rows` × `columns` that is stored transposed, as dense layers are in checkpoints.
    ///
    /// # Errors
    /// Like [`tensor`](Self::tensor).
    fn transposed(&mut self, name: &str, rows: usize, columns: usize, spread: f32) -> Result<Bytes, Error>;
}

/// Uniform random weights. A tensor depends only on the seed and its name, so that a change of one part of a network
/// does not affect the others.
#[derive(Clone, Debug)]
pub struct Seeded {
    seed: u64,
}

impl Seeded {
    /// Creates the weights of a network.
    pub fn new(seed: u64) -> Self {
        Self { seed }
    }

    /// Returns a tensor with mean 0 and this standard deviation, the same on every machine.
    pub fn uniform(&self, name: &str, count: usize, spread: f32) -> Bytes {
        let mut state =
            name.bytes().fold(self.seed ^ FNV_OFFSET, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(FNV_PRIME));
        // A uniform variable on ±a has the standard deviation a / √3.
        let scale = spread * 3.0_f32.sqrt() / 2.0_f32.powi(31);
        let mut data = vec![0; count * 4];
        for pair in data.chunks_mut(8) {
            let random = split_mix(&mut state);
            for (half, place) in pair.chunks_exact_mut(4).enumerate() {
                let whole = (random >> (32 * half)) as u32;
                place.copy_from_slice(&(whole.cast_signed() as f32 * scale).to_le_bytes());
            }
        }
        data.into()
    }
}

impl WeightSource for Seeded {
    fn tensor(&mut self, name: &str, dims: &[usize], spread: f32) -> Result<Bytes, Error> {
        Ok(self.uniform(name, dims.iter().product(), spread))
    }

    fn transposed(&mut self, name: &str, rows: usize, columns: usize, spread: f32) -> Result<Bytes, Error> {
        Ok(self.uniform(name, rows * columns, spread))
    }
}

const FNV_OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
const FNV_PRIME: u64 = 0x0000_0100_0000_01b3;

/// `SplitMix64` (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014).
fn split_mix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut mixed = *state;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// A checkpoint in the safetensors format.
#[derive(Debug)]
pub struct Checkpoint {
    file: String,
    content: Vec<u8>,
}

impl Checkpoint {
    /// Reads a checkpoint.
    ///
    /// # Errors
    /// If the file cannot be read or is not a safetensors file.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let file = path.display().to_string();
        let content = match fs::read(path) {
            Ok(content) => content,
            Err(source) => return Err(Error::Read { file, source }),
        };
        match SafeTensors::deserialize(&content) {
            Ok(_) => Ok(Self { file, content }),
            Err(error) => Err(Error::Weights { file, reason: format!("no safetensors file: {error}") }),
        }
    }

    fn find(&self, name: &str, dims: &[usize]) -> Result<&[u8], Error> {
        let wrong = |reason: String| Error::Weights { file: self.file.clone(), reason };
        let header = SafeTensors::deserialize(&self.content).map_err(|error| wrong(error.to_string()))?;
        let tensor = header.tensor(name).map_err(|_| wrong(format!("there is no tensor '{name}'")))?;
        if tensor.dtype() != Dtype::F32 || tensor.shape() != dims {
            let (dtype, shape) = (tensor.dtype(), tensor.shape());
            return Err(wrong(format!("tensor '{name}' is {dtype:?} {shape:?}, expected F32 {dims:?}")));
        }
        Ok(tensor.data())
    }
}

impl WeightSource for Checkpoint {
    fn tensor(&mut self, name: &str, dims: &[usize], _spread: f32) -> Result<Bytes, Error> {
        self.find(name, dims).map(Bytes::copy_from_slice)
    }

    fn transposed(&mut self, name: &str, rows: usize, columns: usize, _spread: f32) -> Result<Bytes, Error> {
        let stored = self.find(name, &[columns, rows])?;
        let mut data = Vec::with_capacity(stored.len());
        for row in 0..rows {
            for column in 0..columns {
                let at = (column * rows + row) * 4;
                data.extend_from_slice(&stored[at..at + 4]);
            }
        }
        Ok(data.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(data: &Bytes) -> Vec<f32> {
        data.chunks_exact(4).map(|chunk| f32::from_le_bytes([chunk[0], chunk[1], chunk[2], chunk[3]])).collect()
    }

    #[test]
    fn seeded_tensors_depend_on_seed_and_name_alone() {
        let drawn = Seeded::new(1).uniform("a", 5, 1.0);
        assert_eq!(Seeded::new(1).uniform("a", 5, 1.0), drawn);
        assert_ne!(Seeded::new(2).uniform("a", 5, 1.0), drawn);
        assert_ne!(Seeded::new(1).uniform("b", 5, 1.0), drawn);
        assert_eq!(Seeded::new(1).uniform("a", 4, 1.0), drawn.slice(..16));
    }

    #[test]
    fn seeded_tensors_have_the_spread_asked_for() {
        let drawn = numbers(&Seeded::new(7).uniform("weight", 100_000, 0.5));
        let mean = drawn.iter().sum::<f32>() / 1e5;
        let variance = drawn.iter().map(|x| x * x).sum::<f32>() / 1e5;
        assert!(mean.abs() < 0.01, "mean {mean}");
        assert!((variance.sqrt() - 0.5).abs() < 0.01, "standard deviation {}", variance.sqrt());
    }

    #[test]
    fn a_checkpoint_gives_tensors_checks_shapes_and_transposes() {
        let header = br#"{"m":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},
            "h":{"dtype":"F16","shape":[1],"data_offsets":[24,26]}}"#;
        let mut content = (header.len() as u64).to_le_bytes().to_vec();
        content.extend_from_slice(header);
        (0..6_u8).for_each(|value| content.extend_from_slice(&f32::from(value).to_le_bytes()));
        content.extend_from_slice(&[0, 0]);
        let path = std::env::temp_dir().join(format!("paternoster-checkpoint-{}", std::process::id()));
        fs::write(&path, content).expect("a temporary file");
        let mut checkpoint = Checkpoint::read(&path).expect("a safetensors file");
        fs::remove_file(&path).expect("the file goes");

        let plain = checkpoint.tensor("m", &[2, 3], 0.0).expect("it is there");
        assert_eq!(numbers(&plain), [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
        let turned = checkpoint.transposed("m", 3, 2, 0.0).expect("it is there");
        assert_eq!(numbers(&turned), [0.0, 3.0, 1.0, 4.0, 2.0, 5.0]);

        let refusal = |result: Result<Bytes, Error>| result.expect_err("refused").to_string();
        assert!(
            refusal(checkpoint.tensor("m", &[3, 2], 0.0)).ends_with("tensor 'm' is F32 [2, 3], expected F32 [3, 2]")
        );
        assert!(refusal(checkpoint.tensor("h", &[1], 0.0)).ends_with("tensor 'h' is F16 [1], expected F32 [1]"));
        assert!(refusal(checkpoint.tensor("x", &[1], 0.0)).ends_with("there is no tensor 'x'"));
    }
}
