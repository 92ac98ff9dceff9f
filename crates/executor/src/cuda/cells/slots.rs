//! Which node's state each slot of a version holds.

use std::collections::HashMap;

use paternoster_batching::ReqId;

/// The contents of each slot once all issued tasks have run.
#[derive(Debug)]
pub(super) struct Slots {
    /// The node that wrote each slot last.
    written_by: Vec<Option<(ReqId, u32)>>,
    /// The slot of each node whose state has not been overwritten.
    of_node: HashMap<(ReqId, u32), u32>,
}

impl Slots {
    pub(super) fn new(count: u32) -> Self {
        Self { written_by: vec![None; count as usize], of_node: HashMap::new() }
    }

    /// Returns whether a slot exists.
    pub(super) fn has(&self, slot: u32) -> bool {
        (slot as usize) < self.written_by.len()
    }

    /// Returns whether this node is the last that wrote a slot.
    pub(super) fn holds(&self, slot: u32, req: ReqId, node: u32) -> bool {
        self.written_by.get(slot as usize) == Some(&Some((req, node)))
    }

    /// Returns the slot that holds a node's state; `None` if the node has not run or its state was overwritten.
    pub(super) fn of(&self, req: ReqId, node: u32) -> Option<u32> {
        self.of_node.get(&(req, node)).copied()
    }

    /// Records that a node writes a slot.
    pub(super) fn write(&mut self, slot: u32, req: ReqId, node: u32) {
        let Some(holder) = self.written_by.get_mut(slot as usize) else { return };
        if let Some(before) = holder.replace((req, node)) {
            self.of_node.remove(&before);
        }
        self.of_node.insert((req, node), slot);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_holds_what_was_written_last() {
        let (one, two) = (ReqId(1), ReqId(2));
        let mut slots = Slots::new(2);
        assert!(slots.has(1) && !slots.has(2));
        slots.write(0, one, 0);
        slots.write(1, two, 0);
        assert!(slots.holds(0, one, 0) && !slots.holds(0, one, 1));
        slots.write(0, one, 1);
        assert!(slots.holds(0, one, 1) && !slots.holds(0, one, 0));
        assert_eq!((slots.of(one, 0), slots.of(one, 1), slots.of(two, 0)), (None, Some(0), Some(1)));
        slots.write(0, two, 1);
        assert_eq!((slots.of(one, 1), slots.of(two, 0), slots.of(two, 1)), (None, Some(1), Some(0)));
    }
}
