//! Finds inputs that index tables of known length, so that invalid indices can be rejected before a run.
//!
//! Only considers gathers that every run executes: those of the main graph, not of its branches and loops, on which an
//! output depends. Indices are traced from the inputs through operators that keep every element, and tables from the
//! weights through operators that keep the shape. Inputs that cannot be traced get no range; an invalid index in them
//! fails its run.

use std::collections::BTreeMap;

use paternoster_model::IndexRange;
use smallvec::SmallVec;

use super::{
    Port,
    infer::is_standard,
    links::{Links, NodeLinks, TensorId},
    outline::outline,
    pb::{self, tensor_proto::DataType as Elem},
};

/// Maximum number of inputs traced into one tensor by concatenation.
const MOST_SOURCES: usize = 8;

/// Inputs whose elements are all contained in a tensor: index among the graph's inputs, and whether they were cast to
/// INT32.
type Sources = SmallVec<[(usize, bool); 1]>;

/// Traced tensors of a graph.
struct Followed<'g> {
    /// By tensor: the inputs whose elements it contains.
    sources: Vec<Sources>,
    /// By tensor: its dims, if it is a weight.
    tables: Vec<Option<&'g [i64]>>,
}

/// Returns the ranges of a serialized model's inputs by name. Inputs that index no known table are omitted. Never
/// fails: an unreadable model has no ranges.
pub fn index_ranges(model: &[u8]) -> BTreeMap<String, IndexRange> {
    let outline = outline(model).and_then(|model| model.0.graph);
    outline.as_ref().map(ranges).unwrap_or_default()
}

pub(super) fn ranges(graph: &pb::GraphProto) -> BTreeMap<String, IndexRange> {
    let mut ranges: BTreeMap<String, IndexRange> = BTreeMap::new();
    let links = Links::new(graph);
    let needed = needed_tensors(graph, &links);
    let mut followed = Followed::new(graph, &links);
    for &id in links.order() {
        let (node, tensors) = (&graph.node[id], links.node(id));
        if !is_standard(node) {
            continue;
        }
        followed.pass(node, tensors);
        let is_read = tensors.results.iter().flatten().any(|&tensor| needed[tensor]);
        let Some((range, indices)) = followed.gather(node, tensors).filter(|_| is_read) else { continue };
        for &(input, as_int32) in &followed.sources[indices] {
            let range = IndexRange { as_int32, ..range };
            let name = graph.input[input].name().to_owned();
            ranges.entry(name).and_modify(|known| *known = known.meet(range)).or_insert(range);
        }
    }
    ranges
}

impl<'g> Followed<'g> {
    fn new(graph: &'g pb::GraphProto, links: &Links<'_>) -> Self {
        let mut followed = Self { sources: vec![Sources::new(); links.tensors()], tables: vec![None; links.tensors()] };
        for (number, input) in graph.input.iter().enumerate() {
            let datatype = Port::decode(input.clone()).datatype;
            if let Some(tensor) = links.find(input.name()).filter(|_| datatype.is_some_and(IndexRange::judges)) {
                followed.sources[tensor].push((number, false));
            }
        }
        // A weight that is also declared as an input is never given by requests.
        for weight in &graph.initializer {
            if let Some(tensor) = links.find(weight.name()) {
                followed.sources[tensor].clear();
                followed.tables[tensor] = Some(&weight.dims);
            }
        }
        followed
    }

    /// Determines the sources and table of a node's first result from those of its operands.
    fn pass(&mut self, node: &'g pb::NodeProto, tensors: &NodeLinks) {
        let Some(result) = tensors.results.first().copied().flatten() else { return };
        let operand = tensors.operands.first().copied().flatten();
        let attribute = |name: &str| node.attribute.iter().find(|attribute| attribute.name() == name);
        let mut sources = operand.map_or_else(Sources::new, |operand| self.sources[operand].clone());
        let table = operand.and_then(|operand| self.tables[operand]);
        match node.op_type() {
            "Constant" => {
                let value = attribute("value").and_then(|value| value.t.as_ref());
                self.tables[result] = value.map(|tensor| &tensor.dims[..]);
            }
            "Identity" => (self.sources[result], self.tables[result]) = (sources, table),
            "DequantizeLinear" => self.tables[result] = table,
            "Cast" => {
                let to = attribute("to").and_then(|to| Elem::try_from(i32::try_from(to.i()).ok()?).ok());
                match to {
                    Some(Elem::Int64) => {}
                    Some(Elem::Int32) => sources.iter_mut().for_each(|(_, as_int32)| *as_int32 = true),
                    _ => sources.clear(),
                }
                (self.sources[result], self.tables[result]) = (sources, table);
            }
            "Flatten" | "Reshape" | "Squeeze" | "Transpose" | "Unsqueeze" => self.sources[result] = sources,
            "Concat" => {
                for &other in tensors.operands.iter().skip(1).flatten() {
                    sources.extend_from_slice(&self.sources[other]);
                }
                sources.sort_unstable();
                sources.dedup();
                sources.truncate(MOST_SOURCES);
                self.sources[result] = sources;
            }
            _ => {}
        }
    }

