//! Tests of the core as a driver sees it: events in, actions out, in virtual time.
//!
//! `script` plays tables of events and expected actions. `oracle` predicts, from the events alone and by the simplest
//! means, how each request ends and what each batch may hold; `pool` drives a core and holds it to the oracle and to the
//! invariants at every step; `properties` does so for random runs.

mod endings;
mod fairness;
mod oracle;
mod ordering;
mod pool;
mod properties;
mod queues;
mod retries;
mod script;
mod serial;
mod triton;
mod wakes;
mod window;
