// The kernels' vocabulary on the host. A block's threads run one after another, between barriers, and sums are computed
// in the device's order. A kernel file that is compiled as C++ with `-include host.h` becomes part of a library whose
// entries are `kernels` and `launch`. `launch` reports broken rules: shared memory that is read before it is written or
// without a barrier, an index beyond it, a register outside of EACH.
#pragma once

// The functions of C alone: libstdc++'s <cmath> would take a tenth of a second of every compilation.
#define _GLIBCXX_INCLUDE_NEXT_C_HEADERS
#include <math.h>
#include <stdio.h>
#include <string.h>

#include <utility>

#define DEVICE static inline
#define EXPORTED extern "C" __attribute__((visibility("default"), weak))
// State of a launch: one for each launching thread, and separate in each library.
#define OF_LAUNCH inline thread_local __attribute__((visibility("hidden")))

namespace host {

constexpr int MOST_THREADS = 1024;

struct Dim3 {
    unsigned x, y, z;
};

}  // namespace host

OF_LAUNCH host::Dim3 threadIdx, blockIdx, blockDim, gridDim;

#define TID (int(threadIdx.x))
#define THREADS (int(blockDim.x))
// After the loop, TID belongs to no thread.
#define EACH for (threadIdx.x = 0; threadIdx.x < blockDim.x; ++threadIdx.x)
#define SYNC (++host::interval)
#define SHARED(type, name, count) host::Shared<type, count> name

namespace host {

// Barriers divide the run of a block into intervals, counted from 1.
OF_LAUNCH unsigned interval;
// The first rule that the running launch broke.
OF_LAUNCH const char* broken;

inline void breaks(const char* rule) {
    if (!broken) broken = rule;
}

inline bool in_each() { return threadIdx.x < blockDim.x; }

// Shared memory that records which thread accessed each of its elements, and in which interval.
template <class T, int COUNT> class Shared {
    static constexpr int SEVERAL = -2;

    struct Cell {
        T value;
        unsigned written, read;
        int writer, reader;
    };
    Cell cells[COUNT];

    class Ref {
        Cell& cell;

    public:
        explicit Ref(Cell& cell) : cell(cell) {}

        operator T() const {
            int me = in_each() ? TID : SEVERAL;
            if (!cell.written) breaks("shared memory is read before it is written");
            if (cell.written == interval && cell.writer != me) breaks("SYNC is missing between a write and a read");
            cell.reader = cell.read == interval && cell.reader != me ? SEVERAL : me;
            cell.read = interval;
            return cell.value;
        }

        void operator=(T value) {
            int me = in_each() ? TID : SEVERAL;
            if (me == SEVERAL) breaks("shared memory is written outside of EACH");
            if (cell.read == interval && cell.reader != me) breaks("SYNC is missing between a read and a write");
            if (cell.written == interval && cell.writer != me) breaks("SYNC is missing between two writes");
            cell.writer = me;
            cell.written = interval;
            cell.value = value;
        }
    };

public:
    Shared() { memset(static_cast<void*>(cells), 0, sizeof cells); }

    Ref operator[](int index) {
        if (index < 0 || index >= COUNT) {
            breaks("an index is beyond shared memory");
            index = 0;
        }
        return Ref(cells[index]);
    }
};

}  // namespace host

// A value of each thread. Its bits are initially ones, so that floats are NaN.
template <class T> struct Reg {
    T values[host::MOST_THREADS];

    Reg() { memset(static_cast<void*>(values), 0xff, sizeof values); }

    T& operator()() {
        if (host::in_each()) return values[TID];
        host::breaks("a Reg is used outside of EACH");
        return values[0];
    }
};

namespace host {

struct Add {
    static float of(float a, float b) { return a + b; }
};
struct Larger {
    static float of(float a, float b) { return fmaxf(a, b); }
};
struct Smaller {
    static int of(int a, int b) { return a < b ? a : b; }
};

// Same as block_reduce of device.cuh: a butterfly within each warp, then the warps in their order.
template <class Op, class T> T reduce(const Reg<T>& reg) {
    if (in_each()) breaks("a block reduces within EACH");
    T result = {};
    for (int warp = 0; warp < THREADS; warp += 32) {
        T lanes[32], before[32];
        memcpy(lanes, reg.values + warp, sizeof lanes);
        for (int distance = 16; distance > 0; distance /= 2) {
            memcpy(before, lanes, sizeof lanes);
            for (int lane = 0; lane < 32; ++lane) lanes[lane] = Op::of(before[lane], before[lane ^ distance]);
        }
        result = warp == 0 ? lanes[0] : Op::of(result, lanes[0]);
    }
    return result;
}

}  // namespace host

DEVICE int min(int a, int b) { return a < b ? a : b; }
DEVICE int max(int a, int b) { return a > b ? a : b; }

#define BLOCK_SUM(reg) host::reduce<host::Add>(reg)
#define BLOCK_MAX(reg) host::reduce<host::Larger>(reg)
#define BLOCK_MIN(reg) host::reduce<host::Smaller>(reg)

