//! The data of a request between its cells: inputs, states and outputs. The core decides which node runs;
//! this one holds what the nodes read and write.

use std::sync::{
    Arc, OnceLock,
    atomic::{AtomicBool, Ordering},
};

use bytes::{Bytes, BytesMut};
use parking_lot::Mutex;
use paternoster_batching::SequenceNo;
use paternoster_model::{
    CorrelationId, DataType, Dims, InSequence,
    unfold::{Control, EmitRange, Emitted, NodeType, Segment, Tensor, Topology, Unfolded},
};
use paternoster_observe::budget::Exhausted;
use smallvec::SmallVec;

use super::{
    memory::UnfoldedMemory,
    plan::CellPrograms,
    row::{ProgramInputs, Row},
    sequence::{SequenceState, correlation_id},
};
use crate::{InferError, OutputTensor, Response, record::Payload};

/// A request that runs through its cells: the layout of its nodes, and the values they have written.
pub(crate) struct UnfoldedState {
    pub(crate) programs: Arc<CellPrograms>,
    payload: Arc<Payload>,
    /// Whether the model's tensors have the batch as axis 0.
    has_batch_axis: bool,
    /// For each segment the number of its first node, followed by the total number of nodes.
    starts: SmallVec<[u32; 4]>,
    /// For each segment, the graph that the request supplied.
    topologies: SmallVec<[Option<Arc<Topology>>; 2]>,
    /// The values written, by segment.
    left: Mutex<Vec<SegmentValues>>,
    /// The request's sequence parameters, and the sequence's state once it has joined.
    sequence: Option<InSequence>,
    state: OnceLock<Arc<SequenceState>>,
    /// Whether it has begun to read the state of its sequence, and has not left.
    is_in_sequence: AtomicBool,
    /// Rows that replace inputs of the program, by name. Only warm-up requests have any.
    given: Arc<ProgramInputs>,
    /// The memory for its values; `None`: it is not counted, as in trial runs and on cards.
    memory: Option<Arc<UnfoldedMemory>>,
    /// Why there was no memory for a value.
    lacking: OnceLock<Exhausted>,
}

/// The values that a segment's nodes have written.
struct SegmentValues {
    /// By output of its first type; outputs that are not read later stay empty.
    values: SmallVec<[Values; 2]>,
    /// The step that ended its loop. Outputs of later steps are ignored.
    last: Option<usize>,
    /// Outputs that the last node writes to its sequence's rows on a card.
    on_card: SmallVec<[usize; 2]>,
}

/// The values of one output of a segment's nodes.
enum Values {
    /// The value of the latest step.
    Last(Option<Row>),
    /// The values of all steps, concatenated, and the latest one.
    Steps { dims: Dims, data: Bytes, last: Option<Row> },
    /// The values of a tree, by node; empty before the first.
    Nodes(Vec<Option<Row>>),
    /// The values of all nodes in order, joined on first use.
    Joined { dims: Dims, data: Bytes, last: Option<Row> },
}

/// A node of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NodePlace {
    pub(crate) segment: usize,
    /// The step, or the node of the tree; of several steps the first.
    pub(crate) node: usize,
    /// Number of steps that run together, from that one on; 1 for other nodes.
    pub(crate) steps: usize,
    /// Maximum number of nodes of the segment.
    pub(crate) nodes: usize,
}

