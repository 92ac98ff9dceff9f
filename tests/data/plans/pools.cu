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

KERNEL(kernel_0, 256, const int* live, int rows, const float* b0, float* b1) {
    int count = live_rows(live, rows);
    for (int row = blockIdx.x; row < count; row += gridDim.x) {
        EACH {
            for (int o = blockIdx.y * THREADS + TID; o < 120; o += gridDim.y * THREADS) {
                int x2 = o % 8; int x1 = o / 8 % 5; int x0 = o / 40;
                float whole = bits_float(0xff800000u);
                for (int i = 0; i < 6; ++i) {
                    int y1 = i % 2; int y0 = i / 2;
                    float v0 = b0[i64(row) * 189 + x0 * 63 + x1 * 9 + x2 + y0 * 9 + y1];
                    whole = larger(whole, v0);
                }
                b1[i64(row) * 120 + o] = whole;
            }
        }
    }
}

KERNEL(kernel_1, 256, const int* live, int rows, const float* b0, float* b1) {
    int count = live_rows(live, rows);
    for (int row = blockIdx.x; row < count; row += gridDim.x) {
        EACH {
            for (int o = blockIdx.y * THREADS + TID; o < 120; o += gridDim.y * THREADS) {
                int x2 = o % 8; int x1 = o / 8 % 5; int x0 = o / 40;
                float whole = bits_float(0x0u);
                for (int i = 0; i < 6; ++i) {
                    int y1 = i % 2; int y0 = i / 2;
                    float v0 = b0[i64(row) * 189 + x0 * 63 + x1 * 9 + x2 + y0 * 9 + y1];
                    float v1 = bits_float(0x3e2aaaabu);
                    float v2 = times(v0, v1);
                    whole = plus(whole, v2);
                }
                b1[i64(row) * 120 + o] = whole;
            }
        }
    }
}

KERNEL(kernel_2, 256, const int* live, int rows, const float* b0, float* b1) {
    int count = live_rows(live, rows);
    for (int row = blockIdx.x; row < count; row += gridDim.x) {
        EACH {
            for (int o = blockIdx.y * THREADS + TID; o < 36; o += gridDim.y * THREADS) {
                int x2 = o % 4; int x1 = o / 4 % 3; int x0 = o / 12;
                float whole = bits_float(0xff800000u);
                for (int i = 0; i < 6; ++i) {
                    int y1 = i % 2; int y0 = i / 2;
                    float v0 = b0[i64(row) * 189 + x0 * 63 + x1 * 18 + x2 * 2 + y0 * 9 + y1];
                    whole = larger(whole, v0);
                }
                b1[i64(row) * 36 + o] = whole;
            }
        }
    }
}

KERNEL(kernel_3, 256, const int* live, int rows, const float* b0, float* b1) {
    int count = live_rows(live, rows);
    for (int row = blockIdx.x; row < count; row += gridDim.x) {
        EACH {
            for (int o = blockIdx.y * THREADS + TID; o < 36; o += gridDim.y * THREADS) {
                int x2 = o % 4; int x1 = o / 4 % 3; int x0 = o / 12;
                float whole = bits_float(0x0u);
                for (int i = 0; i < 6; ++i) {
                    int y1 = i % 2; int y0 = i / 2;
                    float v0 = b0[i64(row) * 189 + x0 * 63 + x1 * 18 + x2 * 2 + y0 * 9 + y1];
                    float v1 = bits_float(0x3e2aaaabu);
                    float v2 = times(v0, v1);
                    whole = plus(whole, v2);
                }
                b1[i64(row) * 36 + o] = whole;
            }
        }
    }
}

KERNEL(kernel_4, 256, const int* live, int rows, const float* b0, float* b1) {
    int count = live_rows(live, rows);
    for (int row = blockIdx.x; row < count; row += gridDim.x) {
        EACH {
            for (int o = blockIdx.y * THREADS + TID; o < 45; o += gridDim.y * THREADS) {
                int x2 = o % 5; int x1 = o / 5 % 3; int x0 = o / 15;
                float whole = bits_float(0xff800000u);
                for (int i = 0; i < 6; ++i) {
                    int y1 = i % 2; int y0 = i / 2;
                    int v0 = x2 * 2 + y1;
                    float v1 = unsigned(v0) < 9u ? float(b0[i64(row) * 189 + v0 * 1 + x0 * 63 + x1 * 18 + y0 * 9]) : bits_float(0xff800000u);
                    whole = larger(whole, v1);
                }
                b1[i64(row) * 45 + o] = whole;
            }
        }
    }
}

