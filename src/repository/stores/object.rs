//! An object of a store, as a part of a model.

use object_store::ObjectMeta;
use serde::{Deserialize, Serialize};

/// An object of a model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::repository) struct Object {
    /// Relative to the model's folder.
    pub(in crate::repository) path: String,
    pub(in crate::repository) size: u64,
    pub(in crate::repository) tag: Tag,
}

/// What an object's content is told apart by.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::repository) enum Tag {
    /// Without quotes, which stores write in one place and leave out in another.
    ETag(String),
    /// Of a store without ETags: milliseconds since 1970.
    Modified(i64),
}

impl Tag {
    pub(super) fn of(meta: &ObjectMeta) -> Self {
        match &meta.e_tag {
            Some(tag) => Self::ETag(tag.trim_matches('"').to_owned()),
            None => Self::Modified(meta.last_modified.timestamp_millis()),
        }
    }
}