impl UnfoldedState {
    /// Creates the data of a request before its first node.
    pub(crate) fn new(
        programs: &Arc<CellPrograms>,
        has_batch_axis: bool,
        payload: Arc<Payload>,
        graph: &[Unfolded],
        sequence: Option<InSequence>,
    ) -> Self {
        let mut starts = SmallVec::new();
        let mut nodes = 0;
        for unfolded in graph {
            starts.push(nodes);
            nodes += unfolded.nodes();
        }
        starts.push(nodes);
        let topology = |unfolded: &Unfolded| match unfolded {
            Unfolded::Tree(topology) => Some(Arc::clone(topology)),
            Unfolded::Steps(_) => None,
        };
        let unfolding = &programs.unfolding;
        let left = unfolding.segments.iter().zip(&programs.keeps).zip(graph).map(|((segment, keeps), unfolded)| {
            let outputs = unfolding.cells[segment.types[0].cell].outputs.len();
            let mut values: SmallVec<[Values; 2]> = (0..outputs).map(|_| Values::Last(None)).collect();
            for keep in keeps {
                values[keep.outputs[0]] = match unfolded {
                    Unfolded::Tree(_) => Values::Nodes(Vec::new()),
                    Unfolded::Steps(_) if keep.all => {
                        Values::Steps { dims: Dims::new(), data: Bytes::new(), last: None }
                    }
                    Unfolded::Steps(_) => Values::Last(None),
                };
            }
            SegmentValues { values, last: None, on_card: SmallVec::new() }
        });
        let left = Mutex::new(left.collect());
        let topologies = graph.iter().map(topology).collect();
        Self {
            programs: Arc::clone(programs),
            payload,
            has_batch_axis,
            starts,
            topologies,
            left,
            sequence,
            state: OnceLock::new(),
            is_in_sequence: AtomicBool::new(false),
            given: Arc::default(),
            memory: None,
            lacking: OnceLock::new(),
        }
    }

    /// Counts its values in this memory.
    pub(crate) fn with_memory(mut self, memory: Option<Arc<UnfoldedMemory>>) -> Self {
        self.memory = memory;
        self
    }

    /// Returns the memory for its values.
    pub(crate) fn memory(&self) -> Option<&Arc<UnfoldedMemory>> {
        self.memory.as_ref()
    }

    /// Returns why there was no memory for one of its values, if so.
    pub(crate) fn lacking(&self) -> Option<Exhausted> {
        self.lacking.get().copied()
    }

    /// Counts that a value of `after` bytes is stored in place of one of `before`.
    fn count(&self, before: usize, after: usize) -> Result<(), String> {
        let Some(memory) = &self.memory else { return Ok(()) };
        memory.keep(before, after).map_err(|full| {
            // The first is the cause.
            let _ = self.lacking.set(full);
            InferError::NoRoom(full).to_string()
        })
    }

    /// Replaces some of the program's inputs by these rows.
    pub(crate) fn with_given(mut self, given: Arc<ProgramInputs>) -> Self {
        self.given = given;
        self
    }

    /// Returns the row that replaces an input of the program, if any.
    pub(crate) fn given(&self, input: &str) -> Option<Row> {
        self.given.iter().find(|(name, _)| name == input).map(|(_, row)| row.clone())
    }

    /// Attaches the state of a sequence. Only the first call has an effect.
    pub(crate) fn join(&self, state: Arc<SequenceState>) {
        // A request joins one sequence, so the value is set at most once.
        let _ = self.state.set(state);
    }

    /// Marks that its first node is about to run on a card. The next request of its sequence waits until it has left.
    pub(crate) fn begin_in_sequence(&self) {
        if let Some(state) = self.state.get()
            && !self.is_in_sequence.swap(true, Ordering::AcqRel)
        {
            state.begin();
        }
    }

    /// Marks that the request has ended. The next request of its sequence reads the state that is there by now.
    pub(crate) fn leave_sequence(&self) {
        if let Some(state) = self.state.get()
            && self.is_in_sequence.swap(false, Ordering::AcqRel)
        {
            state.leave();
        }
    }

    /// Whether the previous request of its sequence has ended, but the host has yet to take the state that it left.
    pub(crate) fn waits_for_sequence(&self) -> bool {
        let is_awaited = self.state.get().is_some_and(|state| state.is_awaited());
        is_awaited && !self.is_in_sequence.load(Ordering::Acquire)
    }

