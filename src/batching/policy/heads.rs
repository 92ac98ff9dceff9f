//! Lines that are not empty, by whose turn it is: what policies go through that look at one line after another.

use std::collections::BTreeSet;

use crate::batching::{
    ledger::Ledger,
    pending::{Line, LineIx, Pending, Rank},
};

/// Lines by the rank of their first requests.
#[derive(Debug, Default)]
pub(super) struct Heads {
    in_order: BTreeSet<(Rank, LineIx)>,
    /// By line.
    ranks: Vec<Option<Rank>>,
}

impl Heads {
    /// Files a line anew.
    pub(super) fn touched(&mut self, line: LineIx, pending: &Pending, ledger: &Ledger) {
        let rank = pending.line(line).and_then(|entry| entry.rank(ledger));
        let at = line as usize;
        if self.ranks.len() <= at {
            self.ranks.resize(at + 1, None);
        }
        if self.ranks[at] == rank {
            return;
        }
        if let Some(old) = std::mem::replace(&mut self.ranks[at], rank) {
            self.in_order.remove(&(old, line));
        }
        self.in_order.extend(rank.map(|rank| (rank, line)));
    }

    /// The lines in order.
    pub(super) fn lines<'a, 'p>(
        &'a self,
        pending: &'p Pending,
    ) -> impl Iterator<Item = (LineIx, &'p Line)> + use<'a, 'p> {
        self.in_order.iter().filter_map(|&(_, line)| Some((line, pending.line(line)?)))
    }

    pub(super) fn check(&self, pending: &Pending, ledger: &Ledger) -> Result<(), String> {
        for (at, line) in &pending.lines {
            let filed = self.ranks.get(at).copied().flatten();
            if filed != line.rank(ledger) || filed.is_some_and(|rank| !self.in_order.contains(&(rank, at as LineIx))) {
                return Err(format!("line {at} is filed as {filed:?}, which it is not"));
            }
        }
        let filed = self.ranks.iter().flatten().count();
        if filed != self.in_order.len() {
            return Err(format!("{filed} lines are filed, {} in order", self.in_order.len()));
        }
        Ok(())
    }
}
