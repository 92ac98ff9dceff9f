//! Makes plans of graphs.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use paternoster_device::cuda::{KernelElement, products::Multiplication};
use paternoster_model::TensorSpec;
use paternoster_onnx::{ExternalWeight, Model, Port, PortDim, SealedModel, pb};

use super::{
    attention,
    codegen::{self, Program},
    constants,
    fuse::{self, Step},
    ir::{BufferId, Count, Dims, ELEMENTS_MAX, Half, Holder, Kind, Work, elements},
    lower::{Call, Lowering, PlannedNode, Value},
    narrow, rectify, residual,
};
use crate::Precision;

/// Why a graph has no plan.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// Nodes that cannot be lowered; all of them are listed.
    #[error("operators without a plan: {}", .0.join(", "))]
    Operators(Vec<String>),
    /// An input, output or weight does not fit the graph or cannot be read.
    #[error("{0}")]
    Tensor(String),
}

/// The source of a plan: a graph, and its weights in other files.
#[derive(Clone, Copy, Debug)]
pub struct PlanSource<'m> {
    model: &'m Model,
    sealed: Option<&'m SealedModel>,
}

impl<'m> From<&'m Model> for PlanSource<'m> {
    /// A graph with all weights in its file.
    fn from(model: &'m Model) -> Self {
        Self { model, sealed: None }
    }
}

impl<'m> From<&'m SealedModel> for PlanSource<'m> {
    fn from(sealed: &'m SealedModel) -> Self {
        Self { model: sealed.model(), sealed: Some(sealed) }
    }
}

/// A graph as a list of launches, for any number of rows. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Plan(pub(super) Arc<Parts>);

/// The content of a plan.
#[derive(Debug)]
pub(super) struct Parts {
    inputs: Vec<TensorSpec>,
    outputs: Vec<TensorSpec>,
    pub(super) precision: Precision,
    pub(super) work: Work,
    pub(super) steps: Vec<Step>,
    /// Source and launch data of its generated kernels.
    pub(super) program: Program,
    /// Row counts that row kernels read in place of the number of live rows.
    pub(super) counts: Vec<Count>,
}

