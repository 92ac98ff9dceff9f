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

KERNEL(kernel_0, 256, const int* live, int rows, const float* b0, float* b1, const float* b2, const float* b3, float* b4, float* b5, const float* b6, const float* b7, const float* b8, float* b9, const float* b10, const float* b11, float* b12) {
    int count = live_rows(live, rows);
    for (int row = blockIdx.x; row < count; row += gridDim.x) {
        EACH {
            for (int i = blockIdx.y * THREADS + TID; i < 432; i += gridDim.y * THREADS) {
                int x2 = i % 8; int x1 = i / 8 % 9; int x0 = i / 72;
                int v0 = x1 + -1;
                float v1 = unsigned(v0) < 8u ? float(b0[i64(row) * 384 + v0 * 8 + x0 * 64 + x2]) : bits_float(0x0u);
                b1[i64(row) * 432 + x0 * 72 + x1 * 8 + x2] = v1;
            }
        }
        EACH {
            for (int i = blockIdx.y * THREADS + TID; i < 140; i += gridDim.y * THREADS) {
                int x1 = i % 35; int x0 = i / 35;
                float v0 = b2[i64(row) * 140 + x0 * 35 + x1];
                float v1 = b3[x0];
                float v2 = plus(v0, v1);
                float v3 = tanhf(v2);
                b4[i64(row) * 140 + x0 * 35 + x1] = v3;
                b5[i64(row) * 140 + x0 * 35 + x1] = v2;
            }
        }
        EACH {
            for (int i = blockIdx.y * THREADS + TID; i < 126; i += gridDim.y * THREADS) {
                int x2 = i % 7; int x1 = i / 7 % 3; int x0 = i / 21;
                int v0 = x1 * 2 + -1;
                int v1 = x2 + -1;
                float v2 = unsigned(v0) < 5u && unsigned(v1) < 7u ? float(b6[i64(row) * 210 + v0 * 7 + v1 * 1 + x0 * 35]) : bits_float(0x0u);
                float v3 = b7[x0 * 9];
                float v4 = times(v2, v3);
                int v5 = x1 * 2;
                float v6 = unsigned(v5) < 5u && unsigned(v1) < 7u ? float(b6[i64(row) * 210 + v5 * 7 + v1 * 1 + x0 * 35]) : bits_float(0x0u);
                float v7 = b7[x0 * 9 + 3];
                float v8 = times(v6, v7);
                float v9 = plus(v4, v8);
                int v10 = x1 * 2 + 1;
                float v11 = unsigned(v10) < 5u && unsigned(v1) < 7u ? float(b6[i64(row) * 210 + v10 * 7 + v1 * 1 + x0 * 35]) : bits_float(0x0u);
                float v12 = b7[x0 * 9 + 6];
                float v13 = times(v11, v12);
                float v14 = plus(v9, v13);
                int v15 = x2;
                float v16 = unsigned(v0) < 5u && unsigned(v15) < 7u ? float(b6[i64(row) * 210 + v0 * 7 + v15 * 1 + x0 * 35]) : bits_float(0x0u);
                float v17 = b7[x0 * 9 + 1];
                float v18 = times(v16, v17);
                float v19 = plus(v14, v18);
                float v20 = unsigned(v5) < 5u && unsigned(v15) < 7u ? float(b6[i64(row) * 210 + v5 * 7 + v15 * 1 + x0 * 35]) : bits_float(0x0u);
                float v21 = b7[x0 * 9 + 4];
                float v22 = times(v20, v21);
                float v23 = plus(v19, v22);
                float v24 = unsigned(v10) < 5u && unsigned(v15) < 7u ? float(b6[i64(row) * 210 + v10 * 7 + v15 * 1 + x0 * 35]) : bits_float(0x0u);
                float v25 = b7[x0 * 9 + 7];
                float v26 = times(v24, v25);
                float v27 = plus(v23, v26);
                int v28 = x2 + 1;
                float v29 = unsigned(v0) < 5u && unsigned(v28) < 7u ? float(b6[i64(row) * 210 + v0 * 7 + v28 * 1 + x0 * 35]) : bits_float(0x0u);
                float v30 = b7[x0 * 9 + 2];
                float v31 = times(v29, v30);
                float v32 = plus(v27, v31);
                float v33 = unsigned(v5) < 5u && unsigned(v28) < 7u ? float(b6[i64(row) * 210 + v5 * 7 + v28 * 1 + x0 * 35]) : bits_float(0x0u);
                float v34 = b7[x0 * 9 + 5];
                float v35 = times(v33, v34);
                float v36 = plus(v32, v35);
                float v37 = unsigned(v10) < 5u && unsigned(v28) < 7u ? float(b6[i64(row) * 210 + v10 * 7 + v28 * 1 + x0 * 35]) : bits_float(0x0u);
                float v38 = b7[x0 * 9 + 8];
                float v39 = times(v37, v38);
                float v40 = plus(v36, v39);
                float v41 = b8[x0];
                float v42 = plus(v40, v41);
                b9[i64(row) * 126 + x0 * 21 + x1 * 7 + x2] = v42;
            }
        }
        EACH {
            for (int i = blockIdx.y * THREADS + TID; i < 240; i += gridDim.y * THREADS) {
                int x1 = i % 20; int x0 = i / 20;
                float v0 = b10[i64(row) * 240 + x0 * 20 + x1];
                float v1 = b11[x0];
                float v2 = plus(v0, v1);
                b12[i64(row) * 240 + x0 * 20 + x1] = v2;
            }
        }
    }
}

