//! The compiled graphs of one engine, each shared by all programs that were compiled from it.

use std::{
    collections::HashMap,
    sync::{Arc, Weak},
};

use parking_lot::Mutex;

/// SHA-256 hash of a serialized graph and of everything else that its compilation depends on.
pub(super) type Origin = [u8; 32];

/// The sessions of existing programs, by the hash of what they were compiled from.
#[derive(Debug)]
pub(super) struct Sessions<S> {
    by_origin: Mutex<HashMap<Origin, Weak<S>>>,
}

impl<S> Default for Sessions<S> {
    fn default() -> Self {
        Self { by_origin: Mutex::default() }
    }
}

impl<S> Sessions<S> {
    /// Returns the session of a graph, and compiles it unless an existing program has it.
    ///
    /// # Errors
    /// Fails if it cannot be compiled.
    pub(super) fn of<E>(&self, origin: Origin, compile: impl FnOnce() -> Result<S, E>) -> Result<Arc<S>, E> {
        let known = |by_origin: &HashMap<Origin, Weak<S>>| by_origin.get(&origin).and_then(Weak::upgrade);
        if let Some(session) = known(&self.by_origin.lock()) {
            return Ok(session);
        }
        // Compiled without the lock, so that other graphs do not wait for this one.
        let compiled = Arc::new(compile()?);
        let mut by_origin = self.by_origin.lock();
        by_origin.retain(|_, session| session.strong_count() > 0);
        // Another thread may have compiled the same graph meanwhile; its session is used then.
        Ok(known(&by_origin).unwrap_or_else(|| {
            by_origin.insert(origin, Arc::downgrade(&compiled));
            compiled
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ORIGIN: Origin = [1; 32];
    const OTHER: Origin = [2; 32];

    fn compiled(sessions: &Sessions<u32>, origin: Origin, session: u32) -> Arc<u32> {
        sessions.of(origin, || Ok::<_, ()>(session)).expect("nothing fails")
    }

    #[test]
    fn a_graph_is_compiled_once_while_a_program_of_it_lives() {
        let sessions = Sessions::default();
        let first = compiled(&sessions, ORIGIN, 10);
        assert!(Arc::ptr_eq(&first, &compiled(&sessions, ORIGIN, 11)));
        assert_eq!(*compiled(&sessions, OTHER, 20), 20, "another graph is another session");
        drop(first);
        assert_eq!(*compiled(&sessions, ORIGIN, 12), 12, "it had no user left");
    }

    #[test]
    fn who_compiles_at_the_same_time_takes_the_first() {
        let sessions = Sessions::default();
        let mut first = None;
        let second = sessions.of(ORIGIN, || {
            first = Some(compiled(&sessions, ORIGIN, 1));
            Ok::<_, ()>(2)
        });
        assert_eq!(second.as_deref(), Ok(&1));
    }

    #[test]
    fn a_graph_that_was_refused_may_come_again() {
        let sessions = Sessions::default();
        assert_eq!(sessions.of(ORIGIN, || Err("no")), Err("no"));
        assert_eq!(*compiled(&sessions, ORIGIN, 3), 3);
        assert_eq!(sessions.by_origin.lock().len(), 1, "an unused session is forgotten");
    }
}