KERNEL(kernel_5, 256, const int* live, int rows, const float* b0, float* b1) {
    int count = live_rows(live, rows);
    for (int row = blockIdx.x; row < count; row += gridDim.x) {
        EACH {
            for (int o = blockIdx.y * THREADS + TID; o < 45; o += gridDim.y * THREADS) {
                int x2 = o % 5; int x1 = o / 5 % 3; int x0 = o / 15;
                float whole = bits_float(0x0u);
                for (int i = 0; i < 6; ++i) {
                    int y1 = i % 2; int y0 = i / 2;
                    int v0 = x2 * 2 + y1;
                    float v1 = unsigned(v0) < 9u ? float(b0[i64(row) * 189 + v0 * 1 + x0 * 63 + x1 * 18 + y0 * 9]) : bits_float(0x0u);
                    whole = plus(whole, v1);
                }
                b1[i64(row) * 45 + o] = whole;
            }
        }
    }
}

KERNEL(kernel_6, 256, const int* live, int rows, const float* b0, float* b1) {
    int count = live_rows(live, rows);
    for (int row = blockIdx.x; row < count; row += gridDim.x) {
        EACH {
            for (int o = blockIdx.y * THREADS + TID; o < 216; o += gridDim.y * THREADS) {
                int x2 = o % 9; int x1 = o / 9 % 8; int x0 = o / 72;
                float whole = bits_float(0xff800000u);
                for (int i = 0; i < 6; ++i) {
                    int y1 = i % 2; int y0 = i / 2;
                    int v0 = x1 + y0 + -1;
                    int v1 = x2 + y1;
                    float v2 = unsigned(v0) < 7u && unsigned(v1) < 9u ? float(b0[i64(row) * 189 + v0 * 9 + v1 * 1 + x0 * 63]) : bits_float(0xff800000u);
                    whole = larger(whole, v2);
                }
                b1[i64(row) * 216 + o] = whole;
            }
        }
    }
}

KERNEL(kernel_7, 256, const int* live, int rows, const float* b0, float* b1) {
    int count = live_rows(live, rows);
    for (int row = blockIdx.x; row < count; row += gridDim.x) {
        EACH {
            for (int o = blockIdx.y * THREADS + TID; o < 216; o += gridDim.y * THREADS) {
                int x2 = o % 9; int x1 = o / 9 % 8; int x0 = o / 72;
                float whole = bits_float(0x0u);
                for (int i = 0; i < 6; ++i) {
                    int y1 = i % 2; int y0 = i / 2;
                    int v0 = x1 + y0 + -1;
                    int v1 = x2 + y1;
                    float v2 = unsigned(v0) < 7u && unsigned(v1) < 9u ? float(b0[i64(row) * 189 + v0 * 9 + v1 * 1 + x0 * 63]) : bits_float(0x0u);
                    whole = plus(whole, v2);
                }
                b1[i64(row) * 216 + o] = whole;
            }
        }
    }
}

KERNEL(kernel_8, 256, const int* live, int rows, const float* b0, float* b1) {
    int count = live_rows(live, rows);
    for (int row = blockIdx.x; row < count; row += gridDim.x) {
        EACH {
            for (int o = blockIdx.y * THREADS + TID; o < 216; o += gridDim.y * THREADS) {
                int x2 = o % 9; int x1 = o / 9 % 8; int x0 = o / 72;
                float whole = bits_float(0x0u);
                for (int i = 0; i < 6; ++i) {
                    int y1 = i % 2; int y0 = i / 2;
                    int v0 = x1 + y0 + -1;
                    int v1 = x2 + y1;
                    float v2 = unsigned(v0) < 7u && unsigned(v1) < 9u ? float(b0[i64(row) * 189 + v0 * 9 + v1 * 1 + x0 * 63]) : bits_float(0x0u);
                    float v3 = bits_float(0x3e2aaaabu);
                    float v4 = times(v2, v3);
                    whole = plus(whole, v4);
                }
                b1[i64(row) * 216 + o] = whole;
            }
        }
    }
}

