//! Parameters of requests and tensors. Types are strict, as the protocol defines them; unknown keys are ignored.

use std::{collections::HashMap, time::Duration};

use paternoster_model::{CorrelationId, InSequence};

use super::super::{
    SharedMemory,
    fault::{Fault, TensorFault},
    pb::{InferParameter, infer_parameter::ParameterChoice},
    shared_memory::RegionSlice,
};

/// Asks for a final response, which may be without outputs.
pub const EMPTY_FINAL_RESPONSE: &str = "triton_enable_empty_final_response";
const REGION: &str = "shared_memory_region";
const BYTE_SIZE: &str = "shared_memory_byte_size";
const OFFSET: &str = "shared_memory_offset";

/// Parameters by key, as in the messages.
pub(super) type Parameters = HashMap<String, InferParameter>;

/// The parameters of a request.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct RequestParameters {
    pub priority: u64,
    pub queue_timeout: Option<Duration>,
    pub enable_empty_final_response: bool,
    /// `None` unless the id is a number above 0 or a non-empty string.
    pub sequence: Option<InSequence>,
}

/// Reads the parameters of a request.
pub(super) fn request(parameters: &Parameters) -> Result<RequestParameters, Fault> {
    let mut read = RequestParameters::default();
    let (mut id, mut starts, mut ends) = (None, false, false);
    for (key, parameter) in parameters {
        let value = parameter.parameter_choice.as_ref();
        let wrong_type = |expected| Fault::ParameterType { key: key.clone(), expected };
        let negative = |got| Fault::ParameterNegative { key: key.clone(), got };
        match key.as_str() {
            "sequence_id" => match value {
                Some(&ParameterChoice::Int64Param(0)) => {}
                Some(&ParameterChoice::Int64Param(number)) => id = Some(CorrelationId::Number(number.cast_unsigned())),
                Some(ParameterChoice::StringParam(text)) if text.is_empty() => {}
                Some(ParameterChoice::StringParam(text)) => id = Some(CorrelationId::Text(text.as_str().into())),
                _ => return Err(wrong_type("int64_param or string_param")),
            },
            "sequence_start" => starts = flag(value).ok_or_else(|| wrong_type("bool_param"))?,
            "sequence_end" => ends = flag(value).ok_or_else(|| wrong_type("bool_param"))?,
            "priority" => {
                read.priority = match value {
                    Some(ParameterChoice::Uint64Param(priority)) => *priority,
                    Some(&ParameterChoice::Int64Param(given)) => given.try_into().map_err(|_| negative(given))?,
                    _ => return Err(wrong_type("int64_param or uint64_param")),
                };
            }
            "timeout" => {
                let Some(&ParameterChoice::Int64Param(given)) = value else {
                    return Err(wrong_type("int64_param"));
                };
                // Triton reads the value as unsigned, so a negative timeout is longer than any timeout of a queue
                // policy.
                let timeout_us = u64::try_from(given).unwrap_or(0);
                read.queue_timeout = (timeout_us > 0).then(|| Duration::from_micros(timeout_us));
            }
            EMPTY_FINAL_RESPONSE => {
                read.enable_empty_final_response = flag(value).ok_or_else(|| wrong_type("bool_param"))?;
            }
            reserved if reserved.starts_with("triton_") => {
                return Err(Fault::ParameterReserved { key: key.clone(), allowed: EMPTY_FINAL_RESPONSE });
            }
            _ => {}
        }
    }
    read.sequence = id.map(|id| InSequence { id, starts, ends });
    Ok(read)
}

fn flag(value: Option<&ParameterChoice>) -> Option<bool> {
    match value {
        Some(&ParameterChoice::BoolParam(flag)) => Some(flag),
        _ => None,
    }
}

