// Rows by index: gather and scatter of what requests keep between cells (BatchMaker, section 4.3), and embeddings.
//
// A launch is captured once for a bucket of `rows` rows. The number of live rows and their row numbers in the tables
// are in the parameter block and read when the launch runs. Padding rows are read as zeros, so that no value of an
// earlier request reaches the matrix products that follow. They are not written back, so no scratch row is needed.
//
// One launch makes all moves of a task: a list of them, fixed at the capture, says which rows go where.
//
// A row number beyond the table is read as a row of zeros, and is not written. Other rows are not affected.
//
// Rows may have places of their own, such as memory on the card that a client shares, or the state that a request
// begins with. Their addresses are in a list that the parameter block refers to, so a launch that was captured once can
// read and write them.
//
// Launch: blockIdx.x runs over rows, blockIdx.y over pieces of a row; any grid covers all rows. blockIdx.z runs over
// moves.

constexpr unsigned FAULT_ID = 2;

// The parameters of a task, in words: the number of live rows, then at PLACED the address of the list of places or
// null. Lists of row numbers follow at words that each move names.
constexpr int PLACED = 2;

// A move of rows between a table and consecutive rows of a batch. Bytes are multiples of 4.
struct Move {
    // The first row of the table. Rows begin every `pitch` bytes, so that it can hold rows of any length up to that.
    char* table;
    // The first row of the batch. Rows begin every `stride` bytes, so that several moves can fill one matrix side by
    // side.
    char* batch;
    // The word of the parameters where the list of row numbers begins, one for each row of the batch.
    int list;
    // The word where the list of numbers of entries begins: a row is that many consecutive rows of the table. -1: rows
    // are moved whole.
    int counts;
    int table_rows, row_bytes, pitch, stride;
    // The index in the list of places where those of this move begin, or -1 if its rows have none.
    int first_place;
    int unused;
};

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

DEVICE void note_fault(unsigned* faults, int row, unsigned fault) {
    if (blockIdx.y == 0 && TID == 0) faults[row] |= fault;
}

// Returns a row's own place, or null if it has none.
DEVICE char* own_place(const Move& move, const int* parameters, int row) {
    if (move.first_place < 0) return nullptr;
    const u64* places = *reinterpret_cast<const u64* const*>(parameters + PLACED);
    return places ? reinterpret_cast<char*>(places[move.first_place + row]) : nullptr;
}

// Copies the next parameter block from host memory to the card, where the kernels after this one read it, and gathers
// the rows of a task: for each move, row i of the batch is row list[i] of the table for i < live, and zeros up to
// `rows`. Rows beyond the table are zeros. With counts, row i is counts[i] consecutive rows of the table from list[i]
// on, and zeros up to row_bytes; it is zeros if some of them are beyond the table or the row. Row numbers may repeat.
// blocks, count, stride, words, taken, block: as for fetch_parameters; head: words of a block before the parameters;
// moves: gridDim.z of them, or with `count_of_moves` of 0 none.
KERNEL(gather_rows, 256, const unsigned* blocks, unsigned count, unsigned stride, unsigned words, const u64* taken,
       unsigned* block, int head, int rows, const Move* moves, int count_of_moves) {
    const unsigned* next = next_block(blocks, count, stride, taken);
    if (blockIdx.y == 0 && blockIdx.z == 0) {
        EACH {
            for (unsigned at = blockIdx.x * THREADS + TID; at < words; at += gridDim.x * THREADS) block[at] = next[at];
        }
    }
    const int* parameters = reinterpret_cast<const int*>(next + head);
    int live = live_rows(parameters, rows);
    for (int number = blockIdx.z; number < count_of_moves; number += gridDim.z) {
        Move move = moves[number];
        bool table_chunks = in_chunks(move.table, move.batch, move.row_bytes, move.pitch, move.stride);
        for (int row = blockIdx.x; row < rows; row += gridDim.x) {
            const char* from = nullptr;
            int filled = move.row_bytes;
            bool chunks = table_chunks;
            const char* own = row < live ? own_place(move, parameters, row) : nullptr;
            if (own) {
                from = own;
                chunks = in_chunks(own, move.batch, move.row_bytes, 0, move.stride);
            } else if (row < live) {
                i64 first = parameters[move.list + row];
                i64 entries = move.counts < 0 ? 1 : parameters[move.counts + row];
                bool known = first >= 0 && entries >= 0 && first + entries <= move.table_rows;
                if (move.counts >= 0) {
                    known = known && entries * move.pitch <= move.row_bytes;
                    filled = int(entries * move.pitch);
                }
                if (known) from = move.table + first * move.pitch;
            }
            EACH { copy_row(from, from ? filled : 0, move.batch + i64(row) * move.stride, move.row_bytes, chunks); }
        }
    }
}

// Scatters the rows of a task: for each move, row list[i] of the table becomes row i of the batch for i < live. Rows
// beyond the table are not written. No row may be named twice. Rows of the batch may be longer than the pitch: each
// then also overwrites what follows its row of the table, which no other row may write. parameters: on the card; moves:
// gridDim.z of them.
KERNEL(scatter_rows, 256, const int* parameters, int rows, const Move* moves) {
    int live = live_rows(parameters, rows);
    Move move = moves[blockIdx.z];
    bool table_chunks = in_chunks(move.table, move.batch, move.row_bytes, move.pitch, move.stride);
    for (int row = blockIdx.x; row < live; row += gridDim.x) {
        char* own = own_place(move, parameters, row);
        int number = parameters[move.list + row];
        bool known = own || (number >= 0 && number < move.table_rows);
        char* to = own ? own : move.table + i64(number) * move.pitch;
        bool chunks = own ? in_chunks(own, move.batch, move.row_bytes, 0, move.stride) : table_chunks;
        EACH {
            if (known) copy_row(move.batch + i64(row) * move.stride, move.row_bytes, to, move.row_bytes, chunks);
        }
    }
}

template <class Index>
DEVICE void embed(int live, int rows, int row_bytes, const Index* ids, const char* table, int table_rows, char* out,
                  int stride, unsigned* faults) {
    bool chunks = in_chunks(table, out, row_bytes, row_bytes, stride);
    for (int row = blockIdx.x; row < rows; row += gridDim.x) {
        const char* from = nullptr;
        bool known = true;
        if (row < live) {
            i64 id = ids[row];
            if (id < 0) id += table_rows;
            known = id >= 0 && id < table_rows;
            if (known) from = table + id * row_bytes;
        }
        EACH {
            copy_row(from, from ? row_bytes : 0, out + i64(row) * stride, row_bytes, chunks);
            if (!known) note_fault(faults, row, FAULT_ID);
        }
    }
}

// out[i] = table[ids[i]] for i < live, zeros up to `rows`. As in ONNX's Gather, a negative id counts from the table's
// end; beyond either end it is a fault, recorded in `faults`, one word for each row, and read as zeros.
// table: [table_rows, row_bytes]; out: rows of row_bytes that begin every `stride` bytes; both are multiples of 4.
KERNEL(embedding_i32, 256, const int* live, int rows, int row_bytes, const int* ids, const char* table, int table_rows,
       char* out, int stride, unsigned* faults) {
    embed(live_rows(live, rows), rows, row_bytes, ids, table, table_rows, out, stride, faults);
}

// Same as embedding_i32 for ids of 64 bits.
KERNEL(embedding_i64, 256, const int* live, int rows, int row_bytes, const i64* ids, const char* table, int table_rows,
       char* out, int stride, unsigned* faults) {
    embed(live_rows(live, rows), rows, row_bytes, ids, table, table_rows, out, stride, faults);
}
