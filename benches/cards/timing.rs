//! How long a graph takes, launched again and again.

use std::{
    collections::VecDeque,
    rc::Rc,
    thread,
    time::{Duration, Instant},
};

use paternoster_device::{
    Device, DeviceError, Ticket,
    cuda::{CapturedGraph, Cuda, CudaWork},
};

use crate::STREAM;

/// Launches that are in flight at once: the card always has the next, so that what is measured is its time alone.
pub(crate) const DEPTH: u32 = 8;
/// Runs of which the median counts.
const RUNS: usize = 5;
/// Longer than any launch takes, even behind the others that are in flight.
const PATIENCE: Duration = Duration::from_secs(10);
/// Polls after which the driver is asked whether the launch has failed.
const POLLS: u32 = 1 << 12;

/// Seconds of a launch with these parameters: the median of several runs, which last as long as is said.
pub(crate) fn seconds(
    cuda: &mut Cuda,
    graph: &Rc<CapturedGraph>,
    parameters: &[u8],
    lasting: Duration,
) -> Result<f64, DeviceError> {
    let mut count = 1;
    let mut took = run(cuda, graph, parameters, count)?;
    while took < lasting && count < 1 << 16 {
        count *= 2;
        took = run(cuda, graph, parameters, count)?;
    }
    let mut each = vec![took.as_secs_f64() / f64::from(count)];
    while each.len() < RUNS {
        each.push(run(cuda, graph, parameters, count)?.as_secs_f64() / f64::from(count));
    }
    each.sort_by(f64::total_cmp);
    Ok(each[RUNS / 2])
}

fn run(cuda: &mut Cuda, graph: &Rc<CapturedGraph>, parameters: &[u8], count: u32) -> Result<Duration, DeviceError> {
    let began = Instant::now();
    let mut running: VecDeque<Ticket> = VecDeque::new();
    for _ in 0..count {
        if running.len() == DEPTH as usize
            && let Some(first) = running.pop_front()
        {
            wait(cuda, first)?;
        }
        let work = CudaWork { graph: Rc::clone(graph), parameters: parameters.into() };
        cuda.launch(STREAM, &[], work)?;
        running.push_back(cuda.record(STREAM)?);
    }
    if let Some(last) = running.pop_back() {
        wait(cuda, last)?;
    }
    Ok(began.elapsed())
}

/// Launches work one after another behind a launch of the first, and returns the nanoseconds of each: from the end of
/// the one before it to its own. At most [`DEPTH`] − 1 launches.
pub(crate) fn in_turn(cuda: &mut Cuda, works: &[&CudaWork]) -> Result<Vec<u64>, DeviceError> {
    let mut tickets = Vec::with_capacity(works.len() + 1);
    for work in works.first().into_iter().chain(works) {
        cuda.launch(STREAM, &[], CudaWork::clone(work))?;
        tickets.push(cuda.record(STREAM)?);
    }
    let mut ended = Vec::with_capacity(tickets.len());
    for ticket in tickets {
        wait(cuda, ticket)?;
        ended.push(Instant::now());
    }
    let between = |pair: &[Instant]| u64::try_from((pair[1] - pair[0]).as_nanos()).unwrap_or(u64::MAX);
    Ok(ended.windows(2).map(between).collect())
}

fn wait(cuda: &mut Cuda, ticket: Ticket) -> Result<(), DeviceError> {
    let began = Instant::now();
    for polls in 1_u32.. {
        if cuda.is_complete(ticket) {
            return Ok(());
        }
        if polls.is_multiple_of(POLLS) {
            cuda.check_health()?;
        }
        if began.elapsed() > PATIENCE {
            break;
        }
        thread::yield_now();
    }
    Err(DeviceError::Driver(format!("a launch has not ended after {PATIENCE:?}")))
}