impl Plan {
    /// Plans a graph with these inputs and outputs, in the caller's order and with the dims of one row. If
    /// `has_batch_axis`, axis 0 of the graph's tensors is the batch; otherwise there is a single row.
    ///
    /// # Errors
    /// Fails if nodes have no lowering (all are named), if an input or output is not in the graph or has a varying
    /// length, or if a weight in another file cannot be read.
    pub fn new<'m>(
        graph: impl Into<PlanSource<'m>>,
        inputs: &[TensorSpec],
        outputs: &[TensorSpec],
        has_batch_axis: bool,
        precision: Precision,
    ) -> Result<Self, PlanError> {
        let (lowering, wanted) = lowered(graph.into(), inputs, outputs, has_batch_axis)?;
        let (mut work, shapes) = lowering.finish(&wanted).map_err(PlanError::Operators)?;
        let outputs =
            outputs.iter().zip(shapes).map(|(spec, (dims, by_rows))| given(spec, &dims, by_rows, has_batch_axis));
        let outputs = outputs.collect::<Result<_, _>>()?;
        let half = match precision {
            Precision::Ieee | Precision::Tf32 => None,
            Precision::Bf16 => Some(Half::Bf16),
            Precision::Fp16 => Some(Half::F16),
        };
        attention::attended(&mut work, &inputs.iter().map(padded_axis).collect::<Vec<_>>());
        // cuDNN does not document BF16 for its fused call of convolution, addend, bias and rectifier.
        if half != Some(Half::Bf16) {
            rectify::rectified(&mut work);
        }
        if let Some(half) = half {
            narrow::narrowed(&mut work, half);
        }
        residual::normalized(&mut work);
        // Fusion comes last, since it turns the operations, on which the passes above work, into launches.
        let steps = fuse::fused(&mut work);
        let counts = codegen::counts(&steps);
        let program = codegen::program(&work, &steps, &counts, has_batch_axis);
        let parts = Parts { inputs: inputs.to_vec(), outputs, precision, work, steps, program, counts };
        Ok(Self(Arc::new(parts)))
    }

    /// Returns how each node that the outputs need is lowered, whether or not all have a lowering.
    ///
    /// # Errors
    /// Fails as [`Self::new`], except for nodes without a lowering.
    pub fn nodes<'m>(
        graph: impl Into<PlanSource<'m>>,
        inputs: &[TensorSpec],
        outputs: &[TensorSpec],
        has_batch_axis: bool,
    ) -> Result<Vec<PlannedNode>, PlanError> {
        lowered(graph.into(), inputs, outputs, has_batch_axis).map(|(lowering, _)| lowering.nodes)
    }

    /// Returns the inputs.
    pub fn inputs(&self) -> &[TensorSpec] {
        &self.0.inputs
    }

    /// Returns the outputs, with lengths that the specification leaves open.
    pub fn outputs(&self) -> &[TensorSpec] {
        &self.0.outputs
    }

    /// Returns the number of launches per batch.
    pub fn launches(&self) -> usize {
        self.0.steps.len() + usize::from(self.0.program.has_head)
    }

    /// Returns the minimum that a batch of `rows` rows demands of a card.
    pub fn demand(&self, rows: u32) -> Demand {
        let (work, rows) = (&self.0.work, rows as usize);
        let mut weights = HashSet::new();
        let mut flops = 0.0;
        for step in &self.0.steps {
            let (read, each) = match step {
                Step::Product(product) => (product.reads(), product.flops(rows)),
                Step::Convolution(convolution) => (convolution.reads(), convolution.flops(rows)),
                Step::Attention(attention) => (Vec::new(), attention.flops(rows)),
                Step::Kernel(_) | Step::Rowwise(_) | Step::Reduce(_) => continue,
            };
            flops += each;
            weights.extend(read.into_iter().filter(|&id| matches!(work.buffers[id].holder, Holder::Constant(_))));
        }
        let bytes = weights.into_iter().map(|id| work.buffers[id].elements * work.buffers[id].element_bytes());
        Demand { flops, weight_bytes: bytes.sum() }
    }

    /// Returns the source of the plan's own kernels, in the vocabulary of `kernels/README.md`.
    pub fn source(&self) -> &str {
        &self.0.program.text
    }
}

impl Parts {
    /// Returns the number of inputs.
    pub(super) fn input_count(&self) -> usize {
        self.inputs.len()
    }

    /// Returns the number of outputs.
    pub(super) fn output_count(&self) -> usize {
        self.outputs.len()
    }

    /// Returns the type of a buffer's numbers in memory.
    pub(super) fn element(&self, buffer: BufferId) -> KernelElement {
        match self.work.buffers[buffer].half {
            None => KernelElement::F32,
            Some(Half::F16) => KernelElement::F16,
            Some(Half::Bf16) => KernelElement::Bf16,
        }
    }

    /// Returns how fp32 operands are multiplied.
    pub(super) fn multiplication(&self) -> Multiplication {
        match self.precision {
            Precision::Tf32 => Multiplication::Tf32,
            Precision::Ieee | Precision::Bf16 | Precision::Fp16 => Multiplication::Ieee,
        }
    }

    /// Returns whether rows may have indices that are out of range of their tables.
    pub(super) fn notes_faults(&self) -> bool {
        self.program.kernels.iter().flatten().any(|kernel| kernel.notes_faults)
    }
}

/// The minimum that a batch demands of a card.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Demand {
    /// Floating-point operations of its products and convolutions, and of attention to all keys.
    pub flops: f64,
    /// Bytes of the weights of products and convolutions.
    pub weight_bytes: usize,
}

/// Requested outputs: their names in the graph and their types.
type Wanted<'m> = Vec<(&'m str, Kind)>;

