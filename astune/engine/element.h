/* A tensor's numbers, float or (-DBFLOAT16) bfloat16, and float32, in which they are computed. */

#pragma once

#include <stdint.h>

#define INLINE static inline __attribute__((always_inline))

INLINE int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

INLINE float from_bfloat16(uint16_t x) {
    union { uint32_t bits; float value; } word = {(uint32_t)x << 16};
    return word.value;
}

INLINE uint16_t to_bfloat16(float x) {
    union { float value; uint32_t bits; } word = {x};
    const uint32_t to_nearest_even = word.bits + 0x7fff + (word.bits >> 16 & 1);
    return (word.bits & 0x7fffffff) > 0x7f800000 ? 0x7fc0 : to_nearest_even >> 16; /* not a number stays one */
}

#ifdef BFLOAT16
typedef uint16_t Element;

INLINE float widened(Element x) { return from_bfloat16(x); }

INLINE Element rounded(float x) { return to_bfloat16(x); }
#else
typedef float Element;

INLINE float widened(Element x) { return x; }

INLINE Element rounded(float x) { return x; }
#endif
