//! Checks which object keys can be files of a directory. A key that is rejected here never reaches the disk.

use std::collections::{BTreeMap, BTreeSet};

use super::{fault::StoreFault, object::Object};

/// Longest file name on Linux.
const MAX_NAME_BYTES: usize = 255;

/// Limits on the length and depth of paths in a model.
const MAX_PATH_BYTES: usize = 1024;
const MAX_DEPTH: usize = 16;

/// Most objects of one model.
pub(super) const MAX_OBJECTS: usize = 10_000;

/// Returns the objects of a model in the order of their paths, if all can be files of one directory. Empty objects that
/// represent folders, which many tools write, are left out.
///
/// # Errors
/// Returns the first key that cannot be a file, and the reason.
pub(super) fn check(objects: Vec<Object>) -> Result<Vec<Object>, StoreFault> {
    if objects.len() > MAX_OBJECTS {
        return Err(StoreFault(format!("it has more than {MAX_OBJECTS} objects")));
    }
    let folders: BTreeSet<&str> = objects.iter().flat_map(|object| folders(&object.path)).collect();
    let mut files = BTreeMap::new();
    for object in &objects {
        let path = object.path.as_str();
        let message = |why: &str| format!("the key '{}' cannot be a file: {why}", path.escape_debug());
        let refuse = |why: &str| Err(StoreFault(message(why)));
        if let Some(why) = fault(path) {
            return refuse(why);
        }
        if folders.contains(path) {
            if object.size > 0 {
                return refuse("other keys need a folder of that name");
            }
            continue;
        }
        if files.insert(path.to_owned(), object.clone()).is_some() {
            return refuse("another key leads to the same file");
        }
    }
    Ok(files.into_values().collect())
}

/// Returns all folders on a path.
fn folders(path: &str) -> impl Iterator<Item = &str> {
    path.match_indices('/').map(|(end, _)| &path[..end])
}

/// Returns why a path relative to the model's directory is invalid, if it is.
fn fault(path: &str) -> Option<&'static str> {
    if path.starts_with('/') {
        return Some("it is an absolute path");
    }
    if path.len() > MAX_PATH_BYTES {
        return Some("it is too long");
    }
    if path.split('/').count() > MAX_DEPTH {
        return Some("it is in too many folders");
    }
    path.split('/').find_map(|name| match name {
        "" => Some("a part of it is empty"),
        "." | ".." => Some("a part of it is '.' or '..'"),
        _ if name.len() > MAX_NAME_BYTES => Some("a part of it is too long"),
        _ if name.chars().any(char::is_control) => Some("it has a control character"),
        _ => None,
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::{stores::object::Tag, tests::refusals::Refusals};

    fn object(path: &str, size: u64) -> Object {
        Object { path: path.to_owned(), size, tag: Tag::ETag("tag".to_owned()) }
    }

    #[test]
    fn empty_objects_that_stand_for_folders_are_left_out() {
        let objects = vec![object("1", 0), object("1/model.onnx", 5), object("config.pbtxt", 0), object("a", 3)];
        let paths: Vec<String> = check(objects).unwrap().into_iter().map(|object| object.path).collect();
        assert_eq!(paths, ["1/model.onnx", "a", "config.pbtxt"]);
    }

    pub(crate) fn refusals(all: &mut Refusals) {
        all.title("keys of a model in a store");
        let mut refuse = |given: &str, paths: &[&str]| {
            all.add(None, given, check(paths.iter().map(|path| object(path, 1)).collect()));
        };
        for path in [
            "../1/model.onnx",
            "1/../../model.onnx",
            "1/./model.onnx",
            "..",
            "/etc/passwd",
            "1//model.onnx",
            "1/",
            "",
            "1/a\0b",
            "1/a\nb",
            "1/a\u{85}b",
        ] {
            refuse(&path.escape_debug().to_string(), &[path]);
        }
        refuse("a name of 256 letters", &[&"a".repeat(256)]);
        refuse("17 folders", &[&vec!["a"; 17].join("/")]);
        refuse("six names of 200 letters", &[&vec!["a".repeat(200); 6].join("/")]);
        refuse("a file and a folder of one name", &["1/model.onnx", "1/model.onnx/model.onnx"]);
        refuse("one key twice", &["a", "a"]);
        let objects = (0..=MAX_OBJECTS).map(|number| object(&number.to_string(), 1)).collect();
        all.add(None, "10001 objects", check(objects));
    }
}
