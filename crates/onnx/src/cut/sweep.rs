//! A sweep over the nodes in an execution order, which determines the tensors that cross at each place.

use std::collections::{BTreeSet, HashMap};

use super::{
    CROSSING_MAX, LegalCut, cost,
    plan::{Part, Plan},
};
use crate::links::{NodeId, TensorId};

/// A place between two nodes where a cut is possible.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    /// Index in the order of the last node before the place.
    pub position: usize,
    /// Estimated time of all nodes before the place.
    pub cost_before: f64,
    /// Bytes of one row of the tensors that cross.
    pub crossing_bytes: f64,
}

/// The live range of a tensor.
#[derive(Clone, Copy, Debug)]
struct Span {
    tensor: TensorId,
    made: usize,
    last: usize,
}

/// The nodes that belong to stages, in an execution order.
#[derive(Debug)]
pub(super) struct Sweep {
    pub order: Vec<NodeId>,
    /// Places where a cut is possible, in order.
    pub places: Vec<Place>,
    pub cost: f64,
    spans: Vec<Span>,
    /// Number of nodes at the start of the order among which cuts by name lie.
    trunk: usize,
}

impl Sweep {
    /// Orders nodes as in the file. Nodes that only extra outputs need follow their operands directly.
    pub(super) fn by_position(plan: &Plan<'_>) -> Self {
        let mut anchors: HashMap<NodeId, usize> = HashMap::new();
        let mut keys: Vec<(usize, bool, usize, NodeId)> = Vec::new();
        for (index, &id) in plan.links.order().iter().enumerate() {
            let anchor = |tensor: &TensorId| anchors.get(&plan.links.maker(*tensor)?).copied();
            let after = plan.links.node(id).reads.iter().filter_map(anchor).max().unwrap_or(0);
            let is_exit = plan.parts[id] == Part::Exit;
            let place = if plan.parts[id] == Part::Own { index } else { after };
            anchors.insert(id, place);
            if plan.belongs(id) {
                keys.push((place, is_exit, index, id));
            }
        }
        keys.sort_unstable();
        Self::over(plan, keys.into_iter().map(|(.., id)| id).collect(), usize::MAX)
    }

    /// Orders first the nodes that the last output needs, as in the file, then the rest, so that a cut at a tensor has
    /// before it just the nodes that the tensor depends on.
    pub(super) fn by_name(plan: &Plan<'_>) -> Self {
        let rank: HashMap<NodeId, usize> = plan.links.order().iter().enumerate().map(|(at, &id)| (id, at)).collect();
        let last = plan.outputs.iter().filter_map(|&output| plan.owner(output).map(|id| (rank[&id], output))).max();
        let needed = plan.needed_by(last.map(|(_, output)| output).as_slice());
        let own = plan.links.order().iter().copied().filter(|&id| plan.belongs(id));
        let (mut order, rest): (Vec<NodeId>, Vec<NodeId>) = own.partition(|&id| needed[id]);
        let trunk = order.len();
        order.extend(rest);
        Self::over(plan, order, trunk)
    }

    fn over(plan: &Plan<'_>, order: Vec<NodeId>, trunk: usize) -> Self {
        let mut position = vec![usize::MAX; plan.graph.node.len()];
        order.iter().enumerate().for_each(|(at, &id)| position[id] = at);
        let end = order.len();
        let last_reads = plan.last_reads(|id| position[id], end);
        let mut spans = Vec::new();
        for (made, &id) in order.iter().enumerate() {
            for &tensor in plan.links.node(id).results.iter().flatten() {
                // An output that must not leave its stage early prevents all cuts after it.
                let kept = (plan.is_output[tensor] && !plan.crosses[tensor]).then_some(end);
                if let Some(last) = last_reads[tensor].max(kept).filter(|last| *last > made) {
                    spans.push(Span { tensor, made, last });
                }
            }
        }
        let mut sweep = Self { order, places: Vec::new(), cost: 0.0, spans, trunk };
        sweep.find_places(plan);
        sweep
    }

