// Attention over padded sequences: out = softmax(scale · q · kᵀ + mask) · v within each row of the batch and head.
//
// The softmax is online (Dao et al.: FlashAttention, 2022): a block keeps a running maximum and sum for each of its
// queries, and scales down what was accumulated when the maximum grows. So scores are never stored, and any number of
// keys fits.
//
// Shapes, of elements: q and out [rows, heads, queries, head_size], k and v [rows, heads, keys, head_size], each with
// strides of its own for row, head and token (query or key); the elements of a vector are adjacent. q, k and v may
// therefore be parts of one matrix of projections, and out may have the order of the next projection.
//
// mask: fp32 [rows, keys], or null for zeros. If `replaces` is 0, it is added to the scores. Otherwise scores with a
// mask other than 0 become that mask. A key is masked if its mask is at most MASKED.
//
// lengths: int [rows], or null where rows have all keys. A key from a row's length on was added by padding. Keys at the
// end of a row that are both padding and masked are left out: neither they nor their values are read. All other keys
// are part of the softmax, also if they are masked, so a row gives what it would give alone at its own length. If
// `own` is not 0, queries and keys are the same tokens. The results of queries whose key is left out are then zeros,
// so that no value of an earlier batch reaches what follows. Without any key, results are zeros.
//
// Where masks replace scores, masked keys at the end of a row are also left out if they cannot matter: if each query of
// the block has a score from which theirs is so far that its exponential is 0.
//
// live: number of rows with data, as for all kernels. Other rows are neither read nor written.
//
// Launch: blockIdx.x runs over tiles of QUERIES queries, blockIdx.y over heads, blockIdx.z over rows; any grid covers
// all; blocks of 128 threads. The number in the kernel's name is its maximum head_size.

constexpr int QUERIES = 32;
constexpr int BLOCK_THREADS = 128;
// A thread computes PART queries: their scores for every LANESth key, and every LANESth element of their results.
constexpr int PART = 4;
constexpr int LANES = BLOCK_THREADS * PART / QUERIES;
constexpr float MASKED = -10000.0f;
// The exponential of a number below this is 0 in fp32.
constexpr float VANISHES = -104.0f;

// Vectors of one row and head, by token.
template <class T> struct Vectors {
    T* first;
    int stride;
};

struct Problem {
    int queries, keys, head_size;
    float scale;
    bool replaces;
};

// Copies a tile of vectors into shared memory, in rows of SIZE + 1, which spreads a column over the banks. Elements of
// tokens from `end` on, and beyond `head_size`, are zeros.
template <int SIZE, class Tile>
DEVICE void load_tile(Tile& tile, int tokens, Vectors<const element> from, int head_size, int first, int end,
                      float factor) {
    for (int i = TID; i < tokens * SIZE; i += BLOCK_THREADS) {
        int token = i / SIZE, column = i % SIZE;
        bool there = first + token < end && column < head_size;
        tile[token * (SIZE + 1) + column] =
            there ? to_float(from.first[i64(first + token) * from.stride + column]) * factor : 0.0f;
    }
}

// Returns the end of the keys that are not masked. A mask of NaN counts as none.
DEVICE int shown_keys(const float* mask, int keys) {
    if (!mask) return keys;
    Reg<float> last;
    EACH {
        last() = 0.0f;
        for (int key = TID; key < keys; key += BLOCK_THREADS) {
            if (!(mask[key] <= MASKED)) last() = float(key + 1);
        }
    }
    return int(BLOCK_MAX(last));
}

