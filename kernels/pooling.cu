// Pooling over windows of NCHW images. Images from `live` on are neither read nor written.
//
// A window at output (i, j) begins at (i · stride - pad_begin) of the input. ceil_mode needs no argument: it gives a
// larger output, whose last windows reach beyond the padding.

// The window of max_pool and average_pool, along height and width; part of their interface.
struct Window {
    int height, width;            // of the input
    int out_height, out_width;    // of the output
    int size_h, size_w;           // of the window
    int stride_h, stride_w;
    int pad_top, pad_left, pad_bottom, pad_right;
};

// A window's part of one axis: what lies in the input, and how much in the input and its padding.
struct Extent {
    int begin, end, padded;
};

DEVICE Extent extent_of(int out, int size, int stride, int pad_begin, int pad_end, int length) {
    int begin = out * stride - pad_begin;
    int end = min(begin + size, length + pad_end);
    return {max(begin, 0), min(end, length), end - begin};
}

DEVICE Extent rows_of(const Window& window, int out) {
    return extent_of(out, window.size_h, window.stride_h, window.pad_top, window.pad_bottom, window.height);
}

DEVICE Extent columns_of(const Window& window, int out) {
    return extent_of(out, window.size_w, window.stride_w, window.pad_left, window.pad_right, window.width);
}

// Runs `work(input, output, rows, columns)` for each output of this block's planes: the plane that it reads, the
// element that it writes, and the window. blockIdx.x runs over planes, blockIdx.y over pieces of a plane.
template <class Work>
DEVICE void for_windows(i64 planes, const Window& window, const element* x, element* y, Work work) {
    int outputs = window.out_height * window.out_width;
    for (i64 plane = blockIdx.x; plane < planes; plane += gridDim.x) {
        EACH {
            for (int out = blockIdx.y * THREADS + TID; out < outputs; out += gridDim.y * THREADS) {
                const element* input = x + plane * window.height * window.width;
                work(input, y + plane * outputs + out, rows_of(window, out / window.out_width),
                     columns_of(window, out % window.out_width));
            }
        }
    }
}

// The maximum of each window; padding does not count, nor does NaN. A window within the padding alone gives the lowest
// number of fp32, rounded.
// x: [images, channels, height, width]; y: [images, channels, out_height, out_width].
// Launch: blockIdx.x runs over images · channels, blockIdx.y over pieces of a plane; any grid does all of it.
KERNEL(max_pool, 256, const int* live, int images, int channels, Window window, const element* x, element* y) {
    i64 planes = i64(live_rows(live, images)) * channels;
    for_windows(planes, window, x, y, [&](const element* input, element* output, Extent rows, Extent columns) {
        float most = LOWEST;
        for (int row = rows.begin; row < rows.end; ++row) {
            for (int column = columns.begin; column < columns.end; ++column) {
                most = fmaxf(most, to_float(input[i64(row) * window.width + column]));
            }
        }
        from_float(most, *output);
    });
}

// The mean of each window. It is over the elements of the input, or, with count_include_pad, over those and the
// padding, but not over what lies beyond the padding. A mean of nothing is 0. Shapes and launch are those of max_pool.
KERNEL(average_pool, 256, const int* live, int images, int channels, Window window, int count_include_pad,
       const element* x, element* y) {
    i64 planes = i64(live_rows(live, images)) * channels;
    for_windows(planes, window, x, y, [&](const element* input, element* output, Extent rows, Extent columns) {
        float sum = 0.0f;
        for (int row = rows.begin; row < rows.end; ++row) {
            for (int column = columns.begin; column < columns.end; ++column) {
                sum += to_float(input[i64(row) * window.width + column]);
            }
        }
        int inside = max(rows.end - rows.begin, 0) * max(columns.end - columns.begin, 0);
        int over = count_include_pad ? rows.padded * columns.padded : inside;
        from_float(over > 0 ? sum / over : 0.0f, *output);
    });
}

// The mean of each plane. x: [images, channels, size], size = height · width; y: [images, channels].
// Launch: blockIdx.x runs over images · channels; any number of blocks does all of it.
KERNEL(global_average_pool, 256, const int* live, int images, int channels, int size, const element* x, element* y) {
    i64 planes = i64(live_rows(live, images)) * channels;
    Reg<float> part;
    for (i64 plane = blockIdx.x; plane < planes; plane += gridDim.x) {
        EACH {
            part() = 0.0f;
            for (int i = TID; i < size; i += THREADS) part() += to_float(x[plane * size + i]);
        }
        float mean = BLOCK_SUM(part) / size;
        EACH {
            if (TID == 0) from_float(mean, y[plane]);
        }
    }
}
