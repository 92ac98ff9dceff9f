//! Models that are ready for an engine.

use std::{
    collections::{HashMap, HashSet},
    path::{Path, PathBuf},
    sync::Arc,
};

use bytes::Bytes;
use prost::Message;

use super::{
    Error, Model, expansion,
    external::{self, ExternalFiles, ExternalWeight},
    file::MESSAGE_MAX_BYTES,
    links::Links,
};

/// A model that an engine can open without opening other files. Its functions and bodies are of bounded size, and its
/// external data has been located, checked and, if small, moved into the graph.
#[derive(Clone, Debug)]
pub struct SealedModel {
    model: Model,
    /// The bytes of the file, if the model is unchanged.
    encoded: Option<Bytes>,
    weights: Arc<[ExternalWeight]>,
    operators: Arc<[PathBuf]>,
    /// The file that it was read from.
    file: Option<Arc<Path>>,
}

impl SealedModel {
    /// Seals a serialized model; `label` replaces the file name in errors.
    ///
    /// # Errors
    /// If the bytes are not an ONNX model, the model would expand beyond the limits, or a file of external data is
    /// missing, outside of what `files` allows, or does not fit its tensor.
    pub fn new(label: &str, content: Bytes, files: &ExternalFiles) -> Result<Self, Error> {
        let mut model = Model::from_bytes(label, content.clone())?;
        let unusable = |reason| Error::Unusable { file: label.to_owned(), reason };
        expansion::check(&model.0).map_err(unusable)?;
        let gathered = external::gather(&mut model, files).map_err(unusable)?;
        let encoded = gathered.is_unchanged.then_some(content);
        Ok(Self { model, encoded, weights: gathered.weights.into(), operators: Arc::default(), file: None })
    }

    /// Returns the model with the libraries of its custom operators, which ONNX Runtime loads.
    #[must_use]
    pub fn with_operators(self, libraries: &[PathBuf]) -> Self {
        Self { operators: libraries.into(), ..self }
    }

    /// Returns the model with the file that it was read from. The file is expected to stay as it is, but need not.
    #[must_use]
    pub fn with_file(self, file: &Path) -> Self {
        Self { file: Some(file.into()), ..self }
    }

    /// Returns the file whose content is the encoded graph, if there is one.
    pub fn file(&self) -> Option<&Arc<Path>> {
        self.file.as_ref().filter(|_| self.encoded.is_some())
    }

    /// Returns whether one file has all of it: no other file holds a part of its data.
    pub fn is_one_file(&self) -> bool {
        self.encoded.is_some() && self.weights.is_empty()
    }

    /// Returns the libraries of custom operators.
    pub fn operators(&self) -> &[PathBuf] {
        &self.operators
    }

    /// Reads and seals a model file, together with the files beside it.
    ///
    /// # Errors
    /// Like [`Self::new`], and if the file cannot be read.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let label = path.display().to_string();
        match std::fs::read(path) {
            Ok(content) => Ok(Self::new(&label, content.into(), &ExternalFiles::beside(path))?.with_file(path)),
            Err(source) => Err(Error::Read { file: label, source }),
        }
    }

    /// Returns the model. Weights that stay outside of it are marked as external and have no elements.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// Seals a model that was cut from this one.
    #[must_use]
    pub fn part(&self, part: Model) -> Self {
        let (weights, operators) = (self.weights.clone(), self.operators.clone());
        Self { model: part, encoded: None, weights, operators, file: None }
    }

    /// Returns the encoded graph.
    pub fn to_bytes(&self) -> Bytes {
        self.encoded.clone().unwrap_or_else(|| self.model.to_bytes())
    }

    /// Returns the encoded graph with all weights in it, for an engine that accepts no weights beside the graph.
    ///
    /// # Errors
    /// If a file of weights cannot be read or has been truncated, or if the result would exceed the maximum of a
    /// protobuf message, 2 GiB.
    pub fn to_whole_bytes(&self) -> Result<Bytes, Error> {
        let mut whole = self.model.clone();
        let mut outside: HashMap<&str, &ExternalWeight> =
            self.weights.iter().map(|weight| (weight.name.as_str(), weight)).collect();
        let tensors = whole.0.graph.iter_mut().flat_map(|graph| &mut graph.initializer);
        let named: Vec<_> = tensors.filter(|it| external::is_external(it)).collect();
        if named.is_empty() {
            return Ok(self.to_bytes());
        }
        let bytes = named.iter().filter_map(|it| outside.get(it.name())).map(|weight| weight.len_bytes).sum::<usize>();
        let bytes = bytes.saturating_add(self.model.0.encoded_len());
        if bytes > MESSAGE_MAX_BYTES {
            return Err(Error::TooLarge { file: "the model with the weights beside it".to_owned(), bytes });
        }
        for tensor in named {
            let Some(weight) = outside.remove(tensor.name()) else { continue };
            tensor.raw_data = Some(weight.elements()?);
            tensor.external_data.clear();
            tensor.data_location = None;
        }
        Ok(whole.to_bytes())
    }

    /// Returns the inputs of the graph in its order. An input with an initializer of its name has a default.
    pub fn inputs(&self) -> Vec<SealedInput<'_>> {
        let Some(graph) = &self.model.0.graph else { return Vec::new() };
        let defaults: HashSet<&str> = graph.initializer.iter().map(|it| it.name()).collect();
        let links = Links::new(graph);
        let by_nodes = (0..graph.node.len()).flat_map(|node| &links.node(node).reads);
        let by_nodes = by_nodes.map(|&tensor| links.name(tensor));
        let read: HashSet<&str> = by_nodes.chain(graph.output.iter().map(|output| output.name())).collect();
        let named = graph.input.iter().map(|input| input.name());
        named
            .map(|name| SealedInput { name, has_default: defaults.contains(name), is_read: read.contains(name) })
            .collect()
    }

    /// Returns the names of the graph's outputs in its order.
    pub fn outputs(&self) -> Vec<&str> {
        self.model.0.graph.iter().flat_map(|graph| &graph.output).map(|output| output.name()).collect()
    }

    /// Returns the weights that must be passed beside the graph, in the order of the file.
    pub fn weights(&self) -> impl Iterator<Item = &ExternalWeight> {
        let outside = self.model.0.graph.iter().flat_map(|graph| &graph.initializer);
        let names: HashSet<&str> = outside.filter(|it| external::is_external(it)).map(|it| it.name()).collect();
        self.weights.iter().filter(move |weight| names.contains(weight.name.as_str()))
    }
}