KERNEL(kernel_9, 256, const int* live, int rows, const float* b0, float* b1) {
    int count = live_rows(live, rows);
    for (int row = blockIdx.x; row < count; row += gridDim.x) {
        EACH {
            for (int o = blockIdx.y * THREADS + TID; o < 45; o += gridDim.y * THREADS) {
                int x2 = o % 5; int x1 = o / 5 % 3; int x0 = o / 15;
                float whole = bits_float(0xff800000u);
                for (int i = 0; i < 6; ++i) {
                    int y1 = i % 2; int y0 = i / 2;
                    int v0 = x1 * 3 + y0 + -1;
                    int v1 = x2 * 2 + y1 + -1;
                    float v2 = unsigned(v0) < 7u && unsigned(v1) < 9u ? float(b0[i64(row) * 189 + v0 * 9 + v1 * 1 + x0 * 63]) : bits_float(0xff800000u);
                    whole = larger(whole, v2);
                }
                b1[i64(row) * 45 + o] = whole;
            }
        }
    }
}

KERNEL(kernel_10, 256, const int* live, int rows, const float* b0, float* b1) {
    int count = live_rows(live, rows);
    for (int row = blockIdx.x; row < count; row += gridDim.x) {
        EACH {
            for (int o = blockIdx.y * THREADS + TID; o < 45; o += gridDim.y * THREADS) {
                int x2 = o % 5; int x1 = o / 5 % 3; int x0 = o / 15;
                float whole = bits_float(0x0u);
                for (int i = 0; i < 6; ++i) {
                    int y1 = i % 2; int y0 = i / 2;
                    int v0 = x1 * 3 + y0 + -1;
                    int v1 = x2 * 2 + y1 + -1;
                    float v2 = unsigned(v0) < 7u && unsigned(v1) < 9u ? float(b0[i64(row) * 189 + v0 * 9 + v1 * 1 + x0 * 63]) : bits_float(0x0u);
                    whole = plus(whole, v2);
                }
                b1[i64(row) * 45 + o] = whole;
            }
        }
    }
}

KERNEL(kernel_11, 256, const int* live, int rows, const float* b0, float* b1) {
    int count = live_rows(live, rows);
    for (int row = blockIdx.x; row < count; row += gridDim.x) {
        EACH {
            for (int o = blockIdx.y * THREADS + TID; o < 45; o += gridDim.y * THREADS) {
                int x2 = o % 5; int x1 = o / 5 % 3; int x0 = o / 15;
                float whole = bits_float(0x0u);
                for (int i = 0; i < 6; ++i) {
                    int y1 = i % 2; int y0 = i / 2;
                    int v0 = x1 * 3 + y0 + -1;
                    int v1 = x2 * 2 + y1 + -1;
                    float v2 = unsigned(v0) < 7u && unsigned(v1) < 9u ? float(b0[i64(row) * 189 + v0 * 9 + v1 * 1 + x0 * 63]) : bits_float(0x0u);
                    float v3 = bits_float(0x3e2aaaabu);
                    float v4 = times(v2, v3);
                    whole = plus(whole, v4);
                }
                b1[i64(row) * 45 + o] = whole;
            }
        }
    }
}

KERNEL(kernel_12, 256, const int* live, int rows, const float* b0, float* b1) {
    int count = live_rows(live, rows);
    for (int row = blockIdx.x; row < count; row += gridDim.x) {
        EACH {
            for (int o = blockIdx.y * THREADS + TID; o < 18; o += gridDim.y * THREADS) {
                int x2 = o % 3; int x1 = o / 3 % 2; int x0 = o / 6;
                float whole = bits_float(0xff800000u);
                for (int i = 0; i < 6; ++i) {
                    int y1 = i % 2; int y0 = i / 2;
                    int v0 = x1 * 3 + y0 + -1;
                    int v1 = x2 * 4 + y1;
                    float v2 = unsigned(v0) < 7u && unsigned(v1) < 9u ? float(b0[i64(row) * 189 + v0 * 9 + v1 * 1 + x0 * 63]) : bits_float(0xff800000u);
                    whole = larger(whole, v2);
                }
                b1[i64(row) * 18 + o] = whole;
            }
        }
    }
}

KERNEL(kernel_13, 256, const int* live, int rows, const float* b0, float* b1) {
    int count = live_rows(live, rows);
    for (int row = blockIdx.x; row < count; row += gridDim.x) {
        EACH {
            for (int o = blockIdx.y * THREADS + TID; o < 18; o += gridDim.y * THREADS) {
                int x2 = o % 3; int x1 = o / 3 % 2; int x0 = o / 6;
                float whole = bits_float(0x0u);
                for (int i = 0; i < 6; ++i) {
                    int y1 = i % 2; int y0 = i / 2;
                    int v0 = x1 * 3 + y0 + -1;
                    int v1 = x2 * 4 + y1;
                    float v2 = unsigned(v0) < 7u && unsigned(v1) < 9u ? float(b0[i64(row) * 189 + v0 * 9 + v1 * 1 + x0 * 63]) : bits_float(0x0u);
                    whole = plus(whole, v2);
                }
                b1[i64(row) * 18 + o] = whole;
            }
        }
    }
}

