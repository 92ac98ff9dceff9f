//! Assigns a table to each state that nodes pass on; a table has a row for each slot (BatchMaker section 5).

use std::collections::BTreeMap;

use paternoster_model::unfold::CellInputSource;

use super::node_types::types_of;
use crate::cells::CellPrograms;

/// Returns the table of each state that nodes read, keyed by segment and output. All that one input of a cell reads, or
/// one output of it writes, lies in one table, whichever segment the node belongs to: a graph has one address for each.
pub(super) fn tables_of(programs: &CellPrograms) -> BTreeMap<(usize, usize), usize> {
    let mut tables: BTreeMap<(usize, usize), usize> = BTreeMap::new();
    let mut together: BTreeMap<(usize, bool, usize), Vec<(usize, usize)>> = BTreeMap::new();
    for cell in 0..programs.unfolding.cells.len() {
        for (segment, role, own) in types_of(programs, cell) {
            for (number, source) in own.inputs.iter().enumerate() {
                if let CellInputSource::Carried { output, .. } | CellInputSource::Child { output, .. } = source {
                    let next = tables.len();
                    tables.entry((segment, *output)).or_insert(next);
                    together.entry((cell, true, number)).or_default().push((segment, *output));
                }
            }
            for keep in &programs.keeps[segment] {
                together.entry((cell, false, keep.outputs[role])).or_default().push((segment, keep.outputs[0]));
            }
        }
    }
    // Merges the tables of states that must lie together. Each pass may merge one more of a chain, so a pass for each
    // suffices.
    for _ in 0..=together.len() {
        for states in together.values() {
            let least = states.iter().filter_map(|state| tables.get(state)).min().copied();
            for state in states {
                if let (Some(table), Some(least)) = (tables.get_mut(state), least) {
                    *table = least;
                }
            }
        }
    }
    let mut names: Vec<usize> = tables.values().copied().collect();
    names.sort_unstable();
    names.dedup();
    for table in tables.values_mut() {
        *table = names.binary_search(table).unwrap_or_default();
    }
    tables
}
