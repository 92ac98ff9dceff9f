//! Rows between two stages: which tasks may access them, and what they hold.

use std::sync::Arc;

use paternoster_device::{ALIGNMENT_BYTES, AccessKind, BufferPool, DeviceError, RowBuffer, RowError};

fn buffer(rows: u32, row_bytes: usize) -> Arc<RowBuffer> {
    RowBuffer::new(&BufferPool::new(1 << 20), rows, row_bytes).expect("a small buffer")
}

fn written(rows: u32, row_bytes: usize) -> Arc<RowBuffer> {
    let buffer = buffer(rows, row_bytes);
    buffer.write(0..rows).expect("no other access holds a row").commit();
    buffer
}

#[test]
fn consecutive_rows_are_one_aligned_piece_of_memory() {
    let buffer = buffer(4, 6);
    for row in 0..4 {
        let mut rows = buffer.write(row..row + 1).expect("no other access holds the row");
        rows.fill(row as u8);
        rows.commit();
    }
    let all = buffer.read(0..4).expect("every row is written");
    assert_eq!(all[..], [0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3]);
    assert_eq!(all.as_ptr().align_offset(ALIGNMENT_BYTES), 0);
    assert_eq!(buffer.read(2..4).expect("readers share")[..], all[12..]);
}

#[test]
fn disjoint_rows_are_written_beside_each_other() {
    let buffer = buffer(4, 8);
    std::thread::scope(|scope| {
        for row in 0..4 {
            let buffer = &buffer;
            scope.spawn(move || {
                let mut own = buffer.write(row..row + 1).expect("the row is this thread's alone");
                own.fill(row as u8 + 1);
                own.commit();
            });
        }
    });
    let all = buffer.read(0..4).expect("every row is written");
    assert!(all.chunks(8).zip(1..).all(|(row, value)| row == [value; 8]));
}

#[test]
fn a_row_that_is_written_is_nobody_elses() {
    let buffer = written(4, 8);
    let held = buffer.write(1..3).expect("no other access holds a row");
    let conflict =
        |wanted, wanted_for| Some(RowError::Conflict { wanted, wanted_for, held: 1..3, held_by: AccessKind::Write });
    assert_eq!(buffer.read(2..4).err(), conflict(2..4, AccessKind::Read));
    assert_eq!(buffer.write(0..2).err(), conflict(0..2, AccessKind::Write));
    assert_eq!(buffer.update(1..2).err(), conflict(1..2, AccessKind::Update));
    assert!(buffer.read(3..4).is_ok());
    held.commit();
    assert!(buffer.read(0..4).is_ok(), "free again");
}

#[test]
fn a_row_that_is_read_is_not_written() {
    let buffer = written(4, 8);
    let first = buffer.read(0..2).expect("there is no other writer");
    let second = buffer.read(0..2).expect("readers share");
    drop(first);
    let conflict = buffer.write(1..2).err();
    let expected =
        RowError::Conflict { wanted: 1..2, wanted_for: AccessKind::Write, held: 0..2, held_by: AccessKind::Read };
    assert_eq!(conflict, Some(expected), "the other reader still reads");
    drop(second);
    assert!(buffer.write(1..2).is_ok());
}

#[test]
fn rows_hold_nothing_until_their_writer_commits() {
    let buffer = written(3, 8);
    drop(buffer.write(1..2).expect("no other access holds a row"));
    assert_eq!(buffer.read(0..3).err(), Some(RowError::NotWritten { row: 1 }));
    assert_eq!(buffer.update(1..2).err(), Some(RowError::NotWritten { row: 1 }));
    assert!(buffer.read(2..3).is_ok());
    buffer.write(1..2).expect("no other access holds a row").commit();
    assert!(buffer.update(0..3).is_ok());
}

#[test]
fn rows_beyond_the_end_are_refused() {
    let buffer = written(3, 8);
    let error = RowError::OutOfRange { end: 4, capacity: 3 };
    assert_eq!(buffer.read(2..4).err(), Some(error.clone()));
    assert_eq!(buffer.write(2..4).err(), Some(error));
    assert!(buffer.read(3..3).is_ok_and(|rows| rows.is_empty()));
}

#[test]
fn rows_of_no_bytes_and_buffers_of_no_rows_are_allowed() {
    assert!(written(2, 0).read(0..2).is_ok_and(|rows| rows.is_empty()));
    assert!(written(0, 8).read(0..0).is_ok_and(|rows| rows.is_empty()));
}

#[test]
fn a_buffer_beyond_all_memory_is_refused() {
    let pool = BufferPool::new(0);
    for (rows, row_bytes) in [(u32::MAX, usize::MAX), (64, 1 << 34)] {
        let refused = RowBuffer::new(&pool, rows, row_bytes).err();
        assert!(matches!(refused, Some(DeviceError::TooLarge { .. })));
    }
}

#[test]
fn memory_returns_to_the_pool_with_the_last_guard() {
    let pool = BufferPool::new(1 << 20);
    let buffer = RowBuffer::new(&pool, 4, 32).expect("a small buffer");
    buffer.write(0..4).expect("no other access holds a row").commit();
    let response = bytes::Bytes::from_owner(buffer.read(1..2).expect("the rows are written"));
    drop(buffer);
    assert_eq!((pool.in_use_bytes(), pool.retained_bytes()), (128, 0), "a response shares it");
    drop(response);
    assert_eq!((pool.in_use_bytes(), pool.retained_bytes()), (0, 128));
}

#[test]
fn a_kept_buffer_tells_its_next_owner_nothing() {
    let pool = BufferPool::new(1 << 20);
    let buffer = RowBuffer::new(&pool, 4, 32).expect("a small buffer");
    buffer.write(0..4).expect("no other access holds a row").commit();
    drop(buffer);
    let next = RowBuffer::new(&pool, 4, 32).expect("a small buffer");
    assert_eq!(pool.retained_bytes(), 0, "the memory is the same");
    assert_eq!(next.read(0..1).err(), Some(RowError::NotWritten { row: 0 }));
}
