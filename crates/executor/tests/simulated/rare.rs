//! Counts of rare events.

use std::fmt;

macro_rules! rare {
    ($($name:ident: $says:literal,)+) => {
        /// Counts of one run, or of several.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub(crate) struct Rare {
            $(pub(crate) $name: u64,)+
        }

        impl Rare {
            pub(crate) fn add(&mut self, other: &Self) {
                $(self.$name += other.$name;)+
            }

            pub(crate) fn rows(&self) -> Vec<(&'static str, u64)> {
                vec![$(($says, self.$name)),+]
            }
        }
    };
}

rare! {
    steps: "steps of the core",
    requests: "requests",
    completed: "completed",
    cancelled: "cancelled",
    cancelled_aboard: "cancelled with rows under way",
    expired: "expired",
    expired_aboard: "expired with rows under way",
    rejected: "rejected",
    failed: "failed",
    tasks: "tasks",
    faults: "tasks that the device failed",
    bad_tasks: "tasks with a row that fails them wherever it is",
    faults_by_input: "tasks that failed because what they read was lost",
    lanes_lost: "lanes lost",
    tasks_lost: "tasks lost with their lane",
    lane_changes: "batches that went on to another lane (unpin)",
    slow_lanes: "lanes that became slow",
    retries: "parts of failed tasks that ran again",
    stretches: "stretch",
    stretches_while_checking: "stretch during checking",
    merges: "newcomers caught up",
    splits: "split",
    split_then_new: "split, then new, then the parts go on",
    newcomers_cancelled: "all newcomers cancelled while older rows wait",
    fault_while_waiting: "newcomers' task failed while older rows wait",
    lane_lost_while_waiting: "newcomers' lane lost while older rows wait",
    exits: "rows that exited early",
    skips: "rows that skipped stages",
    repeats: "rows that repeated a stage",
    failed_rows: "rows that failed alone",
    waits_for_writer: "waits for a writer (read after write)",
    waits_for_reader: "waits for a reader (write after read)",
    leases_reused: "buffers that went to another batch",
    partial_rows: "tasks whose rows have gaps between them",
    requests_moved: "requests that left for another device",
    emitted: "responses of decoupled requests",
}

impl fmt::Display for Rare {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.rows().into_iter().try_for_each(|(says, count)| writeln!(formatter, "{count:>14}  {says}"))
    }
}
