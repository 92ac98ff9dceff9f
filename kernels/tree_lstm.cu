// The pointwise parts of a binary TreeLSTM (Tai et al., 2015, section 3.2, equations 9 to 14, with two children; the
// cells of BatchMaker, section 7.5). Gates come from one matrix product: for a leaf over its token's embedding, for an
// internal node over (h_left, h_right). Cell states c are fp32 whatever the element type.
//
// States lie in slot tables of `table_rows` rows, where row i of the batch is row slots[i], and are read and written
// there in place, so a task needs no separate gather and scatter for them. Without slots (null), states lie in the
// order of the batch. h is written twice: in the order of the batch, for the products that follow, and to the table
// h_kept unless that is null. A row whose slot is beyond the table is left alone.
//
// Rows from `live` on are neither read nor written. `bias` may be null.
//
// Launch: blockIdx.x runs over rows, blockIdx.y over pieces of a row; any grid covers all rows.

// A leaf: c = sigmoid(i) · tanh(u), h = sigmoid(o) · tanh(c).
// gates: [rows, 3 · hidden] in the order i, o, u; bias: [3 · hidden]; c: fp32 [table_rows, hidden]; h: [rows, hidden];
// h_kept: [table_rows, hidden] or null.
KERNEL(tree_lstm_leaf, 256, const int* live, int rows, int hidden, const int* slots, int table_rows,
       const element* gates, const element* bias, float* c, element* h, element* h_kept) {
    bool packs = aligned(gates, bias, c, h, h_kept);
    for_units(live, rows, hidden, slots, table_rows, packs, [&](int row, int state, int unit, auto width) {
        constexpr int N = decltype(width)::count;
        const element* gate = gates + i64(row) * 3 * hidden + unit;
        i64 first = i64(row) * hidden + unit, place = i64(state) * hidden + unit;
        float i[N], o[N], u[N], memory[N], out[N];
        load(gate, i);
        load(gate + hidden, o);
        load(gate + 2 * hidden, u);
        if (bias) {
            add_to(i, bias + unit);
            add_to(o, bias + hidden + unit);
            add_to(u, bias + 2 * hidden + unit);
        }
#pragma unroll
        for (int k = 0; k < N; ++k) {
            memory[k] = sigmoid(i[k]) * tanhf(u[k]);
            out[k] = sigmoid(o[k]) * tanhf(memory[k]);
        }
        store(memory, c + place);
        store(out, h + first);
        if (h_kept) store(out, h_kept + place);
    });
}

// An internal node: c = sigmoid(i) · tanh(u) + sigmoid(f_left) · c_left + sigmoid(f_right) · c_right, h as in a leaf.
// gates: [rows, 5 · hidden] in the order i, f_left, f_right, o, u; bias: [5 · hidden]; c_left, c_right: fp32
// [table_rows, hidden], read at left_slots and right_slots; c: the same, written at slots; the three may be one table,
// since no node of a task is another's child; h: [rows, hidden]; h_kept: [table_rows, hidden] or null.
KERNEL(tree_lstm_node, 256, const int* live, int rows, int hidden, const int* left_slots, const int* right_slots,
       const int* slots, int table_rows, const element* gates, const element* bias, const float* c_left,
       const float* c_right, float* c, element* h, element* h_kept) {
    bool packs = aligned(gates, bias, c_left, c_right, c, h, h_kept);
    for_units(live, rows, hidden, slots, table_rows, packs, [&](int row, int state, int unit, auto width) {
        constexpr int N = decltype(width)::count;
        const element* gate = gates + i64(row) * 5 * hidden + unit;
        i64 first = i64(row) * hidden + unit, place = i64(state) * hidden + unit;
        int left_child = state_row(left_slots, row, table_rows), right_child = state_row(right_slots, row, table_rows);
        if (left_child < 0 || right_child < 0) return;
        float i[N], f_left[N], f_right[N], o[N], u[N], left[N], right[N], out[N];
        load(gate, i);
        load(gate + hidden, f_left);
        load(gate + 2 * hidden, f_right);
        load(gate + 3 * hidden, o);
        load(gate + 4 * hidden, u);
        load(c_left + i64(left_child) * hidden + unit, left);
        load(c_right + i64(right_child) * hidden + unit, right);
        if (bias) {
            add_to(i, bias + unit);
            add_to(f_left, bias + hidden + unit);
            add_to(f_right, bias + 2 * hidden + unit);
            add_to(o, bias + 3 * hidden + unit);
            add_to(u, bias + 4 * hidden + unit);
        }
#pragma unroll
        for (int k = 0; k < N; ++k) {
            float of_children = sigmoid(f_left[k]) * left[k] + sigmoid(f_right[k]) * right[k];
            left[k] = sigmoid(i[k]) * tanhf(u[k]) + of_children;
            out[k] = sigmoid(o[k]) * tanhf(left[k]);
        }
        store(left, c + place);
        store(out, h + first);
        if (h_kept) store(out, h_kept + place);
    });
}
