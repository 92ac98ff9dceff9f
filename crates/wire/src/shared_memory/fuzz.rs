//! The fuzz body of shared memory: any sequence of calls leaves the table as a simple model of it says, and no key
//! leads out of the directory.

use std::{collections::BTreeMap, fs, os::unix::fs::symlink};

use super::*;

/// Names and sizes of the objects that are there.
const OBJECTS: [(&str, usize); 2] = [("a", 64), ("b", 16)];

/// What a region should be: key, first byte and length in bytes.
type Expected = BTreeMap<String, (String, u64, u64)>;

/// The fuzz body. A line is a call: its name and arguments, separated by tabs.
///
/// The objects are files of a directory of its own; beside it is a file that no key may reach.
pub fn shared_memory(bytes: &[u8]) {
    let scratch = tempfile::tempdir().expect("a temporary directory");
    let directory = scratch.path().join("objects");
    fs::create_dir(&directory).expect("an empty directory");
    fs::write(scratch.path().join("secret"), [7; 64]).expect("a new file");
    symlink("../secret", directory.join("link")).expect("a new link");
    let mut contents = BTreeMap::new();
    for (name, size_bytes) in OBJECTS {
        let content: Vec<u8> = (0..size_bytes).map(|byte| byte as u8).collect();
        fs::write(directory.join(name), &content).expect("a new file");
        contents.insert(name, content);
    }
    let memory = SharedMemory { directory, ..SharedMemory::new(true) };
    let mut expected = Expected::new();
    for line in String::from_utf8_lossy(bytes).lines() {
        let mut fields = line.split('\t');
        let call = fields.next().unwrap_or_default();
        let name = fields.next().unwrap_or_default();
        match call {
            "register" => {
                let key = fields.next().unwrap_or_default();
                let (offset, byte_size) = (number(fields.next()), number(fields.next()));
                register(&memory, &mut expected, name, key, (offset, byte_size));
            }
            "unregister" => {
                memory.unregister(name);
                expected.retain(|other, _| !name.is_empty() && other != name);
            }
            "status" => assert_eq!(memory.status(name).is_ok(), name.is_empty() || expected.contains_key(name)),
            "use" => {
                let (offset, byte_size) = (number(fields.next()), number(fields.next()));
                exchange(&memory, &expected, &mut contents, name, (offset, byte_size));
            }
            _ => {}
        }
        check_table(&memory, &expected);
    }
    let secret = fs::read(scratch.path().join("secret")).expect("it is there");
    assert_eq!(secret, [7; 64], "nothing outside is written");
}

fn number(field: Option<&str>) -> u64 {
    field.and_then(|text| text.parse().ok()).unwrap_or(0)
}

fn register(memory: &SharedMemory, expected: &mut Expected, name: &str, key: &str, (offset, byte_size): (u64, u64)) {
    let object = OBJECTS.iter().find(|(object, _)| *object == key.trim_start_matches('/'));
    let fits =
        object.is_some_and(|(_, available)| offset.checked_add(byte_size).is_some_and(|end| end <= *available as u64));
    let right = fits && byte_size > 0 && !name.is_empty() && !expected.contains_key(name);
    let registered = memory.register(name, key, offset, byte_size);
    assert_eq!(registered.is_ok(), right, "{name:?}, {key:?}, {offset}, {byte_size}: {registered:?}");
    if right {
        expected.insert(name.to_owned(), (key.to_owned(), offset, byte_size));
    }
}

/// Reads a part of a region, writes its bytes in reverse, and reads them again.
fn exchange(
    memory: &SharedMemory,
    expected: &Expected,
    contents: &mut BTreeMap<&str, Vec<u8>>,
    name: &str,
    (offset, byte_size): (u64, u64),
) {
    let slice = memory.slice(name, offset, byte_size);
    let region = expected.get(name);
    let fits = |size: u64| offset.checked_add(byte_size).is_some_and(|end| end <= size);
    assert_eq!(slice.is_ok(), region.is_some_and(|(_, _, size)| fits(*size)), "{offset} + {byte_size} of {region:?}");
    let (Ok(slice), Some((key, start, _))) = (slice, region) else { return };
    let content = contents.get_mut(key.trim_start_matches('/')).expect("one of the objects");
    let first = usize::try_from(start + offset).expect("within a small file");
    let part = &mut content[first..first + usize::try_from(byte_size).expect("within a small file")];
    assert_eq!(slice.read(&mut memory.allowance()).expect("the object is there"), &*part);
    part.reverse();
    slice.write(&Bytes::copy_from_slice(part)).expect("the object is there");
    assert_eq!(slice.read(&mut memory.allowance()).expect("the object is there"), &*part);
}

fn check_table(memory: &SharedMemory, expected: &Expected) {
    let status = memory.status("").expect("all").regions;
    let found: Expected =
        status.into_iter().map(|(name, region)| (name, (region.key, region.offset, region.byte_size))).collect();
    assert_eq!(&found, expected);
}
