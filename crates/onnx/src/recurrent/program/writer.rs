//! Writes the program of one segment: its inputs, nodes and outputs.

use std::collections::{HashMap, HashSet};

use paternoster_model::DataType;

use super::{Content, Form, form_of};
use crate::{
    Model, Port, PortDim,
    infer::has_states,
    links::{NodeId, TensorId},
    nodes::{int, integers, ints, node},
    pb::{self, tensor_proto::DataType as Elem},
    port::{declare, elem_of},
    recurrent::{
        assign::{Place, Plan},
        label, named,
    },
    segments::{
        NotOpened, OpenedSegment, SegmentEmit, SegmentInput, SegmentKind, SegmentSource, SegmentTensor, refused,
    },
};

/// First operator set in which axes are operands.
const AXES_AS_OPERANDS: i64 = 13;

/// What the file gives, by name.
pub(super) struct Given<'g> {
    inputs: HashMap<&'g str, &'g pb::ValueInfoProto>,
    weights: HashMap<&'g str, &'g pb::TensorProto>,
    sparse: HashMap<&'g str, &'g pb::SparseTensorProto>,
}

impl<'g> Given<'g> {
    pub(super) fn new(graph: &'g pb::GraphProto) -> Self {
        let sparse = graph.sparse_initializer.iter().filter_map(|it| Some((it.values.as_ref()?.name(), it)));
        Self {
            inputs: graph.input.iter().map(|input| (input.name(), input)).collect(),
            weights: graph.initializer.iter().map(|weight| (weight.name(), weight)).collect(),
            sparse: sparse.collect(),
        }
    }
}

/// Writes the program of one segment.
pub(super) struct Writer<'a, 'g> {
    pub plan: &'a Plan<'g>,
    given: &'a Given<'g>,
    /// By segment: its number among those that are kept.
    numbers: &'a [usize],
    segment: usize,
    kind: SegmentKind,
    content: &'a Content,
    pub made: pb::GraphProto,
    inputs: Vec<SegmentInput>,
    emits: Vec<SegmentEmit>,
    emitted: HashSet<String>,
    pub layers: Vec<String>,
    /// Outputs that are states, which are declared last.
    states: Vec<pb::ValueInfoProto>,
    pub reads_lengths: bool,
    pub reads_begun: bool,
}

impl<'a, 'g> Writer<'a, 'g> {
    pub(super) fn new(
        plan: &'a Plan<'g>,
        given: &'a Given<'g>,
        numbers: &'a [usize],
        segment: usize,
        content: &'a Content,
    ) -> Self {
        Self {
            plan,
            given,
            numbers,
            segment,
            kind: plan.kinds[segment],
            content,
            made: pb::GraphProto::default(),
            inputs: Vec::new(),
            emits: Vec::new(),
            emitted: HashSet::new(),
            layers: Vec::new(),
            states: Vec::new(),
            reads_lengths: false,
            reads_begun: false,
        }
    }

    pub(super) fn name(&self, rest: &str) -> String {
        format!("{}/{rest}", self.plan.unified.prefix)
    }

