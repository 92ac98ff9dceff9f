//! A complete model in memory, read from and written to files.

use std::{
    fs::{self, File},
    io::{self, BufWriter, Write},
    path::Path,
};

use bytes::{BufMut, Bytes};
use prost::Message;

use super::{
    Error,
    links::subgraphs,
    pb::{self, tensor_proto::DataType as Elem, type_proto},
};

/// Maximum bytes of a protobuf message.
pub(super) const MESSAGE_MAX_BYTES: usize = i32::MAX as usize;

/// A model: graph, weights and operator sets.
///
/// Weights given as raw data are not copied; they refer to the bytes of the file. Decoding a malicious file may take
/// many times its size in memory, so use [`Signature`](super::Signature) for untrusted files.
#[derive(Clone, Debug, PartialEq)]
pub struct Model(pub pb::ModelProto);

impl Model {
    /// Reads a model file.
    ///
    /// # Errors
    /// If the file cannot be read or is not an ONNX model. The error names the file.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let label = path.display().to_string();
        match fs::read(path) {
            Ok(content) => Self::from_bytes(&label, content.into()),
            Err(source) => Err(Error::Read { file: label, source }),
        }
    }

    /// Decodes a model; `label` replaces the file name in errors. The weights share `content`.
    ///
    /// # Errors
    /// If the bytes are not an ONNX model.
    pub fn from_bytes(label: &str, content: Bytes) -> Result<Self, Error> {
        let malformed = |reason| Error::Malformed { file: label.to_owned(), reason };
        let proto = pb::ModelProto::decode(content).map_err(|error| malformed(error.to_string()))?;
        if proto.graph.is_none() {
            return Err(malformed("it holds no graph".to_owned()));
        }
        Ok(Self(proto))
    }

    /// Returns whether every node runs exactly once, so that the work of a run depends only on the shapes of its
    /// inputs: the graph has no loops, branches or functions.
    pub fn is_straight_line(&self) -> bool {
        let nodes = self.0.graph.iter().flat_map(|graph| &graph.node);
        let plain = |node: &pb::NodeProto| node.attribute.iter().all(|it| it.g.is_none() && it.graphs.is_empty());
        self.0.functions.is_empty() && nodes.into_iter().all(plain)
    }

    /// Returns whether a node of the graph, of a body or of a function is of this operator.
    pub fn has_operator(&self, operator: &str) -> bool {
        let functions = self.0.functions.iter().flat_map(|function| &function.node);
        let mut open: Vec<&pb::NodeProto> =
            self.0.graph.iter().flat_map(|graph| &graph.node).chain(functions).collect();
        while let Some(node) = open.pop() {
            if node.op_type() == operator {
                return true;
            }
            open.extend(subgraphs(node).flat_map(|graph| &graph.node));
        }
        false
    }

    /// Returns whether a weight, an input or an output of the graph is of FP16.
    pub fn has_halves(&self) -> bool {
        let Some(graph) = &self.0.graph else { return false };
        let elem = |port: &pb::ValueInfoProto| match port.r#type.as_ref()?.value.as_ref()? {
            type_proto::Value::TensorType(tensor) => tensor.elem_type,
            _ => None,
        };
        let ports = graph.input.iter().chain(&graph.output).map(elem);
        let weights = graph.initializer.iter().map(|weight| weight.data_type);
        ports.chain(weights).any(|elem| elem == Some(Elem::Float16 as i32))
    }

    /// Returns the encoded model, for engines that load from memory.
    pub fn to_bytes(&self) -> Bytes {
        self.0.encode_to_vec().into()
    }

    /// Writes the model to a file weight by weight, which needs little memory.
    ///
    /// # Errors
    /// If the model exceeds 2 GiB (then nothing is written) or the file cannot be written.
    pub fn write(&self, path: &Path) -> Result<(), Error> {
        let label = || path.display().to_string();
        let bytes = self.0.encoded_len();
        if bytes > MESSAGE_MAX_BYTES {
            return Err(Error::TooLarge { file: label(), bytes });
        }
        let written = File::create(path).and_then(|file| {
            let mut out = BufWriter::new(file);
            self.write_to(&mut out)?;
            out.flush()
        });
        written.map_err(|source| Error::Write { file: label(), source })
    }

    pub(super) fn write_to(&self, out: &mut impl Write) -> io::Result<()> {
        let model = &self.0;
        let head = pb::ModelProto {
            ir_version: model.ir_version,
            producer_name: model.producer_name.clone(),
            producer_version: model.producer_version.clone(),
            domain: model.domain.clone(),
            model_version: model.model_version,
            doc_string: model.doc_string.clone(),
            graph: None,
            opset_import: model.opset_import.clone(),
            metadata_props: model.metadata_props.clone(),
            functions: model.functions.clone(),
        };
        out.write_all(&head.encode_to_vec())?;
        let Some(graph) = &model.graph else { return Ok(()) };
        write_key(out, 7, graph.encoded_len())?;
        let body = pb::GraphProto {
            node: graph.node.clone(),
            name: graph.name.clone(),
            initializer: Vec::new(),
            doc_string: graph.doc_string.clone(),
            input: graph.input.clone(),
            output: graph.output.clone(),
            value_info: graph.value_info.clone(),
            quantization_annotation: graph.quantization_annotation.clone(),
            sparse_initializer: graph.sparse_initializer.clone(),
            metadata_props: graph.metadata_props.clone(),
        };
        out.write_all(&body.encode_to_vec())?;
        for tensor in &graph.initializer {
            write_key(out, 5, tensor.encoded_len())?;
            let mut rest = tensor.clone();
            let raw = rest.raw_data.take();
            out.write_all(&rest.encode_to_vec())?;
            if let Some(raw) = raw {
                write_key(out, 9, raw.len())?;
                out.write_all(&raw)?;
            }
        }
        Ok(())
    }
}