KERNEL(kernel_14, 256, const int* live, int rows, const float* b0, float* b1) {
    int count = live_rows(live, rows);
    for (int row = blockIdx.x; row < count; row += gridDim.x) {
        EACH {
            for (int o = blockIdx.y * THREADS + TID; o < 18; o += gridDim.y * THREADS) {
                int x2 = o % 3; int x1 = o / 3 % 2; int x0 = o / 6;
                float whole = bits_float(0x0u);
                for (int i = 0; i < 6; ++i) {
                    int y1 = i % 2; int y0 = i / 2;
                    int v0 = x1 * 3 + y0 + -1;
                    int v1 = x2 * 4 + y1;
                    float v2 = unsigned(v0) < 7u && unsigned(v1) < 9u ? float(b0[i64(row) * 189 + v0 * 9 + v1 * 1 + x0 * 63]) : bits_float(0x0u);
                    float v3 = bits_float(0x3e2aaaabu);
                    float v4 = times(v2, v3);
                    whole = plus(whole, v4);
                }
                b1[i64(row) * 18 + o] = whole;
            }
        }
    }
}

KERNEL(kernel_15, 256, const int* live, int rows, const float* b0, float* b1) {
    int count = live_rows(live, rows);
    for (int row = blockIdx.x; row < count; row += gridDim.x) {
        EACH {
            for (int o = blockIdx.y * THREADS + TID; o < 27; o += gridDim.y * THREADS) {
                int x2 = o % 3; int x1 = o / 3 % 3; int x0 = o / 9;
                float whole = bits_float(0xff800000u);
                for (int i = 0; i < 6; ++i) {
                    int y1 = i % 2; int y0 = i / 2;
                    int v0 = x1 * 3 + y0 + -1;
                    int v1 = x2 * 4 + y1;
                    float v2 = unsigned(v0) < 7u && unsigned(v1) < 9u ? float(b0[i64(row) * 189 + v0 * 9 + v1 * 1 + x0 * 63]) : bits_float(0xff800000u);
                    whole = larger(whole, v2);
                }
                b1[i64(row) * 27 + o] = whole;
            }
        }
    }
}

KERNEL(kernel_16, 256, const int* live, int rows, const float* b0, float* b1) {
    int count = live_rows(live, rows);
    for (int row = blockIdx.x; row < count; row += gridDim.x) {
        EACH {
            for (int o = blockIdx.y * THREADS + TID; o < 27; o += gridDim.y * THREADS) {
                int x2 = o % 3; int x1 = o / 3 % 3; int x0 = o / 9;
                float whole = bits_float(0x0u);
                for (int i = 0; i < 6; ++i) {
                    int y1 = i % 2; int y0 = i / 2;
                    int v0 = x1 * 3 + y0 + -1;
                    int v1 = x2 * 4 + y1;
                    float v2 = unsigned(v0) < 7u && unsigned(v1) < 9u ? float(b0[i64(row) * 189 + v0 * 9 + v1 * 1 + x0 * 63]) : bits_float(0x0u);
                    whole = plus(whole, v2);
                }
                b1[i64(row) * 27 + o] = whole;
            }
        }
    }
}

KERNEL(kernel_17, 256, const int* live, int rows, const float* b0, float* b1) {
    int count = live_rows(live, rows);
    for (int row = blockIdx.x; row < count; row += gridDim.x) {
        EACH {
            for (int o = blockIdx.y * THREADS + TID; o < 105; o += gridDim.y * THREADS) {
                int x2 = o % 7; int x1 = o / 7 % 5; int x0 = o / 35;
                float whole = bits_float(0xff800000u);
                for (int i = 0; i < 6; ++i) {
                    int y1 = i % 2; int y0 = i / 2;
                    int v0 = x1 + y0 * 2 + -1;
                    int v1 = x2 + y1 * 3;
                    float v2 = unsigned(v0) < 7u && unsigned(v1) < 9u ? float(b0[i64(row) * 189 + v0 * 9 + v1 * 1 + x0 * 63]) : bits_float(0xff800000u);
                    whole = larger(whole, v2);
                }
                b1[i64(row) * 105 + o] = whole;
            }
        }
    }
}

