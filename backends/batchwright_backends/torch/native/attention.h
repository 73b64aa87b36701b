// Attention over the paged KV cache.

#pragma once

#include <limits>
#include <type_traits>

#include "vectors.h"

extern "C" {

// What the attention of one layer is. Strides and widths count elements.
struct Layer {
    void* keys;    // [blocks * block size, KV heads, key width]
    void* values;  // [blocks * block size, KV heads, value width]
    const float* sinks;  // [heads], or null
    int64_t num_heads, num_kv_heads, key_width, value_width;
    int64_t window;  // 0: none
    const float* query_norm;  // [key width], weight of an RMSNorm of each head, or null
    const float* key_norm;
    int32_t norm_is_early;  // its quotient is rounded before the weight is multiplied
    int32_t rotates;        // by the step's cos and sin, after the norm
    float norm_epsilon;
    float scaling;
    float softcap;  // 0: none
};

// What all layers of a step share. A task is a stretch of one row's new tokens.
struct Step {
    const int64_t* slots;         // [tokens]
    const int32_t* block_tables;  // [rows, table_width]
    const int32_t* task_row;      // [tasks]
    const int32_t* task_start;    // [tasks], first token of the task, among the step's
    const int32_t* task_count;    // [tasks], its tokens
    const int32_t* task_position; // [tasks], position of its first token in the request
    int64_t num_tokens, num_tasks, table_width, block_size;
    const void* cos;  // [tokens, key width], read where a layer rotates
    const void* sin;
};

}  // extern "C"

namespace {

constexpr float NOTHING = -std::numeric_limits<float>::infinity();

inline int64_t vectors(int64_t width) {
    return (width + LANES - 1) / LANES;
}

// x / sqrt(mean(x^2) + eps) * weight of `width` values in place, rounded as T would keep it.
template <typename T>
void normalize(float* x, const float* weight, int64_t width, float epsilon, bool early) {
    const T* as = nullptr;
    Floats squares = {};
    for (int64_t at = 0; at < width; at += LANES) {
        Floats part = load_up_to(x + at, width - at);
        squares += part * part;
    }
    const float scale = 1.0f / __builtin_sqrtf(sum(squares) / (float)width + epsilon);
    for (int64_t at = 0; at < width; at += LANES) {
        Floats part = load_up_to(x + at, width - at) * scale;
        if (early) part = rounded(part, as);
        store_up_to(x + at, rounded(part * load_up_to(weight + at, width - at), as), width - at);
    }
}

// Rotary embedding of one head in place, halves rotated: each product is rounded and then their sum, as three
// operations round.
template <typename T>
void rotate(float* x, const T* cos, const T* sin, int64_t width) {
    const int64_t half = width / 2;
    for (int64_t at = 0; at < half; at += LANES) {
        const int64_t left = half - at;
        Floats low = load_up_to(x + at, left), high = load_up_to(x + half + at, left);
        Floats a = rounded(low * load_up_to(cos + at, left), cos);
        Floats b = rounded(-high * load_up_to(sin + at, left), cos);
        Floats c = rounded(high * load_up_to(cos + half + at, left), cos);
        Floats d = rounded(low * load_up_to(sin + half + at, left), cos);
        store_up_to(x + at, rounded(a + b, cos), left);
        store_up_to(x + half + at, rounded(c + d, cos), left);
    }
}

// One head of Q or K as attention takes it; `to` has room for whole vectors, the rest of the last is 0.
template <typename T>
void prepare(const T* from, float* to, int64_t width, const float* norm, const Layer& layer, const Step& step,
             int64_t token) {
    for (int64_t at = 0; at < width; at += LANES) store(to + at, load_up_to(from + at, width - at));
    if (norm) normalize<T>(to, norm, width, layer.norm_epsilon, layer.norm_is_early != 0);
    if (layer.rotates) rotate(to, (const T*)step.cos + token * width, (const T*)step.sin + token * width, width);
}

constexpr int64_t KEPT_BYTES = 512 << 10;  // half of the second-level cache of common cores

// Fetches K and V of the row that a thread does next while it computes on the one before: memory would stand still
// meanwhile, and the processor after it.
template <typename T>
class Ahead {
    const Layer& layer;
    const Step& step;
    const int32_t* table;
    int64_t at = 0, end = 0, portion = 0;

public:
    // `task` of the step; those beyond the last have nothing to fetch. `portions`: calls of fetch() that will follow.
    Ahead(const Layer& layer, const Step& step, int64_t task, int64_t portions) : layer(layer), step(step) {
        if (task >= step.num_tasks) return;
        table = step.block_tables + step.task_row[task] * step.table_width;
        end = step.task_position[task];  // the last is written in this step and not far
        const int64_t begin = layer.window ? end - layer.window + 1 : 0;
        if (begin > 0) at = begin;
        const int64_t kept = KEPT_BYTES / ((layer.key_width + layer.value_width) * layer.num_kv_heads * sizeof(T));
        if (end - at > kept) end = at + kept;
        portion = (end - at + portions - 1) / portions;
    }

