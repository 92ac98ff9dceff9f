//! The token pass before prost-reflect: inserts the colon of `input [ … ]`, checks keys, enum values and brackets
//! against the schema, and notes where each key stands. It knows strings and comments, so a bracket inside them counts
//! for nothing.

use std::collections::{BTreeMap, HashMap};

use prost_reflect::{FieldDescriptor, Kind, MessageDescriptor};

use crate::repository::config::{bounds, nearest::suggestion};

/// A fault that the pass itself found, at a byte offset of the user's text.
#[derive(Debug)]
pub(super) struct Fault {
    pub(super) offset: usize,
    pub(super) message: String,
}

/// Text that prost-reflect takes, and the way back to the user's text.
#[derive(Debug)]
pub(super) struct Prepared {
    pub(super) text: String,
    /// Byte offsets, in `text`, of the colons that were inserted; ascending.
    inserted: Vec<usize>,
    /// Byte offset of every key in the user's text, by its path in `ModelConfig`.
    pub(super) places: BTreeMap<String, usize>,
}

impl Prepared {
    /// The offset in the user's text of an offset in [`Self::text`].
    pub(super) fn original_offset(&self, offset: usize) -> usize {
        offset - self.inserted.partition_point(|inserted| *inserted < offset)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TokenKind {
    Word,
    Text,
    Number,
    Mark(u8),
}

#[derive(Clone, Copy, Debug)]
struct Token {
    kind: TokenKind,
    start: usize,
    end: usize,
}

/// An open bracket.
#[derive(Debug)]
struct Frame {
    close: u8,
    offset: usize,
    path: String,
    /// The message whose fields stand here; `None` within a list.
    message: Option<MessageDescriptor>,
    /// The field whose elements stand here, within a list.
    list: Option<Field>,
    /// Elements seen so far of each repeated field.
    counts: HashMap<String, usize>,
    /// A field whose value is still to come.
    pending: Option<Field>,
    colon: bool,
}

#[derive(Clone, Debug)]
struct Field {
    path: String,
    descriptor: Option<FieldDescriptor>,
}

/// Prepares a text for prost-reflect, whose root message is `root`.
pub(super) fn prepare(text: &str, root: MessageDescriptor) -> Result<Prepared, Fault> {
    let mut pass = Pass {
        source: text,
        copied: 0,
        prepared: Prepared {
            text: String::with_capacity(text.len() + 64),
            inserted: Vec::new(),
            places: BTreeMap::new(),
        },
        frames: vec![Frame::message(0, 0, String::new(), Some(root))],
        values: 0,
    };
    let mut offset = 0;
    while let Some(token) = next_token(text, offset)? {
        offset = token.end;
        pass.take(token)?;
    }
    pass.finish()
}

impl Frame {
    fn message(close: u8, offset: usize, path: String, message: Option<MessageDescriptor>) -> Self {
        Self { close, offset, path, message, list: None, counts: HashMap::new(), pending: None, colon: false }
    }
}

struct Pass<'a> {
    source: &'a str,
    copied: usize,
    prepared: Prepared,
    frames: Vec<Frame>,
    /// Scalars, messages and lists so far.
    values: usize,
}

impl Pass<'_> {
    fn take(&mut self, token: Token) -> Result<(), Fault> {
        match token.kind {
            TokenKind::Mark(open @ (b'{' | b'<')) => return self.open_message(open, token),
            TokenKind::Mark(b'[') => return self.open_list(token),
            TokenKind::Mark(close @ (b'}' | b'>' | b']')) => return self.close(close, token),
            TokenKind::Mark(b':') => self.top().colon = true,
            TokenKind::Mark(b',' | b';') => {
                let top = self.top();
                (top.pending, top.colon) = (None, false);
            }
            TokenKind::Word => return self.word(token),
            TokenKind::Text => return self.string(token),
            TokenKind::Number => {
                self.top().colon = false;
                return self.count(token);
            }
            TokenKind::Mark(_) => {}
        }
        Ok(())
    }

    fn count(&mut self, token: Token) -> Result<(), Fault> {
        self.values += 1;
        match self.values {
            0..=bounds::MAX_VALUES => Ok(()),
            _ => Err(Fault { offset: token.start, message: bounds::too_many_values() }),
        }
    }

    /// The innermost open bracket; the outermost frame is never closed.
    fn top(&mut self) -> &mut Frame {
        let last = self.frames.len() - 1;
        &mut self.frames[last]
    }

