// Convolutions as cuDNN defines them, of NCHW images, summed in float: forward: y = activation(alpha * conv(x, w) +
// alpha2 * z + bias) + beta * y; backward: x = alpha * conv'(y, w) + beta * x.
#pragma GCC optimize("O3")
#include <string.h>

#include <algorithm>
#include <vector>

// Same as in convolution.rs. `x` is the forward direction's input and the backward direction's output.
struct Problem {
    float *x, *w, *y;
    const float *z, *bias;
    long long images, groups, inputs, outputs;  // channels of a group
    long long size[2], kernel[2], out[2];       // height and width
    long long pads[2], strides[2], dilations[2];
    long long is_turned, rounds, activates;
    float alpha, alpha2, beta;
};

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define FASTEST __attribute__((target_clones("avx2", "default")))
#else
#define FASTEST
#endif

// Rounds to TF32's 10 bits of fraction, to nearest, ties to even.
static float shorten(float value) {
    if (value != value) return value;
    unsigned bits;
    memcpy(&bits, &value, sizeof bits);
    bits = (bits + 0xfff + (bits >> 13 & 1)) >> 13 << 13;
    memcpy(&value, &bits, sizeof bits);
    return value;
}

static const float* rounded(const float* from, long long count, long long rounds, std::vector<float>& kept) {
    if (!rounds) return from;
    kept.assign(from, from + count);
    for (float& value : kept) value = shorten(value);
    return kept.data();
}

// Computes the range of outputs along an axis for which an element of the kernel reads the image.
static void reached(const Problem& p, int axis, long long offset, long long& from, long long& to) {
    long long stride = p.strides[axis];
    from = offset >= 0 ? 0 : (-offset + stride - 1) / stride;
    to = std::min(p.out[axis], p.size[axis] - 1 - offset < 0 ? 0 : (p.size[axis] - 1 - offset) / stride + 1);
}

static long long offset_of(const Problem& p, int axis, long long element) {
    return element * p.dilations[axis] - p.pads[axis];
}

static float weight(const Problem& p, const float* kernel, long long row, long long column) {
    if (p.is_turned) row = p.kernel[0] - 1 - row, column = p.kernel[1] - 1 - column;
    return kernel[row * p.kernel[1] + column];
}

// Number of outputs that are computed together, so that they share their reads.
const int BLOCK = 4;

FASTEST static void add_row(float* const sums[BLOCK], const float weights[BLOCK], const float* x, long long stride,
                            long long from, long long to) {
    float *a = sums[0], *b = sums[1], *c = sums[2], *d = sums[3];
    float wa = weights[0], wb = weights[1], wc = weights[2], wd = weights[3];
    if (stride == 1) {
        for (long long i = from; i < to; ++i) {
            float value = x[i];
            a[i] += wa * value, b[i] += wb * value, c[i] += wc * value, d[i] += wd * value;
        }
    } else {
        for (long long i = from; i < to; ++i) {
            float value = x[i * stride];
            a[i] += wa * value, b[i] += wb * value, c[i] += wc * value, d[i] += wd * value;
        }
    }
}

static void finish(const Problem& p, long long channel, long long at, float sum) {
    float value = p.alpha * sum;
    if (p.alpha2 != 0) value += p.alpha2 * p.z[at];
    if (p.bias) value += p.bias[channel];
    if (p.activates) value = value > 0 ? value : 0;
    p.y[at] = p.beta != 0 ? value + p.beta * p.y[at] : value;
}

