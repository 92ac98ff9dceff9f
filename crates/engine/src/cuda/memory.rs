//! Places buffers in memory. Inputs and outputs have addresses of their own; intermediate buffers share an arena, in
//! which an address is reused once its buffer is no longer needed.

use super::{
    fuse::Step,
    ir::{Holder, Work},
};

/// Alignment of every buffer, in bytes.
pub(super) const ALIGNMENT: usize = 256;

/// The addresses of the buffers of a workspace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Places {
    /// Offset in bytes, by buffer; `None` for constants and unused buffers.
    pub offsets: Vec<Option<usize>>,
    /// Total size in bytes.
    pub bytes: usize,
}

/// First and last step that use a buffer.
#[derive(Clone, Copy, Debug)]
struct Life {
    from: usize,
    to: usize,
}

/// Places all buffers for up to `rows` rows; `None` if their total size overflows.
pub(super) fn places(work: &Work, steps: &[Step], rows: usize) -> Option<Places> {
    let mut lives: Vec<Option<Life>> = vec![None; work.buffers.len()];
    for (at, step) in steps.iter().enumerate() {
        for buffer in step.writes().into_iter().chain(step.reads(&work.expressions)) {
            let life = lives[buffer].get_or_insert(Life { from: at, to: at });
            life.to = at;
        }
    }
    let mut places = Places { offsets: vec![None; work.buffers.len()], bytes: 0 };
    // Offset, size and life of the arena's buffers, by offset.
    let mut arena: Vec<(usize, usize, Life)> = Vec::new();
    let mut fixed = Vec::new();
    for (index, buffer) in work.buffers.iter().enumerate() {
        let count = if buffer.by_rows { rows } else { 1 };
        let bytes = buffer.elements.checked_mul(buffer.element_bytes())?.checked_mul(count)?;
        let bytes = bytes.max(1).checked_next_multiple_of(ALIGNMENT)?;
        match (&buffer.holder, lives[index]) {
            (Holder::Input(_) | Holder::Output(_), _) => fixed.push((index, bytes)),
            (Holder::Scratch, Some(life)) => {
                let offset = first_fit(&arena, bytes, life)?;
                let at = arena.partition_point(|(other, _, _)| *other <= offset);
                arena.insert(at, (offset, bytes, life));
                places.offsets[index] = Some(offset);
                places.bytes = places.bytes.max(offset.checked_add(bytes)?);
            }
            (Holder::Constant(_), _) | (Holder::Scratch, None) => {}
        }
    }
    // After the arena: the caller writes inputs before a run and reads outputs after it, so they must not share memory.
    for (index, bytes) in fixed {
        places.offsets[index] = Some(places.bytes);
        places.bytes = places.bytes.checked_add(bytes)?;
    }
    Some(places)
}

/// Returns the lowest offset at which no buffer that lives at the same time overlaps.
fn first_fit(arena: &[(usize, usize, Life)], bytes: usize, life: Life) -> Option<usize> {
    let mut offset: usize = 0;
    for &(other, length, theirs) in arena {
        let meets = theirs.from <= life.to && life.from <= theirs.to;
        if meets && offset.checked_add(bytes)? > other {
            offset = offset.max(other.checked_add(length)?);
        }
    }
    Some(offset)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_given_on_when_nothing_reads_it_any_more() {
        let life = |from, to| Life { from, to };
        let arena = [(0, 256, life(0, 2)), (256, 512, life(1, 4))];
        assert_eq!(first_fit(&arena, 256, life(3, 5)), Some(0), "the first is free again");
        assert_eq!(first_fit(&arena, 512, life(3, 5)), Some(768), "but too small");
        assert_eq!(first_fit(&arena, 256, life(2, 2)), Some(768), "what is read and written at once lies apart");
        assert_eq!(first_fit(&[], 256, life(0, 0)), Some(0));
    }
}
