//! Opens files confined to a directory.

use std::{
    fs::{self, File, OpenOptions},
    io,
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::{Component, Path},
};

/// Checks that a location is a path below the model's directory, without '..'.
///
/// # Errors
/// The reason, without the name of the file.
pub(super) fn check(location: &str) -> Result<(), String> {
    let inside = Path::new(location).components().all(|part| matches!(part, Component::Normal(_)));
    if location.is_empty() || !inside {
        return Err("expected a path relative to the model, without '..'".to_owned());
    }
    Ok(())
}

/// Opens a regular file for reading. `location` is relative to `directory`; after resolving links, the file must lie
/// below `within`.
///
/// # Errors
/// The reason, without the name of the file.
pub(super) fn open(directory: &Path, within: &Path, location: &str) -> Result<File, String> {
    check(location)?;
    let text = |fault: io::Error| fault.to_string();
    let within = within.canonicalize().map_err(text)?;
    let resolve = || directory.join(location).canonicalize().map_err(text);
    let resolved = resolve()?;
    if !resolved.starts_with(&within) {
        return Err(format!("it is a link to '{}', outside of the model's version", resolved.display()));
    }
    // Opening must not block on a pipe without a writer or act on a device.
    if !fs::metadata(&resolved).map_err(text)?.is_file() {
        return Err("it is not a file".to_owned());
    }
    let flags = libc::O_NONBLOCK | libc::O_NOFOLLOW;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(&resolved).map_err(text)?;
    // A directory on the path may have been replaced by a link in the meantime, so verifies that the opened file is
    // still the one at the resolved path.
    let identity = |found: &fs::Metadata| (found.is_file(), found.dev(), found.ino());
    let (opened, now) = (file.metadata().map_err(text)?, resolve()?);
    let same = fs::metadata(&now).is_ok_and(|there| identity(&there) == identity(&opened));
    if !opened.is_file() || !now.starts_with(&within) || !same {
        return Err("it was exchanged while it was opened".to_owned());
    }
    Ok(file)
}
