// The pointwise parts of a GRU step, with both forms that ONNX has:
//
//     z, r = sigmoid of their gates,  h = (1 - z) · n + z · h_before,  where n is
//     linear_before_reset = 0:  tanh(x · W + bias_W + (r · h_before) · R + bias_R)
//     linear_before_reset = 1:  tanh(x · W + bias_W + r · (h_before · R + bias_R))
//
// States lie in slot tables of `table_rows` rows, where row i of the batch is row slots[i], and are read and written
// there in place, so a task needs no separate gather and scatter for them. Without slots (null), states lie in the
// order of the batch. h is written twice: in the order of the batch, for the products that follow, and to the table
// h_kept unless that is null. A row whose slot is beyond the table is left alone.
//
// Gates are in ONNX's order z, r, h. Rows from `live` on are neither read nor written. `bias` may be null.
//
// Launch: blockIdx.x runs over rows, blockIdx.y over pieces of a row; any grid covers all rows.

// linear_before_reset = 0, first half: reset = r · h_before. The second matrix product adds reset · R to the gates'
// third part, which has x · W until then; gru_update does the rest.
// gates: [rows, 3 · hidden], of which r is read; bias: [3 · hidden], the sum of ONNX's two; h_before:
// [table_rows, hidden]; reset: [rows, hidden].
KERNEL(gru_reset, 256, const int* live, int rows, int hidden, const int* slots, int table_rows,
       const element* gates, const element* bias, const element* h_before, element* reset) {
    bool packs = aligned(gates, bias, h_before, reset);
    for_units(live, rows, hidden, slots, table_rows, packs, [&](int row, int state, int unit, auto width) {
        constexpr int N = decltype(width)::count;
        const element* gate = gates + i64(row) * 3 * hidden + unit;
        i64 first = i64(row) * hidden + unit, place = i64(state) * hidden + unit;
        float r[N], before[N];
        load(gate + hidden, r);
        load(h_before + place, before);
        if (bias) add_to(r, bias + hidden + unit);
#pragma unroll
        for (int k = 0; k < N; ++k) before[k] *= sigmoid(r[k]);
        store(before, reset + first);
    });
}

// linear_before_reset = 0, second half. gates: [rows, 3 · hidden], of which z and the completed third part are read;
// bias: [3 · hidden]; h_before: [table_rows, hidden]; h: [rows, hidden]; h_kept: as h_before, may be the same, or null.
KERNEL(gru_update, 256, const int* live, int rows, int hidden, const int* slots, int table_rows,
       const element* gates, const element* bias, const element* h_before, element* h, element* h_kept) {
    bool packs = aligned(gates, bias, h_before, h, h_kept);
    for_units(live, rows, hidden, slots, table_rows, packs, [&](int row, int state, int unit, auto width) {
        constexpr int N = decltype(width)::count;
        const element* gate = gates + i64(row) * 3 * hidden + unit;
        i64 first = i64(row) * hidden + unit, place = i64(state) * hidden + unit;
        float z[N], n[N], before[N];
        load(gate, z);
        load(gate + 2 * hidden, n);
        load(h_before + place, before);
        if (bias) {
            add_to(z, bias + unit);
            add_to(n, bias + 2 * hidden + unit);
        }
#pragma unroll
        for (int k = 0; k < N; ++k) {
            float kept = sigmoid(z[k]);
            before[k] = (1.0f - kept) * tanhf(n[k]) + kept * before[k];
        }
        store(before, h + first);
        if (h_kept) store(before, h_kept + place);
    });
}

// linear_before_reset = 1, all of it. gates: [rows, 4 · hidden] in the order z, r, x · W of the third gate, h_before ·
// R of the third gate. One matrix product over (x, h_before) computes them, with weights of zero where a gate has no
// part. bias: [4 · hidden] in the same order; z and r have the sums of ONNX's two. h_before, h and h_kept are those of
// gru_update.
KERNEL(gru_linear_before_reset, 256, const int* live, int rows, int hidden, const int* slots, int table_rows,
       const element* gates, const element* bias, const element* h_before, element* h, element* h_kept) {
    bool packs = aligned(gates, bias, h_before, h, h_kept);
    for_units(live, rows, hidden, slots, table_rows, packs, [&](int row, int state, int unit, auto width) {
        constexpr int N = decltype(width)::count;
        const element* gate = gates + i64(row) * 4 * hidden + unit;
        i64 first = i64(row) * hidden + unit, place = i64(state) * hidden + unit;
        float z[N], r[N], of_input[N], of_state[N], before[N];
        load(gate, z);
        load(gate + hidden, r);
        load(gate + 2 * hidden, of_input);
        load(gate + 3 * hidden, of_state);
        load(h_before + place, before);
        if (bias) {
            add_to(z, bias + unit);
            add_to(r, bias + hidden + unit);
            add_to(of_input, bias + 2 * hidden + unit);
            add_to(of_state, bias + 3 * hidden + unit);
        }
#pragma unroll
        for (int k = 0; k < N; ++k) {
            float kept = sigmoid(z[k]);
            float n = tanhf(of_input[k] + sigmoid(r[k]) * of_state[k]);
            before[k] = (1.0f - kept) * n + kept * before[k];
        }
        store(before, h + first);
        if (h_kept) store(before, h_kept + place);
    });
}
