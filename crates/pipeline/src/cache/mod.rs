//! Responses of versions that are asked for the same again.
//!
//! [`ResponseCache`] has the responses of all versions, within a limit of bytes. [`Cached`] puts it in front of a
//! version: a request that hits is answered at once, and never reaches the executor.

mod cached;
mod key;

use std::sync::atomic::{AtomicU64, Ordering};

use paternoster_executor::Response;
use quick_cache::{
    DefaultHashBuilder, OptionsBuilder, Weighter,
    sync::{Cache, DefaultLifecycle},
};

pub use self::cached::Cached;
pub(crate) use self::cached::CachedResponse;
use self::key::Key;

/// Bytes of an entry apart from its response: its key, its places in the cache's tables, and what the cache remembers
/// of entries that it has dropped.
const ENTRY_BYTES: usize = 512;

/// The size of entries from which the number of dropped entries follows that the cache remembers.
const USUAL_ENTRY_BYTES: u64 = 8 << 10;

/// The responses of all versions that have a cache, within a limit of bytes: Triton's cache `local`.
#[derive(Debug)]
pub struct ResponseCache {
    responses: Cache<Key, Response, Bytes>,
    /// The number of the next load.
    loads: AtomicU64,
}

/// Weighs entries by the memory that they take.
#[derive(Clone, Debug)]
struct Bytes;

impl Weighter<Key, Response> for Bytes {
    fn weight(&self, _: &Key, response: &Response) -> u64 {
        (ENTRY_BYTES + response.kept_bytes()) as u64
    }
}

impl ResponseCache {
    /// Creates a cache of at most `bytes`, tensors and overhead together.
    pub fn new(bytes: u64) -> Self {
        let usual = usize::try_from(bytes / USUAL_ENTRY_BYTES).unwrap_or(usize::MAX).max(1);
        // One shard, so that a response may take all of it: a look-up holds its lock for well below a microsecond.
        let mut options = OptionsBuilder::new();
        let options = options.shards(1).weight_capacity(bytes).estimated_items_capacity(usual).build();
        // Fails only if one of the sizes above is missing.
        let options = options.unwrap_or_else(|error| unreachable!("{error}"));
        let responses = Cache::with_options(options, Bytes, DefaultHashBuilder::default(), DefaultLifecycle::default());
        Self { responses, loads: AtomicU64::new(0) }
    }

    /// Returns the bytes that it takes.
    pub fn bytes(&self) -> u64 {
        self.responses.weight()
    }

    /// Returns the bytes that it may take.
    pub fn limit_bytes(&self) -> u64 {
        self.responses.capacity()
    }

    /// Returns the number of a load that no other has.
    fn next_load(&self) -> u64 {
        self.loads.fetch_add(1, Ordering::Relaxed)
    }

    fn get(&self, key: &Key) -> Option<Response> {
        self.responses.get(key)
    }

    /// Keeps a copy of a response, unless it is larger than the cache. Others leave for it.
    fn insert(&self, key: Key, response: &Response) {
        // Before anything is copied.
        if Bytes.weight(&key, response) > self.limit_bytes() {
            return;
        }
        let mut kept = response.clone();
        kept.detach();
        self.responses.insert(key, kept);
    }
}

#[cfg(test)]
mod tests {
    use paternoster_executor::{InferRequest, OutputTensor};
    use paternoster_model::Dims;

    use super::*;

    fn key(load: u64) -> Key {
        Key::of(load, &InferRequest::new(1, vec![]))
    }

    fn response(bytes: usize) -> Response {
        let data = bytes::Bytes::from(vec![7; bytes]);
        Response { outputs: vec![OutputTensor { shape: Dims::from_slice(&[bytes as i64]), data }] }
    }

    #[test]
    fn it_never_takes_more_than_its_limit_and_keeps_the_newest() {
        let cache = ResponseCache::new(64 << 10);
        for number in 0..2_000 {
            cache.insert(key(number), &response(number as usize * 37 % 20_000));
            assert!(cache.bytes() <= 64 << 10, "{} bytes after {number}", cache.bytes());
            assert!(cache.get(&key(number)).is_some(), "{number} was just asked for");
        }
        assert!(cache.bytes() > 32 << 10, "it drops no more than it must: {}", cache.bytes());
        assert!(cache.get(&key(0)).is_none(), "the oldest left");
    }

    #[test]
    fn many_small_responses_count_with_what_they_take_apart_from_their_tensors() {
        let cache = ResponseCache::new(64 << 10);
        for number in 0..10_000 {
            cache.insert(key(number), &response(1));
        }
        let kept = (0..10_000).filter(|&number| cache.get(&key(number)).is_some()).count();
        assert!((32..128).contains(&kept), "{kept} of one byte each");
    }

    #[test]
    fn a_response_that_is_larger_than_the_cache_is_not_kept_and_drops_no_other() {
        let cache = ResponseCache::new(16 << 10);
        cache.insert(key(1), &response(1_000));
        cache.insert(key(2), &response(16 << 10));
        assert!(cache.get(&key(1)).is_some() && cache.get(&key(2)).is_none());
    }

    #[test]
    fn a_response_does_not_keep_the_memory_of_its_batch() {
        let cache = ResponseCache::new(1 << 20);
        let batch = bytes::Bytes::from(vec![1; 1 << 16]);
        let part = OutputTensor { shape: Dims::from_slice(&[4]), data: batch.slice(..4) };
        cache.insert(key(1), &Response { outputs: vec![part.clone()] });
        drop(part);
        assert!(batch.is_unique(), "only the batch has it");
        assert_eq!(cache.get(&key(1)).expect("it fits").outputs[0].data, [1; 4][..]);
    }
}
