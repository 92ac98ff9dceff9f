//! Checks inputs whose elements index tables of known length, and that inputs have elements where a run needs them,
//! before a request is admitted. One that is wrong would fail the run for all requests that share it.

use paternoster_engine::Program;
use paternoster_model::{DataType, IndexRange, InputSource, InputTensor, ModelSpec, TensorSpec, unfold::Unfolded};

use super::stages::{Programs, StagePrograms};

/// The input checks of a version.
#[derive(Debug, Default)]
pub(super) struct IndexChecks {
    checks: Vec<IndexCheck>,
    /// Whether each input must have an element.
    needs_elements: bool,
}

/// The check of one input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct IndexCheck {
    pub(super) input: usize,
    pub(super) range: IndexRange,
    pub(super) read: ReadRows,
}

/// The rows of an input that every run reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReadRows {
    /// All rows.
    All,
    /// For a segment of steps: as many rows as it has steps, along the first axis after the batch axis.
    Steps(usize),
    /// For a tree: the rows of the nodes without children, or of the others.
    Nodes {
        /// The segment.
        segment: usize,
        /// Whether the rows are those of nodes without children.
        leaves: bool,
    },
}

impl StagePrograms {
    /// Checks that padding values are valid indices for the programs.
    ///
    /// # Errors
    /// If an input that indexes a table is padded with a value out of range.
    pub fn admit_padding(&self, spec: &ModelSpec) -> Result<(), String> {
        IndexChecks::new(self).admit_padding(spec)
    }
}

impl IndexChecks {
    /// Collects the checks of a version's programs.
    pub(super) fn new(programs: &StagePrograms) -> Self {
        let needs_elements = matches!(&programs.0, Programs::Whole(program) if program.needs_elements());
        let checks = match &programs.0 {
            Programs::Whole(program) => whole(&**program).collect(),
            Programs::Cells(cells) => cells.index_checks(),
            Programs::Cut(stages) => {
                let mut checks = Vec::new();
                for stage in &stages.stages {
                    let own = stage.inputs.iter().zip(stage.program.index_ranges());
                    checks.extend(own.filter_map(|((_, source), range)| match *source {
                        InputSource::Request(input) => {
                            Some(IndexCheck { input, range: (*range)?, read: ReadRows::All })
                        }
                        InputSource::Boundary { .. } => None,
                    }));
                    // Stages behind an exit may not run for every row.
                    if !stage.exits.is_empty() {
                        break;
                    }
                }
                checks
            }
        };
        Self { checks, needs_elements }
    }

    /// Rejects versions whose padding values are out of range.
    ///
    /// # Errors
    /// If an input is padded with a value outside its range.
    pub(super) fn admit_padding(&self, spec: &ModelSpec) -> Result<(), String> {
        for IndexCheck { input, range, .. } in &self.checks {
            let Some(tensor) = spec.inputs.get(*input) else { continue };
            let is_padded = tensor.symbols.iter().any(Option::is_some);
            if is_padded && !range.contains(tensor.pad_value as i64) {
                let (name, pad) = (&tensor.name, tensor.pad_value);
                return Err(format!(
                    "input '{name}' is padded with {pad}, which no run accepts: expected {}",
                    words(range)
                ));
            }
        }
        Ok(())
    }

    /// Whether an input is checked, so that the host has to read it.
    pub(super) fn reads(&self, input: usize) -> bool {
        self.checks.iter().any(|check| check.input == input)
    }

    /// Checks a request. `graph` is the graph that it unfolds into, if its version unfolds requests.
    ///
    /// # Errors
    /// Names the input, and the position and value of the first element out of range, or that it has none.
    pub(super) fn check(
        &self,
        spec: &ModelSpec,
        inputs: &[Option<InputTensor>],
        graph: &[Unfolded],
    ) -> Result<(), String> {
        let is_empty = |input: &Option<InputTensor>| input.as_ref().is_some_and(|tensor| tensor.shape.contains(&0));
        if self.needs_elements
            && let Some((empty, _)) = spec.inputs.iter().zip(inputs).find(|(_, input)| is_empty(input))
        {
            return Err(format!("input '{}' has no element, and the model cannot run over none", empty.name));
        }
        self.checks.iter().try_for_each(|check| check.check(spec, inputs, graph))
    }
}