static void forward_of(const Problem& p, const float* x, const float* w) {
    long long plane = p.size[0] * p.size[1], kernel = p.kernel[0] * p.kernel[1], width = p.out[1];
    std::vector<float> memory(BLOCK * width);
    float* sums[BLOCK];
    for (int j = 0; j < BLOCK; ++j) sums[j] = &memory[j * width];
    for (long long image = 0; image < p.images * p.groups; ++image) {
        long long group = image % p.groups;
        const float* images = x + image * p.inputs * plane;
        for (long long first = 0; first < p.outputs; first += BLOCK) {
            int count = int(std::min<long long>(BLOCK, p.outputs - first));
            const float* kernels = w + (group * p.outputs + first) * p.inputs * kernel;
            for (long long out = 0; out < p.out[0]; ++out) {
                std::fill(memory.begin(), memory.end(), 0.0f);
                for (long long input = 0; input < p.inputs; ++input) {
                    for (long long row = 0; row < p.kernel[0]; ++row) {
                        long long in = out * p.strides[0] + offset_of(p, 0, row);
                        if (in < 0 || in >= p.size[0]) continue;
                        for (long long column = 0; column < p.kernel[1]; ++column) {
                            long long offset = offset_of(p, 1, column), from, to;
                            reached(p, 1, offset, from, to);
                            float weights[BLOCK] = {};
                            for (int j = 0; j < count; ++j) {
                                weights[j] = weight(p, kernels + (j * p.inputs + input) * kernel, row, column);
                            }
                            const float* line = images + input * plane + in * p.size[1] + offset;
                            add_row(sums, weights, line, p.strides[1], from, to);
                        }
                    }
                }
                for (int j = 0; j < count; ++j) {
                    long long channel = group * p.outputs + first + j;
                    long long at = ((image * p.outputs + first + j) * p.out[0] + out) * width;
                    for (long long i = 0; i < width; ++i) finish(p, channel, at + i, sums[j][i]);
                }
            }
        }
    }
}

extern "C" __attribute__((visibility("default"))) void forward(const Problem* problem) {
    Problem p = *problem;
    // A convolution of single elements treats each image as one row.
    bool is_pointwise = p.kernel[0] * p.kernel[1] == 1 && p.strides[0] * p.strides[1] == 1 && !(p.pads[0] | p.pads[1]);
    if (is_pointwise) {
        p.size[1] *= p.size[0], p.out[1] *= p.out[0];
        p.size[0] = p.out[0] = 1;
    }
    long long elements = p.images * p.groups * p.inputs * p.size[0] * p.size[1];
    long long weights = p.groups * p.outputs * p.inputs * p.kernel[0] * p.kernel[1];
    std::vector<float> kept_x, kept_w;
    forward_of(p, rounded(p.x, elements, p.rounds, kept_x), rounded(p.w, weights, p.rounds, kept_w));
}

// Spreads each element of y over the elements of x that the forward direction would compute it from.
FASTEST static void spread_row(float* x, float weight, const float* y, long long stride, long long from, long long to) {
    for (long long i = from; i < to; ++i) x[i * stride] += weight * y[i];
}

extern "C" __attribute__((visibility("default"))) void backward(const Problem* problem) {
    const Problem& p = *problem;
    long long plane = p.size[0] * p.size[1], outs = p.out[0] * p.out[1], kernel = p.kernel[0] * p.kernel[1];
    std::vector<float> kept_y, kept_w, sums(plane);
    const float* y = rounded(p.y, p.images * p.groups * p.outputs * outs, p.rounds, kept_y);
    const float* w = rounded(p.w, p.groups * p.outputs * p.inputs * kernel, p.rounds, kept_w);
    for (long long channel = 0; channel < p.images * p.groups * p.inputs; ++channel) {
        long long image = channel / p.inputs, input = channel % p.inputs, group = image % p.groups;
        std::fill(sums.begin(), sums.end(), 0.0f);
        for (long long output = 0; output < p.outputs; ++output) {
            const float* own = w + ((group * p.outputs + output) * p.inputs + input) * kernel;
            const float* from_plane = y + (image * p.outputs + output) * outs;
            for (long long row = 0; row < p.kernel[0]; ++row) {
                for (long long out = 0; out < p.out[0]; ++out) {
                    long long in = out * p.strides[0] + offset_of(p, 0, row);
                    if (in < 0 || in >= p.size[0]) continue;
                    for (long long column = 0; column < p.kernel[1]; ++column) {
                        long long offset = offset_of(p, 1, column), from, to;
                        reached(p, 1, offset, from, to);
                        float* line = sums.data() + in * p.size[1] + offset;
                        const float* outputs = from_plane + out * p.out[1];
                        spread_row(line, weight(p, own, row, column), outputs, p.strides[1], from, to);
                    }
                }
            }
        }
        float* to = p.x + channel * plane;
        for (long long i = 0; i < plane; ++i) to[i] = p.alpha * sums[i] + (p.beta != 0 ? p.beta * to[i] : 0);
    }
}
