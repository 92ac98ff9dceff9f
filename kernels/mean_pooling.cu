// The last step of a sentence encoder: the mean of each sequence's tokens, scaled to length 1.
//
// Sequences are packed: sequence s has the tokens offsets[s] to offsets[s + 1], without padding. The mean is kept in
// fp32 until it is scaled, hence the output of fp32.
//
// x: [tokens, columns]; offsets: [sequences + 1], cumulative lengths, in the parameter block; out: fp32 [sequences,
// columns]; normalise: 0 leaves the means as they are. The mean of no tokens is zeros, and zeros stay zeros. Sequences
// from `live` on are neither read nor written.
//
// Launch: blockIdx.x runs over sequences; any number of blocks covers all sequences.

KERNEL(mean_pooling, 1024, const int* live, int sequences, const int* offsets, int tokens, int columns, int normalise,
       const element* x, float* out) {
    int count = live_rows(live, sequences);
    Reg<float> squares;
    for (int sequence = blockIdx.x; sequence < count; sequence += gridDim.x) {
        int begin = offset_of(offsets, sequence, tokens), end = offset_of(offsets, sequence + 1, tokens);
        float* means = out + i64(sequence) * columns;
        EACH {
            squares() = 0.0f;
            for (int column = TID; column < columns; column += THREADS) {
                float sum = 0.0f;
                for (int token = begin; token < end; ++token) sum += to_float(x[i64(token) * columns + column]);
                float mean = end > begin ? sum / (end - begin) : 0.0f;
                means[column] = mean;
                squares() += mean * mean;
            }
        }
        if (normalise) {
            float norm = fmaxf(sqrtf(BLOCK_SUM(squares)), 1e-12f);
            // Each thread scales only elements that it wrote itself, so no synchronisation is needed.
            EACH {
                for (int column = TID; column < columns; column += THREADS) means[column] /= norm;
            }
        }
    }
}
