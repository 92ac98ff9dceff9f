//! An object of a store, as part of a model.

use object_store::ObjectMeta;
use serde::{Deserialize, Serialize};

/// An object of a model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::repository) struct Object {
    /// Path relative to the model's directory.
    pub(in crate::repository) path: String,
    pub(in crate::repository) size: u64,
    pub(in crate::repository) tag: Tag,
}

/// Identifies an object's content.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::repository) enum Tag {
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
