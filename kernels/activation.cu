// Bias and activation, and conversions between fp32 and the element type. Rows from `live` on are neither read nor
// written.
//
// Launch: blockIdx.x runs over rows, blockIdx.y over pieces of a row; any grid covers all rows.

// The activations of bias_activation, by the numbers that its callers pass.
enum Activation { NONE = 0, RELU = 1, TANH = 2, SIGMOID = 3, GELU_ERF = 4, GELU_TANH = 5, CLIP = 6 };

DEVICE float activate(float x, int activation, float low, float high) {
    switch (activation) {
        case RELU: return x < 0.0f ? 0.0f : x;  // NaN stays.
        case TANH: return tanhf(x);
        case SIGMOID: return sigmoid(x);
        case GELU_ERF: return 0.5f * x * (1.0f + erff(x * 0.70710678f));
        case GELU_TANH: return 0.5f * x * (1.0f + tanhf(0.79788456f * (x + 0.044715f * x * x * x)));
        case CLIP: return x < low ? low : x > high ? high : x;
        default: return x;
    }
}

// y = activation(x + bias). x, y: [rows, columns], may be one array; bias: [columns] or null; low, high: the limits of
// CLIP (ReLU6 is CLIP from 0 to 6).
KERNEL(bias_activation, 256, const int* live, int rows, int columns, int activation, float low, float high,
       const element* x, const element* bias, element* y) {
    for_elements(live, rows, columns, aligned(x, bias, y), [&](i64 place, int column, auto width) {
        constexpr int N = decltype(width)::count;
        float value[N];
        load(x + place, value);
        if (bias) add_to(value, bias + column);
#pragma unroll
        for (int k = 0; k < N; ++k) value[k] = activate(value[k], activation, low, high);
        store(value, y + place);
    });
}

template <class From, class To>
DEVICE void convert(const int* live, int rows, int columns, const From* x, To* y) {
    for_elements(live, rows, columns, aligned(x, y), [&](i64 place, int, auto width) {
        float value[decltype(width)::count];
        load(x + place, value);
        store(value, y + place);
    });
}

// y = x in the element type, rounded to nearest, ties to even. x: fp32 [rows, columns]; y: [rows, columns].
KERNEL(from_f32, 256, const int* live, int rows, int columns, const float* x, element* y) {
    convert(live, rows, columns, x, y);
}

// y = x in fp32. x: [rows, columns]; y: fp32 [rows, columns].
KERNEL(to_f32, 256, const int* live, int rows, int columns, const element* x, float* y) {
    convert(live, rows, columns, x, y);
}