    /// Makes the outputs of the last steps the sequence's state, after the request has completed.
    ///
    /// # Errors
    /// Fails if there is no memory for the state, now or after an earlier request of the sequence.
    pub(crate) fn commit(&self) -> Result<(), Exhausted> {
        let Some(state) = self.state.get() else { return Ok(()) };
        // Nothing reads the state of a sequence that is over.
        let is_over = self.sequence.as_ref().is_some_and(|sequence| sequence.ends);
        let left = self.left.lock();
        let mut rows = Vec::new();
        for (segment, keeps) in self.programs.keeps.iter().enumerate() {
            for keep in keeps.iter().filter(|keep| keep.lives_on) {
                let output = keep.outputs[0];
                if left[segment].on_card.contains(&output) {
                    state.turn(segment, output);
                } else if let Some(row) = left[segment].values[output].last().filter(|_| !is_over) {
                    rows.push((segment, output, row.clone()));
                }
            }
        }
        state.write(rows)
    }

    /// Returns the id of its sequence.
    pub(crate) fn sequence(&self) -> Option<&CorrelationId> {
        self.sequence.as_ref().map(|sequence| &sequence.id)
    }

    /// Returns the number of its sequence in its version, once it has joined.
    pub(crate) fn sequence_number(&self) -> Option<SequenceNo> {
        self.state.get().map(|state| state.number)
    }

    /// Returns which of its sequence's two rows on the card holds the state that the previous request wrote.
    pub(crate) fn kept_on_card(&self, segment: usize, output: usize) -> Option<u32> {
        self.state.get()?.row_on_card(segment, output)
    }

    /// Marks that a last node writes an output to the sequence's rows on the card, and returns to which of the two. It
    /// counts once the request has completed.
    pub(crate) fn leave_on_card(&self, segment: usize, output: usize) -> Option<u32> {
        let state = self.state.get()?;
        let on_card = &mut self.left.lock()[segment].on_card;
        if !on_card.contains(&output) {
            on_card.push(output);
        }
        Some(state.next_row_on_card(segment, output))
    }

    /// Returns the state that the previous request of its sequence wrote to host memory.
    pub(crate) fn kept(&self, segment: usize, output: usize) -> Option<Row> {
        self.state.get()?.read(segment, output)
    }

    /// Whether a sequence control is set. Outside a sequence, as in a version's trial run, a request counts as a
    /// complete sequence.
    pub(crate) fn is(&self, control: Control) -> bool {
        self.sequence.as_ref().is_none_or(|sequence| match control {
            Control::Start => sequence.starts,
            Control::End => sequence.ends,
            Control::Ready => true,
        })
    }

    /// Returns the id of its sequence, 0 outside a sequence. `None` if the id does not fit the type.
    pub(crate) fn correlation_id(&self, datatype: DataType) -> Option<Bytes> {
        let outside = CorrelationId::Number(0);
        correlation_id(datatype, self.sequence().unwrap_or(&outside))
    }

    /// Returns the place of a node.
    pub(crate) fn place(&self, number: u32) -> Option<NodePlace> {
        let segment = self.starts.partition_point(|&start| start <= number).checked_sub(1)?;
        let end = *self.starts.get(segment + 1)?;
        let start = self.starts[segment];
        Some(NodePlace { segment, node: (number - start) as usize, steps: 1, nodes: (end - start) as usize })
    }

    /// Returns the index of a node's cell.
    pub(crate) fn cell(&self, number: u32) -> Option<usize> {
        let place = self.place(number)?;
        Some(self.node_type(place).cell)
    }

    /// Returns the index of the node's type in its segment. In a tree, nodes without children have the first type.
    pub(crate) fn role(&self, place: NodePlace) -> usize {
        usize::from(!self.children(place).is_empty())
    }

    /// Returns the inputs and the cell of a node's type.
    pub(crate) fn node_type(&self, place: NodePlace) -> &NodeType {
        &self.segment(place).types[self.role(place)]
    }

    /// Returns the segment of a node.
    pub(crate) fn segment(&self, place: NodePlace) -> &Segment {
        &self.programs.unfolding.segments[place.segment]
    }

