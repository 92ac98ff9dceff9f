//! Reads large files whole, into memory of their own.

use std::{
    fs::{self, File},
    io::{self, Read},
    path::Path,
};

use bytes::Bytes;
use memmap2::MmapMut;

/// Reads a whole file into memory that goes back to the system when the last share of it is dropped. The allocator
/// would keep it until the thread that freed it ends, which for a thread of tokio's pool is seconds later.
///
/// # Errors
/// Fails if the file cannot be read, or becomes shorter meanwhile.
pub(super) fn read(path: &Path) -> io::Result<Bytes> {
    let mut file = File::open(path)?;
    let length = file.metadata()?;
    // No memory can be mapped for an empty file, and what is not a file has no length.
    let length = usize::try_from(length.len()).unwrap_or(usize::MAX);
    if length == 0 {
        return fs::read(path).map(Bytes::from);
    }
    let mut memory = MmapMut::map_anon(length)?;
    file.read_exact(&mut memory)?;
    Ok(Bytes::from_owner(memory))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_read_whole() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("file");
        for content in [vec![], vec![7], (0..=255).cycle().take(1 << 20).collect::<Vec<u8>>()] {
            fs::write(&path, &content).expect("the file can be written");
            assert_eq!(read(&path).expect("it is there"), content);
        }
        assert_eq!(read(&folder.path().join("none")).expect_err("it is not there").kind(), io::ErrorKind::NotFound);
        assert!(read(folder.path()).is_err(), "a directory has no content");
    }
}