    pub(super) fn segment(mut self, frame: &pb::ModelProto) -> Result<OpenedSegment, NotOpened> {
        let plan = self.plan;
        for &tensor in &self.content.weights {
            let name = plan.links.name(tensor);
            match (self.given.weights.get(name), self.given.sparse.get(name)) {
                (Some(&weight), _) => self.made.initializer.push(weight.clone()),
                (None, Some(&sparse)) => self.made.sparse_initializer.push(sparse.clone()),
                (None, None) => return Err(refused(format!("{} is defined by nothing", named(plan.links, tensor)))),
            }
        }
        for &tensor in &self.content.inputs {
            self.input(tensor)?;
        }
        // Nodes for the lengths come before all that read them, and are known only after these.
        let before = std::mem::take(&mut self.made.node);
        for &id in &self.content.nodes {
            if plan.picks_last[id] {
                self.picked(id)?;
            } else if plan.runs_along_steps(id) {
                if has_states(&plan.graph.node[id]) { self.scan(id)? } else { self.gates(id)? }
            } else {
                self.made.node.push(plan.graph.node[id].clone());
                let by_contents = plan.links.node(id).reads.iter().any(|&tensor| plan.has_contents[tensor]);
                if by_contents && plan.steps.is_barrier(id) {
                    self.layers.push(label(&plan.graph.node[id]));
                }
            }
        }
        for &(tensor, form) in &self.content.roots {
            self.output(tensor, form)?;
        }
        let mut nodes = before;
        self.shared(&mut nodes);
        nodes.append(&mut self.made.node);
        self.made.node = nodes;
        self.made.output.append(&mut self.states);
        let number = self.numbers[self.segment] + 1;
        let name = match self.kind {
            SegmentKind::Stage => format!("stage{number}"),
            SegmentKind::Chain { .. } | SegmentKind::Decode => format!("chain{number}"),
        };
        self.made.name = Some(format!("{}/{name}", plan.graph.name()));
        let Self { made, inputs, emits, layers, kind, .. } = self;
        let model = Model(pb::ModelProto { graph: Some(made), ..frame.clone() });
        Ok(OpenedSegment { name, kind, model, inputs, emits, layers })
    }

    /// Returns the order of the axes in which a tensor leaves its segment.
    fn order(&self, tensor: TensorId, form: Form) -> Result<Vec<usize>, NotOpened> {
        let plan = self.plan;
        let refuse = |why: &str| refused(format!("{} passes between segments, but {why}", named(plan.links, tensor)));
        let rows = plan.rows_of(tensor).ok_or_else(|| refuse("its rows cannot be told apart"))?;
        let rank = plan.rows.fact(tensor).dims.as_ref().map_or(0, Vec::len);
        let mut first = vec![rows];
        if form == Form::Steps {
            first.push(plan.steps_axis(tensor).ok_or_else(|| refuse("its steps cannot be told apart"))?);
        }
        let rest = (0..rank).filter(|axis| !first.contains(axis));
        Ok(first.iter().copied().chain(rest).collect())
    }

    /// Declares a tensor with its axes in this order.
    fn declared(&self, name: &str, tensor: TensorId, order: &[usize]) -> Result<pb::ValueInfoProto, NotOpened> {
        let plan = self.plan;
        let datatype = plan.rows.fact(tensor).datatype;
        let datatype = datatype.ok_or_else(|| refused(format!("{} has an unknown type", named(plan.links, tensor))))?;
        let dims = plan.rows.port_dims(tensor).unwrap_or_default();
        let dims: Vec<PortDim> = order.iter().map(|&axis| dims[axis].clone()).collect();
        Ok(declare(name, datatype, &dims))
    }

    fn input(&mut self, tensor: TensorId) -> Result<(), NotOpened> {
        let plan = self.plan;
        let (is_chain, name) = (self.kind != SegmentKind::Stage, plan.links.name(tensor));
        let by_steps = is_chain && plan.steps_axis(tensor).is_some();
        let source = |tensor| if by_steps { SegmentSource::Steps(tensor) } else { SegmentSource::Whole(tensor) };
        let Some(maker) = plan.links.maker(tensor) else {
            self.made.input.extend(self.given.inputs.get(name).map(|&input| input.clone()));
            let source = source(SegmentTensor::Input(name.to_owned()));
            self.inputs.push(SegmentInput { name: name.to_owned(), source });
            return Ok(());
        };
        let Place::In(from) = plan.places[maker] else {
            return Err(refused(format!("{} comes from no segment", named(plan.links, tensor))));
        };
        let from_stage = plan.kinds[from] == SegmentKind::Stage;
        let form = if from_stage && !is_chain { Form::Whole } else { form_of(plan, tensor) };
        let order = self.order(tensor, form)?;
        let own = if order.is_sorted() { name.to_owned() } else { self.name(&format!("in/{name}")) };
        self.made.input.push(self.declared(&own, tensor, &order)?);
        if !order.is_sorted() {
            self.made.node.push(node("Transpose", &[&own], &[name], vec![ints("perm", &inverse(&order))]));
        }
        let emitted = SegmentTensor::Emitted { segment: self.numbers[from], name: self.emitted(tensor, form)? };
        self.inputs.push(SegmentInput { name: own, source: source(emitted) });
        Ok(())
    }

