//! A record of what was issued to a card and what ended, in an order in which both may have happened. Tests read it to
//! check that tasks wait for the tasks that they depend on.

use parking_lot::Mutex;
use paternoster_batching::{Task, TaskId};
use paternoster_device::Access;

/// The record of one card. It is kept only on request, because it grows with each task.
#[derive(Debug, Default)]
pub struct Journal(Mutex<Vec<JournalEntry>>);

/// An entry of a journal.
#[derive(Clone, Debug)]
pub enum JournalEntry {
    /// A task is about to be issued.
    Issued {
        /// The task, which names its stream and what it waits for.
        task: Box<Task>,
        /// The rows of the card's memory that it reads and writes.
        accesses: Vec<Access>,
    },
    /// The task's launch was refused: it has accessed nothing.
    Refused(TaskId),
    /// The end of a task is about to be reported to the pool.
    Ended(TaskId),
}

impl Journal {
    /// Removes and returns all entries so far.
    pub fn take(&self) -> Vec<JournalEntry> {
        std::mem::take(&mut self.0.lock())
    }

    pub(super) fn note(&self, noted: JournalEntry) {
        self.0.lock().push(noted);
    }
}
