// Products of activations and weights, for weights that are packed once.
//
// A panel is 32 outputs: for each step along the inputs one vector of weights for the first 16 outputs and one for the
// others. In float32 a step is one input, in bfloat16 two: the processor multiplies pairs and adds both to a float32.
// A tile of up to 12 rows keeps its 24 sums in registers; while the first tile of a panel runs, the next panel is
// fetched, so that in a step of few rows, which memory bounds, it does not stand still.

#pragma once

#include "vectors.h"

#ifdef __AVX512BF16__
#include <immintrin.h>
#endif

namespace {

constexpr int PANEL = 2 * LANES;  // outputs
constexpr int ROWS = 12;          // of a tile
constexpr int64_t BLOCK = 96;     // rows that one thread does of a panel before it turns to another

template <typename T>
struct Step_of;  // how many inputs a step takes, and what it does

template <>
struct Step_of<float> {
#ifdef __AVX512F__
    static constexpr bool available = true;
#else
    static constexpr bool available = false;  // the sums of a tile do not fit into the registers
#endif
    static constexpr int inputs = 1;
    using Weights = Floats;
    static inline Weights weights(const float* from) {
        return load(from);
    }
    static inline void add(Floats& sum, const float* x, Weights w) {
        sum += *x * w;
    }
};

#ifdef __AVX512BF16__
template <>
struct Step_of<BFloat16> {
    static constexpr bool available = true;
    static constexpr int inputs = 2;
    using Weights = __m512bh;
    static inline Weights weights(const BFloat16* from) {
        return (__m512bh)_mm512_loadu_si512(from);
    }
    static inline void add(Floats& sum, const BFloat16* x, Weights w) {
        int32_t pair;
        std::memcpy(&pair, x, sizeof pair);
        sum = (Floats)_mm512_dpbf16_ps((__m512)sum, (__m512bh)_mm512_set1_epi32(pair), w);
    }
};
#else
template <>
struct Step_of<BFloat16> {
    static constexpr bool available = false;
    static constexpr int inputs = 2;
};
#endif

// What is added to a product, each or null: bias [outputs] float32, other [rows, outputs].
template <typename T>
struct Added {
    const float* bias;
    const T* other;
};

template <typename T>
inline void finish(Floats low, Floats high, T* to, int64_t left, const float* bias, const T* other) {
    if (bias) low += load_up_to(bias, left);
    if (other) low += load_up_to(other, left);
    store_up_to(to, low, left);
    if (left <= LANES) return;
    if (bias) high += load_up_to(bias + LANES, left - LANES);
    if (other) high += load_up_to(other + LANES, left - LANES);
    store_up_to(to + LANES, high, left - LANES);
}

// COUNT rows of x [COUNT, inputs] times one panel. `left` outputs of the panel are there, the others are padding.
template <typename T, int COUNT>
void tile(const T* x, int64_t inputs, const T* panel, const char* next, T* to, int64_t outputs, int64_t left,
          const float* bias, const T* other) {
    using S = Step_of<T>;
    constexpr int STEP = S::inputs, SPLIT = COUNT == 1 ? 4 : 1;  // one row alone would wait for its own sums
    Floats sums[COUNT * SPLIT][2] = {};
    const int64_t steps = inputs / STEP;
    int64_t step = 0;
    for (; step + SPLIT <= steps; step += SPLIT)
        for (int part = 0; part < SPLIT; part++) {
            const int64_t at = step + part;
            const T* from = panel + at * STEP * PANEL;
            typename S::Weights low = S::weights(from), high = S::weights(from + STEP * LANES);
            if (COUNT == 1) {  // reads the panel once and has nothing else to do
                __builtin_prefetch((const char*)from + 4096);
                __builtin_prefetch((const char*)from + 4096 + 64);
            } else if (next) {
                __builtin_prefetch(next + at * STEP * PANEL * sizeof(T), 0, 2);
                __builtin_prefetch(next + at * STEP * PANEL * sizeof(T) + 64, 0, 2);
            }
            for (int row = 0; row < COUNT; row++) {
                S::add(sums[row * SPLIT + part][0], x + row * inputs + at * STEP, low);
                S::add(sums[row * SPLIT + part][1], x + row * inputs + at * STEP, high);
            }
        }
    for (; step < steps; step++)
        for (int row = 0; row < COUNT; row++) {
            const T* from = panel + step * STEP * PANEL;
            S::add(sums[row * SPLIT][0], x + row * inputs + step * STEP, S::weights(from));
            S::add(sums[row * SPLIT][1], x + row * inputs + step * STEP, S::weights(from + STEP * LANES));
        }
    for (int row = 0; row < COUNT; row++) {
        Floats low = sums[row * SPLIT][0], high = sums[row * SPLIT][1];
        for (int part = 1; part < SPLIT; part++) {
            low += sums[row * SPLIT + part][0];
            high += sums[row * SPLIT + part][1];
        }
        finish(low, high, to + row * outputs, left, bias, other ? other + row * outputs : nullptr);
    }
}

template <typename T, int COUNT = ROWS>
void last_rows(int64_t count, const T* x, int64_t inputs, const T* panel, const char* next, T* to, int64_t outputs,
               int64_t left, const float* bias, const T* other) {
    if constexpr (COUNT > 0) {
        if (count == COUNT) return tile<T, COUNT>(x, inputs, panel, next, to, outputs, left, bias, other);
        last_rows<T, COUNT - 1>(count, x, inputs, panel, next, to, outputs, left, bias, other);
    }
}

// to [rows, outputs] = x [rows, inputs] times packed weights, plus what is added.
template <typename T>
void product(const T* x, const T* packed, T* to, int64_t rows, int64_t outputs, int64_t inputs, Added<T> added,
             int threads) {
    if constexpr (Step_of<T>::available) {
        const int64_t panels = (outputs + PANEL - 1) / PANEL, blocks = (rows + BLOCK - 1) / BLOCK;
#pragma omp parallel for collapse(2) schedule(static) num_threads(threads)
        for (int64_t p = 0; p < panels; p++)
            for (int64_t block = 0; block < blocks; block++) {
                const T* panel = packed + p * PANEL * inputs;
                const char* next = (const char*)(panel + PANEL * inputs);
                const int64_t column = p * PANEL, left = outputs - column;
                const int64_t end = (block + 1) * BLOCK < rows ? (block + 1) * BLOCK : rows;
                for (int64_t row = block * BLOCK; row < end; row += ROWS) {
                    const int64_t count = end - row < ROWS ? end - row : ROWS;
                    last_rows<T>(count, x + row * inputs, inputs, panel, row ? nullptr : next,
                                 to + row * outputs + column, outputs, left, added.bias ? added.bias + column : nullptr,
                                 added.other ? added.other + row * outputs + column : nullptr);
                }
            }
    }
}

// Weights [outputs, inputs] into panels.
template <typename T>
void pack(const T* weights, T* to, int64_t outputs, int64_t inputs, int threads) {
    constexpr int STEP = Step_of<T>::inputs;
    const int64_t panels = (outputs + PANEL - 1) / PANEL;
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int64_t p = 0; p < panels; p++)
        for (int64_t at = 0; at < inputs; at += STEP)
            for (int lane = 0; lane < PANEL; lane++)
                for (int i = 0; i < STEP; i++) {
                    const int64_t output = p * PANEL + lane;
                    to[(p * inputs + at) * PANEL + lane * STEP + i] =
                        output < outputs ? weights[output * inputs + at + i] : T{};
                }
}

}  // namespace
