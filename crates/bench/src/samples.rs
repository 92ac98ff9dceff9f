//! Generates requests from a model's input specifications.

use std::collections::{BTreeMap, HashSet};

use bytes::Bytes;
use paternoster_model::{DataType, Dims, InputTensor, ModelSpec, TensorSpec, element_count};
use rand::RngExt;
use rand_chacha::{ChaCha8Rng, rand_core::SeedableRng};

use super::sizes::{Size, Sizes};

/// Number of times a duplicate request is redrawn before it is accepted. Duplicates can be unavoidable: a BOOL has only
/// two values.
const DRAWS: u32 = 16;
/// What texts are made of: words that are one token each in most vocabularies.
const WORDS: [&str; 16] = [
    "time", "people", "way", "water", "day", "man", "world", "life", "hand", "part", "child", "eye", "place", "work",
    "week", "number",
];
/// Limit on the size of an input, far above that of any sensible benchmark.
const MAX_BYTES: usize = 1 << 30;

/// A model's inputs and outputs, as far as a client needs them.
#[derive(Clone, Debug, PartialEq)]
pub struct Ports {
    /// Whether axis 0 of every tensor is the batch.
    pub batched: bool,
    /// Maximum rows of a request; 1 for models without a batch axis.
    pub max_rows: u32,
    /// Inputs in the model's order.
    pub inputs: Vec<SamplePort>,
    /// Outputs in the model's order.
    pub outputs: Vec<SamplePort>,
    /// Whether its requests belong to sequences.
    pub sequences: bool,
    /// Whether a request may have any number of responses.
    pub decoupled: bool,
}

/// One input or output.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplePort {
    /// Name on the wire.
    pub name: String,
    /// Element type.
    pub datatype: DataType,
    /// Dimensions without the batch; −1 if the dimension varies from request to request.
    pub dims: Dims,
    /// Whether requests may leave it out.
    pub optional: bool,
}

impl Ports {
    /// Returns the ports of a loaded version, whose requests may belong to sequences.
    pub fn of(spec: &ModelSpec, sequences: bool) -> Self {
        let port = |tensor: &TensorSpec| SamplePort {
            name: tensor.name.clone(),
            datatype: tensor.datatype,
            dims: tensor.dims.clone(),
            optional: tensor.optional,
        };
        Self {
            batched: spec.has_batch_axis(),
            max_rows: spec.max_batch_size.max(1),
            inputs: spec.inputs.iter().map(port).collect(),
            outputs: spec.outputs.iter().map(port).collect(),
            sequences,
            decoupled: spec.decoupled,
        }
    }

    /// Returns whether requests can differ in length.
    pub fn vary(&self) -> bool {
        self.inputs.iter().any(|port| port.dims.contains(&-1) || port.datatype == DataType::Bytes)
    }

    /// Returns the ports with these dims of inputs, without the batch, in place of the model's.
    ///
    /// # Errors
    /// If the model has no such input, or the input cannot have these dims.
    pub fn with_shapes(&self, shapes: &BTreeMap<String, Dims>) -> Result<Self, SampleError> {
        let mut ports = self.clone();
        for (input, dims) in shapes {
            let known = || self.inputs.iter().map(|port| port.name.clone()).collect();
            let unknown = || SampleError::UnknownInput { input: input.clone(), known: known() };
            let port = ports.inputs.iter_mut().find(|port| port.name == *input).ok_or_else(unknown)?;
            let fits = |(own, given): (&i64, &i64)| *own == -1 || own == given;
            if port.dims.len() != dims.len() || !port.dims.iter().zip(dims).all(fits) {
                let (input, dims, expected) = (input.clone(), dims.clone(), port.dims.clone());
                return Err(SampleError::OtherShape { input, dims, expected });
            }
            port.dims.clone_from(dims);
        }
        Ok(ports)
    }

    /// Returns the element types of the outputs, without adjacent duplicates: the precision of the model.
    pub fn precision(&self) -> String {
        let mut names: Vec<&str> = self.outputs.iter().map(|port| port.datatype.as_str()).collect();
        names.dedup();
        names.join(", ")
    }
}

impl SamplePort {
    /// Returns whether the input can hold the two children of each node of a tree.
    fn takes_children(&self) -> bool {
        matches!(self.datatype, DataType::Int32 | DataType::Int64) && *self.dims == [-1, 2]
    }
}

