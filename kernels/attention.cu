// Attention over packed sequences: out = softmax(scale · q · kᵀ) · v within each sequence and head.
//
// Sequences are packed: sequence s has the tokens offsets[s] to offsets[s + 1], without padding, so the cost of a batch
// of different lengths is that of its tokens. A block takes a tile of QUERIES consecutive tokens for one head. These
// may belong to several sequences. The block walks the keys from the start of the first of these sequences to the end
// of the last, KEYS at a time; each query uses only the keys of its own sequence. The softmax is online: it keeps a
// running maximum and sum, and scales down what was accumulated when the maximum grows, so that any length fits in
// shared memory.
//
// q, k, v: row `token` begins at token · row_stride, its head h at h · head_size after that. The three parts of one
// product are therefore q, q + heads · head_size, and so on, with their common row_stride; out: [tokens, heads,
// head_size]. offsets: [sequences + 1], cumulative lengths, in the parameter block, like `live`, the number of
// sequences. `tokens` is the maximum that the arrays hold. Tokens from offsets[live] on are neither read nor written.
//
// Launch: gridDim.x = tokens / QUERIES, rounded up; gridDim.y = heads; blocks of 128 threads. The number in the
// kernel's name is its maximum head_size.

constexpr int QUERIES = 32;
constexpr int KEYS = 32;
// The threads that share a query. Each takes every WIDTHth key and every WIDTHth element of the output.
constexpr int WIDTH = 4;

struct Span {
    int begin, end;
};

// Returns the sequence of a token: the last that begins at or before it.
DEVICE int sequence_of(const int* offsets, int live, int token) {
    int low = 0, high = live;
    while (high - low > 1) {
        int middle = (low + high) / 2;
        if (offsets[middle] <= token) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return low;
}

// Copies a tile of rows into shared memory, in rows of SIZE + 1, which spreads a column over the banks. Elements beyond
// `tokens` or `head_size` are set to zero.
template <int SIZE, class Tile>
DEVICE void load_tile(Tile& tile, int tile_rows, const element* from, int row_stride, int head_size, int first,
                      int tokens, float factor) {
    for (int i = TID; i < tile_rows * SIZE; i += QUERIES * WIDTH) {
        int row = i / SIZE, column = i % SIZE, token = first + row;
        bool there = token < tokens && column < head_size;
        tile[row * (SIZE + 1) + column] = there ? to_float(from[i64(token) * row_stride + column]) * factor : 0.0f;
    }
}

template <int SIZE>
DEVICE void attend(int live, const int* offsets, int most_tokens, int heads, int head_size, int row_stride, float scale,
                   const element* q, const element* k, const element* v, element* out) {
    SHARED(float, query, QUERIES * (SIZE + 1));
    SHARED(float, piece, KEYS * (SIZE + 1));  // of the keys, then of the values
    SHARED(float, weight, QUERIES * (KEYS + 1));
    Reg<Span> own;
    Reg<Floats<KEYS / WIDTH>> score;
    Reg<Floats<SIZE / WIDTH>> sum;
    Reg<float> most, next_most, total;

    int head = blockIdx.y, first = blockIdx.x * QUERIES;
    int tokens = live > 0 ? offset_of(offsets, live, most_tokens) : 0;
    if (first >= tokens) return;
    int last = min(first + QUERIES, tokens) - 1;
    int begin = offset_of(offsets, sequence_of(offsets, live, first), tokens);
    int end = offset_of(offsets, sequence_of(offsets, live, last) + 1, tokens);
    q += i64(head) * head_size;
    k += i64(head) * head_size;
    v += i64(head) * head_size;

    EACH {
        load_tile<SIZE>(query, QUERIES, q, row_stride, head_size, first, tokens, scale);
        int token = first + TID / WIDTH;
        own() = {0, 0};
        if (token < tokens) {
            int sequence = sequence_of(offsets, live, token);
            own() = {offset_of(offsets, sequence, tokens), offset_of(offsets, sequence + 1, tokens)};
        }
        most() = LOWEST;
        total() = 0.0f;
#pragma unroll
        for (int i = 0; i < SIZE / WIDTH; ++i) sum().at[i] = 0.0f;
    }
    for (int key = begin; key < end; key += KEYS) {
        SYNC;
        EACH { load_tile<SIZE>(piece, KEYS, k, row_stride, head_size, key, tokens, 1.0f); }
        SYNC;
        EACH {
            int row = TID / WIDTH, lane = TID % WIDTH;
            Floats<KEYS / WIDTH> dot = {};
            for (int column = 0; column < SIZE; ++column) {
                float factor = query[row * (SIZE + 1) + column];
#pragma unroll
                for (int i = 0; i < KEYS / WIDTH; ++i) {
                    dot.at[i] += factor * piece[(lane + i * WIDTH) * (SIZE + 1) + column];
                }
            }
#pragma unroll
            for (int i = 0; i < KEYS / WIDTH; ++i) {
                int place = lane + i * WIDTH;
                bool counts = own().begin <= key + place && key + place < own().end;
                score().at[i] = counts ? dot.at[i] : LOWEST;
                weight[row * (KEYS + 1) + place] = score().at[i];
            }
        }
        SYNC;
        EACH {
            load_tile<SIZE>(piece, KEYS, v, row_stride, head_size, key, tokens, 1.0f);
            next_most() = most();
            for (int i = 0; i < KEYS; ++i) next_most() = fmaxf(next_most(), weight[TID / WIDTH * (KEYS + 1) + i]);
        }
        SYNC;
        EACH {
            float shrunk = expf(most() - next_most());
            most() = next_most();
            total() *= shrunk;
#pragma unroll
            for (int i = 0; i < SIZE / WIDTH; ++i) sum().at[i] *= shrunk;
#pragma unroll
            for (int i = 0; i < KEYS / WIDTH; ++i) {
                int place = TID % WIDTH + i * WIDTH;
                weight[TID / WIDTH * (KEYS + 1) + place] = expf(score().at[i] - most());
            }
        }
        SYNC;
        EACH {
            // Keys of other sequences are skipped, not weighted by zero: their values may be NaN.
            int from = max(own().begin - key, 0), to = min(own().end - key, KEYS);
            for (int i = from; i < to; ++i) {
                float share = weight[TID / WIDTH * (KEYS + 1) + i];
                total() += share;
#pragma unroll
                for (int j = 0; j < SIZE / WIDTH; ++j) {
                    sum().at[j] += share * piece[i * (SIZE + 1) + TID % WIDTH + j * WIDTH];
                }
            }
        }
    }
    EACH {
        int token = first + TID / WIDTH;
#pragma unroll
        for (int i = 0; i < SIZE / WIDTH; ++i) {
            int column = TID % WIDTH + i * WIDTH;
            if (token < tokens && column < head_size) {
                from_float(sum().at[i] / total(), out[(i64(token) * heads + head) * head_size + column]);
            }
        }
    }
}

#define PARAMETERS                                                                                                 \
    const int *live, int sequences, const int *offsets, int tokens, int heads, int head_size, int row_stride,      \
        float scale, const element *q, const element *k, const element *v, element *out
#define ARGUMENTS live_rows(live, sequences), offsets, tokens, heads, head_size, row_stride, scale, q, k, v, out

KERNEL(attention_32, 128, PARAMETERS) { attend<32>(ARGUMENTS); }
KERNEL(attention_64, 128, PARAMETERS) { attend<64>(ARGUMENTS); }
KERNEL(attention_128, 128, PARAMETERS) { attend<128>(ARGUMENTS); }
