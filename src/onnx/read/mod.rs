//! Reads what a model takes and gives without reading its weights.
//!
//! The file is walked field by field: nodes and weights are skipped by seeking, so that a model of many hundred
//! megabytes costs a few reads. What is kept is bounded, whatever the file claims.

use std::{
    collections::HashSet,
    fs::File,
    io::{self, BufReader, Cursor, Read, Seek},
    path::Path,
};

use prost::Message;

use super::{Error, Port, infer::infer, outline::outline_of, pb};

/// Most bytes of declarations (inputs, outputs, operator sets, names) that are read; real models have a few hundred.
const DECLARATIONS_MAX_BYTES: u64 = 4 << 20;
/// How a file begins that Git LFS left in place of a large one.
const LFS_POINTER: &[u8] = b"version https://git-lfs.github.com/spec/";
/// What each declaration counts for at least: an empty one takes memory too.
const DECLARATION_MIN_BYTES: u64 = 16;

/// What a model takes and gives.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Signature {
    /// Inputs that a caller must give, in the file's order; names that are weights are left out.
    pub inputs: Vec<Port>,
    /// Outputs in the file's order; dimensions that the file does not declare are those that follow from its nodes.
    pub outputs: Vec<Port>,
    /// Version of the standard operator set; `None` where the model uses none.
    pub opset: Option<i64>,
    /// Version of the file format; 0 where the file does not say.
    pub ir_version: i64,
    /// The tool that wrote the file; empty where the file does not say.
    pub producer: String,
}

impl Signature {
    /// Reads the signature of a model file.
    ///
    /// # Errors
    /// When the file cannot be read or is no ONNX model; the text names the file.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let label = path.display().to_string();
        let opened = File::open(path).and_then(|file| file.metadata().map(|found| (file, found.len())));
        match opened {
            Ok((file, length)) => Self::walk(file, length).map_err(|fault| fault.of(label)),
            Err(source) => Err(Error::Read { file: label, source }),
        }
    }

    /// Reads the signature of a model in memory; `label` stands for the file's name in errors.
    ///
    /// # Errors
    /// When the bytes are no ONNX model.
    pub fn from_bytes(label: &str, bytes: &[u8]) -> Result<Self, Error> {
        Self::walk(Cursor::new(bytes), bytes.len() as u64).map_err(|fault| fault.of(label.to_owned()))
    }

    fn walk(mut source: impl Read + Seek, length: u64) -> Result<Self, Fault> {
        refuse_pointer(&mut source)?;
        let mut found = Self::declared(&mut source, length)?;
        if found.outputs.iter().any(|port| port.dims.is_none() && port.datatype.is_some()) {
            source.rewind()?;
            found.infer_outputs(source, length);
        }
        Ok(found)
    }

    /// Fills in what the file does not declare of the outputs, as far as it follows from the nodes.
    fn infer_outputs(&mut self, source: impl Read + Seek, length: u64) {
        let Some(inference) = outline_of(source, length).as_ref().map(infer) else { return };
        for port in self.outputs.iter_mut().filter(|port| port.dims.is_none()) {
            port.dims = inference.tensor(&port.name).and_then(|info| info.dims.clone());
        }
    }

    fn declared(source: impl Read + Seek, length: u64) -> Result<Self, Fault> {
        let mut wire = Wire::new(source, DECLARATIONS_MAX_BYTES);
        let mut found =
            Self { inputs: Vec::new(), outputs: Vec::new(), opset: None, ir_version: 0, producer: String::new() };
        let mut has_graph = false;
        while let Some(field) = wire.field(length)? {
            match field {
                Field { number: 1, body: Body::Varint(value) } => found.ir_version = value.cast_signed(),
                Field { number: 2, body: Body::Bytes(end) } => found.producer = wire.text(end)?,
                Field { number: 7, body: Body::Bytes(end) } => {
                    has_graph = true;
                    found.graph(&mut wire, end)?;
                }
                Field { number: 8, body: Body::Bytes(end) } => {
                    let set: pb::OperatorSetIdProto = wire.message(end)?;
                    if matches!(set.domain(), "" | "ai.onnx") {
                        found.opset = Some(set.version());
                    }
                }
                Field { body: Body::Bytes(end), .. } => wire.skip_to(end)?,
                Field { .. } => {}
            }
        }
        if !has_graph {
            return Err(Fault::Bad("it holds no graph".to_owned()));
        }
        found.check_names()?;
        let weights = wire.initializers(length, found.inputs.iter().map(|port| port.name.clone()).collect())?;
        found.inputs.retain(|port| !weights.contains(&port.name));
        Ok(found)
    }

    fn graph<S: Read + Seek>(&mut self, wire: &mut Wire<S>, end: u64) -> Result<(), Fault> {
        while let Some(field) = wire.field(end)? {
            match field {
                Field { number: 11, body: Body::Bytes(end) } => self.inputs.push(Port::decode(wire.message(end)?)),
                Field { number: 12, body: Body::Bytes(end) } => self.outputs.push(Port::decode(wire.message(end)?)),
                Field { body: Body::Bytes(end), .. } => wire.skip_to(end)?,
                Field { .. } => {}
            }
        }
        Ok(())
    }

    fn check_names(&self) -> Result<(), Fault> {
        for (what, ports) in [("input", &self.inputs), ("output", &self.outputs)] {
            let mut seen = HashSet::new();
            for (index, port) in ports.iter().enumerate() {
                if port.name.is_empty() {
                    return Err(Fault::Bad(format!("{what} {index} has no name")));
                }
                if !seen.insert(&port.name) {
                    return Err(Fault::Bad(format!("{what} '{}' is declared twice", port.name)));
                }
            }
        }
        Ok(())
    }
}

