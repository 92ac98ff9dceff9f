//! What responses are cached under.

use paternoster_executor::InferRequest;
use sha2::{Digest, Sha256};

/// A hash of everything that decides a response: the load of the version, the request's inputs, and which outputs a
/// pipeline gives. Priority, timeouts, deadline and id are not in it; neither are the forms of the outputs, since a
/// response has them as the model gave them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Key([u8; 32]);

impl Key {
    /// Returns the key of a request. `load` is a number that no other load of any version has: it decides the names and
    /// datatypes of the inputs, whose numbers are hashed in their place.
    pub(super) fn of(load: u64, request: &InferRequest) -> Self {
        let mut hash = Sha256::new();
        let mut number = |number: u64| hash.update(number.to_le_bytes());
        // Each list comes behind its length, so no two requests are the same sequence of bytes.
        number(load);
        number(u64::from(request.rows));
        let wanted = request.wanted_outputs.as_deref();
        number(wanted.map_or(u64::MAX, |wanted| wanted.len() as u64));
        wanted.unwrap_or_default().iter().for_each(|&output| number(output as u64));
        number(request.inputs.len() as u64);
        for input in &request.inputs {
            let Some(input) = input else {
                hash.update([0]);
                continue;
            };
            hash.update([1]);
            hash.update((input.shape.len() as u64).to_le_bytes());
            for size in &input.shape {
                hash.update(size.to_le_bytes());
            }
            hash.update((input.data.len() as u64).to_le_bytes());
            hash.update(&input.data);
        }
        Self(hash.finalize().into())
    }
}

#[cfg(test)]
mod tests {
    use std::{
        collections::HashSet,
        time::{Duration, Instant},
    };

    use bytes::Bytes;
    use paternoster_model::{Dims, InputTensor};

    use super::*;

    fn input(shape: &[i64], data: &'static [u8]) -> Option<InputTensor> {
        Some(InputTensor { shape: Dims::from_slice(shape), data: Bytes::from_static(data) })
    }

    #[test]
    fn requests_that_differ_have_different_keys() {
        let eight: &[u8] = &[1, 2, 3, 4, 5, 6, 7, 8];
        let (four, rest) = eight.split_at(4);
        let requests = [
            (1, 1, vec![input(&[1, 8], eight)]),
            (2, 1, vec![input(&[1, 8], eight)]),
            (1, 2, vec![input(&[1, 8], eight)]),
            // The same bytes in another shape, of another rank, and as two inputs.
            (1, 1, vec![input(&[8, 1], eight)]),
            (1, 1, vec![input(&[1, 2, 4], eight)]),
            (1, 1, vec![input(&[8], eight)]),
            (1, 1, vec![input(&[1, 4], four), input(&[1, 4], rest)]),
            (1, 1, vec![input(&[1, 4], rest), input(&[1, 4], four)]),
            // An input that is absent, or has no elements.
            (1, 1, vec![input(&[1, 8], eight), None]),
            (1, 1, vec![None, input(&[1, 8], eight)]),
            (1, 1, vec![input(&[1, 8], eight), input(&[1, 0], &[])]),
            (1, 1, vec![input(&[1, 8], eight), input(&[0, 1], &[])]),
            (1, 1, vec![]),
            (1, 1, vec![None]),
            // Where one input ends and the next begins.
            (1, 1, vec![input(&[1], &[1, 2]), input(&[1], &[3])]),
            (1, 1, vec![input(&[1], &[1]), input(&[1], &[2, 3])]),
        ];
        let keys: HashSet<Key> = requests
            .iter()
            .map(|(load, rows, inputs)| Key::of(*load, &InferRequest::new(*rows, inputs.clone())))
            .collect();
        assert_eq!(keys.len(), requests.len());
    }

    #[test]
    fn how_a_request_is_scheduled_is_not_in_its_key() {
        let plain = InferRequest::new(1, vec![input(&[1, 4], &[1, 2, 3, 4])]);
        let urgent = InferRequest {
            priority: 3,
            queue_timeout: Some(Duration::from_millis(1)),
            deadline: Some(Instant::now()),
            ..plain.clone()
        };
        assert_eq!(Key::of(1, &plain), Key::of(1, &urgent));
    }
}
