//! The pass before prost-reflect: inserts the colon of `input [ … ]`, checks keys, enum values and brackets against the
//! schema, and records the position of each key.
//!
//! It passes over whatever else is wrong, because prost-reflect rejects that.

use std::collections::{BTreeMap, HashMap};

use prost_reflect::{EnumDescriptor, FieldDescriptor, Kind, MessageDescriptor};

use crate::{
    bounds, model_config,
    nearest::suggestion,
    setting_error::{ConfigErrorKind, SettingError},
};

/// A fault that the pass found, at a byte offset of the user's text.
#[derive(Debug)]
pub(super) struct Fault {
    pub(super) offset: usize,
    pub(super) error: SettingError,
}

impl Fault {
    fn syntax(offset: usize, message: String) -> Self {
        Self { offset, error: SettingError::new(ConfigErrorKind::Syntax, message) }
    }
}

/// Text that prost-reflect reads, and what is needed to find its parts in the user's text.
#[derive(Debug, Default)]
pub(super) struct Prepared {
    pub(super) text: String,
    /// Byte offsets in `text` of the inserted colons, ascending.
    inserted: Vec<usize>,
    /// Byte offset of every key in the user's text, by its path in `ModelConfig`.
    pub(super) places: BTreeMap<String, usize>,
}

impl Prepared {
    /// Converts an offset in [`Self::text`] to one in the user's text.
    pub(super) fn original_offset(&self, offset: usize) -> usize {
        offset - self.inserted.partition_point(|inserted| *inserted < offset)
    }
}

/// Prepares a text whose root message is `root`.
///
/// # Errors
/// Rejects unknown keys and enum values, brackets that do not match, and a text beyond the bounds.
pub(super) fn prepare(text: &str, root: &MessageDescriptor) -> Result<Prepared, Fault> {
    let mut pass =
        Pass { source: text, offset: 0, copied: 0, prepared: Prepared::default(), open: Vec::new(), values: 0 };
    pass.fields(root, String::new(), 0)?;
    if let Some(Bracket { close, offset }) = pass.open.pop() {
        let message = format!("this bracket is never closed: expected '{}'", char::from(close));
        return Err(Fault::syntax(offset, message));
    }
    pass.prepared.text.push_str(&text[pass.copied..]);
    Ok(pass.prepared)
}

/// An open bracket.
struct Bracket {
    close: u8,
    offset: usize,
}

/// The number of elements of each repeated field of a message so far.
type Counts = HashMap<String, usize>;

struct Pass<'a> {
    source: &'a str,
    /// Where the next token is looked for.
    offset: usize,
    /// How much of the source was copied to the prepared text.
    copied: usize,
    prepared: Prepared,
    open: Vec<Bracket>,
    /// Scalars, messages and lists so far.
    values: usize,
}

