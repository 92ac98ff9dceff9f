//! `Scan`: keeps the operator, and lets its body keep the states of rows whose steps have ended.

use paternoster_model::DataType;

use super::writer::{Writer, inverse};
use crate::{
    PortDim,
    infer::ScanForm,
    links::{NodeId, TensorId},
    nodes::{int, integers, ints, node},
    pb::{self, attribute_proto::AttributeType, tensor_proto::DataType as Elem},
    port::declare,
    recurrent::{check::ScanState, label, layer::Layer},
    segments::{NotOpened, refused},
};

impl Writer<'_, '_> {
    /// Adds a `Scan` over the steps of a run, in the order in which they run, with its states as inputs and outputs.
    ///
    /// The operator knows no lengths of rows. It therefore scans one more tensor, which says whether each row has the
    /// step; in a row that has not, the body gives each state as it takes it.
    pub(super) fn scan(&mut self, id: NodeId) -> Result<(), NotOpened> {
        let plan = self.plan;
        let mut scan = plan.graph.node[id].clone();
        let name = label(&scan);
        let not_understood = || refused(format!("{name} has a form that is not understood"));
        let layer = Layer::of(plan.graph, plan.links, id).ok_or_else(not_understood)?;
        let form = layer.scan.as_ref().ok_or_else(not_understood)?;
        let sequences = layer.sequences(&plan.steps).ok_or_else(not_understood)?;
        let starts = layer.starts().collect::<Option<Vec<TensorId>>>().ok_or_else(not_understood)?;
        let first = sequences.first().ok_or_else(not_understood)?;
        scan.input.push(self.running(*first));
        let prefix = self.name(&format!("scan{id}"));
        let mut body = form.body.clone();
        let running = format!("{prefix}/running");
        body.input.push(declare(&running, DataType::Bool, &[PortDim::Unknown, PortDim::Fixed(1)]));
        scan.output.resize(scan.output.len().max(form.states), String::new());
        let mut after = Vec::new();
        for (number, start) in starts.into_iter().enumerate() {
            let state = plan.scan_state(&name, start)?;
            if scan.output[number].is_empty() {
                scan.output[number] = format!("{prefix}/last{number}");
            }
            let (input, next) = self.scan_state(id, number, start, &state);
            scan.input[number] = input;
            let order = order(&state).map(|axis| axis as i64).collect::<Vec<_>>();
            after.push(node("Transpose", &[&scan.output[number]], &[&next], vec![ints("perm", &order)]));
            keep_ended(&mut body, &prefix, number, &state);
        }
        self.layers.push(name);
        set_attributes(&mut scan, form, body);
        self.made.node.push(scan);
        self.made.node.append(&mut after);
        Ok(())
    }

    /// Adds a state; returns its value for the operator, and the name of the output for the value after the run.
    fn scan_state(&mut self, id: NodeId, number: usize, start: TensorId, state: &ScanState) -> (String, String) {
        let name = self.name(&format!("state{id}.{number}"));
        let next = self.state(&name, state.datatype, &state.dims);
        let mut value = format!("{name}/in");
        let order: Vec<usize> = order(state).collect();
        self.made.node.push(node("Transpose", &[&name], &[&value], vec![ints("perm", &inverse(&order))]));
        if !self.plan.is_zero(start) {
            self.reads_begun = true;
            let begun = self.name("begun");
            let begun = column(&mut self.made, &begun, &format!("{name}/has_begun"), state);
            let chosen = format!("{name}/begun");
            let choice = Choice { condition: &begun, yes: &value, no: self.plan.links.name(start) };
            choice.add(&mut self.made, &chosen, state.datatype);
            value = chosen;
        }
        (value, next)
    }

