// The parameter block of an operation: what changes from launch to launch of a captured graph.

// Copies the next parameter block from host memory to the card, where the kernels after it read it. For graphs without
// row moves: gather_rows does the same.
// blocks: `count` blocks of `stride` 32-bit words each, in mapped host memory, used in turn; words: how many words of a
// block the operation reads, because only these are copied; taken: counter of the blocks that operations have ended
// with (signal.cu); block: the destination, `words` 32-bit words.
// Launch: one block of 256 threads.
KERNEL(fetch_parameters, 256, const unsigned* blocks, unsigned count, unsigned stride, unsigned words, const u64* taken,
       unsigned* block) {
    const unsigned* next = next_block(blocks, count, stride, taken);
    EACH {
        for (unsigned at = TID; at < words; at += THREADS) block[at] = next[at];
    }
}
