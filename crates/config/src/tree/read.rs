//! Builds the tree from YAML or JSON text.
//!
//! YAML comes as the events of `granit-parser`, the parser of `serde-saphyr`, each with its offset. `serde-saphyr`
//! itself would give positions to types that ask for them (`Spanned<T>`); here the types of settings ask for none,
//! since most faults are found after reading, under a path, and they are read from parameters too, which are no YAML.
//! It also resolves scalars by its own rules, and `08` would no longer be the text that it is to `serde_yaml`.

use std::collections::HashMap;

use granit_parser::{ErrorKind, Event, Options, Parser, ScalarStyle, Span, StrInput, Tag};
use serde::de::IgnoredAny;

use super::{Node, Value};
use crate::{
    bounds,
    position::Position,
    setting_error::{ConfigErrorKind, SettingError},
};

/// Maximum bytes of keys and texts in a tree. A file has far fewer, but YAML aliases can repeat texts without limit.
const MAX_TEXT_BYTES: usize = 1 << 20;

/// Why a text could not be read, and where.
#[derive(Debug)]
pub(crate) struct Refusal {
    pub(crate) position: Option<Position>,
    pub(crate) fault: SettingError,
}

fn syntax(message: impl Into<String>) -> SettingError {
    SettingError::new(ConfigErrorKind::Syntax, message)
}

/// The size of a tree, with aliases expanded.
#[derive(Clone, Copy, Debug, Default)]
struct Size {
    nodes: usize,
    text_bytes: usize,
}

impl Size {
    /// Adds a part, within the bounds.
    fn add(&mut self, nodes: usize, text_bytes: usize) -> Result<(), SettingError> {
        self.nodes += nodes;
        self.text_bytes += text_bytes;
        if self.nodes > bounds::MAX_VALUES {
            return Err(bounds::too_many_values());
        }
        if self.text_bytes > MAX_TEXT_BYTES {
            let most = format_args!("{MAX_TEXT_BYTES} bytes of text once aliases are replaced");
            return Err(bounds::too_large(format!("expected at most {most}, but found more")));
        }
        Ok(())
    }
}

/// Builds the tree of a YAML text.
///
/// # Errors
/// Rejects what is no YAML, more than one document, tags, and a text beyond the bounds.
pub(crate) fn yaml(text: &str) -> Result<Node, Refusal> {
    let mut options = Options::default();
    // A key may be as long as the bound, each byte of it escaped.
    options.simple_key_max_lookahead = 8 * bounds::MAX_KEY_BYTES;
    options.flow_nesting_limit = bounds::MAX_DEPTH;
    options.block_nesting_limit = bounds::MAX_DEPTH;
    let parser = Parser::new_from_str_with_options(text, options);
    let mut reader = YamlReader { parser, at: 0, size: Size::default(), depth: 0, deepest: 0, anchors: HashMap::new() };
    let read = reader.document();
    read.map_err(|fault| Refusal { position: Some(Position::at(text, reader.at)), fault })
}

/// A value that aliases repeat.
struct Anchored {
    node: Node,
    size: Size,
    depth: usize,
}

struct YamlReader<'t> {
    parser: Parser<'t, StrInput<'t>>,
    /// The offset of the last event, which a fault concerns.
    at: usize,
    size: Size,
    /// How many lists and mappings are open.
    depth: usize,
    /// The most that were open since the innermost anchored value began.
    deepest: usize,
    anchors: HashMap<usize, Anchored>,
}

