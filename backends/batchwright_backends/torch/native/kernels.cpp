// What a step on CPU is made of: products with packed weights, attention over the paged KV cache, and element-wise work
// that torch does in a dozen passes. Plain C++, no headers of torch: it is built in some seconds where a compiler is at
// hand, for the very machine, and called through ctypes with raw pointers.
//
// All sums are float32; T is what tensors hold.

#include "attention.h"
#include "elementwise.h"
#include "products.h"

extern "C" {

// Floats that one thread's scratch needs for tasks of at most `count` tokens.
int64_t attention_scratch(const Layer* layer, int64_t count) {
    const int64_t group = layer->num_heads / layer->num_kv_heads;
    const int64_t queries = (count * group + QUERIES - 1) / QUERIES * QUERIES;
    const int64_t key = vectors(layer->key_width) * LANES, value = vectors(layer->value_width) * LANES;
    return queries * (key + value + 2 + LANES) + QUERIES * LANES + (key + value) * LANES;
}

#define EXPORT(NAME, T)                                                                                              \
    void paged_attention_##NAME(const Layer* layer, const Step* step, const void* query, const void* key,            \
                                const void* value, void* out, const int64_t* strides, float* scratch,                \
                                int64_t scratch_size, int threads) {                                                 \
        paged_attention(*layer, *step, (const T*)query, (const T*)key, (const T*)value, (T*)out, strides, scratch,   \
                        scratch_size, threads);                                                                      \
    }                                                                                                                \
    void attention_of_packed_##NAME(const Layer* layer, const Step* step, const void* packed, void* out,             \
                                    float* scratch, int64_t scratch_size, int threads) {                             \
        const int64_t keys = layer->num_kv_heads * layer->key_width, values = layer->num_kv_heads * layer->value_width; \
        const int64_t queries = layer->num_heads * layer->key_width, all = queries + keys + values;                  \
        const int64_t strides[] = {all, layer->key_width, all, layer->key_width, all, layer->value_width};           \
        const T* at = (const T*)packed;                                                                              \
        paged_attention(*layer, *step, at, at + queries, at + queries + keys, (T*)out, strides, scratch,             \
                        scratch_size, threads);                                                                      \
    }                                                                                                                \
    void rms_norm_##NAME(const void* x, const float* weight, void* out, int64_t rows, int64_t width, int64_t stride, \
                         float epsilon, int early, int threads) {                                                    \
        rms_norm((const T*)x, weight, (T*)out, rows, width, stride, epsilon, early != 0, threads);                   \
    }                                                                                                                \
    int has_products_##NAME() {                                                                                      \
        return Step_of<T>::available;                                                                                \
    }                                                                                                                \
    void pack_##NAME(const void* weights, void* to, int64_t outputs, int64_t inputs, int threads) {                  \
        pack((const T*)weights, (T*)to, outputs, inputs, threads);                                                   \
    }                                                                                                                \
    void product_##NAME(const void* x, const void* packed, void* to, int64_t rows, int64_t outputs, int64_t inputs,  \
                        const float* bias, const void* other, int threads) {                                         \
        product((const T*)x, (const T*)packed, (T*)to, rows, outputs, inputs, Added<T>{bias, (const T*)other},       \
                threads);                                                                                            \
    }                                                                                                                \
    void silu_mul_##NAME(const void* both, void* out, int64_t rows, int64_t width, int threads) {                    \
        silu_mul((const T*)both, (T*)out, rows, width, threads);                                                     \
    }

EXPORT(float32, float)
EXPORT(bfloat16, BFloat16)

}  // extern "C"
