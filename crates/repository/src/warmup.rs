//! Builds the inputs of the warm-up requests in `model_warmup`, and random inputs for measurements.

use std::{fmt, path::Path};

use bytes::Bytes;
use paternoster_config::{
    model_config,
    pb::{self, model_warmup::input::InputDataType},
    sequences,
};
use paternoster_model::{DataType, Dims, InputTensor, ModelSpec, element_count};
use paternoster_observe::budget::Reservation;
use paternoster_profile::MeasuredSize;
use tracing::info;

use super::{LoadAttempt, LoadError, LoadErrorKind, LoadPlace, WarmupSample, attempt::grow, bounded_file::read_up_to};

/// Most bytes of all warm-up inputs of a version, and of each input of a measurement.
const MAX_BYTES: usize = 1 << 30;

/// Length, in a measurement, of a dimension that varies but is not padded.
pub const OPEN_LENGTH: i64 = 64;

/// Directory within the model's directory that has the files of warm-up inputs.
const DIRECTORY: &str = "warmup";

/// Builds the samples of a configuration whose samples have been checked against its inputs.
///
/// # Errors
/// Fails if the samples exceed 1 GiB together or what is left for models that clients send, or if a file is missing or
/// has the wrong size.
pub(super) fn samples(
    config: &pb::ModelConfig,
    spec: &ModelSpec,
    directory: Option<&Path>,
    attempt: &LoadAttempt,
) -> Result<Vec<WarmupSample>, LoadError> {
    samples_within(config, spec, (directory, attempt), MAX_BYTES)
}

fn samples_within(
    config: &pb::ModelConfig,
    spec: &ModelSpec,
    (directory, attempt): (Option<&Path>, &LoadAttempt),
    mut bytes_left: usize,
) -> Result<Vec<WarmupSample>, LoadError> {
    let mut samples = Vec::with_capacity(config.model_warmup.len());
    for (number, warmup) in config.model_warmup.iter().enumerate() {
        let rows = warmup.batch_size;
        if rows == 0 {
            // As in Triton.
            info!(model = spec.name, sample = warmup.name, "warm-up sample of batch size 0 is skipped");
            continue;
        }
        let place = |input: &str| LoadPlace::SampleInput { sample: warmup.name.clone(), input: input.to_owned() };
        let (mut inputs, mut memory) = (Vec::with_capacity(spec.inputs.len()), Vec::new());
        for (index, tensor) in spec.inputs.iter().enumerate() {
            let Some(input) = warmup.inputs.get(&tensor.name) else {
                inputs.push(None);
                continue;
            };
            let seed = ((number as u64) << 32) | index as u64;
            let source = Source { input, directory, attempt, seed, bytes_left };
            let batch = spec.has_batch_axis().then_some(rows);
            let (built, held) =
                input_tensor(tensor.datatype, batch, &source).map_err(|fault| fault.within(place(&tensor.name)))?;
            bytes_left = bytes_left.saturating_sub(built.data.len());
            memory.extend(held);
            inputs.push(Some(built));
        }
        let mut program_inputs = Vec::new();
        for (index, name) in sequences::inputs(config).enumerate() {
            let Some(input) = warmup.inputs.get(name) else { continue };
            let seed = ((number as u64) << 32) | (spec.inputs.len() + index) as u64;
            let source = Source { input, directory, attempt, seed, bytes_left };
            let datatype = sequences::datatype_of(config, name)
                .ok_or_else(|| LoadError::settings(format!("'{name}' has no datatype")));
            let (built, held) = datatype
                .and_then(|datatype| input_tensor(datatype, None, &source))
                .map_err(|fault| fault.within(place(name)))?;
            bytes_left = bytes_left.saturating_sub(built.data.len());
            memory.extend(held);
            program_inputs.push((name.to_owned(), built));
        }
        let (name, count) = (warmup.name.clone(), warmup.count.max(1));
        samples.push(WarmupSample { name, count, inputs, program_inputs, rows, memory: memory.into() });
    }
    Ok(samples)
}