template <int SIZE>
DEVICE void attend(Problem of, const int* length, bool own, const float* mask, Vectors<const element> q,
                   Vectors<const element> k, Vectors<const element> v, Vectors<element> out) {
    constexpr int KEYS = SIZE > 64 ? 32 : 64;
    constexpr int OWN_KEYS = KEYS / LANES, OWN_COLUMNS = SIZE / LANES;
    SHARED(float, query, QUERIES * (SIZE + 1));
    SHARED(float, piece, KEYS * (SIZE + 1));  // of the keys, then of the values
    SHARED(float, weight, QUERIES * (KEYS + 1));
    SHARED(float, partial, QUERIES * (LANES + 1));  // maxima, then sums
    Reg<Floats<PART * OWN_KEYS>> score;
    Reg<Floats<PART * OWN_COLUMNS>> sum;
    Reg<Floats<PART>> most, total;
    Reg<float> nearest;

    int shown = shown_keys(mask, of.keys);
    int end = length ? max(min(max(*length, 0), of.keys), shown) : of.keys;
    int answered = own ? min(end, of.queries) : end > 0 ? of.queries : 0;
    for (int first = blockIdx.x * QUERIES; first < of.queries; first += gridDim.x * QUERIES) {
        EACH {
            for (int i = TID; i < QUERIES * SIZE; i += BLOCK_THREADS) {
                int token = first + i / SIZE, column = i % SIZE;
                if (answered <= token && token < of.queries && column < of.head_size) {
                    from_float(0.0f, out.first[i64(token) * out.stride + column]);
                }
            }
        }
        if (first >= answered) continue;
        EACH {
            load_tile<SIZE>(query, QUERIES, q, of.head_size, first, answered, of.scale);
#pragma unroll
            for (int i = 0; i < PART; ++i) {
                most().at[i] = LOWEST;
                total().at[i] = 0.0f;
            }
#pragma unroll
            for (int i = 0; i < PART * OWN_COLUMNS; ++i) sum().at[i] = 0.0f;
        }
        for (int key = 0; key < end; key += KEYS) {
            if (of.replaces && key >= shown) {
                EACH {
                    nearest() = LOWEST;
#pragma unroll
                    for (int i = 0; i < PART; ++i) nearest() = fmaxf(nearest(), MASKED - most().at[i]);
                }
                if (BLOCK_MAX(nearest) < VANISHES) break;
            }
            SYNC;
            EACH { load_tile<SIZE>(piece, KEYS, k, of.head_size, key, end, 1.0f); }
            SYNC;
            EACH {
                int lane = TID % LANES, row = TID / LANES * PART;
                float dot[PART * OWN_KEYS] = {};
                for (int column = 0; column < SIZE; ++column) {
                    float factor[OWN_KEYS];
#pragma unroll
                    for (int j = 0; j < OWN_KEYS; ++j) {
                        factor[j] = piece[(lane + j * LANES) * (SIZE + 1) + column];
                    }
#pragma unroll
                    for (int i = 0; i < PART; ++i) {
                        float own_query = query[(row + i) * (SIZE + 1) + column];
#pragma unroll
                        for (int j = 0; j < OWN_KEYS; ++j) dot[i * OWN_KEYS + j] += own_query * factor[j];
                    }
                }
                float largest[PART];
#pragma unroll
                for (int i = 0; i < PART; ++i) largest[i] = LOWEST;
#pragma unroll
                for (int j = 0; j < OWN_KEYS; ++j) {
                    int at = key + lane + j * LANES;
                    float masked = mask && at < end ? mask[at] : 0.0f;
#pragma unroll
                    for (int i = 0; i < PART; ++i) {
                        float value = dot[i * OWN_KEYS + j];
                        value = !of.replaces ? value + masked : masked == 0.0f ? value : masked;
                        // Minus infinity: its weight is 0.
                        value = at < end ? value : bits_float(0xff800000u);
                        score().at[i * OWN_KEYS + j] = value;
                        largest[i] = fmaxf(largest[i], value);
                    }
                }
#pragma unroll
                for (int i = 0; i < PART; ++i) partial[(row + i) * (LANES + 1) + lane] = largest[i];
            }
            SYNC;
            EACH {
                int lane = TID % LANES, row = TID / LANES * PART;
                load_tile<SIZE>(piece, KEYS, v, of.head_size, key, end, 1.0f);
#pragma unroll
                for (int i = 0; i < PART; ++i) {
                    float largest = most().at[i];
                    for (int j = 0; j < LANES; ++j) largest = fmaxf(largest, partial[(row + i) * (LANES + 1) + j]);
                    float shrunk = expf(most().at[i] - largest);
                    most().at[i] = largest;
                    total().at[i] *= shrunk;
#pragma unroll
                    for (int j = 0; j < OWN_COLUMNS; ++j) sum().at[i * OWN_COLUMNS + j] *= shrunk;
#pragma unroll
                    for (int j = 0; j < OWN_KEYS; ++j) {
                        float share = expf(score().at[i * OWN_KEYS + j] - largest);
                        total().at[i] += share;
                        weight[(row + i) * (KEYS + 1) + lane + j * LANES] = share;
                    }
                }
            }
            SYNC;
            EACH {
                int lane = TID % LANES, row = TID / LANES * PART;
                for (int i = 0, count = min(KEYS, end - key); i < count; ++i) {
                    float value[OWN_COLUMNS];
#pragma unroll
                    for (int j = 0; j < OWN_COLUMNS; ++j) value[j] = piece[i * (SIZE + 1) + lane + j * LANES];
#pragma unroll
                    for (int m = 0; m < PART; ++m) {
                        float share = weight[(row + m) * (KEYS + 1) + i];
#pragma unroll
                        for (int j = 0; j < OWN_COLUMNS; ++j) sum().at[m * OWN_COLUMNS + j] += share * value[j];
                    }
                }
            }
        }
        EACH {
            int lane = TID % LANES, row = TID / LANES * PART;
#pragma unroll
            for (int i = 0; i < PART; ++i) partial[(row + i) * (LANES + 1) + lane] = total().at[i];
        }
        SYNC;
        EACH {
            int lane = TID % LANES, row = TID / LANES * PART;
#pragma unroll
            for (int i = 0; i < PART; ++i) {
                int token = first + row + i;
                float whole = 0.0f;
                for (int j = 0; j < LANES; ++j) whole += partial[(row + i) * (LANES + 1) + j];
#pragma unroll
                for (int j = 0; j < OWN_COLUMNS; ++j) {
                    int column = lane + j * LANES;
                    if (token < answered && column < of.head_size) {
                        from_float(sum().at[i * OWN_COLUMNS + j] / whole,
                                   out.first[i64(token) * out.stride + column]);
                    }
                }
            }
        }
    }
}

