//! One segment: from its keys to a request, apart from the tensors that it names.

use std::collections::BTreeMap;

use smallvec::{SmallVec, smallvec};

use super::{Constant, NamedNodes, NamedSource, SegmentRequest};
use crate::{
    model::unfold::{Control, Emit, Nodes, Source, Start, Which},
    repository::config::{
        model::{self, Segment, Stage, Steps},
        values::Filled,
    },
};

/// Most nodes of a tree whose configuration does not say.
const DEFAULT_MAX_NODES: u32 = 256;

/// The key at fault in a segment, and the reason.
pub(super) type Fault = (String, String);

/// Reads a segment. `cell` gives the number of a cell, or the reason why there is none of that name.
///
/// # Errors
/// For cells that there are not, and values of a wrong kind.
pub(super) fn read(
    segment: &Segment,
    cell: &mut dyn FnMut(&str) -> Result<usize, String>,
) -> Result<SegmentRequest, Fault> {
    let mut cell_at = |key: &str, name: &Filled| cell(&name.0).map_err(|fault| (key.to_owned(), fault));
    let (name, key, first) = segment.name_and_cell();
    let mut cells: SmallVec<[usize; 2]> = smallvec![cell_at(key, first)?];
    if let Segment::Tree(tree) = segment {
        cells.push(cell_at("internal", &tree.internal)?);
    }
    let (default_name, streams) = match segment {
        Segment::Chain(model::Chain { stream, .. }) | Segment::Decode(model::Decode { stream, .. }) => {
            (first.0.as_str(), *stream == Some(true))
        }
        Segment::Stage(_) => (first.0.as_str(), false),
        Segment::Tree(_) => ("tree", false),
    };
    Ok(SegmentRequest {
        name: name.unwrap_or(default_name).to_owned(),
        cells,
        nodes: nodes(segment)?,
        sources: sources(segment)?,
        emits: emits(segment)?,
        streams,
    })
}

fn nodes(segment: &Segment) -> Result<NamedNodes, Fault> {
    Ok(match segment {
        Segment::Stage(_) => Nodes::Stage,
        Segment::Chain(chain) => Nodes::Chain { steps: chain.steps.as_ref().map(Steps::text) },
        Segment::Decode(decode) => {
            let mut until = decode.until.iter().flat_map(|until| &until.0);
            let first = until.next();
            if let (Some((first, _)), Some((second, _))) = (first, until.next()) {
                let message = format!("expected one output that ends the loop, but found '{}' too", first.0);
                return Err((format!("until.{}", second.0), message));
            }
            let until = first.map(|(output, value)| (output.0.clone(), value.0));
            Nodes::Decode { max_steps: Some(decode.max_steps.text()), until }
        }
        Segment::Tree(tree) => Nodes::Tree {
            children: tree.children.0.clone(),
            max_nodes: tree.max_nodes.map_or(DEFAULT_MAX_NODES, |most| most.0),
        },
    })
}

/// The tensor or output that a segment gives an input under a key.
pub(super) fn given_at<'s>(segment: &'s Segment, key: &str, input: &str) -> Option<&'s str> {
    let (_, map) = segment.sources().into_iter().find(|(known, _)| *known == key)?;
    map.get(&Filled(input.to_owned())).map(|text| text.0.as_str())
}

