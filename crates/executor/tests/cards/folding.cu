// A program whose output depends on all its entries: out[i] is a hash of one[i] and of the first lengths[i] entries of
// row i of `entries`, in order, below `modulus`. The entries after these must be 0; if one is not, out[i] is a number
// that no hash can be.
//
// one, lengths: [rows]; entries: [rows, most]; out: [rows]. Rows from `live` on are neither read nor written.
//
// Launch: blockIdx.x runs over rows; any grid does all of it.
DEVICE u64 mixed_of(u64 first, u64 second, u64 modulus) {
    u64 mixed = first * 6364136223846793005ull + second * 1442695040888963407ull + 1;
    mixed ^= mixed >> 29;
    return mixed % modulus;
}

KERNEL(folding, 32, const int* live, int rows, int most, const u64* one, const u64* entries, const u64* lengths,
       u64* out, u64 modulus) {
    int count = live_rows(live, rows);
    for (int row = blockIdx.x; row < count; row += gridDim.x) {
        EACH {
            if (TID == 0) {
                u64 folded = 0;
                bool is_clean = true;
                for (int i = 0; i < most; ++i) {
                    u64 entry = entries[i64(row) * most + i];
                    if (u64(i) < lengths[row]) {
                        folded = mixed_of(folded, entry, 1000000007ull);
                    } else {
                        is_clean = is_clean && entry == 0;
                    }
                }
                out[row] = is_clean ? mixed_of(one[row], folded, modulus) : ~0ull;
            }
        }
    }
}

// out[i] = each entry of row i of `entries` hashed with its index, for the first lengths[i]. The others become numbers
// that nothing may read.
//
// entries, out: [rows, most]; lengths: [rows].
KERNEL(marking, 32, const int* live, int rows, int most, const u64* entries, const u64* lengths, u64* out) {
    int count = live_rows(live, rows);
    for (int row = blockIdx.x; row < count; row += gridDim.x) {
        EACH {
            for (int i = TID; i < most; i += THREADS) {
                i64 at = i64(row) * most + i;
                out[at] = u64(i) < lengths[row] ? mixed_of(entries[at], u64(i), 1000000007ull) : ~0ull;
            }
        }
    }
}
