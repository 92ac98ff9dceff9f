// The part of the kernels' host prelude that the stand-in relies on, for the kernels of these tests: the words KERNEL,
// EACH, TID and THREADS, and a library's entries `kernels` and `launch`.
#pragma once
#include <stddef.h>
#include <string.h>

#include <utility>

#define EXPORTED extern "C" __attribute__((visibility("default"), weak))
#define EACH for (tid = 0; tid < threads; ++tid)
#define TID (int(tid))
#define THREADS (int(threads))

static thread_local unsigned tid, threads;
static thread_local struct {
    unsigned x, y, z;
} blockIdx;

struct Kernel {
    const char* name;
    unsigned most_threads;
    unsigned arguments;
    const unsigned* sizes;
    void (*call)(void (*kernel)(), void** arguments);
    void (*kernel)();
    const Kernel* next;
};

static const Kernel* first_kernel = nullptr;

template <class... A, size_t... I> void call_with(void (*kernel)(), void** arguments, std::index_sequence<I...>) {
    reinterpret_cast<void (*)(A...)>(kernel)(*static_cast<A*>(arguments[I])...);
}

template <class... A> void call_kernel(void (*kernel)(), void** arguments) {
    call_with<A...>(kernel, arguments, std::index_sequence_for<A...>());
}

struct Entry : Kernel {
    template <class... A> Entry(const char* name, unsigned most_threads, void (*kernel)(A...)) {
        static const unsigned sizes_of[] = {sizeof(A)..., 0};
        static_cast<Kernel&>(*this) = {
            name, most_threads, sizeof...(A), sizes_of, call_kernel<A...>, reinterpret_cast<void (*)()>(kernel), first_kernel,
        };
        first_kernel = this;
    }
};

#define KERNEL(name, most_threads, ...)                             \
    static void name(__VA_ARGS__);                                  \
    static const Entry kernel_##name(#name, most_threads, name);    \
    static void name(__VA_ARGS__)

EXPORTED const Kernel* kernels() { return first_kernel; }

EXPORTED const char* launch(const char* name, const unsigned grid[3], const unsigned block[3], void** arguments) {
    const Kernel* kernel = first_kernel;
    while (kernel && strcmp(kernel->name, name) != 0) kernel = kernel->next;
    if (!kernel) return "there is no such kernel";
    if (block[0] % 32 != 0) return "a block has a multiple of 32 threads";
    for (unsigned x = 0; x < grid[0]; ++x) {
        blockIdx = {x, 0, 0};
        threads = block[0];
        kernel->call(kernel->kernel, arguments);
    }
    return nullptr;
}
