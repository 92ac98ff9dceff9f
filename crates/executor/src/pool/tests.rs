//! Pools of several devices, with programs controlled by the test.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use bytes::Bytes;
use crossbeam_channel::{Receiver, Sender};
use paternoster_batching::{Knobs, Policy, QueueingKnobs, WindowKnobs};
use paternoster_model::{DataType, Dims, InputTensor, ModelSpec, TensorSpec};
use paternoster_testing::program::{FakeProgram, dense, identity};

use super::{Pool, PoolOptions};
use crate::{InferError, InferRequest, ModelHandle, Response, ResponseFuture};

/// A version on a pool of several devices with one lane each. It returns its rows. A batch with a gated row waits until
/// the gate opens.
struct Served {
    pool: Arc<Pool>,
    handle: Arc<ModelHandle>,
    began: Receiver<u8>,
    /// Gates by row; dropping a sender opens the gate.
    gates: BTreeMap<u8, Sender<()>>,
}

impl Served {
    fn new(devices: u16, gated: impl IntoIterator<Item = u8>, knobs: Knobs) -> Self {
        let options = PoolOptions { cpu_lanes: devices, cpu_shards: devices, ..PoolOptions::default() };
        let pool = Pool::start(&options).expect("threads start");
        let (began, begun) = crossbeam_channel::unbounded();
        let (gates, held): (BTreeMap<_, _>, BTreeMap<u8, Receiver<()>>) = gated
            .into_iter()
            .map(|row| {
                let (open, gate) = crossbeam_channel::bounded::<()>(0);
                ((row, open), (row, gate))
            })
            .unzip();
        let spec = ModelSpec {
            name: "gates".to_owned(),
            version: 1,
            max_batch_size: 4,
            inputs: vec![TensorSpec::new("x", DataType::Uint8, &[1])],
            outputs: vec![TensorSpec::new("y", DataType::Uint8, &[1])],
            symbols: vec![],
            decoupled: false,
        };
        let program = FakeProgram::new(move |batch| {
            for row in dense(&batch.inputs[0]).1 {
                // The receiver may be gone when the test has ended.
                let _ = began.send(*row);
                if let Some(gate) = held.get(row) {
                    let _ = gate.recv();
                }
            }
            identity(batch)
        });
        let handle = Arc::new(pool.bring_up(spec, knobs, Arc::new(program)).expect("the CPU has room"));
        Self { pool, handle, began: begun, gates }
    }

    fn submit(&self, row: u8) -> ResponseFuture {
        let input = InputTensor { shape: Dims::from_slice(&[1, 1]), data: Bytes::copy_from_slice(&[row]) };
        self.handle.submit(InferRequest::new(1, vec![Some(input)]))
    }

    /// Submits a request and waits until it is at its gate.
    fn running(&self, row: u8) -> ResponseFuture {
        let response = self.submit(row);
        assert_eq!(self.began.recv(), Ok(row));
        response
    }

    fn open(&mut self, row: u8) {
        self.gates.remove(&row);
    }
}

fn knobs() -> Knobs {
    Knobs { max_batch_rows: 4, policy: Policy::Window(WindowKnobs::default()), ..Knobs::default() }
}

/// Waits for a future that must complete, with a generous time limit.
fn soon<T>(what: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
    let in_time = async { tokio::time::timeout(Duration::from_secs(120), what).await };
    runtime.block_on(in_time).expect("it comes in time")
}

fn row(answer: Result<Response, InferError>) -> Result<u8, InferError> {
    answer.map(|response| response.outputs[0].data[0])
}

#[test]
fn requests_go_to_the_device_with_least_to_do() {
    let mut served = Served::new(3, 0..3, knobs());
    let responses: Vec<_> = (0..3).map(|row| served.running(row)).collect();
    (0..3).for_each(|row| served.open(row));
    for (number, response) in (0..).zip(responses) {
        assert_eq!(row(soon(response)), Ok(number));
    }
}

