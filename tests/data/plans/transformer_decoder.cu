// What generated kernels compute of elements, by the names of ir::Function. They have a meaning for every operand:
// whole numbers wrap around, and a quotient by zero is zero, since a padding row or an unused branch may hold anything.

DEVICE float plus(float a, float b) { return a + b; }
DEVICE i64 plus(i64 a, i64 b) { return i64(u64(a) + u64(b)); }
DEVICE int plus(int a, int b) { return int(unsigned(a) + unsigned(b)); }

DEVICE float minus(float a, float b) { return a - b; }
DEVICE i64 minus(i64 a, i64 b) { return i64(u64(a) - u64(b)); }
DEVICE int minus(int a, int b) { return int(unsigned(a) - unsigned(b)); }

DEVICE float times(float a, float b) { return a * b; }
DEVICE i64 times(i64 a, i64 b) { return i64(u64(a) * u64(b)); }
DEVICE int times(int a, int b) { return int(unsigned(a) * unsigned(b)); }

DEVICE float negative(float a) { return -a; }
DEVICE i64 negative(i64 a) { return minus(i64(0), a); }
DEVICE int negative(int a) { return minus(0, a); }

DEVICE float over(float a, float b) { return a / b; }
DEVICE i64 over(i64 a, i64 b) { return b == 0 ? 0 : b == -1 ? negative(a) : a / b; }
DEVICE int over(int a, int b) { return b == 0 ? 0 : b == -1 ? negative(a) : a / b; }

// The remainder of the dividend's sign, and that of the divisor's.
DEVICE float remainder_of(float a, float b) { return fmodf(a, b); }
DEVICE i64 remainder_of(i64 a, i64 b) { return b == 0 || b == -1 ? 0 : a % b; }
DEVICE int remainder_of(int a, int b) { return b == 0 || b == -1 ? 0 : a % b; }
template <class T> DEVICE T modulo(T a, T b) {
    T rest = remainder_of(a, b);
    return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}

DEVICE float power(float a, float b) { return b == 2.0f ? a * a : powf(a, b); }
template <class T> DEVICE T power(T a, T b) {
    if (b < 0) return a == 1 ? 1 : a == -1 ? (b % 2 ? -1 : 1) : 0;
    T result = 1;
    for (; b > 0; b /= 2) {
        if (b % 2) result = times(result, a);
        a = times(a, a);
    }
    return result;
}

// NaN stays.
template <class T> DEVICE T larger(T a, T b) { return a > b || a != a ? a : b; }
template <class T> DEVICE T smaller(T a, T b) { return a < b || a != a ? a : b; }
template <class T> DEVICE T rectified(T a) { return a < 0 ? 0 : a; }

DEVICE float magnitude(float a) { return fabsf(a); }
template <class T> DEVICE T magnitude(T a) { return a < 0 ? negative(a) : a; }
template <class T> DEVICE T sign_of(T a) { return a > 0 ? 1 : a < 0 ? -1 : a; }

DEVICE float root(float a) { return sqrtf(a); }
DEVICE float exponential(float a) { return expf(a); }
DEVICE float logarithm(float a) { return logf(a); }
DEVICE float sine(float a) { return sinf(a); }
DEVICE float cosine(float a) { return cosf(a); }
DEVICE float rounded_down(float a) { return floorf(a); }
DEVICE float rounded_up(float a) { return ceilf(a); }
DEVICE float rounded(float a) { return rintf(a); }

DEVICE bool is_not(bool a) { return !a; }
DEVICE bool both(bool a, bool b) { return a && b; }
DEVICE bool either(bool a, bool b) { return a || b; }
DEVICE bool one_of(bool a, bool b) { return a != b; }
template <class T> DEVICE bool equals(T a, T b) { return a == b; }
template <class T> DEVICE bool is_less(T a, T b) { return a < b; }
template <class T> DEVICE bool is_at_most(T a, T b) { return a <= b; }
template <class T> DEVICE T select(bool condition, T a, T b) { return condition ? a : b; }