impl<'t> YamlReader<'t> {
    fn next(&mut self) -> Result<Event<'t>, SettingError> {
        match self.parser.next_event() {
            Some(Ok((event, Span { start, .. }))) => {
                self.at = start.byte_offset().unwrap_or(self.at);
                Ok(event)
            }
            Some(Err(fault)) => {
                self.at = fault.marker().byte_offset().unwrap_or(self.at);
                // It reads ahead, so that it may find this before the tree does.
                let is_too_deep = *fault.kind() == ErrorKind::RecursionLimitExceeded;
                Err(if is_too_deep { bounds::too_deep() } else { syntax(fault.info()) })
            }
            None => Ok(Event::StreamEnd),
        }
    }

    /// Reads the only document; none is null.
    fn document(&mut self) -> Result<Node, SettingError> {
        let mut root = None;
        loop {
            match self.next()? {
                Event::StreamEnd => return Ok(root.unwrap_or(Node { at: 0, value: Value::Null })),
                Event::DocumentStart(..) if root.is_some() => {
                    return Err(syntax("expected one YAML document, but found more"));
                }
                Event::StreamStart | Event::DocumentStart(..) | Event::DocumentEnd => {}
                event => root = Some(self.node(event)?),
            }
        }
    }

    fn node(&mut self, event: Event<'t>) -> Result<Node, SettingError> {
        let at = self.at;
        let (size, deepest) = (self.size, std::mem::replace(&mut self.deepest, self.depth));
        let (anchor, value) = match event {
            Event::Alias(anchor) => (0, self.alias(anchor)?),
            Event::Scalar(text, style, anchor, tag) => {
                let value = scalar(&text, style, tag.as_deref())?;
                self.size.add(1, if matches!(value, Value::Text(_)) { text.len() } else { 0 })?;
                (anchor, value)
            }
            Event::SequenceStart(_, anchor, tag) => {
                self.open(tag.as_deref(), "seq")?;
                let mut items = Vec::new();
                loop {
                    match self.next()? {
                        Event::SequenceEnd => break,
                        event => items.push(self.node(event)?),
                    }
                }
                self.depth -= 1;
                (anchor, Value::List(items))
            }
            Event::MappingStart(_, anchor, tag) => {
                self.open(tag.as_deref(), "map")?;
                let mut entries = Vec::new();
                loop {
                    let key = match self.next()? {
                        Event::MappingEnd => break,
                        event => self.node(event)?,
                    };
                    let name = name(key.value)?;
                    let event = self.next()?;
                    let value = self.node(event)?.value;
                    entries.push((name, Node { at: key.at, value }));
                }
                self.depth -= 1;
                (anchor, Value::Map(entries))
            }
            event => return Err(syntax(format!("expected a value, but found {event:?}"))),
        };
        let node = Node { at, value };
        if anchor > 0 {
            let size = Size { nodes: self.size.nodes - size.nodes, text_bytes: self.size.text_bytes - size.text_bytes };
            let depth = self.deepest - self.depth;
            self.anchors.insert(anchor, Anchored { node: node.clone(), size, depth });
        }
        self.deepest = self.deepest.max(deepest);
        Ok(node)
    }

    fn alias(&mut self, anchor: usize) -> Result<Value, SettingError> {
        let Some(anchored) = self.anchors.get(&anchor) else {
            return Err(syntax("expected an alias of a complete value, but found one within its own"));
        };
        self.size.add(anchored.size.nodes, anchored.size.text_bytes)?;
        self.deepest = self.deepest.max(self.depth + anchored.depth);
        if self.deepest > bounds::MAX_DEPTH {
            return Err(bounds::too_deep());
        }
        Ok(anchored.node.value.clone())
    }

    /// Counts a list or mapping.
    fn open(&mut self, tag: Option<&Tag>, kind: &str) -> Result<(), SettingError> {
        if tag.is_some_and(|tag| !tag.is_yaml_core_schema_tag(kind)) {
            return Err(syntax(TAG));
        }
        self.size.add(1, 0)?;
        self.depth += 1;
        self.deepest = self.deepest.max(self.depth);
        if self.depth > bounds::MAX_DEPTH { Err(bounds::too_deep()) } else { Ok(()) }
    }
}

const TAG: &str = "expected a plain value without a tag";

