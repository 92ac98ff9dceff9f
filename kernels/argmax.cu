// Greedy choice of a decoder's token (BatchMaker, section 7.4): the index of each row's maximum, and whether it is the
// end token. The host learns both when the task completes, and the token is fed back on the device.
//
// x: [rows, columns]; index: [rows], the first index on ties; NaN is never chosen, and a row of nothing but NaN has 0;
// done: [rows], 1 where the index is `end`, else 0. If `end` is negative, no token ends a row. Rows from `live` on are
// neither read nor written.
//
// Launch: blockIdx.x runs over rows, gridDim.y is 1; any number of blocks covers all rows.

template <class Index>
DEVICE void argmax(int count, int columns, const element* x, int end, Index* index, int* done) {
    bool packs = aligned(x);
    Reg<float> most;
    Reg<int> place;
    for (int row = blockIdx.x; row < count; row += gridDim.x) {
        const element* values = x + i64(row) * columns;
        EACH {
            float largest = -bits_float(0x7f800000u);
            int where = columns;
            for_columns(columns, packs, [&](int column, auto width) {
                constexpr int N = decltype(width)::count;
                float value[N];
                load(values + column, value);
#pragma unroll
                for (int k = 0; k < N; ++k) {
                    // A thread visits its columns in order. The second case is for rows with no value above minus
                    // infinity.
                    if (value[k] > largest || (where == columns && value[k] == largest)) {
                        largest = value[k];
                        where = column + k;
                    }
                }
            });
            most() = largest;
            place() = where;
        }
        float row_most = BLOCK_MAX(most);
        EACH {
            if (most() != row_most) place() = columns;
        }
        int first = BLOCK_MIN(place);
        int chosen = first < columns ? first : 0;
        EACH {
            if (TID == 0) {
                index[row] = chosen;
                done[row] = chosen == end;
            }
        }
    }
}

KERNEL(argmax_i32, 1024, const int* live, int rows, int columns, const element* x, int end, int* index, int* done) {
    argmax(live_rows(live, rows), columns, x, end, index, done);
}

// Same as argmax_i32 with indices of 64 bits, as ONNX's ArgMax returns.
KERNEL(argmax_i64, 1024, const int* live, int rows, int columns, const element* x, int end, i64* index, int* done) {
    argmax(live_rows(live, rows), columns, x, end, index, done);
}
