//! Lists a store: the names of the models, and the objects of each.

use std::collections::{BTreeMap, BTreeSet};

use futures_util::TryStreamExt;
use object_store::{ObjectStore, path::Path as Key};

use super::{
    StoreFault, keys,
    object::{Object, Tag},
};
use crate::repository::scan::is_model_name;

/// Most objects that are listed in a repository, so that a wrong path does not exhaust memory.
const MAX_OBJECTS: usize = 200_000;

/// The objects of every model in a repository, or why a model cannot be a directory.
pub(super) type Contents = BTreeMap<String, Result<Vec<Object>, String>>;

/// Returns the names below a prefix that can be models', with one request that lists only this level.
pub(super) async fn models(store: &dyn ObjectStore, prefix: &Key) -> Result<BTreeSet<String>, StoreFault> {
    let listed = store.list_with_delimiter(Some(prefix)).await?;
    let names = listed.common_prefixes.iter().filter_map(Key::filename);
    Ok(names.filter(|name| is_model_name(name)).map(str::to_owned).collect())
}

/// Returns whether a model has any object.
pub(super) async fn has_model(store: &dyn ObjectStore, prefix: &Key, name: &str) -> Result<bool, StoreFault> {
    match store.list(Some(&folder(prefix, name)?)).try_next().await {
        Ok(first) => Ok(first.is_some()),
        // An object exists, even though its key cannot be a file.
        Err(object_store::Error::InvalidPath { .. }) => Ok(true),
        Err(fault) => Err(fault.into()),
    }
}

/// Returns the objects of one model.
///
/// # Errors
/// Fails if the store cannot be listed, or a key cannot be a file.
pub(super) async fn objects(store: &dyn ObjectStore, prefix: &Key, name: &str) -> Result<Vec<Object>, StoreFault> {
    let folder = folder(prefix, name)?;
    let mut objects = Vec::new();
    let mut listed = store.list(Some(&folder));
    while let Some(meta) = listed.try_next().await? {
        let Some(path) = relative(&meta.location, &folder) else { continue };
        if objects.len() > keys::MAX_OBJECTS {
            break;
        }
        objects.push(Object { path: path.to_owned(), size: meta.size, tag: Tag::of(&meta) });
    }
    keys::check(objects).map_err(StoreFault)
}

/// Returns the objects of all models, from one listing. If that contains a key that cannot be a file, lists each model
/// by itself, so that one bad model does not hide the others.
pub(super) async fn contents(store: &dyn ObjectStore, prefix: &Key) -> Result<Contents, StoreFault> {
    match all_objects(store, prefix).await {
        Err(object_store::Error::InvalidPath { .. }) => {}
        Err(fault) => return Err(fault.into()),
        Ok(None) => return Err(StoreFault(format!("it has more than {MAX_OBJECTS} objects"))),
        Ok(Some(found)) => {
            return Ok(found.into_iter().map(|(name, objects)| (name, keys::check(objects))).collect());
        }
    }
    let mut contents = Contents::new();
    for name in models(store, prefix).await? {
        let seen = objects(store, prefix, &name).await.map_err(|fault| fault.to_string());
        contents.insert(name, seen);
    }
    Ok(contents)
}

type ByModel = BTreeMap<String, Vec<Object>>;

async fn all_objects(store: &dyn ObjectStore, prefix: &Key) -> object_store::Result<Option<ByModel>> {
    let mut found = ByModel::new();
    let mut listed = store.list(Some(prefix));
    let mut count = 0;
    while let Some(meta) = listed.try_next().await? {
        count += 1;
        if count > MAX_OBJECTS {
            return Ok(None);
        }
        let model_and_path = relative(&meta.location, prefix).and_then(|path| path.split_once('/'));
        let Some((model, path)) = model_and_path.filter(|(model, _)| is_model_name(model)) else { continue };
        let object = Object { path: path.to_owned(), size: meta.size, tag: Tag::of(&meta) };
        found.entry(model.to_owned()).or_default().push(object);
    }
    Ok(Some(found))
}

/// Returns the prefix of a model's keys.
fn folder(prefix: &Key, name: &str) -> Result<Key, StoreFault> {
    Ok(Key::parse(format!("{prefix}/{name}")).map_err(object_store::Error::from)?)
}

/// Returns the part of a key after a prefix; `None` for the prefix itself.
fn relative<'k>(key: &'k Key, prefix: &Key) -> Option<&'k str> {
    let behind = key.as_ref().strip_prefix(prefix.as_ref())?;
    let behind = if prefix.as_ref().is_empty() { behind } else { behind.strip_prefix('/')? };
    (!behind.is_empty()).then_some(behind)
}