/// Parameters of request generation.
#[derive(Clone, Debug)]
pub struct Recipe {
    /// Rows of each request.
    pub rows: u32,
    /// Sizes of the varying dimensions; `None` for models without any.
    pub sizes: Option<Sizes>,
    /// Exclusive upper bound of integers, which are drawn from 1. They are often indices, so the model's tables must
    /// have this many entries.
    pub integers_below: u32,
    /// Constant values by input name: texts for BYTES, else numbers. Inputs without an entry are 1 if their name
    /// suggests a mask, and 0 if it suggests token types.
    pub fills: BTreeMap<String, Vec<u8>>,
    /// Dims of inputs without the batch, in place of the model's, by input name.
    pub shapes: BTreeMap<String, Dims>,
    /// Seed of everything that is drawn.
    pub seed: u64,
}

/// One request.
#[derive(Clone, Debug)]
pub struct Sample {
    /// Number of rows.
    pub rows: u32,
    /// Inputs in the model's order; `None` for those that it leaves out.
    pub inputs: Vec<Option<InputTensor>>,
}

/// Reasons why no requests can be generated.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum SampleError {
    /// An input has a varying dimension, but no lengths are given.
    #[error(
        "input '{input}' has a varying dimension: set the length of requests with --workload, --length or --trace, or \
         its dims with --shape"
    )]
    NoLengths {
        /// Name of the input.
        input: String,
    },
    /// Lengths are given, but no dimension varies.
    #[error("no input of the model has a varying dimension or texts: omit --workload and --length")]
    NothingVaries,
    /// A constant is no number.
    #[error("input '{input}' takes {datatype}: expected a number in --fill, but found '{value}'")]
    NoNumber {
        /// Name of the input.
        input: String,
        /// Its element type.
        datatype: DataType,
        /// The constant as given.
        value: String,
    },
    /// More rows than the model's largest batch.
    #[error("the model takes at most {most} rows in a request, but --rows says {rows}")]
    TooManyRows {
        /// Requested rows.
        rows: u32,
        /// Maximum rows of the model.
        most: u32,
    },
    /// The workload consists of trees, but the model does not have exactly one input for their children.
    #[error(
        "the workload gives trees: expected one input of whole numbers [-1, 2] that takes each node's children, but \
         found {found}"
    )]
    NoChildren {
        /// Number of such inputs.
        found: usize,
    },
    /// The given dims are impossible.
    #[error("input '{input}' has the dims {expected:?} without the batch, but --shape says {dims:?}")]
    OtherShape {
        /// Name of the input.
        input: String,
        /// The dims as given.
        dims: Dims,
        /// The dims of the model.
        expected: Dims,
    },
    /// A constant or dims are given for an unknown input.
    #[error("the model has no input '{input}'; it has '{}'", known.join("', '"))]
    UnknownInput {
        /// Name as given.
        input: String,
        /// Names of the model's inputs.
        known: Vec<String>,
    },
    /// An input would be too large.
    #[error("input '{input}' of {rows} rows with {dims:?} elements takes more than {MAX_BYTES} bytes")]
    TooLarge {
        /// Name of the input.
        input: String,
        /// Rows of the request.
        rows: u32,
        /// Dimensions without the batch.
        dims: Dims,
    },
    /// The workload is empty.
    #[error("the workload gives no lengths")]
    NoLength,
}

impl Recipe {
    /// Generates `count` requests, distinct as far as their datatypes allow.
    ///
    /// # Errors
    /// If the recipe does not fit the model.
    pub fn samples(&self, ports: &Ports, count: usize) -> Result<Vec<Sample>, SampleError> {
        let ports = &ports.with_shapes(&self.shapes)?;
        self.check(ports)?;
        let mut random = ChaCha8Rng::seed_from_u64(self.seed);
        let mut sizes = self.sizes.as_ref().map(|sizes| sizes.sampler(self.seed));
        let mut seen = HashSet::new();
        let mut samples = Vec::with_capacity(count);
        for _ in 0..count {
            let size = match &mut sizes {
                Some(sizes) => Some(sizes.next().ok_or(SampleError::NoLength)?),
                None => None,
            };
            let mut sample = self.sample(ports, size.as_ref(), &mut random)?;
            for _ in 1..DRAWS {
                if seen.insert(key(&sample)) {
                    break;
                }
                sample = self.sample(ports, size.as_ref(), &mut random)?;
            }
            samples.push(sample);
        }
        Ok(samples)
    }