    void fetch() {
        const int64_t key_row = layer.key_width * layer.num_kv_heads, value_row = layer.value_width * layer.num_kv_heads;
        for (const int64_t stop = at + portion < end ? at + portion : end; at < stop; at++) {
            const int64_t slot = (int64_t)table[at / step.block_size] * step.block_size + at % step.block_size;
            const char* key = (const char*)((const T*)layer.keys + slot * key_row);
            const char* value = (const char*)((const T*)layer.values + slot * value_row);
            for (int64_t line = 0; line < (int64_t)sizeof(T) * key_row; line += 64) __builtin_prefetch(key + line, 0, 2);
            for (int64_t line = 0; line < (int64_t)sizeof(T) * value_row; line += 64) __builtin_prefetch(value + line, 0, 2);
        }
    }
};

// A stretch of new tokens of one row, all query heads that share one KV head. Each such pair is a "query".
template <typename T>
struct Task {
    const Layer& layer;
    const Step& step;
    int64_t head, group;  // KV head, query heads that share it
    bool head_is_first;   // of those that this thread does of the row
    Ahead<T>* ahead;      // or null
    int64_t start, count, position;  // first token among the step's, tokens, position of the first
    const int32_t* table;
    const T* query;  // of the first token and head
    int64_t query_token_stride, query_head_stride;
    T* out;  // likewise, contiguous [tokens, heads, value width]

