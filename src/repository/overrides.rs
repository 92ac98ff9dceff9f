//! What a load request brings along: a configuration and files that stand in for the directory's.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;

use super::{config::check::stays_inside, directory::version_number};

/// Overrides of one load request.
#[derive(Clone, Debug, Default)]
pub struct Overrides {
    /// The `config` parameter: a model configuration in JSON, in place of the directory's own.
    pub config_json: Option<String>,
    /// The `file:<version>/<file>` parameters by `<version>/<file>`. With any of them no version comes from the disk.
    pub files: BTreeMap<String, Bytes>,
}

impl Overrides {
    /// Checks paths, and that files come with a configuration.
    pub(super) fn check(&self) -> Result<(), String> {
        if self.config_json.is_none() && !self.files.is_empty() {
            return Err("override files need the parameter 'config' beside them".to_owned());
        }
        match self.files.keys().find(|path| split(path).is_none()) {
            Some(path) => Err(format!("expected '<version>/<file>' within the model's directory, but found '{path}'")),
            None => Ok(()),
        }
    }

    /// Versions that files are given for, ascending; `None` without any file.
    pub(super) fn versions(&self) -> Option<Vec<i64>> {
        let versions: BTreeSet<i64> =
            self.files.keys().filter_map(|path| split(path)).map(|(version, _)| version).collect();
        (!versions.is_empty()).then(|| versions.into_iter().collect())
    }

    /// The programs of a version, if files are given at all; any other file is refused, since programs are read from
    /// memory and could not find it.
    pub(super) fn programs(&self, version: i64, filenames: &[&str]) -> Result<Vec<Option<Bytes>>, String> {
        let own = self.files.iter().filter_map(|(path, bytes)| {
            let (number, file) = split(path)?;
            (number == version).then_some((path, file, bytes))
        });
        let mut programs = vec![None; filenames.len()];
        for (path, file, bytes) in own {
            if !filenames.contains(&file) {
                let expected: Vec<String> = filenames.iter().map(|name| format!("'{version}/{name}'")).collect();
                return Err(format!("the override file '{path}' is not used: expected {}", expected.join(" or ")));
            }
            // Several may be of one file.
            let places = programs.iter_mut().zip(filenames).filter(|(_, name)| **name == file);
            places.for_each(|(program, _)| *program = Some(bytes.clone()));
        }
        Ok(programs)
    }
}

fn split(path: &str) -> Option<(i64, &str)> {
    let (version, file) = path.split_once('/')?;
    let version = version_number(version)?;
    (stays_inside(file) && !file.contains('\\')).then_some((version, file))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(paths: &[&str]) -> Overrides {
        let files = paths.iter().map(|path| ((*path).to_owned(), Bytes::from_static(b"x")));
        Overrides { config_json: Some("{}".to_owned()), files: files.collect() }
    }

    #[test]
    fn paths_stay_within_the_models_directory() {
        assert_eq!(with(&["1/model.onnx", "12/model.onnx"]).check(), Ok(()));
        let escapes = [
            "model.onnx",
            "/etc/passwd",
            "../1/model.onnx",
            "1/../../x",
            "1//etc/x",
            "01/x",
            "x/model.onnx",
            "1/",
            "1/a\\b",
        ];
        for path in escapes {
            let reason = with(&[path]).check().expect_err(path);
            assert!(reason.contains(path), "the reason names it: {reason}");
        }
    }

    #[test]
    fn files_need_a_configuration() {
        let bare = Overrides { config_json: None, ..with(&["1/model.onnx"]) };
        assert!(bare.check().is_err());
    }

    #[test]
    fn versions_and_programs_come_from_the_files() {
        let overrides = with(&["10/model.onnx", "2/model.onnx"]);
        assert_eq!(overrides.versions(), Some(vec![2, 10]));
        let program = Some(Bytes::from_static(b"x"));
        assert_eq!(overrides.programs(2, &["model.onnx"]), Ok(vec![program.clone()]));
        assert_eq!(overrides.programs(2, &["other.onnx", "model.onnx"]), Ok(vec![None, program]));
        assert_eq!(overrides.programs(3, &["model.onnx"]), Ok(vec![None]));
        assert_eq!(
            overrides.programs(2, &["a.onnx", "b.onnx"]),
            Err("the override file '2/model.onnx' is not used: expected '2/a.onnx' or '2/b.onnx'".to_owned())
        );
        assert_eq!(Overrides::default().versions(), None);
    }
}