KERNEL(kernel_1, 256, const int* live, int rows, const float* b0, const float* b1, const float* b2, const float* b3, const float* b4, float* b5, float* b6, const float* b7, const float* b8, const float* b9, const float* b10, const float* b11, const float* b12, const float* b13, float* b14, float* b15, const float* b16, const float* b17, float* b18, const float* b19, const float* b20, float* b21) {
    int count = live_rows(live, rows);
    for (int row = blockIdx.x; row < count; row += gridDim.x) {
        EACH {
            for (int i = blockIdx.y * THREADS + TID; i < 384; i += gridDim.y * THREADS) {
                int x2 = i % 8; int x1 = i / 8 % 8; int x0 = i / 64;
                float v0 = b0[i64(row) * 384 + x0 * 64 + x1 * 8 + x2];
                float v1 = b1[x0];
                float v2 = plus(v0, v1);
                int v3 = x1 + -3;
                int v4 = x2 + -3;
                float v5 = unsigned(v3) < 8u && unsigned(v4) < 8u ? float(b2[i64(row) * 384 + v3 * 8 + v4 * 1 + x0 * 64]) : bits_float(0x0u);
                float v6 = b3[x0 * 49];
                float v7 = times(v5, v6);
                int v8 = x1 + -2;
                float v9 = unsigned(v8) < 8u && unsigned(v4) < 8u ? float(b2[i64(row) * 384 + v8 * 8 + v4 * 1 + x0 * 64]) : bits_float(0x0u);
                float v10 = b3[x0 * 49 + 7];
                float v11 = times(v9, v10);
                float v12 = plus(v7, v11);
                int v13 = x1 + -1;
                float v14 = unsigned(v13) < 8u && unsigned(v4) < 8u ? float(b2[i64(row) * 384 + v13 * 8 + v4 * 1 + x0 * 64]) : bits_float(0x0u);
                float v15 = b3[x0 * 49 + 14];
                float v16 = times(v14, v15);
                float v17 = plus(v12, v16);
                int v18 = x1;
                float v19 = unsigned(v18) < 8u && unsigned(v4) < 8u ? float(b2[i64(row) * 384 + v18 * 8 + v4 * 1 + x0 * 64]) : bits_float(0x0u);
                float v20 = b3[x0 * 49 + 21];
                float v21 = times(v19, v20);
                float v22 = plus(v17, v21);
                int v23 = x1 + 1;
                float v24 = unsigned(v23) < 8u && unsigned(v4) < 8u ? float(b2[i64(row) * 384 + v23 * 8 + v4 * 1 + x0 * 64]) : bits_float(0x0u);
                float v25 = b3[x0 * 49 + 28];
                float v26 = times(v24, v25);
                float v27 = plus(v22, v26);
                int v28 = x1 + 2;
                float v29 = unsigned(v28) < 8u && unsigned(v4) < 8u ? float(b2[i64(row) * 384 + v28 * 8 + v4 * 1 + x0 * 64]) : bits_float(0x0u);
                float v30 = b3[x0 * 49 + 35];
                float v31 = times(v29, v30);
                float v32 = plus(v27, v31);
                int v33 = x1 + 3;
                float v34 = unsigned(v33) < 8u && unsigned(v4) < 8u ? float(b2[i64(row) * 384 + v33 * 8 + v4 * 1 + x0 * 64]) : bits_float(0x0u);
                float v35 = b3[x0 * 49 + 42];
                float v36 = times(v34, v35);
                float v37 = plus(v32, v36);
                int v38 = x2 + -2;
                float v39 = unsigned(v3) < 8u && unsigned(v38) < 8u ? float(b2[i64(row) * 384 + v3 * 8 + v38 * 1 + x0 * 64]) : bits_float(0x0u);
                float v40 = b3[x0 * 49 + 1];
                float v41 = times(v39, v40);
                float v42 = plus(v37, v41);
                float v43 = unsigned(v8) < 8u && unsigned(v38) < 8u ? float(b2[i64(row) * 384 + v8 * 8 + v38 * 1 + x0 * 64]) : bits_float(0x0u);
                float v44 = b3[x0 * 49 + 8];
                float v45 = times(v43, v44);
                float v46 = plus(v42, v45);
                float v47 = unsigned(v13) < 8u && unsigned(v38) < 8u ? float(b2[i64(row) * 384 + v13 * 8 + v38 * 1 + x0 * 64]) : bits_float(0x0u);
                float v48 = b3[x0 * 49 + 15];
                float v49 = times(v47, v48);
                float v50 = plus(v46, v49);
                float v51 = unsigned(v18) < 8u && unsigned(v38) < 8u ? float(b2[i64(row) * 384 + v18 * 8 + v38 * 1 + x0 * 64]) : bits_float(0x0u);
                float v52 = b3[x0 * 49 + 22];
                float v53 = times(v51, v52);
                float v54 = plus(v50, v53);
                float v55 = unsigned(v23) < 8u && unsigned(v38) < 8u ? float(b2[i64(row) * 384 + v23 * 8 + v38 * 1 + x0 * 64]) : bits_float(0x0u);
                float v56 = b3[x0 * 49 + 29];
                float v57 = times(v55, v56);
                float v58 = plus(v54, v57);
                float v59 = unsigned(v28) < 8u && unsigned(v38) < 8u ? float(b2[i64(row) * 384 + v28 * 8 + v38 * 1 + x0 * 64]) : bits_float(0x0u);
                float v60 = b3[x0 * 49 + 36];
                float v61 = times(v59, v60);
                float v62 = plus(v58, v61);
                float v63 = unsigned(v33) < 8u && unsigned(v38) < 8u ? float(b2[i64(row) * 384 + v33 * 8 + v38 * 1 + x0 * 64]) : bits_float(0x0u);
                float v64 = b3[x0 * 49 + 43];
                float v65 = times(v63, v64);
                float v66 = plus(v62, v65);
                int v67 = x2 + -1;
                float v68 = unsigned(v3) < 8u && unsigned(v67) < 8u ? float(b2[i64(row) * 384 + v3 * 8 + v67 * 1 + x0 * 64]) : bits_float(0x0u);
                float v69 = b3[x0 * 49 + 2];
                float v70 = times(v68, v69);
                float v71 = plus(v66, v70);
                float v72 = unsigned(v8) < 8u && unsigned(v67) < 8u ? float(b2[i64(row) * 384 + v8 * 8 + v67 * 1 + x0 * 64]) : bits_float(0x0u);
                float v73 = b3[x0 * 49 + 9];
                float v74 = times(v72, v73);
                float v75 = plus(v71, v74);
                float v76 = unsigned(v13) < 8u && unsigned(v67) < 8u ? float(b2[i64(row) * 384 + v13 * 8 + v67 * 1 + x0 * 64]) : bits_float(0x0u);
                float v77 = b3[x0 * 49 + 16];
                float v78 = times(v76, v77);
                float v79 = plus(v75, v78);
                float v80 = unsigned(v18) < 8u && unsigned(v67) < 8u ? float(b2[i64(row) * 384 + v18 * 8 + v67 * 1 + x0 * 64]) : bits_float(0x0u);
                float v81 = b3[x0 * 49 + 23];
                float v82 = times(v80, v81);
                float v83 = plus(v79, v82);
                float v84 = unsigned(v23) < 8u && unsigned(v67) < 8u ? float(b2[i64(row) * 384 + v23 * 8 + v67 * 1 + x0 * 64]) : bits_float(0x0u);
                float v85 = b3[x0 * 49 + 30];
                float v86 = times(v84, v85);
                float v87 = plus(v83, v86);
                float v88 = unsigned(v28) < 8u && unsigned(v67) < 8u ? float(b2[i64(row) * 384 + v28 * 8 + v67 * 1 + x0 * 64]) : bits_float(0x0u);
                float v89 = b3[x0 * 49 + 37];
                float v90 = times(v88, v89);
                float v91 = plus(v87, v90);
                float v92 = unsigned(v33) < 8u && unsigned(v67) < 8u ? float(b2[i64(row) * 384 + v33 * 8 + v67 * 1 + x0 * 64]) : bits_float(0x0u);
                float v93 = b3[x0 * 49 + 44];
                float v94 = times(v92, v93);
                float v95 = plus(v91, v94);
                int v96 = x2;
                float v97 = unsigned(v3) < 8u && unsigned(v96) < 8u ? float(b2[i64(row) * 384 + v3 * 8 + v96 * 1 + x0 * 64]) : bits_float(0x0u);
                float v98 = b3[x0 * 49 + 3];
                float v99 = times(v97, v98);
                float v100 = plus(v95, v99);
                float v101 = unsigned(v8) < 8u && unsigned(v96) < 8u ? float(b2[i64(row) * 384 + v8 * 8 + v96 * 1 + x0 * 64]) : bits_float(0x0u);
                float v102 = b3[x0 * 49 + 10];
                float v103 = times(v101, v102);
                float v104 = plus(v100, v103);
                float v105 = unsigned(v13) < 8u && unsigned(v96) < 8u ? float(b2[i64(row) * 384 + v13 * 8 + v96 * 1 + x0 * 64]) : bits_float(0x0u);
                float v106 = b3[x0 * 49 + 17];
                float v107 = times(v105, v106);
                float v108 = plus(v104, v107);
                float v109 = unsigned(v18) < 8u && unsigned(v96) < 8u ? float(b2[i64(row) * 384 + v18 * 8 + v96 * 1 + x0 * 64]) : bits_float(0x0u);
                float v110 = b3[x0 * 49 + 24];
                float v111 = times(v109, v110);
                float v112 = plus(v108, v111);
                float v113 = unsigned(v23) < 8u && unsigned(v96) < 8u ? float(b2[i64(row) * 384 + v23 * 8 + v96 * 1 + x0 * 64]) : bits_float(0x0u);
                float v114 = b3[x0 * 49 + 31];
                float v115 = times(v113, v114);
                float v116 = plus(v112, v115);
                float v117 = unsigned(v28) < 8u && unsigned(v96) < 8u ? float(b2[i64(row) * 384 + v28 * 8 + v96 * 1 + x0 * 64]) : bits_float(0x0u);
                float v118 = b3[x0 * 49 + 38];
                float v119 = times(v117, v118);
                float v120 = plus(v116, v119);
                float v121 = unsigned(v33) < 8u && unsigned(v96) < 8u ? float(b2[i64(row) * 384 + v33 * 8 + v96 * 1 + x0 * 64]) : bits_float(0x0u);
                float v122 = b3[x0 * 49 + 45];
                float v123 = times(v121, v122);
                float v124 = plus(v120, v123);
                int v125 = x2 + 1;
                float v126 = unsigned(v3) < 8u && unsigned(v125) < 8u ? float(b2[i64(row) * 384 + v3 * 8 + v125 * 1 + x0 * 64]) : bits_float(0x0u);
                float v127 = b3[x0 * 49 + 4];
                float v128 = times(v126, v127);
                float v129 = plus(v124, v128);
                float v130 = unsigned(v8) < 8u && unsigned(v125) < 8u ? float(b2[i64(row) * 384 + v8 * 8 + v125 * 1 + x0 * 64]) : bits_float(0x0u);
                float v131 = b3[x0 * 49 + 11];
                float v132 = times(v130, v131);
                float v133 = plus(v129, v132);
                float v134 = unsigned(v13) < 8u && unsigned(v125) < 8u ? float(b2[i64(row) * 384 + v13 * 8 + v125 * 1 + x0 * 64]) : bits_float(0x0u);
                float v135 = b3[x0 * 49 + 18];
                float v136 = times(v134, v135);
                float v137 = plus(v133, v136);
                float v138 = unsigned(v18) < 8u && unsigned(v125) < 8u ? float(b2[i64(row) * 384 + v18 * 8 + v125 * 1 + x0 * 64]) : bits_float(0x0u);
                float v139 = b3[x0 * 49 + 25];
                float v140 = times(v138, v139);
                float v141 = plus(v137, v140);
                float v142 = unsigned(v23) < 8u && unsigned(v125) < 8u ? float(b2[i64(row) * 384 + v23 * 8 + v125 * 1 + x0 * 64]) : bits_float(0x0u);
                float v143 = b3[x0 * 49 + 32];
                float v144 = times(v142, v143);
                float v145 = plus(v141, v144);
                float v146 = unsigned(v28) < 8u && unsigned(v125) < 8u ? float(b2[i64(row) * 384 + v28 * 8 + v125 * 1 + x0 * 64]) : bits_float(0x0u);
                float v147 = b3[x0 * 49 + 39];
                float v148 = times(v146, v147);
                float v149 = plus(v145, v148);
                float v150 = unsigned(v33) < 8u && unsigned(v125) < 8u ? float(b2[i64(row) * 384 + v33 * 8 + v125 * 1 + x0 * 64]) : bits_float(0x0u);
                float v151 = b3[x0 * 49 + 46];
                float v152 = times(v150, v151);
                float v153 = plus(v149, v152);
                int v154 = x2 + 2;
                float v155 = unsigned(v3) < 8u && unsigned(v154) < 8u ? float(b2[i64(row) * 384 + v3 * 8 + v154 * 1 + x0 * 64]) : bits_float(0x0u);
                float v156 = b3[x0 * 49 + 5];
                float v157 = times(v155, v156);
                float v158 = plus(v153, v157);
                float v159 = unsigned(v8) < 8u && unsigned(v154) < 8u ? float(b2[i64(row) * 384 + v8 * 8 + v154 * 1 + x0 * 64]) : bits_float(0x0u);
                float v160 = b3[x0 * 49 + 12];
                float v161 = times(v159, v160);
                float v162 = plus(v158, v161);
                float v163 = unsigned(v13) < 8u && unsigned(v154) < 8u ? float(b2[i64(row) * 384 + v13 * 8 + v154 * 1 + x0 * 64]) : bits_float(0x0u);
                float v164 = b3[x0 * 49 + 19];
                float v165 = times(v163, v164);
                float v166 = plus(v162, v165);
                float v167 = unsigned(v18) < 8u && unsigned(v154) < 8u ? float(b2[i64(row) * 384 + v18 * 8 + v154 * 1 + x0 * 64]) : bits_float(0x0u);
                float v168 = b3[x0 * 49 + 26];
                float v169 = times(v167, v168);
                float v170 = plus(v166, v169);
                float v171 = unsigned(v23) < 8u && unsigned(v154) < 8u ? float(b2[i64(row) * 384 + v23 * 8 + v154 * 1 + x0 * 64]) : bits_float(0x0u);
                float v172 = b3[x0 * 49 + 33];
                float v173 = times(v171, v172);
                float v174 = plus(v170, v173);
                float v175 = unsigned(v28) < 8u && unsigned(v154) < 8u ? float(b2[i64(row) * 384 + v28 * 8 + v154 * 1 + x0 * 64]) : bits_float(0x0u);
                float v176 = b3[x0 * 49 + 40];
                float v177 = times(v175, v176);
                float v178 = plus(v174, v177);
                float v179 = unsigned(v33) < 8u && unsigned(v154) < 8u ? float(b2[i64(row) * 384 + v33 * 8 + v154 * 1 + x0 * 64]) : bits_float(0x0u);
                float v180 = b3[x0 * 49 + 47];
                float v181 = times(v179, v180);
                float v182 = plus(v178, v181);
                int v183 = x2 + 3;
                float v184 = unsigned(v3) < 8u && unsigned(v183) < 8u ? float(b2[i64(row) * 384 + v3 * 8 + v183 * 1 + x0 * 64]) : bits_float(0x0u);
                float v185 = b3[x0 * 49 + 6];
                float v186 = times(v184, v185);
                float v187 = plus(v182, v186);
                float v188 = unsigned(v8) < 8u && unsigned(v183) < 8u ? float(b2[i64(row) * 384 + v8 * 8 + v183 * 1 + x0 * 64]) : bits_float(0x0u);
                float v189 = b3[x0 * 49 + 13];
                float v190 = times(v188, v189);
                float v191 = plus(v187, v190);
                float v192 = unsigned(v13) < 8u && unsigned(v183) < 8u ? float(b2[i64(row) * 384 + v13 * 8 + v183 * 1 + x0 * 64]) : bits_float(0x0u);
                float v193 = b3[x0 * 49 + 20];
                float v194 = times(v192, v193);
                float v195 = plus(v191, v194);
                float v196 = unsigned(v18) < 8u && unsigned(v183) < 8u ? float(b2[i64(row) * 384 + v18 * 8 + v183 * 1 + x0 * 64]) : bits_float(0x0u);
                float v197 = b3[x0 * 49 + 27];
                float v198 = times(v196, v197);
                float v199 = plus(v195, v198);
                float v200 = unsigned(v23) < 8u && unsigned(v183) < 8u ? float(b2[i64(row) * 384 + v23 * 8 + v183 * 1 + x0 * 64]) : bits_float(0x0u);
                float v201 = b3[x0 * 49 + 34];
                float v202 = times(v200, v201);
                float v203 = plus(v199, v202);
                float v204 = unsigned(v28) < 8u && unsigned(v183) < 8u ? float(b2[i64(row) * 384 + v28 * 8 + v183 * 1 + x0 * 64]) : bits_float(0x0u);
                float v205 = b3[x0 * 49 + 41];
                float v206 = times(v204, v205);
                float v207 = plus(v203, v206);
                float v208 = unsigned(v33) < 8u && unsigned(v183) < 8u ? float(b2[i64(row) * 384 + v33 * 8 + v183 * 1 + x0 * 64]) : bits_float(0x0u);
                float v209 = b3[x0 * 49 + 48];
                float v210 = times(v208, v209);
                float v211 = plus(v207, v210);
                float v212 = b4[x0];
                float v213 = plus(v211, v212);
                b5[i64(row) * 384 + x0 * 64 + x1 * 8 + x2] = v2;
                b6[i64(row) * 384 + x0 * 64 + x1 * 8 + x2] = v213;
            }
        }
        EACH {
            for (int i = blockIdx.y * THREADS + TID; i < 72; i += gridDim.y * THREADS) {
                int x2 = i % 6; int x1 = i / 6 % 3; int x0 = i / 18;
                int v0 = int(0x0u);
                int v1 = x2;
                bool v2 = is_at_most(v0, v1);
                int v3 = int(0x7u);
                bool v4 = is_less(v1, v3);
                bool v5 = both(v2, v4);
                int v6 = x1 * 2 + -2;
                bool v7 = is_at_most(v0, v6);
                int v8 = int(0x5u);
                bool v9 = is_less(v6, v8);
                bool v10 = both(v7, v9);
                float v11 = unsigned(v6) < 5u && unsigned(v1) < 7u ? float(b7[i64(row) * 140 + v6 * 7 + v1 * 1 + x0 * 35]) : bits_float(0x0u);
                float v12 = b8[x0];
                float v13 = plus(v11, v12);
                float v14 = bits_float(0x3e2aaaabu);
                float v15 = times(v13, v14);
                float v16 = bits_float(0x3f000000u);
                float v17 = plus(v15, v16);
                float v18 = bits_float(0x0u);
                float v19 = larger(v17, v18);
                float v20 = bits_float(0x3f800000u);
                float v21 = smaller(v19, v20);
                float v22 = times(v13, v21);
                float v23 = select(v10, v22, v18);
                float v24 = select(v5, v23, v18);
                float v25 = b9[x0 * 9];
                float v26 = times(v24, v25);
                int v27 = x1 * 2 + -1;
                bool v28 = is_at_most(v0, v27);
                bool v29 = is_less(v27, v8);
                bool v30 = both(v28, v29);
                float v31 = unsigned(v27) < 5u && unsigned(v1) < 7u ? float(b7[i64(row) * 140 + v27 * 7 + v1 * 1 + x0 * 35]) : bits_float(0x0u);
                float v32 = plus(v31, v12);
                float v33 = times(v32, v14);
                float v34 = plus(v33, v16);
                float v35 = larger(v34, v18);
                float v36 = smaller(v35, v20);
                float v37 = times(v32, v36);
                float v38 = select(v30, v37, v18);
                float v39 = select(v5, v38, v18);
                float v40 = b9[x0 * 9 + 3];
                float v41 = times(v39, v40);
                float v42 = plus(v26, v41);
                int v43 = x1 * 2;
                bool v44 = is_at_most(v0, v43);
                bool v45 = is_less(v43, v8);
                bool v46 = both(v44, v45);
                float v47 = unsigned(v43) < 5u && unsigned(v1) < 7u ? float(b7[i64(row) * 140 + v43 * 7 + v1 * 1 + x0 * 35]) : bits_float(0x0u);
                float v48 = plus(v47, v12);
                float v49 = times(v48, v14);
                float v50 = plus(v49, v16);
                float v51 = larger(v50, v18);
                float v52 = smaller(v51, v20);
                float v53 = times(v48, v52);
                float v54 = select(v46, v53, v18);
                float v55 = select(v5, v54, v18);
                float v56 = b9[x0 * 9 + 6];
                float v57 = times(v55, v56);
                float v58 = plus(v42, v57);
                int v59 = x2 + 1;
                bool v60 = is_at_most(v0, v59);
                bool v61 = is_less(v59, v3);
                bool v62 = both(v60, v61);
                float v63 = unsigned(v6) < 5u && unsigned(v59) < 7u ? float(b7[i64(row) * 140 + v6 * 7 + v59 * 1 + x0 * 35]) : bits_float(0x0u);
                float v64 = plus(v63, v12);
                float v65 = times(v64, v14);
                float v66 = plus(v65, v16);
                float v67 = larger(v66, v18);
                float v68 = smaller(v67, v20);
                float v69 = times(v64, v68);
                float v70 = select(v10, v69, v18);
                float v71 = select(v62, v70, v18);
                float v72 = b9[x0 * 9 + 1];
                float v73 = times(v71, v72);
                float v74 = plus(v58, v73);
                float v75 = unsigned(v27) < 5u && unsigned(v59) < 7u ? float(b7[i64(row) * 140 + v27 * 7 + v59 * 1 + x0 * 35]) : bits_float(0x0u);
                float v76 = plus(v75, v12);
                float v77 = times(v76, v14);
                float v78 = plus(v77, v16);
                float v79 = larger(v78, v18);
                float v80 = smaller(v79, v20);
                float v81 = times(v76, v80);
                float v82 = select(v30, v81, v18);
                float v83 = select(v62, v82, v18);
                float v84 = b9[x0 * 9 + 4];
                float v85 = times(v83, v84);
                float v86 = plus(v74, v85);
                float v87 = unsigned(v43) < 5u && unsigned(v59) < 7u ? float(b7[i64(row) * 140 + v43 * 7 + v59 * 1 + x0 * 35]) : bits_float(0x0u);
                float v88 = plus(v87, v12);
                float v89 = times(v88, v14);
                float v90 = plus(v89, v16);
                float v91 = larger(v90, v18);
                float v92 = smaller(v91, v20);
                float v93 = times(v88, v92);
                float v94 = select(v46, v93, v18);
                float v95 = select(v62, v94, v18);
                float v96 = b9[x0 * 9 + 7];
                float v97 = times(v95, v96);
                float v98 = plus(v86, v97);
                int v99 = x2 + 2;
                bool v100 = is_at_most(v0, v99);
                bool v101 = is_less(v99, v3);
                bool v102 = both(v100, v101);
                float v103 = unsigned(v6) < 5u && unsigned(v99) < 7u ? float(b7[i64(row) * 140 + v6 * 7 + v99 * 1 + x0 * 35]) : bits_float(0x0u);
                float v104 = plus(v103, v12);
                float v105 = times(v104, v14);
                float v106 = plus(v105, v16);
                float v107 = larger(v106, v18);
                float v108 = smaller(v107, v20);
                float v109 = times(v104, v108);
                float v110 = select(v10, v109, v18);
                float v111 = select(v102, v110, v18);
                float v112 = b9[x0 * 9 + 2];
                float v113 = times(v111, v112);
                float v114 = plus(v98, v113);
                float v115 = unsigned(v27) < 5u && unsigned(v99) < 7u ? float(b7[i64(row) * 140 + v27 * 7 + v99 * 1 + x0 * 35]) : bits_float(0x0u);
                float v116 = plus(v115, v12);
                float v117 = times(v116, v14);
                float v118 = plus(v117, v16);
                float v119 = larger(v118, v18);
                float v120 = smaller(v119, v20);
                float v121 = times(v116, v120);
                float v122 = select(v30, v121, v18);
                float v123 = select(v102, v122, v18);
                float v124 = b9[x0 * 9 + 5];
                float v125 = times(v123, v124);
                float v126 = plus(v114, v125);
                float v127 = unsigned(v43) < 5u && unsigned(v99) < 7u ? float(b7[i64(row) * 140 + v43 * 7 + v99 * 1 + x0 * 35]) : bits_float(0x0u);
                float v128 = plus(v127, v12);
                float v129 = times(v128, v14);
                float v130 = plus(v129, v16);
                float v131 = larger(v130, v18);
                float v132 = smaller(v131, v20);
                float v133 = times(v128, v132);
                float v134 = select(v46, v133, v18);
                float v135 = select(v102, v134, v18);
                float v136 = b9[x0 * 9 + 8];
                float v137 = times(v135, v136);
                float v138 = plus(v126, v137);
                float v139 = b10[x0];
                float v140 = plus(v138, v139);
                float v141 = unsigned(v6) < 5u && unsigned(v1) < 7u ? float(b11[i64(row) * 140 + v6 * 7 + v1 * 1 + x0 * 35]) : bits_float(0x0u);
                float v142 = b12[x0 * 9];
                float v143 = times(v141, v142);
                float v144 = unsigned(v27) < 5u && unsigned(v1) < 7u ? float(b11[i64(row) * 140 + v27 * 7 + v1 * 1 + x0 * 35]) : bits_float(0x0u);
                float v145 = b12[x0 * 9 + 3];
                float v146 = times(v144, v145);
                float v147 = plus(v143, v146);
                float v148 = unsigned(v43) < 5u && unsigned(v1) < 7u ? float(b11[i64(row) * 140 + v43 * 7 + v1 * 1 + x0 * 35]) : bits_float(0x0u);
                float v149 = b12[x0 * 9 + 6];
                float v150 = times(v148, v149);
                float v151 = plus(v147, v150);
                float v152 = unsigned(v6) < 5u && unsigned(v59) < 7u ? float(b11[i64(row) * 140 + v6 * 7 + v59 * 1 + x0 * 35]) : bits_float(0x0u);
                float v153 = b12[x0 * 9 + 1];
                float v154 = times(v152, v153);
                float v155 = plus(v151, v154);
                float v156 = unsigned(v27) < 5u && unsigned(v59) < 7u ? float(b11[i64(row) * 140 + v27 * 7 + v59 * 1 + x0 * 35]) : bits_float(0x0u);
                float v157 = b12[x0 * 9 + 4];
                float v158 = times(v156, v157);
                float v159 = plus(v155, v158);
                float v160 = unsigned(v43) < 5u && unsigned(v59) < 7u ? float(b11[i64(row) * 140 + v43 * 7 + v59 * 1 + x0 * 35]) : bits_float(0x0u);
                float v161 = b12[x0 * 9 + 7];
                float v162 = times(v160, v161);
                float v163 = plus(v159, v162);
                float v164 = unsigned(v6) < 5u && unsigned(v99) < 7u ? float(b11[i64(row) * 140 + v6 * 7 + v99 * 1 + x0 * 35]) : bits_float(0x0u);
                float v165 = b12[x0 * 9 + 2];
                float v166 = times(v164, v165);
                float v167 = plus(v163, v166);
                float v168 = unsigned(v27) < 5u && unsigned(v99) < 7u ? float(b11[i64(row) * 140 + v27 * 7 + v99 * 1 + x0 * 35]) : bits_float(0x0u);
                float v169 = b12[x0 * 9 + 5];
                float v170 = times(v168, v169);
                float v171 = plus(v167, v170);
                float v172 = unsigned(v43) < 5u && unsigned(v99) < 7u ? float(b11[i64(row) * 140 + v43 * 7 + v99 * 1 + x0 * 35]) : bits_float(0x0u);
                float v173 = b12[x0 * 9 + 8];
                float v174 = times(v172, v173);
                float v175 = plus(v171, v174);
                float v176 = b13[x0];
                float v177 = plus(v175, v176);
                b14[i64(row) * 72 + x0 * 18 + x1 * 6 + x2] = v140;
                b15[i64(row) * 72 + x0 * 18 + x1 * 6 + x2] = v177;
            }
        }
        EACH {
            for (int i = blockIdx.y * THREADS + TID; i < 96; i += gridDim.y * THREADS) {
                int x2 = i % 4; int x1 = i / 4 % 4; int x0 = i / 16;
                int v0 = x1 * 2 + -1;
                int v1 = x2 * 2 + -2;
                float v2 = unsigned(v0) < 8u && unsigned(v1) < 8u ? float(b2[i64(row) * 384 + v0 * 8 + v1 * 1 + x0 * 64]) : bits_float(0x0u);
                float v3 = b16[x0 * 25];
                float v4 = times(v2, v3);
                int v5 = x1 * 2;
                float v6 = unsigned(v5) < 8u && unsigned(v1) < 8u ? float(b2[i64(row) * 384 + v5 * 8 + v1 * 1 + x0 * 64]) : bits_float(0x0u);
                float v7 = b16[x0 * 25 + 5];
                float v8 = times(v6, v7);
                float v9 = plus(v4, v8);
                int v10 = x1 * 2 + 1;
                float v11 = unsigned(v10) < 8u && unsigned(v1) < 8u ? float(b2[i64(row) * 384 + v10 * 8 + v1 * 1 + x0 * 64]) : bits_float(0x0u);
                float v12 = b16[x0 * 25 + 10];
                float v13 = times(v11, v12);
                float v14 = plus(v9, v13);
                int v15 = x1 * 2 + 2;
                float v16 = unsigned(v15) < 8u && unsigned(v1) < 8u ? float(b2[i64(row) * 384 + v15 * 8 + v1 * 1 + x0 * 64]) : bits_float(0x0u);
                float v17 = b16[x0 * 25 + 15];
                float v18 = times(v16, v17);
                float v19 = plus(v14, v18);
                int v20 = x1 * 2 + 3;
                float v21 = unsigned(v20) < 8u && unsigned(v1) < 8u ? float(b2[i64(row) * 384 + v20 * 8 + v1 * 1 + x0 * 64]) : bits_float(0x0u);
                float v22 = b16[x0 * 25 + 20];
                float v23 = times(v21, v22);
                float v24 = plus(v19, v23);
                int v25 = x2 * 2 + -1;
                float v26 = unsigned(v0) < 8u && unsigned(v25) < 8u ? float(b2[i64(row) * 384 + v0 * 8 + v25 * 1 + x0 * 64]) : bits_float(0x0u);
                float v27 = b16[x0 * 25 + 1];
                float v28 = times(v26, v27);
                float v29 = plus(v24, v28);
                float v30 = unsigned(v5) < 8u && unsigned(v25) < 8u ? float(b2[i64(row) * 384 + v5 * 8 + v25 * 1 + x0 * 64]) : bits_float(0x0u);
                float v31 = b16[x0 * 25 + 6];
                float v32 = times(v30, v31);
                float v33 = plus(v29, v32);
                float v34 = unsigned(v10) < 8u && unsigned(v25) < 8u ? float(b2[i64(row) * 384 + v10 * 8 + v25 * 1 + x0 * 64]) : bits_float(0x0u);
                float v35 = b16[x0 * 25 + 11];
                float v36 = times(v34, v35);
                float v37 = plus(v33, v36);
                float v38 = unsigned(v15) < 8u && unsigned(v25) < 8u ? float(b2[i64(row) * 384 + v15 * 8 + v25 * 1 + x0 * 64]) : bits_float(0x0u);
                float v39 = b16[x0 * 25 + 16];
                float v40 = times(v38, v39);
                float v41 = plus(v37, v40);
                float v42 = unsigned(v20) < 8u && unsigned(v25) < 8u ? float(b2[i64(row) * 384 + v20 * 8 + v25 * 1 + x0 * 64]) : bits_float(0x0u);
                float v43 = b16[x0 * 25 + 21];
                float v44 = times(v42, v43);
                float v45 = plus(v41, v44);
                int v46 = x2 * 2;
                float v47 = unsigned(v0) < 8u && unsigned(v46) < 8u ? float(b2[i64(row) * 384 + v0 * 8 + v46 * 1 + x0 * 64]) : bits_float(0x0u);
                float v48 = b16[x0 * 25 + 2];
                float v49 = times(v47, v48);
                float v50 = plus(v45, v49);
                float v51 = unsigned(v5) < 8u && unsigned(v46) < 8u ? float(b2[i64(row) * 384 + v5 * 8 + v46 * 1 + x0 * 64]) : bits_float(0x0u);
                float v52 = b16[x0 * 25 + 7];
                float v53 = times(v51, v52);
                float v54 = plus(v50, v53);
                float v55 = unsigned(v10) < 8u && unsigned(v46) < 8u ? float(b2[i64(row) * 384 + v10 * 8 + v46 * 1 + x0 * 64]) : bits_float(0x0u);
                float v56 = b16[x0 * 25 + 12];
                float v57 = times(v55, v56);
                float v58 = plus(v54, v57);
                float v59 = unsigned(v15) < 8u && unsigned(v46) < 8u ? float(b2[i64(row) * 384 + v15 * 8 + v46 * 1 + x0 * 64]) : bits_float(0x0u);
                float v60 = b16[x0 * 25 + 17];
                float v61 = times(v59, v60);
                float v62 = plus(v58, v61);
                float v63 = unsigned(v20) < 8u && unsigned(v46) < 8u ? float(b2[i64(row) * 384 + v20 * 8 + v46 * 1 + x0 * 64]) : bits_float(0x0u);
                float v64 = b16[x0 * 25 + 22];
                float v65 = times(v63, v64);
                float v66 = plus(v62, v65);
                int v67 = x2 * 2 + 1;
                float v68 = unsigned(v0) < 8u && unsigned(v67) < 8u ? float(b2[i64(row) * 384 + v0 * 8 + v67 * 1 + x0 * 64]) : bits_float(0x0u);
                float v69 = b16[x0 * 25 + 3];
                float v70 = times(v68, v69);
                float v71 = plus(v66, v70);
                float v72 = unsigned(v5) < 8u && unsigned(v67) < 8u ? float(b2[i64(row) * 384 + v5 * 8 + v67 * 1 + x0 * 64]) : bits_float(0x0u);
                float v73 = b16[x0 * 25 + 8];
                float v74 = times(v72, v73);
                float v75 = plus(v71, v74);
                float v76 = unsigned(v10) < 8u && unsigned(v67) < 8u ? float(b2[i64(row) * 384 + v10 * 8 + v67 * 1 + x0 * 64]) : bits_float(0x0u);
                float v77 = b16[x0 * 25 + 13];
                float v78 = times(v76, v77);
                float v79 = plus(v75, v78);
                float v80 = unsigned(v15) < 8u && unsigned(v67) < 8u ? float(b2[i64(row) * 384 + v15 * 8 + v67 * 1 + x0 * 64]) : bits_float(0x0u);
                float v81 = b16[x0 * 25 + 18];
                float v82 = times(v80, v81);
                float v83 = plus(v79, v82);
                float v84 = unsigned(v20) < 8u && unsigned(v67) < 8u ? float(b2[i64(row) * 384 + v20 * 8 + v67 * 1 + x0 * 64]) : bits_float(0x0u);
                float v85 = b16[x0 * 25 + 23];
                float v86 = times(v84, v85);
                float v87 = plus(v83, v86);
                int v88 = x2 * 2 + 2;
                float v89 = unsigned(v0) < 8u && unsigned(v88) < 8u ? float(b2[i64(row) * 384 + v0 * 8 + v88 * 1 + x0 * 64]) : bits_float(0x0u);
                float v90 = b16[x0 * 25 + 4];
                float v91 = times(v89, v90);
                float v92 = plus(v87, v91);
                float v93 = unsigned(v5) < 8u && unsigned(v88) < 8u ? float(b2[i64(row) * 384 + v5 * 8 + v88 * 1 + x0 * 64]) : bits_float(0x0u);
                float v94 = b16[x0 * 25 + 9];
                float v95 = times(v93, v94);
                float v96 = plus(v92, v95);
                float v97 = unsigned(v10) < 8u && unsigned(v88) < 8u ? float(b2[i64(row) * 384 + v10 * 8 + v88 * 1 + x0 * 64]) : bits_float(0x0u);
                float v98 = b16[x0 * 25 + 14];
                float v99 = times(v97, v98);
                float v100 = plus(v96, v99);
                float v101 = unsigned(v15) < 8u && unsigned(v88) < 8u ? float(b2[i64(row) * 384 + v15 * 8 + v88 * 1 + x0 * 64]) : bits_float(0x0u);
                float v102 = b16[x0 * 25 + 19];
                float v103 = times(v101, v102);
                float v104 = plus(v100, v103);
                float v105 = unsigned(v20) < 8u && unsigned(v88) < 8u ? float(b2[i64(row) * 384 + v20 * 8 + v88 * 1 + x0 * 64]) : bits_float(0x0u);
                float v106 = b16[x0 * 25 + 24];
                float v107 = times(v105, v106);
                float v108 = plus(v104, v107);
                float v109 = b17[x0];
                float v110 = plus(v108, v109);
                b18[i64(row) * 96 + x0 * 16 + x1 * 4 + x2] = v110;
            }
        }
        EACH {
            for (int i = blockIdx.y * THREADS + TID; i < 48; i += gridDim.y * THREADS) {
                int x2 = i % 2; int x1 = i / 2 % 4; int x0 = i / 8;
                float v0 = b2[i64(row) * 384 + x0 * 64 + x1 * 8 + x2];
                float v1 = b19[x0 * 9];
                float v2 = times(v0, v1);
                float v3 = b2[i64(row) * 384 + x0 * 64 + x1 * 8 + x2 + 16];
                float v4 = b19[x0 * 9 + 3];
                float v5 = times(v3, v4);
                float v6 = plus(v2, v5);
                float v7 = b2[i64(row) * 384 + x0 * 64 + x1 * 8 + x2 + 32];
                float v8 = b19[x0 * 9 + 6];
                float v9 = times(v7, v8);
                float v10 = plus(v6, v9);
                float v11 = b2[i64(row) * 384 + x0 * 64 + x1 * 8 + x2 + 3];
                float v12 = b19[x0 * 9 + 1];
                float v13 = times(v11, v12);
                float v14 = plus(v10, v13);
                float v15 = b2[i64(row) * 384 + x0 * 64 + x1 * 8 + x2 + 19];
                float v16 = b19[x0 * 9 + 4];
                float v17 = times(v15, v16);
                float v18 = plus(v14, v17);
                float v19 = b2[i64(row) * 384 + x0 * 64 + x1 * 8 + x2 + 35];
                float v20 = b19[x0 * 9 + 7];
                float v21 = times(v19, v20);
                float v22 = plus(v18, v21);
                float v23 = b2[i64(row) * 384 + x0 * 64 + x1 * 8 + x2 + 6];
                float v24 = b19[x0 * 9 + 2];
                float v25 = times(v23, v24);
                float v26 = plus(v22, v25);
                float v27 = b2[i64(row) * 384 + x0 * 64 + x1 * 8 + x2 + 22];
                float v28 = b19[x0 * 9 + 5];
                float v29 = times(v27, v28);
                float v30 = plus(v26, v29);
                float v31 = b2[i64(row) * 384 + x0 * 64 + x1 * 8 + x2 + 38];
                float v32 = b19[x0 * 9 + 8];
                float v33 = times(v31, v32);
                float v34 = plus(v30, v33);
                float v35 = b20[x0];
                float v36 = plus(v34, v35);
                b21[i64(row) * 48 + x0 * 8 + x1 * 2 + x2] = v36;
            }
        }
    }
}