    int64_t slot(int64_t key) const {
        return (int64_t)table[key / step.block_size] * step.block_size + key % step.block_size;
    }
    const T* key(int64_t at) const {
        return (const T*)layer.keys + (slot(at) * layer.num_kv_heads + head) * layer.key_width;
    }
    const T* value(int64_t at) const {
        return (const T*)layer.values + (slot(at) * layer.num_kv_heads + head) * layer.value_width;
    }
};

// Scores of a tile of 16 keys, capped, and NOTHING for keys that the token at `position` does not see.
inline Floats seen_scores(Floats scores, const Layer& layer, int64_t first_key, int64_t position) {
    scores *= layer.scaling;
    if (layer.softcap != 0) scores = layer.softcap * tanh(scores / layer.softcap);
    int64_t last = position - first_key;  // index in the tile of the last key seen
    int64_t before = layer.window ? last - layer.window : -1;  // and of the last key that has left the window
    if (last < LANES - 1 || before >= 0) {
        int32_t high = last < LANES ? (int32_t)last : LANES, low = before < LANES ? (int32_t)before : LANES;
        Ints index = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
        scores = select((index <= high) & (index > low), scores, splat(NOTHING));
    }
    return scores;
}

constexpr int QUERIES = 4;     // that share a load of keys or values
constexpr int64_t FEW = 12;  // queries of a task that do not pay for transposing its keys

// Attention of a task by an online softmax over tiles of 16 keys. A tile's keys are transposed, so that the scores of
// 16 keys are one vector; NV and NW: vectors of a key and of a value where known at compile time, else 0.
template <typename T, int NV, int NW>
void attend(const Task<T>& task, float* scratch) {
    const Layer& layer = task.layer;
    const int64_t nv = NV ? NV : vectors(layer.key_width), nw = NW ? NW : vectors(layer.value_width);
    const int64_t key_width = NV ? NV * LANES : layer.key_width;
    const int64_t num_queries = task.count * task.group;
    const int64_t padded = (num_queries + QUERIES - 1) / QUERIES * QUERIES;
    float* queries = scratch;                            // [padded, nv * 16]
    float* sums = queries + padded * nv * LANES;         // [padded, nw * 16]
    float* weights = sums + padded * nw * LANES;         // [QUERIES, 16], of one tile
    float* maxima = weights + QUERIES * LANES;           // [padded]
    float* totals = maxima + padded;                     // [padded]
    float* keys = totals + padded;                       // [nv * 16, 16], transposed
    float* values = keys + nv * LANES * LANES;           // [16, nw * 16]

    for (int64_t i = 0; i < padded; i++) {
        const int64_t token = i / task.group, head = i % task.group;
        if (i < num_queries)
            prepare(task.query + token * task.query_token_stride + head * task.query_head_stride,
                    queries + i * nv * LANES, key_width, layer.query_norm, layer, task.step, task.start + token);
        else
            for (int64_t v = 0; v < nv; v++) store(queries + (i * nv + v) * LANES, Floats{});
        for (int64_t w = 0; w < nw; w++) store(sums + (i * nw + w) * LANES, Floats{});
        const bool sunk = layer.sinks && i < num_queries;
        maxima[i] = sunk ? layer.sinks[task.head * task.group + head] : NOTHING;
        totals[i] = sunk ? 1.0f : 0.0f;
    }

    const int64_t end = task.position + task.count;
    int64_t start = layer.window ? task.position - layer.window + 1 : 0;
    if (start < 0) start = 0;
    for (int64_t first = start; first < end; first += LANES) {
        const int64_t present = end - first < LANES ? end - first : LANES;
        for (int64_t k = 0; k < LANES; k++) {
            // Lanes without a key repeat the last: their weight is 0, and 0 times what is not a number would not be.
            const int64_t at = first + (k < present ? k : present - 1);
            const T* from = task.key(at);
            float row[NV ? NV * LANES : 1];
            for (int64_t v = 0; v < nv; v++) {
                Floats x = load_up_to(from + v * LANES, key_width - v * LANES);
                if (NV) {
                    store(row + v * LANES, x);
                } else {
                    float lanes[LANES];
                    store(lanes, x);
                    for (int d = 0; d < LANES; d++) keys[(v * LANES + d) * LANES + k] = lanes[d];
                }
            }
            if (NV)
                for (int64_t d = 0; d < NV * LANES; d++) keys[d * LANES + k] = row[d];
            const T* value = task.value(at);
            for (int64_t w = 0; w < nw; w++)
                store(values + (k * nw + w) * LANES, load_up_to(value + w * LANES, layer.value_width - w * LANES));
        }
        for (int64_t i = 0; i < padded; i += QUERIES) {
            Floats scores[QUERIES] = {};
            const float* query = queries + i * nv * LANES;
            for (int64_t d = 0; d < key_width; d++) {
                Floats key = load(keys + d * LANES);
                for (int q = 0; q < QUERIES; q++) scores[q] += query[q * nv * LANES + d] * key;
            }
            for (int q = 0; q < QUERIES; q++) {
                const int64_t which = i + q < num_queries ? i + q : num_queries - 1;
                Floats s = seen_scores(scores[q], layer, first, task.position + which / task.group);
                float before = maxima[i + q], now = largest(s);
                now = now > before ? now : before;
                const float origin = now == NOTHING ? 0.0f : now;  // nothing seen yet
                Floats p = exp(s - origin);
                store(weights + q * LANES, p);
                Floats old = exp(splat(before - origin));
                totals[i + q] = totals[i + q] * old[0] + sum(p);
                maxima[i + q] = now;
                if (now != before)
                    for (int64_t w = 0; w < nw; w++) {
                        float* at = sums + ((i + q) * nw + w) * LANES;
                        store(at, load(at) * old[0]);
                    }
            }
            for (int64_t w = 0; w < nw; w++) {
                Floats total[QUERIES];
                for (int q = 0; q < QUERIES; q++) total[q] = load(sums + ((i + q) * nw + w) * LANES);
                for (int k = 0; k < LANES; k++) {
                    Floats value = load(values + (k * nw + w) * LANES);
                    for (int q = 0; q < QUERIES; q++) total[q] += weights[q * LANES + k] * value;
                }
                for (int q = 0; q < QUERIES; q++) store(sums + ((i + q) * nw + w) * LANES, total[q]);
            }
        }
    }
    for (int64_t i = 0; i < num_queries; i++) {
        const float share = 1.0f / totals[i];
        T* to = task.out + ((i / task.group) * layer.num_heads + i % task.group) * layer.value_width;
        for (int64_t w = 0; w < nw; w++)
            store_up_to(to + w * LANES, load(sums + (i * nw + w) * LANES) * share, layer.value_width - w * LANES);
    }
}

// Values in order from and to the order in which load_pair gives them.
template <typename T, int NV>
inline void reorder(float* x, bool back) {
    if (sizeof(T) == sizeof(float)) return;
    for (int at = 0; at < NV * LANES; at += 2 * LANES) {
        float other[2 * LANES];
        for (int i = 0; i < LANES; i++)
            for (int odd = 0; odd < 2; odd++)
                if (back) other[2 * i + odd] = x[at + odd * LANES + i];
                else other[odd * LANES + i] = x[at + 2 * i + odd];
        std::memcpy(x + at, other, sizeof other);
    }
}

template <typename T, int NV>
inline void load_all(const T* from, Floats* to) {
    for (int v = 0; v < NV; v += 2) load_pair(from + v * LANES, to[v], to[v + 1]);
}

// COUNT queries of a task over a tile of 16 keys, of which `present` are there. Each step is done for all of them
// before the next: one query alone would wait for its own last result most of the time.
template <typename T, int NV, int COUNT>
inline void attend_tile(const Layer& layer, const float* queries, const T* const* keys, const T* const* values,
                        int present, int64_t first_key, const int64_t* positions, float* sums_of, float* maxima,
                        float* totals) {
    constexpr int WIDTH = NV * LANES, KEYS = COUNT == 1 ? 16 : COUNT == 2 ? 8 : 4;  // KEYS * COUNT sums at once
    alignas(64) float weights[COUNT * LANES];
    for (int first = 0; first < LANES; first += KEYS) {
        Floats products[LANES];
        for (int k = 0; k < KEYS; k++) {
            Floats key[NV];
            load_all<T, NV>(keys[first + k], key);
            for (int q = 0; q < COUNT; q++) {
                const float* query = queries + q * WIDTH;
                Floats product = load(query) * key[0];
                for (int v = 1; v < NV; v++) product += load(query + v * LANES) * key[v];
                products[q * KEYS + k] = product;
            }
        }
        for (int i = COUNT * KEYS; i < LANES; i++) products[i] = Floats{};
        alignas(64) float lanes[LANES];
        store(lanes, sums(products));
        for (int q = 0; q < COUNT; q++) std::memcpy(weights + q * LANES + first, lanes + q * KEYS, sizeof(float) * KEYS);
    }
    float old[COUNT];
    for (int q = 0; q < COUNT; q++) {
        Floats scores = seen_scores(load(weights + q * LANES), layer, first_key, positions[q]);
        const float before = maxima[q], now = larger(before, largest(scores));
        const float origin = now == NOTHING ? 0.0f : now;  // nothing seen yet
        Floats p = exp(scores - origin);
        store(weights + q * LANES, p);
        old[q] = before == now ? 1.0f : exp(splat(before - origin))[0];
        totals[q] = totals[q] * old[q] + sum(p);
        maxima[q] = now;
    }
    Floats total[COUNT][NV];
    for (int q = 0; q < COUNT; q++)
        for (int v = 0; v < NV; v++) total[q][v] = load(sums_of + q * WIDTH + v * LANES) * old[q];
    for (int k = 0; k < present; k++) {
        Floats value[NV];
        load_all<T, NV>(values[k], value);
        for (int q = 0; q < COUNT; q++)
            for (int v = 0; v < NV; v++) total[q][v] += weights[q * LANES + k] * value[v];
    }
    for (int q = 0; q < COUNT; q++)
        for (int v = 0; v < NV; v++) store(sums_of + q * WIDTH + v * LANES, total[q][v]);
}

// A task of few queries (a decode): its keys are not worth transposing.
template <typename T, int NV>
void attend_few(const Task<T>& task, float* scratch) {
    const Layer& layer = task.layer;
    constexpr int WIDTH = NV * LANES;
    constexpr int AT_ONCE = NV <= 4 ? 4 : NV <= 8 ? 2 : 1;  // as many as registers hold sums of
    const int64_t num_queries = task.count * task.group;
    float* queries = scratch;                        // [num_queries, WIDTH]
    float* sums_of = queries + num_queries * WIDTH;  // [num_queries, WIDTH]
    float* maxima = sums_of + num_queries * WIDTH;   // [num_queries]
    float* totals = maxima + num_queries;            // [num_queries]
    int64_t positions[FEW];
    for (int64_t i = 0; i < num_queries; i++) {
        const int64_t token = i / task.group, head = i % task.group;
        float* query = queries + i * WIDTH;
        prepare(task.query + token * task.query_token_stride + head * task.query_head_stride, query, WIDTH,
                layer.query_norm, layer, task.step, task.start + token);
        reorder<T, NV>(query, false);
        for (int v = 0; v < NV; v++) store(sums_of + i * WIDTH + v * LANES, Floats{});
        maxima[i] = layer.sinks ? layer.sinks[task.head * task.group + head] : NOTHING;
        totals[i] = layer.sinks ? 1.0f : 0.0f;
        positions[i] = task.position + token;
    }
    const int64_t end = task.position + task.count;
    int64_t start = layer.window ? task.position - layer.window + 1 : 0;
    if (start < 0) start = 0;
    // The first head fetches what all heads will read, as far as the cache of a core holds it until they do.
    const int64_t row_bytes = layer.num_kv_heads * WIDTH * sizeof(T);
    const bool whole = task.head_is_first && 2 * row_bytes * (end - start) <= KEPT_BYTES;
    const int64_t fetched = whole ? row_bytes : (int64_t)sizeof(T) * WIDTH;
    const bool fetches = whole || task.head_is_first || 2 * row_bytes * (end - start) > KEPT_BYTES;
    const T *keys[2 * LANES], *values[2 * LANES];  // of this tile and of the next
    auto look_up = [&](int64_t first, int at) {
        for (int k = 0; k < LANES; k++) {
            const int64_t key = first + k < end ? first + k : end - 1;  // past the end: unseen, any will do
            keys[at + k] = task.key(key);
            values[at + k] = task.value(key);
            for (int64_t line = 0; fetches && line < fetched; line += 64) {
                __builtin_prefetch((const char*)keys[at + k] + line);
                __builtin_prefetch((const char*)values[at + k] + line);
            }
        }
    };
    int at = 0;
    look_up(start, at);
    for (int64_t first = start; first < end; first += LANES, at ^= LANES) {
        if (first + LANES < end) look_up(first + LANES, at ^ LANES);
        if (task.ahead) task.ahead->fetch();
        const int present = end - first < LANES ? (int)(end - first) : LANES;
        for (int64_t i = 0; i < num_queries;) {
            const int64_t left = num_queries - i;
            auto tile = [&](auto count) {
                constexpr int COUNT = decltype(count)::value;
                attend_tile<T, NV, COUNT>(layer, queries + i * WIDTH, keys + at, values + at, present, first,
                                          positions + i, sums_of + i * WIDTH, maxima + i, totals + i);
                i += COUNT;
            };
            if (AT_ONCE >= 4 && left >= 4) tile(std::integral_constant<int, AT_ONCE >= 4 ? 4 : 1>());
            else if (AT_ONCE >= 4 && left == 3) tile(std::integral_constant<int, AT_ONCE >= 4 ? 3 : 1>());
            else if (AT_ONCE >= 2 && left >= 2) tile(std::integral_constant<int, AT_ONCE >= 2 ? 2 : 1>());
            else tile(std::integral_constant<int, 1>());
        }
    }
    for (int64_t i = 0; i < num_queries; i++) {
        const float share = 1.0f / totals[i];
        T* to = task.out + ((i / task.group) * layer.num_heads + i % task.group) * layer.value_width;
        reorder<T, NV>(sums_of + i * WIDTH, true);
        for (int v = 0; v < NV; v++) store(to + v * LANES, load(sums_of + i * WIDTH + v * LANES) * share);
    }
}

template <typename T, int N>
void attend_width(const Task<T>& task, float* scratch) {
    if constexpr (N % 2 == 0)
        if (task.count * task.group <= FEW) return attend_few<T, N>(task, scratch);
    attend<T, N, N>(task, scratch);
}

template <typename T>
void run_task(const Task<T>& task, float* scratch) {
    const int64_t width = task.layer.key_width == task.layer.value_width ? task.layer.key_width : 0;
    switch (width) {
        case 16: return attend_width<T, 1>(task, scratch);
        case 32: return attend_width<T, 2>(task, scratch);
        case 64: return attend_width<T, 4>(task, scratch);
        case 80: return attend_width<T, 5>(task, scratch);
        case 96: return attend_width<T, 6>(task, scratch);
        case 128: return attend_width<T, 8>(task, scratch);
        case 256: return attend_width<T, 16>(task, scratch);
        default: return attend<T, 0, 0>(task, scratch);
    }
}

// K and V of a new token to its slot.
template <typename T>
void write(const Layer& layer, const Step& step, const T* key, const T* value, int64_t token, const int64_t* strides,
           float* scratch) {
    const int64_t heads = layer.num_kv_heads, slot = step.slots[token];
    for (int64_t head = 0; head < heads; head++) {
        const T* k = key + token * strides[2] + head * strides[3];
        const T* v = value + token * strides[4] + head * strides[5];
        T* to = (T*)layer.keys + (slot * heads + head) * layer.key_width;
        if (layer.key_norm || layer.rotates) {
            prepare(k, scratch, layer.key_width, layer.key_norm, layer, step, token);
            for (int64_t at = 0; at < layer.key_width; at += LANES)
                store_up_to(to + at, load(scratch + at), layer.key_width - at);
        } else {
            std::memcpy(to, k, sizeof(T) * layer.key_width);
        }
        std::memcpy((T*)layer.values + (slot * heads + head) * layer.value_width, v, sizeof(T) * layer.value_width);
    }
}

template <typename T>
void paged_attention(const Layer& layer, const Step& step, const T* query, const T* key, const T* value, T* out,
                     const int64_t* strides, float* scratch, int64_t scratch_size, int threads) {
    const int64_t tasks = step.num_tasks * layer.num_kv_heads, group = layer.num_heads / layer.num_kv_heads;
    // All heads of a row by one thread, where there are rows enough: what is read for one lies beside the others.
    const bool by_rows = step.num_tasks >= 4 * threads;
    int64_t untaken = 0;
#pragma omp parallel num_threads(threads)
    {
#ifdef _OPENMP
        float* mine = scratch + omp_get_thread_num() * scratch_size;
#else
        float* mine = scratch;
#endif
        // K and V of the new tokens first: this step's tokens attend to them. Without, they are there already.
        const int64_t written = key ? step.num_tokens : 0;
#pragma omp for schedule(static)
        for (int64_t token = 0; token < written; token++) write(layer, step, key, value, token, strides, mine);
        auto run = [&](int64_t at, int64_t head, Ahead<T>* ahead) {
            const int64_t start = step.task_start[at];
            Task<T> task{layer,
                         step,
                         head,
                         group,
                         head == 0 || !by_rows,
                         ahead,
                         start,
                         step.task_count[at],
                         step.task_position[at],
                         step.block_tables + step.task_row[at] * step.table_width,
                         query + start * strides[0] + head * group * strides[1],
                         strides[0],
                         strides[1],
                         out + (start * layer.num_heads + head * group) * layer.value_width};
            run_task(task, mine);
        };
        auto take = [&] {
            int64_t taken;
#pragma omp atomic capture
            taken = untaken++;
            return taken;
        };
        // By whole rows a thread takes the next before it does the first, so that it knows what to fetch.
        if (by_rows) {
            for (int64_t row = take(), next; row < step.num_tasks; row = next) {
                next = take();
                const int64_t tiles = step.task_position[row] / LANES + 1;
                Ahead<T> ahead(layer, step, next, tiles * layer.num_kv_heads);
                for (int64_t head = 0; head < layer.num_kv_heads; head++) run(row, head, &ahead);
            }
        } else {
#pragma omp for schedule(dynamic, 1)
            for (int64_t i = 0; i < tasks; i++) run(i / layer.num_kv_heads, i % layer.num_kv_heads, nullptr);
        }
    }
}

}  // namespace
