// The completion signal at the end of each task (BatchMaker, section 5, asynchronous completion notification).

// Stores the operation's position where the host polls it. Once the host sees it, everything written before it on the
// stream is visible to the host too. value: in the parameter block; word: in mapped host memory, 8-byte aligned; taken:
// the counter of parameter blocks, from which the next operation of the stream knows its own.
// Launch: one block of 32 threads.
KERNEL(signal, 32, const u64* value, u64* word, u64* taken) {
    EACH {
        if (TID == 0) {
            *taken += 1;
            store_for_host(word, *value);
        }
    }
}