/// Returns checks of all elements.
fn whole(program: &dyn Program) -> impl Iterator<Item = IndexCheck> {
    let ranges = program.index_ranges().iter().enumerate();
    ranges.filter_map(|(input, range)| Some(IndexCheck { input, range: (*range)?, read: ReadRows::All }))
}

impl IndexCheck {
    fn check(&self, spec: &ModelSpec, inputs: &[Option<InputTensor>], graph: &[Unfolded]) -> Result<(), String> {
        let (Some(tensor), Some(given)) =
            (spec.inputs.get(self.input), inputs.get(self.input).and_then(Option::as_ref))
        else {
            return Ok(());
        };
        let axis = usize::from(spec.has_batch_axis());
        match self.read {
            ReadRows::All => self.check_bytes(spec, tensor, given, 0, given.data.len()),
            ReadRows::Steps(segment) => {
                let steps = graph.get(segment).map_or(0, Unfolded::nodes) as usize;
                let row_bytes = row_bytes(tensor.datatype, given, axis);
                self.check_bytes(spec, tensor, given, 0, steps.saturating_mul(row_bytes))
            }
            ReadRows::Nodes { segment, leaves } => {
                let Some(Unfolded::Tree(topology)) = graph.get(segment) else { return Ok(()) };
                let row_bytes = row_bytes(tensor.datatype, given, axis);
                let own = (0..topology.nodes()).filter(|&node| topology.children_of(node).is_empty() == leaves);
                own.map(|node| node as usize * row_bytes)
                    .try_for_each(|from| self.check_bytes(spec, tensor, given, from, row_bytes))
            }
        }
    }

    /// Checks `len` bytes of an input from `from` on, or as many as there are.
    fn check_bytes(
        &self,
        spec: &ModelSpec,
        tensor: &TensorSpec,
        given: &InputTensor,
        from: usize,
        len: usize,
    ) -> Result<(), String> {
        let end = from.saturating_add(len).min(given.data.len());
        let bytes = given.data.get(from..end).unwrap_or_default();
        let Some((at, found)) = self.range.first_outside(tensor.datatype, bytes) else { return Ok(()) };
        let place = place_of(from / tensor.datatype.size_bytes().unwrap_or(1) + at, &given.shape);
        let (name, model, range) = (&tensor.name, &spec.name, words(&self.range));
        Err(format!("input '{name}' of model '{model}': expected {range}, but found {found} at {place:?}"))
    }
}

fn words(range: &IndexRange) -> String {
    let what = if *range == IndexRange::INT32 { "32-bit numbers" } else { "indices" };
    format!("{what} from {} to {}", range.least, range.most)
}

/// Returns the bytes of a row along an axis.
fn row_bytes(datatype: DataType, given: &InputTensor, axis: usize) -> usize {
    let inner = given.shape.get(axis + 1..).unwrap_or_default();
    inner.iter().map(|&dim| dim as usize).product::<usize>() * datatype.size_bytes().unwrap_or(1)
}

