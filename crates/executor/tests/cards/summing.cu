// A program over rows of `length` tokens: marks[i] = token + 1 + step, or 0 where the token is `padding`; sums[row] =
// the sum of the row's marks.
//
// tokens, marks: [rows, length]; sums: [rows]. Rows from `live` on are neither read nor written.
//
// Launch: blockIdx.x runs over rows; any grid does all of it.
KERNEL(summing, 32, const int* live, int rows, int length, const i64* tokens, i64 padding, i64 step, i64* marks,
       i64* sums) {
    int count = live_rows(live, rows);
    for (int row = blockIdx.x; row < count; row += gridDim.x) {
        EACH {
            if (TID == 0) {
                i64 sum = 0;
                for (int at = 0; at < length; ++at) {
                    i64 token = tokens[i64(row) * length + at];
                    i64 mark = token == padding ? 0 : token + 1 + step;
                    marks[i64(row) * length + at] = mark;
                    sum += mark;
                }
                sums[row] = sum;
            }
        }
    }
}