#[test]
fn a_device_that_idles_takes_what_waits_behind_a_long_task() {
    let mut served = Served::new(2, [0, 1], knobs());
    let (long, short) = (served.running(0), served.running(1));
    let others: Vec<_> = (10..30).map(|row| served.submit(row)).collect();
    served.open(1);
    assert_eq!(row(soon(short)), Ok(1));
    for (number, other) in (10..).zip(others) {
        assert_eq!(row(soon(other)), Ok(number), "it does not wait for the long task");
    }
    assert!(served.pool.stats().snapshot().moved > 0);
    assert_eq!(served.pool.in_flight(), 1);
    served.open(0);
    assert_eq!(row(soon(long)), Ok(0));
}

#[test]
fn replies_that_leave_in_order_keep_their_version_on_one_device() {
    let queueing = QueueingKnobs { preserve_ordering: true, ..QueueingKnobs::default() };
    let mut served = Served::new(2, [0], Knobs { queueing, ..knobs() });
    let first = served.running(0);
    let second = served.submit(1);
    assert_eq!(served.handle.homes.len(), 1);
    assert!(served.began.is_empty(), "the other device has nothing to do with it");
    served.open(0);
    assert_eq!((row(soon(first)), row(soon(second))), (Ok(0), Ok(1)));
}

#[test]
fn a_lost_device_loses_exactly_what_it_ran() {
    let mut served = Served::new(4, 0..4, knobs());
    let running: Vec<_> = (0..4).map(|row| served.running(row)).collect();
    let waiting: Vec<_> = (10..90).map(|row| served.submit(row)).collect();
    let responsiveness = served.pool.responsiveness();
    served.pool.lose_device(2);
    assert_eq!(responsiveness.borrow().lost_devices, 1);
    (0..4).for_each(|row| served.open(row));
    for (number, response) in (0..).zip(running) {
        let expected = if number == 2 { Err(InferError::DeviceLost) } else { Ok(number) };
        assert_eq!(row(soon(response)), expected);
    }
    for (number, response) in (10..).zip(waiting) {
        assert_eq!(row(soon(response)), Ok(number), "what waited goes elsewhere");
    }
    assert_eq!(row(soon(served.submit(5))), Ok(5), "the others go on");
    [0, 1, 3].into_iter().for_each(|device| served.pool.lose_device(device));
    assert_eq!(row(soon(served.submit(6))), Err(InferError::DeviceLost));
    assert_eq!(served.pool.in_flight(), 0);
    assert!(served.pool.stop(Duration::from_secs(30)), "all threads end");
}

#[test]
fn a_request_that_has_moved_is_cancelled_where_it_is() {
    let mut served = Served::new(2, [0, 1, 2], knobs());
    let (long, short) = (served.running(0), served.running(1));
    let moved = [served.submit(2), served.submit(3), served.submit(4), served.submit(5)];
    served.open(1);
    assert_eq!(row(soon(short)), Ok(1));
    // The idle device starts everything that waited, now or soon.
    while !served.began.recv().is_ok_and(|row| row == 2) {}
    drop(moved);
    served.open(2);
    served.open(0);
    assert_eq!(row(soon(long)), Ok(0));
    assert_eq!(row(soon(served.submit(9))), Ok(9));
    assert_eq!(served.pool.in_flight(), 0);
}

#[test]
fn a_panic_in_one_core_ends_all_of_them() {
    let mut served = Served::new(2, [0, 1], knobs());
    let running = [served.running(0), served.running(1)];
    served.pool.fail_now();
    for response in running {
        assert_eq!(row(soon(response)), Err(InferError::SchedulerFailed));
    }
    assert_eq!(row(soon(served.submit(7))), Err(InferError::SchedulerFailed));
    [0, 1].into_iter().for_each(|row| served.open(row));
    assert!(served.pool.stop(Duration::from_secs(30)), "all threads end");
}
