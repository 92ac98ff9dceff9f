//! Reads a model's inputs and outputs without reading its weights.
//!
//! Walks the file field by field and skips nodes and weights by seeking, so that a model of many hundred megabytes
//! costs only a few reads. Memory is bounded, whatever the file claims.

use std::{
    collections::{BTreeMap, HashSet},
    fs::File,
    io::{Cursor, Read, Seek},
    path::Path,
};

use super::{
    Error, Port, PortDim,
    infer::{Inference, infer, needs_square},
    outline::outline_of,
    pb,
    protobuf::{Body, Fault, Field, Wire},
};

/// Maximum bytes of declarations (inputs, outputs, operator sets, names). Real models have a few hundred.
const DECLARATIONS_MAX_BYTES: u64 = 4 << 20;
/// The first version of the file format in which an input may have a weight as its default.
const OVERRIDABLE_SINCE: i64 = 4;
/// Start of a file that Git LFS stores in place of a large one.
const LFS_POINTER: &[u8] = b"version https://git-lfs.github.com/spec/";

/// Inputs and outputs of a model.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Signature {
    /// Inputs that a caller must provide, in the file's order.
    pub inputs: Vec<Port>,
    /// Inputs that a caller may leave out, in the file's order: the graph has a weight of the same name as their
    /// default. Files before version 4 list all weights as inputs, none of which can be given.
    pub optional_inputs: Vec<Port>,
    /// Outputs in the file's order. Undeclared dimensions are inferred from the nodes.
    pub outputs: Vec<Port>,
    /// For each output with an axis, other than axis 0, that varies and has not the name of an input's axis: the
    /// lengths of its axes as inferred from the nodes, see
    /// [`Inference::output_lengths`](super::infer::Inference::output_lengths).
    pub inferred_lengths: BTreeMap<String, Vec<Option<String>>>,
    /// Whether the graph needs the number of rows to equal another length that has the same name, so that requests
    /// cannot share a batch.
    pub needs_square: bool,
    /// Version of the standard operator set; `None` if the model does not use it.
    pub opset: Option<i64>,
    /// Version of the file format; 0 if missing.
    pub ir_version: i64,
    /// Name of the tool that wrote the file; empty if missing.
    pub producer: String,
}

impl Signature {
    /// Reads the signature of a model file.
    ///
    /// # Errors
    /// If the file cannot be read or is not an ONNX model. The error names the file.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let label = path.display().to_string();
        let opened = File::open(path).and_then(|file| file.metadata().map(|found| (file, found.len())));
        match opened {
            Ok((file, length)) => Self::walk(file, length).map_err(|fault| fault.of(label)),
            Err(source) => Err(Error::Read { file: label, source }),
        }
    }

    /// Iterates over the inputs that a caller must or may provide.
    pub fn all_inputs(&self) -> impl Iterator<Item = &Port> {
        self.inputs.iter().chain(&self.optional_inputs)
    }

    /// Reads the signature of a model in memory; `label` replaces the file name in errors.
    ///
    /// # Errors
    /// If the bytes are not an ONNX model.
    pub fn from_bytes(label: &str, bytes: &[u8]) -> Result<Self, Error> {
        Self::walk(Cursor::new(bytes), bytes.len() as u64).map_err(|fault| fault.of(label.to_owned()))
    }

    fn walk(mut source: impl Read + Seek, length: u64) -> Result<Self, Fault> {
        refuse_pointer(&mut source)?;
        let mut found = Self::declared(&mut source, length)?;
        let open: Vec<bool> = found.outputs.iter().map(|port| found.is_open(port)).collect();
        let may_need_square = found.inputs.iter().any(repeats_first);
        if open.contains(&true) || may_need_square {
            source.rewind()?;
            let Some(outline) = outline_of(source, length) else { return Ok(found) };
            if open.contains(&true) {
                found.infer_outputs(&infer(&outline), &open);
            }
            found.needs_square = may_need_square && needs_square(&outline);
        }
        Ok(found)
    }

    /// Whether a shape is undeclared, or has a length that the declarations of the inputs do not explain.
    fn is_open(&self, output: &Port) -> bool {
        let Some(dims) = &output.dims else { return output.datatype.is_some() };
        dims.iter().skip(1).any(|dim| match dim {
            PortDim::Symbol(name) => !self.is_of_input(name),
            dim => dim.size() < 0,
        })
    }

    /// Whether an input has an axis of this name other than axis 0.
    pub fn is_of_input(&self, name: &str) -> bool {
        let mut dims = self.inputs.iter().flat_map(|input| input.dims.iter().flat_map(|dims| dims.iter().skip(1)));
        dims.any(|dim| matches!(dim, PortDim::Symbol(own) if own == name))
    }

    /// Fills in undeclared dimensions of outputs by inference, and the lengths of `open` outputs.
    fn infer_outputs(&mut self, inference: &Inference, open: &[bool]) {
        for (port, _) in self.outputs.iter_mut().zip(open).filter(|(_, is_open)| **is_open) {
            if port.dims.is_none() {
                port.dims = inference.tensor(&port.name).and_then(|info| info.dims.clone());
            }
            if let Some(lengths) = inference.output_lengths(&port.name) {
                self.inferred_lengths.insert(port.name.clone(), lengths.to_vec());
            }
        }
    }

    fn declared(source: impl Read + Seek, length: u64) -> Result<Self, Fault> {
        let mut wire = Wire::new(source, DECLARATIONS_MAX_BYTES);
        let mut found = Self::default();
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
        let weights = initializers(&mut wire, length, found.inputs.iter().map(|port| port.name.clone()).collect())?;
        let (optional, required) = found.inputs.into_iter().partition(|port| weights.contains(&port.name));
        found.inputs = required;
        if found.ir_version >= OVERRIDABLE_SINCE {
            found.optional_inputs = optional;
        }
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

/// Whether another axis has the name of axis 0.
fn repeats_first(port: &Port) -> bool {
    match port.dims.as_deref() {
        Some([first @ PortDim::Symbol(_), rest @ ..]) => rest.contains(first),
        _ => false,
    }
}

/// Rejects a Git LFS pointer file.
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

/// Returns those of `names` that are weights. Walks the file a second time, since weights may come before or after the
/// inputs.
fn initializers<S: Read + Seek>(
    wire: &mut Wire<S>,
    length: u64,
    names: HashSet<String>,
) -> Result<HashSet<String>, Fault> {
    wire.restart(u64::MAX)?;
    let longest = names.iter().map(String::len).max().unwrap_or(0) as u64;
    let mut weights = HashSet::new();
    // Ends of the model, a graph in it, and a weight in that.
    while let Some(field) = wire.field(length)? {
        let Body::Bytes(graph) = field.body else { continue };
        if field.number != 7 {
            wire.skip_to(graph)?;
            continue;
        }
        while let Some(field) = wire.field(graph)? {
            let Body::Bytes(tensor) = field.body else { continue };
            if field.number != 5 {
                wire.skip_to(tensor)?;
                continue;
            }
            let mut named = None;
            while let Some(field) = wire.field(tensor)? {
                let Body::Bytes(end) = field.body else { continue };
                if field.number == 8 && end - wire.at() <= longest {
                    named = Some(wire.text(end)?);
                } else {
                    wire.skip_to(end)?;
                }
            }
            weights.extend(named.filter(|name| names.contains(name)));
        }
    }
    Ok(weights)
}

#[cfg(test)]
mod tests;
