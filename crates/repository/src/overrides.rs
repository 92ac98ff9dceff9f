//! The overrides of a load request: a configuration and files that replace those of the model directory.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use bytes::Bytes;
use paternoster_config::values::stays_inside;
use paternoster_observe::budget::SharedReservation;
use paternoster_onnx::ExternalFiles;

use super::{LoadError, directory::version_number};

/// Overrides of one load request.
#[derive(Clone, Debug, Default)]
pub struct Overrides {
    /// The `config` parameter: a model configuration in JSON, which replaces the directory's own.
    pub config_json: Option<String>,
    /// The `file:<version>/<file>` parameters by `<version>/<file>`. If there are any, no version is read from disk.
    pub files: BTreeMap<String, Bytes>,
    /// What is reserved for the request in the budget of pending bytes. The files hold it too, so that it lasts as long
    /// as a load works on them, whether its client waits or not.
    pub held: Option<SharedReservation>,
}

impl Overrides {
    /// Returns whether there are none, so that everything comes from the model's directory.
    pub(super) fn is_empty(&self) -> bool {
        self.config_json.is_none() && self.files.is_empty()
    }

    /// Returns whether files came without the configuration that they need.
    pub(super) fn lack_config(&self) -> bool {
        self.config_json.is_none() && !self.files.is_empty()
    }

    /// Checks that every path is `<version>/<file>` within the model's directory.
    pub(super) fn check(&self) -> Result<(), LoadError> {
        match self.files.keys().find(|path| split(path).is_none()) {
            Some(path) => Err(LoadError::files(format!(
                "expected '<version>/<file>' within the model's directory, but found '{path}'"
            ))),
            None => Ok(()),
        }
    }

    /// Returns the versions that files were given for, ascending; `None` without files.
    pub(super) fn versions(&self) -> Option<Vec<i64>> {
        let versions: BTreeSet<i64> =
            self.files.keys().filter_map(|path| split(path)).map(|(version, _)| version).collect();
        (!versions.is_empty()).then(|| versions.into_iter().collect())
    }

    /// Returns a program of a version and the files beside it, or `None` if no files were given. With files, nothing is
    /// read from disk.
    ///
    /// # Errors
    /// Fails if files were given, but not this one.
    pub(super) fn program(&self, version: i64, filename: &str) -> Result<Option<(Bytes, ExternalFiles)>, LoadError> {
        if self.files.is_empty() {
            return Ok(None);
        }
        let missing = || {
            let given: Vec<&str> = self.files.keys().map(String::as_str).collect();
            LoadError::files(format!("no override file '{version}/{filename}': the request has {given:?}"))
        };
        let program = self.files.get(&format!("{version}/{filename}")).ok_or_else(missing)?;
        // Locations in a graph are relative to the directory of its file.
        let folder = filename.rsplit_once('/').map_or(String::new(), |(folder, _)| format!("{folder}/"));
        let beside = self.files.iter().filter_map(|(path, bytes)| {
            let (number, file) = split(path)?;
            let location = file.strip_prefix(&folder).filter(|_| number == version && file != filename)?;
            Some((location.to_owned(), bytes.clone()))
        });
        Ok(Some((program.clone(), ExternalFiles::Given(Arc::new(beside.collect())))))
    }
}

fn split(path: &str) -> Option<(i64, &str)> {
    let (version, file) = path.split_once('/')?;
    let version = version_number(version)?;
    (stays_inside(file) && !file.contains('\\')).then_some((version, file))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::{LoadErrorKind, tests::refusals::Refusals};

    fn with(paths: &[&str]) -> Overrides {
        let files = paths.iter().map(|path| ((*path).to_owned(), Bytes::from_static(b"x")));
        Overrides { config_json: Some("{}".to_owned()), files: files.collect(), held: None }
    }

    #[test]
    fn paths_stay_within_the_models_directory() {
        assert_eq!(with(&["1/model.onnx", "12/model.onnx"]).check(), Ok(()));
    }

    #[test]
    fn files_need_a_configuration() {
        let bare = Overrides { config_json: None, ..with(&["1/model.onnx"]) };
        assert!(bare.lack_config());
        assert!(!with(&["1/model.onnx"]).lack_config() && !Overrides::default().lack_config());
    }

    #[test]
    fn versions_and_programs_come_from_the_files() {
        let overrides = with(&["10/model.onnx", "2/model.onnx"]);
        assert_eq!(overrides.versions(), Some(vec![2, 10]));
        assert!(matches!(overrides.program(2, "model.onnx"), Ok(Some((bytes, _))) if bytes == "x"));
        assert_eq!(Overrides::default().versions(), None);
        assert_eq!(Overrides::default().program(2, "model.onnx"), Ok(None));
    }

    #[test]
    fn a_program_may_use_the_files_that_came_beside_it_and_no_others() {
        let overrides =
            with(&["1/model.onnx", "1/model.onnx.data", "1/in/cell.onnx", "1/in/cell.data", "2/other.data"]);
        let beside = |filename| match overrides.program(1, filename) {
            Ok(Some((_, ExternalFiles::Given(files)))) => files.keys().cloned().collect::<Vec<_>>(),
            other => panic!("{other:?}"),
        };
        assert_eq!(beside("model.onnx"), ["in/cell.data", "in/cell.onnx", "model.onnx.data"]);
        assert_eq!(beside("in/cell.onnx"), ["cell.data"]);
    }

    pub(crate) fn refusals(all: &mut Refusals) {
        all.title("files that a load request has");
        for path in [
            "model.onnx",
            "/etc/passwd",
            "../1/model.onnx",
            "1/../../x",
            "1//etc/x",
            "01/x",
            "x/model.onnx",
            "1/",
            "1/a\\b",
        ] {
            all.add(Some(LoadErrorKind::Files), path, with(&[path]).check());
        }
        all.title("files that a load request lacks, of 10/model.onnx and 2/model.onnx");
        let given = with(&["10/model.onnx", "2/model.onnx"]);
        all.add(Some(LoadErrorKind::Files), "3/model.onnx", given.program(3, "model.onnx"));
        all.add(Some(LoadErrorKind::Files), "2/other.onnx", given.program(2, "other.onnx"));
    }
}
