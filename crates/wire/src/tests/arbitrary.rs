//! Request generators for fuzzing: valid requests of every form, most of them damaged somewhere.

use bytes::Bytes;
use paternoster_model::{DataType, ModelSpec, TensorSpec, element_count};
use proptest::{collection::vec, option, prelude::*, sample::select};

use crate::pb::{
    InferParameter, InferTensorContents, ModelInferRequest,
    infer_parameter::ParameterChoice,
    model_infer_request::{InferInputTensor, InferRequestedOutputTensor},
};

const TENSOR_KEYS: &[&str] =
    &["classification", "shared_memory_region", "shared_memory_byte_size", "shared_memory_offset", "binary_data"];
const REQUEST_KEYS: &[&str] = &[
    "sequence_id",
    "sequence_start",
    "sequence_end",
    "priority",
    "timeout",
    "triton_enable_empty_final_response",
    "triton_other",
];

/// Parameters by key.
type Parameters = Vec<(String, InferParameter)>;

/// Form of a valid request: rows, the length of variable dimensions, whether contents are typed, and whether optional
/// inputs are present.
#[derive(Clone, Copy, Debug)]
struct Form {
    rows: i64,
    length: i64,
    typed: bool,
    complete: bool,
}

/// A change to one input of a valid request.
#[derive(Clone, Debug)]
enum Damage {
    Name(String),
    Datatype(DataType),
    Shape(Vec<i64>),
    Parameters(Parameters),
    Contents(InferTensorContents),
    Payload(Vec<u8>),
    Repeated,
    Removed,
}

/// Creates a valid request for the model: every input present and raw, one row, lengths of 3.
pub(crate) fn valid(spec: &ModelSpec) -> ModelInferRequest {
    build(spec, Form { rows: 1, length: 3, typed: false, complete: true })
}

/// Generates requests for the model, valid or damaged.
pub(crate) fn request(spec: ModelSpec) -> impl Strategy<Value = (ModelInferRequest, ModelSpec)> {
    let form = (1..4_i64, 0..4_i64, any::<bool>(), any::<bool>()).prop_map(|(rows, length, typed, complete)| Form {
        rows,
        length,
        typed,
        complete,
    });
    let damages = prop_oneof![
        3 => Just(Vec::new()),
        2 => vec((any::<prop::sample::Index>(), damage()), 1..3),
    ];
    let outputs: Vec<String> = spec.outputs.iter().map(|tensor| tensor.name.clone()).collect();
    let name = prop_oneof![19 => select(outputs), 1 => "[A-Z0-9]{0,4}"];
    let classes = (1..4_i64).prop_map(|count| vec![("classification".to_owned(), int64(count))]);
    let parameters_of_output = prop_oneof![8 => Just(Vec::new()), 4 => classes, 1 => parameters(TENSOR_KEYS)];
    let output = (name, parameters_of_output).prop_map(|(name, parameters)| InferRequestedOutputTensor {
        name,
        parameters: parameters.into_iter().collect(),
    });
    let outputs = prop_oneof![Just(Vec::new()), vec(output, 0..4)];
    let parameters_of_request = prop_oneof![5 => Just(Vec::new()), 1 => parameters(REQUEST_KEYS)];
    (form, damages, outputs, parameters_of_request).prop_map(move |(form, damages, outputs, parameters)| {
        let mut request = build(&spec, form);
        for (index, damage) in damages {
            if !request.inputs.is_empty() {
                let index = index.index(request.inputs.len());
                apply(damage, index, &mut request);
            }
        }
        request.outputs = outputs;
        request.parameters = parameters.into_iter().collect();
        (request, spec.clone())
    })
}

fn build(spec: &ModelSpec, form: Form) -> ModelInferRequest {
    let mut request = ModelInferRequest::default();
    for tensor in spec.inputs.iter().filter(|tensor| form.complete || !tensor.optional) {
        let batch = spec.has_batch_axis().then_some(form.rows);
        let dims = tensor.dims.iter().map(|dim| if *dim < 0 { form.length } else { *dim });
        let shape: Vec<i64> = batch.into_iter().chain(dims).collect();
        let elements = element_count(&shape).expect("a small shape");
        let contents = form.typed.then(|| zeros(tensor, elements));
        if !form.typed {
            // An empty string is four zero bytes.
            request.raw_input_contents.push(vec![0; elements * tensor.datatype.size_bytes().unwrap_or(4)].into());
        }
        let (name, datatype) = (tensor.name.clone(), tensor.datatype.as_str().to_owned());
        request.inputs.push(InferInputTensor { name, datatype, shape, contents, ..InferInputTensor::default() });
    }
    request
}

