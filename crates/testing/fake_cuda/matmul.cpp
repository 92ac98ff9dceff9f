// Products of matrices, as cuBLASLt defines them: D = epilogue(alpha * A * B + beta * C), summed in float.
#include <math.h>
#include <string.h>

#include <vector>

// Same as in matmul.rs: element (i, j) of a batch is at i * row_stride + j * column_stride + batch * batch_stride.
struct Matrix {
    void* data;
    long long type, row_stride, column_stride, batch_stride;
};

struct Problem {
    Matrix a, b, c, d;
    // One value for each row.
    Matrix bias;
    long long m, n, k, batches, rounding, activation;
    float alpha, beta;
};

enum Type { F32 = 0, F16 = 2, BF16 = 14 };
enum Rounding { NONE, TF32, TO_F16, TO_BF16 };
enum Activation { IDENTITY, RELU, GELU };

static unsigned bits_of(float value) {
    unsigned bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static float float_of(unsigned bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

// Drops the last `bits` bits of the fraction, rounding to nearest, ties to even.
static float shorten(float value, int bits) {
    if (value != value) return value;
    unsigned whole = bits_of(value), half = (1u << (bits - 1)) - 1;
    return float_of((whole + half + (whole >> bits & 1)) >> bits << bits);
}

static float rounded(float value, long long rounding) {
    switch (rounding) {
        case TF32: return shorten(value, 13);
        case TO_F16: return float(_Float16(value));
        case TO_BF16: return shorten(value, 16);
        default: return value;
    }
}

static long long place(const Matrix& matrix, long long i, long long j, long long batch) {
    return i * matrix.row_stride + j * matrix.column_stride + batch * matrix.batch_stride;
}

static float load(const Matrix& matrix, long long i, long long j, long long batch) {
    long long at = place(matrix, i, j, batch);
    switch (matrix.type) {
        case F16: return float(static_cast<const _Float16*>(matrix.data)[at]);
        case BF16: return float_of(unsigned(static_cast<const unsigned short*>(matrix.data)[at]) << 16);
        default: return static_cast<const float*>(matrix.data)[at];
    }
}

static void store(const Matrix& matrix, long long i, long long j, long long batch, float value) {
    long long at = place(matrix, i, j, batch);
    switch (matrix.type) {
        case F16: static_cast<_Float16*>(matrix.data)[at] = _Float16(value); break;
        case BF16: static_cast<unsigned short*>(matrix.data)[at] = bits_of(shorten(value, 16)) >> 16; break;
        default: static_cast<float*>(matrix.data)[at] = value;
    }
}

static float activated(float value, long long activation) {
    switch (activation) {
        case RELU: return value > 0 ? value : 0;
        // cuBLASLt's GELU is the approximation by tanh.
        case GELU: return 0.5f * value * (1 + tanhf(0.7978845608f * (value + 0.044715f * value * value * value)));
        default: return value;
    }
}

extern "C" __attribute__((visibility("default"))) void matmul(const Problem* problem) {
    const Problem& p = *problem;
    std::vector<float> b(p.k * p.n), sums(p.n);
    for (long long batch = 0; batch < p.batches; ++batch) {
        for (long long l = 0; l < p.k; ++l) {
            for (long long j = 0; j < p.n; ++j) b[l * p.n + j] = rounded(load(p.b, l, j, batch), p.rounding);
        }
        for (long long i = 0; i < p.m; ++i) {
            sums.assign(p.n, 0);
            for (long long l = 0; l < p.k; ++l) {
                float a = rounded(load(p.a, i, l, batch), p.rounding);
                for (long long j = 0; j < p.n; ++j) sums[j] += a * b[l * p.n + j];
            }
            for (long long j = 0; j < p.n; ++j) {
                float value = p.alpha * sums[j];
                if (p.beta != 0) value += p.beta * load(p.c, i, j, batch);
                if (p.bias.data) value += load(p.bias, i, 0, batch);
                store(p.d, i, j, batch, activated(value, p.activation));
            }
        }
    }
}
