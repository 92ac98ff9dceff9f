//! Opens decoders as exporters write them for generation: graphs that take the keys and values of all earlier tokens
//! (`past_key_values.*`), and give those with the new tokens' (`present.*`) beside the scores of the next token
//! (`logits`).
//!
//! The result is two segments. The *prompt* is a stage: it computes the keys and values of all tokens of a prompt but
//! the last. The *decode* is a loop of one token a step (BatchMaker, section 4.2) that begins with that last token. A
//! step reads the keys and values of the prompt and of the steps before, and gives those of its token, and the token
//! with the highest score, which the next step reads.
//!
//! Requests at different steps share a run, so keys and values are padded. The loop's program moves padding before the
//! first token, masks it, and gives tokens the positions that they would have alone, as `generate` of Hugging Face's
//! `transformers` does with prompts of different lengths. A graph that would count padding is refused.

mod program;
mod states;
#[cfg(test)]
mod tests;

use std::collections::HashSet;

use paternoster_model::DataType;

use self::program::Opener;
pub use self::states::{complete_signature, of_states};
use super::{
    Model, Port, PortDim, SealedModel,
    cut::stage::frame,
    indices::ranges,
    links::{Links, TensorId},
    nodes::{standard_opset, unused_prefix},
    pb,
    segments::{NotOpened, OpenedSegment, refused},
};

/// The input with the tokens.
pub const TOKENS: &str = "input_ids";
/// What the names of the inputs for keys and values begin with.
const PAST: &str = "past_key_values.";
/// What the names of the outputs for keys and values begin with.
const PRESENT: &str = "present.";
/// The input that says which tokens are there.
const MASK: &str = "attention_mask";
/// The input with the positions of tokens.
const POSITIONS: &str = "position_ids";
/// The input with the number of tokens whose scores are given, by both names that exporters use.
const SCORED: [&str; 2] = ["num_logits_to_keep", "logits_to_keep"];
/// The output with the scores.
const SCORES: &str = "logits";

/// First operator set in which axes are operands of all operators that the programs add.
const OPSET_MIN: i64 = 13;

/// A decoder that was opened.
#[derive(Clone, Debug)]
pub struct Decoder {
    /// The prompt, and the loop.
    pub segments: [OpenedSegment; 2],
    /// The output of the loop's program with the next token.
    pub next: String,
    /// The output of the loop's program that is 1 if the next token is the last; `None` if no token is.
    pub ended: Option<String>,
    /// The number of positions, if the graph has a table of them.
    pub positions: Option<u64>,
}

/// Returns whether a graph with these inputs is a decoder with past keys and values, and the datatype of its tokens.
pub fn tokens_of(inputs: &[Port]) -> Option<DataType> {
    let has_past = inputs.iter().any(is_past);
    inputs.iter().find(|input| has_past && input.name == TOKENS)?.datatype
}

fn is_past(input: &Port) -> bool {
    input.name.starts_with(PAST)
}

fn is_integer(datatype: &DataType) -> bool {
    matches!(datatype, DataType::Int32 | DataType::Int64)
}

/// Opens a decoder. A token of `ends` is the last of its request.
///
/// # Errors
/// Returns why not.
pub fn open(model: &Model, ends: &[i64]) -> Result<Decoder, NotOpened> {
    let graph = model.0.graph.as_ref().ok_or_else(|| refused("there is no graph"))?;
    let opset = standard_opset(&model.0);
    if opset < OPSET_MIN {
        return Err(refused(format!("its operator set is {opset}, expected {OPSET_MIN} or newer")));
    }
    let is_fused = |node: &&pb::NodeProto| node.op_type() == "GroupQueryAttention";
    if let Some(node) = graph.node.iter().find(is_fused) {
        let operator = node.op_type();
        return Err(refused(format!("the operator {operator} counts padding; export without fused operators")));
    }
    let links = Links::new(graph);
    if links.order().len() < graph.node.len() {
        return Err(refused("nodes of the graph wait for their own outputs"));
    }
    let signature = Signature::of(graph)?;
    signature.knows_positions(graph, &links)?;
    let prefix = unused_prefix(graph);
    let opener = Opener { graph, links: &links, signature: &signature, prefix: &prefix, frame: &frame(&model.0) };
    let positions = ranges(graph).get(POSITIONS).and_then(|range| u64::try_from(range.most.saturating_add(1)).ok());
    Ok(Decoder { positions, ..opener.decoder(ends) })
}

/// Opens a sealed decoder; the programs use the same files of weights.
///
/// # Errors
/// Returns why not.
pub fn open_sealed(model: &SealedModel, ends: &[i64]) -> Result<(Decoder, Vec<SealedModel>), NotOpened> {
    let decoder = open(model.model(), ends)?;
    let programs = decoder.segments.iter().map(|segment| model.part(segment.model.clone())).collect();
    Ok((decoder, programs))
}