/// Builds random inputs of a batch to measure, including the optional ones. Dimensions that vary without being padded
/// have length 64.
///
/// # Errors
/// Fails if an input would exceed 1 GiB.
pub(super) fn random_inputs(spec: &ModelSpec, size: MeasuredSize) -> Result<Vec<Option<InputTensor>>, LoadError> {
    let inputs = spec.inputs.iter().enumerate().map(|(index, tensor)| {
        let dims = tensor.dims.iter().enumerate().map(|(axis, &dim)| match dim {
            _ if tensor.is_open(axis) => OPEN_LENGTH,
            dim if dim < 0 => i64::from(size.length),
            dim => dim,
        });
        let mut shape: Dims = spec.has_batch_axis().then_some(i64::from(size.rows)).into_iter().collect();
        shape.extend(dims);
        let fits = |elements: &usize| *elements <= MAX_BYTES / tensor.datatype.size_bytes().unwrap_or(8);
        let elements = element_count(&shape).filter(fits);
        let elements = elements.ok_or_else(|| {
            let message = format!("input '{}' of shape {shape:?} is too large", tensor.name);
            LoadError::new(LoadErrorKind::Limit, message)
        })?;
        Ok(Some(InputTensor { shape, data: Bytes::from(random(tensor.datatype, elements, index as u64)) }))
    });
    inputs.collect()
}

/// Where the data of one warm-up input come from.
struct Source<'a> {
    input: &'a pb::model_warmup::Input,
    directory: Option<&'a Path>,
    attempt: &'a LoadAttempt,
    seed: u64,
    bytes_left: usize,
}

/// Builds an input: `batch` rows along a batch axis, or one row without that axis. Its memory is reserved first.
fn input_tensor(
    datatype: DataType,
    batch: Option<u32>,
    source: &Source<'_>,
) -> Result<(InputTensor, Option<Reservation>), LoadError> {
    let Source { input, directory, attempt, seed, bytes_left } = *source;
    if model_config::datatype(input.data_type) != Some(datatype) {
        return Err(LoadError::settings(format!("expected the datatype {datatype}")));
    }
    let rows = batch.unwrap_or(1);
    // A BYTES element takes at least the four bytes of its length.
    let size = datatype.size_bytes().unwrap_or(4);
    let elements = element_count(&input.dims);
    let row_bytes = elements.and_then(|count| count.checked_mul(size));
    let fits = row_bytes.and_then(|bytes| bytes.checked_mul(rows as usize)).is_some_and(|total| total <= bytes_left);
    let (Some(elements), Some(row_bytes), true) = (elements, row_bytes, fits) else {
        return Err(too_large(rows, format_args!("dims {:?}", input.dims), bytes_left));
    };
    // The row, and its repetitions.
    let row_length = match &input.input_data_type {
        Some(InputDataType::RandomData(_)) if datatype == DataType::Bytes => row_bytes.saturating_mul(2),
        _ => row_bytes,
    };
    let mut held = attempt.reserve(row_length.saturating_mul(rows as usize + 1))?;
    let row = match &input.input_data_type {
        None | Some(InputDataType::ZeroData(_)) => vec![0; row_bytes],
        Some(InputDataType::RandomData(_)) => random(datatype, elements, seed),
        Some(InputDataType::InputDataFile(name)) => {
            let Some(directory) = directory else {
                return Err(LoadError::files("a model without a directory has no files"));
            };
            let row = read_up_to(&directory.join(DIRECTORY).join(name), bytes_left as u64)?;
            // Files of BYTES have more than the length of each element.
            if let Some(held) = &mut held {
                grow(held, row.len().saturating_mul(rows as usize + 1).saturating_sub(held.amount()))?;
            }
            check_row(datatype, &row, elements, row_bytes)?;
            row
        }
    };
    if row.len().checked_mul(rows as usize).is_none_or(|total| total > bytes_left) {
        return Err(too_large(rows, format_args!("{} bytes", row.len()), bytes_left));
    }
    let mut shape = Dims::new();
    shape.extend(batch.map(i64::from));
    shape.extend_from_slice(&input.dims);
    let data = Bytes::from(row.repeat(rows as usize));
    if let Some(held) = &mut held {
        held.shrink_to(data.len());
    }
    Ok((InputTensor { shape, data }, held))
}

