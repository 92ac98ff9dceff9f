// Kernels for the tests of the stand-in.

// y[i] = x[i] * factor; the factor is read when the kernel runs.
KERNEL(scale, 256, const float* x, float* y, const float* factor, int n) {
    EACH {
        int i = blockIdx.x * THREADS + TID;
        if (i < n) y[i] = x[i] * *factor;
    }
}

// Waits until the host writes to the word.
KERNEL(wait_for_host, 32, const volatile unsigned* word) {
    EACH {
        if (TID == 0) {
            while (*word == 0) {
            }
        }
    }
}

// Appends a value to a list, whose first word is its length.
KERNEL(append, 32, unsigned* list, unsigned value) {
    EACH {
        if (TID == 0) list[++list[0]] = value;
    }
}

// Writes a byte at any address.
KERNEL(poke, 32, char* place, long long offset) {
    EACH {
        if (TID == 0) place[offset] = 1;
    }
}

// A kernel with arguments of each size.
KERNEL(sizes, 32, double* out, char a, short b, int c, long long d, float e, double f) {
    EACH {
        if (TID == 0) *out = a + b + c + d + e + f;
    }
}

KERNEL(nothing, 32) {
    EACH {}
}
