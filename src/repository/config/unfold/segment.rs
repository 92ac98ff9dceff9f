//! One segment: from its keys to a request, apart from the tensors that it names.

use std::collections::BTreeMap;

use smallvec::{SmallVec, smallvec};

use super::{Constant, DEFAULT_MAX_NODES, Kind, MAX_NODES, NamedSource, SegmentRequest, keys, part::Part};
use crate::{
    model::unfold::{Control, Emit, Nodes, Source, Start, Which},
    repository::config::{ConfigError, nearest::suggestion},
};

/// Reads a segment. `cell` gives the number of a cell, or the reason why there is none of that name.
///
/// # Errors
/// For keys that its kind has not, that are missing, or whose values are of a wrong kind.
pub(super) fn read(
    part: &Part<'_>,
    cell: &mut dyn FnMut(&str) -> Result<usize, String>,
) -> Result<SegmentRequest, ConfigError> {
    let kind = kind(part)?;
    let mut cell_at = |key: &str| {
        let name = part.required(key)?;
        cell(name).map_err(|fault| part.refuse(key, fault)).map(|number| (number, name))
    };
    let (cells, default_name): (SmallVec<[usize; 2]>, &str) = match kind {
        Kind::Stage | Kind::Chain | Kind::Decode => {
            let (cell, name) = cell_at(keys::CELL)?;
            (smallvec![cell], name)
        }
        Kind::Tree => {
            let ((leaf, _), (internal, _)) = (cell_at(keys::LEAF)?, cell_at(keys::INTERNAL)?);
            (smallvec![leaf, internal], Kind::Tree.as_str())
        }
    };
    let nodes = match kind {
        Kind::Stage => Nodes::Stage,
        Kind::Chain => {
            let steps = part.text(keys::STEPS).map(|_| part.required(keys::STEPS)).transpose()?;
            Nodes::Chain { steps: steps.map(str::to_owned) }
        }
        Kind::Decode => {
            let max_steps = part.required(keys::MAX_STEPS)?.to_owned();
            Nodes::Decode { max_steps: Some(max_steps), until: until(part)? }
        }
        Kind::Tree => {
            let children = part.required(keys::CHILDREN)?.to_owned();
            let max_nodes = part.whole(keys::MAX_NODES, 1..=MAX_NODES)?.unwrap_or(DEFAULT_MAX_NODES);
            Nodes::Tree { children, max_nodes }
        }
    };
    let name = part.text(keys::NAME).unwrap_or(default_name);
    if !keys::is_name(name) {
        let message = format!("expected a name of letters, digits, '_' and '-', but found '{name}'");
        return Err(part.refuse(keys::NAME, message));
    }
    let sources = sources(part, kind)?;
    let emits = emits(part, kind)?;
    Ok(SegmentRequest { name: name.to_owned(), cells, nodes, sources, emits, streams: part.flag(keys::STREAM)? })
}

fn kind(part: &Part<'_>) -> Result<Kind, ConfigError> {
    let word = part.required(keys::KIND)?;
    let Some(kind) = Kind::from_name(word) else {
        let hint = suggestion(word, Kind::ALL.map(Kind::as_str));
        return Err(part.refuse(keys::KIND, format!("expected stage, chain, decode or tree, but found '{word}'{hint}")));
    };
    for key in part.keys().filter(|key| *key != keys::KIND) {
        let first = key.split('.').next().unwrap_or(key);
        if !kind.plain().contains(&key) && !kind.maps().contains(&first) {
            let hint = suggestion(first, kind.plain().iter().chain(kind.maps()).copied());
            return Err(part.refuse(key, format!("a {kind} has no '{first}'{hint}")));
        }
    }
    Ok(kind)
}

fn until(part: &Part<'_>) -> Result<Option<(String, i64)>, ConfigError> {
    let given = part.mapping(keys::UNTIL)?;
    let key = |output: &str| format!("{}.{output}", keys::UNTIL);
    match given[..] {
        [] => Ok(None),
        [(output, text)] => match text.parse() {
            Ok(value) => Ok(Some((output.to_owned(), value))),
            Err(_) => Err(part.refuse(&key(output), format!("expected a whole number, but found '{text}'"))),
        },
        [(first, _), (second, _), ..] => {
            Err(part.refuse(&key(second), format!("expected one output that ends the loop, but found '{first}' too")))
        }
    }
}

