// The kernels' vocabulary on the device, which NVRTC reads before each kernel file (--pre-include). It includes no CUDA
// header. host.h gives every word here the same meaning on the host; README.md explains them.
#pragma once

#define DEVICE static __device__ __forceinline__
#define KERNEL(name, threads, ...) extern "C" __global__ void __launch_bounds__(threads, 1) name(__VA_ARGS__)

#define TID (int(threadIdx.x))
#define THREADS (int(blockDim.x))
#define EACH
#define SYNC __syncthreads()
#define SHARED(type, name, count) __shared__ type name[count]

template <class T> struct Reg {
    T value;
    __device__ __forceinline__ T& operator()() { return value; }
};

DEVICE unsigned float_bits(float value) { return __float_as_uint(value); }
DEVICE float bits_float(unsigned bits) { return __uint_as_float(bits); }

struct f16 {
    unsigned short bits;
};
struct bf16 {
    unsigned short bits;
};

DEVICE float to_float(f16 value) {
    float wide;
    asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(value.bits));
    return wide;
}

DEVICE void from_float(float wide, f16& value) { asm("cvt.rn.f16.f32 %0, %1;" : "=h"(value.bits) : "f"(wide)); }

#if __CUDA_ARCH__ >= 800
#define HAS_BF16_CONVERSION 1
DEVICE void from_float(float wide, bf16& value) { asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(value.bits) : "f"(wide)); }
#endif

// The operators of block reductions, on two values.
struct Add {
    static __device__ __forceinline__ float of(float a, float b) { return a + b; }
};
struct Larger {
    static __device__ __forceinline__ float of(float a, float b) { return fmaxf(a, b); }
};
struct Smaller {
    static __device__ __forceinline__ int of(int a, int b) { return min(a, b); }
};

// Reduces over the lanes of each warp as a butterfly, then over the warps in their order. Every thread gets the result.
template <class Op, class T> __device__ T block_reduce(T value) {
    __shared__ T of_warp[32];
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) {
        value = Op::of(value, __shfl_xor_sync(0xffffffffu, value, distance));
    }
    if (THREADS == 32) return value;
    __syncthreads();  // The previous reduction may still read of_warp.
    if (TID % 32 == 0) of_warp[TID / 32] = value;
    __syncthreads();
    T result = of_warp[0];
    for (int warp = 1; warp < THREADS / 32; ++warp) result = Op::of(result, of_warp[warp]);
    return result;
}

#define BLOCK_SUM(reg) block_reduce<Add>((reg)())
#define BLOCK_MAX(reg) block_reduce<Larger>((reg)())
#define BLOCK_MIN(reg) block_reduce<Smaller>((reg)())

// Stores a number that the host polls, after all writes that this thread has observed.
DEVICE void store_for_host(unsigned long long* word, unsigned long long value) {
    asm volatile("fence.acq_rel.sys; st.release.sys.global.u64 [%0], %1;" ::"l"(word), "l"(value) : "memory");
}

#include "portable.h"
