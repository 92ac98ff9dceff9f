// Rows by index: gather and scatter of what requests keep between cells (BatchMaker, section 4.3), and embeddings.
//
// A launch is captured once for a bucket of `rows` rows. The number of live rows and their row numbers in the table are
// in the parameter block and read when the launch runs. Padding rows are read as zeros, so that no value of an earlier
// request reaches the matrix products that follow. They are not written back, so no scratch row is needed.
//
// An index beyond the table is read as a row of zeros, is not written, and is recorded in `faults`, one word for each
// row, which the host clears with the parameter block. Other rows are not affected.
//
// Rows may have places of their own (`places`), such as memory on the card that a client shares. Their addresses are in
// a list that the parameter block refers to, so a launch that was captured once can read and write them.
//
// Launch: blockIdx.x runs over rows, blockIdx.y over pieces of a row; any grid covers all rows.

constexpr unsigned FAULT_SLOT = 1;
constexpr unsigned FAULT_ID = 2;

struct alignas(16) Chunk {
    unsigned words[4];
};

DEVICE bool in_chunks(const void* table, const void* batch, int row_bytes, int pitch, int stride) {
    u64 addresses = reinterpret_cast<u64>(table) | reinterpret_cast<u64>(batch);
    return (addresses | u64(row_bytes) | u64(pitch) | u64(stride)) % sizeof(Chunk) == 0;
}

// Copies this block's pieces of a row, of which only the first `filled` bytes exist, and clears the rest.
template <class Piece> DEVICE void copy_row(const char* from, int filled, char* to, int row_bytes) {
    int pieces = row_bytes / int(sizeof(Piece)), known = filled / int(sizeof(Piece));
    for (int i = blockIdx.y * THREADS + TID; i < pieces; i += gridDim.y * THREADS) {
        reinterpret_cast<Piece*>(to)[i] = i < known ? reinterpret_cast<const Piece*>(from)[i] : Piece{};
    }
}

DEVICE void copy_row(const char* from, int filled, char* to, int row_bytes, bool chunks) {
    if (chunks) {
        copy_row<Chunk>(from, filled, to, row_bytes);
    } else {
        copy_row<unsigned>(from, filled, to, row_bytes);
    }
}

// Copies a row, or clears it if `from` is null.
DEVICE void copy_row(const char* from, char* to, int row_bytes, bool chunks) {
    copy_row(from, from ? row_bytes : 0, to, row_bytes, chunks);
}

DEVICE void note_fault(unsigned* faults, int row, unsigned fault) {
    if (blockIdx.y == 0 && TID == 0) faults[row] |= fault;
}

// Returns a row's own place, or null if it has none.
DEVICE char* own_place(const u64* places, int row) {
    return places ? reinterpret_cast<char*>(places[row]) : nullptr;
}

template <class Index>
DEVICE void gather(int live, int rows, int row_bytes, const Index* indices, bool from_end, const char* table,
                   int table_rows, int pitch, char* out, int stride, unsigned* faults, unsigned fault,
                   const u64* places = nullptr) {
    bool table_chunks = in_chunks(table, out, row_bytes, pitch, stride);
    for (int row = blockIdx.x; row < rows; row += gridDim.x) {
        const char* from = nullptr;
        bool known = true, chunks = table_chunks;
        const char* own = row < live ? own_place(places, row) : nullptr;
        if (own) {
            from = own;
            chunks = in_chunks(own, out, row_bytes, 0, stride);
        } else if (row < live) {
            i64 index = indices[row];
            if (from_end && index < 0) index += table_rows;
            known = index >= 0 && index < table_rows;
            if (known) from = table + index * pitch;
        }
        EACH {
            copy_row(from, out + i64(row) * stride, row_bytes, chunks);
            if (!known) note_fault(faults, row, fault);
        }
    }
}

// out[i] = table[slots[i]] for i < live, zeros up to `rows`.
// table: table_rows rows that begin every `pitch` bytes, so that it can hold rows of any length up to that; out: rows
// of row_bytes that begin every `stride` bytes, so that several gathers can fill one matrix side by side; row_bytes,
// pitch, stride: multiples of 4. Slots may repeat.
KERNEL(gather_rows, 256, const int* live, int rows, int row_bytes, const int* slots, const char* table, int table_rows,
       int pitch, char* out, int stride, unsigned* faults) {
    int count = live_rows(live, rows);
    gather(count, rows, row_bytes, slots, false, table, table_rows, pitch, out, stride, faults, FAULT_SLOT);
}

// Same as gather_rows, but a row with a place of its own is read from there. places: the address of a variable that
// points to a list of 64-bit addresses; if that pointer is null, no row has a place of its own. The entries of these
// rows begin at index `first`; 0 means none. Places are multiples of 4.
KERNEL(gather_placed, 256, const int* live, int rows, int row_bytes, const int* slots, const char* table,
       int table_rows, int pitch, char* out, int stride, unsigned* faults, const u64* const* places, int first) {
    int count = live_rows(live, rows);
    const u64* own = *places ? *places + first : nullptr;
    gather(count, rows, row_bytes, slots, false, table, table_rows, pitch, out, stride, faults, FAULT_SLOT, own);
}