/// Resolves a scalar. The rules are those of YAML's core schema, but that digits behind a leading zero are a text.
fn scalar(text: &str, style: ScalarStyle, tag: Option<&Tag>) -> Result<Value, SettingError> {
    let is_text = || Value::Text(text.to_owned());
    match tag.map(Tag::core_suffix) {
        Some(Some("str")) => return Ok(is_text()),
        Some(Some("int" | "float" | "bool" | "null")) => {}
        Some(_) => return Err(syntax(TAG)),
        None if style != ScalarStyle::Plain => return Ok(is_text()),
        None => {}
    }
    Ok(match text {
        "" | "~" | "null" | "Null" | "NULL" => Value::Null,
        "true" | "True" | "TRUE" => Value::Flag(true),
        "false" | "False" | "FALSE" => Value::Flag(false),
        _ => integer(text).map(Value::Int).or_else(|| float(text).map(Value::Float)).unwrap_or_else(is_text),
    })
}

fn integer(text: &str) -> Option<i128> {
    let (sign, digits) = match text.strip_prefix('-') {
        Some(digits) => ("-", digits),
        None => ("", text.strip_prefix('+').unwrap_or(text)),
    };
    let bases = [("0x", 16), ("0o", 8), ("0b", 2)];
    let based = bases.into_iter().find_map(|(prefix, base)| Some((digits.strip_prefix(prefix)?, base)));
    let (digits, base) = based.unwrap_or((digits, 10));
    let is_plain = digits.chars().all(|digit| digit.is_digit(base)) && !(base == 10 && is_zero_led(digits));
    is_plain.then(|| i128::from_str_radix(&format!("{sign}{digits}"), base).ok())?
}

fn float(text: &str) -> Option<f64> {
    let unsigned = text.strip_prefix(['-', '+']).unwrap_or(text);
    let sign = if text.starts_with('-') { -1.0 } else { 1.0 };
    match unsigned {
        ".inf" | ".Inf" | ".INF" => Some(sign * f64::INFINITY),
        ".nan" | ".NaN" | ".NAN" if unsigned == text => Some(f64::NAN),
        _ if is_zero_led(unsigned) || unsigned.starts_with(['-', '+']) => None,
        _ => unsigned.parse().ok().filter(|number: &f64| number.is_finite()).map(|number| sign * number),
    }
}