    fn check(&self, ports: &Ports) -> Result<(), SampleError> {
        let most = if ports.batched { ports.max_rows } else { 1 };
        if self.rows > most {
            return Err(SampleError::TooManyRows { rows: self.rows, most });
        }
        let known = || ports.inputs.iter().map(|port| port.name.clone()).collect::<Vec<_>>();
        if let Some(input) = self.fills.keys().find(|name| !known().contains(name)) {
            return Err(SampleError::UnknownInput { input: input.clone(), known: known() });
        }
        let sent = || ports.inputs.iter().filter(|port| self.sends(ports, port));
        let number_of = |port: &&SamplePort| port.datatype != DataType::Bytes && self.fills.contains_key(&port.name);
        for port in sent().filter(number_of) {
            let value = &self.fills[&port.name];
            if number(value).is_none() {
                let (input, value) = (port.name.clone(), String::from_utf8_lossy(value).into_owned());
                return Err(SampleError::NoNumber { input, datatype: port.datatype, value });
            }
        }
        let varies = sent().find(|port| port.dims.contains(&-1));
        let has_texts = sent().any(|port| port.datatype == DataType::Bytes);
        match (varies, &self.sizes) {
            (Some(port), None) => Err(SampleError::NoLengths { input: port.name.clone() }),
            (None, Some(_)) if !has_texts => Err(SampleError::NothingVaries),
            (_, Some(Sizes::Trees(_))) => match ports.inputs.iter().filter(|port| port.takes_children()).count() {
                1 => Ok(()),
                found => Err(SampleError::NoChildren { found }),
            },
            _ => Ok(()),
        }
    }

    /// Whether requests have an input. Those that may be left out are, unless there are constants or dims for them;
    /// with no others, the first one is there.
    fn sends(&self, ports: &Ports, port: &SamplePort) -> bool {
        let is_given = |name: &str| self.fills.contains_key(name) || self.shapes.contains_key(name);
        let is_sent = |port: &SamplePort| !port.optional || is_given(&port.name);
        let is_first = || ports.inputs.first() == Some(port) && !ports.inputs.iter().any(is_sent);
        is_sent(port) || is_first()
    }

    fn sample(&self, ports: &Ports, size: Option<&Size>, random: &mut ChaCha8Rng) -> Result<Sample, SampleError> {
        let length = i64::from(size.map_or(1, Size::length));
        let inputs = ports.inputs.iter().map(|port| {
            if !self.sends(ports, port) {
                return Ok(None);
            }
            let dims: Dims = port.dims.iter().map(|&dim| if dim < 0 { length } else { dim }).collect();
            let batch = ports.batched.then_some(i64::from(self.rows));
            let shape: Dims = batch.into_iter().chain(dims.iter().copied()).collect();
            let words = size.filter(|_| !port.dims.contains(&-1)).map_or(0, Size::length);
            let of_text = (words as usize).saturating_mul(8).max(16);
            let element_bytes = port.datatype.size_bytes().unwrap_or(of_text);
            let elements = element_count(&shape).filter(|count| count.saturating_mul(element_bytes) <= MAX_BYTES);
            let elements = elements.ok_or_else(|| {
                let (input, rows) = (port.name.clone(), self.rows);
                SampleError::TooLarge { input, rows, dims: dims.clone() }
            })?;
            let children = size.filter(|_| port.takes_children()).and_then(|size| size.children(port.datatype));
            let data = children.unwrap_or_else(|| {
                let mut data = Vec::with_capacity(elements * element_bytes);
                for _ in 0..elements {
                    self.element(port, words, random, &mut data);
                }
                data
            });
            Ok(Some(InputTensor { shape, data: Bytes::from(data) }))
        });
        Ok(Sample { rows: self.rows, inputs: inputs.collect::<Result<_, _>>()? })
    }

