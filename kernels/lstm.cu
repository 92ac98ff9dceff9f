// The pointwise part of an LSTM step (ONNX's LSTM without peepholes; the cell of BatchMaker, section 7.2):
//
//     i, o, f = sigmoid of their gates,  u = tanh of its gate,  c = f · c_before + i · u,  h = o · tanh(c)
//
// The gates come from one matrix product over (x, h_before), in ONNX's order i, o, f, c. The cell state c accumulates
// over all steps, so it is fp32 whatever the element type.
//
// States lie in slot tables of `table_rows` rows, where row i of the batch is row slots[i], and are read and written
// there in place, so a task needs no separate gather and scatter for them. Without slots (null), states lie in the
// order of the batch. h is written twice: in the order of the batch, for the products that follow, and to the table
// h_kept unless that is null. A row whose slot is beyond the table is left alone.
//
// gates: [rows, 4 · hidden]; bias: [4 · hidden], the sum of ONNX's two, or null; c_before and c: fp32 [table_rows,
// hidden], may be one array; h: [rows, hidden]; h_kept: [table_rows, hidden] or null. Rows from `live` on are neither
// read nor written.
//
// Launch: blockIdx.x runs over rows, blockIdx.y over pieces of a row; any grid covers all rows.

KERNEL(lstm, 256, const int* live, int rows, int hidden, const int* slots, int table_rows, const element* gates,
       const element* bias, const float* c_before, float* c, element* h, element* h_kept) {
    bool packs = aligned(gates, bias, c_before, c, h, h_kept);
    for_units(live, rows, hidden, slots, table_rows, packs, [&](int row, int state, int unit, auto width) {
        constexpr int N = decltype(width)::count;
        const element* gate = gates + i64(row) * 4 * hidden + unit;
        i64 first = i64(row) * hidden + unit, place = i64(state) * hidden + unit;
        float i[N], o[N], f[N], u[N], memory[N], out[N];
        load(gate, i);
        load(gate + hidden, o);
        load(gate + 2 * hidden, f);
        load(gate + 3 * hidden, u);
        load(c_before + place, memory);
        if (bias) {
            add_to(i, bias + unit);
            add_to(o, bias + hidden + unit);
            add_to(f, bias + 2 * hidden + unit);
            add_to(u, bias + 3 * hidden + unit);
        }
#pragma unroll
        for (int k = 0; k < N; ++k) {
            memory[k] = sigmoid(f[k]) * memory[k] + sigmoid(i[k]) * tanhf(u[k]);
            out[k] = sigmoid(o[k]) * tanhf(memory[k]);
        }
        store(memory, c + place);
        store(out, h + first);
        if (h_kept) store(out, h_kept + place);
    });
}
