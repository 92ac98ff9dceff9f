//! Reads one segment: its cells, its nodes, the sources of their inputs and what it emits.

use std::collections::BTreeMap;

use paternoster_model::{
    DataType,
    unfold::{CellInputSource, Control, Emit, EmitRange, Expression, Nodes, Start, Tensor},
};
use smallvec::{SmallVec, smallvec};

use super::{Constant, NodesRequest, SegmentRequest, SourceRequest, scope::Scope};
use crate::{
    SettingError,
    model::{self, SegmentSettings, Stage, StepCount},
    model_config,
    nearest::suggestion,
    settings::Settings,
    values::NonEmptyText,
};

/// Maximum nodes of a tree without `max_nodes`.
const DEFAULT_MAX_NODES: u32 = 256;

/// Reads a segment and adds it to the scope. `cell` returns the number of a cell, or why there is none of that name.
///
/// # Errors
/// Rejects names of what does not exist, and values of a wrong kind.
pub(super) fn read(
    segment: &SegmentSettings,
    settings: &Settings,
    cell: &mut dyn FnMut(&str) -> Result<usize, SettingError>,
    scope: &mut Scope<'_>,
) -> Result<(), SettingError> {
    let mut cell_at = |key: &str, name: &NonEmptyText| cell(&name.0).map_err(|fault| fault.at(key));
    let (own_name, key, first) = segment.name_and_cell();
    let mut cells: SmallVec<[usize; 2]> = smallvec![cell_at(key, first)?];
    let (default_name, streams) = match segment {
        SegmentSettings::Chain(model::Chain { stream, .. }) | SegmentSettings::Decode(model::Decode { stream, .. }) => {
            (first.0.as_str(), *stream == Some(true))
        }
        SegmentSettings::Stage(_) => (first.0.as_str(), false),
        SegmentSettings::Tree(tree) => {
            cells.push(cell_at("internal", &tree.internal)?);
            ("tree", false)
        }
    };
    let name = own_name.unwrap_or(default_name);
    if let Some(other) = scope.segments.iter().position(|other| other.name == name) {
        let message = format!("segment {other} has the name '{name}' too: expected another name, in the key 'name'");
        return Err(SettingError::from(message).at(own_name.map_or(key, |_| "name")));
    }
    let table = match segment {
        SegmentSettings::Tree(tree) => Some(table(&tree.children.0, settings).map_err(|fault| fault.at("children"))?),
        _ => None,
    };
    let sources = sources(segment, settings, table, scope)?;
    let (nodes, rows) = nodes(segment, &sources, table, scope)?;
    let emits = emits(segment)?;
    let emits_all = emits.is_empty();
    scope.add(SegmentRequest { name: name.to_owned(), cells, nodes, sources, emits, emits_all, streams }, rows);
    Ok(())
}

/// The input of the model that names the children of each node.
#[derive(Clone, Copy)]
struct Table {
    input: usize,
    /// Children of a node.
    width: usize,
}

fn table(children: &str, settings: &Settings) -> Result<Table, SettingError> {
    let inputs = &settings.config.input;
    let Some(number) = inputs.iter().position(|input| input.name == children) else {
        let hint = suggestion(children, inputs.iter().map(|input| input.name.as_str()));
        let message = format!("expected an input of the model, but found '{children}'{hint}");
        return Err(SettingError::unknown(message));
    };
    let dims = &inputs[number].dims;
    let datatype = model_config::datatype(inputs[number].data_type);
    let width = match dims[..] {
        [_, width] => usize::try_from(width).ok().filter(|width| *width > 0),
        _ => None,
    };
    if let (Some(DataType::Int32 | DataType::Int64), Some(width)) = (datatype, width) {
        return Ok(Table { input: number, width });
    }
    let found = datatype.map_or("none", DataType::as_str);
    Err(format!(
        "expected an input of INT32 or INT64 with dims [nodes, children of a node], but '{children}' is {found} \
         {dims:?}"
    )
    .into())
}

