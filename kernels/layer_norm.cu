// LayerNorm over the last axis, with the residual connection before it:
//
//     s = x + residual,  y = (s - mean(s)) / sqrt(variance(s) + epsilon) · scale + bias
//
// The variance is computed from the deviations from the mean, not as a difference of two large sums, so that rows far
// from zero keep their precision. Each thread keeps its first vector, so a row of one vector a thread is read once. The
// rest of a longer row is read three times, twice from the cache.
//
// x, y: [rows, columns]; residual: [rows, columns] or null; scale, bias: [columns], bias may be null; sum: [rows,
// columns] or null, takes s for the next residual connection. y and sum may each be x or residual, but not one array.
// Rows from `live` on are neither read nor written.
//
// Launch: blockIdx.x runs over rows, gridDim.y is 1; any number of blocks covers all rows.

template <int N> DEVICE void load_sum(const element* x, const element* residual, i64 at, float (&value)[N]) {
    load(x + at, value);
    if (residual) add_to(value, residual + at);
}

template <int N>
DEVICE void load_sum_again(const element* x, const element* residual, i64 first, int column,
                           const Floats<PACK>& kept, float (&value)[N]) {
    if (first_vector<N>(column)) {
        recall(kept, value);
    } else {
        load_sum(x, residual, first + column, value);
    }
}

KERNEL(layer_norm, 512, const int* live, int rows, int columns, float epsilon, const element* x,
       const element* residual, const element* scale, const element* bias, element* sum, element* y) {
    int count = live_rows(live, rows);
    bool packs = aligned(x, residual, scale, bias, sum, y);
    Reg<float> part;
    Reg<Floats<PACK>> kept;
    for (int row = blockIdx.x; row < count; row += gridDim.x) {
        i64 first = i64(row) * columns;
        EACH {
            part() = 0.0f;
            for_columns(columns, packs, [&](int column, auto width) {
                constexpr int N = decltype(width)::count;
                float value[N];
                load_sum(x, residual, first + column, value);
                if (first_vector<N>(column)) keep(value, kept());
#pragma unroll
                for (int k = 0; k < N; ++k) part() += value[k];
            });
        }
        float mean = BLOCK_SUM(part) / columns;
        EACH {
            part() = 0.0f;
            for_columns(columns, packs, [&](int column, auto width) {
                constexpr int N = decltype(width)::count;
                float value[N];
                load_sum_again(x, residual, first, column, kept(), value);
#pragma unroll
                for (int k = 0; k < N; ++k) part() += (value[k] - mean) * (value[k] - mean);
            });
        }
        float deviation = sqrtf(BLOCK_SUM(part) / columns + epsilon);
        EACH {
            for_columns(columns, packs, [&](int column, auto width) {
                constexpr int N = decltype(width)::count;
                float value[N], factor[N];
                load_sum_again(x, residual, first, column, kept(), value);
                if (sum) store(value, sum + first + column);
                load(scale + column, factor);
#pragma unroll
                for (int k = 0; k < N; ++k) value[k] = (value[k] - mean) / deviation * factor[k];
                if (bias) add_to(value, bias + column);
                store(value, y + first + column);
            });
        }
    }
}