KERNEL(kernel_18, 256, const int* live, int rows, const float* b0, float* b1) {
    int count = live_rows(live, rows);
    for (int row = blockIdx.x; row < count; row += gridDim.x) {
        EACH {
            for (int o = blockIdx.y * THREADS + TID; o < 60; o += gridDim.y * THREADS) {
                int x2 = o % 5; int x1 = o / 5 % 4; int x0 = o / 20;
                float whole = bits_float(0xff800000u);
                for (int i = 0; i < 6; ++i) {
                    int y1 = i % 2; int y0 = i / 2;
                    int v0 = x1 * 2 + y0 + -1;
                    int v1 = x2 * 2 + y1;
                    float v2 = unsigned(v0) < 7u && unsigned(v1) < 9u ? float(b0[i64(row) * 189 + v0 * 9 + v1 * 1 + x0 * 63]) : bits_float(0xff800000u);
                    whole = larger(whole, v2);
                }
                b1[i64(row) * 60 + o] = whole;
            }
        }
    }
}

KERNEL(kernel_19, 256, const int* live, int rows, const float* b0, float* b1) {
    int count = live_rows(live, rows);
    for (int row = blockIdx.x; row < count; row += gridDim.x) {
        EACH {
            for (int o = blockIdx.y * THREADS + TID; o < 60; o += gridDim.y * THREADS) {
                int x2 = o % 5; int x1 = o / 5 % 4; int x0 = o / 20;
                float whole = bits_float(0x0u);
                for (int i = 0; i < 6; ++i) {
                    int y1 = i % 2; int y0 = i / 2;
                    int v0 = x1 * 2 + y0 + -1;
                    int v1 = x2 * 2 + y1;
                    float v2 = unsigned(v0) < 7u && unsigned(v1) < 9u ? float(b0[i64(row) * 189 + v0 * 9 + v1 * 1 + x0 * 63]) : bits_float(0x0u);
                    whole = plus(whole, v2);
                }
                b1[i64(row) * 60 + o] = whole;
            }
        }
    }
}

KERNEL(kernel_20, 256, const int* live, int rows, const float* b0, float* b1) {
    int count = live_rows(live, rows);
    for (int row = blockIdx.x; row < count; row += gridDim.x) {
        EACH {
            for (int o = blockIdx.y * THREADS + TID; o < 60; o += gridDim.y * THREADS) {
                int x2 = o % 5; int x1 = o / 5 % 4; int x0 = o / 20;
                float whole = bits_float(0xff800000u);
                for (int i = 0; i < 6; ++i) {
                    int y1 = i % 2; int y0 = i / 2;
                    int v0 = x1 * 2 + y0 + -1;
                    int v1 = x2 * 2 + y1 + -1;
                    float v2 = unsigned(v0) < 7u && unsigned(v1) < 9u ? float(b0[i64(row) * 189 + v0 * 9 + v1 * 1 + x0 * 63]) : bits_float(0xff800000u);
                    whole = larger(whole, v2);
                }
                b1[i64(row) * 60 + o] = whole;
            }
        }
    }
}

KERNEL(kernel_21, 256, const int* live, int rows, const float* b0, float* b1) {
    int count = live_rows(live, rows);
    for (int row = blockIdx.x; row < count; row += gridDim.x) {
        EACH {
            for (int o = blockIdx.y * THREADS + TID; o < 60; o += gridDim.y * THREADS) {
                int x2 = o % 5; int x1 = o / 5 % 4; int x0 = o / 20;
                float whole = bits_float(0x0u);
                for (int i = 0; i < 6; ++i) {
                    int y1 = i % 2; int y0 = i / 2;
                    int v0 = x1 * 2 + y0 + -1;
                    int v1 = x2 * 2 + y1 + -1;
                    float v2 = unsigned(v0) < 7u && unsigned(v1) < 9u ? float(b0[i64(row) * 189 + v0 * 9 + v1 * 1 + x0 * 63]) : bits_float(0x0u);
                    whole = plus(whole, v2);
                }
                b1[i64(row) * 60 + o] = whole;
            }
        }
    }
}

KERNEL(kernel_22, 256, const int* live, int rows, const float* b0, float* b1) {
    int count = live_rows(live, rows);
    Reg<float> part;
    for (int row = blockIdx.x; row < count; row += gridDim.x) {
        for (int o = blockIdx.y; o < 3; o += gridDim.y) {
            int x0 = o;
            EACH {
                part() = bits_float(0xff800000u);
                for (int i = TID; i < 63; i += THREADS) {
                    int y0 = i;
                    float v0 = b0[i64(row) * 189 + x0 * 63 + y0];
                    part() = larger(part(), v0);
                }
            }
            float whole = BLOCK_MAX(part);
            EACH {
                if (TID == 0) b1[i64(row) * 3 + o] = whole;
            }
        }
    }
}

