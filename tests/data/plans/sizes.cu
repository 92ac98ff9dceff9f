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

KERNEL(kernel_0, 256, const int* live, int rows, const int* b0, const int* b1, const float* b2, const float* b3, const float* b4, const int* b5, const float* b6, const int* b7, const float* b8, const int* b9, const int* b10, const int* b11, const int* b12, const int* b13, const int* b14, const int* b15, const int* b16, const int* b17, const int* b18, const float* b19, const float* b20, const int* b21, const float* b22, const int* b23, const float* b24, const int* b25, const int* b26, const int* b27, const int* b28, const int* b29, const int* b30, const int* b31, const int* b32, const int* b33, const int* b34, const float* b35, const float* b36, const int* b37, const float* b38, const int* b39, const float* b40, const int* b41, const int* b42, const int* b43, const int* b44, const int* b45, const int* b46, const int* b47, const int* b48, const int* b49, const int* b50, const float* b51, const float* b52, const int* b53, const float* b54, const int* b55, const float* b56, const int* b57, const int* b58, const int* b59, const int* b60, const int* b61, const int* b62, const int* b63, const int* b64, float* b65, float* b66, float* b67, float* b68, float* b69, float* b70, float* b71, float* b72, float* b73, float* b74, float* b75, float* b76, float* b77, float* b78, float* b79, float* b80, float* b81, float* b82, float* b83, float* b84, const int* b85, const int* b86, const float* b87, const float* b88, const int* b89, const float* b90, const int* b91, const float* b92, const int* b93, const int* b94, const int* b95, const int* b96, const int* b97, const int* b98, const int* b99, const int* b100, const int* b101, const int* b102, const float* b103, const float* b104, const int* b105, const float* b106, const int* b107, const float* b108, const int* b109, const int* b110, const int* b111, const int* b112, const int* b113, const int* b114, const int* b115, const int* b116, const int* b117, const int* b118, const float* b119, const float* b120, const int* b121, const float* b122, const int* b123, const float* b124, const int* b125, const int* b126, const int* b127, const int* b128, const int* b129, const int* b130, const int* b131, const int* b132, const int* b133, const int* b134, const float* b135, const float* b136, const int* b137, const float* b138, const int* b139, const float* b140, const int* b141, const int* b142, const int* b143, const int* b144, const int* b145, const int* b146, const int* b147, const int* b148, float* b149, float* b150, float* b151, float* b152, float* b153, float* b154, float* b155, float* b156, float* b157, float* b158, float* b159, float* b160, float* b161, float* b162, float* b163, float* b164, float* b165, float* b166, float* b167, float* b168, const int* b169, const float* b170, const int* b171, const float* b172, const int* b173, const int* b174, const int* b175, const int* b176, const int* b177, const float* b178, const int* b179, const float* b180, const int* b181, const int* b182, const int* b183, const int* b184, const int* b185, const float* b186, const int* b187, const float* b188, const int* b189, const int* b190, const int* b191, const int* b192, const int* b193, const float* b194, const int* b195, const float* b196, const int* b197, const int* b198, const int* b199, const int* b200, float* b201, float* b202, float* b203, float* b204, float* b205, float* b206, float* b207, float* b208, float* b209, float* b210, float* b211, float* b212, float* b213, float* b214, float* b215, float* b216, float* b217, float* b218, float* b219, float* b220, const int* b221, const int* b222, const int* b223, const int* b224, const float* b225, const float* b226, const int* b227, const float* b228, const int* b229, const float* b230, float* b231, float* b232) {
    int count = live_rows(live, rows);
    for (int row = blockIdx.x; row < count; row += gridDim.x) {
        EACH {
            for (int i = blockIdx.y * THREADS + TID; i < 288; i += gridDim.y * THREADS) {
                int x2 = i % 18; int x1 = i / 18 % 8; int x0 = i / 144;
                int v0 = b0[x1];
                int v1 = b1[x2];
                float v2 = unsigned(v0) < 4u && unsigned(v1) < 6u ? float(b2[i64(row) * 48 + v0 * 6 + v1 * 1 + x0 * 24]) : bits_float(0x0u);
                float v3 = b3[x1];
                float v4 = times(v2, v3);
                float v5 = b4[x2];
                float v6 = times(v4, v5);
                int v7 = b5[x1];
                float v8 = unsigned(v7) < 4u && unsigned(v1) < 6u ? float(b2[i64(row) * 48 + v7 * 6 + v1 * 1 + x0 * 24]) : bits_float(0x0u);
                float v9 = b6[x1];
                float v10 = times(v8, v9);
                float v11 = times(v10, v5);
                float v12 = plus(v6, v11);
                int v13 = b7[x2];
                float v14 = unsigned(v0) < 4u && unsigned(v13) < 6u ? float(b2[i64(row) * 48 + v0 * 6 + v13 * 1 + x0 * 24]) : bits_float(0x0u);
                float v15 = times(v14, v3);
                float v16 = b8[x2];
                float v17 = times(v15, v16);
                float v18 = plus(v12, v17);
                float v19 = unsigned(v7) < 4u && unsigned(v13) < 6u ? float(b2[i64(row) * 48 + v7 * 6 + v13 * 1 + x0 * 24]) : bits_float(0x0u);
                float v20 = times(v19, v9);
                float v21 = times(v20, v16);
                float v22 = plus(v18, v21);
                int v23 = b9[x1];
                int v24 = b10[x2];
                float v25 = unsigned(v23) < 4u && unsigned(v24) < 6u ? float(b2[i64(row) * 48 + v23 * 6 + v24 * 1 + x0 * 24]) : bits_float(0x0u);
                int v26 = b11[x1];
                int v27 = b12[x2];
                float v28 = unsigned(v26) < 4u && unsigned(v27) < 6u ? float(b2[i64(row) * 48 + v26 * 6 + v27 * 1 + x0 * 24]) : bits_float(0x0u);
                int v29 = b13[x1];
                int v30 = b14[x2];
                float v31 = unsigned(v29) < 4u && unsigned(v30) < 6u ? float(b2[i64(row) * 48 + v29 * 6 + v30 * 1 + x0 * 24]) : bits_float(0x0u);
                int v32 = b15[x1];
                int v33 = b16[x2];
                float v34 = unsigned(v32) < 4u && unsigned(v33) < 6u ? float(b2[i64(row) * 48 + v32 * 6 + v33 * 1 + x0 * 24]) : bits_float(0x0u);
                int v35 = b17[x1];
                int v36 = b18[x2];
                float v37 = unsigned(v35) < 4u && unsigned(v36) < 6u ? float(b2[i64(row) * 48 + v35 * 6 + v36 * 1 + x0 * 24]) : bits_float(0x0u);
                float v38 = b19[x1];
                float v39 = times(v37, v38);
                float v40 = b20[x2];
                float v41 = times(v39, v40);
                int v42 = b21[x1];
                float v43 = unsigned(v42) < 4u && unsigned(v36) < 6u ? float(b2[i64(row) * 48 + v42 * 6 + v36 * 1 + x0 * 24]) : bits_float(0x0u);
                float v44 = b22[x1];
                float v45 = times(v43, v44);
                float v46 = times(v45, v40);
                float v47 = plus(v41, v46);
                int v48 = b23[x2];
                float v49 = unsigned(v35) < 4u && unsigned(v48) < 6u ? float(b2[i64(row) * 48 + v35 * 6 + v48 * 1 + x0 * 24]) : bits_float(0x0u);
                float v50 = times(v49, v38);
                float v51 = b24[x2];
                float v52 = times(v50, v51);
                float v53 = plus(v47, v52);
                float v54 = unsigned(v42) < 4u && unsigned(v48) < 6u ? float(b2[i64(row) * 48 + v42 * 6 + v48 * 1 + x0 * 24]) : bits_float(0x0u);
                float v55 = times(v54, v44);
                float v56 = times(v55, v51);
                float v57 = plus(v53, v56);
                int v58 = b25[x1];
                int v59 = b26[x2];
                float v60 = unsigned(v58) < 4u && unsigned(v59) < 6u ? float(b2[i64(row) * 48 + v58 * 6 + v59 * 1 + x0 * 24]) : bits_float(0x0u);
                int v61 = b27[x1];
                int v62 = b28[x2];
                float v63 = unsigned(v61) < 4u && unsigned(v62) < 6u ? float(b2[i64(row) * 48 + v61 * 6 + v62 * 1 + x0 * 24]) : bits_float(0x0u);
                int v64 = b29[x1];
                int v65 = b30[x2];
                float v66 = unsigned(v64) < 4u && unsigned(v65) < 6u ? float(b2[i64(row) * 48 + v64 * 6 + v65 * 1 + x0 * 24]) : bits_float(0x0u);
                int v67 = b31[x1];
                int v68 = b32[x2];
                float v69 = unsigned(v67) < 4u && unsigned(v68) < 6u ? float(b2[i64(row) * 48 + v67 * 6 + v68 * 1 + x0 * 24]) : bits_float(0x0u);
                int v70 = b33[x1];
                int v71 = b34[x2];
                float v72 = unsigned(v70) < 4u && unsigned(v71) < 6u ? float(b2[i64(row) * 48 + v70 * 6 + v71 * 1 + x0 * 24]) : bits_float(0x0u);
                float v73 = b35[x1];
                float v74 = times(v72, v73);
                float v75 = b36[x2];
                float v76 = times(v74, v75);
                int v77 = b37[x1];
                float v78 = unsigned(v77) < 4u && unsigned(v71) < 6u ? float(b2[i64(row) * 48 + v77 * 6 + v71 * 1 + x0 * 24]) : bits_float(0x0u);
                float v79 = b38[x1];
                float v80 = times(v78, v79);
                float v81 = times(v80, v75);
                float v82 = plus(v76, v81);
                int v83 = b39[x2];
                float v84 = unsigned(v70) < 4u && unsigned(v83) < 6u ? float(b2[i64(row) * 48 + v70 * 6 + v83 * 1 + x0 * 24]) : bits_float(0x0u);
                float v85 = times(v84, v73);
                float v86 = b40[x2];
                float v87 = times(v85, v86);
                float v88 = plus(v82, v87);
                float v89 = unsigned(v77) < 4u && unsigned(v83) < 6u ? float(b2[i64(row) * 48 + v77 * 6 + v83 * 1 + x0 * 24]) : bits_float(0x0u);
                float v90 = times(v89, v79);
                float v91 = times(v90, v86);
                float v92 = plus(v88, v91);
                int v93 = b41[x1];
                int v94 = b42[x2];
                float v95 = unsigned(v93) < 4u && unsigned(v94) < 6u ? float(b2[i64(row) * 48 + v93 * 6 + v94 * 1 + x0 * 24]) : bits_float(0x0u);
                int v96 = b43[x1];
                int v97 = b44[x2];
                float v98 = unsigned(v96) < 4u && unsigned(v97) < 6u ? float(b2[i64(row) * 48 + v96 * 6 + v97 * 1 + x0 * 24]) : bits_float(0x0u);
                int v99 = b45[x1];
                int v100 = b46[x2];
                float v101 = unsigned(v99) < 4u && unsigned(v100) < 6u ? float(b2[i64(row) * 48 + v99 * 6 + v100 * 1 + x0 * 24]) : bits_float(0x0u);
                int v102 = b47[x1];
                int v103 = b48[x2];
                float v104 = unsigned(v102) < 4u && unsigned(v103) < 6u ? float(b2[i64(row) * 48 + v102 * 6 + v103 * 1 + x0 * 24]) : bits_float(0x0u);
                int v105 = b49[x1];
                int v106 = b50[x2];
                float v107 = unsigned(v105) < 4u && unsigned(v106) < 6u ? float(b2[i64(row) * 48 + v105 * 6 + v106 * 1 + x0 * 24]) : bits_float(0x0u);
                float v108 = b51[x1];
                float v109 = times(v107, v108);
                float v110 = b52[x2];
                float v111 = times(v109, v110);
                int v112 = b53[x1];
                float v113 = unsigned(v112) < 4u && unsigned(v106) < 6u ? float(b2[i64(row) * 48 + v112 * 6 + v106 * 1 + x0 * 24]) : bits_float(0x0u);
                float v114 = b54[x1];
                float v115 = times(v113, v114);
                float v116 = times(v115, v110);
                float v117 = plus(v111, v116);
                int v118 = b55[x2];
                float v119 = unsigned(v105) < 4u && unsigned(v118) < 6u ? float(b2[i64(row) * 48 + v105 * 6 + v118 * 1 + x0 * 24]) : bits_float(0x0u);
                float v120 = times(v119, v108);
                float v121 = b56[x2];
                float v122 = times(v120, v121);
                float v123 = plus(v117, v122);
                float v124 = unsigned(v112) < 4u && unsigned(v118) < 6u ? float(b2[i64(row) * 48 + v112 * 6 + v118 * 1 + x0 * 24]) : bits_float(0x0u);
                float v125 = times(v124, v114);
                float v126 = times(v125, v121);
                float v127 = plus(v123, v126);
                int v128 = b57[x1];
                int v129 = b58[x2];
                float v130 = unsigned(v128) < 4u && unsigned(v129) < 6u ? float(b2[i64(row) * 48 + v128 * 6 + v129 * 1 + x0 * 24]) : bits_float(0x0u);
                int v131 = b59[x1];
                int v132 = b60[x2];
                float v133 = unsigned(v131) < 4u && unsigned(v132) < 6u ? float(b2[i64(row) * 48 + v131 * 6 + v132 * 1 + x0 * 24]) : bits_float(0x0u);
                int v134 = b61[x1];
                int v135 = b62[x2];
                float v136 = unsigned(v134) < 4u && unsigned(v135) < 6u ? float(b2[i64(row) * 48 + v134 * 6 + v135 * 1 + x0 * 24]) : bits_float(0x0u);
                int v137 = b63[x1];
                int v138 = b64[x2];
                float v139 = unsigned(v137) < 4u && unsigned(v138) < 6u ? float(b2[i64(row) * 48 + v137 * 6 + v138 * 1 + x0 * 24]) : bits_float(0x0u);
                b65[i64(row) * 288 + x0 * 144 + x1 * 18 + x2] = v22;
                b66[i64(row) * 288 + x0 * 144 + x1 * 18 + x2] = v25;
                b67[i64(row) * 288 + x0 * 144 + x1 * 18 + x2] = v28;
                b68[i64(row) * 288 + x0 * 144 + x1 * 18 + x2] = v31;
                b69[i64(row) * 288 + x0 * 144 + x1 * 18 + x2] = v34;
                b70[i64(row) * 288 + x0 * 144 + x1 * 18 + x2] = v57;
                b71[i64(row) * 288 + x0 * 144 + x1 * 18 + x2] = v60;
                b72[i64(row) * 288 + x0 * 144 + x1 * 18 + x2] = v63;
                b73[i64(row) * 288 + x0 * 144 + x1 * 18 + x2] = v66;
                b74[i64(row) * 288 + x0 * 144 + x1 * 18 + x2] = v69;
                b75[i64(row) * 288 + x0 * 144 + x1 * 18 + x2] = v92;
                b76[i64(row) * 288 + x0 * 144 + x1 * 18 + x2] = v95;
                b77[i64(row) * 288 + x0 * 144 + x1 * 18 + x2] = v98;
                b78[i64(row) * 288 + x0 * 144 + x1 * 18 + x2] = v101;
                b79[i64(row) * 288 + x0 * 144 + x1 * 18 + x2] = v104;
                b80[i64(row) * 288 + x0 * 144 + x1 * 18 + x2] = v127;
                b81[i64(row) * 288 + x0 * 144 + x1 * 18 + x2] = v130;
                b82[i64(row) * 288 + x0 * 144 + x1 * 18 + x2] = v133;
                b83[i64(row) * 288 + x0 * 144 + x1 * 18 + x2] = v136;
                b84[i64(row) * 288 + x0 * 144 + x1 * 18 + x2] = v139;
            }
        }
        EACH {
            for (int i = blockIdx.y * THREADS + TID; i < 32; i += gridDim.y * THREADS) {
                int x2 = i % 8; int x1 = i / 8 % 2; int x0 = i / 16;
                int v0 = b85[x1];
                int v1 = b86[x2];
                float v2 = unsigned(v0) < 4u && unsigned(v1) < 6u ? float(b2[i64(row) * 48 + v0 * 6 + v1 * 1 + x0 * 24]) : bits_float(0x0u);
                float v3 = b87[x1];
                float v4 = times(v2, v3);
                float v5 = b88[x2];
                float v6 = times(v4, v5);
                int v7 = b89[x1];
                float v8 = unsigned(v7) < 4u && unsigned(v1) < 6u ? float(b2[i64(row) * 48 + v7 * 6 + v1 * 1 + x0 * 24]) : bits_float(0x0u);
                float v9 = b90[x1];
                float v10 = times(v8, v9);
                float v11 = times(v10, v5);
                float v12 = plus(v6, v11);
                int v13 = b91[x2];
                float v14 = unsigned(v0) < 4u && unsigned(v13) < 6u ? float(b2[i64(row) * 48 + v0 * 6 + v13 * 1 + x0 * 24]) : bits_float(0x0u);
                float v15 = times(v14, v3);
                float v16 = b92[x2];
                float v17 = times(v15, v16);
                float v18 = plus(v12, v17);
                float v19 = unsigned(v7) < 4u && unsigned(v13) < 6u ? float(b2[i64(row) * 48 + v7 * 6 + v13 * 1 + x0 * 24]) : bits_float(0x0u);
                float v20 = times(v19, v9);
                float v21 = times(v20, v16);
                float v22 = plus(v18, v21);
                int v23 = b93[x1];
                int v24 = b94[x2];
                float v25 = unsigned(v23) < 4u && unsigned(v24) < 6u ? float(b2[i64(row) * 48 + v23 * 6 + v24 * 1 + x0 * 24]) : bits_float(0x0u);
                int v26 = b95[x1];
                int v27 = b96[x2];
                float v28 = unsigned(v26) < 4u && unsigned(v27) < 6u ? float(b2[i64(row) * 48 + v26 * 6 + v27 * 1 + x0 * 24]) : bits_float(0x0u);
                int v29 = b97[x1];
                int v30 = b98[x2];
                float v31 = unsigned(v29) < 4u && unsigned(v30) < 6u ? float(b2[i64(row) * 48 + v29 * 6 + v30 * 1 + x0 * 24]) : bits_float(0x0u);
                int v32 = b99[x1];
                int v33 = b100[x2];
                float v34 = unsigned(v32) < 4u && unsigned(v33) < 6u ? float(b2[i64(row) * 48 + v32 * 6 + v33 * 1 + x0 * 24]) : bits_float(0x0u);
                int v35 = b101[x1];
                int v36 = b102[x2];
                float v37 = unsigned(v35) < 4u && unsigned(v36) < 6u ? float(b2[i64(row) * 48 + v35 * 6 + v36 * 1 + x0 * 24]) : bits_float(0x0u);
                float v38 = b103[x1];
                float v39 = times(v37, v38);
                float v40 = b104[x2];
                float v41 = times(v39, v40);
                int v42 = b105[x1];
                float v43 = unsigned(v42) < 4u && unsigned(v36) < 6u ? float(b2[i64(row) * 48 + v42 * 6 + v36 * 1 + x0 * 24]) : bits_float(0x0u);
                float v44 = b106[x1];
                float v45 = times(v43, v44);
                float v46 = times(v45, v40);
                float v47 = plus(v41, v46);
                int v48 = b107[x2];
                float v49 = unsigned(v35) < 4u && unsigned(v48) < 6u ? float(b2[i64(row) * 48 + v35 * 6 + v48 * 1 + x0 * 24]) : bits_float(0x0u);
                float v50 = times(v49, v38);
                float v51 = b108[x2];
                float v52 = times(v50, v51);
                float v53 = plus(v47, v52);
                float v54 = unsigned(v42) < 4u && unsigned(v48) < 6u ? float(b2[i64(row) * 48 + v42 * 6 + v48 * 1 + x0 * 24]) : bits_float(0x0u);
                float v55 = times(v54, v44);
                float v56 = times(v55, v51);
                float v57 = plus(v53, v56);
                int v58 = b109[x1];
                int v59 = b110[x2];
                float v60 = unsigned(v58) < 4u && unsigned(v59) < 6u ? float(b2[i64(row) * 48 + v58 * 6 + v59 * 1 + x0 * 24]) : bits_float(0x0u);
                int v61 = b111[x1];
                int v62 = b112[x2];
                float v63 = unsigned(v61) < 4u && unsigned(v62) < 6u ? float(b2[i64(row) * 48 + v61 * 6 + v62 * 1 + x0 * 24]) : bits_float(0x0u);
                int v64 = b113[x1];
                int v65 = b114[x2];
                float v66 = unsigned(v64) < 4u && unsigned(v65) < 6u ? float(b2[i64(row) * 48 + v64 * 6 + v65 * 1 + x0 * 24]) : bits_float(0x0u);
                int v67 = b115[x1];
                int v68 = b116[x2];
                float v69 = unsigned(v67) < 4u && unsigned(v68) < 6u ? float(b2[i64(row) * 48 + v67 * 6 + v68 * 1 + x0 * 24]) : bits_float(0x0u);
                int v70 = b117[x1];
                int v71 = b118[x2];
                float v72 = unsigned(v70) < 4u && unsigned(v71) < 6u ? float(b2[i64(row) * 48 + v70 * 6 + v71 * 1 + x0 * 24]) : bits_float(0x0u);
                float v73 = b119[x1];
                float v74 = times(v72, v73);
                float v75 = b120[x2];
                float v76 = times(v74, v75);
                int v77 = b121[x1];
                float v78 = unsigned(v77) < 4u && unsigned(v71) < 6u ? float(b2[i64(row) * 48 + v77 * 6 + v71 * 1 + x0 * 24]) : bits_float(0x0u);
                float v79 = b122[x1];
                float v80 = times(v78, v79);
                float v81 = times(v80, v75);
                float v82 = plus(v76, v81);
                int v83 = b123[x2];
                float v84 = unsigned(v70) < 4u && unsigned(v83) < 6u ? float(b2[i64(row) * 48 + v70 * 6 + v83 * 1 + x0 * 24]) : bits_float(0x0u);
                float v85 = times(v84, v73);
                float v86 = b124[x2];
                float v87 = times(v85, v86);
                float v88 = plus(v82, v87);
                float v89 = unsigned(v77) < 4u && unsigned(v83) < 6u ? float(b2[i64(row) * 48 + v77 * 6 + v83 * 1 + x0 * 24]) : bits_float(0x0u);
                float v90 = times(v89, v79);
                float v91 = times(v90, v86);
                float v92 = plus(v88, v91);
                int v93 = b125[x1];
                int v94 = b126[x2];
                float v95 = unsigned(v93) < 4u && unsigned(v94) < 6u ? float(b2[i64(row) * 48 + v93 * 6 + v94 * 1 + x0 * 24]) : bits_float(0x0u);
                int v96 = b127[x1];
                int v97 = b128[x2];
                float v98 = unsigned(v96) < 4u && unsigned(v97) < 6u ? float(b2[i64(row) * 48 + v96 * 6 + v97 * 1 + x0 * 24]) : bits_float(0x0u);
                int v99 = b129[x1];
                int v100 = b130[x2];
                float v101 = unsigned(v99) < 4u && unsigned(v100) < 6u ? float(b2[i64(row) * 48 + v99 * 6 + v100 * 1 + x0 * 24]) : bits_float(0x0u);
                int v102 = b131[x1];
                int v103 = b132[x2];
                float v104 = unsigned(v102) < 4u && unsigned(v103) < 6u ? float(b2[i64(row) * 48 + v102 * 6 + v103 * 1 + x0 * 24]) : bits_float(0x0u);
                int v105 = b133[x1];
                int v106 = b134[x2];
                float v107 = unsigned(v105) < 4u && unsigned(v106) < 6u ? float(b2[i64(row) * 48 + v105 * 6 + v106 * 1 + x0 * 24]) : bits_float(0x0u);
                float v108 = b135[x1];
                float v109 = times(v107, v108);
                float v110 = b136[x2];
                float v111 = times(v109, v110);
                int v112 = b137[x1];
                float v113 = unsigned(v112) < 4u && unsigned(v106) < 6u ? float(b2[i64(row) * 48 + v112 * 6 + v106 * 1 + x0 * 24]) : bits_float(0x0u);
                float v114 = b138[x1];
                float v115 = times(v113, v114);
                float v116 = times(v115, v110);
                float v117 = plus(v111, v116);
                int v118 = b139[x2];
                float v119 = unsigned(v105) < 4u && unsigned(v118) < 6u ? float(b2[i64(row) * 48 + v105 * 6 + v118 * 1 + x0 * 24]) : bits_float(0x0u);
                float v120 = times(v119, v108);
                float v121 = b140[x2];
                float v122 = times(v120, v121);
                float v123 = plus(v117, v122);
                float v124 = unsigned(v112) < 4u && unsigned(v118) < 6u ? float(b2[i64(row) * 48 + v112 * 6 + v118 * 1 + x0 * 24]) : bits_float(0x0u);
                float v125 = times(v124, v114);
                float v126 = times(v125, v121);
                float v127 = plus(v123, v126);
                int v128 = b141[x1];
                int v129 = b142[x2];
                float v130 = unsigned(v128) < 4u && unsigned(v129) < 6u ? float(b2[i64(row) * 48 + v128 * 6 + v129 * 1 + x0 * 24]) : bits_float(0x0u);
                int v131 = b143[x1];
                int v132 = b144[x2];
                float v133 = unsigned(v131) < 4u && unsigned(v132) < 6u ? float(b2[i64(row) * 48 + v131 * 6 + v132 * 1 + x0 * 24]) : bits_float(0x0u);
                int v134 = b145[x1];
                int v135 = b146[x2];
                float v136 = unsigned(v134) < 4u && unsigned(v135) < 6u ? float(b2[i64(row) * 48 + v134 * 6 + v135 * 1 + x0 * 24]) : bits_float(0x0u);
                int v137 = b147[x1];
                int v138 = b148[x2];
                float v139 = unsigned(v137) < 4u && unsigned(v138) < 6u ? float(b2[i64(row) * 48 + v137 * 6 + v138 * 1 + x0 * 24]) : bits_float(0x0u);
                b149[i64(row) * 32 + x0 * 16 + x1 * 8 + x2] = v22;
                b150[i64(row) * 32 + x0 * 16 + x1 * 8 + x2] = v25;
                b151[i64(row) * 32 + x0 * 16 + x1 * 8 + x2] = v28;
                b152[i64(row) * 32 + x0 * 16 + x1 * 8 + x2] = v31;
                b153[i64(row) * 32 + x0 * 16 + x1 * 8 + x2] = v34;
                b154[i64(row) * 32 + x0 * 16 + x1 * 8 + x2] = v57;
                b155[i64(row) * 32 + x0 * 16 + x1 * 8 + x2] = v60;
                b156[i64(row) * 32 + x0 * 16 + x1 * 8 + x2] = v63;
                b157[i64(row) * 32 + x0 * 16 + x1 * 8 + x2] = v66;
                b158[i64(row) * 32 + x0 * 16 + x1 * 8 + x2] = v69;
                b159[i64(row) * 32 + x0 * 16 + x1 * 8 + x2] = v92;
                b160[i64(row) * 32 + x0 * 16 + x1 * 8 + x2] = v95;
                b161[i64(row) * 32 + x0 * 16 + x1 * 8 + x2] = v98;
                b162[i64(row) * 32 + x0 * 16 + x1 * 8 + x2] = v101;
                b163[i64(row) * 32 + x0 * 16 + x1 * 8 + x2] = v104;
                b164[i64(row) * 32 + x0 * 16 + x1 * 8 + x2] = v127;
                b165[i64(row) * 32 + x0 * 16 + x1 * 8 + x2] = v130;
                b166[i64(row) * 32 + x0 * 16 + x1 * 8 + x2] = v133;
                b167[i64(row) * 32 + x0 * 16 + x1 * 8 + x2] = v136;
                b168[i64(row) * 32 + x0 * 16 + x1 * 8 + x2] = v139;
            }
        }
        EACH {
            for (int i = blockIdx.y * THREADS + TID; i < 16; i += gridDim.y * THREADS) {
                int x1 = i % 2; int x0 = i / 2;
                int v0 = b169[x1];
                float v1 = unsigned(v0) < 6u ? float(b2[i64(row) * 48 + v0 * 1 + x0 * 6]) : bits_float(0x0u);
                float v2 = b170[x1];
                float v3 = times(v1, v2);
                int v4 = b171[x1];
                float v5 = unsigned(v4) < 6u ? float(b2[i64(row) * 48 + v4 * 1 + x0 * 6]) : bits_float(0x0u);
                float v6 = b172[x1];
                float v7 = times(v5, v6);
                float v8 = plus(v3, v7);
                int v9 = b173[x1];
                float v10 = unsigned(v9) < 6u ? float(b2[i64(row) * 48 + v9 * 1 + x0 * 6]) : bits_float(0x0u);
                int v11 = b174[x1];
                float v12 = unsigned(v11) < 6u ? float(b2[i64(row) * 48 + v11 * 1 + x0 * 6]) : bits_float(0x0u);
                int v13 = b175[x1];
                float v14 = unsigned(v13) < 6u ? float(b2[i64(row) * 48 + v13 * 1 + x0 * 6]) : bits_float(0x0u);
                int v15 = b176[x1];
                float v16 = unsigned(v15) < 6u ? float(b2[i64(row) * 48 + v15 * 1 + x0 * 6]) : bits_float(0x0u);
                int v17 = b177[x1];
                float v18 = unsigned(v17) < 6u ? float(b2[i64(row) * 48 + v17 * 1 + x0 * 6]) : bits_float(0x0u);
                float v19 = b178[x1];
                float v20 = times(v18, v19);
                int v21 = b179[x1];
                float v22 = unsigned(v21) < 6u ? float(b2[i64(row) * 48 + v21 * 1 + x0 * 6]) : bits_float(0x0u);
                float v23 = b180[x1];
                float v24 = times(v22, v23);
                float v25 = plus(v20, v24);
                int v26 = b181[x1];
                float v27 = unsigned(v26) < 6u ? float(b2[i64(row) * 48 + v26 * 1 + x0 * 6]) : bits_float(0x0u);
                int v28 = b182[x1];
                float v29 = unsigned(v28) < 6u ? float(b2[i64(row) * 48 + v28 * 1 + x0 * 6]) : bits_float(0x0u);
                int v30 = b183[x1];
                float v31 = unsigned(v30) < 6u ? float(b2[i64(row) * 48 + v30 * 1 + x0 * 6]) : bits_float(0x0u);
                int v32 = b184[x1];
                float v33 = unsigned(v32) < 6u ? float(b2[i64(row) * 48 + v32 * 1 + x0 * 6]) : bits_float(0x0u);
                int v34 = b185[x1];
                float v35 = unsigned(v34) < 6u ? float(b2[i64(row) * 48 + v34 * 1 + x0 * 6]) : bits_float(0x0u);
                float v36 = b186[x1];
                float v37 = times(v35, v36);
                int v38 = b187[x1];
                float v39 = unsigned(v38) < 6u ? float(b2[i64(row) * 48 + v38 * 1 + x0 * 6]) : bits_float(0x0u);
                float v40 = b188[x1];
                float v41 = times(v39, v40);
                float v42 = plus(v37, v41);
                int v43 = b189[x1];
                float v44 = unsigned(v43) < 6u ? float(b2[i64(row) * 48 + v43 * 1 + x0 * 6]) : bits_float(0x0u);
                int v45 = b190[x1];
                float v46 = unsigned(v45) < 6u ? float(b2[i64(row) * 48 + v45 * 1 + x0 * 6]) : bits_float(0x0u);
                int v47 = b191[x1];
                float v48 = unsigned(v47) < 6u ? float(b2[i64(row) * 48 + v47 * 1 + x0 * 6]) : bits_float(0x0u);
                int v49 = b192[x1];
                float v50 = unsigned(v49) < 6u ? float(b2[i64(row) * 48 + v49 * 1 + x0 * 6]) : bits_float(0x0u);
                int v51 = b193[x1];
                float v52 = unsigned(v51) < 6u ? float(b2[i64(row) * 48 + v51 * 1 + x0 * 6]) : bits_float(0x0u);
                float v53 = b194[x1];
                float v54 = times(v52, v53);
                int v55 = b195[x1];
                float v56 = unsigned(v55) < 6u ? float(b2[i64(row) * 48 + v55 * 1 + x0 * 6]) : bits_float(0x0u);
                float v57 = b196[x1];
                float v58 = times(v56, v57);
                float v59 = plus(v54, v58);
                int v60 = b197[x1];
                float v61 = unsigned(v60) < 6u ? float(b2[i64(row) * 48 + v60 * 1 + x0 * 6]) : bits_float(0x0u);
                int v62 = b198[x1];
                float v63 = unsigned(v62) < 6u ? float(b2[i64(row) * 48 + v62 * 1 + x0 * 6]) : bits_float(0x0u);
                int v64 = b199[x1];
                float v65 = unsigned(v64) < 6u ? float(b2[i64(row) * 48 + v64 * 1 + x0 * 6]) : bits_float(0x0u);
                int v66 = b200[x1];
                float v67 = unsigned(v66) < 6u ? float(b2[i64(row) * 48 + v66 * 1 + x0 * 6]) : bits_float(0x0u);
                b201[i64(row) * 16 + x0 * 2 + x1] = v8;
                b202[i64(row) * 16 + x0 * 2 + x1] = v10;
                b203[i64(row) * 16 + x0 * 2 + x1] = v12;
                b204[i64(row) * 16 + x0 * 2 + x1] = v14;
                b205[i64(row) * 16 + x0 * 2 + x1] = v16;
                b206[i64(row) * 16 + x0 * 2 + x1] = v25;
                b207[i64(row) * 16 + x0 * 2 + x1] = v27;
                b208[i64(row) * 16 + x0 * 2 + x1] = v29;
                b209[i64(row) * 16 + x0 * 2 + x1] = v31;
                b210[i64(row) * 16 + x0 * 2 + x1] = v33;
                b211[i64(row) * 16 + x0 * 2 + x1] = v42;
                b212[i64(row) * 16 + x0 * 2 + x1] = v44;
                b213[i64(row) * 16 + x0 * 2 + x1] = v46;
                b214[i64(row) * 16 + x0 * 2 + x1] = v48;
                b215[i64(row) * 16 + x0 * 2 + x1] = v50;
                b216[i64(row) * 16 + x0 * 2 + x1] = v59;
                b217[i64(row) * 16 + x0 * 2 + x1] = v61;
                b218[i64(row) * 16 + x0 * 2 + x1] = v63;
                b219[i64(row) * 16 + x0 * 2 + x1] = v65;
                b220[i64(row) * 16 + x0 * 2 + x1] = v67;
            }
        }
        EACH {
            for (int i = blockIdx.y * THREADS + TID; i < 126; i += gridDim.y * THREADS) {
                int x2 = i % 9; int x1 = i / 9 % 7; int x0 = i / 63;
                int v0 = b221[x1];
                int v1 = b222[x2];
                float v2 = unsigned(v0) < 4u && unsigned(v1) < 6u ? float(b2[i64(row) * 48 + v0 * 6 + v1 * 1 + x0 * 24]) : bits_float(0x0u);
                int v3 = b223[x1];
                int v4 = b224[x2];
                float v5 = unsigned(v3) < 4u && unsigned(v4) < 6u ? float(b2[i64(row) * 48 + v3 * 6 + v4 * 1 + x0 * 24]) : bits_float(0x0u);
                float v6 = b225[x1];
                float v7 = times(v5, v6);
                float v8 = b226[x2];
                float v9 = times(v7, v8);
                int v10 = b227[x1];
                float v11 = unsigned(v10) < 4u && unsigned(v4) < 6u ? float(b2[i64(row) * 48 + v10 * 6 + v4 * 1 + x0 * 24]) : bits_float(0x0u);
                float v12 = b228[x1];
                float v13 = times(v11, v12);
                float v14 = times(v13, v8);
                float v15 = plus(v9, v14);
                int v16 = b229[x2];
                float v17 = unsigned(v3) < 4u && unsigned(v16) < 6u ? float(b2[i64(row) * 48 + v3 * 6 + v16 * 1 + x0 * 24]) : bits_float(0x0u);
                float v18 = times(v17, v6);
                float v19 = b230[x2];
                float v20 = times(v18, v19);
                float v21 = plus(v15, v20);
                float v22 = unsigned(v10) < 4u && unsigned(v16) < 6u ? float(b2[i64(row) * 48 + v10 * 6 + v16 * 1 + x0 * 24]) : bits_float(0x0u);
                float v23 = times(v22, v12);
                float v24 = times(v23, v19);
                float v25 = plus(v21, v24);
                b231[i64(row) * 126 + x0 * 63 + x1 * 9 + x2] = v2;
                b232[i64(row) * 126 + x0 * 63 + x1 * 9 + x2] = v25;
            }
        }
    }
}
