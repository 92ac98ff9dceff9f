use super::{
    system::{KEY_LIMIT_BYTES, READ_STEP_BYTES},
    *,
};
use crate::{Kind, tests::shm::Object};

fn registered(object: &Object, offset: u64, byte_size: u64) -> SharedMemory {
    let memory = SharedMemory::new(true);
    memory.register("region", object.key(), offset, byte_size).expect("the object is that long");
    memory
}

/// Reads whatever there is.
fn unlimited() -> Allowance {
    SharedMemory::new(true).with_request_limit(u64::MAX).allowance()
}

#[test]
fn a_slice_reads_and_writes_its_part_of_the_object() {
    let object = Object::new("rw", &(0..64).collect::<Vec<u8>>());
    let memory = registered(&object, 8, 40);
    let slice = memory.slice("region", 4, 8).expect("within the region");
    assert_eq!(slice.read(&mut unlimited()).expect("the object is there"), (12..20).collect::<Vec<u8>>());
    slice.write(&Bytes::from_static(&[1, 2])).expect("the object is there");
    let mut expected: Vec<u8> = (0..64).collect();
    expected[12..14].copy_from_slice(&[1, 2]);
    assert_eq!(object.content(), expected);
}

#[test]
fn a_read_longer_than_one_step_is_whole() {
    let content: Vec<u8> = (0..READ_STEP_BYTES * 2 + 77).map(|value| (value % 251) as u8).collect();
    let object = Object::new("long", &content);
    let memory = registered(&object, 0, content.len() as u64);
    let slice = memory.slice("region", 0, content.len() as u64).expect("within the region");
    assert_eq!(slice.read(&mut unlimited()).expect("the object is there"), content);
}

#[test]
fn a_copy_is_not_changed_by_later_writes() {
    let object = Object::new("snapshot", &[1; 8]);
    let slice = registered(&object, 0, 8).slice("region", 0, 8).expect("within the region");
    let copy = slice.read(&mut unlimited()).expect("the object is there");
    slice.write(&Bytes::from_static(&[2; 8])).expect("the object is there");
    assert_eq!(copy, [1; 8].as_slice());
}

#[test]
fn a_name_is_registered_once_and_can_be_reused_after_unregistering() {
    let object = Object::new("twice", &[0; 16]);
    let memory = registered(&object, 0, 16);
    let again = memory.register("region", object.key(), 0, 8).expect_err("the name is taken");
    assert_eq!(again, SharedMemoryError::AlreadyRegistered { name: "region".to_owned() });
    assert_eq!(again.kind(), Kind::InvalidArgument);
    memory.unregister("region");
    memory.register("region", object.key(), 0, 8).expect("the name is free again");
}

#[test]
fn unregistering_takes_one_or_all_and_an_unknown_name_is_no_error() {
    let object = Object::new("unregister", &[0; 16]);
    let memory = registered(&object, 0, 16);
    memory.register("other", object.key(), 8, 8).expect("two names may share an object");
    memory.unregister("absent");
    assert_eq!(memory.status("").expect("all").regions.len(), 2);
    memory.unregister("other");
    assert_eq!(memory.status("other").expect_err("it is gone").kind(), Kind::NotFound);
    memory.unregister("");
    assert!(memory.status("").expect("all").regions.is_empty());
}

#[test]
fn the_status_shows_what_was_registered() {
    let object = Object::new("status", &[0; 16]);
    let memory = registered(&object, 4, 8);
    let status = memory.status("region").expect("it is registered");
    let expected = RegionStatus { name: "region".to_owned(), key: object.key().to_owned(), offset: 4, byte_size: 8 };
    assert_eq!(status.regions["region"], expected);
}

#[test]
fn a_region_beyond_its_object_is_refused_without_overflow() {
    let object = Object::new("beyond", &[0; 16]);
    let memory = SharedMemory::new(true);
    for (offset, byte_size) in [(0, 17), (16, 1), (9, 8), (u64::MAX, 1), (1, u64::MAX), (u64::MAX, u64::MAX)] {
        let refused = memory.register("region", object.key(), offset, byte_size).expect_err("too long");
        assert!(matches!(refused, SharedMemoryError::BeyondFile { available: 16, .. }), "{refused}");
    }
    let empty = memory.register("region", object.key(), 0, 0).expect_err("nothing to share");
    assert_eq!(empty.kind(), Kind::InvalidArgument);
}

#[test]
fn a_slice_beyond_its_region_is_refused_without_overflow() {
    let object = Object::new("slice", &[0; 16]);
    let memory = registered(&object, 8, 8);
    for (offset, byte_size) in [(0, 9), (8, 1), (u64::MAX, 1), (1, u64::MAX)] {
        let refused = memory.slice("region", offset, byte_size).expect_err("too long");
        assert!(matches!(refused, SharedMemoryError::BeyondRegion { available: 8, .. }), "{refused}");
        assert_eq!(refused.kind(), Kind::InvalidArgument);
    }
    assert_eq!(memory.slice("absent", 0, 1).expect_err("unknown").kind(), Kind::NotFound);
}

#[test]
fn a_write_longer_than_its_slice_is_refused_and_leaves_the_object_alone() {
    let object = Object::new("overflow", &[7; 16]);
    let slice = registered(&object, 0, 16).slice("region", 4, 4).expect("within the region");
    let refused = slice.write(&Bytes::from_static(&[0; 5])).expect_err("longer than the slice");
    assert_eq!(refused.kind(), Kind::InvalidArgument);
    assert_eq!(object.content(), [7; 16]);
}