/// Returns the shared memory that a tensor's parameters name, if any.
pub(super) fn region(parameters: &Parameters, regions: &SharedMemory) -> Result<Option<RegionSlice>, TensorFault> {
    let offset = int64(parameters, OFFSET)?.map(|offset| unsigned(OFFSET, offset)).transpose()?;
    let byte_size = int64(parameters, BYTE_SIZE)?.map(|size| unsigned(BYTE_SIZE, size)).transpose()?;
    let Some(name) = string(parameters, REGION)? else {
        let given = if byte_size.is_some() { Some(BYTE_SIZE) } else { offset.map(|_| OFFSET) };
        return match given {
            Some(given) => Err(TensorFault::Incomplete { given, missing: REGION }),
            None => Ok(None),
        };
    };
    let byte_size = byte_size.ok_or(TensorFault::Incomplete { given: REGION, missing: BYTE_SIZE })?;
    Ok(Some(regions.slice(name, offset.unwrap_or(0), byte_size)?))
}

/// Returns an int64 parameter of a tensor.
pub(super) fn int64(parameters: &Parameters, key: &'static str) -> Result<Option<i64>, TensorFault> {
    match parameters.get(key).map(|parameter| &parameter.parameter_choice) {
        None => Ok(None),
        Some(Some(ParameterChoice::Int64Param(value))) => Ok(Some(*value)),
        Some(_) => Err(TensorFault::ParameterType { key, expected: "int64_param" }),
    }
}

fn string<'a>(parameters: &'a Parameters, key: &'static str) -> Result<Option<&'a str>, TensorFault> {
    match parameters.get(key).map(|parameter| &parameter.parameter_choice) {
        None => Ok(None),
        Some(Some(ParameterChoice::StringParam(value))) => Ok(Some(value)),
        Some(_) => Err(TensorFault::ParameterType { key, expected: "string_param" }),
    }
}

fn unsigned(key: &'static str, got: i64) -> Result<u64, TensorFault> {
    u64::try_from(got).map_err(|_| TensorFault::ParameterNegative { key, got })
}

#[cfg(test)]
mod tests {
    use super::*;
    use ParameterChoice::{BoolParam, DoubleParam, Int64Param, StringParam, Uint64Param};

    fn read(key: &str, value: ParameterChoice) -> Result<RequestParameters, Fault> {
        let parameter = InferParameter { parameter_choice: Some(value) };
        request(&HashMap::from([(key.to_owned(), parameter)]))
    }

    fn text() -> ParameterChoice {
        StringParam("1".to_owned())
    }

    #[test]
    fn a_priority_is_an_int64_from_zero_or_a_uint64() {
        let priority = |value| read("priority", value).map(|read| read.priority);
        assert_eq!(priority(Int64Param(5)), Ok(5));
        assert_eq!(priority(Uint64Param(5)), Ok(5));
        assert_eq!(priority(Uint64Param(u64::MAX)), Ok(u64::MAX));
        assert_eq!(priority(Int64Param(-1)), Err(Fault::ParameterNegative { key: "priority".to_owned(), got: -1 }));
        for value in [text(), BoolParam(true), DoubleParam(1.0)] {
            assert!(matches!(priority(value), Err(Fault::ParameterType { .. })));
        }
    }

    #[test]
    fn a_timeout_is_an_int64_in_microseconds_and_none_from_zero_down() {
        let timeout = |value| read("timeout", value).map(|read| read.queue_timeout);
        assert_eq!(timeout(Int64Param(1_500)), Ok(Some(Duration::from_micros(1_500))));
        assert_eq!(timeout(Int64Param(0)), Ok(None));
        assert_eq!((timeout(Int64Param(-1)), timeout(Int64Param(i64::MIN))), (Ok(None), Ok(None)));
        for value in [text(), Uint64Param(1), BoolParam(true), DoubleParam(1.0)] {
            assert!(matches!(timeout(value), Err(Fault::ParameterType { .. })));
        }
    }

