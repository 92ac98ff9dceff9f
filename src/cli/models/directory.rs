//! Writes a model directory so that a server never sees an incomplete model.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use paternoster_onnx::{Model, zoo::Width};

use super::{ModelsError, recipe::Recipe};

/// Records what was written, for the next run to compare; servers do not read it.
const STAMP: &str = ".generated";
const TOKENIZER: &str = "tokenizer.json";
const CONFIGS: [&str; 2] = ["config.pbtxt", "model.yaml"];

/// The result for one directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// It was created or updated, with `bytes` bytes of model files.
    Written { bytes: u64 },
    /// It was up to date.
    Kept,
    /// The directory exists but was not written by this command.
    Foreign,
}

/// Writes the model's directory under `out`, unless one with this stamp exists. `make` returns the graph for each of
/// the program's files, or `None` for a file that must not be a model. The content is built in a hidden directory
/// beside the target and then renamed.
pub(super) fn write(
    out: &Path,
    recipe: &Recipe,
    width: Width,
    stamp: &str,
    tokenizer: Option<&Path>,
    make: impl Fn(&str) -> Result<Option<Model>, ModelsError>,
) -> Result<Outcome, ModelsError> {
    let target = out.join(recipe.name);
    let programs: Vec<(&str, String)> =
        recipe.program.files().into_iter().map(|name| (name, format!("1/{name}.onnx"))).collect();
    if target.exists() {
        let written = fs::read_to_string(target.join(STAMP));
        let has_programs = programs.iter().all(|(_, path)| target.join(path).is_file());
        match written {
            Ok(written) if written == stamp && has_programs => return Ok(Outcome::Kept),
            Ok(_) => {}
            // Without a stamp the directory was not generated here, so it is not overwritten.
            Err(_) => return Ok(Outcome::Foreign),
        }
    }
    let stage = Stage { path: out.join(format!(".{}.{}", recipe.name, std::process::id())) };
    let failed = |path: &Path| {
        let path = path.display().to_string();
        move |source: io::Error| ModelsError::Write { model: recipe.name.to_owned(), path, source }
    };
    let version = stage.path.join("1");
    fs::create_dir_all(&version).map_err(failed(&version))?;
    let mut bytes = 0;
    let size = |file: &Path| file.metadata().map_or(0, |found| found.len());
    for (name, path) in &programs {
        let file = stage.path.join(path);
        match make(name)? {
            Some(model) => {
                let failed = |source| ModelsError::Model { model: recipe.name.to_owned(), source };
                model.write(&file).map_err(failed)?;
            }
            None => fs::write(&file, "garbage").map_err(failed(&file))?,
        }
        bytes += size(&file);
    }
    if let Some((name, text)) = recipe.config.file(width) {
        let file = stage.path.join(name);
        fs::write(&file, text.as_bytes()).map_err(failed(&file))?;
        bytes += size(&file);
    }
    if let Some(tokenizer) = tokenizer {
        bytes += fs::copy(tokenizer, stage.path.join(TOKENIZER)).map_err(failed(tokenizer))?;
    }
    let file = stage.path.join(STAMP);
    fs::write(&file, stamp).map_err(failed(&file))?;
    let programs: Vec<&str> = programs.iter().map(|(_, path)| path.as_str()).collect();
    stage.install(&target, &programs).map_err(failed(&target))?;
    Ok(Outcome::Written { bytes })
}

/// A temporary directory that is removed when dropped.
struct Stage {
    path: PathBuf,
}

impl Stage {
    /// Renames the content into place: as a whole if the target does not exist, else file by file, so that a server
    /// that polls the directory always finds complete files. The stamp comes last, so that an interrupted run is
    /// repeated.
    fn install(&self, target: &Path, programs: &[&str]) -> io::Result<()> {
        if !target.exists() {
            return fs::rename(&self.path, target);
        }
        fs::create_dir_all(target.join("1"))?;
        for name in programs.iter().copied().chain(CONFIGS).chain([TOKENIZER, STAMP]) {
            let (from, to) = (self.path.join(name), target.join(name));
            if from.exists() {
                fs::rename(from, to)?;
            } else if to.exists() {
                fs::remove_file(to)?;
            }
        }
        Ok(())
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        // Nothing is left after a rename as a whole; a leftover is hidden and harmless.
        let _ = fs::remove_dir_all(&self.path);
    }
}