template <class T> DEVICE float to_f32(T a) { return float(a); }
template <class T> DEVICE bool to_bool(T a) { return a != 0; }
template <class T> DEVICE i64 to_i64(T a) { return i64(a); }
DEVICE i64 to_i64(float a) {
    if (a != a) return 0;
    return a >= 9.2233720e18f ? 0x7fffffffffffffffll : a <= -9.2233720e18f ? -0x7fffffffffffffffll - 1 : i64(a);
}
template <class T> DEVICE int to_i32(T a) { return int(a); }
DEVICE int to_i32(float a) { return int(to_i64(a)); }

// Rounds to 16 bits. Finite numbers stay finite, since masks are often the lowest number of fp32.
DEVICE float within(float value, float most) {
    return fabsf(value) <= -LOWEST ? fmaxf(-most, fminf(value, most)) : value;
}
DEVICE void round_to(float value, f16& to) { from_float(within(value, 65504.0f), to); }
DEVICE void round_to(float value, bf16& to) { from_float(within(value, bits_float(0x7f7f0000u)), to); }

// The entry that an index names of so many, counted from the end where it is negative; -1 if there is none.
DEVICE i64 entry_of(i64 index, i64 length) {
    if (index < 0) index += length;
    return index >= 0 && index < length ? index : -1;
}

// As kernels/rows.cu has it: an id that its table does not have. All threads that note it store the same.
constexpr unsigned FAULT_ID = 2;

KERNEL(kernel_0, 256, const int* live, int rows, const i64* b0, const float* b1, const i64* b2, const float* b3, float* b4, unsigned* faults) {
    int count = live_rows(live, rows);
    for (int row = blockIdx.x; row < count; row += gridDim.x) {
        EACH {
            for (int i = blockIdx.y * THREADS + TID; i < 128; i += gridDim.y * THREADS) {
                int x0 = i;
                i64 v0 = b0[row];
                i64 at1 = entry_of(v0, 4000);
                if (at1 < 0) faults[row] = FAULT_ID;
                float v1 = at1 < 0 ? float(0) : float(b1[at1 * 128 + x0]);
                i64 v2 = b2[row];
                i64 v3 = i64(0x1ffull);
                i64 v4 = smaller(v2, v3);
                i64 at5 = entry_of(v4, 512);
                if (at5 < 0) faults[row] = FAULT_ID;
                float v5 = at5 < 0 ? float(0) : float(b3[at5 * 128 + x0]);
                float v6 = plus(v1, v5);
                b4[i64(row) * 128 + x0] = v6;
            }
        }
    }
}

KERNEL(kernel_1, 256, const int* live, int rows, const float* b0, const float* b1, float* b2, const float* b3) {
    int count = live_rows(live, rows);
    for (int row = blockIdx.x; row < count; row += gridDim.x) {
        EACH {
            for (int i = blockIdx.y * THREADS + TID; i < 128; i += gridDim.y * THREADS) {
                int x0 = i;
                float v0 = b0[i64(row) * 128 + x0];
                float v1 = b1[x0];
                float v2 = plus(v0, v1);
                b2[i64(row) * 768 + x0] = v2;
            }
        }
        EACH {
            for (int i = blockIdx.y * THREADS + TID; i < 640; i += gridDim.y * THREADS) {
                int x0 = i;
                float v0 = b3[i64(row) * 640 + x0];
                b2[i64(row) * 768 + x0 + 128] = v0;
            }
        }
    }
}

