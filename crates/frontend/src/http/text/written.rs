//! The JSON of a response. Its memory is reserved before it is written.

use std::{
    collections::VecDeque,
    io::{self, Write},
};

use axum::response::Response;
use bytes::Bytes;
use http::StatusCode;
use paternoster_observe::budget::Reservation;
use serde::Serialize;

use super::{
    super::{Problem, api::Api, body, unsent_response::UnsentResponse},
    fault::Fault,
    run::Received,
};

/// Bytes of the first part and of the largest; each is twice as long as the one before.
const PART_BYTES: (usize, usize) = (1 << 10, 256 << 10);

/// Answers of at least this many numbers are written by a worker.
const LARGE_RESPONSE_ELEMENTS: usize = 4 << 10;

/// Sends a response of JSON, written by a worker if it is large. It is reserved as it grows, until it waits to be sent.
pub(super) async fn send<R>(
    api: &Api,
    received: &mut Received<R>,
    elements: usize,
    json: impl Serialize + Send + 'static,
) -> Result<Response, Fault> {
    let holds = api.holds(&received.parts.extensions);
    let packing = body::accepted(&received.parts.headers);
    let mut held = received.take_reservation();
    let write = move || {
        let parts = written(&json, &mut held)?;
        let answer = match packing {
            Some(encoding) => {
                body::grow_now(&mut held, parts.iter().map(Bytes::len).sum())?;
                UnsentResponse::json_of(parts).packed(encoding)
            }
            None => UnsentResponse::json_of(parts),
        };
        Ok::<_, Fault>((answer, held))
    };
    let (answer, held) = if elements < LARGE_RESPONSE_ELEMENTS {
        write()?
    } else {
        api.workers.run(elements * size_of::<f32>(), write).await.map_err(Problem::from)??
    };
    received.give_reservation(held);
    Ok(answer.into_response(&holds.backlog)?)
}

/// Writes a response, in parts. What they take is added to `held`.
///
/// # Errors
/// If there is no room for it.
fn written(answer: &impl Serialize, held: &mut Reservation) -> Result<VecDeque<Bytes>, Fault> {
    let mut parts = Parts { full: VecDeque::new(), last: Vec::new(), held, refusal: None };
    let outcome = serde_json::to_writer(&mut parts, answer);
    match (outcome, parts.refusal) {
        (_, Some(refusal)) => Err(refusal.into()),
        (Err(fault), None) => Err(Fault::Server(StatusCode::INTERNAL_SERVER_ERROR, fault.to_string())),
        (Ok(()), None) => {
            parts.full.push_back(parts.last.into());
            Ok(parts.full)
        }
    }
}

struct Parts<'a> {
    full: VecDeque<Bytes>,
    last: Vec<u8>,
    held: &'a mut Reservation,
    refusal: Option<Problem>,
}

impl Write for Parts<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let room = self.last.capacity() - self.last.len();
        if room > 0 {
            let taken = &bytes[..room.min(bytes.len())];
            self.last.extend_from_slice(taken);
            return Ok(taken.len());
        }
        let (first, largest) = PART_BYTES;
        let next = (2 * self.last.capacity()).clamp(first, largest);
        if let Err(refusal) = body::grow_now(self.held, next) {
            self.refusal = Some(refusal);
            return Err(io::Error::other("no memory"));
        }
        let full = std::mem::replace(&mut self.last, Vec::with_capacity(next));
        if !full.is_empty() {
            self.full.push_back(full.into());
        }
        self.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use paternoster_observe::budget::Budget;

    use super::*;

    #[test]
    fn an_answer_is_the_same_in_parts_and_all_of_them_are_reserved() {
        let answer: Vec<u32> = (0..200_000).collect();
        let budget = Budget::of_bytes(64 << 20);
        let mut held = Reservation::none(&budget);
        let parts = written(&answer, &mut held).expect("there is room");
        let joined: Vec<u8> = parts.iter().flatten().copied().collect();
        assert_eq!(joined, serde_json::to_vec(&answer).expect("JSON"));
        assert!(parts.len() > 4 && budget.used() >= joined.len(), "{} of {}", budget.used(), joined.len());
        drop(held);
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn an_answer_that_there_is_no_room_for_is_not_written_further() {
        let answer: Vec<u32> = (0..200_000).collect();
        let budget = Budget::of_bytes(1 << 20);
        let fault = written(&answer, &mut Reservation::none(&budget)).expect_err("it takes more");
        assert!(matches!(&fault, Fault::TooLarge(text) if text.contains("max-pending-bytes")), "{fault:?}");
        let mut other = Reservation::none(&budget);
        assert!(other.try_grow(800 << 10));
        let fault = written(&answer[..40_000].to_vec(), &mut Reservation::none(&budget)).expect_err("others hold it");
        assert!(matches!(fault, Fault::Overloaded(_)), "{fault:?}");
    }
}
