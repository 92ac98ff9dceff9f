//! Writes the programs of an opened decoder.

use std::collections::HashSet;

use paternoster_model::DataType;

use super::{Decoder, MASK, POSITIONS, SCORES, Signature, State, TOKENS};
use crate::{
    Model, PortDim,
    cut::stage::IR_VERSION_PLAIN_WEIGHTS,
    links::Links,
    nodes::{int, integers, ints, node},
    pb,
    port::{declare, elem_of},
    segments::{OpenedSegment, SegmentEmit, SegmentInput, SegmentKind, SegmentSource, SegmentTensor},
};

pub(super) struct Opener<'a, 'g> {
    pub(super) graph: &'g pb::GraphProto,
    pub(super) links: &'a Links<'g>,
    pub(super) signature: &'a Signature,
    /// What the names of new tensors begin with.
    pub(super) prefix: &'a str,
    /// The model without its graph.
    pub(super) frame: &'a pb::ModelProto,
}

/// A program that is being written around the nodes of the decoder.
struct Writer<'a, 'g> {
    opener: &'a Opener<'a, 'g>,
    made: pb::GraphProto,
    inputs: Vec<SegmentInput>,
    emits: Vec<SegmentEmit>,
}

impl Opener<'_, '_> {
    pub(super) fn decoder(&self, ends: &[i64]) -> Decoder {
        let (decode, next, ended) = self.decode(ends);
        Decoder { segments: [self.prompt(), decode], next, ended, positions: None }
    }

    fn writer(&self) -> Writer<'_, '_> {
        Writer { opener: self, made: pb::GraphProto::default(), inputs: Vec::new(), emits: Vec::new() }
    }

    fn name(&self, rest: &str) -> String {
        format!("{}/{rest}", self.prefix)
    }

    /// The keys or values of the prompt, as they pass from one program to the other.
    fn of_prompt(&self, state: &State) -> String {
        self.name(&format!("prompt.{}", state.name))
    }

    fn last_token(&self) -> String {
        self.name("last_token")
    }

    /// Writes the stage: `input_ids` `[batch, tokens]` → for each state `[batch, tokens − 1, heads, width]`, and the
    /// last token `[batch]`.
    fn prompt(&self) -> OpenedSegment {
        let signature = self.signature;
        let mut writer = self.writer();
        let tokens = SegmentSource::Whole(SegmentTensor::Input(TOKENS.to_owned()));
        writer.input(TOKENS, signature.tokens, &["batch".into(), "tokens".into()], tokens);
        let shape = writer.op("Shape", &[TOKENS], Vec::new());
        let zeros = writer.op("ConstantOfShape", &[&shape], vec![zero(signature.tokens)]);
        let one = writer.scalar(signature.tokens, 1);
        let ones = writer.op("Add", &[&zeros, &one], Vec::new());
        writer.cast(&ones, signature.mask, MASK);
        if let Some(datatype) = signature.positions {
            let axis = writer.scalar(DataType::Int64, 1);
            let wide = writer.op_to(&[&ones], DataType::Int64);
            let counted = writer.op("CumSum", &[&wide, &axis], Vec::new());
            let places = writer.op("Sub", &[&counted, &axis], Vec::new());
            writer.cast(&places, datatype, POSITIONS);
        }
        let rows = writer.axis(&shape, 0);
        for state in &signature.states {
            let rest = writer.integers(&[state.heads, 0, state.width]);
            let shape = writer.op("Concat", &[&rows, &rest], vec![int("axis", 0)]);
            writer.node("ConstantOfShape", &[&shape], &state.past(), vec![zero(state.datatype)]);
        }
        writer.scored();
        writer.nodes(signature.states.iter().map(State::present));
        let (first, last, axis) = (writer.integers(&[0]), writer.integers(&[-1]), writer.integers(&[1]));
        for state in &signature.states {
            let turned = writer.op("Transpose", &[&state.present()], vec![ints("perm", &[0, 2, 1, 3])]);
            let name = self.of_prompt(state);
            writer.node("Slice", &[&turned, &first, &last, &axis], &name, Vec::new());
            let dims = ["batch".into(), "prompt".into(), state.heads.into(), state.width.into()];
            writer.output(&name, state.datatype, &dims, false);
        }
        let index = writer.scalar(DataType::Int64, -1);
        writer.node("Gather", &[TOKENS, &index], &self.last_token(), vec![int("axis", 1)]);
        writer.output(&self.last_token(), signature.tokens, &["batch".into()], false);
        writer.segment("prompt", SegmentKind::Stage)
    }