    /// Returns the name under which a tensor is emitted. A stage may emit it in two forms.
    fn emitted(&self, tensor: TensorId, form: Form) -> Result<String, NotOpened> {
        let plan = self.plan;
        let name = plan.links.name(tensor);
        let from_stage = plan.links.maker(tensor).is_some_and(
            |maker| matches!(plan.places[maker], Place::In(from) if plan.kinds[from] == SegmentKind::Stage),
        );
        let is_other =
            from_stage && form == Form::Steps && self.order(tensor, form)? != self.order(tensor, Form::Whole)?;
        Ok(if is_other { self.name(&format!("steps/{name}")) } else { name.to_owned() })
    }

    fn output(&mut self, tensor: TensorId, form: Form) -> Result<(), NotOpened> {
        let plan = self.plan;
        let name = plan.links.name(tensor);
        let order = self.order(tensor, form)?;
        let emitted = self.emitted(tensor, form)?;
        if !self.emitted.insert(emitted.clone()) {
            return Ok(());
        }
        let own = if order.is_sorted() && !self.content.inputs.contains(&tensor) {
            name.to_owned()
        } else {
            self.name(&format!("out{}/{name}", form as u8))
        };
        if own != name {
            let order: Vec<i64> = order.iter().map(|&axis| axis as i64).collect();
            self.made.node.push(node("Transpose", &[name], &[&own], vec![ints("perm", &order)]));
        }
        let declared = self.declared(&own, tensor, &order)?;
        let is_chain = self.kind != SegmentKind::Stage;
        let is_by_steps = is_chain && form == Form::Steps;
        if is_chain && !is_by_steps {
            self.last(&own, &declared, tensor)?;
        }
        self.made.output.push(declared);
        self.emits.push(SegmentEmit { name: emitted, output: own, is_by_steps });
        Ok(())
    }

    /// Makes an output a state, so that it has no axis of steps. Nothing reads it.
    fn last(&mut self, output: &str, declared: &pb::ValueInfoProto, tensor: TensorId) -> Result<(), NotOpened> {
        let dims = Port::of(declared).dims.unwrap_or_default();
        if dims.iter().skip(1).any(|dim| dim.size() < 0) {
            return Err(refused(format!(
                "{} is the result of all steps, but varies in shape",
                named(self.plan.links, tensor)
            )));
        }
        let name = self.name(&format!("unread/{}", self.inputs.len()));
        self.made.input.push(pb::ValueInfoProto { name: Some(name.clone()), ..declared.clone() });
        self.inputs.push(SegmentInput { name, source: SegmentSource::State(output.to_owned()) });
        Ok(())
    }

    /// Adds a state: an input, and an output for its next value.
    pub(super) fn state(&mut self, name: &str, datatype: DataType, dims: &[i64]) -> String {
        let next = format!("{name}/next");
        let mut all = vec![PortDim::Symbol("batch".to_owned())];
        all.extend(dims.iter().map(|&dim| PortDim::Fixed(dim)));
        self.made.input.push(declare(name, datatype, &all));
        self.states.push(declare(&next, datatype, &all));
        self.inputs.push(SegmentInput { name: name.to_owned(), source: SegmentSource::State(next.clone()) });
        next
    }

