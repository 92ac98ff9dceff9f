//! An object of a store, as part of a model.

use object_store::ObjectMeta;
use serde::{Deserialize, Serialize};

/// An object of a model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Object {
    /// Path relative to the model's directory.
    pub(crate) path: String,
    pub(crate) size: u64,
    pub(crate) tag: Tag,
}

/// Identifies an object's content.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Tag {
    /// The ETag without quotes, which some stores send in one place and not in another.
    ETag(String),
    /// For a store without ETags: the modification time, in milliseconds since 1970.
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
