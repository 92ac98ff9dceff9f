// The pointwise parts of a GRU step, with both forms that ONNX has:
//
//     z, r = sigmoid of their gates,  h = (1 - z) · n + z · h_before,  where n is
//     linear_before_reset = 0:  tanh(x · W + bias_W + (r · h_before) · R + bias_R)
//     linear_before_reset = 1:  tanh(x · W + bias_W + r · (h_before · R + bias_R))
//
// States lie in slot tables of `table_rows` rows, in which row i of the batch has the row slots[i], and are read and
// written there in place: a task needs no gather and scatter of its own for them. Without slots (null), states lie in
// the order of the batch. h is written twice: in the order of the batch, for the products that follow, and to the
// table h_kept unless that is null. A row whose slot the table does not have is left alone.
//
// Gates are in ONNX's order z, r, h. Rows from `live` on are neither read nor written. `bias` may be null.
//
// Launch: blockIdx.x runs over rows, blockIdx.y over pieces of a row; any grid does all of it.

// linear_before_reset = 0, first half: reset = r · h_before. The second matrix product adds reset · R to the gates'
// third part, which has x · W until then; gru_update does the rest.
// gates: [rows, 3 · hidden], of which r is read; bias: [3 · hidden], the sum of ONNX's two; h_before:
// [table_rows, hidden]; reset: [rows, hidden].
KERNEL(gru_reset, 256, const int* live, int rows, int hidden, const int* slots, int table_rows,
       const element* gates, const element* bias, const element* h_before, element* reset) {
    int count = live_rows(live, rows);
    bool packs = aligned(gates, bias, h_before, reset);
    for (int row = blockIdx.x; row < count; row += gridDim.x) {
        int kept = state_row(slots, row, table_rows);
        if (kept < 0) continue;
        const element* gate = gates + i64(row) * 3 * hidden;
        i64 first = i64(row) * hidden, place = i64(kept) * hidden;
        EACH {
            for_columns(hidden, packs, [&](int unit, auto width) {
                constexpr int N = decltype(width)::count;
                float r[N], state[N];
                load(gate + hidden + unit, r);
                load(h_before + place + unit, state);
                if (bias) add_to(r, bias + hidden + unit);
#pragma unroll
                for (int k = 0; k < N; ++k) state[k] *= sigmoid(r[k]);
                store(state, reset + first + unit);
            });
        }
    }
}

// linear_before_reset = 0, second half. gates: [rows, 3 · hidden], of which z and the completed third part are read;
// bias: [3 · hidden]; h_before: [table_rows, hidden]; h: [rows, hidden]; h_kept: as h_before, may be the same, or null.
KERNEL(gru_update, 256, const int* live, int rows, int hidden, const int* slots, int table_rows,
       const element* gates, const element* bias, const element* h_before, element* h, element* h_kept) {
    int count = live_rows(live, rows);
    bool packs = aligned(gates, bias, h_before, h, h_kept);
    for (int row = blockIdx.x; row < count; row += gridDim.x) {
        int kept = state_row(slots, row, table_rows);
        if (kept < 0) continue;
        const element* gate = gates + i64(row) * 3 * hidden;
        i64 first = i64(row) * hidden, place = i64(kept) * hidden;
        EACH {
            for_columns(hidden, packs, [&](int unit, auto width) {
                constexpr int N = decltype(width)::count;
                float z[N], n[N], state[N];
                load(gate + unit, z);
                load(gate + 2 * hidden + unit, n);
                load(h_before + place + unit, state);
                if (bias) {
                    add_to(z, bias + unit);
                    add_to(n, bias + 2 * hidden + unit);
                }
#pragma unroll
                for (int k = 0; k < N; ++k) {
                    float keep = sigmoid(z[k]);
                    state[k] = (1.0f - keep) * tanhf(n[k]) + keep * state[k];
                }
                store(state, h + first + unit);
                if (h_kept) store(state, h_kept + place + unit);
            });
        }
    }
}

// linear_before_reset = 1, all of it. gates: [rows, 4 · hidden] in the order z, r, x · W of the third gate, h_before ·
// R of the third gate: one matrix product over (x, h_before) makes them, with weights of zero where a gate has no part.
// bias: [4 · hidden] in the same order; z and r have the sums of ONNX's two. h_before, h and
// h_kept as for gru_update.
KERNEL(gru_linear_before_reset, 256, const int* live, int rows, int hidden, const int* slots, int table_rows,
       const element* gates, const element* bias, const element* h_before, element* h, element* h_kept) {
    int count = live_rows(live, rows);
    bool packs = aligned(gates, bias, h_before, h, h_kept);
    for (int row = blockIdx.x; row < count; row += gridDim.x) {
        int kept = state_row(slots, row, table_rows);
        if (kept < 0) continue;
        const element* gate = gates + i64(row) * 4 * hidden;
        i64 first = i64(row) * hidden, place = i64(kept) * hidden;
        EACH {
            for_columns(hidden, packs, [&](int unit, auto width) {
                constexpr int N = decltype(width)::count;
                float z[N], r[N], of_input[N], of_state[N], state[N];
                load(gate + unit, z);
                load(gate + hidden + unit, r);
                load(gate + 2 * hidden + unit, of_input);
                load(gate + 3 * hidden + unit, of_state);
                load(h_before + place + unit, state);
                if (bias) {
                    add_to(z, bias + unit);
                    add_to(r, bias + hidden + unit);
                    add_to(of_input, bias + 2 * hidden + unit);
                    add_to(of_state, bias + 3 * hidden + unit);
                }
#pragma unroll
                for (int k = 0; k < N; ++k) {
                    float keep = sigmoid(z[k]);
                    float n = tanhf(of_input[k] + sigmoid(r[k]) * of_state[k]);
                    state[k] = (1.0f - keep) * n + keep * state[k];
                }
                store(state, h + first + unit);
                if (h_kept) store(state, h_kept + place + unit);
            });
        }
    }
}