/// Lowers the nodes that the outputs need.
fn lowered<'m>(
    PlanSource { model, sealed }: PlanSource<'m>,
    inputs: &[TensorSpec],
    outputs: &[TensorSpec],
    has_batch_axis: bool,
) -> Result<(Lowering<'m>, Wanted<'m>), PlanError> {
    let graph = model.0.graph.as_ref().ok_or_else(|| PlanError::Tensor("the file holds no graph".to_owned()))?;
    let mut work = Work::default();
    let mut values = HashMap::new();
    for (index, spec) in inputs.iter().enumerate() {
        let (name, kind, dims) = input_of(graph, spec, has_batch_axis)?;
        let buffer = work.buffer(kind, has_batch_axis, dims.iter().product(), Holder::Input(index));
        values.insert(name, Value::Tensor(work.whole(buffer, &dims)));
    }
    let wanted: Vec<(&str, Kind)> =
        outputs.iter().map(|spec| Ok((output_of(graph, spec)?, kind_of("output", spec)?))).collect::<Result<_, _>>()?;
    let needed = needed(graph, wanted.iter().map(|(name, _)| *name));
    let outside: HashMap<&str, &ExternalWeight> =
        sealed.into_iter().flat_map(SealedModel::weights).map(|weight| (weight.name.as_str(), weight)).collect();
    for weight in graph.initializer.iter().filter(|weight| needed.contains(weight.name())) {
        // An initializer that is also an input of the model is only a default value.
        if values.contains_key(weight.name()) {
            continue;
        }
        let refused = |reason: String| PlanError::Tensor(format!("weight '{}': {reason}", weight.name()));
        let (kind, dims, bytes) = constants::of(weight, outside.get(weight.name()).copied()).map_err(refused)?;
        if elements(&dims).is_none() {
            return Err(refused(format!("its shape is {dims:?}, expected fewer than {ELEMENTS_MAX} elements")));
        }
        let buffer = work.constant(kind, bytes);
        values.insert(weight.name(), Value::Tensor(work.whole(buffer, &dims)));
    }
    for input in graph.input.iter().filter(|input| needed.contains(input.name())) {
        if !values.contains_key(input.name()) {
            return Err(PlanError::Tensor(format!("the graph needs an input '{}', which is not given", input.name())));
        }
    }
    let standard = model.0.opset_import.iter().find(|set| matches!(set.domain(), "" | "ai.onnx"));
    let opset = standard.map_or(1, |set| set.version());
    let names = wanted.iter().enumerate().map(|(index, (name, _))| (*name, index)).collect();
    let is_needed = |node: &&pb::NodeProto| node.output.iter().any(|name| needed.contains(name.as_str()));
    let nodes = || graph.node.iter().filter(is_needed);
    // Rules may change the operation that computes a tensor only if nothing else reads it.
    let mut uses = HashMap::new();
    let read = nodes().flat_map(|node| &node.input).map(String::as_str);
    for name in read.chain(wanted.iter().map(|(name, _)| *name)) {
        *uses.entry(name).or_default() += 1;
    }
    let mut lowering = Lowering::new(work, values, names, uses);
    for node in nodes() {
        lowering.node(&Call { node, opset });
    }
    Ok((lowering, wanted))
}

/// Returns the dims of a row as in the graph.
fn dims_of(spec: &TensorSpec) -> &[i64] {
    spec.reshape.as_ref().unwrap_or(&spec.dims)
}

/// Returns the symbol of the axis to which an input's elements belong; `None` if the axis is not padded, or if there
/// are several.
fn padded_axis(spec: &TensorSpec) -> Option<usize> {
    let mut long = spec.dims.iter().enumerate().filter(|(_, dim)| **dim != 1).map(|(axis, _)| axis);
    let axis = long.next().filter(|_| long.next().is_none() && spec.reshape.is_none())?;
    spec.symbols.get(axis).copied().flatten().map(|symbol| usize::from(symbol.0))
}

fn kind_of(what: &str, spec: &TensorSpec) -> Result<Kind, PlanError> {
    Kind::of(spec.datatype).ok_or_else(|| {
        let (name, datatype) = (&spec.name, spec.datatype);
        PlanError::Tensor(format!("{what} '{name}' is {datatype}, expected FP32, INT64, INT32 or BOOL"))
    })
}

