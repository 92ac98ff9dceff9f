//! Issues tasks to a device: waits, the launch, and a ticket for tasks that must wait for this one. Backends call it;
//! it calls the device.

use paternoster_batching::{Task, TaskId};
use paternoster_device::{Access, Device, DeviceError, Operation, StreamId, Ticket};
use smallvec::SmallVec;

/// The stream that a task runs on, and the tasks it must come after. A lane is the stream of the same number.
#[derive(Clone, Debug)]
pub struct StreamOrder {
    task: TaskId,
    stream: StreamId,
    after: SmallVec<[TaskId; 2]>,
}

impl From<&Task> for StreamOrder {
    fn from(task: &Task) -> Self {
        Self { task: task.id, stream: StreamId(task.lane.0), after: task.after.clone() }
    }
}

/// The tickets of the tasks in flight on a device.
#[derive(Clone, Debug, Default)]
pub struct Tickets {
    /// At most a few per lane, so a scan is faster than a map.
    in_flight: Vec<(TaskId, Ticket)>,
}

impl Tickets {
    /// Returns the ticket of a task in flight.
    pub fn of(&self, task: TaskId) -> Option<Ticket> {
        self.in_flight.iter().find(|(own, _)| *own == task).map(|(_, ticket)| *ticket)
    }

    /// Removes a task that has ended on the device. Operations issued later run after it anyway.
    pub fn landed(&mut self, task: TaskId) {
        if let Some(place) = self.in_flight.iter().position(|(own, _)| *own == task) {
            self.in_flight.swap_remove(place);
        }
    }
}

/// Issues a task to its lane's stream: waits for the tasks that it must come after, launches the work, and keeps a
/// ticket until the task has [`landed`](Tickets::landed). Tasks that wait for each other must be issued in the order in
/// which the core launched them, because a task without a ticket is not waited for.
///
/// # Errors
/// If the device refuses, as it does once it is stopped. The task then has no ticket, and was not launched unless the
/// device is lost. A device that launches a task but cannot return a ticket for it counts as lost, since nothing can be
/// ordered after the task.
pub fn issue<D: Device>(
    device: &mut D,
    tickets: &mut Tickets,
    order: &StreamOrder,
    accesses: &[Access],
    work: D::Work,
) -> Result<Operation, DeviceError> {
    for ticket in order.after.iter().filter_map(|&task| tickets.of(task)) {
        device.wait(order.stream, ticket)?;
    }
    let operation = device.launch(order.stream, accesses, work)?;
    let ticket = device.record(order.stream).map_err(|error| match error {
        DeviceError::Lost(_) => error,
        error => DeviceError::Lost(format!("{:?} is on it without a ticket: {error}", order.task)),
    })?;
    tickets.in_flight.push((order.task, ticket));
    Ok(operation)
}

#[cfg(test)]
mod tests {
    use super::*;
    use paternoster_testing::sim::{RowSource, Sim, Work};

    use paternoster_device::BufferId;

    const LONG_NS: u64 = 50;

    fn order(task: u64, stream: u16, after: &[u64]) -> StreamOrder {
        StreamOrder { task: TaskId(task), stream: StreamId(stream), after: after.iter().copied().map(TaskId).collect() }
    }

    fn bring(duration_ns: u64) -> Work {
        let mut work = Work::new(0, duration_ns, 1);
        work.sources.push(RowSource::External(7));
        work
    }

    fn one_row(sim: &mut Sim) -> BufferId {
        sim.allocate(1, 8).expect("a small buffer")
    }

    #[test]
    fn a_task_begins_behind_those_of_other_lanes_that_it_must_come_after() {
        let (mut sim, mut tickets) = (Sim::new(2), Tickets::default());
        let (from, to) = (one_row(&mut sim), one_row(&mut sim));
        let writes = [Access::write(from, 0..1)];
        let first = issue(&mut sim, &mut tickets, &order(1, 0, &[]), &writes, bring(LONG_NS)).expect("it is right");
        let reads = [Access::read(from, 0..1), Access::write(to, 0..1)];
        let work = Work::row_by_row(1, 10, 1, 1, 1);
        let second = issue(&mut sim, &mut tickets, &order(2, 1, &[1]), &reads, work).expect("no race: it waits");
        for (operation, end_ns) in [(first, LONG_NS), (second, LONG_NS + 10)] {
            let completion = sim.advance().expect("both end");
            assert_eq!((completion.operation, completion.outcome), (operation, Ok(())));
            assert_eq!(sim.now_ns(), end_ns);
        }
    }

    #[test]
    fn a_ticket_is_kept_until_its_task_lands_and_stands_for_it() {
        let (mut sim, mut tickets) = (Sim::new(1), Tickets::default());
        let row = one_row(&mut sim);
        for task in [1, 2] {
            let writes = [Access::write(row, 0..1)];
            issue(&mut sim, &mut tickets, &order(task, 0, &[]), &writes, bring(LONG_NS)).expect("it is right");
        }
        let own = tickets.of(TaskId(1)).expect("it is in flight");
        assert!(!sim.is_complete(own));
        sim.advance().expect("the first ends");
        assert!(sim.is_complete(own), "the ticket does not stand for the second");
        tickets.landed(TaskId(1));
        assert_eq!(tickets.of(TaskId(1)), None);
        assert!(tickets.of(TaskId(2)).is_some(), "the second is in flight still");
    }

    #[test]
    fn what_the_device_refuses_has_no_ticket() {
        let (mut sim, mut tickets) = (Sim::new(1), Tickets::default());
        let row = one_row(&mut sim);
        let beyond = issue(&mut sim, &mut tickets, &order(1, 0, &[]), &[Access::write(row, 0..2)], bring(LONG_NS));
        assert_eq!(beyond, Err(DeviceError::OutOfRange { buffer: row, row: 1, capacity: 1 }));
        assert_eq!(tickets.of(TaskId(1)), None);
    }
}