fn too_large(rows: u32, of: fmt::Arguments<'_>, bytes_left: usize) -> LoadError {
    let message = format!("{rows} rows of {of} take more than the {bytes_left} bytes left for warm-up");
    LoadError::new(LoadErrorKind::Limit, message)
}

fn check_row(datatype: DataType, row: &[u8], elements: usize, row_bytes: usize) -> Result<(), LoadError> {
    if datatype != DataType::Bytes {
        let found = row.len();
        let fault = || format!("expected a file of {row_bytes} bytes (one row), but it has {found}");
        return if found == row_bytes { Ok(()) } else { Err(LoadError::files(fault())) };
    }
    let mut rest = row;
    let mut found = 0_usize;
    while let Some((length, tail)) = rest.split_first_chunk::<4>() {
        let length = u32::from_le_bytes(*length) as usize;
        let Some(next) = tail.get(length..) else { break };
        rest = next;
        found += 1;
    }
    let fault = || format!("expected a file of {elements} length-prefixed elements (one row), but it has {found}");
    if rest.is_empty() && found == elements { Ok(()) } else { Err(LoadError::files(fault())) }
}

/// Returns random elements that are the same at every load: floats in [0, 1), integers and BOOL 0 or 1, BYTES of four
/// letters. 0 and 1 are valid indices whatever the model looks up with them.
#[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation)]
fn random(datatype: DataType, elements: usize, seed: u64) -> Vec<u8> {
    let mut state = seed;
    let mut data = Vec::new();
    for _ in 0..elements {
        let bits = splitmix64(&mut state);
        let fraction = (bits >> 40) as f32 / (1_u32 << 24) as f32;
        let bit = (bits & 1) as u8;
        match datatype {
            DataType::Fp16 => data.extend(half::f16::from_f32(fraction * 0.5).to_le_bytes()),
            DataType::Bf16 => data.extend(half::bf16::from_f32(fraction * 0.5).to_le_bytes()),
            DataType::Fp32 => data.extend(fraction.to_le_bytes()),
            DataType::Fp64 => data.extend(f64::from(fraction).to_le_bytes()),
            DataType::Bytes => {
                data.extend(4_u32.to_le_bytes());
                data.extend([0, 16, 32, 48].map(|shift| b'a' + ((bits >> shift) % 26) as u8));
            }
            integer => {
                data.push(bit);
                data.resize(data.len() + integer.size_bytes().map_or(0, |size| size - 1), 0);
            }
        }
    }
    data
}