/// Returns the name of an input in the graph, its type, and the dims of a row.
fn input_of<'m>(
    graph: &'m pb::GraphProto,
    spec: &TensorSpec,
    has_batch_axis: bool,
) -> Result<(&'m str, Kind, Dims), PlanError> {
    let refused = |reason: String| PlanError::Tensor(format!("input '{}' {reason}", spec.name));
    let info = graph.input.iter().find(|input| input.name() == spec.name);
    let info = info.ok_or_else(|| refused("is not an input of the graph".to_owned()))?;
    let kind = kind_of("input", spec)?;
    let lengths = dims_of(spec).iter().map(|&length| usize::try_from(length).ok().filter(|&length| length > 0));
    let lengths: Option<Dims> = lengths.collect();
    let open = || refused(format!("has the dims {:?}, expected lengths that do not vary", dims_of(spec)));
    let dims: Dims = has_batch_axis.then_some(1).into_iter().chain(lengths.ok_or_else(open)?).collect();
    if elements(&dims).is_none() {
        return Err(refused(format!("has the dims {:?}, expected fewer than {ELEMENTS_MAX} elements", dims_of(spec))));
    }
    let port = Port::of(info);
    if port.datatype.is_some_and(|datatype| datatype != spec.datatype) {
        return Err(refused(format!("is {} in the graph, expected {}", port.type_name, spec.datatype)));
    }
    if let Some(declared) = &port.dims {
        let is_axis = |axis: usize, declared: &PortDim| match declared {
            PortDim::Fixed(length @ 0..) => axis == 0 && has_batch_axis || *length == dims[axis] as i64,
            _ => true,
        };
        let fits = declared.len() == dims.len() && declared.iter().enumerate().all(|(axis, dim)| is_axis(axis, dim));
        if !fits {
            return Err(refused(format!("has the dims {:?}, which are not the graph's {declared:?}", dims_of(spec))));
        }
    }
    Ok((info.name(), kind, dims))
}

fn output_of<'m>(graph: &'m pb::GraphProto, spec: &TensorSpec) -> Result<&'m str, PlanError> {
    let found = graph.output.iter().find(|output| output.name() == spec.name);
    let absent = || PlanError::Tensor(format!("'{}' is not an output of the graph", spec.name));
    found.map(|output| output.name()).ok_or_else(absent)
}

/// Returns an output with its actual dims.
fn given(spec: &TensorSpec, dims: &[usize], by_rows: bool, has_batch_axis: bool) -> Result<TensorSpec, PlanError> {
    let refused = |reason: String| PlanError::Tensor(format!("output '{}' {reason}", spec.name));
    let row = match (has_batch_axis, by_rows, dims) {
        (false, _, dims) => dims,
        (true, true, [1, dims @ ..]) => dims,
        (true, true, _) => return Err(refused(format!("has {} entries for each row of a batch", dims[0]))),
        (true, false, _) => return Err(refused("does not depend on the rows of a batch".to_owned())),
    };
    let wanted = dims_of(spec);
    let fits = wanted.len() == row.len() && wanted.iter().zip(row).all(|(&to, &is)| to < 0 || to == is as i64);
    if !fits {
        return Err(refused(format!("has the dims {row:?} a row, expected {wanted:?}")));
    }
    let mut spec = spec.clone();
    if spec.reshape.is_none() {
        spec.dims = row.iter().map(|&length| length as i64).collect();
    }
    Ok(spec)
}

/// Returns these tensors and all tensors on which they depend.
fn needed<'m>(graph: &'m pb::GraphProto, outputs: impl Iterator<Item = &'m str>) -> HashSet<&'m str> {
    let mut makers = HashMap::new();
    for node in &graph.node {
        for name in &node.output {
            makers.entry(name.as_str()).or_insert(node);
        }
    }
    let mut needed = HashSet::new();
    let mut waiting: Vec<&str> = outputs.collect();
    while let Some(name) = waiting.pop() {
        if needed.insert(name)
            && let Some(node) = makers.get(name)
        {
            waiting.extend(node.input.iter().map(String::as_str).filter(|name| !name.is_empty()));
        }
    }
    needed
}