    /// Whether a segment is a tree.
    #[cfg(test)]
    pub(crate) fn is_tree(&self, segment: usize) -> bool {
        self.topologies[segment].is_some()
    }

    pub(crate) fn children(&self, place: NodePlace) -> &[u32] {
        self.topologies[place.segment].as_ref().map_or(&[], |topology| topology.children_of(place.node as u32))
    }

    /// Returns a tensor of the request: its dimensions without the batch axis, and its elements.
    ///
    /// # Errors
    /// If the tensor is missing.
    pub(crate) fn tensor(&self, tensor: Tensor) -> Result<(Dims, Bytes), String> {
        match tensor {
            Tensor::Input(input) => {
                let given = self.payload.inputs.get(input).and_then(Option::as_ref);
                let given = given.ok_or_else(|| format!("input {input} of the request is left out"))?;
                let row = given.shape.get(usize::from(self.has_batch_axis)..).unwrap_or_default();
                Ok((Dims::from_slice(row), given.data.clone()))
            }
            Tensor::Emitted(emitted) => self.emitted(emitted),
        }
    }

    /// Returns the entries of an input of the request along its first axis, without the batch; 1 if it has no axis.
    /// `None` if the input is absent.
    pub(crate) fn input_length(&self, input: usize) -> Option<i64> {
        let given = self.payload.inputs.get(input)?.as_ref()?;
        Some(given.shape.get(usize::from(self.has_batch_axis)).copied().unwrap_or(1))
    }

    /// Returns the number of nodes of a segment that count; in a loop that has ended, those up to its last.
    pub(crate) fn steps_of(&self, segment: usize) -> u32 {
        let last = self.left.lock()[segment].last;
        last.map_or(self.starts[segment + 1] - self.starts[segment], |last| last as u32 + 1)
    }

    /// Returns a value that a segment emits after all its nodes have run.
    ///
    /// # Errors
    /// If no node has run.
    pub(crate) fn emitted(&self, emitted: Emitted) -> Result<(Dims, Bytes), String> {
        let segment = &self.programs.unfolding.segments[emitted.segment];
        let emit = &segment.emits[emitted.emit];
        let name = || format!("'{}.{}' is not there", segment.name, emit.name);
        let values = &mut self.left.lock()[emitted.segment].values[emit.output];
        if emit.which == EmitRange::All {
            let root = self.root(emitted.segment);
            return values.join(segment.runs_backwards(), root).ok_or_else(name);
        }
        let row = match values {
            Values::Nodes(nodes) => self.root(emitted.segment).and_then(|root| nodes.get(root)?.clone()),
            values => values.last().cloned(),
        };
        row.map(|row| (row.dims.clone(), row.bytes())).ok_or_else(name)
    }

    /// Whether a node is the last root of a tree.
    pub(crate) fn is_root(&self, place: NodePlace) -> bool {
        self.root(place.segment) == Some(place.node)
    }

    /// Returns the last root of a tree, that is, the last node that is no child.
    fn root(&self, segment: usize) -> Option<usize> {
        let topology = self.topologies[segment].as_ref()?;
        (0..topology.nodes()).rev().find(|&node| topology.is_root(node)).map(|node| node as usize)
    }

    /// Returns the value that the previous step wrote.
    pub(crate) fn carried(&self, segment: usize, output: usize) -> Option<Row> {
        self.left.lock()[segment].values[output].last().cloned()
    }

    /// Returns the values of all steps so far, concatenated. As long as the caller holds the result, [`Self::keep`] has
    /// to copy it.
    pub(crate) fn steps(&self, segment: usize, output: usize) -> Option<Bytes> {
        match &self.left.lock()[segment].values[output] {
            Values::Steps { data, .. } => Some(data.clone()),
            _ => None,
        }
    }

    /// Returns the value that a node of a tree wrote.
    pub(crate) fn of_node(&self, segment: usize, output: usize, node: u32) -> Option<Row> {
        match &self.left.lock()[segment].values[output] {
            Values::Nodes(nodes) => nodes.get(node as usize)?.clone(),
            _ => None,
        }
    }