/// Refuses a file that only stands for a model.
fn refuse_pointer(source: &mut (impl Read + Seek)) -> Result<(), Fault> {
    let mut head = Vec::with_capacity(LFS_POINTER.len());
    source.take(LFS_POINTER.len() as u64).read_to_end(&mut head)?;
    source.rewind()?;
    if head != LFS_POINTER {
        return Ok(());
    }
    let reason = "it is a pointer of Git LFS, which stands for the model: run 'git lfs pull' where it was cloned";
    Err(Fault::Bad(reason.to_owned()))
}

/// One field of a protobuf message.
#[derive(Clone, Copy)]
pub(super) struct Field {
    pub(super) number: u64,
    pub(super) body: Body,
}

#[derive(Clone, Copy)]
pub(super) enum Body {
    Varint(u64),
    /// Four or eight bytes, already passed.
    Fixed,
    /// Bytes up to this offset, yet to be read or skipped.
    Bytes(u64),
}

pub(super) enum Fault {
    Io(io::Error),
    Bad(String),
}

impl Fault {
    fn of(self, file: String) -> Error {
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
    /// Offset of the next byte.
    at: u64,
    /// Bytes that may still be kept.
    budget: u64,
}

impl<S: Read + Seek> Wire<S> {
    /// Reads from the begin of `source`, and keeps at most `budget` bytes.
    pub(super) fn new(source: S, budget: u64) -> Self {
        Self { source: BufReader::new(source), at: 0, budget }
    }

    /// Offset of the next byte.
    pub(super) fn at(&self) -> u64 {
        self.at
    }

    /// The next field of a message that ends at `end`; `None` at its end.
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

    /// The offset `length` bytes on, if the message reaches that far.
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

    /// Packed numbers up to `end`.
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

    /// Reads what lies before `end`, within the budget.
    fn bytes(&mut self, end: u64) -> Result<Vec<u8>, Fault> {
        let length = end - self.at;
        self.budget = self.budget.checked_sub(length.max(DECLARATION_MIN_BYTES)).ok_or_else(|| {
            Fault::Bad(format!("its inputs, outputs and names take more than {DECLARATIONS_MAX_BYTES} bytes"))
        })?;
        // The budget keeps the length far below any usize.
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

    /// Those of `names` that are weights. A second walk, since weights may come before or after the inputs.
    fn initializers(&mut self, length: u64, names: HashSet<String>) -> Result<HashSet<String>, Fault> {
        self.source.rewind()?;
        self.at = 0;
        self.budget = u64::MAX;
        let longest = names.iter().map(String::len).max().unwrap_or(0) as u64;
        let mut weights = HashSet::new();
        // Ends of the model, a graph in it, and a weight in that.
        while let Some(field) = self.field(length)? {
            let Body::Bytes(graph) = field.body else { continue };
            if field.number != 7 {
                self.skip_to(graph)?;
                continue;
            }
            while let Some(field) = self.field(graph)? {
                let Body::Bytes(tensor) = field.body else { continue };
                if field.number != 5 {
                    self.skip_to(tensor)?;
                    continue;
                }
                let mut named = None;
                while let Some(field) = self.field(tensor)? {
                    let Body::Bytes(end) = field.body else { continue };
                    if field.number == 8 && end - self.at <= longest {
                        named = Some(self.text(end)?);
                    } else {
                        self.skip_to(end)?;
                    }
                }
                weights.extend(named.filter(|name| names.contains(name)));
            }
        }
        Ok(weights)
    }
}

#[cfg(test)]
mod tests;