    #[test]
    fn a_sequence_has_an_id_that_is_a_number_or_a_text_and_flags() {
        let of = |id| read("sequence_id", id).map(|read| read.sequence);
        let alone = |id| Ok(Some(InSequence { id, starts: false, ends: false }));
        assert_eq!(of(Int64Param(7)), alone(CorrelationId::Number(7)));
        assert_eq!(of(Int64Param(-1)), alone(CorrelationId::Number(u64::MAX)));
        assert_eq!(of(StringParam("s".to_owned())), alone(CorrelationId::Text("s".into())));
        for none in [Int64Param(0), StringParam(String::new())] {
            assert_eq!(of(none), Ok(None));
        }
        let parameter = |choice| InferParameter { parameter_choice: Some(choice) };
        let both =
            [("sequence_id", Int64Param(7)), ("sequence_start", BoolParam(true)), ("sequence_end", BoolParam(true))];
        let given = both.map(|(key, choice)| (key.to_owned(), parameter(choice))).into();
        let whole = InSequence { id: CorrelationId::Number(7), starts: true, ends: true };
        assert_eq!(request(&given).map(|read| read.sequence), Ok(Some(whole)));
        assert_eq!(read("sequence_start", BoolParam(true)), Ok(RequestParameters::default()));
        for (key, value) in [
            ("sequence_id", Uint64Param(7)),
            ("sequence_id", BoolParam(true)),
            ("sequence_start", Int64Param(1)),
            ("sequence_end", text()),
        ] {
            assert!(matches!(read(key, value), Err(Fault::ParameterType { .. })), "{key}");
        }
    }

    #[test]
    fn of_the_reserved_keys_one_is_known_and_the_others_are_refused() {
        let enabled = read(EMPTY_FINAL_RESPONSE, BoolParam(true)).map(|read| read.enable_empty_final_response);
        assert_eq!(enabled, Ok(true));
        assert!(matches!(read(EMPTY_FINAL_RESPONSE, Int64Param(1)), Err(Fault::ParameterType { .. })));
        assert!(matches!(read("triton_other", BoolParam(true)), Err(Fault::ParameterReserved { .. })));
    }

    #[test]
    fn a_parameter_without_value_is_no_value_of_the_right_type() {
        let empty = HashMap::from([("timeout".to_owned(), InferParameter::default())]);
        assert!(matches!(request(&empty), Err(Fault::ParameterType { .. })));
    }

    #[test]
    fn unknown_keys_pass_with_any_type() {
        for value in [text(), Int64Param(1), Uint64Param(1), BoolParam(true), DoubleParam(1.5)] {
            assert_eq!(read("foo", value), Ok(RequestParameters::default()));
        }
        assert_eq!(read("binary_data_output", BoolParam(true)), Ok(RequestParameters::default()));
    }

    #[test]
    fn shared_memory_parameters_come_together_or_not_at_all() {
        let regions = SharedMemory::new(true);
        let named = |given: &[(&str, ParameterChoice)]| {
            let parameters = given
                .iter()
                .map(|(key, value)| ((*key).to_owned(), InferParameter { parameter_choice: Some(value.clone()) }));
            region(&parameters.collect(), &regions).expect_err("incomplete or wrong")
        };
        let name = || (REGION, StringParam("r".to_owned()));
        assert_eq!(named(&[name()]), TensorFault::Incomplete { given: REGION, missing: BYTE_SIZE });
        assert_eq!(named(&[(BYTE_SIZE, Int64Param(4))]), TensorFault::Incomplete { given: BYTE_SIZE, missing: REGION });
        assert_eq!(named(&[(OFFSET, Int64Param(4))]), TensorFault::Incomplete { given: OFFSET, missing: REGION });
        assert!(matches!(named(&[(REGION, Int64Param(4))]), TensorFault::ParameterType { .. }));
        assert!(matches!(named(&[name(), (BYTE_SIZE, text())]), TensorFault::ParameterType { .. }));
        assert!(matches!(named(&[name(), (BYTE_SIZE, Int64Param(-4))]), TensorFault::ParameterNegative { .. }));
        assert!(matches!(named(&[name(), (BYTE_SIZE, Int64Param(4))]), TensorFault::Region(_)), "it is not registered");
    }
}