DEVICE unsigned float_bits(float value) {
    unsigned bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

DEVICE float bits_float(unsigned bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

struct f16 {
    unsigned short bits;
};
struct bf16 {
    unsigned short bits;
};

DEVICE float to_float(f16 value) {
    unsigned sign = (value.bits & 0x8000u) << 16, exponent = value.bits >> 10 & 0x1f, fraction = value.bits & 0x3ff;
    if (exponent == 0x1f) return bits_float(sign | 0x7f800000u | fraction << 13);
    float magnitude = exponent ? bits_float((exponent + 112) << 23 | fraction << 13) : fraction * 0x1p-24f;
    return sign ? -magnitude : magnitude;
}

// Rounds to nearest, ties to even.
DEVICE void from_float(float wide, f16& value) {
    unsigned sign = float_bits(wide) >> 16 & 0x8000u, bits = float_bits(wide) & 0x7fffffffu;
    unsigned half;
    if (bits > 0x7f800000u) {
        half = 0x7fff;
    } else if (bits >= float_bits(65536.0f)) {
        half = 0x7c00;
    } else if (bits < float_bits(0x1p-14f)) {
        // The last bit of 0.5 is the smallest number above zero of the narrow type, so the addition rounds.
        half = float_bits(bits_float(bits) + 0.5f) - float_bits(0.5f);
    } else {
        half = (bits + 0xfffu + (bits >> 13 & 1) - (112u << 23)) >> 13;
    }
    value.bits = sign | half;
}

DEVICE void store_for_host(unsigned long long* word, unsigned long long value) {
    __atomic_store_n(word, value, __ATOMIC_RELEASE);
}

namespace host {

// The library's description of a kernel. `sizes` are those of its arguments, in bytes: a driver's launch gets their
// addresses without sizes.
struct Kernel {
    const char* name;
    unsigned most_threads;
    unsigned arguments;
    const unsigned* sizes;
    void (*call)(void (*kernel)(), void** arguments);
    void (*kernel)();
    const Kernel* next;
};

__attribute__((visibility("hidden"))) inline const Kernel* first_kernel = nullptr;

template <class... A, size_t... I>
void call_with(void (*kernel)(), void** arguments, std::index_sequence<I...>) {
    reinterpret_cast<void (*)(A...)>(kernel)(*static_cast<A*>(arguments[I])...);
}

template <class... A> void call_kernel(void (*kernel)(), void** arguments) {
    call_with<A...>(kernel, arguments, std::index_sequence_for<A...>());
}

struct Entry : Kernel {
    template <class... A> Entry(const char* name, unsigned most_threads, void (*kernel)(A...)) {
        static const unsigned sizes_of[] = {sizeof(A)...};
        this->name = name;
        this->most_threads = most_threads;
        this->arguments = sizeof...(A);
        this->sizes = sizes_of;
        this->call = call_kernel<A...>;
        this->kernel = reinterpret_cast<void (*)()>(kernel);
        this->next = first_kernel;
        first_kernel = this;
    }
};

}  // namespace host

#define KERNEL(name, threads, ...)                                 \
    static void name(__VA_ARGS__);                                 \
    static const host::Entry kernel_##name(#name, threads, name);  \
    static void name(__VA_ARGS__)

// Returns the library's kernels, as a list.
EXPORTED const host::Kernel* kernels() { return host::first_kernel; }

// Runs a kernel over a grid, block after block. Returns null, or the error, which is valid until the next launch of
// this thread.
EXPORTED const char* launch(const char* name, const unsigned grid[3], const unsigned block[3], void** arguments) {
    static thread_local char wrong[200];
    const host::Kernel* kernel = host::first_kernel;
    while (kernel && strcmp(kernel->name, name) != 0) kernel = kernel->next;
    if (!kernel) {
        snprintf(wrong, sizeof wrong, "there is no kernel '%.100s'", name);
        return wrong;
    }
    if (block[0] == 0 || block[0] % 32 != 0 || block[0] > kernel->most_threads || block[1] != 1 || block[2] != 1) {
        snprintf(wrong, sizeof wrong,
                 "%s: a block has a multiple of 32 threads, %u at most, along x alone; got %u x %u x %u", name,
                 kernel->most_threads, block[0], block[1], block[2]);
        return wrong;
    }
    host::broken = nullptr;
    gridDim = {grid[0], grid[1], grid[2]};
    blockDim = {block[0], 1, 1};
    for (unsigned z = 0; z < grid[2]; ++z) {
        for (unsigned y = 0; y < grid[1]; ++y) {
            for (unsigned x = 0; x < grid[0]; ++x) {
                blockIdx = {x, y, z};
                threadIdx = {block[0], 0, 0};
                host::interval = 1;
                kernel->call(kernel->kernel, arguments);
            }
        }
    }
    if (!host::broken) return nullptr;
    snprintf(wrong, sizeof wrong, "%s: %s", name, host::broken);
    return wrong;
}

#include "portable.h"