/// The SplitMix64 generator of Steele, Lea and Flood, "Fast splittable pseudorandom number generators" (OOPSLA 2014).
fn splitmix64(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut bits = *state;
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

#[cfg(test)]
pub(crate) mod tests {
    use paternoster_model::TensorSpec;
    use paternoster_observe::budget::Budget;

    use super::*;
    use crate::{LoadErrorKind, tests::refusals::Refusals};

    fn spec(datatype: DataType, dims: &[i64], max_batch_size: u32) -> ModelSpec {
        ModelSpec {
            name: "m".to_owned(),
            version: 1,
            max_batch_size,
            inputs: vec![TensorSpec::new("x", datatype, dims)],
            outputs: Vec::new(),
            symbols: Vec::new(),
            decoupled: false,
        }
    }

    fn config(datatype: DataType, dims: &[i64], data: InputDataType, batch_size: u32) -> pb::ModelConfig {
        let input = pb::model_warmup::Input {
            data_type: model_config::datatype_to_pb(datatype).into(),
            dims: dims.to_vec(),
            input_data_type: Some(data),
        };
        let warmup = pb::ModelWarmup {
            name: "first".to_owned(),
            batch_size,
            inputs: [("x".to_owned(), input)].into(),
            count: 0,
        };
        pb::ModelConfig { model_warmup: vec![warmup], ..Default::default() }
    }

    fn only(samples: &[WarmupSample]) -> &InputTensor {
        samples[0].inputs[0].as_ref().expect("the input is there")
    }

    #[test]
    fn zero_and_random_rows_have_the_shape_of_the_batch() {
        let spec = spec(DataType::Int64, &[-1], 8);
        let zero = samples(
            &config(DataType::Int64, &[3], InputDataType::ZeroData(true), 2),
            &spec,
            None,
            &LoadAttempt::of_repository(),
        )
        .unwrap();
        assert_eq!((zero[0].rows, zero[0].count), (2, 1), "a count of 0 is one run");
        assert_eq!(only(&zero).shape.as_slice(), [2, 3]);
        assert_eq!(only(&zero).data, vec![0; 48]);

        let random = config(DataType::Int64, &[64], InputDataType::RandomData(true), 1);
        let first = samples(&random, &spec, None, &LoadAttempt::of_repository()).unwrap();
        let again = samples(&random, &spec, None, &LoadAttempt::of_repository()).unwrap();
        assert_eq!(only(&first).data, only(&again).data, "the same at every load");
        let values = only(&first).data.chunks(8).map(|bytes| i64::from_le_bytes(bytes.try_into().unwrap()));
        assert!(values.clone().all(|value| value == 0 || value == 1) && values.clone().any(|value| value == 1));
    }

    #[test]
    fn what_the_program_reads_beside_the_models_inputs_is_one_row_without_the_batch() {
        let spec = spec(DataType::Fp32, &[2], 8);
        let mut config = config(DataType::Fp32, &[2], InputDataType::ZeroData(true), 3);
        let control = pb::model_sequence_batching::Control {
            kind: pb::model_sequence_batching::control::Kind::ControlSequenceReady.into(),
            int32_false_true: vec![0, 1],
            ..Default::default()
        };
        let ready = pb::model_sequence_batching::ControlInput { name: "READY".to_owned(), control: vec![control] };
        let batching = pb::ModelSequenceBatching { control_input: vec![ready], ..Default::default() };
        config.scheduling_choice = Some(pb::model_config::SchedulingChoice::SequenceBatching(batching));
        let given = pb::model_warmup::Input {
            data_type: model_config::datatype_to_pb(DataType::Int32).into(),
            dims: vec![1],
            input_data_type: Some(InputDataType::ZeroData(true)),
        };
        config.model_warmup[0].inputs.insert("READY".to_owned(), given);
        let built = samples(&config, &spec, None, &LoadAttempt::of_repository()).unwrap();
        assert_eq!((built[0].rows, only(&built).shape.as_slice()), (3, &[3_i64, 2][..]));
        let (name, row) = &built[0].program_inputs[0];
        assert_eq!((name.as_str(), row.shape.as_slice(), row.data.as_ref()), ("READY", &[1_i64][..], &[0_u8; 4][..]));
    }

    #[test]
    fn a_sample_of_batch_size_0_is_skipped_as_on_triton() {
        let spec = spec(DataType::Fp32, &[2], 8);
        let built = samples(
            &config(DataType::Fp32, &[2], InputDataType::ZeroData(true), 0),
            &spec,
            None,
            &LoadAttempt::of_repository(),
        )
        .unwrap();
        assert!(built.is_empty());
    }

    #[test]
    fn random_floats_are_fractions() {
        let spec = spec(DataType::Fp32, &[1000], 0);
        let built = samples(
            &config(DataType::Fp32, &[1000], InputDataType::RandomData(true), 1),
            &spec,
            None,
            &LoadAttempt::of_repository(),
        )
        .unwrap();
        assert_eq!(only(&built).shape.as_slice(), [1000], "no batch axis");
        let values = only(&built).data.chunks(4).map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap()));
        assert!(values.clone().all(|value| (0.0..1.0).contains(&value)));
        assert!(values.clone().any(|value| value > 0.9) && values.clone().any(|value| value < 0.1));
    }

    #[test]
    fn a_file_holds_one_row_and_is_repeated() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir(directory.path().join("warmup")).unwrap();
        std::fs::write(directory.path().join("warmup/row"), [1, 2, 3]).unwrap();
        let spec = spec(DataType::Uint8, &[3], 4);
        let file = |name: &str| config(DataType::Uint8, &[3], InputDataType::InputDataFile(name.to_owned()), 2);
        let built = samples(&file("row"), &spec, Some(directory.path()), &LoadAttempt::of_repository()).unwrap();
        assert_eq!(only(&built).data.as_ref(), [1, 2, 3, 1, 2, 3]);

        std::fs::write(directory.path().join("warmup/short"), [1, 2]).unwrap();
        let refused =
            samples(&file("short"), &spec, Some(directory.path()), &LoadAttempt::of_repository()).unwrap_err();
        let place = LoadPlace::SampleInput { sample: "first".to_owned(), input: "x".to_owned() };
        assert_eq!(refused.place(), Some(&place));
        assert!(samples(&file("missing"), &spec, Some(directory.path()), &LoadAttempt::of_repository()).is_err());
    }

    #[test]
    fn a_file_of_bytes_must_hold_whole_elements() {
        let row = [1, 0, 0, 0, b'a', 0, 0, 0, 0];
        assert_eq!(check_row(DataType::Bytes, &row, 2, 8), Ok(()));
        assert!(check_row(DataType::Bytes, &row, 3, 8).is_err());
        assert!(check_row(DataType::Bytes, &row[..6], 2, 8).is_err());
    }

    #[test]
    fn many_samples_together_are_bounded_as_one_is() {
        let spec = spec(DataType::Fp64, &[4], 8);
        let attempt = LoadAttempt::of_repository();
        let mut config = config(DataType::Fp64, &[4], InputDataType::ZeroData(true), 2);
        assert!(samples_within(&config, &spec, (None, &attempt), 127).is_ok());
        config.model_warmup.push(config.model_warmup[0].clone());
        assert!(samples_within(&config, &spec, (None, &attempt), 127).is_err());
        assert!(samples_within(&config, &spec, (None, &attempt), 128).is_ok());
    }

    pub(crate) fn refusals(all: &mut Refusals) {
        all.title("samples that take too much");
        let kind = Some(LoadErrorKind::Limit);
        let attempt = LoadAttempt::of_repository();
        let huge = config(DataType::Fp64, &[i64::MAX, 2], InputDataType::ZeroData(true), 1);
        let found = samples(&huge, &spec(DataType::Fp64, &[-1, -1], 8), None, &attempt);
        all.add(kind, "one of 2^64 numbers", found);
        let spec = spec(DataType::Fp64, &[4], 8);
        let mut two = config(DataType::Fp64, &[4], InputDataType::ZeroData(true), 2);
        two.model_warmup.push(two.model_warmup[0].clone());
        let given = config(DataType::Fp64, &[4], InputDataType::ZeroData(true), 2);
        all.add(kind, "two of 64 bytes, of 127 that there are", samples_within(&two, &spec, (None, &attempt), 127));
        let budget = Budget::of(96);
        let client = || samples(&given, &spec, None, &LoadAttempt::of_client(&budget));
        let built = client().expect("the budget has room for one");
        all.add(kind, "a second one of 64 bytes, of 96 for clients", client());
        drop(built);
        all.title("samples of a file");
        let row = |bytes: &[u8], elements| check_row(DataType::Bytes, bytes, elements, 8);
        let kind = Some(LoadErrorKind::Files);
        all.add(kind, "two bytes in a file of three", check_row(DataType::Uint8, &[1, 2], 3, 3));
        all.add(kind, "three strings in a file of two", row(&[1, 0, 0, 0, b'a', 0, 0, 0, 0], 3));
        all.add(kind, "two strings, the second cut off", row(&[1, 0, 0, 0, b'a', 0], 2));
    }

    #[test]
    fn samples_of_a_client_take_from_its_budget_before_they_are_built() {
        let spec = spec(DataType::Fp64, &[4], 8);
        let given = config(DataType::Fp64, &[4], InputDataType::ZeroData(true), 2);
        let budget = Budget::of(96);
        let built = samples(&given, &spec, None, &LoadAttempt::of_client(&budget)).unwrap();
        assert_eq!(budget.used(), 64, "two rows of four elements");
        let refused = samples(&given, &spec, None, &LoadAttempt::of_client(&budget)).unwrap_err();
        assert_eq!(refused.kind(), LoadErrorKind::Limit);
        drop(built);
        assert_eq!(budget.used(), 0);
    }
}
