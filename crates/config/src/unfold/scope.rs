//! The tensors that a segment may name, and what is known of their lengths before a request runs.

use std::cell::RefCell;

use paternoster_model::unfold::{Emit, EmitRange, Emitted, Expression, Nodes, Tensor};

use super::SegmentRequest;
use crate::{SettingError, bounds, nearest::suggestion};

/// Maximum bytes of an expression, and maximum numbers, lengths and operators once expressions of earlier segments are
/// inserted.
const MAX_EXPRESSION: usize = 256;

/// The inputs of a model, and the segments so far with what they emit.
#[derive(Debug)]
pub(super) struct Scope<'r> {
    inputs: Vec<&'r str>,
    pub(super) segments: Vec<SegmentRequest>,
    /// For each segment, the rows of what it emits of all nodes, if known.
    rows: Vec<Option<Expression>>,
}

impl<'r> Scope<'r> {
    pub(super) fn new(inputs: impl IntoIterator<Item = &'r str>) -> Self {
        Self { inputs: inputs.into_iter().collect(), segments: Vec::new(), rows: Vec::new() }
    }

    /// Adds a segment. `rows` is the length of what it emits of all nodes, if known.
    pub(super) fn add(&mut self, segment: SegmentRequest, rows: Option<Expression>) {
        self.segments.push(segment);
        self.rows.push(rows);
    }

    /// Finds the tensor of a name: an input of the model, or `<segment>.<emit>` of an earlier segment.
    ///
    /// # Errors
    /// Rejects a name of neither, or of both.
    pub(super) fn tensor(&mut self, name: &str) -> Result<Tensor, SettingError> {
        let input = self.inputs.iter().position(|input| *input == name);
        match (input, self.emitted(name, input.is_some())) {
            (Some(_), Some(_)) => {
                let message = "names an input of the model and an emit: expected one of them to have another name";
                Err(format!("'{name}' {message}").into())
            }
            (Some(input), None) => Ok(Tensor::Input(input)),
            (None, Some(emitted)) => Ok(Tensor::Emitted(emitted)),
            (None, None) => {
                let emits = self
                    .segments
                    .iter()
                    .flat_map(|segment| segment.emits.iter().map(|emit| format!("{}.{}", segment.name, emit.name)));
                let known: Vec<String> = self.inputs.iter().map(|input| (*input).to_owned()).chain(emits).collect();
                let hint = suggestion(name, known.iter().map(String::as_str));
                Err(SettingError::unknown(format!(
                    "expected an input of the model or <segment>.<emit> of an earlier segment, but found '{name}'{hint}"
                )))
            }
        }
    }

    /// Finds an emit. A stage that emits all outputs of its cell begins to emit this one, unless `is_input` says that
    /// the name means an input of the model.
    fn emitted(&mut self, name: &str, is_input: bool) -> Option<Emitted> {
        let (segment, name) = name.split_once('.')?;
        let number = self.segments.iter().position(|other| other.name == segment)?;
        let SegmentRequest { emits, emits_all, .. } = &mut self.segments[number];
        let emit = emits.iter().position(|emit| emit.name == name).or_else(|| {
            let is_new = *emits_all && !is_input;
            is_new.then(|| {
                emits.push(Emit { name: name.to_owned(), output: name.to_owned(), which: EmitRange::Last });
                emits.len() - 1
            })
        });
        Some(Emitted { segment: number, emit: emit? })
    }

    /// Finds a tensor whose length a segment reads. `grown` are the inputs that the segment grows.
    ///
    /// # Errors
    /// As [`Self::tensor`]. For a name that begins with `grow.`, the error lists the inputs that grow.
    pub(super) fn length_of(&mut self, name: &str, grown: &[String]) -> Result<Tensor, SettingError> {
        self.tensor(name).map_err(|fault| {
            if !name.starts_with("grow.") || grown.is_empty() {
                return fault;
            }
            let hint = suggestion(name, grown.iter().map(String::as_str));
            let what = format!("an input that the segment grows, {}", grown.join(" or "));
            SettingError { kind: fault.kind, ..SettingError::expected(&what, format_args!("'{name}'{hint}")) }
        })
    }

    /// Checks that the name of a grown input means no tensor.
    pub(super) fn is_free(&mut self, name: &str) -> Result<(), SettingError> {
        match self.tensor(name) {
            Err(_) => Ok(()),
            Ok(_) => Err(format!(
                "'{name}' names an input that the segment grows, and another tensor too: expected that tensor to have \
                 another name"
            )
            .into()),
        }
    }

    /// Finds a tensor with a row for each step.
    ///
    /// # Errors
    /// As [`Self::tensor`]. Also rejects the value of a single step.
    pub(super) fn steps_of(&mut self, name: &str) -> Result<Tensor, SettingError> {
        let tensor = self.tensor(name)?;
        match tensor {
            Tensor::Emitted(emitted) if !self.has_all(emitted) => Err(format!(
                "'{name}' is the value of one step: expected an input, what a stage emits, or an emit of all(…)"
            )
            .into()),
            tensor => Ok(tensor),
        }
    }

    /// Whether a tensor has the values of all nodes, as every output of a stage has.
    fn has_all(&self, emitted: Emitted) -> bool {
        let segment = &self.segments[emitted.segment];
        segment.nodes == Nodes::Stage || segment.emits[emitted.emit].which == EmitRange::All
    }

    /// The rows of a tensor along its first axis, if they are known before it exists.
    pub(super) fn rows(&self, tensor: Tensor) -> Option<Expression> {
        match tensor {
            Tensor::Input(input) => Some(Expression::Length(input)),
            Tensor::Emitted(emitted) if self.has_all(emitted) => self.rows[emitted.segment].clone(),
            Tensor::Emitted(_) => None,
        }
    }

    /// Reads an expression over the lengths of tensors.
    ///
    /// # Errors
    /// Rejects what is no expression, is too long, or names a tensor whose length is not known.
    pub(super) fn expression(&mut self, text: &str) -> Result<Expression, SettingError> {
        if text.len() > MAX_EXPRESSION {
            return Err(bounds::too_large(format!(
                "expected at most {MAX_EXPRESSION} bytes, but found {}",
                text.len()
            )));
        }
        let scope = RefCell::new(self);
        let rows = |name: &str| {
            let mut scope = scope.borrow_mut();
            let tensor = scope.tensor(name).ok()?;
            scope.rows(tensor)
        };
        let read = Expression::parse(text, &rows).map_err(|fault| fault.to_string())?;
        // The length of a segment is its own expression, so the size could double with each segment.
        match terms(&read) {
            0..=MAX_EXPRESSION => Ok(read),
            many => Err(bounds::too_large(format!(
                "expected at most {MAX_EXPRESSION} numbers, lengths and operators, but found {many}"
            ))),
        }
    }
}

/// Counts the numbers, lengths and operators of an expression.
fn terms(expression: &Expression) -> usize {
    match expression {
        Expression::Number(_) | Expression::Length(_) => 1,
        Expression::Joined(_, sides) => 1 + terms(&sides[0]) + terms(&sides[1]),
    }
}
