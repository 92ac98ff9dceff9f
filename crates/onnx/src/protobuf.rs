//! Protobuf's wire format, read field by field from a seekable source, so that large fields can be skipped.

use std::io::{self, BufReader, Read, Seek};

use prost::Message;

use super::Error;

/// Bytes that each text, list or message counts for at least: an empty one takes memory too.
const KEPT_MIN_BYTES: u64 = 16;

/// A field of a protobuf message: its number and what follows its key.
#[derive(Clone, Copy)]
pub(super) struct Field {
    pub(super) number: u64,
    pub(super) body: Body,
}

/// The value of a field, by its wire type.
#[derive(Clone, Copy)]
pub(super) enum Body {
    Varint(u64),
    /// Four or eight bytes, already skipped.
    Fixed,
    /// Bytes up to this offset, to be read or skipped by the caller.
    Bytes(u64),
}

/// Why a source could not be read.
pub(super) enum Fault {
    Io(io::Error),
    Bad(String),
}

impl Fault {
    pub(super) fn of(self, file: String) -> Error {
        match self {
            Self::Io(source) => Error::Read { file, source },
            Self::Bad(reason) => Error::Malformed { file, reason },
        }
    }
}

impl From<io::Error> for Fault {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// A protobuf reader over a seekable source.
pub(super) struct Wire<S> {
    source: BufReader<S>,
    /// Returns the offset of the next byte.
    at: u64,
    /// Bytes that may be kept in all.
    limit: u64,
    /// Number of bytes that may still be kept.
    budget: u64,
}

impl<S: Read + Seek> Wire<S> {
    /// Reads from the start of `source`, and keeps at most `limit` bytes of texts, numbers and messages.
    pub(super) fn new(source: S, limit: u64) -> Self {
        Self { source: BufReader::new(source), at: 0, limit, budget: limit }
    }

    /// Returns to the start of the source, from where it keeps at most `limit` bytes.
    pub(super) fn restart(&mut self, limit: u64) -> io::Result<()> {
        self.source.rewind()?;
        (self.at, self.limit, self.budget) = (0, limit, limit);
        Ok(())
    }

    /// Returns the offset of the next byte.
    pub(super) fn at(&self) -> u64 {
        self.at
    }

    /// Reads the next field of a message that ends at `end`; `None` at its end.
    pub(super) fn field(&mut self, end: u64) -> Result<Option<Field>, Fault> {
        if self.at == end {
            return Ok(None);
        }
        let start = self.at;
        let key = self.varint(end)?;
        let number = key >> 3;
        if number == 0 {
            return Err(Fault::Bad(format!("byte {start} is no field of a protobuf message")));
        }
        let body = match key & 7 {
            0 => Body::Varint(self.varint(end)?),
            1 => self.fixed(8, end)?,
            2 => {
                let length = self.varint(end)?;
                Body::Bytes(self.offset(start, length, end)?)
            }
            5 => self.fixed(4, end)?,
            kind => return Err(Fault::Bad(format!("byte {start} begins a field of unknown wire type {kind}"))),
        };
        Ok(Some(Field { number, body }))
    }

    fn fixed(&mut self, length: u64, end: u64) -> Result<Body, Fault> {
        let offset = self.offset(self.at, length, end)?;
        self.skip_to(offset)?;
        Ok(Body::Fixed)
    }

    /// Returns the offset `length` bytes ahead, if the message is that long.
    fn offset(&self, start: u64, length: u64, end: u64) -> Result<u64, Fault> {
        let left = end - self.at;
        if length > left {
            return Err(Fault::Bad(format!("the field at byte {start} takes {length} bytes, but {left} are left")));
        }
        Ok(self.at + length)
    }

    fn varint(&mut self, end: u64) -> Result<u64, Fault> {
        let start = self.at;
        let mut value = 0_u64;
        for shift in (0..64).step_by(7) {
            if self.at == end {
                return Err(Fault::Bad(format!("it ends within the number at byte {start}")));
            }
            let mut byte = [0_u8];
            self.source.read_exact(&mut byte)?;
            self.at += 1;
            value |= u64::from(byte[0] & 0x7f) << shift;
            if byte[0] < 0x80 {
                return Ok(value);
            }
        }
        Err(Fault::Bad(format!("the number at byte {start} is longer than ten bytes")))
    }

    /// Reads packed integers up to `end`.
    pub(super) fn numbers(&mut self, end: u64) -> Result<Vec<i64>, Fault> {
        let packed = self.bytes(end)?;
        let mut numbers = Vec::new();
        let mut rest = packed.as_slice();
        while !rest.is_empty() {
            let number = prost::decode_length_delimiter(&mut rest).map_err(|error| Fault::Bad(error.to_string()))?;
            numbers.push((number as u64).cast_signed());
        }
        Ok(numbers)
    }

    pub(super) fn skip_to(&mut self, offset: u64) -> Result<(), Fault> {
        let distance = i64::try_from(offset - self.at).map_err(|_| Fault::Bad("it is too long".to_owned()))?;
        self.source.seek_relative(distance)?;
        self.at = offset;
        Ok(())
    }

    /// Reads the bytes up to `end`, within the budget.
    fn bytes(&mut self, end: u64) -> Result<Vec<u8>, Fault> {
        let length = end - self.at;
        let limit = self.limit;
        self.budget = self
            .budget
            .checked_sub(length.max(KEPT_MIN_BYTES))
            .ok_or_else(|| Fault::Bad(format!("its inputs, outputs and names take more than {limit} bytes")))?;
        // The budget keeps the length within `usize`.
        let mut bytes = vec![0; length as usize];
        self.source.read_exact(&mut bytes)?;
        self.at = end;
        Ok(bytes)
    }

    pub(super) fn text(&mut self, end: u64) -> Result<String, Fault> {
        let start = self.at;
        let bytes = self.bytes(end)?;
        String::from_utf8(bytes).map_err(|_| Fault::Bad(format!("the text at byte {start} is not UTF-8")))
    }

    pub(super) fn message<M: Message + Default>(&mut self, end: u64) -> Result<M, Fault> {
        let start = self.at;
        let bytes = self.bytes(end)?;
        M::decode(bytes.as_slice()).map_err(|error| Fault::Bad(format!("the message at byte {start}: {error}")))
    }
}