/// Reads the nodes of a segment, and the rows of what it emits of all nodes, if they are known.
fn nodes(
    segment: &SegmentSettings,
    sources: &BTreeMap<String, SourceRequest>,
    table: Option<Table>,
    scope: &mut Scope<'_>,
) -> Result<(NodesRequest, Option<Expression>), SettingError> {
    let over = sources.iter().filter_map(|(input, source)| match source {
        CellInputSource::Step { of, .. } | CellInputSource::Rows(of) => Some((input, *of)),
        _ => None,
    });
    let over: Vec<(&String, Tensor)> = over.collect();
    let length_of_over = over.iter().find_map(|(_, tensor)| scope.rows(*tensor));
    let mut expression = |key: &str, steps: &StepCount| match steps {
        StepCount::Number(number) => Ok(Expression::Number(number.0)),
        StepCount::Expression(text) => scope.expression(&text.0).map_err(|fault| fault.at(key)),
    };
    Ok(match segment {
        SegmentSettings::Stage(_) => (Nodes::Stage, length_of_over),
        SegmentSettings::Chain(model::Chain { steps, chunk, .. }) => {
            let steps = match (steps, length_of_over, over.first()) {
                (Some(steps), ..) => expression("steps", steps)?,
                (None, Some(length), _) => length,
                (None, None, Some((input, _))) => {
                    let tensor = text_at(segment, "over", input);
                    let message = format!("the length of '{tensor}' is not known in advance: expected the key 'steps'");
                    return Err(SettingError::from(message).at(format!("over.{input}")));
                }
                (None, None, None) => {
                    let message = "expected 'over', whose length is the number of steps, or 'steps'";
                    return Err(SettingError::from(message).at("cell"));
                }
            };
            (Nodes::Chain { steps: steps.clone(), chunks: chunk.is_some() }, Some(steps))
        }
        SegmentSettings::Decode(decode) => {
            let mut until = decode.until.iter().flat_map(|until| &until.0);
            let first = until.next();
            if let (Some((first, _)), Some((second, _))) = (first, until.next()) {
                let message = format!("expected one output that ends the loop, but found '{}' too", first.0);
                return Err(SettingError::from(message).at(format!("until.{}", second.0)));
            }
            let until = first.map(|(output, value)| (output.0.clone(), value.0));
            let expected_steps = decode.expected_steps.map(|steps| steps.0);
            if expected_steps.is_some() && until.is_none() {
                let message = "without 'until' every request takes max_steps: remove this, or say what ends the loop";
                return Err(SettingError::from(message).at("expected_steps"));
            }
            let max_steps = expression("max_steps", &decode.max_steps)?;
            // Where the limit follows from lengths of inputs, it is known only when a request arrives.
            if let (Some(expected), Some(most)) = (expected_steps, max_steps.value(&|_| None))
                && u64::from(expected) > most
            {
                let message = format!("expected at most {most}, the max_steps, but found {expected}");
                return Err(SettingError::from(message).at("expected_steps"));
            }
            // The number of steps only has an upper bound, so the length of what the loop emits is unknown.
            (Nodes::Decode { max_steps, until, expected_steps }, None)
        }
        SegmentSettings::Tree(tree) => {
            let children = table.map_or(0, |table| table.input);
            let max_nodes = tree.max_nodes.map_or(DEFAULT_MAX_NODES, |most| most.0);
            (Nodes::Tree { children, max_nodes }, Some(Expression::Length(children)))
        }
    })
}

/// The text that a segment has for an input under a key.
fn text_at<'s>(segment: &'s SegmentSettings, key: &str, input: &str) -> &'s str {
    let map = segment.sources().into_iter().find(|(known, _)| *known == key);
    map.and_then(|(_, map)| map.get(&NonEmptyText(input.to_owned()))).map_or("", |text| text.0.as_str())
}

fn sources(
    segment: &SegmentSettings,
    settings: &Settings,
    table: Option<Table>,
    scope: &mut Scope<'_>,
) -> Result<BTreeMap<String, SourceRequest>, SettingError> {
    let is_stage = matches!(segment, SegmentSettings::Stage(_));
    let reversed = matches!(segment, SegmentSettings::Chain(model::Chain { reverse: Some(true), .. }));
    let (starts, grow) = match segment {
        SegmentSettings::Stage(Stage { start, .. }) => (start.as_ref(), None),
        SegmentSettings::Chain(model::Chain { start, grow, .. })
        | SegmentSettings::Decode(model::Decode { start, grow, .. }) => (start.as_ref(), grow.as_ref()),
        SegmentSettings::Tree(_) => (None, None),
    };
    let mut starts: BTreeMap<&str, &model::StartSettings> =
        starts.into_iter().flat_map(|starts| &starts.0).map(|(input, start)| (input.0.as_str(), start)).collect();
    let grown: Vec<String> =
        grow.iter().flat_map(|grow| grow.0.keys()).map(|input| format!("grow.{}", input.0)).collect();
    let mut sources = BTreeMap::new();
    let mut keys: BTreeMap<&str, &str> = BTreeMap::new();
    let entries = segment.sources().into_iter().flat_map(|(key, map)| map.iter().map(move |entry| (key, entry)));
    for (key, (NonEmptyText(input), NonEmptyText(text))) in entries {
        let refuse = |fault: SettingError| fault.at(format!("{key}.{input}"));
        if let Some(other) = keys.insert(input, key) {
            let message = format!("expected one source of the input '{input}', but '{other}' has it too");
            return Err(refuse(message.into()));
        }
        if is_stage && key != "over" && keys.values().any(|other| *other == "over") {
            let message = "a stage that goes over rows reads nothing else: expected all inputs in 'over'";
            return Err(refuse(message.into()));
        }
        if ["keep", "control"].contains(&key) && model_config::sequence_batching(&settings.config).is_none() {
            let message = "this needs requests that belong to sequences: expected 'sequence_batching' too";
            return Err(refuse(message.into()));
        }
        let source = match key {
            "over" if is_stage => scope.steps_of(text).map(CellInputSource::Rows),
            "over" => scope.steps_of(text).map(|of| CellInputSource::Step { of, reversed }),
            "length" if grown.contains(text) => scope.is_free(text).map(|()| CellInputSource::GrownLength),
            "length" => scope.length_of(text, &grown).map(CellInputSource::Length),
            "grow" => Ok(CellInputSource::Grown { output: text.clone() }),
            "child" => child(text, table),
            "carry" | "feed" | "keep" => {
                let start = match starts.remove(input.as_str()) {
                    None => Start::Row(Constant::Value(0.0)),
                    Some(model::StartSettings::Number(number)) => Start::Row(Constant::Value(number.0)),
                    Some(model::StartSettings::Tensor(NonEmptyText(name))) => {
                        Start::Tensor(scope.tensor(name).map_err(|fault| fault.at(format!("start.{input}")))?)
                    }
                };
                Ok(CellInputSource::Carried { output: text.clone(), start, is_kept: key == "keep" })
            }
            "control" => control(text),
            _ => scope.tensor(text).map(CellInputSource::Whole),
        };
        sources.insert(input.clone(), source.map_err(refuse)?);
    }
    if let SegmentSettings::Chain(model::Chain { chunk: Some(chunk), .. }) = segment {
        if let Some(NonEmptyText(input)) = &chunk.lengths
            && sources.insert(input.clone(), CellInputSource::Steps).is_some()
        {
            let other = keys.get(input.as_str()).copied().unwrap_or_default();
            let message = format!("expected one source of the input '{input}', but '{other}' has it too");
            return Err(SettingError::from(message).at("chunk.lengths"));
        }
        if !grown.is_empty() {
            let message =
                "what a segment grows by the step does not go with several steps at a time: expected no 'grow'";
            return Err(SettingError::from(message).at("chunk"));
        }
    }
    if let Some((input, _)) = starts.first_key_value() {
        let message =
            format!("only inputs that are carried from step to step have a start, but '{input}' is not one of them");
        return Err(SettingError::from(message).at(format!("start.{input}")));
    }
    Ok(sources)
}