    /// Appends an element; a text has this many words, or is a number without a length.
    fn element(&self, port: &SamplePort, words: u32, random: &mut ChaCha8Rng, data: &mut Vec<u8>) {
        let lower = port.name.to_lowercase();
        let by_name = if lower.contains("mask") {
            Some(1.0)
        } else if lower.contains("type_id") || lower.contains("segment_id") {
            Some(0.0)
        } else {
            None
        };
        let given = self.fills.get(&port.name);
        let is_integer = !matches!(port.datatype, DataType::Fp16 | DataType::Bf16 | DataType::Fp32 | DataType::Fp64);
        let fill = given.and_then(|value| number(value)).or(by_name.filter(|_| is_integer));
        let float = |random: &mut ChaCha8Rng| fill.unwrap_or_else(|| random.random_range(-1.0..1.0));
        match port.datatype {
            DataType::Fp16 => data.extend(half::f16::from_f64(float(random)).to_le_bytes()),
            DataType::Bf16 => data.extend(half::bf16::from_f64(float(random)).to_le_bytes()),
            DataType::Fp32 => data.extend((float(random) as f32).to_le_bytes()),
            DataType::Fp64 => data.extend(float(random).to_le_bytes()),
            DataType::Bool => data.push(fill.map_or_else(|| random.random::<bool>(), |value| value != 0.0).into()),
            DataType::Bytes => {
                let mut word = || WORDS[random.random_range(..WORDS.len())];
                let text = match given {
                    Some(text) => text.clone(),
                    None if words == 0 => random.random::<u32>().to_string().into_bytes(),
                    None => (0..words).map(|_| word()).collect::<Vec<_>>().join(" ").into_bytes(),
                };
                data.extend((text.len() as u32).to_le_bytes());
                data.extend(text);
            }
            integer => {
                let size = integer.size_bytes().unwrap_or(8);
                // Fits an element of one byte, signed or unsigned.
                let below = if size == 1 { self.integers_below.min(127) } else { self.integers_below };
                let value = fill.map_or_else(|| i64::from(random.random_range(1..below.max(2))), |value| value as i64);
                data.extend(&value.to_le_bytes()[..size]);
            }
        }
    }
}

fn number(value: &[u8]) -> Option<f64> {
    std::str::from_utf8(value).ok()?.parse().ok()
}

fn key(sample: &Sample) -> Vec<(Dims, Bytes)> {
    sample.inputs.iter().flatten().map(|input| (input.shape.clone(), input.data.clone())).collect()
}

#[cfg(test)]
mod tests {
    use paternoster_lab::workload::{LengthDistribution, Trees};

    use super::*;

    fn port(name: &str, datatype: DataType, dims: &[i64]) -> SamplePort {
        SamplePort { name: name.to_owned(), datatype, dims: Dims::from_slice(dims), optional: false }
    }

    fn ports(inputs: Vec<SamplePort>) -> Ports {
        Ports { batched: true, max_rows: 8, inputs, outputs: vec![], sequences: false, decoupled: false }
    }

    fn bert() -> Ports {
        let tokens = |name| port(name, DataType::Int64, &[-1]);
        ports(vec![tokens("input_ids"), tokens("attention_mask"), tokens("token_type_ids")])
    }

    fn given(tensor: &Option<InputTensor>) -> &InputTensor {
        tensor.as_ref().expect("it is sent")
    }

    fn recipe() -> Recipe {
        let sizes = Some(Sizes::Lengths(LengthDistribution::Recorded(vec![3, 5])));
        let (fills, shapes) = (BTreeMap::new(), BTreeMap::new());
        Recipe { rows: 2, sizes, integers_below: 50, fills, shapes, seed: 1 }
    }

    fn int64s(tensor: &Option<InputTensor>) -> Vec<i64> {
        given(tensor).data.as_chunks().0.iter().map(|&bytes| i64::from_le_bytes(bytes)).collect()
    }

    #[test]
    fn tokens_are_drawn_and_masks_are_full() {
        let samples = recipe().samples(&bert(), 2).expect("the recipe suits");
        let shapes: Vec<&[i64]> = samples.iter().map(|sample| given(&sample.inputs[0]).shape.as_slice()).collect();
        assert_eq!(shapes, [[2, 3], [2, 5]], "rows by the length of the request");
        assert!(int64s(&samples[1].inputs[0]).iter().all(|token| (1..50).contains(token)));
        assert_eq!(int64s(&samples[0].inputs[1]), [1; 6]);
        assert_eq!(int64s(&samples[0].inputs[2]), [0; 6]);
        let filled = Recipe { fills: [("attention_mask".to_owned(), b"7".to_vec())].into(), ..recipe() };
        assert_eq!(int64s(&filled.samples(&bert(), 1).expect("it suits")[0].inputs[1]), [7; 6]);
    }

