//! Which outputs the host takes: those of responses, those that end loops, those that later segments read through the
//! host, and state that a sequence keeps in host memory.

use paternoster_model::unfold::{EmitRange, Emitted, Nodes, Segment};

use super::sequences::stays;
use crate::cells::{CellPrograms, Keep};

/// Whether the host reads an emit, indexed by segment and emit.
#[derive(Debug)]
pub(super) struct HostReads(Vec<Vec<bool>>);

impl HostReads {
    /// Creates the table of emits: those of responses, and those in `also`.
    pub(super) fn new(programs: &CellPrograms, also: &[Emitted]) -> Self {
        let segments = &programs.unfolding.segments;
        let mut reads: Vec<Vec<bool>> = segments.iter().map(|segment| vec![false; segment.emits.len()]).collect();
        for emitted in programs.unfolding.outputs.iter().chain(also) {
            reads[emitted.segment][emitted.emit] = true;
        }
        Self(reads)
    }

    /// Returns whether the host takes an output from some nodes of a segment's type.
    pub(super) fn is_fetched(&self, programs: &CellPrograms, segment: usize, role: usize, output: usize) -> bool {
        self.is_taken(programs, segment, role, output, true)
    }

    /// Returns whether the host takes an output from a node. `is_last`: whether the node may be the last of its
    /// segment.
    pub(super) fn is_taken(
        &self,
        programs: &CellPrograms,
        segment: usize,
        role: usize,
        output: usize,
        is_last: bool,
    ) -> bool {
        let own = &programs.unfolding.segments[segment];
        let of_emits = |keep: &Keep| {
            let mut emits = own.emits.iter().zip(&self.0[segment]);
            emits.any(|(emit, is_read)| {
                let is_of_node = is_last || own.streams || emit.which == EmitRange::All;
                *is_read && emit.output == keep.outputs[0] && is_of_node
            })
        };
        // The state that a sequence keeps on the host between two of its requests.
        let lives_on = |keep: &Keep| keep.lives_on && is_last && !stays(own);
        ends_loop(own, output) || keeps_of(programs, segment, role, output).any(|keep| lives_on(keep) || of_emits(keep))
    }
}

fn ends_loop(segment: &Segment, output: usize) -> bool {
    matches!(segment.nodes, Nodes::Decode { until: Some((own, _)), .. } if own == output)
}

/// Returns the entries of `keeps` for an output of a segment's type: how it is read later.
pub(super) fn keeps_of(
    programs: &CellPrograms,
    segment: usize,
    role: usize,
    output: usize,
) -> impl Iterator<Item = &Keep> {
    programs.keeps[segment].iter().filter(move |keep| keep.outputs[role] == output)
}