    /// Returns the range of a gather's indices, and the tensor that contains them.
    fn gather(&self, node: &pb::NodeProto, tensors: &NodeLinks) -> Option<(IndexRange, TensorId)> {
        if !matches!(node.op_type(), "Gather" | "GatherElements") {
            return None;
        }
        let &[Some(table), Some(indices)] = &tensors.operands[..] else { return None };
        let dims = self.tables[table]?;
        let axis = node.attribute.iter().find(|attribute| attribute.name() == "axis").map_or(0, |axis| axis.i());
        let axis = if axis < 0 { axis.checked_add(i64::try_from(dims.len()).ok()?)? } else { axis };
        let rows = *dims.get(usize::try_from(axis).ok()?)?;
        (rows > 0).then(|| (IndexRange::of_table(rows), indices))
    }
}

/// Returns which tensors an output depends on by value, not only by shape.
fn needed_tensors(graph: &pb::GraphProto, links: &Links<'_>) -> Vec<bool> {
    let mut needed = vec![false; links.tensors()];
    for tensor in graph.output.iter().filter_map(|output| links.find(output.name())) {
        needed[tensor] = true;
    }
    for &id in links.order().iter().rev() {
        let tensors = links.node(id);
        let is_read = tensors.results.iter().flatten().any(|&tensor| needed[tensor]);
        if is_read && !matches!(graph.node[id].op_type(), "Shape" | "Size") {
            tensors.reads.iter().for_each(|&tensor| needed[tensor] = true);
        }
    }
    needed
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::{
        build::{Graph, Value},
        port::dims,
        zoo,
    };
    use paternoster_model::DataType;

    /// Returns the ranges of a graph with the inputs `ids` INT64 and `types` INT32, both `[batch, tokens]`, whose
    /// output `build` creates.
    fn found(build: impl FnOnce(&mut Graph, &Value, &Value) -> Value) -> BTreeMap<String, IndexRange> {
        let mut graph = Graph::new("texts");
        let ids = graph.input("ids", DataType::Int64, &dims!["batch", "tokens"]);
        let types = graph.input("types", DataType::Int32, &dims!["batch", "tokens"]);
        let made = build(&mut graph, &ids, &types);
        graph.output(&made, DataType::Fp32, &[]);
        index_ranges(&graph.finish().expect("a sound graph").to_bytes())
    }

    fn table(graph: &mut Graph, rows: usize) -> Value {
        graph.constant(&format!("table of {rows}"), &[rows, 2], &vec![0.5_f32; rows * 2])
    }

    fn ids_of(rows: i64) -> BTreeMap<String, IndexRange> {
        BTreeMap::from([("ids".to_owned(), IndexRange::of_table(rows))])
    }

    #[test]
    fn the_shortest_of_the_tables_that_an_input_indexes_counts() {
        let ranges = found(|graph, ids, types| {
            let (long, short, other) = (table(graph, 30), table(graph, 10), table(graph, 2));
            let one = graph.op("Gather", &[&long, ids]).value();
            let two = graph.op("Gather", &[&short, ids]).value();
            let three = graph.op("Gather", &[&other, types]).value();
            graph.op("Sum", &[&one, &two, &three]).value()
        });
        let types = ("types".to_owned(), IndexRange::of_table(2));
        assert_eq!(ranges, ids_of(10).into_iter().chain([types]).collect());
    }

    #[test]
    fn indices_are_followed_through_what_keeps_every_element() {
        let ranges = found(|graph, ids, types| {
            let table = table(graph, 30);
            let (axis, flat) = (graph.literal(&[0_i64]), graph.literal(&[-1_i64]));
            let types = graph.op("Cast", &[types]).attr("to", Elem::Int64 as i64).value();
            let both = graph.op("Concat", &[ids, &types]).attr("axis", 1).value();
            let one = graph.op("Unsqueeze", &[&both, &axis]).value();
            let turned = graph.op("Transpose", &[&one]).value();
            let flat = graph.op("Reshape", &[&turned, &flat]).value();
            graph.op("Gather", &[&table, &flat]).value()
        });
        let types = ("types".to_owned(), IndexRange::of_table(30));
        assert_eq!(ranges, ids_of(30).into_iter().chain([types]).collect());
    }

    #[test]
    fn the_axis_tells_which_length_counts_and_tables_may_be_quantized() {
        let ranges = found(|graph, ids, _| {
            let table = graph.raw("table", DataType::Uint8, &[4, 7], Bytes::from_static(&[1; 28]));
            let scale = graph.scalar(0.5_f32);
            let table = graph.op("DequantizeLinear", &[&table, &scale]).value();
            graph.op("Gather", &[&table, ids]).attr("axis", -1).value()
        });
        assert_eq!(ranges, ids_of(7));
    }

    #[test]
    fn indices_cut_to_int32_are_judged_as_the_graph_reads_them() {
        let ranges = found(|graph, ids, _| {
            let table = table(graph, 5);
            let ids = graph.op("Cast", &[ids]).attr("to", Elem::Int32 as i64).value();
            graph.op("Gather", &[&table, &ids]).value()
        });
        assert_eq!(ranges["ids"], IndexRange { as_int32: true, ..IndexRange::of_table(5) });
    }

    #[test]
    fn what_changes_an_index_or_hides_a_table_gives_no_range() {
        let clipped = found(|graph, ids, _| {
            let (table, least, most) = (table(graph, 5), graph.scalar(0_i64), graph.scalar(4_i64));
            let ids = graph.op("Clip", &[ids, &least, &most]).value();
            graph.op("Gather", &[&table, &ids]).value()
        });
        let picked = found(|graph, ids, _| {
            let (table, from, to) = (table(graph, 5), graph.literal(&[0_i64]), graph.literal(&[1_i64]));
            let ids = graph.op("Slice", &[ids, &from, &to]).value();
            graph.op("Gather", &[&table, &ids]).value()
        });
        let computed = found(|graph, ids, types| {
            let types = graph.op("Cast", &[types]).attr("to", Elem::Float as i64).value();
            graph.op("Gather", &[&types, ids]).value()
        });
        assert_eq!([clipped, picked, computed].map(|ranges| ranges.len()), [0; 3]);
    }

    #[test]
    fn a_gather_that_need_not_run_refuses_nothing() {
        let unread = found(|graph, ids, types| {
            let table = table(graph, 5);
            graph.op("Gather", &[&table, ids]).value();
            graph.op("Cast", &[types]).attr("to", Elem::Float as i64).value()
        });
        let shape_alone = found(|graph, ids, _| {
            let table = table(graph, 5);
            let gathered = graph.op("Gather", &[&table, ids]).value();
            graph.op("Shape", &[&gathered]).value()
        });
        let branch = found(|graph, ids, _| {
            let (table, more) = (table(graph, 5), graph.scalar(true));
            let mut taken = graph.subgraph("taken");
            let gathered = taken.op("Gather", &[&table, ids]).value();
            taken.output(&gathered, DataType::Fp32, &[]);
            let mut left = graph.subgraph("left");
            let zero = left.scalar(0.0_f32);
            left.output(&zero, DataType::Fp32, &[]);
            graph.op("If", &[&more]).attr("then_branch", taken).attr("else_branch", left).value()
        });
        assert_eq!([unread, shape_alone, branch].map(|ranges| ranges.len()), [0; 3]);
    }

    #[test]
    fn what_is_no_model_has_no_ranges() {
        assert!(index_ranges(b"garbage").is_empty());
        assert!(index_ranges(&[]).is_empty());
        let unseen = zoo::lookup().expect("the graph is sound").to_bytes();
        assert!(index_ranges(&unseen).is_empty());
    }
}
