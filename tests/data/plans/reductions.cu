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
    Reg<float> part;
    for (int row = blockIdx.x; row < count; row += gridDim.x) {
        for (int o = blockIdx.y; o < 3; o += gridDim.y) {
            int x0 = o;
            EACH {
                part() = bits_float(0x0u);
                for (int i = TID; i < 40; i += THREADS) {
                    int y0 = i;
                    float v0 = b0[i64(row) * 120 + x0 * 40 + y0];
                    part() = plus(part(), v0);
                }
            }
            float whole = BLOCK_SUM(part);
            EACH {
                if (TID == 0) b1[i64(row) * 3 + o] = whole;
            }
        }
    }
}

KERNEL(kernel_1, 256, const int* live, int rows, const float* b0, float* b1) {
    int count = live_rows(live, rows);
    for (int row = blockIdx.x; row < count; row += gridDim.x) {
        EACH {
            for (int o = blockIdx.y * THREADS + TID; o < 40; o += gridDim.y * THREADS) {
                int x0 = o;
                float whole = bits_float(0x0u);
                for (int i = 0; i < 3; ++i) {
                    int y0 = i;
                    float v0 = b0[i64(row) * 120 + x0 + y0 * 40];
                    whole = plus(whole, v0);
                }
                b1[i64(row) * 40 + o] = whole;
            }
        }
    }
}

KERNEL(kernel_2, 256, const int* live, int rows, const float* b0, float* b1) {
    int count = live_rows(live, rows);
    Reg<float> part;
    for (int row = blockIdx.x; row < count; row += gridDim.x) {
        for (int o = blockIdx.y; o < 1; o += gridDim.y) {
            
            EACH {
                part() = bits_float(0x0u);
                for (int i = TID; i < 120; i += THREADS) {
                    int y0 = i;
                    float v0 = b0[i64(row) * 120 + y0];
                    part() = plus(part(), v0);
                }
            }
            float whole = BLOCK_SUM(part);
            EACH {
                if (TID == 0) b1[row + o] = whole;
            }
        }
    }
}