/// Whether a text is digits that begin with a zero, such as `08`.
fn is_zero_led(text: &str) -> bool {
    text.len() > 1 && text.starts_with('0') && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// The name that a key is.
fn name(key: Value) -> Result<String, SettingError> {
    let name = match key {
        Value::Text(name) => name,
        // Priority levels are numbers.
        Value::Int(number) => number.to_string(),
        _ => return Err(syntax("expected a word as key")),
    };
    bounds::key(&name).map(|()| name)
}

/// Builds the tree of a JSON text. JSON is YAML too, so that `serde_json` only checks that it is no more than JSON.
///
/// # Errors
/// Rejects what is no JSON, and a text beyond the bounds.
pub(crate) fn json(text: &str) -> Result<Node, Refusal> {
    match serde_json::from_str::<IgnoredAny>(text) {
        Ok(_) => yaml(text),
        Err(fault) => {
            let position = Some(Position { line: fault.line(), column: fault.column() });
            let mut message = fault.to_string();
            // The message ends with the position.
            message.truncate(message.rfind(" at line ").unwrap_or(message.len()));
            Err(Refusal { position, fault: syntax(message) })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_and_items_of_both_forms_have_their_places() {
        for text in
            ["{\"a\": [1,\n  {\"é\": [ [], \"x\" ] , \"b\":2}]}", "{ \"a\" :[ 1 ,\n{\"é\":[[],\"x\"],\n\"b\" : 2}]}"]
        {
            for read in [yaml, json] {
                let root = read(text).expect("it is JSON, and YAML too");
                for (path, begins) in
                    [("a", "\"a\""), ("a[0]", "1"), ("a[1]", "{\"é\""), ("a[1].é[0]", "[]"), ("a[1].b", "\"b\"")]
                {
                    let at = root.find(path).at.expect("it is there");
                    assert!(text[at..].starts_with(begins), "{path}: {}", &text[at..]);
                }
            }
        }
    }

    #[test]
    fn scalars_mean_what_they_mean_to_serde_yaml() {
        let mut texts: Vec<String> =
            "null Null NULL ~ nulls true True TRUE tRue yes on 0 -0 +0 1 +1 -1 08 -08 +08 00 0x1F \
            0xg -0x10 +0x10 0o17 -0o17 0b101 0x-1 0x 0o 0b +-1 -+1 --1 ++1 - + 1_000 1. .5 -.5 +.5 1e3 -1e3 1e-3 1e999 \
            0.0 00.5 -00.5 .inf -.inf +.inf .Inf .INF inf Infinity -inf .nan -.nan .NaN nan NaN 1e 0e0 0x1e3 \
            18446744073709551615 -9223372036854775808 5x 1:2 2001-01-01"
                .split_ascii_whitespace()
                .map(str::to_owned)
                .collect();
        texts.extend(["-", "+", "0", ".", "e", "1", "x"].map(|last| format!("0x1{last}")));
        for text in texts {
            let expected = match serde_yaml::from_str(&format!("[{text}]")) {
                Ok(serde_yaml::Value::Sequence(items)) => items,
                other => panic!("{text}: {other:?}"),
            };
            let found = scalar(&text, ScalarStyle::Plain, None).expect("it has no tag");
            let same = match (&found, &expected[0]) {
                (Value::Null, serde_yaml::Value::Null) => true,
                (Value::Flag(found), serde_yaml::Value::Bool(expected)) => found == expected,
                (Value::Int(found), serde_yaml::Value::Number(expected)) => {
                    expected.as_i64().map(i128::from).or(expected.as_u64().map(i128::from)) == Some(*found)
                }
                (Value::Float(found), serde_yaml::Value::Number(expected)) => {
                    expected.as_f64().is_some_and(|expected| found == &expected || found.is_nan() && expected.is_nan())
                }
                (Value::Text(found), serde_yaml::Value::String(expected)) => found == expected,
                _ => false,
            };
            assert!(same, "{text}: {found:?}, but {:?}", expected[0]);
        }
        // Its values hold no more than 64 bits.
        let large = scalar("18446744073709551616", ScalarStyle::Plain, None);
        assert_eq!(large, Ok(Value::Int(1 << 64)));
    }

    #[test]
    fn an_alias_repeats_a_value_and_its_depth() {
        let root = yaml("a: &a [x, {b: &b 1}]\nc: *a\nd: *b").expect("it is sound");
        let value = |path: &str| {
            let Value::Map(entries) = &root.value else { panic!("a mapping") };
            entries.iter().find(|(name, _)| name == path).map(|(_, node)| node.value.clone()).expect("it is there")
        };
        assert_eq!(value("a"), value("c"));
        assert_eq!(value("d"), Value::Int(1));
        assert_eq!(root.find("c").at, Some(21), "an entry is where its key is");
        let nested = |levels: usize, tail: &str| {
            let (open, close) = ("[".repeat(levels), "]".repeat(levels));
            yaml(&format!("a: &a {open}{close}\nb: [&b [{tail}]]"))
        };
        assert!(nested(61, "*a").is_ok(), "one mapping, two lists and 61 more");
        let refused = nested(62, "*a").expect_err("it is too deep");
        assert_eq!(refused.fault, bounds::too_deep());
        let refused = nested(1, "*b").expect_err("it never ends");
        assert_eq!(refused.fault.message, "expected an alias of a complete value, but found one within its own");
        assert_eq!(refused.position, Some(Position { line: 2, column: 9 }));
    }
}
