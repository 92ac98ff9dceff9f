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

KERNEL(kernel_0, 256, const int* live, int rows, const i64* b0, const int* b1, const unsigned char* b2, const float* b3, i64* b4, int* b5, i64* b6, int* b7, i64* b8, int* b9, i64* b10, int* b11, i64* b12, int* b13, i64* b14, int* b15, i64* b16, int* b17, float* b18, i64* b19, unsigned char* b20, unsigned char* b21, unsigned char* b22, unsigned char* b23, unsigned char* b24, unsigned char* b25, unsigned char* b26, unsigned char* b27, unsigned char* b28, unsigned char* b29, float* b30, float* b31, i64* b32, int* b33, unsigned char* b34) {
    int count = live_rows(live, rows);
    for (int row = blockIdx.x; row < count; row += gridDim.x) {
        EACH {
            for (int i = blockIdx.y * THREADS + TID; i < 5; i += gridDim.y * THREADS) {
                int x0 = i;
                i64 v0 = b0[i64(row) * 5 + x0];
                i64 v1 = i64(0x4ull);
                i64 v2 = plus(v0, v1);
                int v3 = b1[i64(row) * 5 + x0];
                int v4 = int(0x4u);
                int v5 = plus(v3, v4);
                i64 v6 = minus(v0, v1);
                int v7 = minus(v3, v4);
                i64 v8 = times(v0, v1);
                int v9 = times(v3, v4);
                i64 v10 = over(v0, v1);
                int v11 = over(v3, v4);
                i64 v12 = modulo(v0, v1);
                int v13 = modulo(v3, v4);
                i64 v14 = smaller(v0, v1);
                int v15 = smaller(v3, v4);
                i64 v16 = larger(v0, v1);
                int v17 = larger(v3, v4);
                bool v18 = b2[i64(row) * 5 + x0] != 0;
                float v19 = b3[i64(row) * 5 + x0];
                float v20 = bits_float(0x0u);
                float v21 = select(v18, v19, v20);
                bool v22 = is_less(v0, v1);
                i64 v23 = select(v22, v0, v1);
                bool v24 = is_at_most(v0, v1);
                bool v25 = equals(v0, v1);
                bool v26 = is_less(v1, v0);
                bool v27 = is_at_most(v1, v0);
                bool v28 = is_less(v20, v19);
                bool v29 = both(v22, v18);
                bool v30 = either(v22, v18);
                bool v31 = one_of(v22, v18);
                bool v32 = is_not(v18);
                float v33 = to_f32(v0);
                float v34 = to_f32(v18);
                i64 v35 = to_i64(v19);
                int v36 = to_i32(v0);
                bool v37 = to_bool(v0);
                b4[i64(row) * 5 + x0] = v2;
                b5[i64(row) * 5 + x0] = v5;
                b6[i64(row) * 5 + x0] = v6;
                b7[i64(row) * 5 + x0] = v7;
                b8[i64(row) * 5 + x0] = v8;
                b9[i64(row) * 5 + x0] = v9;
                b10[i64(row) * 5 + x0] = v10;
                b11[i64(row) * 5 + x0] = v11;
                b12[i64(row) * 5 + x0] = v12;
                b13[i64(row) * 5 + x0] = v13;
                b14[i64(row) * 5 + x0] = v14;
                b15[i64(row) * 5 + x0] = v15;
                b16[i64(row) * 5 + x0] = v16;
                b17[i64(row) * 5 + x0] = v17;
                b18[i64(row) * 5 + x0] = v21;
                b19[i64(row) * 5 + x0] = v23;
                b20[i64(row) * 5 + x0] = v22;
                b21[i64(row) * 5 + x0] = v24;
                b22[i64(row) * 5 + x0] = v25;
                b23[i64(row) * 5 + x0] = v26;
                b24[i64(row) * 5 + x0] = v27;
                b25[i64(row) * 5 + x0] = v28;
                b26[i64(row) * 5 + x0] = v29;
                b27[i64(row) * 5 + x0] = v30;
                b28[i64(row) * 5 + x0] = v31;
                b29[i64(row) * 5 + x0] = v32;
                b30[i64(row) * 5 + x0] = v33;
                b31[i64(row) * 5 + x0] = v34;
                b32[i64(row) * 5 + x0] = v35;
                b33[i64(row) * 5 + x0] = v36;
                b34[i64(row) * 5 + x0] = v37;
            }
        }
    }
}