/// Reads a flag of the sequence: 0 for no and 1 for yes.
fn control(text: &str) -> Result<SourceRequest, SettingError> {
    let control = match text {
        "id" => return Ok(CellInputSource::CorrelationId),
        "start" => Control::Start,
        "end" => Control::End,
        "ready" => Control::Ready,
        _ => return Err(SettingError::expected("start, end, ready or id", format_args!("'{text}'"))),
    };
    Ok(CellInputSource::Control { control, no: Constant::Value(0.0), yes: Constant::Value(1.0) })
}

/// Reads an output of a child, which is zeros if the node has no such child.
fn child(text: &str, table: Option<Table>) -> Result<SourceRequest, SettingError> {
    let split = text.split_once('.').filter(|(_, output)| !output.is_empty());
    let read = split.and_then(|(child, output)| Some((child.parse::<u16>().ok()?, output)));
    let (child, output) = read.ok_or_else(|| {
        let what = "a child's number and an output of its cell, as in '0.h'";
        SettingError::expected(what, format_args!("'{text}'"))
    })?;
    let (child, width) = (usize::from(child), table.map_or(0, |table| table.width));
    if child >= width {
        let last = width.saturating_sub(1);
        return Err(SettingError::expected(&format!("a child from 0 to {last}"), child));
    }
    Ok(CellInputSource::Child { child, output: output.to_owned(), none: Constant::Value(0.0) })
}

/// Reads what a segment emits.
fn emits(segment: &SegmentSettings) -> Result<Vec<Emit<String>>, SettingError> {
    let (given, last) = match segment {
        SegmentSettings::Stage(stage) => (stage.emit.as_ref(), "last"),
        SegmentSettings::Chain(chain) => (Some(&chain.emit), "last"),
        SegmentSettings::Decode(decode) => (Some(&decode.emit), "last"),
        SegmentSettings::Tree(tree) => (Some(&tree.emit), "root"),
    };
    let emits = given.into_iter().flat_map(|given| &given.0).map(|(NonEmptyText(name), NonEmptyText(text))| {
        let call = text.strip_suffix(')').and_then(|call| call.split_once('('));
        let (word, output) = call.map_or(("", ""), |(word, output)| (word.trim(), output.trim()));
        let which = match word {
            // A single node has only one value.
            "all" if matches!(segment, SegmentSettings::Stage(_)) => Some(EmitRange::Last),
            "all" => Some(EmitRange::All),
            word => (word == last).then_some(EmitRange::Last),
        };
        let emit = which.filter(|_| !output.is_empty()).map(|which| {
            let output = output.to_owned();
            Emit { name: name.clone(), output, which }
        });
        emit.ok_or_else(|| {
            let message = format!("expected {last}(<output>) or all(<output>), but found '{text}'");
            SettingError::from(message).at(format!("emit.{name}"))
        })
    });
    emits.collect()
}
