//! What was issued to a card and what ended, in an order in which both may have happened, for tests that check that
//! tasks wait for what they must.

use parking_lot::Mutex;

use crate::{
    batching::{Task, TaskId},
    device::Access,
};

/// What a card was given and told, if somebody asks for it: it grows with each task.
#[derive(Debug, Default)]
pub struct Journal(Mutex<Vec<Noted>>);

/// An entry of a journal.
#[derive(Clone, Debug)]
pub enum Noted {
    /// A task is issued, with what it touches of the card's memory.
    Issued {
        /// The task, which names its stream and what it waits for.
        task: Box<Task>,
        /// The rows that it reads and writes there.
        accesses: Vec<Access>,
    },
    /// It was refused: it has touched nothing.
    Refused(TaskId),
    /// The pool is about to be told that a task has ended.
    Ended(TaskId),
}

impl Journal {
    /// All entries so far, which are the caller's from now on.
    pub fn take(&self) -> Vec<Noted> {
        std::mem::take(&mut self.0.lock())
    }

    pub(super) fn note(&self, noted: Noted) {
        self.0.lock().push(noted);
    }
}