    /// Marks a step as the last of its loop.
    pub(crate) fn end(&self, place: NodePlace) {
        let values = &mut self.left.lock()[place.segment];
        values.last.get_or_insert(place.node);
        if self.is_followed(place.segment) {
            values.values.iter_mut().for_each(Values::detach);
        }
    }

    /// Whether segments that run later may read what a segment leaves.
    fn is_followed(&self, segment: usize) -> bool {
        segment + 1 < self.programs.unfolding.segments.len()
    }

    /// Whether a step was submitted before an earlier step ended the loop.
    pub(crate) fn is_past_the_end(&self, place: NodePlace) -> bool {
        self.left.lock()[place.segment].last.is_some_and(|last| last < place.node)
    }

    /// Stores a value of a node. If all steps are needed, they may have at most `max_bytes` together.
    ///
    /// # Errors
    /// If rows of one tensor differ in their dimensions, or exceed `max_bytes`, or there is no memory for them.
    pub(crate) fn keep(&self, place: NodePlace, output: usize, row: Row, max_bytes: usize) -> Result<(), String> {
        let values = &mut self.left.lock()[place.segment].values[output];
        match values {
            Values::Last(last) => {
                self.count(last.as_ref().map_or(0, |last| last.len), row.len)?;
                *last = Some(row);
                // Later segments may hold it for long.
                if self.is_followed(place.segment) && place.node + place.steps == place.nodes {
                    values.detach();
                }
            }
            Values::Steps { .. } => {
                let all = row.clone();
                return self.append(values, all.as_slice(), row, place.nodes, max_bytes);
            }
            // A copy, because nodes may wait long for others and a shared row would keep the whole task's memory.
            Values::Nodes(nodes) => {
                if nodes.is_empty() {
                    self.count(0, place.nodes * size_of::<Option<Row>>())?;
                    nodes.resize(place.nodes, None);
                }
                if let Some(own) = nodes.get_mut(place.node) {
                    self.count(own.as_ref().map_or(0, |own| own.len), row.len)?;
                    *own = Some(row.copied());
                }
            }
            Values::Joined { .. } => return Err("a node runs behind the end of its segment".to_owned()),
        }
        Ok(())
    }

    /// Stores the values of an output for all steps of a node, as [`Self::keep`] does those of each.
    ///
    /// # Errors
    /// As [`Self::keep`].
    pub(crate) fn keep_steps(
        &self,
        place: NodePlace,
        output: usize,
        rows: &Row,
        max_bytes: usize,
    ) -> Result<(), String> {
        // A copy, because a part would keep the memory of all steps of the whole task.
        let latest = rows.clone().part(place.steps - 1, place.steps).copied();
        let values = &mut self.left.lock()[place.segment].values[output];
        match values {
            Values::Steps { .. } => self.append(values, rows.as_slice(), latest, place.nodes, max_bytes),
            Values::Last(last) => {
                self.count(last.as_ref().map_or(0, |last| last.len), latest.len)?;
                *last = Some(latest);
                Ok(())
            }
            Values::Nodes(_) | Values::Joined { .. } => Err("a node runs behind the end of its segment".to_owned()),
        }
    }

