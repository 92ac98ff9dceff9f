// Shared by device and host: the element type, its conversions, vectors of 16 bytes, and the rule for padding rows.
// device.cuh and host.h end with it.
#pragma once

typedef float f32;
typedef long long i64;
typedef unsigned long long u64;

#ifndef ELEMENT
#error "the element type is missing: -DELEMENT=f32, f16 or bf16"
#endif
typedef ELEMENT element;

constexpr float LOWEST = -3.402823466e38f;

DEVICE float to_float(float value) { return value; }
DEVICE void from_float(float wide, float& value) { value = wide; }
DEVICE float to_float(bf16 value) { return bits_float(unsigned(value.bits) << 16); }

#ifndef HAS_BF16_CONVERSION
// Rounds to nearest, ties to even.
DEVICE void from_float(float wide, bf16& value) {
    unsigned bits = float_bits(wide);
    bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
    value.bits = nan ? 0x7fff : (bits + 0x7fffu + (bits >> 16 & 1)) >> 16;
}
#endif

// The number of elements in a vector of 16 bytes, which one instruction loads.
constexpr int PACK = 16 / sizeof(element);

template <class T, int N> struct alignas(N * sizeof(T)) Pack {
    T at[N];
};

template <int N, class T> DEVICE void load(const T* from, float (&to)[N]) {
    Pack<T, N> pack = *reinterpret_cast<const Pack<T, N>*>(from);
#pragma unroll
    for (int i = 0; i < N; ++i) to[i] = to_float(pack.at[i]);
}

template <int N, class T> DEVICE void add_to(float (&to)[N], const T* from) {
    float more[N];
    load(from, more);
#pragma unroll
    for (int i = 0; i < N; ++i) to[i] += more[i];
}

template <int N, class T> DEVICE void store(const float (&from)[N], T* to) {
    Pack<T, N> pack;
#pragma unroll
    for (int i = 0; i < N; ++i) from_float(from[i], pack.at[i]);
    *reinterpret_cast<Pack<T, N>*>(to) = pack;
}

// Returns whether packs may be read from and written to all of these arrays; true for null.
template <class... T> DEVICE bool aligned(const T*... arrays) {
    return ((reinterpret_cast<u64>(arrays) % (PACK * sizeof(T)) == 0) && ...);
}

template <int N> struct Floats {
    float at[N];
};

// Keeps a vector in registers.
template <int N> DEVICE void keep(const float (&value)[N], Floats<PACK>& kept) {
#pragma unroll
    for (int i = 0; i < N; ++i) kept.at[i] = value[i];
}

template <int N> DEVICE void recall(const Floats<PACK>& kept, float (&value)[N]) {
#pragma unroll
    for (int i = 0; i < N; ++i) value[i] = kept.at[i];
}

template <int N> struct Width {
    static constexpr int count = N;
};

// Runs `work(column, Width)` over this block's share of a row's columns: a pack at a time if rows consist of whole
// packs and every array of the kernel is aligned, otherwise one column at a time. blockIdx.y runs over pieces of a row.
// Used within EACH.
template <class Work> DEVICE void for_columns(int columns, bool arrays_aligned, Work work) {
    int first = blockIdx.y * THREADS + TID, step = gridDim.y * THREADS;
    if (arrays_aligned && columns % PACK == 0) {
        for (int pack = first; pack < columns / PACK; pack += step) work(pack * PACK, Width<PACK>());
    } else {
        for (int column = first; column < columns; column += step) work(column, Width<1>());
    }
}

// Returns whether this is the first vector of a row that for_columns gives a thread, in a block that has whole rows.
template <int N> DEVICE bool first_vector(int column) { return column < THREADS * N; }

// Returns the parameter block of the running operation in host memory: blocks are used in turn.
DEVICE const unsigned* next_block(const unsigned* blocks, unsigned count, unsigned stride, const u64* taken) {
    return blocks + *taken % count * stride;
}

// Returns the number of rows that hold data. The rest of a launch's rows are padding. A count beyond the launch's rows
// is limited, so that nothing out of bounds is accessed whatever the parameter block says.
DEVICE int live_rows(const int* live, int rows) {
    int count = *live;
    return count < 0 ? 0 : count < rows ? count : rows;
}

DEVICE float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }
