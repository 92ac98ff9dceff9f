//! Lists the model directories of repositories. A repository or entry that cannot be read is reported and never treated
//! as missing.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    path::{Path, PathBuf},
};

use super::{
    configuration,
    directory::{Identity, identity, is_directory},
    load_error::{LoadError, cannot_read},
};

/// A model directory, or the reason why a name has none to serve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Found {
    At(PathBuf),
    /// The name is in two repositories.
    Twice(PathBuf, PathBuf),
}

/// What one scan of a repository found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Listing {
    pub(super) identity: Identity,
    /// Model directories by name.
    pub(super) models: BTreeMap<String, PathBuf>,
    /// Names of entries that could not be read, with the system's reason.
    pub(super) unreadable: BTreeMap<String, String>,
}

impl Listing {
    /// Records a name that could not be read as a model.
    pub(super) fn assume_model(&mut self, root: &Path, name: &str) {
        self.models.insert(name.to_owned(), root.join(name));
    }
}

/// What one scan of every repository found, or why it failed, in the order of the command line.
pub(super) type Scan = Vec<(PathBuf, io::Result<Listing>)>;

/// Returns whether a name can be a model's: one path component that is not hidden (volume mounts keep their data in
/// `..data`) and not a file system's own `lost+found`.
pub(super) fn is_model_name(name: &str) -> bool {
    let reserved = name.is_empty() || name.starts_with('.') || name == "lost+found";
    !reserved && !name.contains(['/', '\\', '\0'])
}

/// Scans every repository. One that is given twice, even by different paths, is scanned once.
pub(super) fn scan(roots: &[PathBuf]) -> Scan {
    distinct(roots).into_iter().map(|root| (root.clone(), list(root))).collect()
}

/// Returns the repositories without duplicates. One that cannot be read counts as distinct.
fn distinct(roots: &[PathBuf]) -> Vec<&PathBuf> {
    let mut distinct: Vec<(&PathBuf, Option<Identity>)> = Vec::new();
    for root in roots {
        let own = fs::metadata(root).ok().map(|metadata| identity(&metadata));
        let again = distinct.iter().any(|(path, other)| *path == root || own.is_some() && *other == own);
        if !again {
            distinct.push((root, own));
        }
    }
    distinct.into_iter().map(|(root, _)| root).collect()
}

/// Returns the name of the only model of a repository that is a model's directory itself, as
/// text-embeddings-inference takes one.
fn only_model(root: &Path) -> Option<String> {
    let name = || fs::canonicalize(root).ok()?.file_name()?.to_str().map(str::to_owned);
    configuration::is_of_one_model(root).then(name).flatten().filter(|name| is_model_name(name))
}

fn list(root: &Path) -> io::Result<Listing> {
    let mut listing = Listing { identity: identity(&fs::metadata(root)?), ..Listing::default() };
    if let Some(name) = only_model(root) {
        listing.models.insert(name, root.to_owned());
        return Ok(listing);
    }
    for entry in fs::read_dir(root)? {
        let entry = entry?;
        let Ok(name) = entry.file_name().into_string() else { continue };
        if !is_model_name(&name) {
            continue;
        }
        match is_directory(&entry.path()) {
            Ok(true) => drop(listing.models.insert(name, entry.path())),
            Ok(false) => {}
            Err(fault) => drop(listing.unreadable.insert(name, fault.to_string())),
        }
    }
    Ok(listing)
}

/// Returns all models of these repositories, by name.
pub(super) fn merge<'l>(listings: impl IntoIterator<Item = &'l Listing>) -> BTreeMap<String, Found> {
    let mut models = BTreeMap::new();
    for (name, path) in listings.into_iter().flat_map(|listing| &listing.models) {
        let found = match models.remove(name) {
            None => Found::At(path.clone()),
            Some(Found::At(first) | Found::Twice(first, _)) => Found::Twice(first, path.clone()),
        };
        models.insert(name.clone(), found);
    }
    models
}

/// Returns the names of all models in a scan, including those that could not be read.
pub(super) fn names(scan: &Scan) -> BTreeSet<String> {
    let listings = scan.iter().filter_map(|(_, listed)| listed.as_ref().ok());
    listings.flat_map(|listing| listing.models.keys().chain(listing.unreadable.keys()).cloned()).collect()
}