    fn find_places(&mut self, plan: &Plan<'_>) {
        // By position: changes of the number of live tensors, of those that must not cross, and of their bytes.
        let mut changes = vec![(0_isize, 0_isize, 0.0_f64); self.order.len() + 1];
        for span in &self.spans {
            let refused = isize::from(!plan.crosses[span.tensor]);
            let bytes = cost::bytes(&plan.facts, span.tensor);
            let (begin, end) = (span.made, span.last.min(self.order.len()));
            changes[begin] = (changes[begin].0 + 1, changes[begin].1 + refused, changes[begin].2 + bytes);
            changes[end] = (changes[end].0 - 1, changes[end].1 - refused, changes[end].2 - bytes);
        }
        let (mut living, mut refused, mut bytes) = (0, 0, 0.0);
        for (position, &id) in self.order.iter().enumerate() {
            let (more, more_refused, more_bytes) = changes[position];
            (living, refused, bytes) = (living + more, refused + more_refused, bytes + more_bytes);
            self.cost += plan.costs[id];
            let next = self.order.get(position + 1).map(|&next| plan.parts[next]);
            if next == Some(Part::Own) && refused == 0 && living <= CROSSING_MAX as isize {
                let crossing_bytes = bytes.max(0.0);
                self.places.push(Place { position, cost_before: self.cost, crossing_bytes });
            }
        }
    }

    /// Returns the places that can be named by a tensor: the nodes before them are exactly those that the tensor
    /// depends on.
    pub(super) fn named_places(&self, plan: &Plan<'_>) -> Vec<(Place, TensorId)> {
        let mut joined = Joined::new(plan);
        let mut living: HashMap<NodeId, TensorId> = HashMap::new();
        for span in self.spans.iter().rev() {
            if let Some(maker) = plan.links.maker(span.tensor) {
                living.insert(maker, span.tensor);
            }
        }
        let mut places = self.places.iter().peekable();
        let mut named = Vec::new();
        for (position, &id) in self.order.iter().enumerate().take(self.trunk) {
            joined.add(plan, id);
            let Some(&place) = places.next_if(|place| place.position == position) else { continue };
            let tensor = living.get(&id).copied().filter(|&tensor| !plan.is_output[tensor] && joined.open == 1);
            named.extend(tensor.map(|tensor| (place, tensor)));
        }
        named
    }

    /// Returns the places that can be named by a tensor, with the tensors that cross there.
    pub(super) fn legal_cuts(&self, plan: &Plan<'_>) -> Vec<LegalCut> {
        let mut living: BTreeSet<(usize, TensorId)> = BTreeSet::new();
        let mut ending: Vec<(usize, usize, TensorId)> =
            self.spans.iter().map(|span| (span.last, span.made, span.tensor)).collect();
        ending.sort_unstable();
        let (mut begun, mut ended) = (0, 0);
        let share = |cost: f64| if self.cost > 0.0 { cost / self.cost } else { 0.0 };
        let mut cuts = Vec::new();
        for (place, tensor) in self.named_places(plan) {
            while let Some(span) = self.spans.get(begun).filter(|span| span.made <= place.position) {
                living.insert((span.made, span.tensor));
                begun += 1;
            }
            while let Some(&(_, made, gone)) = ending.get(ended).filter(|(last, ..)| *last <= place.position) {
                living.remove(&(made, gone));
                ended += 1;
            }
            cuts.push(LegalCut {
                tensor: plan.links.name(tensor).to_owned(),
                crossing: living.iter().map(|(_, tensor)| plan.links.name(*tensor).to_owned()).collect(),
                crossing_bytes: place.crossing_bytes,
                cost_before: share(place.cost_before),
            });
        }
        cuts
    }
}

/// Counts the nodes seen so far that no other of them depends on.
struct Joined {
    read: Vec<bool>,
    open: usize,
}

impl Joined {
    fn new(plan: &Plan<'_>) -> Self {
        Self { read: vec![false; plan.graph.node.len()], open: 0 }
    }

    fn add(&mut self, plan: &Plan<'_>, id: NodeId) {
        self.open += 1;
        let mut waiting = vec![id];
        while let Some(id) = waiting.pop() {
            for maker in plan.links.node(id).reads.iter().filter_map(|&tensor| plan.links.maker(tensor)) {
                if std::mem::replace(&mut self.read[maker], true) {
                    continue;
                }
                if plan.belongs(maker) {
                    self.open -= 1;
                } else {
                    waiting.push(maker);
                }
            }
        }
    }
}