/// An input of a graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SealedInput<'a> {
    /// Its name.
    pub name: &'a str,
    /// Whether the graph has a value for it where a run brings none.
    pub has_default: bool,
    /// Whether a node reads it, or it is an output.
    pub is_read: bool,
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, fs};

    use super::*;
    use crate::{
        PortDim, Signature,
        build::Graph,
        pb::{StringStringEntryProto, tensor_proto::DataLocation},
    };
    use paternoster_model::DataType;

    #[test]
    fn weights_beside_a_graph_are_put_into_it_where_an_engine_takes_none() {
        let weights: Vec<f32> = (0..256 * 128).map(|place| place as f32).collect();
        let mut graph = Graph::new("product");
        let input = graph.input("INPUT0", DataType::Fp32, &[PortDim::from("batch"), PortDim::from(256)]);
        let matrix = graph.constant("matrix", &[256, 128], &weights);
        let output = graph.op("MatMul", &[&input, &matrix]).named("OUTPUT0").value();
        graph.output(&output, DataType::Fp32, &[PortDim::from("batch"), PortDim::from(128)]);
        let inside = graph.finish().expect("the graph is sound");
        let mut apart = inside.clone();
        let tensor = &mut apart.0.graph.as_mut().expect("a graph").initializer[0];
        let data = tensor.raw_data.take().expect("it has elements");
        let entry = StringStringEntryProto { key: Some("location".to_owned()), value: Some("weights".to_owned()) };
        tensor.external_data = vec![entry];
        tensor.data_location = Some(DataLocation::External.into());
        let files = ExternalFiles::Given(Arc::new(BTreeMap::from([("weights".to_owned(), data)])));
        let sealed = SealedModel::new("apart", apart.to_bytes(), &files).expect("all is there");
        assert_eq!(sealed.weights().count(), 1, "a large weight stays outside");
        let whole = Model::from_bytes("whole", sealed.to_whole_bytes().expect("it is read")).expect("it is a model");
        assert_eq!(whole, inside);
        let plain = SealedModel::new("inside", inside.to_bytes(), &ExternalFiles::None).expect("it is sound");
        assert_eq!(plain.to_whole_bytes().expect("nothing is missing"), inside.to_bytes());
        assert_eq!(plain.inputs(), [SealedInput { name: "INPUT0", has_default: false, is_read: true }]);
    }

    #[test]
    fn corpus_files_that_would_harm_an_engine_are_refused() {
        let corpus = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/corpus/onnx");
        let mut count = 0;
        for entry in fs::read_dir(corpus).expect("the corpus is committed") {
            let path = entry.expect("it can be listed").path();
            if !path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("good-but-")) {
                continue;
            }
            Signature::read(&path).expect("it has the form of any model");
            let refused = SealedModel::read(&path).expect_err("an engine must not open it").to_string();
            assert!(refused.starts_with("cannot use '"), "{refused}");
            count += 1;
        }
        assert_eq!(count, 5);
    }
}