    #[test]
    fn trees_come_as_a_token_and_two_children_a_node() {
        let (tokens, children) = (port("tokens", DataType::Int64, &[-1]), port("children", DataType::Int32, &[-1, 2]));
        let recipe = Recipe { rows: 1, sizes: Some(Sizes::Trees(Trees::Halved { leaves: 3 })), ..recipe() };
        let samples = recipe.samples(&ports(vec![tokens.clone(), children.clone()]), 2).expect("the recipe suits");
        let int32s = |tensor: &Option<InputTensor>| -> Vec<i32> {
            given(tensor).data.as_chunks().0.iter().map(|&bytes| i32::from_le_bytes(bytes)).collect()
        };
        for sample in &samples {
            assert_eq!(given(&sample.inputs[0]).shape.as_slice(), [1, 5]);
            assert_eq!(given(&sample.inputs[1]).shape.as_slice(), [1, 5, 2]);
            assert_eq!(int32s(&sample.inputs[1]), [1, 2, -1, -1, 3, 4, -1, -1, -1, -1]);
            assert!(int64s(&sample.inputs[0]).iter().all(|token| (1..50).contains(token)));
        }
        assert_ne!(int64s(&samples[0].inputs[0]), int64s(&samples[1].inputs[0]), "the tokens differ");
        let wide = port("children", DataType::Int64, &[-1, 2]);
        let samples = recipe.samples(&ports(vec![wide]), 1).expect("the recipe suits");
        assert_eq!(int64s(&samples[0].inputs[0]), [1, 2, -1, -1, 3, 4, -1, -1, -1, -1]);
        let refusal =
            |inputs: Vec<SamplePort>| recipe.samples(&ports(inputs), 1).expect_err("it does not suit").to_string();
        let expected = "the workload gives trees: expected one input of whole numbers [-1, 2] that takes each node's \
                        children, but found";
        assert_eq!(refusal(vec![tokens]), format!("{expected} 0"));
        assert_eq!(refusal(vec![children.clone(), children]), format!("{expected} 2"));
    }

    #[test]
    fn the_seed_fixes_requests_and_all_differ() {
        let of = |seed| {
            let samples = Recipe { seed, ..recipe() }.samples(&bert(), 100).expect("the recipe suits");
            samples.iter().map(key).collect::<Vec<_>>()
        };
        assert_eq!(of(1), of(1));
        assert_ne!(of(1), of(2));
        assert_eq!(of(1).into_iter().collect::<HashSet<_>>().len(), 100);
        // Four values in two places make sixteen requests.
        let narrow = Recipe { rows: 1, sizes: None, integers_below: 5, ..recipe() };
        let few = narrow.samples(&ports(vec![port("x", DataType::Int64, &[2])]), 10).expect("the recipe suits");
        assert_eq!(few.iter().map(key).collect::<HashSet<_>>().len(), 10);
    }

    #[test]
    fn every_datatype_has_elements_of_its_size() {
        for datatype in DataType::ALL {
            let recipe = Recipe { rows: 1, sizes: None, ..recipe() };
            let samples = recipe.samples(&ports(vec![port("x", datatype, &[4])]), 1).expect("the recipe suits");
            let bytes = given(&samples[0].inputs[0]).data.len();
            match datatype.size_bytes() {
                Some(size) => assert_eq!(bytes, 4 * size, "{datatype}"),
                None => assert!(bytes > 16, "four strings with their lengths"),
            }
        }
    }