KERNEL(kernel_2, 256, const int* live, int rows, const float* b0, const float* b1, float* b2, const float* b3, const float* b4, const float* b5, float* b6, const float* b7, float* b8) {
    int count = live_rows(live, rows);
    for (int row = blockIdx.x; row < count; row += gridDim.x) {
        EACH {
            for (int i = blockIdx.y * THREADS + TID; i < 128; i += gridDim.y * THREADS) {
                int x0 = i;
                float v0 = b0[i64(row) * 128 + x0];
                float v1 = b1[x0];
                float v2 = plus(v0, v1);
                b2[i64(row) * 768 + x0] = v2;
            }
        }
        EACH {
            for (int i = blockIdx.y * THREADS + TID; i < 640; i += gridDim.y * THREADS) {
                int x0 = i;
                float v0 = b3[i64(row) * 640 + x0];
                b2[i64(row) * 768 + x0 + 128] = v0;
            }
        }
        EACH {
            for (int i = blockIdx.y * THREADS + TID; i < 128; i += gridDim.y * THREADS) {
                int x0 = i;
                float v0 = b4[i64(row) * 128 + x0];
                float v1 = b5[x0];
                float v2 = plus(v0, v1);
                b6[i64(row) * 128 + x0] = v2;
            }
        }
        EACH {
            for (int i = blockIdx.y * THREADS + TID; i < 768; i += gridDim.y * THREADS) {
                int x2 = i % 64; int x1 = i / 64 % 6; int x0 = i / 384;
                float v0 = b7[i64(row) * 768 + x0 * 64 + x1 * 128 + x2];
                b8[i64(row) * 768 + x0 * 384 + x1 * 64 + x2] = v0;
            }
        }
    }
}

KERNEL(kernel_3, 256, const int* live, int rows, const i64* b0, const i64* b1, const float* b2, float* b3, const float* b4, float* b5) {
    int count = live_rows(live, rows);
    for (int row = blockIdx.x; row < count; row += gridDim.x) {
        EACH {
            for (int i = blockIdx.y * THREADS + TID; i < 12; i += gridDim.y * THREADS) {
                int x1 = i % 6; int x0 = i / 6;
                i64 v0 = b0[x1];
                i64 v1 = b1[row];
                bool v2 = is_less(v0, v1);
                float v3 = b2[i64(row) * 12 + x0 * 6 + x1];
                float v4 = bits_float(0x41000000u);
                float v5 = over(v3, v4);
                float v6 = bits_float(0xc61c4000u);
                float v7 = select(v2, v5, v6);
                b3[i64(row) * 12 + x0 * 6 + x1] = v7;
            }
        }
        EACH {
            for (int i = blockIdx.y * THREADS + TID; i < 768; i += gridDim.y * THREADS) {
                int x2 = i % 64; int x1 = i / 64 % 6; int x0 = i / 384;
                float v0 = b4[i64(row) * 768 + x0 * 64 + x1 * 128 + x2];
                b5[i64(row) * 768 + x0 * 384 + x1 * 64 + x2] = v0;
            }
        }
    }
}

KERNEL(kernel_4, 256, const int* live, int rows, const float* b0, const float* b1, float* b2, const float* b3, float* b4) {
    int count = live_rows(live, rows);
    for (int row = blockIdx.x; row < count; row += gridDim.x) {
        EACH {
            for (int i = blockIdx.y * THREADS + TID; i < 128; i += gridDim.y * THREADS) {
                int x0 = i;
                float v0 = b0[i64(row) * 128 + x0];
                float v1 = b1[x0];
                float v2 = plus(v0, v1);
                b2[i64(row) * 128 + x0] = v2;
            }
        }
        EACH {
            for (int i = blockIdx.y * THREADS + TID; i < 896; i += gridDim.y * THREADS) {
                int x2 = i % 64; int x1 = i / 64 % 7; int x0 = i / 448;
                float v0 = b3[i64(row) * 896 + x0 * 64 + x1 * 128 + x2];
                b4[i64(row) * 896 + x0 * 448 + x1 * 64 + x2] = v0;
            }
        }
    }
}

