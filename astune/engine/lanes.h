/* Vectors of float32 as wide as this processor's, for GCC's vector extensions. */

#pragma once

#include "element.h"
#include <immintrin.h>

#ifdef __AVX512BW__
#define LANES 16
#define EACH_LANE {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}
#else
#define LANES 8
#define EACH_LANE {0, 1, 2, 3, 4, 5, 6, 7}
#endif
typedef float Lanes __attribute__((vector_size(4 * LANES)));
typedef float Floats __attribute__((vector_size(4 * LANES), aligned(2), may_alias));
typedef int32_t Indices __attribute__((vector_size(4 * LANES)));
typedef uint32_t Words __attribute__((vector_size(4 * LANES), aligned(2), may_alias));

/* Widen LANES numbers of bfloat16; gcc 12 makes three instructions or more of __builtin_convertvector. */
INLINE Lanes widened_halves(const uint16_t *x) {
#ifdef __AVX512BW__
    const Words words = (Words)_mm512_cvtepu16_epi32(_mm256_loadu_si256((const void *)x));
#elif defined(__AVX2__)
    const Words words = (Words)_mm256_cvtepu16_epi32(_mm_loadu_si128((const void *)x));
#else
    typedef uint16_t Halves __attribute__((vector_size(2 * LANES), aligned(2), may_alias));
    const Words words = __builtin_convertvector(*(const Halves *)x, Words);
#endif
    return (Lanes)(words << 16);
}

#ifdef BFLOAT16
INLINE Lanes loaded(const Element *x) { return widened_halves(x); }
#else
INLINE Lanes loaded(const Element *x) { return *(const Floats *)x; }
#endif

/* a * b + c, rounded once where the processor can: left to the compiler, whether it is would differ between one row and
   several. */
INLINE Lanes fused(Lanes a, Lanes b, Lanes c) {
#ifdef __AVX512BW__
    return (Lanes)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__FMA__)
    return (Lanes)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
    return a * b + c;
#endif
}

INLINE Lanes all(float x) { return x - (Lanes){0}; }