KERNEL(kernel_23, 256, const int* live, int rows, const float* b0, float* b1) {
    int count = live_rows(live, rows);
    Reg<float> part;
    for (int row = blockIdx.x; row < count; row += gridDim.x) {
        for (int o = blockIdx.y; o < 3; o += gridDim.y) {
            int x0 = o;
            EACH {
                part() = bits_float(0x0u);
                for (int i = TID; i < 63; i += THREADS) {
                    int y0 = i;
                    float v0 = b0[i64(row) * 189 + x0 * 63 + y0];
                    float v1 = bits_float(0x3c820821u);
                    float v2 = times(v0, v1);
                    part() = plus(part(), v2);
                }
            }
            float whole = BLOCK_SUM(part);
            EACH {
                if (TID == 0) b1[i64(row) * 3 + o] = whole;
            }
        }
    }
}

KERNEL(kernel_24, 256, const int* live, int rows, const float* b0, float* b1) {
    int count = live_rows(live, rows);
    for (int row = blockIdx.x; row < count; row += gridDim.x) {
        EACH {
            for (int o = blockIdx.y * THREADS + TID; o < 6; o += gridDim.y * THREADS) {
                int x1 = o % 3; int x0 = o / 3;
                float whole = bits_float(0xff800000u);
                for (int i = 0; i < 4; ++i) {
                    int y0 = i;
                    float v0 = b0[i64(row) * 24 + x0 * 12 + x1 * 3 + y0];
                    whole = larger(whole, v0);
                }
                b1[i64(row) * 6 + o] = whole;
            }
        }
    }
}

KERNEL(kernel_25, 256, const int* live, int rows, const float* b0, float* b1) {
    int count = live_rows(live, rows);
    for (int row = blockIdx.x; row < count; row += gridDim.x) {
        EACH {
            for (int o = blockIdx.y * THREADS + TID; o < 2; o += gridDim.y * THREADS) {
                int x0 = o;
                float whole = bits_float(0x0u);
                for (int i = 0; i < 12; ++i) {
                    int y0 = i;
                    float v0 = b0[i64(row) * 24 + x0 * 12 + y0];
                    float v1 = bits_float(0x3daaaaabu);
                    float v2 = times(v0, v1);
                    whole = plus(whole, v2);
                }
                b1[i64(row) * 2 + o] = whole;
            }
        }
    }
}