// out[i] = counts[i] consecutive entries of the table from firsts[i] on, and zeros up to row_bytes, for i < live; zeros
// up to `rows`.
// table: table_rows entries of entry_bytes without gaps; out: rows of row_bytes without gaps; both are multiples of 4.
// Entries beyond the table or beyond the row of `out` are a fault of their row, which is then zeros.
KERNEL(gather_entries, 256, const int* live, int rows, int row_bytes, const int* firsts, const int* counts,
       const char* table, int table_rows, int entry_bytes, char* out, unsigned* faults) {
    int count = live_rows(live, rows);
    bool chunks = in_chunks(table, out, row_bytes, entry_bytes, 0);
    for (int row = blockIdx.x; row < rows; row += gridDim.x) {
        const char* from = nullptr;
        int filled = 0;
        bool known = true;
        if (row < count) {
            i64 first = firsts[row], entries = counts[row];
            known = first >= 0 && entries >= 0 && first + entries <= table_rows && entries * entry_bytes <= row_bytes;
            if (known) {
                from = table + first * entry_bytes;
                filled = int(entries * entry_bytes);
            }
        }
        EACH {
            copy_row(from, filled, out + i64(row) * row_bytes, row_bytes, chunks);
            if (!known) note_fault(faults, row, FAULT_SLOT);
        }
    }
}

DEVICE void scatter(int live, int row_bytes, const int* slots, const char* in, int stride, char* table, int table_rows,
                    int pitch, unsigned* faults, const u64* places = nullptr) {
    bool table_chunks = in_chunks(table, in, row_bytes, pitch, stride);
    for (int row = blockIdx.x; row < live; row += gridDim.x) {
        char* own = own_place(places, row);
        int slot = slots[row];
        bool known = own || (slot >= 0 && slot < table_rows);
        char* to = own ? own : table + i64(slot) * pitch;
        bool chunks = own ? in_chunks(own, in, row_bytes, 0, stride) : table_chunks;
        EACH {
            if (known) copy_row(in + i64(row) * stride, to, row_bytes, chunks);
            if (!known) note_fault(faults, row, FAULT_SLOT);
        }
    }
}

// table[slots[i]] = in[i] for i < live. in: rows of row_bytes that begin every `stride` bytes; the rest as for
// gather_rows. No slot may be named twice. Rows of `in` may be longer than the pitch: each then also overwrites what
// follows its slot, which no other row may write.
KERNEL(scatter_rows, 256, const int* live, int rows, int row_bytes, const int* slots, const char* in, int stride,
       char* table, int table_rows, int pitch, unsigned* faults) {
    scatter(live_rows(live, rows), row_bytes, slots, in, stride, table, table_rows, pitch, faults);
}

// Same as scatter_rows, but a row with a place of its own is written there; places and first as for gather_placed.
KERNEL(scatter_placed, 256, const int* live, int rows, int row_bytes, const int* slots, const char* in, int stride,
       char* table, int table_rows, int pitch, unsigned* faults, const u64* const* places, int first) {
    const u64* own = *places ? *places + first : nullptr;
    scatter(live_rows(live, rows), row_bytes, slots, in, stride, table, table_rows, pitch, faults, own);
}

// out[i] = table[ids[i]] for i < live, zeros up to `rows`. As in ONNX's Gather, a negative id counts from the table's
// end; beyond either end it is a fault. table: [table_rows, row_bytes]; the rest as for gather_rows.
KERNEL(embedding_i32, 256, const int* live, int rows, int row_bytes, const int* ids, const char* table, int table_rows,
       char* out, int stride, unsigned* faults) {
    int count = live_rows(live, rows);
    gather(count, rows, row_bytes, ids, true, table, table_rows, row_bytes, out, stride, faults, FAULT_ID);
}

// Same as embedding_i32 for ids of 64 bits.
KERNEL(embedding_i64, 256, const int* live, int rows, int row_bytes, const i64* ids, const char* table, int table_rows,
       char* out, int stride, unsigned* faults) {
    int count = live_rows(live, rows);
    gather(count, rows, row_bytes, ids, true, table, table_rows, row_bytes, out, stride, faults, FAULT_ID);
}

// Copies pieces of memory, such as the initial states of requests to their slots. There are few of them or none, so
// they are given by address.
// count: number of pieces, at most `most`; list: the address of a variable that points to the list of pieces, each with
// its source, its destination and its bytes (a multiple of 4), 64 bits each. The list and the memory that it refers to
// may be mapped host memory. Pieces do not overlap.
KERNEL(copy_pieces, 256, const int* count, int most, const u64* const* list) {
    int pieces = live_rows(count, most);
    for (int piece = blockIdx.x; piece < pieces; piece += gridDim.x) {
        const u64* entry = *list + 3 * i64(piece);
        const char* from = reinterpret_cast<const char*>(entry[0]);
        char* to = reinterpret_cast<char*>(entry[1]);
        int bytes = int(entry[2]);
        bool chunks = in_chunks(from, to, bytes, 0, 0);
        EACH { copy_row(from, to, bytes, chunks); }
    }
}
