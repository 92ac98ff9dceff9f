//! Which outputs the host takes: those of replies, those that end loops, those that later segments read from there, and
//! those that live on from one request of a sequence to the next.

use crate::{
    executor::cells::{CellPrograms, Keep},
    model::unfold::{Emitted, Nodes, Segment, Which},
};

/// By segment and emit: whether the host reads it.
#[derive(Debug)]
pub(super) struct HostReads(Vec<Vec<bool>>);

impl HostReads {
    /// Those of replies, and those that `also` says.
    pub(super) fn new(programs: &CellPrograms, also: &[Emitted]) -> Self {
        let segments = &programs.unfolding.segments;
        let mut reads: Vec<Vec<bool>> = segments.iter().map(|segment| vec![false; segment.emits.len()]).collect();
        for emitted in programs.unfolding.outputs.iter().chain(also) {
            reads[emitted.segment][emitted.emit] = true;
        }
        Self(reads)
    }

    /// Whether the host takes an output of some nodes of a segment's type.
    pub(super) fn is_fetched(&self, programs: &CellPrograms, segment: usize, role: usize, output: usize) -> bool {
        self.is_taken(programs, (segment, role), output, true)
    }

    /// Whether the host takes an output of this very node: `is_last` of its segment, as far as is known.
    pub(super) fn is_taken(
        &self,
        programs: &CellPrograms,
        (segment, role): (usize, usize),
        output: usize,
        is_last: bool,
    ) -> bool {
        let own = &programs.unfolding.segments[segment];
        let of_emits = |keep: &Keep| {
            let mut emits = own.emits.iter().zip(&self.0[segment]);
            emits.any(|(emit, is_read)| {
                let is_of_node = is_last || own.streams || emit.which == Which::All;
                *is_read && emit.output == keep.outputs[0] && is_of_node
            })
        };
        // What a sequence keeps is with the host from one of its requests to the next.
        let lives_on = |keep: &Keep| keep.lives_on && is_last;
        ends_loop(own, output) || keeps_of(programs, segment, role, output).any(|keep| lives_on(keep) || of_emits(keep))
    }
}

fn ends_loop(segment: &Segment, output: usize) -> bool {
    matches!(segment.nodes, Nodes::Decode { until: Some((own, _)), .. } if own == output)
}

/// What of an output of a segment's type is read later.
pub(super) fn keeps_of(
    programs: &CellPrograms,
    segment: usize,
    role: usize,
    output: usize,
) -> impl Iterator<Item = &Keep> {
    programs.keeps[segment].iter().filter(move |keep| keep.outputs[role] == output)
}