#[test]
fn an_object_that_its_client_truncates_makes_errors_and_does_not_grow_again() {
    let object = Object::new("truncated", &[7; 16]);
    let slice = registered(&object, 0, 16).slice("region", 0, 16).expect("within the region");
    object.truncate(4);
    assert!(matches!(slice.read(&mut unlimited()), Err(SharedMemoryError::Shrunk { .. })));
    assert!(matches!(slice.write(&Bytes::from_static(&[0; 16])), Err(SharedMemoryError::Shrunk { .. })));
    assert_eq!(object.content().len(), 4);
}

#[test]
fn a_sparse_object_is_read_up_to_the_limit_of_a_request() {
    let object = Object::new("sparse", &[]);
    let size = 4 << 40;
    object.truncate(size);
    let memory = registered(&object, 0, size).with_request_limit(1 << 20);
    let mut allowance = memory.allowance();
    let all = memory.slice("region", 0, size).expect("within the region");
    let refused = all.read(&mut allowance).expect_err("4 TiB");
    assert_eq!(refused.kind(), Kind::ResourceExhausted);
    assert!(refused.to_string().contains("1048576"), "'{refused}' names the limit");
    let tail = memory.slice("region", size - (1 << 20), 1 << 20).expect("within the region");
    assert_eq!(tail.read(&mut allowance).expect("as much as a request may read").len(), 1 << 20);
    let more = memory.slice("region", 0, 1).expect("within the region");
    let refused = more.read(&mut allowance).expect_err("the request has read what it may");
    assert!(matches!(refused, SharedMemoryError::OverLimit { left: 0, .. }), "{refused}");
    assert_eq!(more.read(&mut memory.allowance()).expect("another request").len(), 1);
}

#[test]
fn an_object_that_was_shortened_costs_no_memory() {
    let object = Object::new("shortened", &[]);
    let size = 1 << 60;
    object.truncate(size);
    let slice = registered(&object, 0, size).slice("region", 0, size).expect("within the region");
    object.truncate(16);
    assert!(matches!(slice.read(&mut unlimited()), Err(SharedMemoryError::Shrunk { .. })), "before it is allocated");
}

#[test]
fn what_no_memory_can_hold_is_an_error() {
    let object = Object::new("no-memory", &[]);
    let size = 1 << 60;
    object.truncate(size);
    let slice = registered(&object, 0, size).slice("region", 0, size).expect("within the region");
    assert_eq!(slice.read(&mut unlimited()).expect_err("no machine has this memory").kind(), Kind::Unavailable);
}

#[test]
fn regions_are_bounded_in_number_and_their_names_in_length() {
    let object = Object::new("many", &[0; 16]);
    let memory = SharedMemory::new(true);
    for number in 0..MOST_REGIONS {
        memory.register(&number.to_string(), object.key(), 0, 16).expect("not too many yet");
    }
    let refused = memory.register("one-more", object.key(), 0, 16).expect_err("too many");
    assert_eq!(refused.kind(), Kind::ResourceExhausted);
    assert!(refused.to_string().contains("one-more"), "'{refused}' names the region");
    memory.unregister("0");
    memory.register("one-more", object.key(), 0, 16).expect("there is room again");
    memory.unregister("");
    let long = "n".repeat(NAME_LIMIT_BYTES + 1);
    let refused = memory.register(&long, object.key(), 0, 16).expect_err("the name is too long");
    assert_eq!(refused.kind(), Kind::InvalidArgument);
    memory.register(&long[1..], object.key(), 0, 16).expect("a long name");
}

#[test]
fn what_is_no_plain_file_is_refused() {
    let object = Object::folder("folder");
    let refused = SharedMemory::new(true).register("region", object.key(), 0, 1).expect_err("a directory");
    assert!(matches!(refused, SharedMemoryError::Open { .. }), "{refused}");
}

#[test]
fn a_key_cannot_leave_the_directory() {
    let memory = SharedMemory::new(true);
    let long = "k".repeat(KEY_LIMIT_BYTES + 1);
    for key in ["", "/", "..", "/..", ".", "../etc/passwd", "a/b", "/a/", "a\0b", &long] {
        let refused = memory.register("region", key, 0, 1).expect_err("not a key");
        assert_eq!(refused.kind(), Kind::Internal, "{key:?}: {refused}");
        let tritons = format!("Unable to open shared memory region: '{key}'");
        assert!(refused.to_string().starts_with(&tritons), "{refused}");
        assert!(refused.to_string().ends_with("a name in /dev/shm without '/' is expected"), "{refused}");
    }
    let absent = memory.register("region", "paternoster-absent", 0, 1).expect_err("no such object");
    assert!(matches!(absent, SharedMemoryError::Open { .. }), "{absent}");
}

#[test]
fn a_leading_separator_does_not_count() {
    let object = Object::new("separator", &[0; 4]);
    let memory = SharedMemory::new(true);
    memory.register("region", &format!("/{}", object.key()), 0, 4).expect("as shm_open has it");
}

#[test]
fn a_link_is_not_followed() {
    let object = Object::new("target", &[0; 4]);
    let link = object.link("link");
    let refused = SharedMemory::new(true).register("region", link.key(), 0, 4).expect_err("a link");
    assert!(matches!(refused, SharedMemoryError::Open { .. }), "{refused}");
}

#[test]
fn with_client_memory_off_only_registering_is_refused_and_names_the_flag() {
    let memory = SharedMemory::new(false);
    let refused = memory.register("region", "key", 0, 1).expect_err("it is off");
    assert!(refused.to_string().contains("--allow-client-shm"), "{refused}");
    memory.unregister("");
    assert!(memory.status("").expect("all").regions.is_empty());
    assert_eq!(memory.slice("region", 0, 1).expect_err("unknown").kind(), Kind::NotFound);
}
