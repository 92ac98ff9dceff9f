// A program whose output depends on both inputs: out[i] is a hash of one[i] and two[i], below `modulus`.
//
// one, two: [rows], or null, which reads as zeros; out: [rows]; decision: [rows], 1 where out[i] is a multiple of 4,
// else 0; faults: [rows], 1 where one[i] is negative. Rows from `live` on are neither read nor written.
//
// Launch: blockIdx.x runs over rows; any grid does all of it.
KERNEL(mixing, 32, const int* live, int rows, const u64* one, const u64* two, u64* out, float* decision, u64 modulus,
       unsigned* faults) {
    int count = live_rows(live, rows);
    for (int row = blockIdx.x; row < count; row += gridDim.x) {
        EACH {
            if (TID == 0) {
                u64 first = one ? one[row] : 0, second = two ? two[row] : 0;
                u64 mixed = first * 6364136223846793005ull + second * 1442695040888963407ull + 1;
                mixed ^= mixed >> 29;
                out[row] = mixed % modulus;
                decision[row] = out[row] % 4 == 0 ? 1.0f : 0.0f;
                faults[row] = i64(first) < 0;
            }
        }
    }
}