    /// Writes the loop: a token `[batch]`, and for each state the prompt's `[batch, prompt, heads, width]` and that of
    /// the steps before `[batch, past, heads, width]`, with the length of both → the next token `[batch]`, for each
    /// state the token's own `[batch, heads, width]`, and whether the next token is the last.
    fn decode(&self, ends: &[i64]) -> (OpenedSegment, String, Option<String>) {
        let signature = self.signature;
        let (rows, next) = ([PortDim::from("batch")], self.name("next_token"));
        let emitted = |name: String| SegmentTensor::Emitted { segment: 0, name };
        let mut writer = self.writer();
        let token = self.name("token");
        let fed = SegmentSource::Fed { output: next.clone(), start: emitted(self.last_token()) };
        writer.input(&token, signature.tokens, &rows, fed);
        let (of_prompt, of_past) = (self.name("prompt_length"), self.name("past_length"));
        if let Some(state) = signature.states.first() {
            let length = SegmentSource::Length(emitted(self.of_prompt(state)));
            writer.input(&of_prompt, DataType::Int64, &rows, length);
            writer.input(&of_past, DataType::Int64, &rows, SegmentSource::GrownLength);
        }
        let axes = writer.integers(&[1]);
        writer.node("Unsqueeze", &[&token, &axes], TOKENS, Vec::new());
        let [of_prompt, of_past] =
            [of_prompt, of_past].map(|count| writer.op("Unsqueeze", &[&count, &axes], Vec::new()));
        let before = writer.op("Add", &[&of_prompt, &of_past], Vec::new());
        let mut aligned: Option<Aligned> = None;
        for state in &signature.states {
            let dims = |axis: &str| ["batch".into(), axis.into(), state.heads.into(), state.width.into()];
            let (prompt, past) = (self.of_prompt(state), self.name(&format!("past.{}", state.name)));
            let own = self.name(&format!("own.{}", state.name));
            writer.input(&prompt, state.datatype, &dims("prompt"), SegmentSource::Whole(emitted(prompt.clone())));
            writer.input(&past, state.datatype, &dims("past"), SegmentSource::Grown(own));
            let aligned = aligned.get_or_insert_with(|| writer.aligned(&prompt, &of_prompt, &before));
            let joined = writer.op("Concat", &[&prompt, &past], vec![int("axis", 1)]);
            let moved = writer.op("GatherND", &[&joined, &aligned.places], vec![int("batch_dims", 1)]);
            writer.node("Transpose", &[&moved], &state.past(), vec![ints("perm", &[0, 2, 1, 3])]);
        }
        // The token itself is there.
        let own = writer.op("Equal", &[TOKENS, TOKENS], Vec::new());
        let there: Vec<&str> = aligned.iter().map(|aligned| aligned.there.as_str()).chain([own.as_str()]).collect();
        let there = writer.op("Concat", &there, vec![int("axis", 1)]);
        writer.cast(&there, signature.mask, MASK);
        if let Some(datatype) = signature.positions {
            writer.cast(&before, datatype, POSITIONS);
        }
        writer.scored();
        writer.nodes(signature.states.iter().map(State::present).chain([SCORES.to_owned()]));
        let last = writer.scalar(DataType::Int64, -1);
        for state in &signature.states {
            let own = self.name(&format!("own.{}", state.name));
            writer.node("Gather", &[&state.present(), &last], &own, vec![int("axis", 2)]);
            let dims = ["batch".into(), state.heads.into(), state.width.into()];
            writer.declared(&own, state.datatype, &dims);
        }
        let scores = writer.op("Gather", &[SCORES, &last], vec![int("axis", 1)]);
        // ONNX Runtime has no ArgMax of half types on the CPU.
        let scores = if signature.scores == DataType::Fp32 { scores } else { writer.op_to(&[&scores], DataType::Fp32) };
        let best = writer.op("ArgMax", &[&scores], vec![int("axis", -1), int("keepdims", 0)]);
        writer.cast(&best, signature.tokens, &next);
        writer.output(&next, signature.tokens, &rows, true);
        let ended = writer.ended(&best, ends);
        if let Some(ended) = &ended {
            writer.declared(ended, DataType::Int64, &rows);
        }
        (writer.segment("decode", SegmentKind::Decode), next, ended)
    }
}

