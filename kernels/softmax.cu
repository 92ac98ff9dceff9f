// Softmax over rows: y = exp(x - m) / sum of exp(x - m), where m is the row's maximum.
//
// One pass computes both the maximum and the sum: a thread that finds a larger maximum scales its sum down. Each thread
// keeps its first vector for the second pass, so a row of one vector a thread is read once.
//
// x, y: [rows, columns], may be one array. Values of minus infinity have weight zero; a row of nothing else is NaN, as
// in ONNX. Rows from `live` on are neither read nor written.
//
// Launch: blockIdx.x runs over rows, gridDim.y is 1; any number of blocks covers all rows.

KERNEL(softmax, 512, const int* live, int rows, int columns, const element* x, element* y) {
    int count = live_rows(live, rows);
    bool packs = aligned(x, y);
    Reg<float> own_most, sum;
    Reg<Floats<PACK>> kept;
    for (int row = blockIdx.x; row < count; row += gridDim.x) {
        i64 first = i64(row) * columns;
        EACH {
            float largest = LOWEST, total = 0.0f;
            for_columns(columns, packs, [&](int column, auto width) {
                constexpr int N = decltype(width)::count;
                float value[N];
                load(x + first + column, value);
                if (first_vector<N>(column)) keep(value, kept());
                float before = largest;
#pragma unroll
                for (int k = 0; k < N; ++k) largest = fmaxf(largest, value[k]);
                total *= expf(before - largest);
#pragma unroll
                for (int k = 0; k < N; ++k) total += expf(value[k] - largest);
            });
            own_most() = largest;
            sum() = total;
        }
        float row_most = BLOCK_MAX(own_most);
        EACH { sum() *= expf(own_most() - row_most); }
        float row_sum = BLOCK_SUM(sum);
        EACH {
            for_columns(columns, packs, [&](int column, auto width) {
                constexpr int N = decltype(width)::count;
                float value[N];
                if (first_vector<N>(column)) {
                    recall(kept(), value);
                } else {
                    load(x + first + column, value);
                }
#pragma unroll
                for (int k = 0; k < N; ++k) value[k] = expf(value[k] - row_most) / row_sum;
                store(value, y + first + column);
            });
        }
    }
}
