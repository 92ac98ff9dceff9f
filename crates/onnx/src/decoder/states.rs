//! Completes decoders that are served for the states of their tokens, and do not generate: the graph computes the
//! positions of tokens itself, has no earlier keys and values, and gives none.

use std::collections::HashSet;

use paternoster_model::DataType;

use super::{
    MASK, OPSET_MIN, POSITIONS, PRESENT, State, TOKENS, is_integer, is_past,
    program::{scalar, to, zero},
};
use crate::{
    Model, Port, SealedModel, Signature,
    nodes::{int, integers, node, standard_opset, unused_prefix},
    pb,
    port::declare,
    segments::{NotOpened, refused},
};

/// The inputs of a graph that are computed from its tokens.
struct Computed<'p> {
    tokens: &'p Port,
    mask: Option<&'p Port>,
    positions: Option<DataType>,
    states: Vec<State>,
}

impl<'p> Computed<'p> {
    /// `None` if the graph has no tokens.
    fn of(inputs: &'p [Port]) -> Result<Option<Self>, NotOpened> {
        let of_two_axes = |name: &str| {
            let is_it = |port: &&Port| port.name == name && port.dims.as_ref().is_some_and(|dims| dims.len() == 2);
            inputs.iter().find(|port| is_it(port) && port.datatype.as_ref().is_some_and(is_integer))
        };
        let Some(tokens) = of_two_axes(TOKENS) else { return Ok(None) };
        let states = inputs.iter().filter(|input| is_past(input)).map(State::of).collect::<Result<_, _>>()?;
        let positions = of_two_axes(POSITIONS).and_then(|port| port.datatype);
        Ok(Some(Self { tokens, mask: of_two_axes(MASK), positions, states }))
    }

    fn has(&self, input: &str) -> bool {
        let is_state = || self.states.iter().any(|state| state.past() == input);
        (input == POSITIONS && self.positions.is_some()) || is_state()
    }

    /// Returns the mask's shape: without earlier tokens, that of the tokens.
    fn mask_without_past(&self) -> Option<Port> {
        let mask = self.mask.filter(|_| !self.states.is_empty())?;
        Some(Port { dims: self.tokens.dims.clone(), ..mask.clone() })
    }
}

/// Removes from a signature what [`of_states`] computes.
///
/// # Errors
/// If keys and values have another shape than those of decoders.
pub fn complete_signature(signature: &mut Signature) -> Result<(), NotOpened> {
    let inputs = signature.inputs.clone();
    let Some(computed) = Computed::of(&inputs)? else { return Ok(()) };
    signature.inputs.retain(|input| !computed.has(&input.name));
    signature.outputs.retain(|output| !output.name.starts_with(PRESENT));
    if let (Some(mask), Some(own)) =
        (computed.mask_without_past(), signature.inputs.iter_mut().find(|input| input.name == MASK))
    {
        *own = mask;
    }
    Ok(())
}

/// Completes a sealed decoder. A token's position is the number of tokens before it. Padding has the position of the
/// token before it, which is valid wherever the padding is. Other graphs stay as they are.
///
/// # Errors
/// If keys and values have another shape than those of decoders, or the operator set is too old.
pub fn of_states(sealed: SealedModel) -> Result<SealedModel, NotOpened> {
    Ok(match complete(sealed.model())? {
        Some(model) => sealed.part(model),
        None => sealed,
    })
}