/// Where the keys and values of earlier tokens are.
struct Aligned {
    /// Their places among those of the prompt and the steps, `[batch, longest, 1]`.
    places: String,
    /// Whether they are those of tokens, or padding, `[batch, longest]`.
    there: String,
}

impl Writer<'_, '_> {
    /// Moves padding, which is behind the prompt's and behind the steps' keys and values, before those of all tokens:
    /// graphs may count how far tokens are apart. `before` is the number of earlier tokens of each row, and `of_prompt`
    /// how many of them are the prompt's, both `[batch, 1]`.
    fn aligned(&mut self, prompt: &str, of_prompt: &str, before: &str) -> Aligned {
        let (zero, one) = (self.scalar(DataType::Int64, 0), self.scalar(DataType::Int64, 1));
        let longest = self.op("ReduceMax", &[before], vec![int("keepdims", 0)]);
        let slots = self.op("Range", &[&zero, &longest, &one], Vec::new());
        let padding = self.op("Sub", &[&longest, before], Vec::new());
        let number = self.op("Sub", &[&slots, &padding], Vec::new());
        let less_than_none = self.op("Less", &[&number, &zero], Vec::new());
        let there = self.op("Not", &[&less_than_none], Vec::new());
        let shape = self.op("Shape", &[prompt], Vec::new());
        let padded = self.op("Gather", &[&shape, &one], vec![int("axis", 0)]);
        let gap = self.op("Sub", &[&padded, of_prompt], Vec::new());
        let behind = self.op("Add", &[&number, &gap], Vec::new());
        let is_of_prompt = self.op("Less", &[&number, of_prompt], Vec::new());
        let places = self.op("Where", &[&is_of_prompt, &number, &behind], Vec::new());
        let axes = self.integers(&[2]);
        Aligned { places: self.op("Unsqueeze", &[&places, &axes], Vec::new()), there }
    }

    fn input(&mut self, name: &str, datatype: DataType, dims: &[PortDim], source: SegmentSource) {
        self.made.input.push(declare(name, datatype, dims));
        self.inputs.push(SegmentInput { name: name.to_owned(), source });
    }

    fn declared(&mut self, name: &str, datatype: DataType, dims: &[PortDim]) {
        self.made.output.push(declare(name, datatype, dims));
    }

    fn output(&mut self, name: &str, datatype: DataType, dims: &[PortDim], is_by_steps: bool) {
        self.declared(name, datatype, dims);
        self.emits.push(SegmentEmit { name: name.to_owned(), output: name.to_owned(), is_by_steps });
    }

    fn node(&mut self, op: &str, inputs: &[&str], output: &str, attributes: Vec<pb::AttributeProto>) {
        self.made.node.push(node(op, inputs, &[output], attributes));
    }

    /// Adds a node, and returns the name of its output.
    fn op(&mut self, op: &str, inputs: &[&str], attributes: Vec<pb::AttributeProto>) -> String {
        let name = self.opener.name(&format!("{}/{op}", self.made.node.len()));
        self.node(op, inputs, &name, attributes);
        name
    }

    fn op_to(&mut self, inputs: &[&str], datatype: DataType) -> String {
        self.op("Cast", inputs, vec![to(datatype)])
    }

    fn cast(&mut self, from: &str, datatype: DataType, name: &str) {
        self.node("Cast", &[from], name, vec![to(datatype)]);
    }

    fn constant(&mut self, constant: impl FnOnce(&str) -> pb::TensorProto) -> String {
        let name = self.opener.name(&format!("constant{}", self.made.initializer.len()));
        self.made.initializer.push(constant(&name));
        name
    }

    fn integers(&mut self, values: &[i64]) -> String {
        self.constant(|name| integers(name, values))
    }

    fn scalar(&mut self, datatype: DataType, value: i64) -> String {
        self.constant(|name| scalar(name, datatype, value))
    }

