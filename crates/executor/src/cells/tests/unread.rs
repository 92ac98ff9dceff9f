//! Clients of streams that do not read the responses of the steps.

use paternoster_batching::{CellularKnobs, Knobs, Policy};
use paternoster_observe::PoolStats;
use tokio::runtime::Builder;

use super::*;
use crate::{Backlog, BacklogLimits, InferError, InferRequest, Pool, PoolOptions, ResponseStream};

#[test]
fn a_stream_whose_client_leaves_too_much_unread_fails_and_others_go_on() {
    let pool = Pool::start(&PoolOptions { cpu_lanes: 1, ..PoolOptions::default() }).expect("threads start");
    let Tried { spec, programs, .. } = decoder(true).expect("it fits");
    let programs = Arc::into_inner(programs).expect("no other owner");
    let (cells, segments) = programs.knobs();
    let policy = Policy::Cellular(CellularKnobs { cells, segments, ..CellularKnobs::default() });
    let model =
        Arc::new(pool.bring_up(spec, Knobs { policy, ..Knobs::default() }, programs).expect("the CPU has room"));

    let runtime = Builder::new_current_thread().enable_time().build().expect("a runtime");
    let stats = Arc::new(PoolStats::default());
    let small = Backlog::new(BacklogLimits { stream_bytes: 1, ..BacklogLimits::default() }, &stats);
    let (slow, quick) = (small.connection().stream(), pool.backlog().connection().stream());
    let request =
        || InferRequest::new(1, vec![Some(InputTensor { shape: Dims::from_slice(&[1, 1]), data: bytes(&[2]) })]);
    let next = |stream: &mut ResponseStream| {
        let response = runtime.block_on(stream.next())?;
        Some(response.map(|response| values(&response.outputs[0].data)))
    };
    let mut unread = model.submit_stream(request().counted_in(&slow));
    let mut read = model.submit_stream(request().counted_in(&quick));
    for token in 3..=5 {
        assert_eq!(next(&mut read), Some(Ok(vec![token])));
    }
    assert_eq!(next(&mut read), None, "the other ends well");
    // Its first response was produced when none was waiting.
    assert_eq!(next(&mut unread), Some(Ok(vec![3])));
    assert!(matches!(next(&mut unread), Some(Err(InferError::Unread(_)))));
    assert_eq!(next(&mut unread), None);
    assert_eq!((stats.snapshot().responses_refused, slow.waiting_bytes()), (1, 0));
}