/// Returns the position of an element in a shape.
fn place_of(element: usize, shape: &[i64]) -> Vec<usize> {
    let mut rest = element;
    let mut place: Vec<usize> = shape
        .iter()
        .rev()
        .map(|&dim| {
            let length = dim.max(1) as usize;
            let at = rest % length;
            rest /= length;
            at
        })
        .collect();
    place.reverse();
    place
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use bytes::Bytes;
    use smallvec::SmallVec;

    use super::*;
    use paternoster_model::{Dims, SymbolId, unfold::Topology};

    fn spec(max_batch_size: u32) -> ModelSpec {
        ModelSpec {
            name: "m".to_owned(),
            version: 1,
            max_batch_size,
            inputs: vec![TensorSpec::new("ids", DataType::Int64, &[-1])],
            outputs: vec![],
            symbols: vec!["tokens".to_owned()],
            decoupled: false,
        }
    }

    fn ids(shape: &[i64], values: &[i64]) -> Vec<Option<InputTensor>> {
        let data: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        vec![Some(InputTensor { shape: Dims::from_slice(shape), data: Bytes::from(data) })]
    }

    /// Returns the check of a table with 10 rows.
    fn reading(read: ReadRows) -> IndexChecks {
        IndexChecks {
            checks: vec![IndexCheck { input: 0, range: IndexRange::of_table(10), read }],
            needs_elements: false,
        }
    }

    #[test]
    fn an_index_that_no_table_has_is_refused_by_name_place_and_value() {
        let checks = reading(ReadRows::All);
        assert_eq!(checks.check(&spec(8), &ids(&[2, 3], &[0, 9, -10, 1, 2, 3]), &[]), Ok(()));
        assert_eq!(
            checks.check(&spec(8), &ids(&[2, 3], &[0, 1, 2, 3, 10, -11]), &[]),
            Err("input 'ids' of model 'm': expected indices from -10 to 9, but found 10 at [1, 1]".to_owned())
        );
        assert_eq!(checks.check(&spec(8), &[None], &[]), Ok(()), "an optional input that was left out");
        assert_eq!(checks.check(&spec(8), &ids(&[2, 0], &[]), &[]), Ok(()));
    }

    #[test]
    fn of_a_chain_as_many_rows_count_as_it_has_steps() {
        let checks = reading(ReadRows::Steps(1));
        let inputs = ids(&[1, 4], &[1, 2, 99, 3]);
        let graph = |steps| [Unfolded::Steps(9), Unfolded::Steps(steps)];
        assert_eq!(checks.check(&spec(8), &inputs, &graph(2)), Ok(()), "the third row is never read");
        let refusal = checks.check(&spec(8), &inputs, &graph(3)).expect_err("now it is");
        assert!(refusal.ends_with("found 99 at [0, 2]"), "{refusal}");
    }

    #[test]
    fn of_a_tree_the_rows_of_its_leaves_count_or_those_of_the_others() {
        let children = |children: &[u32]| SmallVec::from_slice(children);
        let graph = [Unfolded::Tree(Arc::new(Topology::new(vec![children(&[]), children(&[]), children(&[0, 1])])))];
        let (leaf_bad, root_bad) = (ids(&[3], &[1, 50, 2]), ids(&[3], &[1, 2, 60]));
        for (leaves, good, bad, place) in
            [(true, &root_bad, &leaf_bad, "50 at [1]"), (false, &leaf_bad, &root_bad, "60 at [2]")]
        {
            let checks = reading(ReadRows::Nodes { segment: 0, leaves });
            assert_eq!(checks.check(&spec(0), good, &graph), Ok(()));
            let refusal = checks.check(&spec(0), bad, &graph).expect_err("a node reads it");
            assert!(refusal.ends_with(place), "{refusal}");
        }
    }

    #[test]
    fn padding_must_be_an_index_too() {
        let checks = reading(ReadRows::All);
        let mut padded = spec(8);
        padded.inputs[0].pad_value = 10.0;
        assert_eq!(checks.admit_padding(&padded), Ok(()), "no axis is padded");
        padded.inputs[0].symbols = SmallVec::from_slice(&[Some(SymbolId(0))]);
        assert_eq!(
            checks.admit_padding(&padded),
            Err("input 'ids' is padded with 10, which no run accepts: expected indices from -10 to 9".to_owned())
        );
        padded.inputs[0].pad_value = 9.0;
        assert_eq!(checks.admit_padding(&padded), Ok(()));
    }
}