    /// Appends the values of steps, of which there are at most `nodes` and may be `max_bytes` in all, to those of all
    /// steps.
    fn append(
        &self,
        values: &mut Values,
        rows: &[u8],
        latest: Row,
        nodes: usize,
        max_bytes: usize,
    ) -> Result<(), String> {
        let Values::Steps { dims, data, last } = values else { return Ok(()) };
        if last.is_none() {
            *dims = latest.dims.clone();
        } else if *dims != latest.dims {
            return Err(format!("its rows have the dims {:?}, those before them {dims:?}", latest.dims));
        }
        let needed = data.len() + rows.len();
        if needed > max_bytes {
            return Err(format!(
                "its steps so far leave {needed} bytes: expected at most {max_bytes} (--max-output-bytes)"
            ));
        }
        let so_far = std::mem::take(data).try_into_mut();
        let held = so_far.as_ref().map_or_else(Bytes::len, BytesMut::capacity);
        let mut all = match so_far {
            Ok(all) if held >= needed => all,
            so_far => {
                // Doubled, so that a step is seldom copied, but never beyond all steps.
                let capacity = needed.saturating_mul(2).min(latest.len.saturating_mul(nodes)).max(needed);
                self.count(held, capacity)?;
                let mut all = BytesMut::with_capacity(capacity);
                all.extend_from_slice(&so_far.map_or_else(|shared| shared, BytesMut::freeze));
                all
            }
        };
        all.extend_from_slice(rows);
        *data = all.freeze();
        *last = Some(latest);
        Ok(())
    }

    /// Builds the response of a request whose nodes have all run.
    ///
    /// # Errors
    /// If an output is missing.
    pub(crate) fn reply(&self) -> Result<Response, String> {
        let outputs = self.programs.unfolding.outputs.iter().enumerate().map(|(number, &emitted)| {
            let (dims, data) = self.emitted(emitted)?;
            Ok(self.output(number, &dims, data))
        });
        Ok(Response { outputs: outputs.collect::<Result<_, String>>()? })
    }

    /// Converts the output with this number to wire form.
    pub(crate) fn output(&self, number: usize, dims: &[i64], data: Bytes) -> OutputTensor {
        let is_one = dims.is_empty() && self.programs.one_element.get(number).is_some_and(|is_one| *is_one);
        let first = [self.has_batch_axis, is_one].into_iter().filter(|is_there| *is_there).map(|_| 1);
        OutputTensor { shape: first.chain(dims.iter().copied()).collect(), data }
    }
}

impl Drop for UnfoldedState {
    fn drop(&mut self) {
        self.leave_sequence();
    }
}

impl Values {
    /// Returns the value of the latest step.
    fn last(&self) -> Option<&Row> {
        match self {
            Self::Last(last) | Self::Steps { last, .. } | Self::Joined { last, .. } => last.as_ref(),
            Self::Nodes(_) => None,
        }
    }

    /// Copies a row, which is a part of its task's memory.
    fn detach(&mut self) {
        if let Self::Last(Some(row)) = self {
            *row = row.copied();
        }
    }

    /// Joins all rows along a new first axis. For a tree, `root` is the node that counts as the last.
    fn join(&mut self, reversed: bool, root: Option<usize>) -> Option<(Dims, Bytes)> {
        let (rows, row_dims, data, last) = match self {
            Self::Joined { dims, data, .. } => return Some((dims.clone(), data.clone())),
            Self::Last(_) => return None,
            Self::Steps { dims, data, last } => {
                let row_bytes = last.as_ref()?.len.max(1);
                let data = std::mem::take(data);
                let rows = data.len() / row_bytes;
                let data = if reversed {
                    let mut turned = BytesMut::with_capacity(data.len());
                    data.rchunks(row_bytes).for_each(|row| turned.extend_from_slice(row));
                    turned.freeze()
                } else {
                    data
                };
                (rows, std::mem::take(dims), data, last.take())
            }
            Self::Nodes(nodes) => {
                let mut data = BytesMut::with_capacity(nodes.iter().flatten().map(|row| row.len).sum());
                for row in nodes.iter() {
                    data.extend_from_slice(row.as_ref()?.as_slice());
                }
                let last = root.and_then(|root| nodes.get_mut(root)?.take());
                (nodes.len(), last.as_ref()?.dims.clone(), data.freeze(), last)
            }
        };
        let mut dims = Dims::from_slice(&[i64::try_from(rows).ok()?]);
        dims.extend_from_slice(&row_dims);
        *self = Self::Joined { dims: dims.clone(), data: data.clone(), last };
        Some((dims, data))
    }
}
