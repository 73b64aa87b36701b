// Vectors of 16 floats, by GCC's vector extensions: the compiler maps them to what the processor has.

#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#ifdef _OPENMP
#include <omp.h>
#endif

namespace {

constexpr int LANES = 16;
typedef float Floats __attribute__((vector_size(4 * LANES)));
typedef int32_t Ints __attribute__((vector_size(4 * LANES)));
typedef uint32_t Words __attribute__((vector_size(4 * LANES)));
typedef uint16_t Halves __attribute__((vector_size(2 * LANES)));

struct BFloat16 {
    uint16_t bits;
};

inline Floats splat(float x) {
    return Floats{} + x;
}

inline Floats select(Ints mask, Floats yes, Floats no) {
    return (Floats)((mask & (Ints)yes) | (~mask & (Ints)no));
}

inline Floats load(const float* from) {
    Floats x;
    std::memcpy(&x, from, sizeof x);
    return x;
}

inline void store(float* to, Floats x) {
    std::memcpy(to, &x, sizeof x);
}

inline Floats load(const BFloat16* from) {
    Halves bits;
    std::memcpy(&bits, from, sizeof bits);
    return (Floats)(__builtin_convertvector(bits, Words) << 16);
}

// 32 values. Of bfloat16 the even ones and then the odd ones: half of the work of bringing them in order.
inline void load_pair(const BFloat16* from, Floats& first, Floats& second) {
    Words words;
    std::memcpy(&words, from, sizeof words);
    first = (Floats)(words << 16);
    second = (Floats)(words & 0xffff0000u);
}

inline void load_pair(const float* from, Floats& first, Floats& second) {
    std::memcpy(&first, from, sizeof first);
    std::memcpy(&second, from + LANES, sizeof second);
}

inline Words to_bfloat16(Floats x) {  // to the nearest, ties to even, as torch rounds; NaN stays NaN
    Words bits = (Words)x;
    Words rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    Words nan = (Words)(x != x);
    return (nan & 0x7fc0) | (~nan & rounded);
}

inline void store(BFloat16* to, Floats x) {
    Halves bits = __builtin_convertvector(to_bfloat16(x), Halves);
    std::memcpy(to, &bits, sizeof bits);
}

// x as T would keep it.
inline Floats rounded(Floats x, const float*) {
    return x;
}
inline Floats rounded(Floats x, const BFloat16*) {
    return (Floats)(to_bfloat16(x) << 16);
}

template <typename T>
inline Floats load_some(const T* from, int count) {
    T lanes[LANES] = {};
    std::memcpy(lanes, from, sizeof(T) * count);
    return load(lanes);
}

template <typename T>
inline void store_some(T* to, Floats x, int count) {
    T lanes[LANES];
    store(lanes, x);
    std::memcpy(to, lanes, sizeof(T) * count);
}

template <typename T>
inline Floats load_up_to(const T* from, int64_t count) {
    return count >= LANES ? load(from) : load_some(from, (int)count);
}

template <typename T>
inline void store_up_to(T* to, Floats x, int64_t count) {
    if (count >= LANES)
        store(to, x);
    else
        store_some(to, x, (int)count);
}

typedef float Eight __attribute__((vector_size(32)));
typedef float Four __attribute__((vector_size(16)));

inline float sum(Floats x) {
    Eight parts[2];
    std::memcpy(parts, &x, sizeof x);
    Eight eight = parts[0] + parts[1];
    Four quarters[2];
    std::memcpy(quarters, &eight, sizeof eight);
    Four four = quarters[0] + quarters[1];
    return (four[0] + four[1]) + (four[2] + four[3]);
}

// Halves of a's groups of `width` lanes and then of b's: the first halves, or the second ones.
template <int width>
inline Floats halves(Floats a, Floats b, bool second) {
    Ints index;
    for (int i = 0; i < LANES; i++) {
        const int at = i % (LANES / 2), half = width / 2;  // the at-th lane that is taken of a, or of b
        index[i] = (i < LANES / 2 ? 0 : LANES) + at / half * width + at % half + (second ? half : 0);
    }
    return __builtin_shuffle(a, b, index);
}

// Lane k of the result is the sum of the lanes of x[k]: 15 additions in place of 16 sums.
inline Floats sums(Floats* x) {
    for (int i = 0; i < 8; i++) x[i] = halves<16>(x[2 * i], x[2 * i + 1], false) + halves<16>(x[2 * i], x[2 * i + 1], true);
    for (int i = 0; i < 4; i++) x[i] = halves<8>(x[2 * i], x[2 * i + 1], false) + halves<8>(x[2 * i], x[2 * i + 1], true);
    for (int i = 0; i < 2; i++) x[i] = halves<4>(x[2 * i], x[2 * i + 1], false) + halves<4>(x[2 * i], x[2 * i + 1], true);
    return halves<2>(x[0], x[1], false) + halves<2>(x[0], x[1], true);
}

inline float larger(float a, float b) {
    return a < b ? b : a;
}

inline float largest(Floats x) {
    Eight parts[2];
    std::memcpy(parts, &x, sizeof x);
    Eight eight = parts[0] < parts[1] ? parts[1] : parts[0];
    Four quarters[2];
    std::memcpy(quarters, &eight, sizeof eight);
    Four four = quarters[0] < quarters[1] ? quarters[1] : quarters[0];
    return larger(larger(four[0], four[1]), larger(four[2], four[3]));
}

// exp within 2 ulp: 2^n by the exponent's bits, and a polynomial of degree 6 on [-ln 2 / 2, ln 2 / 2] (its coefficients
// are those of the Taylor series, corrected for the interval as in Cephes' expf). Below -87 it is 0.
inline Floats exp(Floats x) {
    Floats top = select(x > 88.0f, splat(88.0f), x);
    Floats n = top * 1.44269504088896341f + 12582912.0f;  // 1.5 * 2^23: the sum's low bits are the rounded integer
    Ints power = (Ints)n - 0x4b400000;
    n -= 12582912.0f;
    Floats r = (top - n * 0.693359375f) + n * 2.12194440e-4f;
    Floats p = splat(1.9875691500e-4f);
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    Floats scaled = p * (Floats)((power + 127) << 23);
    return select(x < -87.0f, Floats{}, scaled);
}

// tanh within 4 ulp: near 0, where 1 - 2 / (1 + exp(2x)) loses its digits, the Taylor series.
inline Floats tanh(Floats x) {
    Floats far = 1.0f - 2.0f / (1.0f + exp(2.0f * x));
    Floats square = x * x;
    Floats near = splat(62.0f / 2835);
    near = near * square - 17.0f / 315;
    near = near * square + 2.0f / 15;
    near = near * square - 1.0f / 3;
    near = x + x * square * near;
    return select((square < 0.09f), near, far);
}

}  // namespace
