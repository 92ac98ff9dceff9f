// The parameter block of an operation: what changes from launch to launch of a captured graph.

// Brings the next parameter block from host memory to the card, where the kernels behind it read it.
// blocks: `count` blocks of `stride` 32-bit words each, in mapped host memory, taken in turn; words: how many of a
// block's the operation reads, since each has to come from the host; taken: how many blocks have been taken before,
// counted here; block: where they go, `words` 32-bit words.
// Launch: one block of 256 threads.
KERNEL(fetch_parameters, 256, const unsigned* blocks, unsigned count, unsigned stride, unsigned words, u64* taken,
       unsigned* block) {
    EACH {
        const unsigned* next = blocks + *taken % count * stride;
        for (unsigned at = TID; at < words; at += THREADS) block[at] = next[at];
    }
    SYNC;
    EACH {
        if (TID == 0) *taken += 1;
    }
}