    #[test]
    fn texts_have_words_and_what_may_be_left_out_is() {
        let optional = |name, datatype, dims: &[i64]| SamplePort { optional: true, ..port(name, datatype, dims) };
        let inputs = vec![
            optional("TEXT", DataType::Bytes, &[1]),
            optional("PAIR", DataType::Bytes, &[1]),
            optional("TOKENS", DataType::Int64, &[-1]),
        ];
        let texts = |recipe: Recipe| {
            let samples = recipe.samples(&ports(inputs.clone()), 2)?;
            let read = |tensor: &InputTensor| String::from_utf8(tensor.data[4..].to_vec()).expect("UTF-8");
            let of_sample = |sample: &Sample| sample.inputs.iter().map(|input| input.as_ref().map(read)).collect();
            Ok::<_, SampleError>(samples.iter().map(of_sample).collect::<Vec<Vec<Option<String>>>>())
        };
        let one = Recipe { rows: 1, ..recipe() };
        let drawn = texts(one.clone()).expect("it suits");
        let words: Vec<usize> = drawn.iter().map(|sample| sample[0].as_ref().expect("it").split(' ').count()).collect();
        assert_eq!(words, [3, 5], "a word for each unit of length");
        assert!(drawn.iter().all(|sample| sample[1].is_none() && sample[2].is_none()));
        let fills = [("PAIR".to_owned(), b"a = b".to_vec())].into();
        let filled = texts(Recipe { fills, sizes: None, ..one.clone() }).expect("it suits");
        assert_eq!(filled[0], [None, Some("a = b".to_owned()), None], "what is given is enough");
        let fills = [("TOKENS".to_owned(), b"many".to_vec())].into();
        let refused = texts(Recipe { fills, ..one }).expect_err("no number").to_string();
        assert_eq!(refused, "input 'TOKENS' takes INT64: expected a number in --fill, but found 'many'");
    }

    #[test]
    fn dims_may_be_given_for_each_input() {
        let model = ports(vec![port("x", DataType::Fp32, &[-1, 4]), port("y", DataType::Fp32, &[-1])]);
        let shaped = |shapes: &[(&str, &[i64])]| {
            let shapes = shapes.iter().map(|(name, dims)| ((*name).to_owned(), Dims::from_slice(dims))).collect();
            Recipe { sizes: None, shapes, ..recipe() }.samples(&model, 1)
        };
        let samples = shaped(&[("x", &[3, 4]), ("y", &[7])]).expect("they fit");
        let shapes: Vec<&[i64]> = samples[0].inputs.iter().map(|input| given(input).shape.as_slice()).collect();
        assert_eq!(shapes, [&[2, 3, 4][..], &[2, 7]]);
        let partly = shaped(&[("x", &[3, 4])]).expect_err("y varies");
        assert_eq!(partly, SampleError::NoLengths { input: "y".to_owned() });
        for wrong in [&[3, 5][..], &[3], &[3, 4, 1]] {
            let refused = shaped(&[("x", wrong), ("y", &[7])]).expect_err("they do not fit").to_string();
            let expected = "input 'x' has the dims [-1, 4] without the batch, but --shape says [";
            assert!(refused.starts_with(expected), "{refused}");
        }
        assert!(matches!(shaped(&[("z", &[1])]), Err(SampleError::UnknownInput { .. })));
    }

    #[test]
    fn a_recipe_that_does_not_suit_the_model_is_refused() {
        let fixed = ports(vec![port("x", DataType::Fp32, &[4])]);
        let refusal = |recipe: Recipe, ports: &Ports| recipe.samples(ports, 1).expect_err("it does not suit");
        let without = Recipe { sizes: None, ..recipe() };
        assert_eq!(refusal(without.clone(), &bert()), SampleError::NoLengths { input: "input_ids".to_owned() });
        assert_eq!(refusal(recipe(), &fixed), SampleError::NothingVaries);
        assert_eq!(refusal(Recipe { rows: 9, ..recipe() }, &bert()), SampleError::TooManyRows { rows: 9, most: 8 });
        let unknown = refusal(Recipe { fills: [("z".to_owned(), b"1".to_vec())].into(), ..without }, &fixed);
        assert!(matches!(unknown, SampleError::UnknownInput { .. }), "{unknown}");
        let huge = Recipe { sizes: Some(Sizes::Lengths(LengthDistribution::Fixed(u32::MAX))), ..recipe() };
        assert!(matches!(refusal(huge, &bert()), SampleError::TooLarge { .. }));
        let none = Recipe { sizes: Some(Sizes::Lengths(LengthDistribution::Recorded(vec![]))), ..recipe() };
        assert_eq!(refusal(none, &bert()), SampleError::NoLength);
    }
}
