//! Tests of what is kept, on real directories.

use std::{
    fs::{self, File},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    time::Duration,
};

use tempfile::TempDir;

use super::{entries::Entries, *};

const MEMORY: MemoryReport = MemoryReport { peak_bytes: 3, kept_bytes: 2 };

fn directory() -> TempDir {
    tempfile::tempdir().expect("a directory")
}

/// Returns the only entry of a cache.
fn only_entry(cache: &Path) -> PathBuf {
    let found: Vec<_> = fs::read_dir(cache.join("start-cache")).expect("it has entries").collect();
    assert_eq!(found.len(), 1);
    found.into_iter().next().expect("one").expect("it can be listed").path()
}

#[test]
fn a_program_that_opened_is_found_by_other_servers_under_its_key() {
    let folder = directory();
    let (first, second) = (StartCache::new(folder.path()), StartCache::new(folder.path()));
    assert_eq!(first.opened("key"), None);
    first.keep_opened("key", MEMORY);
    assert_eq!((second.opened("key"), second.opened("another key")), (Some(MEMORY), None));
    assert_eq!(first.reading(), StartCacheReading { hits: 0, misses: 1 });
    assert_eq!(second.reading(), StartCacheReading { hits: 1, misses: 1 });
}

#[test]
fn libraries_of_other_content_differ() {
    let folder = directory();
    let (one, two) = (folder.path().join("one"), folder.path().join("two"));
    fs::write(&one, "1").and_then(|()| fs::write(&two, "2")).expect("files");
    let cache = StartCache::new(folder.path());
    let digest = |path| cache.library(path).expect("it is there");
    assert_ne!(digest(&one), digest(&two));
    assert_eq!(digest(&one), digest(&one));
    assert!(cache.library(&folder.path().join("none")).is_err());
}

#[test]
fn entries_that_are_damaged_or_foreign_count_as_none_and_are_replaced() {
    let folder = directory();
    let entries = || Entries::new(folder.path().join("start-cache"));
    entries().write("key", &1);
    assert_eq!(entries().read::<u32>("key"), Some(1));
    assert_eq!(entries().read::<u32>("other"), None);
    let path = only_entry(folder.path());
    let complete = fs::read(&path).expect("it is there");
    let mut flipped = complete.clone();
    *flipped.last_mut().expect("it has a content") ^= 1;
    let newer = String::from_utf8_lossy(&complete).replace("cache 1 ", "cache 2 ").into_bytes();
    for damaged in [&b""[..], b"\n", b"{}", &complete[..complete.len() - 1], &complete[..10], &flipped, &newer] {
        fs::write(&path, damaged).expect("it can be written");
        assert_eq!(entries().read::<u32>("key"), None, "{damaged:?}");
    }
    entries().write("key", &2);
    assert_eq!(entries().read::<u32>("key"), Some(2));
    assert_eq!(entries().read::<Vec<String>>("key"), None, "of another type");
    // A link is not followed.
    let other = folder.path().join("other");
    fs::rename(&path, &other).expect("it can be moved");
    std::os::unix::fs::symlink(&other, &path).expect("a link");
    assert_eq!(entries().read::<u32>("key"), None);
    fs::remove_file(&path).expect("it is there");
    fs::create_dir(&path).expect("a directory");
    assert_eq!(entries().read::<u32>("key"), None);
    fs::remove_dir(&path).expect("it is empty");
    entries().write("key", &3);
    assert_eq!(entries().read::<u32>("key"), Some(3));
    if std::os::unix::fs::chown(&path, Some(10001), None).is_ok() {
        assert_eq!(entries().read::<u32>("key"), None, "another user wrote it");
    }
}

#[test]
fn a_directory_that_cannot_be_written_or_vanishes_costs_nothing_but_time() {
    let folder = directory();
    // A file in its place: also for the superuser, who may write everywhere.
    let blocked = folder.path().join("file");
    fs::write(&blocked, "").expect("a file");
    let cache = StartCache::new(&blocked.join("cache"));
    cache.keep_opened("key", MEMORY);
    assert_eq!(cache.opened("key"), None);

    let vanishing = folder.path().join("vanishing");
    let cache = StartCache::new(&vanishing);
    cache.keep_opened("key", MEMORY);
    let mode = vanishing.join("start-cache").metadata().expect("it was created").permissions().mode();
    assert_eq!(mode & 0o077, 0, "others may not write what the server trusts");
    fs::remove_dir_all(&vanishing).expect("it can be removed");
    assert_eq!(cache.opened("key"), None);
    cache.keep_opened("key", MEMORY);
    assert_eq!(cache.opened("key"), Some(MEMORY));
}

#[test]
fn entries_that_were_not_used_for_longest_leave_first() {
    let folder = directory();
    let entries = Entries::new(folder.path().join("start-cache"));
    for number in 0..5u64 {
        entries.write(&number.to_string(), &number);
        // As if everything had happened a minute earlier.
        for entry in fs::read_dir(folder.path().join("start-cache")).expect("it was created") {
            let path = entry.expect("it can be listed").path();
            let modified = path.metadata().and_then(|metadata| metadata.modified()).expect("it is there");
            let file = File::open(&path).expect("its owner may");
            file.set_modified(modified - Duration::from_secs(60)).expect("its owner may");
        }
    }
    fs::write(folder.path().join("start-cache/notes.txt"), "no entry").expect("a file");
    assert_eq!(entries.read("0"), Some(0u64));
    entries.remove_oldest(3);
    let count = fs::read_dir(folder.path().join("start-cache")).expect("it was created").count();
    assert_eq!(count, 4, "three and the other file");
    let left: Vec<u64> = (0..5u64).filter(|number| entries.read(&number.to_string()) == Some(*number)).collect();
    assert_eq!(left, [0, 3, 4], "the first was read");
}
