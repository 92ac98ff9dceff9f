//! The files that configure a model: which there are, and their content. What they say is read by `config`.

use std::path::{Path, PathBuf};

use paternoster_config::{ConfigError, CustomPolicies, Origin, Settings, json, pbtxt, settings::ONNX_FILENAME, yaml};

use super::{
    LoadError, Overrides,
    bounded_file::read_up_to,
    directory::{TOKENIZER, is_directory, laid_out, version_number, versions},
    generation::{self, DESCRIPTION, GENERATION},
};

/// Triton's form.
pub(super) const PBTXT: &str = "config.pbtxt";
/// This server's form.
pub(super) const YAML: &str = "model.yaml";
/// What some editors put in front of UTF-8 text.
const BYTE_ORDER_MARK: &str = "\u{feff}";
/// Directory of named configurations.
const CONFIGS: &str = "configs";
/// Size limit of configurations, label files and initial states.
const MAX_TEXT_BYTES: u64 = 16 << 20;

/// Decodes a text file: UTF-8, or Latin-1 if it is not that. A byte order mark is left out.
pub(super) fn text_of(bytes: Vec<u8>) -> String {
    match String::from_utf8(bytes) {
        Ok(text) => text.strip_prefix(BYTE_ORDER_MARK).map(str::to_owned).unwrap_or(text),
        Err(other) => other.as_bytes().iter().copied().map(char::from).collect(),
    }
}

/// Returns the command that exports the model of a directory, as Hugging Face lays it out, to where it is looked for.
pub(super) fn export_command(directory: &Path) -> String {
    let place = directory.display();
    let task = generation::export_task(directory);
    format!("`optimum-cli export onnx --model '{place}' --task {task} '{place}/onnx'`")
}

/// Returns the first ONNX file in a version of a model, or in a directory whose name is nearly a version's, with what
/// makes a program of it.
pub(super) fn misnamed(model: &Path) -> Option<String> {
    names_in(model)?.into_iter().find_map(|folder| {
        let program = names_in(&model.join(&folder))?.into_iter().find(|name| name.ends_with(".onnx"))?;
        let advice = match version_number(&folder) {
            Some(_) => "give the file's name as default_model_filename in config.pbtxt, or rename it",
            None => "versions are numbers from 1, without zeros in front",
        };
        Some(format!("; found '{folder}/{program}': {advice}"))
    })
}

/// Returns advice about a repository that has no model.
pub fn emptiness(repository: &Path) -> String {
    let lying = other_program(repository).map_or_else(String::new, |found| found.replacen("; found", ", but", 1));
    format!(
        "'{}' has no model: expected a directory for each, as in 'NAME/1/{ONNX_FILENAME}'{lying}",
        repository.display()
    )
}

/// Returns what lies where a program was looked for, and what makes one of it.
pub(super) fn other_program(within: &Path) -> Option<String> {
    let advice = |name: &str| {
        Some(match Path::new(name).extension()?.to_str()? {
            "onnx" => "",
            "pt" | "pth" | "pt2" | "ts" => "export the model with torch.onnx.export",
            "safetensors" | "bin" => "export the model with optimum-cli export onnx",
            "h5" | "keras" | "savedmodel" | "graphdef" | "pb" | "tflite" => "convert it with tf2onnx",
            "plan" | "engine" => "an engine of TensorRT is not portable: serve the ONNX file that it was made of",
            "json" | "ubj" | "pkl" | "joblib" => "convert it with onnxmltools or skl2onnx",
            "py" => "models in Python are not served: export what they run to ONNX",
            _ => return None,
        })
    };
    names_in(within)?.iter().find_map(|name| match advice(name)? {
        "" => Some(format!("; found '{name}'")),
        advice => Some(format!("; found '{name}': {advice}")),
    })
}