/// The inputs and outputs of a decoder.
struct Signature {
    tokens: DataType,
    mask: DataType,
    positions: Option<DataType>,
    /// The name of the input with the number of tokens whose scores are given, and its datatype and number of axes.
    scored: Option<(String, DataType, usize)>,
    scores: DataType,
    states: Vec<State>,
}

/// The keys or the values of one layer, `[batch, heads, tokens, width]`.
struct State {
    /// What its names end with, such as `0.key`.
    name: String,
    datatype: DataType,
    heads: i64,
    width: i64,
}

impl State {
    fn of(input: &Port) -> Result<Self, NotOpened> {
        let refuse = |found: String| {
            refused(format!("'{}': expected the axes [batch, heads, tokens, width], but found {found}", input.name))
        };
        let dims = input.dims.as_deref().ok_or_else(|| refuse("no shape".to_owned()))?;
        let shown = || format!("[{}]", dims.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "));
        let sizes: Vec<i64> = dims.iter().map(PortDim::size).collect();
        match (sizes.as_slice(), input.datatype) {
            (&[_, heads, -1, width], Some(datatype)) if heads > 0 && width > 0 => {
                Ok(Self { name: input.name[PAST.len()..].to_owned(), datatype, heads, width })
            }
            _ => Err(refuse(shown())),
        }
    }

    fn past(&self) -> String {
        format!("{PAST}{}", self.name)
    }

    fn present(&self) -> String {
        format!("{PRESENT}{}", self.name)
    }
}

impl Signature {
    fn of(graph: &pb::GraphProto) -> Result<Self, NotOpened> {
        let weights: HashSet<&str> = graph.initializer.iter().map(|weight| weight.name()).collect();
        let inputs = graph.input.iter().filter(|input| !weights.contains(input.name())).map(Port::of);
        let outputs: Vec<Port> = graph.output.iter().map(Port::of).collect();
        let output = |name: &str| outputs.iter().find(|output| output.name == name);
        let (mut tokens, mut mask, mut positions, mut scored) = (None, None, None, None);
        let mut states = Vec::new();
        for input in inputs {
            let name = input.name.as_str();
            let axes = input.dims.as_ref().map(Vec::len);
            let datatype = input.datatype.ok_or_else(|| refused(input.refusal()))?;
            match (name, axes) {
                (TOKENS, Some(2)) => tokens = Some(datatype),
                (MASK, Some(2)) => mask = Some(datatype),
                (POSITIONS, Some(2)) => positions = Some(datatype),
                (name, Some(axes @ 0..=1)) if SCORED.contains(&name) => {
                    scored = Some((name.to_owned(), datatype, axes));
                }
                _ if is_past(&input) => {
                    let state = State::of(&input)?;
                    let present = state.present();
                    output(&present).ok_or_else(|| refused(format!("'{name}' has no output '{present}'")))?;
                    states.push(state);
                }
                _ => {
                    return Err(refused(format!(
                        "the input '{name}' is none of a decoder alone, whose inputs are {TOKENS}, {MASK} and \
                         {POSITIONS} of two axes, and {PAST}*"
                    )));
                }
            }
        }
        let tokens = tokens.filter(is_integer);
        let tokens = tokens.ok_or_else(|| refused(format!("it has no input '{TOKENS}' of INT32 or INT64")))?;
        // Nothing else tells padding apart.
        let mask = mask.ok_or_else(|| refused(format!("it has no input '{MASK}'")))?;
        let scores = output(SCORES).filter(|scores| scores.dims.as_ref().is_none_or(|dims| dims.len() == 3));
        let scores = scores.and_then(|scores| scores.datatype);
        let scores = scores.ok_or_else(|| refused(format!("it has no output '{SCORES}' of three axes")))?;
        Ok(Self { tokens, mask, positions, scored, scores, states })
    }

    /// Checks that padding does not move tokens: their positions come with the run, or are summed up from the mask.
    fn knows_positions(&self, graph: &pb::GraphProto, links: &Links<'_>) -> Result<(), NotOpened> {
        let sums = (0..graph.node.len()).filter(|&id| graph.node[id].op_type() == "CumSum");
        let mask = links.find(MASK);
        let summed = sums.filter_map(|id| links.node(id).operands.first().copied().flatten());
        if self.positions.is_some() || summed.into_iter().any(|tensor| reads(links, tensor, mask)) {
            return Ok(());
        }
        Err(refused(format!("it counts positions by the length of the past; export it with {POSITIONS}")))
    }
}

/// Returns whether a tensor is computed from another one.
fn reads(links: &Links<'_>, tensor: TensorId, other: Option<TensorId>) -> bool {
    let mut seen = HashSet::new();
    let mut open = vec![tensor];
    while let Some(tensor) = open.pop() {
        if Some(tensor) == other {
            return true;
        }
        if let Some(maker) = links.maker(tensor).filter(|_| seen.insert(tensor)) {
            open.extend(&links.node(maker).reads);
        }
    }
    false
}