    /// Returns the tensor `[steps, batch, 1]` that says which rows have which steps; adds it if it is the first use.
    fn running(&mut self, (sequence, axis): (TensorId, usize)) -> String {
        let running = self.name("running");
        if self.made.node.iter().any(|node| node.output.contains(&running)) {
            return running;
        }
        self.reads_lengths = true;
        let part = |name: &str| format!("{running}/{name}");
        let constants = [("axis", vec![axis as i64]), ("as_steps", vec![-1, 1, 1]), ("as_rows", vec![-1, 1])];
        self.made.initializer.extend(constants.map(|(name, values)| integers(&part(name), &values)));
        let one = pb::AttributeProto {
            name: Some("value".to_owned()),
            r#type: Some(AttributeType::Tensor.into()),
            t: Some(Box::new(integers("", &[1]))),
            ..Default::default()
        };
        let to_int32 = int("to", i64::from(i32::from(Elem::Int32)));
        let sequence = self.plan.links.name(sequence);
        // `Range` is younger than `Scan`.
        let nodes = [
            node("Shape", &[sequence], &[&part("shape")], Vec::new()),
            node("Gather", &[&part("shape"), &part("axis")], &[&part("count")], Vec::new()),
            node("ConstantOfShape", &[&part("count")], &[&part("ones")], vec![one]),
            node("NonZero", &[&part("ones")], &[&part("indices")], Vec::new()),
            node("Reshape", &[&part("indices"), &part("as_steps")], &[&part("by_steps")], Vec::new()),
            node("Cast", &[&part("by_steps")], &[&part("step")], vec![to_int32]),
            node("Reshape", &[&self.name("lengths"), &part("as_rows")], &[&part("lengths")], Vec::new()),
            node("Less", &[&part("step"), &part("lengths")], &[&running], Vec::new()),
        ];
        self.made.node.extend(nodes);
        running
    }
}

/// Returns the axes of a state's initial value with the batch first.
fn order(state: &ScanState) -> impl Iterator<Item = usize> {
    let rows = state.rows;
    std::iter::once(rows).chain((0..=state.dims.len()).filter(move |axis| *axis != rows))
}

fn set_attributes(scan: &mut pb::NodeProto, form: &ScanForm<'_>, body: pb::GraphProto) {
    let replaced = ["body", "num_scan_inputs", "scan_input_axes", "scan_input_directions", "scan_output_directions"];
    scan.attribute.retain(|attribute| !replaced.contains(&attribute.name()));
    let axes = form.inputs.iter().map(|input| input.axis).chain([0]);
    scan.attribute.extend([
        pb::AttributeProto {
            name: Some("body".to_owned()),
            r#type: Some(AttributeType::Graph.into()),
            g: Some(Box::new(body)),
            ..Default::default()
        },
        int("num_scan_inputs", form.inputs.len() as i64 + 1),
        ints("scan_input_axes", &axes.collect::<Vec<_>>()),
    ]);
}

/// Lets a body give a state as it takes it where the row does not have the step.
fn keep_ended(body: &mut pb::GraphProto, prefix: &str, number: usize, state: &ScanState) {
    let running = column(body, &format!("{prefix}/running"), &format!("{prefix}/running{number}"), state);
    let next = format!("{prefix}/next{number}");
    let taken = body.input[number].name().to_owned();
    let given = body.output[number].name.replace(next.clone()).unwrap_or_default();
    Choice { condition: &running, yes: &given, no: &taken }.add(body, &next, state.datatype);
}

/// Returns a condition `[batch, 1]` in the form in which it is broadcast to a state.
fn column(graph: &mut pb::GraphProto, condition: &str, name: &str, state: &ScanState) -> String {
    if (state.rows, state.dims.len()) == (0, 1) {
        return condition.to_owned();
    }
    let shape: Vec<i64> = (0..=state.dims.len()).map(|axis| if axis == state.rows { -1 } else { 1 }).collect();
    let shape_name = format!("{name}/shape");
    graph.initializer.push(integers(&shape_name, &shape));
    graph.node.push(node("Reshape", &[condition, &shape_name], &[name], Vec::new()));
    name.to_owned()
}

/// A choice between two tensors, by element.
struct Choice<'a> {
    condition: &'a str,
    yes: &'a str,
    no: &'a str,
}

impl Choice<'_> {
    /// Adds the choice. ONNX Runtime's `Where` does not take BOOL.
    fn add(&self, graph: &mut pb::GraphProto, result: &str, datatype: DataType) {
        let Self { condition, yes, no } = *self;
        if datatype != DataType::Bool {
            graph.node.push(node("Where", &[condition, yes, no], &[result], Vec::new()));
            return;
        }
        let to = |elem: Elem| vec![int("to", i64::from(i32::from(elem)))];
        let [as_yes, as_no, chosen] = ["yes", "no", "chosen"].map(|part| format!("{result}/{part}"));
        graph.node.extend([
            node("Cast", &[yes], &[&as_yes], to(Elem::Uint8)),
            node("Cast", &[no], &[&as_no], to(Elem::Uint8)),
            node("Where", &[condition, &as_yes, &as_no], &[&chosen], Vec::new()),
            node("Cast", &[&chosen], &[result], to(Elem::Bool)),
        ]);
    }
}
