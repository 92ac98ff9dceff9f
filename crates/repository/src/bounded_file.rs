//! Reads small files whole, within a bound.

use std::{
    fs::{self, File},
    io::{self, Read},
    path::Path,
};

use super::load_error::{LoadError, cannot_read};

/// Reads a whole file of at most `limit` bytes.
///
/// # Errors
/// Fails if the path is not a regular file, the file is longer than `limit`, or it cannot be read. The message names
/// the path.
pub(super) fn read_up_to(path: &Path, limit: u64) -> Result<Vec<u8>, LoadError> {
    let fail = cannot_read(path);
    // Reading a device or a pipe might never end.
    if !fs::metadata(path).map_err(&fail)?.is_file() {
        return Err(fail(io::Error::other("not a file")));
    }
    let mut bytes = Vec::new();
    File::open(path).map_err(&fail)?.take(limit + 1).read_to_end(&mut bytes).map_err(&fail)?;
    if bytes.len() as u64 > limit {
        return Err(fail(io::Error::other(format!("it has more than {limit} bytes"))));
    }
    Ok(bytes)
}