    /// Picks the last step of each row.
    fn picked(&mut self, id: NodeId) -> Result<(), NotOpened> {
        let plan = self.plan;
        let original = &plan.graph.node[id];
        let data = plan.links.node(id).operands.first().copied().flatten();
        let axis = data.and_then(|data| plan.steps_axis(data));
        let (Some(data), Some(axis), Some(result)) = (data, axis, original.output.first()) else {
            return Err(refused(format!("{} cannot be followed", label(original))));
        };
        self.reads_lengths = true;
        let order = self.order(data, Form::Steps)?;
        let mut from = plan.links.name(data).to_owned();
        if !order.is_sorted() {
            let turned = self.name(&format!("pick{id}/by_steps"));
            let perm: Vec<i64> = order.iter().map(|&axis| axis as i64).collect();
            self.made.node.push(node("Transpose", &[&from], &[&turned], vec![ints("perm", &perm)]));
            from = turned;
        }
        // What is left has the batch first, and then the other axes in the order of the graph.
        let left: Vec<usize> = order.iter().copied().filter(|at| *at != axis).collect();
        let keeps_axis = plan.steps.fact(data).dims.as_ref().map(Vec::len)
            == plan.links.find(result).and_then(|result| Some(plan.steps.fact(result).dims.as_ref()?.len()));
        let (is_turned, picked) = (!left.is_sorted(), self.name(&format!("pick{id}/step")));
        let index = self.name("last_step");
        let target = if is_turned || keeps_axis { &picked } else { result };
        self.made.node.push(node("GatherND", &[&from, &index], &[target], vec![int("batch_dims", 1)]));
        if is_turned {
            let turned = self.name(&format!("pick{id}/turned"));
            let target = if keeps_axis { &turned } else { result };
            self.made.node.push(node("Transpose", &[&picked], &[target], vec![ints("perm", &inverse(&ranks(&left)))]));
        }
        if keeps_axis {
            let from = if is_turned { self.name(&format!("pick{id}/turned")) } else { picked };
            if plan.unified.opset < AXES_AS_OPERANDS {
                self.made.node.push(node("Unsqueeze", &[&from], &[result], vec![ints("axes", &[axis as i64])]));
            } else {
                let axes = self.name(&format!("pick{id}/axes"));
                self.made.initializer.push(integers(&axes, &[axis as i64]));
                self.made.node.push(node("Unsqueeze", &[&from, &axes], &[result], Vec::new()));
            }
        }
        Ok(())
    }

    /// Adds what several nodes of a chain share, before them.
    fn shared(&mut self, nodes: &mut Vec<pb::NodeProto>) {
        if self.reads_begun {
            let begun = self.name("begun");
            let (next, truth) = (self.state(&begun, DataType::Bool, &[1]), self.name("true"));
            self.made.initializer.push(pb::TensorProto {
                name: Some(truth.clone()),
                data_type: Some(elem_of(DataType::Bool).into()),
                dims: vec![1],
                int32_data: vec![1],
                ..Default::default()
            });
            nodes.push(node("Or", &[&begun, &truth], &[&next], Vec::new()));
        }
        if !self.reads_lengths {
            return;
        }
        let lengths = self.name("lengths");
        self.made.input.push(declare(&lengths, DataType::Int32, &["batch".into()]));
        self.inputs.push(SegmentInput { name: lengths.clone(), source: SegmentSource::Lengths });
        let last = self.name("last_step");
        let [wide, one, less, shape] = ["wide", "one", "less", "shape"].map(|name| format!("{last}/{name}"));
        let is_read = self.made.node.iter().any(|node| node.input.contains(&last));
        if is_read {
            nodes.push(node("Cast", &[&lengths], &[&wide], vec![int("to", i64::from(i32::from(Elem::Int64)))]));
            nodes.push(node("Sub", &[&wide, &one], &[&less], Vec::new()));
            nodes.push(node("Reshape", &[&less, &shape], &[&last], Vec::new()));
            self.made.initializer.push(integers(&one, &[1]));
            self.made.initializer.push(integers(&shape, &[-1, 1]));
        }
    }
}

/// Returns the order that undoes an order of axes.
pub(super) fn inverse(order: &[usize]) -> Vec<i64> {
    let mut inverse = vec![0; order.len()];
    order.iter().enumerate().for_each(|(to, &from)| inverse[from] = to as i64);
    inverse
}

/// Returns the place of each of some numbers among them.
fn ranks(numbers: &[usize]) -> Vec<usize> {
    numbers.iter().map(|number| numbers.iter().filter(|other| *other < number).count()).collect()
}