fn sources(segment: &Segment) -> Result<BTreeMap<String, NamedSource>, Fault> {
    let is_stage = matches!(segment, Segment::Stage(_));
    let reversed = matches!(segment, Segment::Chain(model::Chain { reverse: Some(true), .. }));
    let starts = match segment {
        Segment::Stage(Stage { start, .. })
        | Segment::Chain(model::Chain { start, .. })
        | Segment::Decode(model::Decode { start, .. }) => start.as_ref(),
        Segment::Tree(_) => None,
    };
    let mut starts: BTreeMap<&str, &model::Start> =
        starts.into_iter().flat_map(|starts| &starts.0).map(|(input, start)| (input.0.as_str(), start)).collect();
    let mut sources = BTreeMap::new();
    let mut places: BTreeMap<&str, &str> = BTreeMap::new();
    let entries = segment.sources().into_iter().flat_map(|(map, own)| own.iter().map(move |entry| (map, entry)));
    for (map, (Filled(input), Filled(text))) in entries {
        let refuse = |message: String| (format!("{map}.{input}"), message);
        if let Some(other) = places.insert(input, map) {
            return Err(refuse(format!("expected one source of the input '{input}', but '{other}' has it too")));
        }
        if is_stage && map != "over" && places.values().any(|other| *other == "over") {
            let message = "a stage that goes over rows reads nothing else: expected all inputs in 'over'";
            return Err(refuse(message.to_owned()));
        }
        let grows = |input: &str| given_at(segment, "grow", input).is_some();
        let source = match map {
            "over" if is_stage => Source::Rows(text.clone()),
            "over" => Source::Step { of: text.clone(), reversed },
            "length" if text.strip_prefix("grow.").is_some_and(grows) => Source::GrownLength,
            "length" => Source::Length(text.clone()),
            "grow" => Source::Grown { output: text.clone() },
            "child" => child(text).map_err(refuse)?,
            "carry" | "feed" | "keep" => {
                let start = starts.remove(input.as_str()).map_or(Start::Row(Constant::Value(0.0)), start);
                Source::Carried { output: text.clone(), start, is_kept: map == "keep" }
            }
            "control" => control(text).map_err(refuse)?,
            _ => Source::Whole(text.clone()),
        };
        sources.insert(input.clone(), source);
    }
    if let Some((input, _)) = starts.first_key_value() {
        let message = format!("only what is carried from step to step has a start, but '{input}' is not");
        return Err((format!("start.{input}"), message));
    }
    Ok(sources)
}

/// A flag that a cell reads: 0 for no and 1 for yes.
fn control(text: &str) -> Result<NamedSource, String> {
    let control = match text {
        "id" => return Ok(Source::CorrelationId),
        "start" => Control::Start,
        "end" => Control::End,
        "ready" => Control::Ready,
        _ => return Err(format!("expected start, end, ready or id, but found '{text}'")),
    };
    Ok(Source::Control { control, no: Constant::Value(0.0), yes: Constant::Value(1.0) })
}

fn start(start: &model::Start) -> Start<String, Constant> {
    match start {
        model::Start::Number(number) => Start::Row(Constant::Value(number.0)),
        model::Start::Tensor(Filled(name)) => Start::Tensor(name.clone()),
    }
}

fn child(text: &str) -> Result<NamedSource, String> {
    let split = text.split_once('.').filter(|(_, output)| !output.is_empty());
    let read = split.and_then(|(child, output)| Some((child.parse::<u16>().ok()?, output)));
    let (child, output) = read.ok_or_else(|| {
        format!("expected a child's number and an output of its cell, as in '0.h', but found '{text}'")
    })?;
    // Where there is no such child, zeros are read.
    Ok(Source::Child { child: child.into(), output: output.to_owned(), none: Constant::Value(0.0) })
}

/// A stage that names none leaves all outputs of its cell.
fn emits(segment: &Segment) -> Result<Vec<Emit<String>>, Fault> {
    let (given, last) = match segment {
        Segment::Stage(stage) => (stage.emit.as_ref(), "last"),
        Segment::Chain(chain) => (Some(&chain.emit), "last"),
        Segment::Decode(decode) => (Some(&decode.emit), "last"),
        Segment::Tree(tree) => (Some(&tree.emit), "root"),
    };
    let emits = given.into_iter().flat_map(|given| &given.0).map(|(Filled(name), Filled(text))| {
        let call = text.strip_suffix(')').and_then(|call| call.split_once('('));
        let (word, output) = call.map_or(("", ""), |(word, output)| (word.trim(), output.trim()));
        let which = match word {
            // All values of a single node are the last one.
            "all" if matches!(segment, Segment::Stage(_)) => Some(Which::Last),
            "all" => Some(Which::All),
            word => (word == last).then_some(Which::Last),
        };
        let emit = which.filter(|_| !output.is_empty()).map(|which| {
            let output = output.to_owned();
            Emit { name: name.clone(), output, which }
        });
        emit.ok_or_else(|| {
            let message = format!("expected {last}(<output>) or all(<output>), but found '{text}'");
            (format!("emit.{name}"), message)
        })
    });
    emits.collect()
}