#define STRIDED(of) int of##_row, int of##_head, int of##_token
#define PARAMETERS                                                                                                 \
    const int *live, int rows, const int *lengths, int queries, int keys, int heads, int head_size, float scale,   \
        const float *mask, int replaces, int own, const element *q, STRIDED(q), const element *k, STRIDED(k),      \
        const element *v, STRIDED(v), element *out, STRIDED(out)
#define ARGUMENTS                                                                                                  \
    live, rows, lengths, queries, keys, heads, head_size, scale, mask, replaces, own, q, q_row, q_head, q_token, k, \
        k_row, k_head, k_token, v, v_row, v_head, v_token, out, out_row, out_head, out_token
#define VECTORS(of) {of + i64(row) * of##_row + i64(head) * of##_head, of##_token}

template <int SIZE> DEVICE void attend_rows(PARAMETERS) {
    Problem problem = {queries, keys, head_size, scale, replaces != 0};
    int count = live_rows(live, rows);
    for (int row = blockIdx.z; row < count; row += gridDim.z) {
        const int* length = lengths ? lengths + row : nullptr;
        const float* own_mask = mask ? mask + i64(row) * keys : nullptr;
        for (int head = blockIdx.y; head < heads; head += gridDim.y) {
            attend<SIZE>(problem, length, own != 0, own_mask, VECTORS(q), VECTORS(k), VECTORS(v), VECTORS(out));
        }
    }
}

KERNEL(attention_32, 128, PARAMETERS) { attend_rows<32>(ARGUMENTS); }
KERNEL(attention_64, 128, PARAMETERS) { attend_rows<64>(ARGUMENTS); }
KERNEL(attention_128, 128, PARAMETERS) { attend_rows<128>(ARGUMENTS); }
