//! Memory that earlier requests have used: a pattern fills it, and no response may hold the pattern.

use std::sync::Arc;

use paternoster_device::BufferPool;

/// Four bytes that no test computes; as FP32, a number near 4,728.
const PATTERN: [u8; 4] = [0xb7, 0xc2, 0x93, 0x45];

/// Sizes of the buffers: powers of two up to the largest output of a test.
const LARGEST_BYTES: usize = 16 << 20;
/// Buffers of each size up to 64 KiB; there is one of each larger size.
const SMALL: (usize, usize) = (64 << 10, 8);

/// Returns a pool whose buffers are all stained.
pub(crate) fn stained_pool() -> Arc<BufferPool> {
    let pool = BufferPool::new(usize::MAX);
    let sizes = (6..).map(|power| 1_usize << power).take_while(|size| *size <= LARGEST_BYTES);
    let counted = sizes.flat_map(|size| std::iter::repeat_n(size, if size <= SMALL.0 { SMALL.1 } else { 1 }));
    let buffers: Vec<_> = counted
        .map(|size| {
            let mut buffer = BufferPool::take(&pool, size).expect("there is memory");
            stain(buffer.as_mut_slice());
            buffer
        })
        .collect();
    drop(buffers);
    pool
}

/// Fills memory with the pattern.
pub(crate) fn stain(memory: &mut [u8]) {
    let mut stained = PATTERN.len().min(memory.len());
    memory[..stained].copy_from_slice(&PATTERN[..stained]);
    // The stained part is doubled, which is fast in a debug build too.
    while stained < memory.len() {
        let more = stained.min(memory.len() - stained);
        memory.copy_within(..more, stained);
        stained += more;
    }
}

/// Panics if the pattern is in a response.
pub(crate) fn assert_clean(data: &[u8], what: &str) {
    let found = data.chunks_exact(PATTERN.len()).position(|bytes| bytes == PATTERN);
    assert_eq!(found, None, "{what}: an earlier request's data is in the answer");
}