    fn word(&mut self, token: Token) -> Result<(), Fault> {
        let source = self.source;
        let word = &source[token.start..token.end];
        let top = self.top();
        if let Some(list) = &top.list {
            check_value(list.descriptor.as_ref(), word, token.start)?;
            return self.count(token);
        }
        if std::mem::take(&mut top.colon) {
            let field = top.pending.take();
            check_value(field.and_then(|field| field.descriptor).as_ref(), word, token.start)?;
            return self.count(token);
        }
        let descriptor = match &top.message {
            None => None,
            Some(message) => {
                let found = message.get_field_by_name(word);
                if found.is_none() {
                    let names: Vec<String> = message.fields().map(|field| field.name().to_owned()).collect();
                    let hint = suggestion(word, names.iter().map(String::as_str));
                    let within = if top.path.is_empty() { String::new() } else { format!(" in {}", top.path) };
                    return Err(Fault { offset: token.start, message: format!("unknown key '{word}'{within}{hint}") });
                }
                found
            }
        };
        let path = join(&top.path, word);
        let elements = descriptor
            .as_ref()
            .is_some_and(|field| (field.is_list() || field.is_map()) && matches!(field.kind(), Kind::Message(_)));
        let next = top.counts.get(word).copied().unwrap_or(0);
        top.pending = Some(Field { path: path.clone(), descriptor });
        if elements {
            self.prepared.places.insert(format!("{path}[{next}]"), token.start);
        }
        self.prepared.places.entry(path).or_insert(token.start);
        Ok(())
    }

    fn string(&mut self, token: Token) -> Result<(), Fault> {
        self.count(token)?;
        let source = self.source;
        let top = self.top();
        top.colon = false;
        let Some(field) = &top.pending else { return Ok(()) };
        let entry = top.message.as_ref().is_some_and(MessageDescriptor::is_map_entry);
        if !entry || !field.path.ends_with(".key") {
            return Ok(());
        }
        // A map's entry is known by its key from here on: `parameters[3]` becomes `parameters[name]`.
        let key = &source[token.start + 1..token.end - 1];
        bounds::key(key).map_err(|message| Fault { offset: token.start, message })?;
        let stem = top.path.rfind('[').map_or(top.path.as_str(), |cut| &top.path[..cut]).to_owned();
        let offset = top.offset;
        top.path = format!("{stem}[{key}]");
        let path = top.path.clone();
        self.prepared.places.insert(path, offset);
        Ok(())
    }

    /// Opens a bracket within what is open.
    fn push(&mut self, frame: Frame) -> Result<(), Fault> {
        // The outermost frame has no bracket.
        if self.frames.len() > bounds::MAX_DEPTH {
            return Err(Fault { offset: frame.offset, message: bounds::too_deep() });
        }
        self.frames.push(frame);
        Ok(())
    }

    fn open_message(&mut self, open: u8, token: Token) -> Result<(), Fault> {
        self.count(token)?;
        let close = if open == b'{' { b'}' } else { b'>' };
        let top = self.top();
        let in_list = top.list.is_some();
        let field = if in_list { top.list.clone() } else { top.pending.take() };
        top.colon = false;
        let Some(field) = field else { return Err(misplaced(open, "a key before", token.start)) };
        let message = field.descriptor.as_ref().and_then(|descriptor| descriptor.kind().as_message().cloned());
        if message.is_none() {
            return Err(misplaced(open, "a value, but found", token.start));
        }
        let repeated = field.descriptor.as_ref().is_some_and(|field| field.is_list() || field.is_map());
        let mut path = field.path.clone();
        if repeated {
            // Elements of a list count in the message around it, so that two lists of one field go on counting.
            let owner = self.frames.len() - if in_list { 2 } else { 1 };
            let name = field.path.rsplit('.').next().unwrap_or_default().to_owned();
            let count = self.frames[owner].counts.entry(name).or_insert(0);
            path = format!("{path}[{count}]");
            *count += 1;
            if in_list {
                self.prepared.places.insert(path.clone(), token.start);
            }
        }
        self.push(Frame::message(close, token.start, path, message))
    }

    fn open_list(&mut self, token: Token) -> Result<(), Fault> {
        self.count(token)?;
        let top = self.top();
        let (field, colon) = (top.pending.take(), std::mem::take(&mut top.colon));
        let Some(field) = field else {
            let expected = if top.list.is_some() { "a value, but found" } else { "a key before" };
            return Err(misplaced(b'[', expected, token.start));
        };
        if !colon {
            self.prepared.text.push_str(&self.source[self.copied..token.start]);
            self.copied = token.start;
            self.prepared.inserted.push(self.prepared.text.len());
            self.prepared.text.push(':');
        }
        let mut frame = Frame::message(b']', token.start, field.path.clone(), None);
        frame.list = Some(field);
        self.push(frame)
    }