/// Writes the header of a field of `length` bytes. The field numbers used here fit a key of one byte.
fn write_key(out: &mut impl Write, field: u8, length: usize) -> io::Result<()> {
    let mut head = Vec::with_capacity(11);
    head.put_u8(field << 3 | 2);
    prost::encode_length_delimiter(length, &mut head).map_err(io::Error::other)?;
    out.write_all(&head)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::zoo::{self, Width};

    #[test]
    fn a_written_file_is_what_the_encoder_gives_and_reads_back_the_same() {
        let model = zoo::mobilenet(Width::QUARTER).expect("the graph is sound");
        let folder = std::env::temp_dir().join(format!("paternoster-onnx-file-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("a temporary folder");
        let path = folder.join("model.onnx");
        model.write(&path).expect("the file is written");
        assert_eq!(fs::metadata(&path).expect("it is there").len(), model.0.encoded_len() as u64);
        assert_eq!(Model::read(&path).expect("it is a model"), model);
        assert_eq!(Model::from_bytes("memory", model.to_bytes()).expect("it is a model"), model);
        fs::remove_dir_all(&folder).expect("the folder goes");
    }

    #[test]
    fn errors_name_the_file() {
        let missing = Model::read(Path::new("nowhere/model.onnx")).expect_err("there is no such file");
        assert!(missing.to_string().starts_with("cannot read 'nowhere/model.onnx': "), "{missing}");
        let garbage = Model::from_bytes("m/1/model.onnx", Bytes::from_static(b"garbage")).expect_err("no model");
        assert!(garbage.to_string().starts_with("'m/1/model.onnx' is not an ONNX model: "), "{garbage}");
        let unwritable = zoo::identity().expect("sound").write(Path::new("nowhere/model.onnx")).expect_err("no folder");
        assert!(unwritable.to_string().starts_with("cannot write 'nowhere/model.onnx': "), "{unwritable}");
    }
}
