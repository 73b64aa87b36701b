// Element-wise work in one pass.

#pragma once

#include "vectors.h"

namespace {

// x / sqrt(mean(x^2) + eps) * weight. `early`: rounded to T before the weight is multiplied, as Llama does; else after.
template <typename T>
void rms_norm(const T* x, const float* weight, T* out, int64_t rows, int64_t width, int64_t stride, float epsilon,
              bool early, int threads) {
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
    for (int64_t row = 0; row < rows; row++) {
        const T* from = x + row * stride;
        T* to = out + row * width;
        Floats squares = {};
        for (int64_t at = 0; at < width; at += LANES) {
            Floats part = load_up_to(from + at, width - at);
            squares += part * part;
        }
        const float scale = 1.0f / __builtin_sqrtf(sum(squares) / (float)width + epsilon);
        for (int64_t at = 0; at < width; at += LANES) {
            Floats part = load_up_to(from + at, width - at) * scale;
            if (early) part = rounded(part, from);
            store_up_to(to + at, part * load_up_to(weight + at, width - at), width - at);
        }
    }
}

// silu(gate) * up of [rows, gate and up side by side], rounded between as two operations round.
template <typename T>
void silu_mul(const T* both, T* out, int64_t rows, int64_t width, int threads) {
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
    for (int64_t row = 0; row < rows; row++)
        for (int64_t at = 0; at < width; at += LANES) {
            const T* gate = both + row * 2 * width + at;
            Floats x = load_up_to(gate, width - at);
            Floats active = rounded(x / (1.0f + exp(-x)), gate);
            store_up_to(out + row * width + at, active * load_up_to(gate + width, width - at), width - at);
        }
}

}  // namespace
