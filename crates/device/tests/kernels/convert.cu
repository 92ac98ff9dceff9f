// Conversions between element types, as kernels load and store them. Launch: any grid and block.

template <class From, class To> DEVICE void convert(int count, const From* from, To* to) {
    EACH {
        for (int at = blockIdx.x * THREADS + TID; at < count; at += gridDim.x * THREADS) {
            from_float(to_float(from[at]), to[at]);
        }
    }
}

KERNEL(to_f32, 256, int count, const element* from, float* to) { convert(count, from, to); }

KERNEL(from_f32, 256, int count, const float* from, element* to) { convert(count, from, to); }