KERNEL(kernel_26, 256, const int* live, int rows, const float* b0, const float* b1, const float* b2, const float* b3, const float* b4, const float* b5, float* b6, float* b7, float* b8, float* b9, float* b10, float* b11, const float* b12, const float* b13, const float* b14, float* b15, float* b16, float* b17, const float* b18, const float* b19, const float* b20, const float* b21, const float* b22, const float* b23, const float* b24, const float* b25, const float* b26, const float* b27, const float* b28, const float* b29, const float* b30, const float* b31, float* b32, float* b33, float* b34, float* b35, float* b36, float* b37, float* b38, float* b39, const float* b40, const float* b41, const float* b42, const float* b43, const float* b44, const float* b45, const float* b46, const float* b47, const float* b48, const float* b49, float* b50, float* b51, float* b52, float* b53, float* b54, float* b55, const float* b56, const float* b57, const float* b58, const float* b59, const float* b60, float* b61, float* b62, float* b63, const float* b64, const float* b65, const float* b66, const float* b67, float* b68, float* b69, const float* b70, float* b71, const float* b72, const float* b73, const float* b74, const float* b75, const float* b76, const float* b77, const float* b78, const float* b79, float* b80, float* b81, float* b82, float* b83, const float* b84, const float* b85, float* b86, float* b87, const float* b88, float* b89, const float* b90, float* b91) {
    int count = live_rows(live, rows);
    for (int row = blockIdx.x; row < count; row += gridDim.x) {
        EACH {
            for (int i = blockIdx.y * THREADS + TID; i < 120; i += gridDim.y * THREADS) {
                int x0 = i;
                float v0 = b0[i64(row) * 120 + x0];
                float v1 = b1[i64(row) * 120 + x0];
                float v2 = b2[i64(row) * 120 + x0];
                float v3 = b3[i64(row) * 120 + x0];
                float v4 = b4[i64(row) * 120 + x0];
                float v5 = b5[i64(row) * 120 + x0];
                b6[i64(row) * 120 + x0] = v0;
                b7[i64(row) * 120 + x0] = v1;
                b8[i64(row) * 120 + x0] = v2;
                b9[i64(row) * 120 + x0] = v3;
                b10[i64(row) * 120 + x0] = v4;
                b11[i64(row) * 120 + x0] = v5;
            }
        }
        EACH {
            for (int i = blockIdx.y * THREADS + TID; i < 36; i += gridDim.y * THREADS) {
                int x0 = i;
                float v0 = b12[i64(row) * 36 + x0];
                float v1 = b13[i64(row) * 36 + x0];
                float v2 = b14[i64(row) * 36 + x0];
                b15[i64(row) * 36 + x0] = v0;
                b16[i64(row) * 36 + x0] = v1;
                b17[i64(row) * 36 + x0] = v2;
            }
        }
        EACH {
            for (int i = blockIdx.y * THREADS + TID; i < 45; i += gridDim.y * THREADS) {
                int x2 = i % 5; int x1 = i / 5 % 3; int x0 = i / 15;
                float v0 = b18[i64(row) * 45 + x0 * 15 + x1 * 5 + x2];
                float v1 = b19[i64(row) * 45 + x0 * 15 + x1 * 5 + x2];
                float v2 = b20[x1];
                float v3 = times(v1, v2);
                float v4 = b21[x2];
                float v5 = times(v3, v4);
                float v6 = b22[i64(row) * 45 + x0 * 15 + x1 * 5 + x2];
                float v7 = b23[i64(row) * 45 + x0 * 15 + x1 * 5 + x2];
                float v8 = b24[x1];
                float v9 = times(v7, v8);
                float v10 = b25[x2];
                float v11 = times(v9, v10);
                float v12 = b26[i64(row) * 45 + x0 * 15 + x1 * 5 + x2];
                float v13 = b27[i64(row) * 45 + x0 * 15 + x1 * 5 + x2];
                float v14 = b28[i64(row) * 45 + x0 * 15 + x1 * 5 + x2];
                float v15 = b29[x1];
                float v16 = times(v14, v15);
                float v17 = b30[x2];
                float v18 = times(v16, v17);
                float v19 = b31[i64(row) * 45 + x0 * 15 + x1 * 5 + x2];
                b32[i64(row) * 45 + x0 * 15 + x1 * 5 + x2] = v0;
                b33[i64(row) * 45 + x0 * 15 + x1 * 5 + x2] = v5;
                b34[i64(row) * 45 + x0 * 15 + x1 * 5 + x2] = v6;
                b35[i64(row) * 45 + x0 * 15 + x1 * 5 + x2] = v11;
                b36[i64(row) * 45 + x0 * 15 + x1 * 5 + x2] = v12;
                b37[i64(row) * 45 + x0 * 15 + x1 * 5 + x2] = v13;
                b38[i64(row) * 45 + x0 * 15 + x1 * 5 + x2] = v18;
                b39[i64(row) * 45 + x0 * 15 + x1 * 5 + x2] = v19;
            }
        }
        EACH {
            for (int i = blockIdx.y * THREADS + TID; i < 216; i += gridDim.y * THREADS) {
                int x2 = i % 9; int x1 = i / 9 % 8; int x0 = i / 72;
                float v0 = b40[i64(row) * 216 + x0 * 72 + x1 * 9 + x2];
                float v1 = b41[i64(row) * 216 + x0 * 72 + x1 * 9 + x2];
                float v2 = b42[x1];
                float v3 = times(v1, v2);
                float v4 = b43[x2];
                float v5 = times(v3, v4);
                float v6 = b44[i64(row) * 216 + x0 * 72 + x1 * 9 + x2];
                float v7 = b45[i64(row) * 216 + x0 * 72 + x1 * 9 + x2];
                float v8 = b46[i64(row) * 216 + x0 * 72 + x1 * 9 + x2];
                float v9 = b47[x1];
                float v10 = times(v8, v9);
                float v11 = b48[x2];
                float v12 = times(v10, v11);
                float v13 = b49[i64(row) * 216 + x0 * 72 + x1 * 9 + x2];
                b50[i64(row) * 216 + x0 * 72 + x1 * 9 + x2] = v0;
                b51[i64(row) * 216 + x0 * 72 + x1 * 9 + x2] = v5;
                b52[i64(row) * 216 + x0 * 72 + x1 * 9 + x2] = v6;
                b53[i64(row) * 216 + x0 * 72 + x1 * 9 + x2] = v7;
                b54[i64(row) * 216 + x0 * 72 + x1 * 9 + x2] = v12;
                b55[i64(row) * 216 + x0 * 72 + x1 * 9 + x2] = v13;
            }
        }
        EACH {
            for (int i = blockIdx.y * THREADS + TID; i < 18; i += gridDim.y * THREADS) {
                int x2 = i % 3; int x1 = i / 3 % 2; int x0 = i / 6;
                float v0 = b56[i64(row) * 18 + x0 * 6 + x1 * 3 + x2];
                float v1 = b57[i64(row) * 18 + x0 * 6 + x1 * 3 + x2];
                float v2 = b58[x1];
                float v3 = times(v1, v2);
                float v4 = b59[x2];
                float v5 = times(v3, v4);
                float v6 = b60[i64(row) * 18 + x0 * 6 + x1 * 3 + x2];
                b61[i64(row) * 18 + x0 * 6 + x1 * 3 + x2] = v0;
                b62[i64(row) * 18 + x0 * 6 + x1 * 3 + x2] = v5;
                b63[i64(row) * 18 + x0 * 6 + x1 * 3 + x2] = v6;
            }
        }
        EACH {
            for (int i = blockIdx.y * THREADS + TID; i < 27; i += gridDim.y * THREADS) {
                int x2 = i % 3; int x1 = i / 3 % 3; int x0 = i / 9;
                float v0 = b64[i64(row) * 27 + x0 * 9 + x1 * 3 + x2];
                float v1 = b65[i64(row) * 27 + x0 * 9 + x1 * 3 + x2];
                float v2 = b66[x1];
                float v3 = times(v1, v2);
                float v4 = b67[x2];
                float v5 = times(v3, v4);
                b68[i64(row) * 27 + x0 * 9 + x1 * 3 + x2] = v0;
                b69[i64(row) * 27 + x0 * 9 + x1 * 3 + x2] = v5;
            }
        }
        EACH {
            for (int i = blockIdx.y * THREADS + TID; i < 105; i += gridDim.y * THREADS) {
                int x0 = i;
                float v0 = b70[i64(row) * 105 + x0];
                b71[i64(row) * 105 + x0] = v0;
            }
        }
        EACH {
            for (int i = blockIdx.y * THREADS + TID; i < 60; i += gridDim.y * THREADS) {
                int x2 = i % 5; int x1 = i / 5 % 4; int x0 = i / 20;
                float v0 = b72[i64(row) * 60 + x0 * 20 + x1 * 5 + x2];
                float v1 = b73[i64(row) * 60 + x0 * 20 + x1 * 5 + x2];
                float v2 = b74[x1];
                float v3 = times(v1, v2);
                float v4 = b75[x2];
                float v5 = times(v3, v4);
                float v6 = b76[i64(row) * 60 + x0 * 20 + x1 * 5 + x2];
                float v7 = b77[i64(row) * 60 + x0 * 20 + x1 * 5 + x2];
                float v8 = b78[x1];
                float v9 = times(v7, v8);
                float v10 = b79[x2];
                float v11 = times(v9, v10);
                b80[i64(row) * 60 + x0 * 20 + x1 * 5 + x2] = v0;
                b81[i64(row) * 60 + x0 * 20 + x1 * 5 + x2] = v5;
                b82[i64(row) * 60 + x0 * 20 + x1 * 5 + x2] = v6;
                b83[i64(row) * 60 + x0 * 20 + x1 * 5 + x2] = v11;
            }
        }
        EACH {
            for (int i = blockIdx.y * THREADS + TID; i < 3; i += gridDim.y * THREADS) {
                int x0 = i;
                float v0 = b84[i64(row) * 3 + x0];
                float v1 = b85[i64(row) * 3 + x0];
                b86[i64(row) * 3 + x0] = v0;
                b87[i64(row) * 3 + x0] = v1;
            }
        }
        EACH {
            for (int i = blockIdx.y * THREADS + TID; i < 6; i += gridDim.y * THREADS) {
                int x0 = i;
                float v0 = b88[i64(row) * 6 + x0];
                b89[i64(row) * 6 + x0] = v0;
            }
        }
        EACH {
            for (int i = blockIdx.y * THREADS + TID; i < 2; i += gridDim.y * THREADS) {
                int x0 = i;
                float v0 = b90[i64(row) * 2 + x0];
                b91[i64(row) * 2 + x0] = v0;
            }
        }
    }
}
