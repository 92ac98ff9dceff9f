//! Writes one model directory so that nobody ever sees half of it.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use super::{ModelsError, recipe::Recipe};
use crate::onnx::{Model, zoo::Width};

/// What was written, for the next run to compare; servers do not read it.
const STAMP: &str = ".generated";
const CONFIGS: [&str; 2] = ["config.pbtxt", "model.yaml"];

/// What became of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// It was made or brought up to date; `bytes` of model.
    Written { bytes: u64 },
    /// It was there already.
    Kept,
    /// Somebody else's directory has the name.
    Foreign,
}

/// Writes the model's directory under `out`, unless one with this stamp is there. `make` gives the graph of each of the
/// program's files, or nothing for a file that is to be no model. The content is put together in a hidden directory
/// beside the target and then renamed.
pub(super) fn write(
    out: &Path,
    recipe: &Recipe,
    width: Width,
    stamp: &str,
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
    for (name, path) in &programs {
        let file = stage.path.join(path);
        match make(name)? {
            Some(model) => {
                let failed = |source| ModelsError::Model { model: recipe.name.to_owned(), source };
                model.write(&file).map_err(failed)?;
            }
            None => fs::write(&file, "garbage").map_err(failed(&file))?,
        }
        bytes += file.metadata().map_or(0, |found| found.len());
    }
    if let Some((name, text)) = recipe.config.file(width) {
        let file = stage.path.join(name);
        fs::write(&file, text.as_bytes()).map_err(failed(&file))?;
    }
    let file = stage.path.join(STAMP);
    fs::write(&file, stamp).map_err(failed(&file))?;
    let programs: Vec<&str> = programs.iter().map(|(_, path)| path.as_str()).collect();
    stage.install(&target, &programs).map_err(failed(&target))?;
    Ok(Outcome::Written { bytes })
}

/// A directory that goes when it is no longer needed.
struct Stage {
    path: PathBuf,
}

impl Stage {
    /// Renames the content into place: as a whole where there is nothing yet, else file by file, so that a server that
    /// watches finds a complete file at every moment. The stamp comes last; an interrupted run is repeated.
    fn install(&self, target: &Path, programs: &[&str]) -> io::Result<()> {
        if !target.exists() {
            return fs::rename(&self.path, target);
        }
        fs::create_dir_all(target.join("1"))?;
        for name in programs.iter().copied().chain(CONFIGS).chain([STAMP]) {
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
        // Nothing is there after a rename as a whole; a left-over is hidden and does no harm.
        let _ = fs::remove_dir_all(&self.path);
    }
}
