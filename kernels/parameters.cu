// The parameter block of an operation: what changes from launch to launch of a captured graph.

// Copies the next parameter block from host memory to the card, where the kernels after it read it.
// blocks: `count` blocks of `stride` 32-bit words each, in mapped host memory, used in turn; words: how many words of a
// block the operation reads, because only these are copied; taken: counter of the blocks that have been copied; block:
// the destination, `words` 32-bit words.
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