fn zeros(tensor: &TensorSpec, count: usize) -> InferTensorContents {
    let none = InferTensorContents::default();
    match tensor.datatype {
        DataType::Bool => InferTensorContents { bool_contents: vec![false; count], ..none },
        DataType::Int8 | DataType::Int16 | DataType::Int32 => {
            InferTensorContents { int_contents: vec![0; count], ..none }
        }
        DataType::Int64 => InferTensorContents { int64_contents: vec![0; count], ..none },
        DataType::Uint8 | DataType::Uint16 | DataType::Uint32 => {
            InferTensorContents { uint_contents: vec![0; count], ..none }
        }
        DataType::Uint64 => InferTensorContents { uint64_contents: vec![0; count], ..none },
        DataType::Fp32 => InferTensorContents { fp32_contents: vec![0.0; count], ..none },
        DataType::Fp64 => InferTensorContents { fp64_contents: vec![0.0; count], ..none },
        DataType::Bytes => InferTensorContents { bytes_contents: vec![Bytes::new(); count], ..none },
        DataType::Fp16 | DataType::Bf16 => none,
    }
}

fn apply(damage: Damage, index: usize, request: &mut ModelInferRequest) {
    let input = &mut request.inputs[index];
    match damage {
        Damage::Name(name) => input.name = name,
        Damage::Datatype(datatype) => input.datatype = datatype.as_str().to_owned(),
        Damage::Shape(shape) => input.shape = shape,
        Damage::Parameters(parameters) => input.parameters = parameters.into_iter().collect(),
        Damage::Contents(contents) => input.contents = Some(contents),
        Damage::Payload(payload) => {
            if let Some(raw) = request.raw_input_contents.get_mut(index) {
                *raw = payload.into();
            }
        }
        Damage::Repeated => {
            let again = input.clone();
            request.inputs.push(again);
        }
        Damage::Removed => {
            request.inputs.remove(index);
        }
    }
}

fn damage() -> impl Strategy<Value = Damage> {
    prop_oneof![
        1 => "[A-Z0-9]{0,4}".prop_map(Damage::Name),
        1 => select(DataType::ALL.to_vec()).prop_map(Damage::Datatype),
        4 => shape().prop_map(Damage::Shape),
        2 => parameters(TENSOR_KEYS).prop_map(Damage::Parameters),
        3 => contents().prop_map(Damage::Contents),
        3 => payload().prop_map(Damage::Payload),
        1 => Just(Damage::Repeated),
        1 => Just(Damage::Removed),
    ]
}

fn shape() -> impl Strategy<Value = Vec<i64>> {
    let dim = prop_oneof![
        6 => 0..4_i64,
        2 => Just(16),
        2 => select(vec![-1, i64::MIN, i64::MAX, 1 << 31, 1 << 32, 1 << 62, 65]),
    ];
    vec(dim, 0..5)
}

fn parameters(keys: &'static [&'static str]) -> impl Strategy<Value = Parameters> {
    let value = prop_oneof![
        any::<bool>().prop_map(ParameterChoice::BoolParam),
        prop_oneof![-2..3_i64, any::<i64>()].prop_map(ParameterChoice::Int64Param),
        any::<u64>().prop_map(ParameterChoice::Uint64Param),
        any::<f64>().prop_map(ParameterChoice::DoubleParam),
        "[a-z]{0,3}".prop_map(ParameterChoice::StringParam),
    ];
    let parameter = option::weighted(0.9, value).prop_map(|parameter_choice| InferParameter { parameter_choice });
    let key = prop_oneof![2 => select(keys).prop_map(str::to_owned), 1 => "[a-z_]{0,8}"];
    vec((key, parameter), 1..3)
}

fn int64(value: i64) -> InferParameter {
    InferParameter { parameter_choice: Some(ParameterChoice::Int64Param(value)) }
}

fn contents() -> impl Strategy<Value = InferTensorContents> {
    let size = || prop_oneof![6 => Just(0..1_usize), 1 => Just(0..4), 1 => Just(16..17)];
    let fields = (
        size().prop_flat_map(|size| vec(any::<bool>(), size)),
        size().prop_flat_map(|size| vec(prop_oneof![-2..3_i32, any::<i32>()], size)),
        size().prop_flat_map(|size| vec(any::<i64>(), size)),
        size().prop_flat_map(|size| vec(prop_oneof![0..3_u32, any::<u32>()], size)),
        size().prop_flat_map(|size| vec(any::<u64>(), size)),
        size().prop_flat_map(|size| vec(any::<f32>(), size)),
        size().prop_flat_map(|size| vec(any::<f64>(), size)),
        size().prop_flat_map(|size| vec(vec(any::<u8>(), 0..4), size)),
    );
    fields.prop_map(|(bools, ints, int64s, uints, uint64s, fp32s, fp64s, strings)| InferTensorContents {
        bool_contents: bools,
        int_contents: ints,
        int64_contents: int64s,
        uint_contents: uints,
        uint64_contents: uint64s,
        fp32_contents: fp32s,
        fp64_contents: fp64s,
        bytes_contents: strings.into_iter().map(Into::into).collect(),
    })
}

fn payload() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        select(vec![0_usize, 1, 2, 4, 8, 16, 24, 64, 128]).prop_map(|size| vec![0; size]),
        vec(0..3_u8, 0..24),
        vec(any::<u8>(), 0..24),
    ]
}
