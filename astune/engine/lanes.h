/* Vectors of float32 as wide as this processor's, for GCC's vector extensions. */

#pragma once

#include "element.h"
#include <immintrin.h>

#ifdef __AVX512F__
#define LANES 16
#define EACH_LANE {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}
#else
#define LANES 8
#define EACH_LANE {0, 1, 2, 3, 4, 5, 6, 7}
#endif
typedef float Lanes __attribute__((vector_size(4 * LANES)));
typedef float Floats __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int32_t Indices __attribute__((vector_size(4 * LANES)));

/* a * b + c, rounded once where the processor can: left to the compiler, whether it is would differ between one row and
   several. */
INLINE Lanes fused(Lanes a, Lanes b, Lanes c) {
#ifdef __AVX512F__
    return (Lanes)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__FMA__)
    return (Lanes)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
    return a * b + c;
#endif
}

INLINE Lanes all(float x) { return x - (Lanes){0}; }