fn complete(model: &Model) -> Result<Option<Model>, NotOpened> {
    let Some(graph) = &model.0.graph else { return Ok(None) };
    let weights: HashSet<&str> = graph.initializer.iter().map(|weight| weight.name()).collect();
    let inputs = graph.input.iter().filter(|input| !weights.contains(input.name())).map(Port::of);
    let inputs: Vec<Port> = inputs.collect();
    let Some(computed) = Computed::of(&inputs)? else { return Ok(None) };
    let is_complete = |input: &Port| !computed.has(&input.name);
    if inputs.iter().all(is_complete) {
        return Ok(None);
    }
    let opset = standard_opset(&model.0);
    if opset < OPSET_MIN {
        return Err(refused(format!("its operator set is {opset}, expected {OPSET_MIN} or newer")));
    }
    let mut added = Added { prefix: unused_prefix(graph), nodes: Vec::new(), constants: Vec::new() };
    added.positions(&computed);
    added.past(&computed.states);
    let mut graph = graph.clone();
    graph.input.retain(|input| !computed.has(input.name()));
    graph.output.retain(|output| !output.name().starts_with(PRESENT));
    if let Some(Port { name, datatype: Some(datatype), dims: Some(dims), .. }) = computed.mask_without_past() {
        let mask = graph.input.iter_mut().find(|input| input.name() == name);
        mask.into_iter().for_each(|input| *input = declare(&name, datatype, &dims));
    }
    // They may name the lengths of earlier tokens.
    graph.value_info.clear();
    graph.initializer.append(&mut added.constants);
    graph.node.splice(0..0, added.nodes);
    Ok(Some(Model(pb::ModelProto { graph: Some(graph), ..model.0.clone() })))
}

/// What is added to a graph.
struct Added {
    /// What the names of new tensors begin with.
    prefix: String,
    nodes: Vec<pb::NodeProto>,
    constants: Vec<pb::TensorProto>,
}

impl Added {
    fn name(&self, rest: &str) -> String {
        format!("{}/{rest}", self.prefix)
    }

    fn op(&mut self, op: &str, inputs: &[&str], attributes: Vec<pb::AttributeProto>) -> String {
        let name = self.name(&format!("{}/{op}", self.nodes.len()));
        self.nodes.push(node(op, inputs, &[&name], attributes));
        name
    }

    fn constant(&mut self, constant: impl FnOnce(&str) -> pb::TensorProto) -> String {
        let name = self.name(&format!("constant{}", self.constants.len()));
        self.constants.push(constant(&name));
        name
    }

    fn number(&mut self, value: i64) -> String {
        self.constant(|name| scalar(name, DataType::Int64, value))
    }

    /// Counts the tokens of each row, `[batch, tokens]`.
    fn positions(&mut self, computed: &Computed<'_>) {
        let Some(datatype) = computed.positions else { return };
        let (zero_of, one) = (self.number(0), self.number(1));
        let there = match computed.mask {
            Some(mask) => self.op("Cast", &[&mask.name], vec![to(DataType::Int64)]),
            // Without a mask, requests of different lengths share no run.
            None => {
                let shape = self.op("Shape", &[TOKENS], Vec::new());
                let zeros = self.op("ConstantOfShape", &[&shape], vec![zero(DataType::Int64)]);
                self.op("Add", &[&zeros, &one], Vec::new())
            }
        };
        let counted = self.op("CumSum", &[&there, &one], Vec::new());
        let before = self.op("Sub", &[&counted, &one], Vec::new());
        // Padding before the first token.
        let places = self.op("Max", &[&before, &zero_of], Vec::new());
        self.nodes.push(node("Cast", &[&places], &[POSITIONS], vec![to(datatype)]));
    }