/// Returns the directory of one model, or both if two repositories have it; `None` if no repository does.
///
/// # Errors
/// Returns the path and the reason if a repository cannot be read.
pub(super) fn find(roots: &[PathBuf], name: &str) -> Result<Option<Found>, LoadError> {
    if !is_model_name(name) {
        return Ok(None);
    }
    find_all(roots, name).map(place)
}

/// Returns the directories that a model name has in all repositories.
///
/// # Errors
/// As [`find`].
pub(super) fn find_all(roots: &[PathBuf], name: &str) -> Result<Vec<PathBuf>, LoadError> {
    let mut places = Vec::new();
    for root in distinct(roots) {
        let path = match only_model(root) {
            Some(only) if only == name => root.clone(),
            Some(_) => continue,
            None => root.join(name),
        };
        if is_directory(&path).map_err(cannot_read(&path))? {
            places.push(path);
        } else {
            // An unreadable repository says nothing about the model, so its absence there must not count as an unload.
            fs::metadata(root).map_err(cannot_read(root))?;
        }
    }
    Ok(places)
}

/// Returns what a name with these directories denotes.
pub(super) fn place(directories: Vec<PathBuf>) -> Option<Found> {
    let mut directories = directories.into_iter();
    let (first, second) = (directories.next()?, directories.next());
    Some(match second {
        None => Found::At(first),
        Some(second) => Found::Twice(first, second),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_leave_the_repository_are_no_model_names() {
        assert!(is_model_name("resnet-50.v1"));
        for name in ["", ".", "..", "../x", "a/b", "/etc", "a\\b", ".git", "..data", "a\0b", "lost+found"] {
            assert!(!is_model_name(name), "{name:?}");
        }
    }

    #[test]
    fn what_cannot_be_looked_at_is_told_from_what_is_not_there() {
        let directory = tempfile::tempdir().unwrap();
        let link = |target: &str, name: &str| std::os::unix::fs::symlink(target, directory.path().join(name)).unwrap();
        fs::create_dir(directory.path().join("model")).unwrap();
        link("nowhere", "dangling");
        link("circle", "circle");
        let roots = [directory.path().to_owned(), directory.path().join("missing")];
        let mut scan = scan(&roots);
        assert!(scan.pop().unwrap().1.is_err(), "a repository that is missing");
        let listing = scan.pop().unwrap().1.unwrap();
        assert_eq!(listing.models.keys().collect::<Vec<_>>(), ["model"]);
        assert_eq!(listing.unreadable.keys().collect::<Vec<_>>(), ["circle"], "a link in a circle");
        assert!(find(&roots[..1], "circle").unwrap_err().to_string().contains("circle: "));
        assert_eq!(find(&roots[..1], "dangling"), Ok(None));
        assert!(find(&roots, "other").unwrap_err().to_string().contains("missing: "));
    }

    #[test]
    fn a_repository_that_is_a_models_directory_has_that_model_alone() {
        let directory = tempfile::tempdir().unwrap();
        for (model, files) in [("e5", vec!["onnx/model.onnx", "1_Pooling/config.json"]), ("net", vec!["1/model.onnx"])]
        {
            let roots = [directory.path().join("models").join(model).join("..").join(model)];
            for file in &files {
                let file = directory.path().join("models").join(model).join(file);
                fs::create_dir_all(file.parent().unwrap()).unwrap();
                fs::write(file, "").unwrap();
            }
            let names = |scan: Scan| scan.into_iter().next().unwrap().1.unwrap().models;
            assert_eq!(names(scan(&roots)).len(), files.len(), "a repository of models");
            let mark = if model == "e5" { "generation_config.json" } else { "config.pbtxt" };
            fs::write(roots[0].join(mark), "{}").unwrap();
            fs::write(roots[0].join("config.json"), r#"{"model_type": "x"}"#).unwrap();
            assert_eq!(names(scan(&roots)), BTreeMap::from([(model.to_owned(), roots[0].clone())]));
            assert_eq!(find(&roots, model), Ok(Some(Found::At(roots[0].clone()))));
            assert_eq!(find(&roots, "1"), Ok(None));
            let all = [directory.path().join("models")];
            assert!(names(scan(&all)).contains_key(model), "its repository has it too");
        }
    }
}