    fn close(&mut self, close: u8, token: Token) -> Result<(), Fault> {
        let open = self.top();
        let message = if open.close == 0 {
            format!("'{}' closes nothing", char::from(close))
        } else if open.close != close {
            let line = line_of(self.source, self.frames[self.frames.len() - 1].offset);
            let expected = char::from(self.frames[self.frames.len() - 1].close);
            format!("expected '{expected}' for the bracket opened in line {line}, but found '{}'", char::from(close))
        } else {
            self.frames.pop();
            let top = self.top();
            (top.pending, top.colon) = (None, false);
            return Ok(());
        };
        Err(Fault { offset: token.start, message })
    }

    fn finish(mut self) -> Result<Prepared, Fault> {
        let open = self.top();
        if open.close != 0 {
            let message = format!("this bracket is never closed: expected '{}'", char::from(open.close));
            return Err(Fault { offset: open.offset, message });
        }
        self.prepared.text.push_str(&self.source[self.copied..]);
        Ok(self.prepared)
    }
}

/// The fault of a bracket that cannot stand where it does.
fn misplaced(bracket: u8, expected: &str, offset: usize) -> Fault {
    Fault { offset, message: format!("expected {expected} '{}'", char::from(bracket)) }
}

fn join(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
}

fn line_of(text: &str, offset: usize) -> usize {
    text[..offset].matches('\n').count() + 1
}

fn check_value(field: Option<&FieldDescriptor>, word: &str, offset: usize) -> Result<(), Fault> {
    let Some(Kind::Enum(values)) = field.map(FieldDescriptor::kind) else { return Ok(()) };
    if values.get_value_by_name(word).is_some() {
        return Ok(());
    }
    let names: Vec<String> = values.values().map(|value| value.name().to_owned()).collect();
    let hint = suggestion(word, names.iter().map(String::as_str));
    let name = field.map(|field| field.name().to_owned()).unwrap_or_default();
    Err(Fault { offset, message: format!("{name}: expected one of {}, but found '{word}'{hint}", names.join(", ")) })
}

fn next_token(text: &str, from: usize) -> Result<Option<Token>, Fault> {
    let bytes = text.as_bytes();
    let mut start = from;
    while let Some(&byte) = bytes.get(start) {
        match byte {
            b' ' | b'\t' | b'\r' | b'\n' | 0x0b | 0x0c => start += 1,
            b'#' => start += bytes[start..].iter().position(|&byte| byte == b'\n').unwrap_or(bytes.len() - start),
            _ => break,
        }
    }
    let Some(&first) = bytes.get(start) else { return Ok(None) };
    let run = |accepted: fn(u8) -> bool| {
        start + bytes[start..].iter().position(|&byte| !accepted(byte)).unwrap_or(bytes.len() - start)
    };
    let token = |kind, end| Ok(Some(Token { kind, start, end }));
    match first {
        b'"' | b'\'' => token(TokenKind::Text, string_end(bytes, start)?),
        b'A'..=b'Z' | b'a'..=b'z' | b'_' => {
            token(TokenKind::Word, run(|byte| byte.is_ascii_alphanumeric() || byte == b'_'))
        }
        b'0'..=b'9' | b'.' => {
            token(TokenKind::Number, run(|byte| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'.'))
        }
        b'{' | b'}' | b'[' | b']' | b'<' | b'>' | b':' | b',' | b';' | b'-' | b'+' | b'/' => {
            token(TokenKind::Mark(first), start + 1)
        }
        _ => {
            let character = text[start..].chars().next().unwrap_or_default();
            let message = format!("expected a key or a value, but found '{}'", character.escape_debug());
            Err(Fault { offset: start, message })
        }
    }
}

/// The offset behind a string's closing quote.
fn string_end(bytes: &[u8], start: usize) -> Result<usize, Fault> {
    let quote = bytes[start];
    let mut at = start + 1;
    while let Some(&byte) = bytes.get(at) {
        match byte {
            b'\\' => at += 2,
            b'\n' => break,
            _ if byte == quote => return Ok(at + 1),
            _ => at += 1,
        }
    }
    let message = format!("this string is never closed: expected {} in the same line", char::from(quote));
    Err(Fault { offset: start, message })
}
