//! Which model `profile`, `slice` and `inspect` work on: all three name it in the same ways.

use std::path::{Path, PathBuf};

/// A model: its path, or its name in a repository.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(group(clap::ArgGroup::new("which model").required(true).args(["path", "model"])))]
pub struct ModelArgs {
    /// Model directory, of which the latest version is used, or ONNX file
    #[arg(value_name = "DIR|FILE")]
    pub path: Option<PathBuf>,
    /// Name of a model in --model-repository; or a path, without it
    #[arg(long, value_name = "NAME")]
    pub model: Option<PathBuf>,
    /// Directory of models
    #[arg(long, alias = "model-store", value_name = "DIR", requires = "model")]
    pub model_repository: Option<PathBuf>,
}

impl ModelArgs {
    /// Names a model by its path.
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self { path: Some(path.into()), ..Self::default() }
    }

    /// Names a model in a repository.
    pub fn of(repository: impl Into<PathBuf>, name: impl Into<PathBuf>) -> Self {
        Self { path: None, model: Some(name.into()), model_repository: Some(repository.into()) }
    }

    /// Returns the path of the model's directory or file.
    pub(super) fn path(&self) -> PathBuf {
        let named = self.path.as_ref().or(self.model.as_ref()).cloned().unwrap_or_default();
        self.model_repository.as_ref().map_or(named.clone(), |repository| repository.join(named))
    }

    /// Returns the repository and the name of the model's directory.
    ///
    /// # Errors
    /// Fails if the path is a file, or the directory has no name.
    pub(super) fn place(&self) -> Result<(PathBuf, String), String> {
        if let (Some(repository), Some(name)) = (&self.model_repository, &self.model) {
            return Ok((repository.clone(), name.display().to_string()));
        }
        let path = self.path();
        let refuse = || format!("expected a model directory, such as 'models/minilm', but found '{}'", path.display());
        if path.is_file() {
            return Err(refuse());
        }
        let name = path.file_name().and_then(|name| name.to_str()).ok_or_else(refuse)?;
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        Ok((parent.to_owned(), name.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Parsed {
        #[command(flatten)]
        model: ModelArgs,
    }

    fn parsed(words: &[&str]) -> Result<ModelArgs, clap::Error> {
        Parsed::try_parse_from([&["test"], words].concat()).map(|parsed| parsed.model)
    }

    #[test]
    fn a_model_is_named_by_its_path_or_in_its_repository() {
        for words in [&["models/m"][..], &["--model", "models/m"], &["--model-repository", "models", "--model", "m"]] {
            let model = parsed(words).unwrap_or_else(|refusal| panic!("{words:?}: {refusal}"));
            assert_eq!(model.path(), Path::new("models/m"), "{words:?}");
            assert_eq!(model.place(), Ok((PathBuf::from("models"), "m".to_owned())), "{words:?}");
        }
        assert_eq!(parsed(&["m"]).expect("a path").place(), Ok((PathBuf::from("."), "m".to_owned())));
        for words in [&[][..], &["--model-repository", "models"], &["m", "--model", "m"]] {
            assert!(parsed(words).is_err(), "{words:?}");
        }
    }

    #[test]
    fn a_file_is_no_model_directory() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let refused = ModelArgs::at(file.path()).place().expect_err("it is a file");
        assert!(refused.starts_with("expected a model directory, such as 'models/minilm', but found '"), "{refused}");
    }
}