/// Returns advice if the program is where other tools put it; Hugging Face exports have `onnx/model.onnx`.
pub(super) fn misplaced(directory: &Path) -> Option<String> {
    let places = [Path::new("onnx").join(ONNX_FILENAME), PathBuf::from(ONNX_FILENAME)];
    let Some(found) = places.into_iter().find(|place| directory.join(place).is_file()) else {
        let Some(described) = [TOKENIZER, DESCRIPTION].into_iter().find(|name| directory.join(name).is_file()) else {
            return other_program(directory);
        };
        return Some(format!(
            "; found '{described}', as Hugging Face lays models out: expected a program in 'onnx/{ONNX_FILENAME}', \
             which {} writes",
            export_command(directory)
        ));
    };
    if directory.join(DESCRIPTION).is_file() && !directory.join(TOKENIZER).is_file() {
        let found = found.display();
        return Some(format!(
            "; found '{found}' and '{DESCRIPTION}', as Hugging Face lays models out: expected '{TOKENIZER}' as \
             well, or '{GENERATION}' of a decoder"
        ));
    }
    let (found, expected) = (found.display(), Path::new("1").join(ONNX_FILENAME));
    Some(format!(
        "; found '{found}', expected '{}': make the directory '1' and move the file there, with the files of its \
         weights if it has any",
        expected.display()
    ))
}

/// Returns the names of files and folders in a directory, in order; `None` if it cannot be read.
fn names_in(directory: &Path) -> Option<Vec<String>> {
    let found = directory.read_dir().ok()?.flatten();
    let mut names: Vec<String> = found.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort_unstable();
    Some(names)
}

/// Returns whether a directory is certainly that of one model, and not a repository of models.
pub(super) fn is_of_one_model(directory: &Path) -> bool {
    let has = |file: &str| directory.join(file).is_file();
    let has_version = || versions(directory).is_ok_and(|versions| !versions.is_empty());
    // A pipeline needs no more than its configuration.
    let has_folders =
        || directory.read_dir().is_ok_and(|found| found.flatten().any(|one| is_directory(&one.path()).unwrap_or(true)));
    let is_configured = (has(PBTXT) || has(YAML)) && (has_version() || !has_folders());
    // One without a program is refused with what is missing.
    laid_out(directory).is_some() || is_configured || has(TOKENIZER) && has(DESCRIPTION)
}

/// Returns the files that may hold a model's configuration.
pub(super) fn configurations(directory: &Path, config_name: Option<&str>) -> Vec<PathBuf> {
    let named = config_name.map(|name| directory.join(CONFIGS).join(format!("{name}.pbtxt")));
    named.into_iter().chain([directory.join(PBTXT), directory.join(YAML)]).collect()
}

/// Reads the configuration of a directory: `configs/<config_name>.pbtxt` if it exists, else `config.pbtxt` or
/// `model.yaml`, but not both. Returns `None` if there is none.
pub(super) fn read(
    directory: &Path,
    config_name: Option<&str>,
    policies: &CustomPolicies,
) -> Result<Option<(Settings, Origin)>, ConfigError> {
    let label = |path: &Path| path.display().to_string();
    let fail = |path: &Path, fault: String| Origin::new(label(path)).error("", fault);
    let mut there = Vec::new();
    for path in configurations(directory, config_name) {
        // A file that cannot be checked is an error, not a missing file: the model would be completed without its
        // settings.
        if path.try_exists().map_err(|fault| fail(&path, format!("cannot be read: {fault}")))? {
            there.push(path);
        }
    }
    let is_named = |path: &PathBuf| path.parent().is_some_and(|parent| parent != directory);
    let path = match there.as_slice() {
        [] => return Ok(None),
        [path] => path,
        [path, ..] if is_named(path) => path,
        _ => return Err(fail(directory, format!("found both {PBTXT} and {YAML}: expected one of them"))),
    };
    let bytes = read_limited(path).map_err(|fault| fail(path, fault.to_string()))?;
    let parse = if path.file_name().is_some_and(|name| name == YAML) { yaml::parse_with } else { pbtxt::parse_with };
    parse(&label(path), &bytes, policies).map(Some)
}

/// Reads the configuration in a load request; `None` if it has none.
pub(super) fn read_override(
    overrides: &Overrides,
    policies: &CustomPolicies,
) -> Result<Option<(Settings, Origin)>, ConfigError> {
    let Some(text) = &overrides.config_json else { return Ok(None) };
    json::parse_with(text, policies).map(Some)
}

/// Reads a whole file of at most 16 MiB.
pub(super) fn read_limited(path: &Path) -> Result<Vec<u8>, LoadError> {
    read_up_to(path, MAX_TEXT_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_a_file_is_not_read() {
        let reason = read_limited(Path::new("/dev/zero")).unwrap_err().to_string();
        assert_eq!(reason, "cannot read /dev/zero: not a file");
    }
}
