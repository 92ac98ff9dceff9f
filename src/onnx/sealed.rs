//! Models that are ready for an engine.

use std::{collections::HashSet, path::Path, sync::Arc};

use bytes::Bytes;

use super::{
    Error, Model, expansion,
    external::{self, ExternalFiles, ExternalWeight},
};

/// A model that an engine can open without opening other files. Its functions and bodies are of bounded size, and its
/// external data has been located, checked and, if small, moved into the graph.
#[derive(Clone, Debug)]
pub struct SealedModel {
    model: Model,
    /// The bytes of the file, if the model is unchanged.
    encoded: Option<Bytes>,
    weights: Arc<[ExternalWeight]>,
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
        Ok(Self { model, encoded, weights: gathered.weights.into() })
    }

    /// Reads and seals a model file, together with the files beside it.
    ///
    /// # Errors
    /// Like [`Self::new`], and if the file cannot be read.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let label = path.display().to_string();
        match std::fs::read(path) {
            Ok(content) => Self::new(&label, content.into(), &ExternalFiles::beside(path)),
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
        Self { model: part, encoded: None, weights: Arc::clone(&self.weights) }
    }

    /// Returns the encoded graph.
    pub fn to_bytes(&self) -> Bytes {
        self.encoded.clone().unwrap_or_else(|| self.model.to_bytes())
    }

    /// Returns the weights that must be passed beside the graph, in the order of the file.
    pub fn weights(&self) -> impl Iterator<Item = &ExternalWeight> {
        let outside = self.model.0.graph.iter().flat_map(|graph| &graph.initializer);
        let names: HashSet<&str> = outside.filter(|it| external::is_external(it)).map(|it| it.name()).collect();
        self.weights.iter().filter(move |weight| names.contains(weight.name.as_str()))
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, path::PathBuf};

    use super::*;
    use crate::onnx::Signature;

    #[test]
    fn corpus_files_that_would_harm_an_engine_are_refused() {
        let corpus = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/corpus/onnx");
        let mut count = 0;
        for entry in fs::read_dir(corpus).expect("the corpus is committed") {
            let path = entry.expect("it can be listed").path();
            if !path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("good-but-")) {
                continue;
            }
            Signature::read(&path).expect("it looks like any other model");
            let refused = SealedModel::read(&path).expect_err("an engine must not open it").to_string();
            assert!(refused.starts_with("cannot use '"), "{refused}");
            count += 1;
        }
        assert_eq!(count, 5);
    }
}
