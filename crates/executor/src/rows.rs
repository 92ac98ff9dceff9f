//! Requests of several rows to a version whose requests unfold row by row: each row runs as a request, and the
//! responses are joined.

use bytes::{Bytes, BytesMut};
use paternoster_model::{DataType, InputTensor, ModelSpec};

use crate::{InferError, InferRequest, OutputTensor, Response};

/// Returns a request for each row, in order; `None` for a request that has to stay whole.
pub(super) fn apart(spec: &ModelSpec, request: &InferRequest) -> Option<Vec<InferRequest>> {
    let is_sized = spec.inputs.iter().all(|input| input.datatype != DataType::Bytes);
    if !(2..=spec.max_batch_size).contains(&request.rows) || request.on_card.is_some() || !is_sized {
        return None;
    }
    let rows = request.rows as usize;
    let of_row = |row: usize| {
        let inputs = request.inputs.iter().map(|input| {
            let Some(input) = input else { return Some(None) };
            let mut shape = input.shape.clone();
            *shape.first_mut().filter(|length| **length == rows as i64)? = 1;
            let each = input.data.len() / rows;
            Some(Some(InputTensor { shape, data: input.data.slice(row * each..(row + 1) * each) }))
        });
        let inputs = inputs.collect::<Option<Vec<_>>>()?;
        // One trace follows one request.
        let trace = request.trace.clone().filter(|_| row == 0);
        Some(InferRequest { rows: 1, inputs, trace, ..request.clone() })
    };
    (0..rows).map(of_row).collect()
}

/// Joins the responses of all rows.
///
/// # Errors
/// If the outputs of two rows differ in shape, so that they are no rows of one tensor.
pub(super) fn joined(replies: Vec<Response>) -> Result<Response, InferError> {
    let mut outputs: Vec<(OutputTensor, BytesMut)> = Vec::new();
    for (row, reply) in replies.into_iter().enumerate() {
        for (number, output) in reply.outputs.into_iter().enumerate() {
            let Some((joined, data)) = outputs.get_mut(number) else {
                let data = BytesMut::from(&output.data[..]);
                outputs.push((output, data));
                continue;
            };
            if joined.shape.get(1..) != output.shape.get(1..) || joined.shape.first() != Some(&(row as i64)) {
                let message = format!("output {number} of row {row} has another shape than that of row 0");
                return Err(InferError::Engine(message));
            }
            joined.shape[0] += 1;
            data.extend_from_slice(&output.data);
        }
    }
    let whole = |(output, data): (OutputTensor, BytesMut)| OutputTensor { data: Bytes::from(data), ..output };
    Ok(Response { outputs: outputs.into_iter().map(whole).collect() })
}

#[cfg(test)]
mod tests {
    use paternoster_model::TensorSpec;

    use super::*;

    fn spec(datatype: DataType) -> ModelSpec {
        ModelSpec {
            name: "m".to_owned(),
            version: 1,
            max_batch_size: 4,
            inputs: vec![TensorSpec::new("x", datatype, &[-1])],
            outputs: vec![TensorSpec::new("y", datatype, &[-1])],
            symbols: Vec::new(),
            decoupled: false,
        }
    }

    fn request(rows: u32, shape: &[i64]) -> InferRequest {
        let data: Vec<u8> = (0..shape.iter().product::<i64>() as u8).collect();
        InferRequest::new(rows, vec![Some(InputTensor { shape: shape.into(), data: data.into() }), None])
    }

    #[test]
    fn each_row_is_a_request_with_its_part_of_every_input() {
        let apart = apart(&spec(DataType::Uint8), &request(3, &[3, 2])).expect("three rows");
        let rows: Vec<(u32, &[i64], &[u8])> = apart
            .iter()
            .map(|request| {
                let input = request.inputs[0].as_ref().expect("it is given");
                (request.rows, &input.shape[..], &input.data[..])
            })
            .collect();
        assert_eq!(rows, [(1, &[1, 2][..], &[0, 1][..]), (1, &[1, 2], &[2, 3]), (1, &[1, 2], &[4, 5])]);
        assert!(apart.iter().all(|request| request.inputs[1].is_none()));
    }

    #[test]
    fn single_rows_and_texts_stay_whole() {
        assert!(apart(&spec(DataType::Uint8), &request(1, &[1, 2])).is_none());
        assert!(apart(&spec(DataType::Bytes), &request(2, &[2, 2])).is_none());
        let single = ModelSpec { max_batch_size: 1, ..spec(DataType::Uint8) };
        assert!(apart(&single, &request(2, &[2, 2])).is_none());
    }

    #[test]
    fn replies_are_joined_in_order_if_their_shapes_agree() {
        let reply = |shape: &[i64], data: &[u8]| Response {
            outputs: vec![OutputTensor { shape: shape.into(), data: Bytes::copy_from_slice(data) }],
        };
        let whole = joined(vec![reply(&[1, 2], &[7, 8]), reply(&[1, 2], &[9, 10])]).expect("they agree");
        assert_eq!((&whole.outputs[0].shape[..], &whole.outputs[0].data[..]), (&[2, 2][..], &[7, 8, 9, 10][..]));
        let refused = joined(vec![reply(&[1, 2], &[7, 8]), reply(&[1, 1], &[9])]).expect_err("they do not");
        let message = "output 0 of row 1 has another shape than that of row 0";
        assert_eq!(refused, InferError::Engine(message.to_owned()));
    }
}