    /// Adds the length of an axis as a vector of one, from a shape.
    fn axis(&mut self, shape: &str, axis: i64) -> String {
        let index = self.integers(&[axis]);
        self.op("Gather", &[shape, &index], vec![int("axis", 0)])
    }

    /// Adds the number of tokens whose scores are given, if the graph reads it: one.
    fn scored(&mut self) {
        if let Some((name, datatype, axes)) = &self.opener.signature.scored {
            let mut one = scalar(name, *datatype, 1);
            one.dims = vec![1; *axes];
            self.made.initializer.push(one);
        }
    }

    /// Adds the nodes and weights of the decoder that these tensors depend on.
    fn nodes(&mut self, roots: impl Iterator<Item = String>) {
        let Opener { graph, links, .. } = self.opener;
        let mut taken = HashSet::new();
        let mut needed = HashSet::new();
        let mut open: Vec<_> = roots.filter_map(|name| links.find(&name)).collect();
        while let Some(tensor) = open.pop() {
            if taken.insert(tensor)
                && let Some(maker) = links.maker(tensor)
            {
                needed.insert(maker);
                open.extend(&links.node(maker).reads);
            }
        }
        let is_taken = |name: &str| links.find(name).is_some_and(|tensor| taken.contains(&tensor));
        let weights = graph.initializer.iter().filter(|weight| is_taken(weight.name()));
        self.made.initializer.extend(weights.cloned());
        let sparse = graph.sparse_initializer.iter();
        let sparse = sparse.filter(|it| it.values.as_ref().is_some_and(|values| is_taken(values.name())));
        self.made.sparse_initializer.extend(sparse.cloned());
        let nodes = links.order().iter().filter(|id| needed.contains(id));
        self.made.node.extend(nodes.map(|&id| graph.node[id].clone()));
    }

    /// Adds whether a token is one of the last ones, as INT64.
    fn ended(&mut self, token: &str, ends: &[i64]) -> Option<String> {
        let mut ended: Option<String> = None;
        for &end in ends {
            let end = self.scalar(DataType::Int64, end);
            let is_end = self.op("Equal", &[token, &end], Vec::new());
            ended = Some(match ended {
                Some(other) => self.op("Or", &[&other, &is_end], Vec::new()),
                None => is_end,
            });
        }
        let name = self.opener.name("ended");
        ended.map(|ended| {
            self.cast(&ended, DataType::Int64, &name);
            name
        })
    }

    fn segment(mut self, name: &str, kind: SegmentKind) -> OpenedSegment {
        let frame = self.opener.frame;
        self.made.name = Some(format!("{}/{name}", self.opener.graph.name()));
        let ir_version = Some(frame.ir_version().max(IR_VERSION_PLAIN_WEIGHTS));
        let model = Model(pb::ModelProto { ir_version, graph: Some(self.made), ..frame.clone() });
        let layers = self.opener.signature.states.len() / 2;
        let layers = vec![format!("{layers} layers of keys and values")];
        OpenedSegment { name: name.to_owned(), kind, model, inputs: self.inputs, emits: self.emits, layers }
    }
}

pub(super) fn to(datatype: DataType) -> pb::AttributeProto {
    int("to", i64::from(i32::from(elem_of(datatype))))
}

/// The attribute `value` of `ConstantOfShape` for zeros.
pub(super) fn zero(datatype: DataType) -> pb::AttributeProto {
    let zero = pb::TensorProto { dims: vec![1], ..scalar("", datatype, 0) };
    pb::AttributeProto {
        name: Some("value".to_owned()),
        r#type: Some(pb::attribute_proto::AttributeType::Tensor.into()),
        t: Some(Box::new(zero)),
        ..Default::default()
    }
}

/// A scalar of integers, or zero of any datatype of fixed size.
pub(super) fn scalar(name: &str, datatype: DataType, value: i64) -> pb::TensorProto {
    let bytes = value.to_le_bytes();
    let len = datatype.size_bytes().unwrap_or(bytes.len()).min(bytes.len());
    pb::TensorProto {
        name: Some(name.to_owned()),
        data_type: Some(elem_of(datatype).into()),
        raw_data: Some(bytes[..len].to_vec().into()),
        ..Default::default()
    }
}
