// The completion signal at the end of each task (BatchMaker, section 5, asynchronous completion notification).

// Stores the task's number where the host polls it. Everything before it on the stream is written, for the host too,
// once the host sees the number. value: in the parameter block; word: in mapped host memory, 8-byte aligned.
// Launch: one block of 32 threads.
KERNEL(signal, 32, const u64* value, u64* word) {
    EACH {
        if (TID == 0) store_for_host(word, *value);
    }
}
