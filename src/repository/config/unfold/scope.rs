//! The tensors that a segment may name, and how long they are known to be.

use super::{SegmentRequest, segment::Fault};
use crate::{
    model::unfold::{Emit, Emitted, Expression, Nodes, Source, Tensor, Which},
    repository::config::nearest::suggestion,
};

/// Longest expression in bytes, and most numbers, lengths and operators of one in which others stand.
const MAX_EXPRESSION: usize = 256;

/// The inputs of a model, and what the segments so far leave behind.
#[derive(Debug)]
pub(super) struct Scope<'r> {
    inputs: Vec<&'r str>,
    segments: Vec<Left<'r>>,
}

/// What a segment leaves behind.
#[derive(Debug)]
struct Left<'r> {
    segment: &'r SegmentRequest,
    /// None: what its cell gives, which is not known yet.
    emits: Option<Vec<Emit<String>>>,
    /// Rows of what it leaves of all nodes, where they are known beforehand.
    rows: Option<Expression>,
}

/// What a name stands for.
enum Found {
    Nothing,
    /// Perhaps an output of a cell that is not known yet.
    Open,
    Emit(Emitted),
}

impl<'r> Scope<'r> {
    pub(super) fn new(inputs: impl IntoIterator<Item = &'r str>) -> Self {
        Self { inputs: inputs.into_iter().collect(), segments: Vec::new() }
    }

    /// Adds a segment, whose steps are `rows`.
    pub(super) fn leave(
        &mut self,
        segment: &'r SegmentRequest,
        emits: Option<Vec<Emit<String>>>,
        rows: Option<Expression>,
    ) {
        self.segments.push(Left { segment, emits, rows });
    }

    pub(super) fn input(&self, name: &str) -> Option<usize> {
        self.inputs.iter().position(|input| *input == name)
    }

    /// What a name stands for; `None` where it may be an output of a cell that is not known yet.
    ///
    /// # Errors
    /// When it is neither an input nor an emit, or both.
    pub(super) fn tensor(&self, name: &str) -> Result<Option<Tensor>, String> {
        match (self.input(name), self.emitted(name)) {
            (Some(_), Found::Emit(_)) => Err(format!(
                "'{name}' is an input of the model, and an emit too: expected one of them to be named otherwise"
            )),
            (Some(input), _) => Ok(Some(Tensor::Input(input))),
            (None, Found::Emit(emitted)) => Ok(Some(Tensor::Emitted(emitted))),
            (None, Found::Open) => Ok(None),
            (None, Found::Nothing) => {
                let emits = self.segments.iter().flat_map(|left| {
                    let emits = left.emits.iter().flatten();
                    emits.map(|emit| format!("{}.{}", left.segment.name, emit.name))
                });
                let known: Vec<String> = self.inputs.iter().map(|input| (*input).to_owned()).chain(emits).collect();
                let hint = suggestion(name, known.iter().map(String::as_str));
                Err(format!(
                    "expected an input of the model or <segment>.<emit> of an earlier segment, but found '{name}'{hint}"
                ))
            }
        }
    }

    /// A tensor whose length a segment takes as an input.
    ///
    /// # Errors
    /// Those of [`Self::tensor`]; for `grow.<input>`, which nothing else is called, with the inputs that the segment
    /// grows.
    pub(super) fn length_of(&self, segment: &SegmentRequest, name: &str) -> Result<Option<Tensor>, String> {
        self.tensor(name).map_err(|fault| {
            let grows = segment.sources.iter().filter(|(_, source)| matches!(source, Source::Grown { .. }));
            let grown: Vec<String> = grows.map(|(input, _)| format!("grow.{input}")).collect();
            if !name.starts_with("grow.") || grown.is_empty() {
                return fault;
            }
            let hint = suggestion(name, grown.iter().map(String::as_str));
            format!("expected an input that the segment grows, {}, but found '{name}'{hint}", grown.join(" or "))
        })
    }

    /// Whether no tensor has the name of what a segment grows.
    ///
    /// # Errors
    /// When one has.
    pub(super) fn is_free(&self, name: &str) -> Result<(), String> {
        match self.tensor(name) {
            Err(_) => Ok(()),
            Ok(_) => Err(format!(
                "'{name}' is what the segment grows, and another tensor too: expected that to be named otherwise"
            )),
        }
    }

    /// A tensor with a row for each step.
    ///
    /// # Errors
    /// Those of [`Self::tensor`], and for the value of a single step.
    pub(super) fn steps_of(&self, name: &str) -> Result<Option<Tensor>, String> {
        let tensor = self.tensor(name)?;
        if let Some(Tensor::Emitted(emitted)) = tensor
            && !self.segments[emitted.segment].segment.is_stage()
            && self.which(emitted) != Some(Which::All)
        {
            return Err(format!(
                "'{name}' is the value of one step: expected an input, what a stage emits, or an emit of all(…)"
            ));
        }
        Ok(tensor)
    }