impl Pass<'_> {
    fn peek(&self) -> Result<Option<Token>, Fault> {
        next_token(self.source, self.offset)
    }

    fn next(&mut self) -> Result<Option<Token>, Fault> {
        let token = self.peek()?;
        self.offset = token.map_or(self.source.len(), |token| token.end);
        Ok(token)
    }

    /// Reads fields up to the closing bracket of a message at `path`, or to the end of the text. `start` is where the
    /// message begins.
    fn fields(&mut self, message: &MessageDescriptor, mut path: String, start: usize) -> Result<(), Fault> {
        let mut counts = Counts::new();
        while let Some(token) = self.next()? {
            match token.kind {
                TokenKind::Word => {
                    let value = self.field(message, &path, token, &mut counts)?;
                    if let Some(key) = value.filter(|_| message.is_map_entry() && self.text(token) == "key") {
                        path = self.entry_path(&path, key)?;
                        self.prepared.places.insert(path.clone(), start);
                    }
                }
                TokenKind::Mark(close @ (b'}' | b'>' | b']')) => return self.close(close, token),
                TokenKind::Mark(open @ (b'{' | b'<' | b'[')) => return Err(misplaced(open, "a key before", token)),
                // A further part of a string or number.
                TokenKind::Text | TokenKind::Number => self.count(token)?,
                TokenKind::Mark(_) => {}
            }
        }
        Ok(())
    }

    /// The path of a map's entry, which its key names: `parameters[3]` becomes `parameters[name]`.
    fn entry_path(&self, path: &str, key: Token) -> Result<String, Fault> {
        let key_text = match key.kind {
            TokenKind::Text => &self.source[key.start + 1..key.end - 1],
            _ => self.text(key),
        };
        bounds::key(key_text).map_err(|error| Fault { offset: key.start, error })?;
        let stem = path.rfind('[').map_or(path, |cut| &path[..cut]);
        Ok(format!("{stem}[{key_text}]"))
    }

    /// Reads a field whose name is `name`. Returns the token of its value, if that is a scalar.
    fn field(
        &mut self,
        message: &MessageDescriptor,
        path: &str,
        name: Token,
        counts: &mut Counts,
    ) -> Result<Option<Token>, Fault> {
        let word = self.text(name);
        let field = message.get_field_by_name(word).ok_or_else(|| {
            let within = if path.is_empty() { String::new() } else { format!(" in {path}") };
            Fault { offset: name.start, error: model_config::unknown_field(message, word, &within) }
        })?;
        let path = if path.is_empty() { word.to_owned() } else { format!("{path}.{word}") };
        self.prepared.places.entry(path.clone()).or_insert(name.start);
        let mut next = self.peek()?;
        let has_colon = next.is_some_and(|token| token.kind == TokenKind::Mark(b':'));
        if has_colon {
            self.next()?;
            next = self.peek()?;
        }
        match next {
            Some(token @ Token { kind: TokenKind::Mark(b'['), .. }) => {
                if !has_colon {
                    self.insert_colon(token.start);
                }
                self.next()?;
                self.list(&field, &path, counts, token).map(|()| None)
            }
            Some(token) if has_colon || matches!(token.kind, TokenKind::Mark(b'{' | b'<')) => {
                self.value(&field, path, name.start, counts)
            }
            _ => Ok(None),
        }
    }

    /// Reads the items of a list up to its closing bracket, or to the end of the text.
    fn list(&mut self, field: &FieldDescriptor, path: &str, counts: &mut Counts, bracket: Token) -> Result<(), Fault> {
        self.count(bracket)?;
        self.open(b']', bracket)?;
        while let Some(token) = self.peek()? {
            match token.kind {
                TokenKind::Mark(close @ (b'}' | b'>' | b']')) => {
                    self.next()?;
                    return self.close(close, token);
                }
                TokenKind::Mark(b'[') => return Err(misplaced(b'[', "a value, but found", token)),
                TokenKind::Mark(b'{' | b'<') | TokenKind::Word | TokenKind::Text | TokenKind::Number => {
                    self.value(field, path.to_owned(), token.start, counts)?;
                }
                TokenKind::Mark(_) => drop(self.next()?),
            }
        }
        Ok(())
    }

    /// Reads a message or scalar. A message in a repeated field is recorded at `start`. Returns the token of a scalar.
    fn value(
        &mut self,
        field: &FieldDescriptor,
        mut path: String,
        start: usize,
        counts: &mut Counts,
    ) -> Result<Option<Token>, Fault> {
        while self.peek()?.is_some_and(|token| matches!(token.kind, TokenKind::Mark(b'-' | b'+'))) {
            self.next()?;
        }
        let Some(token) = self.peek()? else { return Ok(None) };
        match (token.kind, field.kind()) {
            (TokenKind::Mark(open @ (b'{' | b'<')), Kind::Message(message)) => {
                self.next()?;
                self.count(token)?;
                if field.is_list() || field.is_map() {
                    let count = counts.entry(field.name().to_owned()).or_insert(0);
                    path = format!("{path}[{count}]");
                    *count += 1;
                    self.prepared.places.insert(path.clone(), start);
                }
                self.open(if open == b'{' { b'}' } else { b'>' }, token)?;
                self.fields(&message, path, token.start).map(|()| None)
            }
            (TokenKind::Mark(open @ (b'{' | b'<')), _) => Err(misplaced(open, "a value, but found", token)),
            (TokenKind::Mark(_), _) => Ok(None),
            (kind, values) => {
                self.next()?;
                if let (TokenKind::Word, Kind::Enum(values)) = (kind, values) {
                    self.check_enum(field, &values, token)?;
                }
                self.count(token)?;
                Ok(Some(token))
            }
        }
    }

    fn check_enum(&self, field: &FieldDescriptor, values: &EnumDescriptor, token: Token) -> Result<(), Fault> {
        let word = self.text(token);
        if values.get_value_by_name(word).is_some() {
            return Ok(());
        }
        let names: Vec<String> = values.values().map(|value| value.name().to_owned()).collect();
        let hint = suggestion(word, names.iter().map(String::as_str));
        let (field, names) = (field.name(), names.join(", "));
        let message = format!("{field}: expected one of {names}, but found '{word}'{hint}");
        Err(Fault::syntax(token.start, message))
    }

    fn text(&self, token: Token) -> &str {
        &self.source[token.start..token.end]
    }

    fn insert_colon(&mut self, offset: usize) {
        self.prepared.text.push_str(&self.source[self.copied..offset]);
        self.copied = offset;
        self.prepared.inserted.push(self.prepared.text.len());
        self.prepared.text.push(':');
    }

    fn count(&mut self, token: Token) -> Result<(), Fault> {
        self.values += 1;
        match self.values {
            0..=bounds::MAX_VALUES => Ok(()),
            _ => Err(Fault { offset: token.start, error: bounds::too_many_values() }),
        }
    }

    fn open(&mut self, close: u8, token: Token) -> Result<(), Fault> {
        let offset = token.start;
        if self.open.len() >= bounds::MAX_DEPTH {
            return Err(Fault { offset, error: bounds::too_deep() });
        }
        self.open.push(Bracket { close, offset });
        Ok(())
    }

    fn close(&mut self, close: u8, token: Token) -> Result<(), Fault> {
        let found = char::from(close);
        let message = match self.open.last() {
            None => format!("'{found}' closes nothing"),
            Some(open) if open.close == close => {
                self.open.pop();
                return Ok(());
            }
            Some(open) => {
                let line = self.source[..open.offset].matches('\n').count() + 1;
                let expected = char::from(open.close);
                format!("expected '{expected}' for the bracket opened in line {line}, but found '{found}'")
            }
        };
        Err(Fault::syntax(token.start, message))
    }
}

fn misplaced(bracket: u8, expected: &str, token: Token) -> Fault {
    Fault::syntax(token.start, format!("expected {expected} '{}'", char::from(bracket)))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TokenKind {
    Word,
    Text,
    Number,
    Mark(u8),
}

/// A token, from byte `start` of the text to before `end`.
#[derive(Clone, Copy, Debug)]
struct Token {
    kind: TokenKind,
    start: usize,
    end: usize,
}

/// Reads the first token from byte `from` on; `None` at the end of the text.
///
/// # Errors
/// Rejects a string without an end, and a character that begins no token.
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
            Err(Fault::syntax(start, message))
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
    Err(Fault::syntax(start, message))
}