KERNEL(kernel_3, 256, const int* live, int rows, const float* b0, float* b1) {
    int count = live_rows(live, rows);
    Reg<float> part;
    for (int row = blockIdx.x; row < count; row += gridDim.x) {
        for (int o = blockIdx.y; o < 3; o += gridDim.y) {
            int x0 = o;
            EACH {
                part() = bits_float(0xff800000u);
                for (int i = TID; i < 40; i += THREADS) {
                    int y0 = i;
                    float v0 = b0[i64(row) * 120 + x0 * 40 + y0];
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

KERNEL(kernel_4, 256, const int* live, int rows, const float* b0, float* b1) {
    int count = live_rows(live, rows);
    for (int row = blockIdx.x; row < count; row += gridDim.x) {
        EACH {
            for (int o = blockIdx.y * THREADS + TID; o < 40; o += gridDim.y * THREADS) {
                int x0 = o;
                float whole = bits_float(0xff800000u);
                for (int i = 0; i < 3; ++i) {
                    int y0 = i;
                    float v0 = b0[i64(row) * 120 + x0 + y0 * 40];
                    whole = larger(whole, v0);
                }
                b1[i64(row) * 40 + o] = whole;
            }
        }
    }
}

KERNEL(kernel_5, 256, const int* live, int rows, const float* b0, float* b1) {
    int count = live_rows(live, rows);
    Reg<float> part;
    for (int row = blockIdx.x; row < count; row += gridDim.x) {
        for (int o = blockIdx.y; o < 1; o += gridDim.y) {
            
            EACH {
                part() = bits_float(0xff800000u);
                for (int i = TID; i < 120; i += THREADS) {
                    int y0 = i;
                    float v0 = b0[i64(row) * 120 + y0];
                    part() = larger(part(), v0);
                }
            }
            float whole = BLOCK_MAX(part);
            EACH {
                if (TID == 0) b1[row + o] = whole;
            }
        }
    }
}

KERNEL(kernel_6, 256, const int* live, int rows, const float* b0, float* b1) {
    int count = live_rows(live, rows);
    Reg<float> part;
    for (int row = blockIdx.x; row < count; row += gridDim.x) {
        for (int o = blockIdx.y; o < 3; o += gridDim.y) {
            int x0 = o;
            EACH {
                part() = bits_float(0x7f800000u);
                for (int i = TID; i < 40; i += THREADS) {
                    int y0 = i;
                    float v0 = b0[i64(row) * 120 + x0 * 40 + y0];
                    part() = smaller(part(), v0);
                }
                part() = -part();
            }
            float whole = -BLOCK_MAX(part);
            EACH {
                if (TID == 0) b1[i64(row) * 3 + o] = whole;
            }
        }
    }
}

KERNEL(kernel_7, 256, const int* live, int rows, const float* b0, float* b1) {
    int count = live_rows(live, rows);
    for (int row = blockIdx.x; row < count; row += gridDim.x) {
        EACH {
            for (int o = blockIdx.y * THREADS + TID; o < 40; o += gridDim.y * THREADS) {
                int x0 = o;
                float whole = bits_float(0x7f800000u);
                for (int i = 0; i < 3; ++i) {
                    int y0 = i;
                    float v0 = b0[i64(row) * 120 + x0 + y0 * 40];
                    whole = smaller(whole, v0);
                }
                b1[i64(row) * 40 + o] = whole;
            }
        }
    }
}

KERNEL(kernel_8, 256, const int* live, int rows, const float* b0, float* b1) {
    int count = live_rows(live, rows);
    Reg<float> part;
    for (int row = blockIdx.x; row < count; row += gridDim.x) {
        for (int o = blockIdx.y; o < 1; o += gridDim.y) {
            
            EACH {
                part() = bits_float(0x7f800000u);
                for (int i = TID; i < 120; i += THREADS) {
                    int y0 = i;
                    float v0 = b0[i64(row) * 120 + y0];
                    part() = smaller(part(), v0);
                }
                part() = -part();
            }
            float whole = -BLOCK_MAX(part);
            EACH {
                if (TID == 0) b1[row + o] = whole;
            }
        }
    }
}

KERNEL(kernel_9, 256, const int* live, int rows, const float* b0, float* b1) {
    int count = live_rows(live, rows);
    Reg<float> part;
    for (int row = blockIdx.x; row < count; row += gridDim.x) {
        for (int o = blockIdx.y; o < 3; o += gridDim.y) {
            int x0 = o;
            EACH {
                part() = bits_float(0x0u);
                for (int i = TID; i < 40; i += THREADS) {
                    int y0 = i;
                    float v0 = b0[i64(row) * 120 + x0 * 40 + y0];
                    float v1 = times(v0, v0);
                    part() = plus(part(), v1);
                }
            }
            float whole = BLOCK_SUM(part);
            EACH {
                if (TID == 0) b1[i64(row) * 3 + o] = whole;
            }
        }
    }
}

KERNEL(kernel_10, 256, const int* live, int rows, const float* b0, float* b1) {
    int count = live_rows(live, rows);
    for (int row = blockIdx.x; row < count; row += gridDim.x) {
        EACH {
            for (int o = blockIdx.y * THREADS + TID; o < 40; o += gridDim.y * THREADS) {
                int x0 = o;
                float whole = bits_float(0x0u);
                for (int i = 0; i < 3; ++i) {
                    int y0 = i;
                    float v0 = b0[i64(row) * 120 + x0 + y0 * 40];
                    float v1 = times(v0, v0);
                    whole = plus(whole, v1);
                }
                b1[i64(row) * 40 + o] = whole;
            }
        }
    }
}

KERNEL(kernel_11, 256, const int* live, int rows, const float* b0, float* b1) {
    int count = live_rows(live, rows);
    Reg<float> part;
    for (int row = blockIdx.x; row < count; row += gridDim.x) {
        for (int o = blockIdx.y; o < 1; o += gridDim.y) {
            
            EACH {
                part() = bits_float(0x0u);
                for (int i = TID; i < 120; i += THREADS) {
                    int y0 = i;
                    float v0 = b0[i64(row) * 120 + y0];
                    float v1 = times(v0, v0);
                    part() = plus(part(), v1);
                }
            }
            float whole = BLOCK_SUM(part);
            EACH {
                if (TID == 0) b1[row + o] = whole;
            }
        }
    }
}

KERNEL(kernel_12, 256, const int* live, int rows, const float* b0, float* b1) {
    int count = live_rows(live, rows);
    Reg<float> part;
    for (int row = blockIdx.x; row < count; row += gridDim.x) {
        for (int o = blockIdx.y; o < 3; o += gridDim.y) {
            int x0 = o;
            EACH {
                part() = bits_float(0x0u);
                for (int i = TID; i < 40; i += THREADS) {
                    int y0 = i;
                    float v0 = b0[i64(row) * 120 + x0 * 40 + y0];
                    float v1 = magnitude(v0);
                    part() = plus(part(), v1);
                }
            }
            float whole = BLOCK_SUM(part);
            EACH {
                if (TID == 0) b1[i64(row) * 3 + o] = whole;
            }
        }
    }
}

KERNEL(kernel_13, 256, const int* live, int rows, const float* b0, float* b1) {
    int count = live_rows(live, rows);
    for (int row = blockIdx.x; row < count; row += gridDim.x) {
        EACH {
            for (int o = blockIdx.y * THREADS + TID; o < 40; o += gridDim.y * THREADS) {
                int x0 = o;
                float whole = bits_float(0x0u);
                for (int i = 0; i < 3; ++i) {
                    int y0 = i;
                    float v0 = b0[i64(row) * 120 + x0 + y0 * 40];
                    float v1 = magnitude(v0);
                    whole = plus(whole, v1);
                }
                b1[i64(row) * 40 + o] = whole;
            }
        }
    }
}

KERNEL(kernel_14, 256, const int* live, int rows, const float* b0, float* b1) {
    int count = live_rows(live, rows);
    Reg<float> part;
    for (int row = blockIdx.x; row < count; row += gridDim.x) {
        for (int o = blockIdx.y; o < 1; o += gridDim.y) {
            
            EACH {
                part() = bits_float(0x0u);
                for (int i = TID; i < 120; i += THREADS) {
                    int y0 = i;
                    float v0 = b0[i64(row) * 120 + y0];
                    float v1 = magnitude(v0);
                    part() = plus(part(), v1);
                }
            }
            float whole = BLOCK_SUM(part);
            EACH {
                if (TID == 0) b1[row + o] = whole;
            }
        }
    }
}

KERNEL(kernel_15, 256, const int* live, int rows, const i64* b0, i64* b1) {
    int count = live_rows(live, rows);
    for (int row = blockIdx.x; row < count; row += gridDim.x) {
        EACH {
            for (int o = blockIdx.y * THREADS + TID; o < 3; o += gridDim.y * THREADS) {
                int x0 = o;
                i64 whole = i64(0x0ull);
                for (int i = 0; i < 4; ++i) {
                    int y0 = i;
                    i64 v0 = b0[i64(row) * 12 + x0 * 4 + y0];
                    whole = plus(whole, v0);
                }
                b1[i64(row) * 3 + o] = whole;
            }
        }
    }
}

KERNEL(kernel_16, 256, const int* live, int rows, const i64* b0, i64* b1) {
    int count = live_rows(live, rows);
    for (int row = blockIdx.x; row < count; row += gridDim.x) {
        EACH {
            for (int o = blockIdx.y * THREADS + TID; o < 4; o += gridDim.y * THREADS) {
                int x0 = o;
                i64 whole = i64(0x8000000000000000ull);
                for (int i = 0; i < 3; ++i) {
                    int y0 = i;
                    i64 v0 = b0[i64(row) * 12 + x0 + y0 * 4];
                    whole = larger(whole, v0);
                }
                b1[i64(row) * 4 + o] = whole;
            }
        }
    }
}

KERNEL(kernel_17, 256, const int* live, int rows, const float* b0, float* b1, float* b2, const float* b3, const float* b4, const float* b5, const float* b6, const float* b7, const float* b8, const float* b9, const float* b10, const float* b11, const float* b12, const float* b13, const float* b14, const float* b15, const float* b16, const i64* b17, float* b18, float* b19, float* b20, float* b21, float* b22, float* b23, float* b24, float* b25, float* b26, float* b27, float* b28, float* b29, float* b30, float* b31, i64* b32, const float* b33, const float* b34, const float* b35, const float* b36, const float* b37, const float* b38, const float* b39, float* b40, float* b41, float* b42, float* b43, float* b44, float* b45, float* b46, const float* b47, const float* b48, const float* b49, const float* b50, const float* b51, const float* b52, const float* b53, float* b54, float* b55, float* b56, float* b57, float* b58, float* b59, float* b60, const i64* b61, i64* b62) {
    int count = live_rows(live, rows);
    for (int row = blockIdx.x; row < count; row += gridDim.x) {
        EACH {
            for (int i = blockIdx.y * THREADS + TID; i < 120; i += gridDim.y * THREADS) {
                int x1 = i % 3; int x0 = i / 3;
                float v0 = b0[i64(row) * 120 + x0 + x1 * 40];
                b1[i64(row) * 120 + x0 * 3 + x1] = v0;
                b2[i64(row) * 120 + x0 * 3 + x1] = v0;
            }
        }
        EACH {
            for (int i = blockIdx.y * THREADS + TID; i < 3; i += gridDim.y * THREADS) {
                int x0 = i;
                float v0 = b3[i64(row) * 3 + x0];
                float v1 = bits_float(0x42200000u);
                float v2 = over(v0, v1);
                float v3 = b4[i64(row) * 3 + x0];
                float v4 = over(v3, v1);
                float v5 = b5[i64(row) * 3 + x0];
                float v6 = b6[i64(row) * 3 + x0];
                float v7 = b7[i64(row) * 3 + x0];
                float v8 = b8[i64(row) * 3 + x0];
                float v9 = b9[i64(row) * 3 + x0];
                float v10 = root(v9);
                float v11 = b10[i64(row) * 3 + x0];
                float v12 = root(v11);
                float v13 = b11[i64(row) * 3 + x0];
                float v14 = b12[i64(row) * 3 + x0];
                float v15 = b13[i64(row) * 3 + x0];
                float v16 = b14[i64(row) * 3 + x0];
                float v17 = b15[i64(row) * 3 + x0];
                float v18 = b16[i64(row) * 3 + x0];
                i64 v19 = b17[i64(row) * 3 + x0];
                b18[i64(row) * 3 + x0] = v2;
                b19[i64(row) * 3 + x0] = v4;
                b20[i64(row) * 3 + x0] = v5;
                b21[i64(row) * 3 + x0] = v6;
                b22[i64(row) * 3 + x0] = v7;
                b23[i64(row) * 3 + x0] = v8;
                b24[i64(row) * 3 + x0] = v10;
                b25[i64(row) * 3 + x0] = v12;
                b26[i64(row) * 3 + x0] = v13;
                b27[i64(row) * 3 + x0] = v14;
                b28[i64(row) * 3 + x0] = v15;
                b29[i64(row) * 3 + x0] = v16;
                b30[i64(row) * 3 + x0] = v17;
                b31[i64(row) * 3 + x0] = v18;
                b32[i64(row) * 3 + x0] = v19;
            }
        }
        EACH {
            for (int i = blockIdx.y * THREADS + TID; i < 40; i += gridDim.y * THREADS) {
                int x0 = i;
                float v0 = b33[i64(row) * 40 + x0];
                float v1 = bits_float(0x40400000u);
                float v2 = over(v0, v1);
                float v3 = b34[i64(row) * 40 + x0];
                float v4 = b35[i64(row) * 40 + x0];
                float v5 = b36[i64(row) * 40 + x0];
                float v6 = root(v5);
                float v7 = b37[i64(row) * 40 + x0];
                float v8 = b38[i64(row) * 40 + x0];
                float v9 = b39[i64(row) * 40 + x0];
                b40[i64(row) * 40 + x0] = v2;
                b41[i64(row) * 40 + x0] = v3;
                b42[i64(row) * 40 + x0] = v4;
                b43[i64(row) * 40 + x0] = v6;
                b44[i64(row) * 40 + x0] = v7;
                b45[i64(row) * 40 + x0] = v8;
                b46[i64(row) * 40 + x0] = v9;
            }
        }
        EACH {
            for (int i = blockIdx.y * THREADS + TID; i < 1; i += gridDim.y * THREADS) {
                
                float v0 = b47[row];
                float v1 = bits_float(0x42f00000u);
                float v2 = over(v0, v1);
                float v3 = b48[row];
                float v4 = b49[row];
                float v5 = b50[row];
                float v6 = root(v5);
                float v7 = b51[row];
                float v8 = b52[row];
                float v9 = b53[row];
                b54[row] = v2;
                b55[row] = v3;
                b56[row] = v4;
                b57[row] = v6;
                b58[row] = v7;
                b59[row] = v8;
                b60[row] = v9;
            }
        }
        EACH {
            for (int i = blockIdx.y * THREADS + TID; i < 4; i += gridDim.y * THREADS) {
                int x0 = i;
                i64 v0 = b61[i64(row) * 4 + x0];
                b62[i64(row) * 4 + x0] = v0;
            }
        }
    }
}

KERNEL(kernel_18, 256, const int* live, int rows, const float* b0, const float* b1, const float* b2, const float* b3, const float* b4, float* b5, float* b6, float* b7, float* b8, float* b9, const i64* b10, i64* b11, const i64* b12, const i64* b13, i64* b14, i64* b15) {
    int count = live_rows(live, rows);
    for (int row = blockIdx.x; row < count; row += gridDim.x) {
        EACH {
            for (int i = blockIdx.y * THREADS + TID; i < 120; i += gridDim.y * THREADS) {
                int x1 = i % 40; int x0 = i / 40;
                float v0 = b0[i64(row) * 120 + x0 + x1 * 3];
                float v1 = b1[i64(row) * 120 + x0 * 40 + x1];
                float v2 = b2[i64(row) * 120 + x0 * 40 + x1];
                float v3 = b3[i64(row) * 120 + x0 * 40 + x1];
                float v4 = b4[i64(row) * 120 + x0 * 40 + x1];
                b5[i64(row) * 120 + x0 * 40 + x1] = v0;
                b6[i64(row) * 120 + x0 * 40 + x1] = v1;
                b7[i64(row) * 120 + x0 * 40 + x1] = v2;
                b8[i64(row) * 120 + x0 * 40 + x1] = v3;
                b9[i64(row) * 120 + x0 * 40 + x1] = v4;
            }
        }
        EACH {
            for (int i = blockIdx.y * THREADS + TID; i < 40; i += gridDim.y * THREADS) {
                int x0 = i;
                i64 v0 = b10[i64(row) * 40 + x0];
                b11[i64(row) * 40 + x0] = v0;
            }
        }
        EACH {
            for (int i = blockIdx.y * THREADS + TID; i < 3; i += gridDim.y * THREADS) {
                int x0 = i;
                i64 v0 = b12[i64(row) * 3 + x0];
                i64 v1 = b13[i64(row) * 3 + x0];
                b14[i64(row) * 3 + x0] = v0;
                b15[i64(row) * 3 + x0] = v1;
            }
        }
    }
}

KERNEL(head, 256, const int* live, int rows, int* counts, unsigned* faults) {
    int count = live_rows(live, rows);
    EACH {
        for (int i = TID; faults && i < rows; i += THREADS) faults[i] = 0;
        if (TID == 0) counts[0] = count * 40;
        if (TID == 0) counts[1] = count * 3;
        (void)count;
    }
}