KERNEL(kernel_5, 256, const int* live, int rows, const i64* b0, const i64* b1, const float* b2, float* b3, const float* b4, float* b5) {
    int count = live_rows(live, rows);
    for (int row = blockIdx.x; row < count; row += gridDim.x) {
        EACH {
            for (int i = blockIdx.y * THREADS + TID; i < 14; i += gridDim.y * THREADS) {
                int x1 = i % 7; int x0 = i / 7;
                i64 v0 = b0[x1];
                i64 v1 = b1[row];
                bool v2 = is_less(v0, v1);
                float v3 = b2[i64(row) * 14 + x0 * 7 + x1];
                float v4 = bits_float(0x41000000u);
                float v5 = over(v3, v4);
                float v6 = bits_float(0xc61c4000u);
                float v7 = select(v2, v5, v6);
                b3[i64(row) * 14 + x0 * 7 + x1] = v7;
            }
        }
        EACH {
            for (int i = blockIdx.y * THREADS + TID; i < 896; i += gridDim.y * THREADS) {
                int x2 = i % 64; int x1 = i / 64 % 7; int x0 = i / 448;
                float v0 = b4[i64(row) * 896 + x0 * 64 + x1 * 128 + x2];
                b5[i64(row) * 896 + x0 * 448 + x1 * 64 + x2] = v0;
            }
        }
    }
}

KERNEL(kernel_6, 256, const int* live, int rows, const float* b0, const float* b1, float* b2) {
    int count = live_rows(live, rows);
    for (int row = blockIdx.x; row < count; row += gridDim.x) {
        EACH {
            for (int i = blockIdx.y * THREADS + TID; i < 512; i += gridDim.y * THREADS) {
                int x0 = i;
                float v0 = b0[i64(row) * 512 + x0];
                float v1 = b1[x0];
                float v2 = plus(v0, v1);
                float v3 = rectified(v2);
                b2[i64(row) * 512 + x0] = v3;
            }
        }
    }
}

KERNEL(kernel_7, 256, const int* live, int rows, const float* b0, const float* b1, float* b2, const float* b3, const float* b4, const float* b5, const float* b6, const float* b7, const float* b8, const float* b9, const float* b10, float* b11, float* b12, float* b13, float* b14) {
    int count = live_rows(live, rows);
    for (int row = blockIdx.x; row < count; row += gridDim.x) {
        EACH {
            for (int i = blockIdx.y * THREADS + TID; i < 512; i += gridDim.y * THREADS) {
                int x0 = i;
                float v0 = b0[i64(row) * 512 + x0];
                float v1 = b1[x0];
                float v2 = plus(v0, v1);
                float v3 = rectified(v2);
                b2[i64(row) * 512 + x0] = v3;
            }
        }
        EACH {
            for (int i = blockIdx.y * THREADS + TID; i < 128; i += gridDim.y * THREADS) {
                int x0 = i;
                float v0 = b3[i64(row) * 128 + x0];
                float v1 = b4[x0];
                float v2 = plus(v0, v1);
                float v3 = b5[i64(row) * 128 + x0];
                float v4 = b6[x0];
                float v5 = plus(v3, v4);
                float v6 = b7[i64(row) * 128 + x0];
                float v7 = b8[x0];
                float v8 = plus(v6, v7);
                float v9 = b9[i64(row) * 128 + x0];
                float v10 = b10[x0];
                float v11 = plus(v9, v10);
                b11[i64(row) * 128 + x0] = v2;
                b12[i64(row) * 128 + x0] = v5;
                b13[i64(row) * 128 + x0] = v8;
                b14[i64(row) * 128 + x0] = v11;
            }
        }
    }
}

KERNEL(head, 256, const int* live, int rows, int* counts, unsigned* faults) {
    int count = live_rows(live, rows);
    EACH {
        for (int i = TID; faults && i < rows; i += THREADS) faults[i] = 0;
        if (TID == 0) counts[0] = count * 2;
        (void)count;
    }
}