fn sources(part: &Part<'_>, kind: Kind) -> Result<BTreeMap<String, NamedSource>, ConfigError> {
    let reversed = part.flag(keys::REVERSE)?;
    let mut starts: BTreeMap<&str, &str> = BTreeMap::new();
    if kind.maps().contains(&keys::START) {
        starts.extend(part.mapping(keys::START)?);
    }
    let mut sources = BTreeMap::new();
    let mut places: BTreeMap<&str, &str> = BTreeMap::new();
    for map in kind.sources() {
        for (input, text) in part.mapping(map)? {
            let key = format!("{map}.{input}");
            if let Some(other) = places.insert(input, map) {
                let message = format!("expected one source of the input '{input}', but '{other}' has it too");
                return Err(part.refuse(&key, message));
            }
            if kind == Kind::Stage && map != keys::OVER && places.values().any(|other| *other == keys::OVER) {
                let message = "a stage that goes over rows reads nothing else: expected all inputs in 'over'";
                return Err(part.refuse(&key, message));
            }
            let source = match map {
                keys::OVER if kind == Kind::Stage => Source::Rows(text.to_owned()),
                keys::OVER => Source::Step { of: text.to_owned(), reversed },
                keys::LENGTH => length(part, text),
                keys::GROW => Source::Grown { output: text.to_owned() },
                keys::CHILD => child(text).map_err(|fault| part.refuse(&key, fault))?,
                keys::CARRY | keys::FEED | keys::KEEP => {
                    let start = starts.remove(input).map_or(Start::Row(Constant::Value(0.0)), start);
                    Source::Carried { output: text.to_owned(), start, is_kept: map == keys::KEEP }
                }
                keys::CONTROL => control(text).map_err(|fault| part.refuse(&key, fault))?,
                _ => Source::Whole(text.to_owned()),
            };
            sources.insert(input.to_owned(), source);
        }
    }
    if let Some((input, _)) = starts.first_key_value() {
        let message = format!("only what is carried from step to step has a start, but '{input}' is not");
        return Err(part.refuse(&format!("{}.{input}", keys::START), message));
    }
    Ok(sources)
}

/// What a cell is told: flags are 0 for no and 1 for yes.
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

/// The length of a tensor, or of an input that the segment itself grows.
fn length(part: &Part<'_>, text: &str) -> NamedSource {
    let grows = keys::grown(text).is_some() && part.text(text).is_some();
    if grows { Source::GrownLength } else { Source::Length(text.to_owned()) }
}

fn start(text: &str) -> Start<String, Constant> {
    let number = text.parse().ok().filter(|number: &f64| number.is_finite());
    number.map_or_else(|| Start::Tensor(text.to_owned()), |number| Start::Row(Constant::Value(number)))
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

fn emits(part: &Part<'_>, kind: Kind) -> Result<Vec<Emit<String>>, ConfigError> {
    // A stage that names none leaves all outputs of its cell.
    let given = if kind == Kind::Stage { part.mapping(keys::EMIT)? } else { part.required_mapping(keys::EMIT)? };
    let last = if kind == Kind::Tree { "root" } else { "last" };
    let emits = given.into_iter().map(|(name, text)| {
        let refuse = || {
            let message = format!("expected {last}(<output>) or all(<output>), but found '{text}'");
            part.refuse(&format!("{}.{name}", keys::EMIT), message)
        };
        let call = text.strip_suffix(')').and_then(|call| call.split_once('('));
        let (word, output) = call.ok_or_else(refuse)?;
        let which = match word.trim() {
            // All values of a single node are the last one.
            "all" if kind == Kind::Stage => Which::Last,
            "all" => Which::All,
            word if word == last => Which::Last,
            _ => return Err(refuse()),
        };
        let output = output.trim();
        if output.is_empty() {
            return Err(refuse());
        }
        Ok(Emit { name: name.to_owned(), output: output.to_owned(), which })
    });
    emits.collect()
}
