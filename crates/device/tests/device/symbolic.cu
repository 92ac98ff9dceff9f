// Symbolic work on a card: what the simulated device's rows hold, computed by a kernel.

DEVICE u64 mix(u64 input) {
    u64 spread = input + 0x9e3779b97f4a7c15ull;
    u64 folded = (spread ^ spread >> 30) * 0xbf58476d1ce4e5b9ull;
    u64 mixed = (folded ^ folded >> 27) * 0x94d049bb133111ebull;
    return mixed ^ mixed >> 31;
}

// One thread for each output row. All sources are read before any row is written.
// work, in 64-bit words: the number of output rows, the program, the number of sources of each row; then for each row
// its address, the output that it belongs to, and for each source whether it is a row, and its address or else its
// value.
// Launch: one block of 32 threads.
KERNEL(symbolic, 32, const u64* work) {
    Reg<u64> made;
    EACH {
        u64 rows = work[0], program = work[1], fan_in = work[2];
        const u64* own = work + 3 + TID * (2 + 2 * fan_in);
        if (TID < rows) {
            u64 content = mix(mix(program ^ 0xd1b54a32d192ed03ull) ^ own[1]);
            for (u64 source = 0; source < fan_in; ++source) {
                u64 value = own[3 + 2 * source];
                if (own[2 + 2 * source]) value = *reinterpret_cast<const u64*>(value);
                content = mix((content << 23 | content >> 41) ^ value);
            }
            made() = content;
        }
    }
    SYNC;
    EACH {
        if (TID < work[0]) *reinterpret_cast<u64*>(work[3 + TID * (2 + 2 * work[2])]) = made();
    }
}

// Blocks its stream until the gate is open (not zero).
// Launch: one block of 32 threads.
KERNEL(hold, 32, const volatile u64* gate) {
    EACH {
        if (TID == 0) {
            while (*gate == 0) {
            }
        }
    }
}