    /// Makes keys and values of no tokens, `[batch, heads, 0, width]`.
    fn past(&mut self, states: &[State]) {
        if states.is_empty() {
            return;
        }
        let shape = self.op("Shape", &[TOKENS], Vec::new());
        let first = self.constant(|name| integers(name, &[0]));
        let rows = self.op("Gather", &[&shape, &first], vec![int("axis", 0)]);
        for state in states {
            let rest = self.constant(|name| integers(name, &[state.heads, 0, state.width]));
            let shape = self.op("Concat", &[&rows, &rest], vec![int("axis", 0)]);
            self.nodes.push(node("ConstantOfShape", &[&shape], &[&state.past()], vec![zero(state.datatype)]));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        ExternalFiles, PortDim,
        build::Graph,
        infer::{RowDependence, infer},
        port::dims,
    };

    /// States `[batch, tokens, 4]` of tokens, positions and the keys of earlier tokens.
    fn embedder(opset: i64, heads: i64) -> Model {
        let mut graph = Graph::new("embedder");
        let tokens = graph.input(TOKENS, DataType::Int64, &dims!["batch", "tokens"]);
        let mask = graph.input(MASK, DataType::Int64, &dims!["batch", "all"]);
        let positions = graph.input(POSITIONS, DataType::Int32, &dims!["batch", "tokens"]);
        let past = ["batch".into(), PortDim::Fixed(heads), "past".into(), PortDim::Fixed(4)];
        let past = graph.input("past_key_values.0.key", DataType::Fp16, &past);
        let table = graph.constant("table", &[8, 4], &[0.0_f32; 32]);
        let states = graph.op("Gather", &[&table, &tokens]).value();
        let places = graph.op("Gather", &[&table, &positions]).value();
        let states = graph.op("Add", &[&states, &places]).value();
        let axes = graph.literal(&[1_i64]);
        let new = graph.op("Cast", &[&states]).attr("to", 10).value();
        let new = graph.op("Unsqueeze", &[&new, &axes]).value();
        let new = graph.op("Concat", &[&new, &new]).attr("axis", 1).value();
        let present = graph.op("Concat", &[&past, &new]).attr("axis", 2).named("present.0.key").value();
        // As attention does: over all keys, with the mask.
        let keys = graph.op("Cast", &[&present]).attr("to", 1).value();
        let axes = graph.literal(&[1_i64, 3]);
        let there = graph.op("Cast", &[&mask]).attr("to", 1).value();
        let there = graph.op("Unsqueeze", &[&there, &axes]).value();
        let keys = graph.op("Mul", &[&keys, &there]).value();
        let own = graph.op("ReduceMean", &[&keys]).attr("axes", [1_i64]).attr("keepdims", 0).value();
        let states = graph.op("Add", &[&states, &own]).named("last_hidden_state").value();
        graph.output(&states, DataType::Fp32, &dims!["batch", "tokens", 4]);
        graph.output(&present, DataType::Fp16, &dims!["batch", 2, "all", 4]);
        let mut model = graph.finish().expect("the graph is sound");
        model.0.opset_import[0].version = Some(opset);
        model
    }

    fn sealed(model: &Model) -> SealedModel {
        SealedModel::new("embedder", model.to_bytes(), &ExternalFiles::None).expect("it is sound")
    }

    fn signature(model: &Model) -> Signature {
        Signature::from_bytes("embedder", &model.to_bytes()).expect("it is a model")
    }

    #[test]
    fn a_graph_of_states_takes_tokens_and_their_mask_alone() {
        let model = embedder(17, 2);
        let completed = of_states(sealed(&model)).expect("it is one of a decoder");
        let names: Vec<&str> = completed.inputs().iter().map(|input| input.name).collect();
        assert_eq!((names, completed.outputs()), (vec![TOKENS, MASK], vec!["last_hidden_state"]));
        let mut told = signature(&model);
        complete_signature(&mut told).expect("it is one of a decoder");
        let made = signature(completed.model());
        assert_eq!((told.inputs, told.outputs), (made.inputs, made.outputs), "both say the same");
    }

    #[test]
    fn rows_and_the_axis_of_tokens_are_followed_through_what_is_added() {
        let completed = of_states(sealed(&embedder(17, 2))).expect("it is one of a decoder");
        let inference = infer(completed.model());
        let states = inference.tensor("last_hidden_state").expect("it is an output");
        assert_eq!((&states.rows, &states.dims), (&RowDependence::PerRow, &Some(dims!["batch", "tokens", 4].into())));
        let positions = inference.tensor(POSITIONS).expect("it is computed");
        assert_eq!(
            (&positions.rows, &positions.dims),
            (&RowDependence::PerRow, &Some(dims!["batch", "tokens"].into()))
        );
    }

    #[test]
    fn other_graphs_stay_and_what_cannot_be_completed_is_named() {
        let plain = crate::zoo::identity().expect("sound");
        let told = signature(&plain);
        let mut same = told.clone();
        complete_signature(&mut same).expect("it has no past");
        assert_eq!((of_states(sealed(&plain)).expect("it has no past").model(), same), (&plain, told));
        let fault = of_states(sealed(&embedder(12, 2))).expect_err("it is too old").to_string();
        assert_eq!(fault, "its operator set is 12, expected 13 or newer");
        let mut headless = signature(&embedder(17, -1));
        let fault = complete_signature(&mut headless).expect_err("its heads are unknown").to_string();
        assert!(
            fault.starts_with("'past_key_values.0.key': expected the axes [batch, heads, tokens, width]"),
            "{fault}"
        );
    }
}