    /// How many steps a segment runs, as far as the request determines it beforehand.
    ///
    /// # Errors
    /// If an expression is missing, or nothing determines it.
    pub(super) fn count(&self, segment: &SegmentRequest) -> Result<Option<Expression>, Fault> {
        let parse = |key: &str, text: &str| self.expression(text).map(Some).map_err(|fault| (key.to_owned(), fault));
        match &segment.nodes {
            Nodes::Stage => Ok(segment.over().find_map(|(_, of)| self.rows(of))),
            Nodes::Chain { steps: Some(text) } => parse("steps", text),
            Nodes::Decode { max_steps: Some(text), .. } => parse("max_steps", text),
            Nodes::Tree { children, .. } => Ok(self.rows(children)),
            Nodes::Chain { steps: None } | Nodes::Decode { max_steps: None, .. } => {
                let known = segment.over().find_map(|(_, of)| self.rows(of));
                match (known, segment.over().next()) {
                    (Some(known), _) => Ok(Some(known)),
                    (None, Some((input, of))) => Err((
                        format!("over.{input}"),
                        format!("how long '{of}' will be is not known before it is there: expected the key 'steps'"),
                    )),
                    (None, None) => Err((
                        "cell".to_owned(),
                        "expected 'over', whose length is the number of steps, or 'steps'".to_owned(),
                    )),
                }
            }
        }
    }

    /// The emit that answers an output of the model; `None` where it may be one that is not known yet.
    ///
    /// # Errors
    /// When there is none, or more than one.
    pub(super) fn answer(&self, output: &str) -> Result<Option<Emitted>, String> {
        let emits = self.segments.iter().enumerate().flat_map(|(segment, left)| {
            let emits = left.emits.iter().flatten().enumerate();
            emits.map(move |(emit, own)| (Emitted { segment, emit }, own.name.as_str()))
        });
        let emits: Vec<(Emitted, &str)> = emits.collect();
        let found: Vec<Emitted> =
            emits.iter().filter(|(_, name)| *name == output).map(|(emitted, _)| *emitted).collect();
        match found[..] {
            [one] => Ok(Some(one)),
            [one, two, ..] => {
                let (one, two) = (&self.segments[one.segment].segment.name, &self.segments[two.segment].segment.name);
                Err(format!("expected one segment to emit '{output}', but found '{one}' and '{two}'"))
            }
            [] if self.segments.iter().any(|left| left.emits.is_none()) => Ok(None),
            [] => {
                let hint = suggestion(output, emits.iter().map(|(_, name)| *name));
                Err(format!("expected a segment to emit '{output}', but none does{hint}"))
            }
        }
    }

    fn expression(&self, text: &str) -> Result<Expression, String> {
        if text.len() > MAX_EXPRESSION {
            return Err(format!("expected at most {MAX_EXPRESSION} bytes, but found {}", text.len()));
        }
        let read = Expression::parse(text, &|name| self.rows(name)).map_err(|fault| fault.to_string())?;
        // Lengths of segments stand for the segments' own expressions, which could double from each to the next.
        match terms(&read) {
            0..=MAX_EXPRESSION => Ok(read),
            many => Err(format!("expected at most {MAX_EXPRESSION} numbers, lengths and operators, but found {many}")),
        }
    }

    fn emitted(&self, name: &str) -> Found {
        let Some((segment, emit)) = name.split_once('.') else { return Found::Nothing };
        let at = self.segments.iter().position(|left| left.segment.name == segment);
        let Some(at) = at else { return Found::Nothing };
        let Some(emits) = &self.segments[at].emits else { return Found::Open };
        match emits.iter().position(|own| own.name == emit) {
            Some(emit) => Found::Emit(Emitted { segment: at, emit }),
            None => Found::Nothing,
        }
    }

    fn which(&self, emitted: Emitted) -> Option<Which> {
        let emits = self.segments[emitted.segment].emits.as_ref()?;
        emits.get(emitted.emit).map(|emit| emit.which)
    }

    /// Rows of a tensor along its first axis, where they are known before it is there.
    fn rows(&self, name: &str) -> Option<Expression> {
        match self.tensor(name).ok()? {
            Some(Tensor::Input(input)) => Some(Expression::Length(input)),
            Some(Tensor::Emitted(emitted)) => {
                let Left { segment, rows, .. } = &self.segments[emitted.segment];
                let has_all = self.which(emitted) == Some(Which::All) || segment.is_stage();
                if has_all { rows.clone() } else { None }
            }
            // An output of a stage that names none: each has the stage's rows.
            None => self.segments.iter().find(|left| name.split('.').next() == Some(&left.segment.name))?.rows.clone(),
        }
    }
}

/// Numbers, lengths and operators of an expression.
fn terms(expression: &Expression) -> usize {
    match expression {
        Expression::Number(_) | Expression::Length(_) => 1,
        Expression::Joined(_, sides) => 1 + terms(&sides[0]) + terms(&sides[1]),
    }
}
